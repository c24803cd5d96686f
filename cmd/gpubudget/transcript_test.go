// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"gpubudget/cmd/gpubudget/queue"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/internal/slurmtime"
	"gpubudget/usage"
)

var update = flag.Bool("update", false, "write what commands print into the transcripts")

func TestMain(m *testing.M) { pgtest.Main(m) }

// Transcripts are sessions with gpubudget: command lines and what they print.
// A test runs the commands, in one process against one real database, and
// compares; with -update it writes the output into the file instead.
//
//	$ gpubudget ...          a command; a line that ends with \ goes on
//	$ [y] gpubudget ...      the same at a terminal, with the answer y
//	$ [capacity 64] TIME     records a capacity of the cluster titan
//	$ [capacity 64 a100:16,h100:48] TIME    likewise, by type
//	$ [run vision/ann 8] FROM UNTIL         records a run, on 8 GPUs; it lasts if UNTIL is -
//	$ [run vision/ann 8 n1] FROM UNTIL      likewise, and where; a word more at the end is how it ended
//	$ [agent n1 8 ok] TIME   records a node's agent, with 8 GPUs n1-0 and so on, and when it was last seen
//	$ [meter 7 n1-0 50 300] FROM UNTIL IDLE records that job 7 held a GPU, how busy it was, in percent, its power,
//	                                        and since when it is idle; ? is not known, - is not so
//	$ [queue vision/ann 3 12] TIME          adds 3 pending jobs for 12 GPUs to the queue seen then
//	$ [slurm NAME]           lets squeue, sprio and sshare print testdata/NAME.squeue and so on, and scontrol show
//	                         config NAME.config and assoc_mgr NAME.assoc_mgr
//	$ [conf KEY=VALUE ...]   is what gpubudget.conf says
//
// After "<" stands a file that is standard input. What goes to stderr follows
// stdout with "! " before each line; an exit code other than 0 comes last.

// session is one transcript's world.
type session struct {
	t     *testing.T
	dsn   string
	zone  *time.Location
	queue []usage.Queue
	runs  uint32
	slurm queue.Command
}

func newSession(t *testing.T, dsn string) *session {
	t.Helper()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "PG") {
			t.Setenv(name, "") // and so restored at the end
			require.NoError(t, os.Unsetenv(name))
		}
	}
	t.Setenv("GPUBUDGET_CONF", emptyFile(t))
	zone, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	return &session{t: t, dsn: dsn, zone: zone, slurm: func(_ context.Context, name string, _ ...string) ([]byte, error) {
		return nil, fmt.Errorf("run %s: not found", name)
	}}
}

func emptyFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gpubudget.conf")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	return path
}

// clock is the moment that commands take for now when they read times.
var clock = time.Date(2026, 3, 11, 9, 30, 15, 0, time.UTC)

// program is a run whose output is collected.
func (s *session) program(stdin string, terminal bool) (p *program, stdout, stderr *bytes.Buffer) {
	stdout, stderr = &bytes.Buffer{}, &bytes.Buffer{}
	return &program{
		stdin: strings.NewReader(stdin), stdout: stdout, stderr: stderr, terminal: terminal, patience: 30 * time.Second,
		now: func() time.Time { return clock }, zone: s.zone, actor: "admin", slurm: s.slurm,
	}, stdout, stderr
}

// run executes one command line.
func (s *session) run(stdin string, terminal bool, args ...string) (stdout, stderr string, code int) {
	s.t.Helper()
	p, out, errs := s.program(stdin, terminal)
	line := []string{"gpubudget"}
	if s.dsn != "" {
		line = append(line, "--dsn", s.dsn)
	}
	if len(args) > 0 && args[0] == completeName {
		line = append([]string{"gpubudget", completeName, "--dsn", s.dsn}, args[1:]...)
		args = nil
	}
	code = p.run(context.Background(), append(line, args...))
	return out.String(), errs.String(), code
}

// must is run of a command that has to succeed.
func (s *session) must(args ...string) string {
	s.t.Helper()
	stdout, stderr, code := s.run("", false, args...)
	require.Zero(s.t, code, "%v: %s", args, stderr)
	return stdout
}

func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			db := pgtest.DB
			if strings.HasPrefix(filepath.Base(file), "empty_") {
				db = pgtest.EmptyDB
			}
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			got := newSession(t, db(t)).replay(string(text))
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			require.Equal(t, string(text), got)
		})
	}
}

// TestManual runs the examples of the manual, all in one session.
func TestManual(t *testing.T) {
	const file = "../../docs/gpubudget.md"
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	s := newSession(t, pgtest.EmptyDB(t))
	blocks := strings.Split(string(text), "```")
	require.Greater(t, len(blocks), 10)
	for i := range blocks {
		if i%2 == 1 && strings.HasPrefix(blocks[i], "console\n") {
			blocks[i] = "console\n" + s.replay(strings.TrimPrefix(blocks[i], "console\n"))
		}
	}
	got := strings.Join(blocks, "```")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
		return
	}
	require.Equal(t, string(text), got)
}

// replay is a transcript with the output of its commands as it is now. Lines
// that begin with # are kept, after an empty line.
func (s *session) replay(text string) string {
	s.t.Helper()
	var out strings.Builder
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		switch line := lines[i]; {
		case strings.HasPrefix(line, "# "):
			if out.Len() > 0 && !strings.HasPrefix(lines[i-1], "# ") {
				out.WriteString("\n")
			}
			out.WriteString(line + "\n")
		case strings.HasPrefix(line, "$ "):
			out.WriteString(line + "\n")
			command := line[2:]
			for strings.HasSuffix(command, `\`) {
				i++
				out.WriteString(lines[i] + "\n")
				command = strings.TrimSuffix(command, `\`) + strings.TrimSpace(lines[i])
			}
			out.WriteString(s.execute(command))
		}
	}
	return out.String()
}

// execute is what one command of a transcript prints.
func (s *session) execute(command string) string {
	s.t.Helper()
	terminal, answer := false, ""
	if s.record(command) {
		return ""
	}
	if rest, ok := strings.CutPrefix(command, "["); ok {
		answer, command, terminal = cut(rest, "] ")
	}
	command, file, hasInput := cut(command, " < ")
	stdin := answer + "\n"
	if hasInput {
		text, err := os.ReadFile(filepath.Join("testdata", strings.TrimSpace(file)))
		require.NoError(s.t, err)
		stdin = string(text)
	}
	words := splitWords(s.t, command)
	require.Equal(s.t, "gpubudget", words[0], "a transcript runs gpubudget only: %s", command)
	stdout, stderr, code := s.run(stdin, terminal, words[1:]...)
	out := s.mask(stdout)
	if out != "" && !strings.HasSuffix(out, "\n") {
		out += "\n" // after a question, the answer's
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(s.mask(stderr), "\n"), "\n") {
		if line != "" {
			out += "! " + line + "\n"
		}
	}
	if code != 0 {
		out += fmt.Sprintf("[exit %d]\n", code)
	}
	return out
}

func cut(text, sep string) (before, after string, found bool) { return strings.Cut(text, sep) }

// splitWords splits a command line as a shell does, with quotes.
func splitWords(t *testing.T, line string) []string {
	t.Helper()
	var words []string
	var word strings.Builder
	inWord, quote := false, rune(0)
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			inWord, quote = true, r
		case quote == 0 && r == ' ':
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		default:
			inWord = true
			word.WriteRune(r)
		}
	}
	require.Zero(t, quote, "a quote is not closed: %s", line)
	if inWord {
		words = append(words, word.String())
	}
	return words
}

// record does what a line says that is no command, if it is such a line.
func (s *session) record(line string) bool {
	s.t.Helper()
	rest, inBrackets := strings.CutPrefix(line, "[")
	what, times, _ := strings.Cut(rest+" ", "] ") // a list of nodes has brackets too
	words, at := strings.Fields(what), strings.Fields(times)
	if !inBrackets || len(words) == 0 {
		return false
	}
	switch words[0] {
	case "capacity":
		s.recordCapacity(words[1], strings.Join(words[2:], ""), at[0])
	case "run":
		s.recordRun(words[1:], at)
	case "agent":
		s.recordAgent(words[1:], at[0])
	case "meter":
		s.recordMeter(words[1:], at)
	case "queue":
		s.recordQueue(words[1:], at[0])
	case "slurm":
		s.slurm = slurmOf(s.t, words[1])
	case "conf":
		require.NoError(s.t, os.WriteFile(os.Getenv("GPUBUDGET_CONF"), []byte(strings.Join(words[1:], "\n")), 0o600))
	default:
		return false
	}
	return true
}

func (s *session) number(text string) int64 {
	s.t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(s.t, err)
	return n
}

func (s *session) time(text string) time.Time {
	s.t.Helper()
	at, err := slurmtime.Reader{Now: clock.In(s.zone)}.Read(text)
	require.NoError(s.t, err)
	return at
}

// used runs do with the store of what was used.
func (s *session) used(do func(ctx context.Context, u *usage.Store) error) {
	s.t.Helper()
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, s.dsn)
	require.NoError(s.t, err)
	defer pool.Close()
	require.NoError(s.t, do(ctx, usage.NewStore(pool)))
}

func (s *session) recordCapacity(gpus, types, at string) {
	s.t.Helper()
	s.used(func(ctx context.Context, u *usage.Store) error {
		return u.WriteCapacity(ctx, "titan", s.time(at), fairshare.Holding{Type: types, GPUs: s.number(gpus)})
	})
}

func (s *session) recordRun(what, at []string) {
	s.t.Helper()
	s.runs++
	account, user, _ := strings.Cut(what[0], "/")
	run := usage.Run{
		Cluster: "titan", JobID: s.runs, ArrayTaskID: usage.NoTask, Account: account, User: user, Partition: "gpu", QOS: "normal",
		Nodes: strings.Join(what[2:], ","), GPUs: s.number(what[1]), Allocated: true, StartedAt: s.time(at[0]), SeenAt: s.time(at[0]),
	}
	if at[1] != "-" {
		end := s.time(at[1])
		run.EndedAt, run.EndState, run.SeenAt = &end, "COMPLETED", end
		if len(at) > 2 {
			run.EndState = at[2]
		}
	}
	s.used(func(ctx context.Context, u *usage.Store) error { return u.WriteRuns(ctx, []usage.Run{run}) })
}

func (s *session) recordAgent(what []string, at string) {
	s.t.Helper()
	s.used(func(ctx context.Context, u *usage.Store) error {
		_, err := u.DB().Exec(ctx, `INSERT INTO gpubudget.agent
			(cluster, node, incarnation, boot_id, started_at, version, seen_at, skew_ms, sampled_at, spooled, gpus, state)
			VALUES ('titan', $1, gen_random_uuid(), 'b', $2, 'test', CASE $3 WHEN 'now' THEN now() ELSE $2 END, -1234, $2, 5, $4, $5)`,
			what[0], s.time(at), at, s.number(what[1]), strings.Join(what[2:], " "))
		if err != nil {
			return err
		}
		_, err = u.DB().Exec(ctx, `INSERT INTO gpubudget.gpu (cluster, node, uuid, model, gres_index, first_seen, last_seen)
			SELECT 'titan', $1, format('%s-%s', $1::text, n), 'H200', n, $2, $2 FROM generate_series(0, $3::bigint - 1) n`,
			what[0], s.time(at), s.number(what[1]))
		return err
	})
}

// recordMeter writes what record_meter would not take: it is long ago.
func (s *session) recordMeter(what, at []string) {
	s.t.Helper()
	node, _, _ := strings.Cut(what[1], "-")
	from, until := s.time(at[0]), s.time(at[1])
	var idle *time.Time
	if at[2] != "-" {
		idle = new(s.time(at[2]))
	}
	s.used(func(ctx context.Context, u *usage.Store) error {
		_, err := u.DB().Exec(ctx, `SELECT gpubudget.make_partitions(d::date, 1)
			FROM generate_series(date_trunc('day', $1::timestamptz AT TIME ZONE 'UTC'), $2::timestamptz AT TIME ZONE 'UTC', interval '1 day') d`, from, until)
		if err != nil {
			return err
		}
		_, err = u.DB().Exec(ctx, `
			INSERT INTO gpubudget.gpu_bucket (cluster, starts_at, ends_at, gpu, job_id, restart, incarnation, seq, node, source, user_name,
				held_from, held_until, held_ms, ended, part_ms, busy_ms, busy_known_ms, memory_mib_ms, memory_known_ms, memory_max_mib,
				energy_mj, energy_known_ms, samples, idle_since)
			SELECT 'titan', h, h + interval '1 hour', $1, $2, 0, '00000000-0000-0000-0000-000000000001', 1, $3, 'prolog', 'ann',
				f, t, ms, t = $5 AND $9, ms, busy.of * ms / 100, CASE WHEN busy.of IS NULL THEN 0 ELSE ms END,
				40960 * ms, ms, 40960, watts.of * ms, CASE WHEN watts.of IS NULL THEN 0 ELSE ms END, 1, CASE WHEN t > $8::timestamptz THEN $8 END
			FROM (SELECT nullif($6, '?')::bigint AS of) AS busy, (SELECT nullif($7, '?')::bigint AS of) AS watts,
				generate_series(date_trunc('hour', $4::timestamptz), $5::timestamptz, interval '1 hour') h,
				LATERAL (SELECT greatest(h, $4) AS f, least(h + interval '1 hour', $5) AS t) p,
				LATERAL (SELECT gpubudget.unix_ms(t) - gpubudget.unix_ms(f) AS ms) l
			WHERE ms > 0`,
			what[1], s.number(what[0]), node, from, until, what[2], what[3], idle, idle == nil)
		return err
	})
}

func (s *session) recordQueue(what []string, at string) {
	s.t.Helper()
	account, user, _ := strings.Cut(what[0], "/")
	s.queue = append(s.queue, usage.Queue{Account: account, User: user, PendingJobs: s.number(what[1]), PendingGPUs: s.number(what[2])})
	s.used(func(ctx context.Context, u *usage.Store) error {
		if err := u.Heartbeat(ctx, usage.Recorder{Cluster: "titan", Incarnation: "1", Host: "ctl", Version: "test", SeenAt: s.time(at)}); err != nil {
			return err
		}
		return u.WriteQueue(ctx, "titan", s.time(at), s.queue)
	})
}

// slurmOf prints files that Slurm's commands have printed.
func slurmOf(t *testing.T, name string) queue.Command {
	t.Helper()
	return func(_ context.Context, command string, args ...string) ([]byte, error) {
		if at := slices.Index(args, "show"); at >= 0 {
			command = args[at+1]
		}
		return os.ReadFile(filepath.Join("testdata", name+"."+command))
	}
}

var (
	localStamp = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\b`)
	jsonStamp  = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	anyTarget  = regexp.MustCompile(`/\S+\.s\.PGSQL\.\d+, database "test_\d+",`)
	tookTime   = regexp.MustCompile(` in [\d.]+m?s\b`)
)

// mask replaces what is different in every run: the present moment, by the
// database's clock, and a lookback window before or after it.
func (s *session) mask(text string) string {
	text = jsonStamp.ReplaceAllStringFunc(text, func(stamp string) string {
		t, err := time.Parse(time.RFC3339, stamp)
		require.NoError(s.t, err)
		if plain, ok := aroundNow(t); ok {
			return plain.Format(time.RFC3339)
		}
		return stamp
	})
	text = localStamp.ReplaceAllStringFunc(text, func(stamp string) string {
		t, err := time.ParseInLocation(slurmtime.Layout, stamp, s.zone)
		require.NoError(s.t, err)
		if plain, ok := aroundNow(t); ok {
			return plain.In(s.zone).Format(slurmtime.Layout)
		}
		return stamp
	})
	text = anyTarget.ReplaceAllString(text, "HOST, database NAME,")
	return tookTime.ReplaceAllString(text, " in 5ms")
}

// aroundNow is t as it would be if the test had run at clock, if t is near the
// present moment or a week from it.
func aroundNow(t time.Time) (time.Time, bool) {
	const week = 7 * 24 * time.Hour
	for _, offset := range []time.Duration{0, week, -week} {
		if away := time.Until(t) - offset; away.Abs() < 5*time.Minute {
			return clock.Add(offset), true
		}
	}
	return t, false
}
