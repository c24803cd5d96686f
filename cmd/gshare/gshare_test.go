// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/report/reporttest"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { pgtest.Main(m) }

// example is a database with the example cluster and a small second one, and
// how to run gshare on it.
type example struct {
	dsn    string
	caller string
	now    time.Time
}

func newExample(t *testing.T) example {
	t.Helper()
	pool := pgtest.Pool(t)
	reporttest.Load(t, pool)
	reporttest.LoadMeter(t, pool)
	note := budgets.Note{Actor: "root", From: reporttest.Start}
	b := budgets.NewStore(pool)
	_, err := b.AddAccount(context.Background(), "mini", "tiny", "root", fairshare.Whole, note)
	require.NoError(t, err)
	_, err = b.AddUser(context.Background(), "mini", "tiny", "ada", fairshare.EqualPart, note)
	require.NoError(t, err)
	_, err = b.AddAccount(context.Background(), "mini", "spare", "root", 0, note)
	require.NoError(t, err)
	configure(t, "Cluster="+reporttest.Cluster+"\n")
	return example{dsn: pool.Config().ConnString(), caller: "ada", now: reporttest.Now}
}

// configure makes text the configuration file that gshare finds.
func configure(t *testing.T, text string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gpubudget.conf")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	t.Setenv("GPUBUDGET_CONF", path)
}

func (e example) run(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	p := &program{stdout: &out, stderr: &errs, now: func() time.Time { return e.now }, zone: time.UTC, caller: e.caller}
	code = p.run(context.Background(), append([]string{"gshare", "--dsn", e.dsn}, args...))
	return code, out.String(), errs.String()
}

func TestGolden(t *testing.T) {
	version = "1.2.3"
	t.Cleanup(func() { version = "" })
	e := newExample(t)
	nobody, later := e, e
	nobody.caller = "root"
	later.now = reporttest.Now.Add(3*time.Hour + 2*time.Minute)
	for _, tt := range []struct {
		name string
		as   example
		args []string
	}{
		{"own", e, nil},
		{"own_of_nobody", nobody, nil},
		{"all", e, []string{"-a"}},
		{"all_long", e, []string{"-la"}},
		{"all_long_parsable", e, []string{"-lap"}},
		{"all_parsable2", e, []string{"-anP"}},
		{"noheader_as_h", e, []string{"-ah"}},
		{"users_only", e, []string{"-aU"}},
		{"users", e, []string{"-u", "dora,cyd"}},
		{"users_minus_one", e, []string{"-u", "-1", "-A", "nlp"}},
		{"accounts", e, []string{"-A", "NLP,vision", "-a"}},
		{"accounts_of_mine", e, []string{"--acc=vision"}},
		{"partition", e, []string{"-m"}},
		{"verbose", e, []string{"-v", "-A", "vision"}},
		{"format", e, []string{"-a", "-o", "acc%-30,USER%4,levelfs,delivered%,Delivered%8,entitled%6,usedh%3,strict%%7"}},
		{"format_twice", e, []string{"-anPoaccount", "--format", "rank"}},
		{"two_clusters", e, []string{"-M", "titan,mini", "-o", "Cluster,Account,User,Share"}},
		{"all_clusters", e, []string{"-aM", "ALL", "-U"}},
		{"account_of_one_cluster", e, []string{"-M", "mini,Titan,mini", "-nA", "tiny"}},
		{"user_of_one_cluster", e, []string{"--clusters=all", "-nu", "cyd"}},
		{"unfunded", e, []string{"-aM", "mini", "-o", "account,levelfs,ratio,state"}},
		{"stale", later, []string{"-U"}},
		{"metered", e, []string{"-a", "-o", "account,user,usedh,unalloc,busyh,util,meter"}},
		{"idle", e, []string{"-a", "--idle"}},
		{"idle_own", e, []string{"--idle"}},
		{"idle_of_user", e, []string{"--idle", "-u", "cyd", "-M", "titan,mini"}},
		{"idle_of_account", e, []string{"-a", "--idle", "-A", "nlp"}},
		{"idle_longer", e, []string{"-anP", "--idle", "--idle-for=5h"}},
		{"idle_power", e, []string{"-ap", "--idle", "--idle-power=50"}},
		{"idle_silent", later, []string{"-a", "--idle"}},
		{"idle_json", e, []string{"-a", "--idle", "--json"}},
		{"json", e, []string{"-a", "--json"}},
		{"json_two_clusters", e, []string{"--json", "-M", "mini,titan", "-A", "root"}},
		{"helpformat", e, []string{"-e"}},
		{"help", e, []string{"--help"}},
		{"version", e, []string{"-V"}},
		{"completion_bash", e, []string{"--completion=bash"}},
		{"completion_zsh", e, []string{"--completion=zsh"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := tt.as.run(tt.args...)
			require.Equal(t, exitOK, code, stderr)
			got := "$ gshare " + strings.Join(tt.args, " ") + "\n" + stderr + stdout
			golden(t, tt.name, got)
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run the test with -update to write it")
	require.Equal(t, string(want), got, "if this is right, run the test with -update")
}

func TestErrors(t *testing.T) {
	e := newExample(t)
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"-o", "Acount"}, exitUsage, `invalid field requested: "Acount": did you mean Account?`},
		{[]string{"-o", "qqqq"}, exitUsage, `invalid field requested: "qqqq": list the fields with: gshare -e`},
		{[]string{"-o", "S"}, exitUsage, `field "S" could be Share, ShareOfCluster, State, Strict%`},
		{[]string{"-o", "user%0"}, exitUsage, `field "user%0": the width after % must be a number from 1 to 1000, or negative to stand at the left`},
		{[]string{"-o", "user%x"}, exitUsage, `field "user%x": the width after % must be a number from 1 to 1000, or negative to stand at the left`},
		{[]string{"--halp"}, exitUsage, `unknown option --halp: did you mean --help?`},
		{[]string{"--par"}, exitUsage, `option --par could be --parsable or --parsable2 or --partition`},
		{[]string{"-ax"}, exitUsage, `unknown option -x`},
		{[]string{"--all=yes"}, exitUsage, `option --all takes no value`},
		{[]string{"-A"}, exitUsage, `option -A needs a value`},
		{[]string{"--format"}, exitUsage, `option --format needs a value`},
		{[]string{"--idle-for", "5m"}, exitUsage, `--idle-for and --idle-power go with --idle`},
		{[]string{"--idle", "-o", "user"}, exitUsage, `--idle has columns of its own: leave out --format`},
		{[]string{"--idle", "--idle-for=-1s"}, exitUsage, `--idle-for and --idle-power must not be negative`},
		{[]string{"--idle", "--idle-power=NaN"}, exitUsage, `--idle-for and --idle-power must not be negative`},
		{[]string{"--idle", "--jobs"}, exitUsage, `--idle and --jobs don't go together`},
		{[]string{"--jobs", "-o", "sta"}, exitUsage, `field "sta" could be Start, State`},
		{[]string{"--jobs", "-o", "levelfs"}, exitUsage, `invalid field requested: "levelfs": with --jobs there are JobID, Account,`},
		{[]string{"--jobs", "-o", "protectd"}, exitUsage, `invalid field requested: "protectd"`},
		{[]string{"--jobs", "-o", "user%0"}, exitUsage, `field "user%0": the width after % must be`},
		{[]string{"--jobs", "-A", "visoin"}, exitError, `cluster titan has no account "visoin": did you mean vision?`},
		{[]string{"--idle", "-A", "visoin"}, exitError, `cluster titan has no account "visoin": did you mean vision?`},
		{[]string{"vision"}, exitUsage, `unexpected argument "vision": name accounts with -A and users with -u`},
		{[]string{"-u", "4000000000"}, exitUsage, `no user has the uid 4000000000`},
		{[]string{"--completion", "fish"}, exitUsage, `no completion for shell "fish": there is one for bash and one for zsh`},
		{[]string{"-A", "visoin"}, exitError, `cluster titan has no account "visoin": did you mean vision?`},
		{[]string{"-A", "zzzzzz"}, exitError, `cluster titan has no account "zzzzzz": list them with: gshare -a`},
		{[]string{"-u", "dorra"}, exitError, `user "dorra" is in no account of cluster titan: did you mean dora?`},
		{[]string{"-M", "titen"}, exitError, `the ledger has no cluster "titen": did you mean titan?`},
		{[]string{"-M", "zzzzzz"}, exitError, `the ledger has no cluster "zzzzzz", only mini, titan: name it with -M or Cluster= of the configuration file`},
		{[]string{"-M", "titan,zzzzzz"}, exitError, `the ledger has no cluster "zzzzzz", only mini, titan: name it with -M or Cluster= of the configuration file`},
		{[]string{"-M", "all", "-A", "visoin"}, exitError, `cluster mini or titan has no account "visoin": did you mean vision?`},
		{[]string{"--conf", "/nonexistent/x.conf"}, exitError, `/nonexistent/x.conf`},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			code, stdout, stderr := e.run(tt.args...)
			require.Equal(t, tt.code, code)
			require.Empty(t, stdout)
			first, rest, _ := strings.Cut(stderr, "\n")
			require.Contains(t, first, tt.want)
			require.True(t, strings.HasPrefix(first, "gshare: error: "))
			require.Equal(t, tt.code == exitUsage, rest != "", "one line, and for a wrong command line where to look")
		})
	}
}

func TestWithoutAClusterToGoBy(t *testing.T) {
	e := newExample(t)
	configure(t, "")
	code, _, stderr := e.run()
	require.Equal(t, exitError, code)
	require.Equal(t, "gshare: error: the database has several clusters: name one with -M: mini, titan\n", stderr)

	e.dsn = pgtest.DB(t)
	for _, args := range [][]string{nil, {"-M", "all"}} {
		code, _, stderr = e.run(args...)
		require.Equal(t, exitError, code)
		require.Equal(t, "gshare: error: the ledger is empty: begin with: gpubudget account add\n", stderr)
	}

	e.dsn = pgtest.EmptyDB(t)
	code, _, stderr = e.run()
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "gpubudget db migrate")

	e.dsn = "host=/nonexistent dbname=x"
	code, _, stderr = e.run()
	require.Equal(t, exitError, code)
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
}

func TestAnInterrupt(t *testing.T) {
	e := newExample(t)
	ctx, interrupt := context.WithCancel(context.Background())
	interrupt()
	var out, errs bytes.Buffer
	p := &program{stdout: &out, stderr: &errs, now: time.Now, zone: time.UTC}
	require.Equal(t, exitError, p.run(ctx, []string{"gshare", "--dsn", e.dsn}))
	require.Equal(t, "gshare: error: interrupted\n", errs.String())
	require.Empty(t, out.String())
}

func TestARoleThatMayOnlyRead(t *testing.T) {
	e := newExample(t)
	owner, err := pgx.Connect(context.Background(), e.dsn)
	require.NoError(t, err)
	defer func() { require.NoError(t, owner.Close(context.Background())) }()
	do := func(sql string) {
		_, err := owner.Exec(context.Background(), sql)
		require.NoError(t, err)
	}
	do(`CREATE ROLE only_reads LOGIN`)
	defer do(`DROP OWNED BY only_reads; DROP ROLE only_reads`)
	e.dsn = strings.Replace(e.dsn, "user=postgres", "user=only_reads", 1)
	code, _, stderr := e.run("-a")
	require.Equal(t, exitError, code)
	_, remedy, found := strings.Cut(stderr, "as the schema's owner run: ")
	require.True(t, found, stderr)
	do(remedy)
	code, stdout, stderr := e.run("-a")
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, "vision")
}

func TestTheOnlyClusterIsTheDefault(t *testing.T) {
	pool := pgtest.Pool(t)
	reporttest.Load(t, pool)
	configure(t, "")
	e := example{dsn: pool.Config().ConnString(), caller: "ada", now: reporttest.Now}
	code, stdout, stderr := e.run("-anP", "-o", "Cluster,Account")
	require.Equal(t, exitOK, code, stderr)
	require.True(t, strings.HasPrefix(stdout, "titan|root\n"))
}

// A user with infinite LevelFS and accounts without entitlement are in it.
func TestJSONIsValidAndFinite(t *testing.T) {
	e := newExample(t)
	code, stdout, stderr := e.run("-a", "--json", "-M", "titan,mini")
	require.Equal(t, exitOK, code, stderr)
	var got struct {
		Clusters []struct {
			Cluster string `json:"cluster"`
			Rows    []struct {
				Account         string   `json:"account"`
				State           string   `json:"state"`
				User            *string  `json:"user"`
				LevelFS         *float64 `json:"level_fs"`
				LevelFSInfinite bool     `json:"level_fs_infinite"`
				Ratio           *float64 `json:"ratio"`
				UsedMillis      int64    `json:"used_gpu_ms"`
			} `json:"rows"`
		} `json:"clusters"`
	}
	decoder := json.NewDecoder(strings.NewReader(stdout))
	require.NoError(t, decoder.Decode(&got))
	require.False(t, decoder.More(), "one document")
	require.Len(t, got.Clusters, 2)
	var infinite, withoutRatio int
	for _, c := range got.Clusters {
		require.NotEmpty(t, c.Rows)
		for _, row := range c.Rows {
			if row.LevelFSInfinite {
				infinite++
				require.Nil(t, row.LevelFS)
			}
			if row.Ratio == nil {
				withoutRatio++
			}
			if row.Account == "nlp" && row.User == nil {
				require.EqualValues(t, 970*fairshare.GPUHour, row.UsedMillis)
			}
		}
	}
	require.Positive(t, infinite)
	require.Positive(t, withoutRatio)
}

func TestCompletionScriptsParse(t *testing.T) {
	var e example
	for _, shell := range []string{"bash", "zsh"} {
		_, script, _ := e.run("--completion", shell)
		checkShell(t, shell, script)
	}
}
