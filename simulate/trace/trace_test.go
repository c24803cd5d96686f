// SPDX-License-Identifier: GPL-2.0-or-later

package trace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/simulate"
)

func read(t *testing.T, text string) *Trace {
	t.Helper()
	got, err := Read(strings.NewReader(text), "", Options{Seed: 1})
	require.NoError(t, err)
	return got
}

// With -D sacct has a row for each run of a job that was requeued. Such a job is
// one: submitted once, and as much work as was saved and as the last run was.
func TestRunsOfARequeuedJobAreOneJob(t *testing.T) {
	const header = "JobID|Account|User|Submit|ElapsedRaw|Timelimit|AllocTRES|State\n"
	rows := []string{
		"7|vision|ann|2026-03-01T10:00:00|4000|4:00:00|gres/gpu=2|PREEMPTED",
		"7|vision|ann|2026-03-01T11:06:40|1900|4:00:00|gres/gpu=2|REQUEUED by 0",
		"7|vision|ann|2026-03-01T12:00:00|600|4:00:00|gres/gpu=2|COMPLETED",
		"7|vision|ann|2026-03-20T12:00:00|60|4:00:00|gres/gpu=1|COMPLETED", // the id again
		"8|vision|bob|2026-03-01T10:30:00|30|4:00:00|gres/gpu=1|NODE_FAIL", // and not again
	}
	for _, order := range [][]int{{0, 1, 2, 3, 4}, {2, 0, 4, 3, 1}} {
		var text strings.Builder
		text.WriteString(header)
		for _, i := range order {
			text.WriteString(rows[i] + "\n")
		}
		for _, c := range []struct {
			every time.Duration
			run   int64
		}{{30 * time.Minute, 3600 + 1800 + 600}, {0, 600}} {
			got, err := Read(strings.NewReader(text.String()), "", Options{Checkpoint: c.every})
			require.NoError(t, err)
			require.Empty(t, got.Problems)
			require.Len(t, got.Jobs, 3)
			require.Equal(t, time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC), got.Begin)
			require.Equal(t, []int64{0, 1800, 19*86_400 + 7200}, []int64{got.Jobs[0].Submit, got.Jobs[1].Submit, got.Jobs[2].Submit})
			require.Equal(t, []int64{c.run, 30, 60}, []int64{got.Jobs[0].Run, got.Jobs[1].Run, got.Jobs[2].Run})
			require.Contains(t, got.Notes, "2 runs that ended in a requeue were taken together with what came after them")
		}
	}
}

func TestSacct(t *testing.T) {
	got := read(t, strings.Join([]string{
		"JobID|Account|User|Partition|QOS|Submit|Start|End|ElapsedRaw|Timelimit|AllocTRES|ReqTRES|State",
		"12|vision|ann|h100|normal|2026-03-01T10:00:10|Unknown|Unknown|7200|1-02:00:00|billing=8,cpu=8,gres/gpu:h100=4,gres/gpu=4|gres/gpu=4|COMPLETED",
		"12.batch|vision||||2026-03-01T10:00:10|||7200||cpu=8||COMPLETED",
		"13|vision|bob|h100|debug|2026-03-01T10:00:00|||60|30:00|gres/gpu:h100=1,gres/gpu:a100=2||TIMEOUT",
		"14|robots|rosa|a100|normal|2026-03-01T10:00:20|||0|UNLIMITED||gres/gpu=1|CANCELLED by 1000",
		"15|robots|rosa|a100|normal|2026-03-01T10:00:30|||5|UNLIMITED|cpu=1|cpu=1|COMPLETED",
		"16|robots|rosa|a100|normal|2026-03-01T10:00:40|||5|UNLIMITED|gres/gpu=1||FAILED",
		"12|vision|ann|h100|normal|2026-03-01T12:30:00|||100|2:00:00|gres/gpu=4||COMPLETED",
	}, "\n")+"\n")
	require.Empty(t, got.Problems)
	require.Equal(t, []string{"h100", "a100"}, got.Partitions)
	require.Equal(t, time.Date(2026, 3, 1, 10, 0, 0, 0, time.UTC), got.Begin)
	require.Equal(t, []simulate.Job{
		{Submit: 0, Run: 60, Limit: 1800, MinRuntime: -1, Line: 4, Owner: 1, GPUs: 3, QOS: 100, Debug: true, GPUsColumn: 57, AccountColumn: 4, PartitionColumn: 15},
		{Submit: 10, Run: 7200, Limit: 93_600, MinRuntime: -1, Line: 2, Owner: 0, GPUs: 4, GPUsColumn: 79, AccountColumn: 4, PartitionColumn: 15},
		{Submit: 40, Run: 5, Limit: 365 * 86_400, MinRuntime: -1, Line: 7, Owner: 2, GPUs: 1, Partition: 1, GPUsColumn: 62, AccountColumn: 4, PartitionColumn: 16},
		{Submit: 9000, Run: 100, Limit: 7200, MinRuntime: -1, Line: 8, Owner: 0, GPUs: 4, GPUsColumn: 61, AccountColumn: 4, PartitionColumn: 15},
	}, got.Jobs)
	require.Equal(t, []Count{{"never started", 1}, {"steps", 1}, {"without GPUs", 1}}, got.Dropped)
	require.Contains(t, got.Notes, "the rows were not in the order of submission and were sorted: 1 came right after one that was submitted later, the first in line 4")
}

func TestSWF(t *testing.T) {
	got := read(t, `; UnixStartTime: 1000000000
; a remark
1 5 0 60 2 -1 -1 4 120 -1 1 3 7 -1 -1 -1 -1 -1
2 9 0 -1 -1 -1 -1 4 120 -1 5 3 7 -1 -1 -1 -1 -1
`)
	require.Empty(t, got.Problems)
	require.Equal(t, int64(1_000_000_005), got.Begin.Unix())
	require.Equal(t, []simulate.Owner{{Account: "group7", User: "user3"}}, got.Owners)
	require.Equal(t, []simulate.Job{{Run: 60, Limit: 120, MinRuntime: -1, Line: 3, GPUs: 4, GPUsColumn: 18, AccountColumn: 31}}, got.Jobs)
	require.Equal(t, []Count{{"never started", 1}}, got.Dropped)
}

func TestChronus(t *testing.T) {
	got := read(t, "job_id,user,num_gpu,submit_time,duration\n0,vc1,1,10,3\n1,vc1,0,11,3\n2,vc2,8,12,1\n")
	require.Equal(t, int64(180), got.Jobs[0].Run)
	require.Equal(t, int64(120), got.Jobs[1].Submit)
	require.Equal(t, []Count{{"without GPUs", 1}}, got.Dropped)
}

func TestBadRows(t *testing.T) {
	const header = "timestamp,duration,num_gpus,gpu_time,cluster\n"
	for _, test := range []struct{ name, row, want string }{
		{"truncated", "2017-10-09 07:01:55,66.0,1", "line 2, column 26: truncated or overlong row: it has 3 fields, the header 5"},
		{"overlong", "2017-10-09 07:01:55,66.0,1,66.0,vc,more", "line 2, column 36: truncated or overlong row: it has 6 fields, the header 5"},
		{"no time", "yesterday,66.0,1,66.0,vc", `line 2, column 1: timestamp is "yesterday": not a time: expected 2006-01-02 15:04:05, 1970 to 2200`},
		{"far future", "9999-10-09 07:01:55,66.0,1,66.0,vc", `line 2, column 1: timestamp is "9999-10-09 07:01:55": not a time: expected 2006-01-02 15:04:05, 1970 to 2200`},
		{"negative", "2017-10-09 07:01:55,-66.0,1,66.0,vc", `line 2, column 21: duration is "-66.0": negative: expected seconds`},
		{"not a number", "2017-10-09 07:01:55,1h,1,66.0,vc", `line 2, column 21: duration is "1h": not a number: expected seconds`},
		{"NaN", "2017-10-09 07:01:55,NaN,1,66.0,vc", `line 2, column 21: duration is "NaN": not a number: expected seconds`},
		{"huge", "2017-10-09 07:01:55,66.0,1e300,66.0,vc", `line 2, column 26: num_gpus is "1e300": too large: expected a whole number of GPUs`},
		{"a GPU and a half", "2017-10-09 07:01:55,66.0,1.5,66.0,vc", `line 2, column 26: num_gpus is "1.5": not a whole number: expected a whole number of GPUs`},
		{"half a GPU", "2017-10-09 07:01:55,66.0,0.5,66.0,vc", `line 2, column 26: num_gpus is "0.5": not a whole number: expected a whole number of GPUs`},
		{"a quote that isn't closed", `2017-10-09 07:01:55,"66.0,1,66.0,vc`, `line 2, column 21: malformed row: extraneous or missing " in quoted-field`},
		{"a stray quote", `2017-10-09 07:01:55,66"0,1,66.0,vc`, `line 2, column 23: malformed row: bare " in non-quoted-field`},
		{"large", "2017-10-09 07:01:55,66.0,9999999,66.0,vc", "line 2, column 26: impossible number of GPUs: 9999999 must be between 0 and 1048576"},
		{"milliseconds", "2017-10-09 07:01:55,6000000000.0,1,66.0,vc", "line 2, column 21: impossible run time: 6000000000 s must be between 0 and a hundred years"},
		{"nobody", "2017-10-09 07:01:55,66.0,1,66.0,", "line 2, column 33: no account: somebody must be charged"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := read(t, header+test.row+"\n2017-10-09 07:01:55,66.0,1,66.0,vc\n")
			require.Len(t, got.Problems, 1)
			require.EqualError(t, got.Problems[0], test.want)
			require.Len(t, got.Jobs, 1, "the good row")
		})
	}
	t.Run("twice", func(t *testing.T) {
		got := read(t, "job_id,user,num_gpu,submit_time,duration\n0,vc1,1,10,3\n0,vc1,1,10,3\n")
		require.EqualError(t, got.Problems[0], "line 3, column 1: the same job twice: job 0 is in line 2 already")
	})
	t.Run("part of a GPU in chronus", func(t *testing.T) {
		got := read(t, "job_id,user,num_gpu,submit_time,duration\n0,vc1,2.0,10,3.5\n1,vc1,2.5,10,3\n")
		require.Len(t, got.Jobs, 1)
		require.Equal(t, int32(2), got.Jobs[0].GPUs)
		require.Equal(t, int64(210), got.Jobs[0].Run)
		require.Len(t, got.Problems, 1)
		require.EqualError(t, got.Problems[0], `line 3, column 7: num_gpu is "2.5": not a whole number: expected a whole number of GPUs`)
	})
	t.Run("swf", func(t *testing.T) {
		got := read(t, strings.Join([]string{
			"1 5 0 60 2 -1 -1 4 120 -1 1 3 7 -1 -1 -1 -1 -1",
			"2 5 0 x 2 -1 -1 4 120 -1 1 3 7 -1 -1 -1 -1 -1",
			"3 5 0",
			"  4 5 -2 -2 2 -1 -1 4 120 -1 1 3 7 -1 -1 -1 -1 -1",
			"5 5 0 60 2 -1 -1 1e300 120 -1 1 3 7 -1 -1 -1 -1 -1",
			"6 5 0 60 2 -1 -1 4 120 -1 1 3 7 -1 -1 -1 -1 -1 9",
			"1 5 0 60 2 -1 -1 4 120 -1 1 3 7 -1 -1 -1 -1 -1",
			"8 5 0 60 2 -1 -1 4000000 120 -1 1 3 7 -1 -1 -1 -1 -1",
			"9 5 0 60 2 -1 -1 1.5 120 -1 1 3 7 -1 -1 -1 -1 -1",
			"10 5 0 60 0.5 -1 -1 -1 120 -1 1 3 7 -1 -1 -1 -1 -1",
		}, "\n")+"\n")
		require.Len(t, got.Jobs, 1)
		var problems []string
		for _, p := range got.Problems {
			problems = append(problems, p.Error())
		}
		require.Equal(t, []string{
			`line 2, column 7: run time is "x": not a number: expected a number from -1, which is unknown, to 6324480000`,
			"line 3, column 5: truncated or overlong row: it has 3 fields, the format 18",
			`line 4, column 10: run time is "-2": negative: expected a number from -1, which is unknown, to 6324480000`,
			`line 5, column 18: requested processors is "1e300": too large: expected a number from -1, which is unknown, to 6324480000`,
			"line 6, column 48: truncated or overlong row: it has 19 fields, the format 18",
			"line 7, column 1: the same job twice: job 1 is in line 1 already",
			"line 8, column 18: impossible number of GPUs: 4000000 must be between 0 and 1048576",
			`line 9, column 18: requested processors is "1.5": not a whole number: expected a number from -1, which is unknown, to 6324480000`,
			`line 10, column 11: allocated processors is "0.5": not a whole number: expected a number from -1, which is unknown, to 6324480000`,
		}, problems)
	})
	t.Run("sacct", func(t *testing.T) {
		const row = "|a|ann|2026-03-01T10:00:00|60|"
		got := read(t, strings.Join([]string{
			"JobID|Account|User|Submit|ElapsedRaw|Timelimit|AllocTRES|ReqTRES",
			"1" + row + "1:00:00|gres/gpu=9223372036854775807,gres/gpu:a100=9223372036854775807|",
			"2" + row + "99999-00:00:00|gres/gpu=1|",
			"3" + row + "1:00:00|gres/gpu=some|",
			"4" + row + "1:00:00|gres/gpu:a100=900000,gres/gpu:h100=900000|",
			"5|a|ann|Unknown|60|1:00:00|gres/gpu=1|",
		}, "\n")+"\n")
		require.Empty(t, got.Jobs)
		var problems []string
		for _, p := range got.Problems {
			problems = append(problems, p.Error())
		}
		require.Equal(t, []string{
			`line 2, column 40: AllocTRES is "gres/gpu=9223372036854775807,gres/gpu:a100=9223372036854775807": too large: expected up to 1048576 GPUs`,
			`line 3, column 32: Timelimit is "99999-00:00:00": too large: expected at most a hundred years`,
			`line 4, column 40: AllocTRES is "gres/gpu=some": not a list of TRES: expected as in cpu=8,gres/gpu=2`,
			"line 5, column 40: impossible number of GPUs: 1800000 must be between 0 and 1048576",
			`line 6, column 9: Submit is "Unknown": not a time: expected 2006-01-02T15:04:05, 1970 to 2200`,
		}, problems)
	})
	require.Equal(t, []Count{{"a", 2}, {"b", 1}}, Counts([]*RowError{{Kind: "b"}, {Kind: "a"}, {Kind: "a"}}))
}

// A row is a line: what a quote opens ends there, so that the rows after it are
// read and the error names the right one.
func TestAStrayQuoteSpoilsItsOwnRowOnly(t *testing.T) {
	const good = "2017-10-09 07:01:55,66.0,1,vc\n"
	for _, spoilt := range []string{`"2017-10-09 07:01:55,66.0,1,vc`, `2017-10-09 07:01:55,66.0,1,"vc`, `2017-10-09 07:01:55,66.0,1,v"c`} {
		text := "timestamp,duration,num_gpus,cluster\n" + good + "\n" + spoilt + "\r\n" + strings.Repeat(good, 20) + `2017-10-09 07:01:55,"66.0","1","v,""c"` + "\n"
		got := read(t, text)
		require.Len(t, got.Problems, 1)
		require.Equal(t, 4, got.Problems[0].Line)
		require.Equal(t, strings.IndexByte(spoilt, '"')+1, got.Problems[0].Column)
		require.Len(t, got.Jobs, 22)
		require.Equal(t, `v,"c`, got.Owners[got.Jobs[21].Owner].Account)
		require.Equal(t, int32(25), got.Jobs[21].Line)
	}

	got := read(t, strings.Join([]string{
		"JobID|JobName|Account|User|Submit|ElapsedRaw|AllocTRES",
		`1|"|vision|ann|2026-03-01T10:00:00|60|gres/gpu=1`,
		`2|"a" b|vision|ann|2026-03-01T10:00:00|60|gres/gpu=1`,
		`3|c|vision|ann|2026-03-01T10:00:00|60|gres/gpu=1`,
	}, "\n")+"\n")
	require.Empty(t, got.Problems)
	require.Len(t, got.Jobs, 3)

	_, err := Read(strings.NewReader("timestamp,\"duration,num_gpus,cluster\n"+good), "", Options{})
	require.EqualError(t, err, `line 1, column 11: the header: extraneous or missing " in quoted-field`)
}

// Philly's rows have no number: a row that is there twice may be two jobs.
func TestRowsThatAreIdenticalAreCounted(t *testing.T) {
	const header, row, other = "timestamp,duration,num_gpus,cluster\n", "2017-10-09 07:01:55,66.0,1,vc\n", "2017-10-09 07:01:56,66.0,1,vc\n"
	got := read(t, header+row+other+row+row)
	require.Len(t, got.Jobs, 4)
	require.Contains(t, got.Notes, "2 rows are identical to another before them; each is taken for a job of its own")
	for _, note := range read(t, header+row+other).Notes {
		require.NotContains(t, note, "identical")
	}
}

// Slurm's accounts, and so those of a budget, are in small letters.
func TestAccountsAreInSmallLetters(t *testing.T) {
	got := read(t, "timestamp,duration,num_gpus,cluster,user\n2017-10-09 07:01:55,66.0,1,VC,Ann\n2017-10-09 07:01:56,66.0,1,vc,Ann\n")
	require.Equal(t, []simulate.Owner{{Account: "vc", User: "Ann"}}, got.Owners)
}

func TestBadHeaders(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"empty", "", "read trace: it is empty: EOF"},
		{"unknown format", "hello\n", "it is not clear which format this is: name it, one of [sacct philly chronus swf]"},
		{"misspelt", "timestamp,durations,num_gpus,cluster\n", `line 1, column 11: unknown column "durations": did you mean duration?`},
		{"strange", "timestamp,duration,num_gpus,cluster,colour\n", `line 1, column 37: unknown column "colour": expected are timestamp, duration, num_gpus, cluster, user, gpu_time`},
		{"missing", "timestamp,duration,num_gpus\n", "line 1, column 20: the column cluster is missing: expected are timestamp, duration, num_gpus, cluster, user, gpu_time"},
		{"twice", "timestamp,duration,num_gpus,duration,cluster\n", "line 1, column 29: the column duration is there twice"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Read(strings.NewReader(test.text), "", Options{})
			require.EqualError(t, err, test.want)
		})
	}
}

func TestTimeLimits(t *testing.T) {
	for text, want := range map[string]int64{
		"30:00": 1800, "1:00:00": 3600, "2-00:00:00": 172_800, "30": 1800, "1-12": 129_600, "1-12:30": 131_400,
		"UNLIMITED": 365 * 86_400, "Partition_Limit": 0, "": 0,
	} {
		var x row
		require.Nil(t, timeLimit(&x, text), text)
		require.Equal(t, want, x.limit, text)
	}
	for _, text := range []string{"soon", "1:2:3:4", "-1:00", "1--2", "99999999999999999999"} {
		var x row
		require.NotNil(t, timeLimit(&x, text), text)
	}
}

// No file, however broken, makes a panic or a job that cannot be.
func TestAnyTextIsReadOrRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		format := rapid.SampledFrom(Formats()).Draw(t, "format")
		header := map[Format]string{
			Sacct: strings.ReplaceAll(SacctFields, ",", "|") + "\n", Philly: "timestamp,duration,num_gpus,cluster\n",
			Chronus: "job_id,user,num_gpu,submit_time,duration\n", SWF: "",
		}[format]
		field := rapid.OneOf(rapid.StringMatching(`[0-9]{1,12}`), rapid.String(), rapid.SampledFrom([]string{"2026-03-01 10:00:00", "2026-03-01T10:00:00", "gres/gpu=2", "-1", "1e9"}))
		separator := map[Format]string{Sacct: "|", Philly: ",", Chronus: ",", SWF: " "}[format]
		var text strings.Builder
		text.WriteString(header)
		for range rapid.IntRange(0, 5).Draw(t, "rows") {
			text.WriteString(strings.Join(rapid.SliceOfN(field, 1, 18).Draw(t, "fields"), separator) + "\n")
		}
		got, err := Read(strings.NewReader(text.String()), format, Options{})
		if err != nil {
			return
		}
		for i, j := range got.Jobs {
			require.Positive(t, j.GPUs)
			require.Positive(t, j.Limit)
			require.GreaterOrEqual(t, j.Run, int64(0))
			require.True(t, i == 0 || got.Jobs[i-1].Submit <= j.Submit)
			require.NotEmpty(t, got.Owners[j.Owner].Account)
		}
	})
}

// The real traces lie beside the repository where they lie at all: their licences
// are theirs.
func TestRealTraces(t *testing.T) {
	for name, jobs := range map[string]int{"philly_2017.csv": 82_247, "philly_chronus_mix1.csv": 30_756} {
		t.Run(name, func(t *testing.T) {
			f := open(t, name)
			got, err := Read(f, "", Options{Seed: 1})
			require.NoError(t, err)
			require.Empty(t, got.Problems)
			require.Len(t, got.Jobs, jobs)
		})
	}
}

func open(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "..", "shared", "traces", name))
	if err != nil {
		t.Skipf("without the trace: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	return f
}

// A job that runs goes on for longer than it has, and jobs that wait take as long
// as somebody's of the same user did.
func TestTheQueueIsDrawnFromWhatRan(t *testing.T) {
	begin := time.Date(2026, 3, 2, 8, 0, 0, 0, time.UTC)
	ran := func(account, user string, hours int) Record {
		return Record{Account: account, User: user, Partition: "gpu", Start: begin, Ran: time.Duration(hours) * time.Hour, GPUs: 4}
	}
	running := ran("vision", "ann", 2)
	running.Running = true
	records := []Record{ran("vision", "ann", 1), ran("vision", "ann", 3), ran("language", "bob", 7), running}
	q := Queue{Seen: begin.Add(10 * time.Hour), Pending: []Pending{{"vision", "ann", 2, 5}, {"language", "new", 1, 8}, {"empty", "eve", 1, 1}}}
	got := Recorded(records, q, Options{Seed: 1})
	require.Empty(t, got.Problems)
	require.Len(t, got.Jobs, 8)
	require.Equal(t, int64(3*3600), got.Jobs[3].Run, "the only one of ann's that took longer")
	var sizes []int32
	for _, j := range got.Jobs[4:] {
		require.True(t, j.Queued)
		require.Equal(t, int64(36_000), j.Submit)
		sizes = append(sizes, j.GPUs)
	}
	require.Equal(t, []int32{3, 2, 8, 1}, sizes)
	for _, j := range got.Jobs[4:6] {
		require.Contains(t, []int64{3600, 3 * 3600, 2 * 3600}, j.Run)
	}
	require.Equal(t, int64(7*3600), got.Jobs[6].Run, "as the account's")
	require.Contains(t, got.Notes[1], "queue: 1 jobs ran and 4 waited at 2026-03-02T18:00:00")

	got = Recorded(records, Queue{}, Options{Seed: 1})
	require.Len(t, got.Jobs, 4)
	require.Equal(t, int64(2*3600), got.Jobs[3].Run, "without a queue a run that lasts is as long as it is")
}
