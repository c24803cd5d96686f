// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/cmd/gpubudget/assoc"
	"gpubudget/internal/pgtest"
)

// TestBinary tests what only the built program shows.
func TestBinary(t *testing.T) {
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags", "-X main.version=1.2.3", "-o", dir, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	t.Run("exit codes", testExitCodes)
	t.Run("completion scripts are valid", testCompletionScripts)
	t.Run("bash completes", testBashCompletes)
}

// shell runs a script of bash.
func (s *session) shell(script string) (stdout, stderr string, code int) {
	s.t.Helper()
	command := exec.CommandContext(s.t.Context(), "bash", "-c", script)
	command.Env = append(os.Environ(), "GPUBUDGET_TEST_DSN="+s.dsn, "TZ=Europe/Berlin")
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(s.t, err)
	}
	return out.String(), errs.String(), command.ProcessState.ExitCode()
}

func testExitCodes(t *testing.T) {
	s := newSession(t, pgtest.DB(t))
	for _, tc := range []struct {
		line string
		code int
		want string // in stdout or stderr
	}{
		{`gpubudget --version`, 0, "gpubudget 1.2.3\n"},
		{`gpubudget version --json`, 0, `"version": "1.2.3"`},
		{`gpubudget`, 0, "COMMANDS:"},
		{`gpubudget --dsn "$GPUBUDGET_TEST_DSN" tree`, 1, "the ledger is empty"},
		{`gpubudget tree --dsn "host=/nonexistent"`, 1, "no such socket"},
		{`gpubudget tree --conf /nonexistent.conf`, 1, "read configuration: open /nonexistent.conf: no such file or directory"},
		{`gpubudget tree --nonsense`, 2, "unknown option --nonsense"},
		{`gpubudget trees`, 2, "did you mean tree?"},
		{`echo n | gpubudget --dsn "$GPUBUDGET_TEST_DSN" -M titan account add vision --share 30%`, 0, "Entry 1 of the ledger of titan."},
		{`gpubudget --dsn "$GPUBUDGET_TEST_DSN" account list -nP`, 0, "vision|root|30%|30%|0\n"},
		{`gpubudget --dsn "$GPUBUDGET_TEST_DSN" share set vision 101`, 1, "more than 100%"},
		{`gpubudget --dsn "$GPUBUDGET_TEST_DSN" ledger -nP > /dev/full`, 1, "no space left on device"},
		{`SLURM_CONF=/nonexistent gpubudget --dsn "$GPUBUDGET_TEST_DSN" explain 12`, 1, "job 12 can't be explained: run squeue: SLURM_CONF: stat /nonexistent: no such file or directory: try where squeue works"},
		{`gpubudget --conf <(echo Shares=slurm) explain 12 --shares ledger`, 1, "says Shares=slurm, so the ledger has no part in its priority"},
		{`SLURM_CONF=/nonexistent gpubudget --conf <(echo Shares=slurm) explain 12`, 1, "Slurm's shares can't be explained: run scontrol: SLURM_CONF: stat /nonexistent"},
		{`PATH=$(dirname "$(command -v gpubudget)") gpubudget --dsn "$GPUBUDGET_TEST_DSN" explain 12_3`, 1, "squeue is not on the PATH"},
		{`SLURM_CONF=/nonexistent gpubudget --dsn "$GPUBUDGET_TEST_DSN" explain vision -nP`, 0, "path|vision||30%|30%|0.00|0.00|"},
		{`SUDO_USER=ann gpubudget --dsn "$GPUBUDGET_TEST_DSN" -Q share set vision 31 && gpubudget --dsn "$GPUBUDGET_TEST_DSN" ledger --actor ann -nP`, 0, "|ann|share_set|vision||share 31%|"},
	} {
		t.Run(tc.line, func(t *testing.T) {
			stdout, stderr, code := s.shell(tc.line)
			require.Equal(t, tc.code, code, "%s%s", stdout, stderr)
			require.Contains(t, stdout+stderr, tc.want)
			if code != 0 {
				require.True(t, strings.HasPrefix(stderr, "gpubudget: error: "), stderr)
				require.NotContains(t, stdout, "error")
			}
		})
	}
}

func TestConfigurationFile(t *testing.T) {
	s := newSession(t, pgtest.DB(t))
	path := filepath.Join(t.TempDir(), "gpubudget.conf")
	require.NoError(t, os.WriteFile(path, []byte("Cluster=Titan\nDSN="+s.dsn+"\n"), 0o600))
	t.Setenv("GPUBUDGET_CONF", path)
	s.dsn = ""
	s.must("-Q", "account", "add", "vision", "--share", "30%")
	require.Equal(t, "root||100%|100%|0\nvision|root|30%|30%|0\n", s.must("account", "list", "-nP"))
	require.Contains(t, s.must("ledger", "--json"), `"cluster": "titan"`)

	require.NoError(t, os.WriteFile(path, []byte("Clutser=titan\n"), 0o600))
	_, stderr, code := s.run("", false, "tree")
	require.Equal(t, exitError, code)
	require.Equal(t, "gpubudget: error: "+path+`:1: unknown key "Clutser": did you mean Cluster?`+"\n", stderr)
}

func testCompletionScripts(t *testing.T) {
	s := newSession(t, pgtest.DB(t))
	_, stderr, code := s.shell("gpubudget completion bash | bash -n")
	require.Zero(t, code, stderr)
	if _, err := exec.LookPath("zsh"); err == nil {
		_, stderr, code = s.shell("gpubudget completion zsh | zsh -n")
		require.Zero(t, code, stderr)
	}
}

// testBashCompletes asks bash itself, through the script, what comes next.
func testBashCompletes(t *testing.T) {
	s := newSession(t, pgtest.DB(t))
	s.must("-Q", "-M", "titan", "account", "add", "vision", "--share", "30%")
	s.must("-Q", "account", "add", "video", "--parent", "vision")
	s.must("-Q", "account", "add", "speech", "--share", "10%")
	s.must("-Q", "user", "add", "ann,abe,bob", "speech")
	s.must("-Q", "-M", "hydra", "account", "add", "other", "--new-cluster")
	path := filepath.Join(t.TempDir(), "gpubudget.conf")
	require.NoError(t, os.WriteFile(path, []byte("Cluster=titan\nDSN="+s.dsn+"\n"), 0o600))
	t.Setenv("GPUBUDGET_CONF", path)

	complete := func(line string) string {
		const script = `source <(gpubudget completion bash)
			COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _gpubudget; echo "${COMPREPLY[*]}"`
		words := strings.Split(line, " ") // the last one is being typed
		command := exec.CommandContext(t.Context(), "bash", append([]string{"-c", script, "bash"}, words...)...)
		text, err := command.Output()
		require.NoError(t, err)
		return strings.Join(strings.Fields(string(text)), " ")
	}
	for _, tc := range []struct{ line, want string }{
		{"gpubudget a", "account apply"},
		{"gpubudget share ", "set list"},
		{"gpubudget share set vi", "video vision"},
		{"gpubudget share set --why x -i vi", "video vision"},
		{"gpubudget share set vision ", ""},
		{"gpubudget account move video s", "speech"},
		{"gpubudget account add x --parent s", "speech"},
		{"gpubudget account add x --pa", "--parent --parsable --parsable2"},
		{"gpubudget user remove a", "abe ann"},
		{"gpubudget user remove ann sp", "speech"},
		{"gpubudget ledger -A v", "video vision"},
		{"gpubudget explain v", "video vision"},
		{"gpubudget explain speech/a", "speech/abe speech/ann"},
		{"gpubudget ledger --kind dep", "deposit"},
		{"gpubudget policy set l", "lookback"},
		{"gpubudget -M h", "hydra"},
		{"gpubudget -M hydra tree ", "other root"},
		{"gpubudget nonsense ", ""},
		{"gpubudget tree --nonsense ", ""},
		{"gpubudget tree --dsn host=/nonexistent v", ""},
		{"gpubudget completion ", "bash zsh"},
		{"gpubudget __", ""},
	} {
		t.Run(tc.line, func(t *testing.T) { require.Equal(t, tc.want, complete(tc.line)) })
	}
}

// Without a file, and for what a listing lacks, sacctmgr itself is asked.
func TestImportAsksSacctmgr(t *testing.T) {
	s := newSession(t, pgtest.DB(t))
	var asked [][]string
	s.slurm = func(_ context.Context, name string, args ...string) ([]byte, error) {
		require.Equal(t, "sacctmgr", name)
		asked = append(asked, args)
		return os.ReadFile("assoc/testdata/show_assoc_parent_P.txt")
	}
	s.must("-Q", "import", "sacctmgr", "--from", "2025-01-01")
	require.Equal(t, [][]string{strings.Fields(assoc.Command)[1:]}, asked)
	require.Equal(t, "The ledger of c1 agrees: nothing to change.\n", lastLine(s.must("import", "sacctmgr")))

	out := s.must("import", "sacctmgr", "testdata/show_assoc_nP.lst", "--prune")
	require.Contains(t, out, "Note: the input does not say which account stands below which: taken from Slurm as it is now.\n")
	require.Equal(t, "The ledger of c1 agrees: nothing to change.\n", lastLine(out))
	require.Equal(t, append(strings.Fields(assoc.Command)[1:], "where", "cluster=c1"), asked[2])
}

func lastLine(text string) string {
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	return lines[len(lines)-1] + "\n"
}

// A role gets the rights that the error names, first to read, then to write.
func TestARoleWithoutRights(t *testing.T) {
	s := newSession(t, pgtest.DB(t))
	s.must("-Q", "-M", "titan", "account", "add", "vision", "--share", "30%")
	ctx := context.Background()
	owner, err := pgx.Connect(ctx, s.dsn)
	require.NoError(t, err)
	defer owner.Close(ctx)
	do := func(sql string) {
		_, err := owner.Exec(ctx, sql)
		require.NoError(t, err, sql)
	}
	do(`CREATE ROLE "Team-Lead" LOGIN`)
	defer do(`DROP OWNED BY "Team-Lead"; DROP ROLE "Team-Lead"`)
	s.dsn = strings.Replace(s.dsn, "user=postgres", "user=Team-Lead", 1)

	_, stderr, code := s.run("", false, "db", "migrate")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "do this as the role that owns the schema gpubudget")
	_, stderr, code = s.run("", false, "db", "status")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "GRANT USAGE ON SCHEMA gpubudget")
	require.NotContains(t, stderr, "SQLSTATE")

	_, stderr, code = s.run("", false, "tree")
	require.Equal(t, exitError, code)
	_, remedy, found := strings.Cut(stderr, "as the schema's owner run: ")
	require.True(t, found, stderr)
	toRead, toWrite, found := strings.Cut(strings.TrimSpace(remedy), " and to write: ")
	require.True(t, found, stderr)
	do(toRead)
	s.must("tree")

	_, stderr, code = s.run("", false, "share", "set", "vision", "40%")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, toWrite)
	do(toWrite)
	s.must("share", "set", "vision", "40%")
	s.must("-i", "account", "close", "vision")
	require.Contains(t, s.must("ledger", "--json"), `"database_role": "Team-Lead"`)
}
