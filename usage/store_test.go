// SPDX-License-Identifier: GPL-2.0-or-later

package usage_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/internal/migtest"
	"gpubudget/internal/pgtest"
	"gpubudget/usage"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var (
	ctx   = context.Background()
	epoch = time.Date(2026, 10, 5, 0, 0, 0, 0, time.UTC) // a Monday
)

// at is the time the given duration after epoch.
func at(d time.Duration) time.Time { return epoch.Add(d) }

func window(from, until time.Duration) fairshare.Period {
	return fairshare.Period{From: fairshare.At(at(from)), Until: fairshare.At(at(until))}
}

// ended is a run of one user on gpus GPUs.
func ended(cluster string, job uint32, gpus int64, from, until time.Duration) usage.Run {
	return usage.Run{
		Cluster: cluster, JobID: job, ArrayTaskID: usage.NoTask, Account: "a", User: "u", GPUs: gpus, Allocated: true,
		StartedAt: at(from), EndedAt: new(at(until)), EndState: "COMPLETED", SeenAt: at(until),
	}
}

// setBucket sets the cluster's bucket length from a time on.
func setBucket(t require.TestingT, db usage.DB, cluster string, length time.Duration, from time.Time) {
	_, err := db.Exec(ctx, `
		INSERT INTO gpubudget.ledger (cluster, kind, actor, effective_from, setting, value)
		VALUES ($1, 'policy_set', 'test', $2, 'bucket', $3)`, cluster, from, fmt.Sprintf("%ds", int(length.Seconds())))
	require.NoError(t, err)
}

func TestRunIsReadAsItWasWritten(t *testing.T) {
	s := usage.NewStore(pgtest.Pool(t))
	want := []usage.Run{
		{
			Cluster: "c", JobID: 7, Restart: 2, ArrayJobID: 5, ArrayTaskID: 4, HetJobID: 3,
			Account: "vision", User: "ada", Partition: "gpu", QOS: "normal", Nodes: "n[1-2]", GPUs: 16, GPUType: "h200", Allocated: true, MinRuntime: new(90 * time.Minute),
			StartedAt: at(0), Suspended: 90 * time.Second, SuspendedSince: new(at(time.Hour)), SeenAt: at(time.Hour + 1500*time.Millisecond),
		},
		{
			Cluster: "c", JobID: 8, ArrayTaskID: usage.NoTask, Account: "nlp", User: "bob",
			StartedAt: at(-time.Hour), SeenAt: at(0),
		},
		{
			Cluster: "c", JobID: 9, ArrayTaskID: usage.NoTask, Account: "nlp", User: "bob", MinRuntime: new(time.Duration(0)),
			StartedAt: at(-time.Hour), SeenAt: at(0),
		},
	}
	require.NoError(t, s.WriteRuns(ctx, want))
	got, err := s.OpenRuns(ctx, "c")
	require.NoError(t, err)
	require.Equal(t, want, got)

	want[0].EndedAt, want[0].EndState, want[0].SeenAt = new(at(2*time.Hour)), "TIMEOUT", at(3*time.Hour)
	require.NoError(t, s.WriteRuns(ctx, want[:1]))
	got, err = s.OpenRuns(ctx, "c")
	require.NoError(t, err)
	require.Equal(t, want[1:], got)
	got, err = s.Runs(ctx, "c", window(time.Hour, 3*time.Hour))
	require.NoError(t, err)
	require.Equal(t, want, got)
	got, err = s.Runs(ctx, "c", window(2*time.Hour, 3*time.Hour)) // it ended where the window begins
	require.NoError(t, err)
	require.Equal(t, want[1:], got)
}

func TestBadInputDoesNotHoldUpABatch(t *testing.T) {
	s := usage.NewStore(pgtest.Pool(t))
	odd := ended("c", 1, -3, time.Hour, 0) // negative GPUs, ended before it started
	odd.User, odd.Suspended = "a\x00\xff", -time.Second
	require.NoError(t, s.WriteRuns(ctx, []usage.Run{odd, ended("c", 2, 1, 0, time.Hour)}))
	got, err := s.Runs(ctx, "c", window(0, time.Hour))
	require.NoError(t, err)
	require.Len(t, got, 1, "a run of no length lies in no window")
	require.EqualValues(t, 2, got[0].JobID)
}

func TestImpossibleRunIsRefused(t *testing.T) {
	db := pgtest.Pool(t)
	s := usage.NewStore(db)
	odd := ended("c", 1, 1, 0, time.Hour)
	odd.StartedAt = time.Unix(-1, 0)
	var refusal *pgconn.PgError
	require.ErrorAs(t, s.WriteRuns(ctx, []usage.Run{ended("c", 2, 1, 0, time.Hour), odd}), &refusal)
	require.Equal(t, "23514", refusal.Code)
	require.Empty(t, allRuns(t, db, "c"), "all or nothing")
	require.Empty(t, allBuckets(t, db, "c"))
}

func TestSightingsOfARun(t *testing.T) {
	open := func(seen time.Duration, change func(*usage.Run)) usage.Run {
		r := ended("c", 1, 4, 0, 0)
		r.EndedAt, r.EndState, r.SeenAt = nil, "", at(seen)
		if change != nil {
			change(&r)
		}
		return r
	}
	end := func(seen, until time.Duration, state string, change func(*usage.Run)) usage.Run {
		return open(seen, func(r *usage.Run) {
			r.EndedAt, r.EndState = new(at(until)), state
			if change != nil {
				change(r)
			}
		})
	}
	bare := func(r *usage.Run) { r.GPUs, r.Nodes, r.Account = 0, "", "" }
	db := pgtest.Pool(t)
	s := usage.NewStore(db)
	for _, tt := range []struct {
		name   string
		seen   []usage.Run
		ended  time.Duration // 0: open
		state  string
		gpus   int64
		amount fairshare.GPUMillis // in the buckets
	}{
		{"open", []usage.Run{open(1, nil)}, 0, "", 4, 0},
		{"ended", []usage.Run{open(1, nil), end(2, time.Hour, "COMPLETED", nil)}, time.Hour, "COMPLETED", 4, 4 * fairshare.GPUHour},
		{"never reopens", []usage.Run{end(2, time.Hour, "COMPLETED", nil), open(3*time.Hour, nil)}, time.Hour, "COMPLETED", 4, 4 * fairshare.GPUHour},
		{"the end seen last", []usage.Run{end(time.Hour, time.Hour, "LOST", nil), end(2*time.Hour, 30*time.Minute, "FAILED", nil)},
			30 * time.Minute, "FAILED", 4, 2 * fairshare.GPUHour},
		{"what was seen last", []usage.Run{end(2*time.Hour, time.Hour, "FAILED", func(r *usage.Run) { r.GPUs = 8 }), open(time.Minute, nil)},
			time.Hour, "FAILED", 8, 8 * fairshare.GPUHour},
		{"an end without allocation keeps what it held", []usage.Run{open(1, nil), end(2*time.Hour, time.Hour, "NODE_FAIL", bare)},
			time.Hour, "NODE_FAIL", 4, 4 * fairshare.GPUHour},
		{"also if it comes first", []usage.Run{end(2*time.Hour, time.Hour, "NODE_FAIL", bare), open(1, nil)},
			time.Hour, "NODE_FAIL", 4, 4 * fairshare.GPUHour},
		{"suspended time is not charged", []usage.Run{end(2*time.Hour, time.Hour, "COMPLETED", func(r *usage.Run) { r.Suspended = 15 * time.Minute })},
			time.Hour, "COMPLETED", 4, 3 * fairshare.GPUHour},
		{"ended while suspended", []usage.Run{end(2*time.Hour, time.Hour, "CANCELLED", func(r *usage.Run) { r.SuspendedSince = new(at(45 * time.Minute)) })},
			time.Hour, "CANCELLED", 4, 3 * fairshare.GPUHour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, r := range tt.seen {
				r.Cluster = tt.name
				require.NoError(t, s.WriteRuns(ctx, []usage.Run{r}))
			}
			runs := allRuns(t, db, tt.name)
			require.Len(t, runs, 1)
			got := runs[0]
			require.Equal(t, tt.ended == 0, got.Open())
			if !got.Open() {
				require.Equal(t, at(tt.ended), *got.EndedAt)
				require.Equal(t, tt.amount, got.GPUMillis(*got.EndedAt))
			}
			require.Equal(t, tt.state, got.EndState)
			require.Equal(t, tt.gpus, got.GPUs)
			require.Equal(t, "a", got.Account)
			var sum fairshare.GPUMillis
			for _, b := range allBuckets(t, db, tt.name) {
				sum += b.Amount
			}
			require.Equal(t, tt.amount, sum)
		})
	}
}

// storedRun is a row of job_run.
type storedRun struct {
	usage.Run
	EndSeenAt time.Time
	Bucket    time.Duration
}

// allRuns reads job_run as it is, apart from the store. What the runs count for is
// worked out in Go.
func allRuns(t require.TestingT, db *pgxpool.Pool, cluster string) []storedRun {
	rows, err := db.Query(ctx, `
		SELECT cluster, job_id, restart, array_job_id, array_task_id, het_job_id,
			account, user_name, partition, qos, nodes, gpus, parts, gpu_type, allocated,
			started_at, ended_at, end_state, suspended_ms, suspended_since, seen_at, end_seen_at, bucket_ms, metered_ms
		FROM gpubudget.job_run WHERE cluster = $1 ORDER BY job_id, started_at`, cluster)
	require.NoError(t, err)
	runs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (storedRun, error) {
		var r storedRun
		var suspended, bucket int64
		err := row.Scan(&r.Cluster, &r.JobID, &r.Restart, &r.ArrayJobID, &r.ArrayTaskID, &r.HetJobID,
			&r.Account, &r.User, &r.Partition, &r.QOS, &r.Nodes, &r.GPUs, &r.Parts, &r.GPUType, &r.Allocated,
			&r.StartedAt, &r.EndedAt, &r.EndState, &suspended, &r.SuspendedSince, &r.SeenAt, &r.EndSeenAt, &bucket, &r.Metered)
		r.Suspended, r.Bucket = time.Duration(suspended)*time.Millisecond, time.Duration(bucket)*time.Millisecond
		r.StartedAt, r.SeenAt, r.EndSeenAt = r.StartedAt.UTC(), r.SeenAt.UTC(), r.EndSeenAt.UTC()
		for _, t := range []*time.Time{r.EndedAt, r.SuspendedSince} {
			if t != nil {
				*t = t.UTC()
			}
		}
		return r, err
	})
	require.NoError(t, err)
	weights, err := budgets.NewStore(db).Weights(ctx, cluster, fairshare.Period{From: fairshare.Always, Until: fairshare.Never})
	require.NoError(t, err)
	for i := range runs {
		r := &runs[i]
		p := fairshare.Period{From: fairshare.At(r.StartedAt), Until: fairshare.Never}
		if r.EndedAt != nil {
			p.Until = fairshare.At(*r.EndedAt)
		}
		r.Rates = weights.Rates(r.Holding(), p)
	}
	return runs
}

// bucket is a row of usage_bucket.
type bucket struct {
	fairshare.Charge
	Allocated bool
}

func allBuckets(t require.TestingT, db *pgxpool.Pool, cluster string) []bucket {
	rows, err := db.Query(ctx, `
		SELECT gpubudget.unix_ms(starts_at), gpubudget.unix_ms(ends_at), account, user_name, allocated, gpu_ms
		FROM gpubudget.usage_bucket WHERE cluster = $1
		ORDER BY starts_at, ends_at, account, user_name, allocated`, cluster)
	require.NoError(t, err)
	buckets, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (bucket, error) {
		var b bucket
		err := row.Scan(&b.From, &b.Until, &b.Account, &b.User, &b.Allocated, &b.Amount)
		return b, err
	})
	require.NoError(t, err)
	return buckets
}

// split is what usage_bucket must hold for runs, worked out in Go.
func split(runs []storedRun) []bucket {
	type key struct {
		fairshare.Period
		account, user string
		allocated     bool
	}
	sums := map[key]fairshare.GPUMillis{}
	for _, r := range runs {
		if r.Open() {
			continue
		}
		end := fairshare.At(*r.EndedAt)
		for b := usage.Bucket(fairshare.At(r.StartedAt), r.Bucket); b.From < end; b = usage.Bucket(b.Until, r.Bucket) {
			from, until := max(b.From, fairshare.At(r.StartedAt)), min(b.Until, end)
			if part := r.Charged(until.Time()) - r.Charged(from.Time()); part != 0 {
				sums[key{b, r.Account, r.User, r.Allocated}] += part
			}
		}
	}
	out := []bucket{}
	for k, sum := range sums {
		out = append(out, bucket{fairshare.Charge{Period: k.Period, Account: k.account, User: k.user, Amount: sum}, k.allocated})
	}
	slices.SortFunc(out, func(a, b bucket) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.Until, b.Until), cmp.Compare(a.Account, b.Account),
			cmp.Compare(a.User, b.User), cmp.Compare(strconv.FormatBool(a.Allocated), strconv.FormatBool(b.Allocated)))
	})
	return out
}

// aSighting generates sightings of a handful of runs that often contradict each
// other.
func aSighting(cluster string) *rapid.Generator[usage.Run] {
	seconds := func(t *rapid.T, name string, lo, hi int) time.Time {
		return at(time.Duration(rapid.IntRange(lo, hi).Draw(t, name)) * time.Second)
	}
	return rapid.Custom(func(t *rapid.T) usage.Run {
		r := usage.Run{
			Cluster:     cluster,
			JobID:       rapid.Uint32Range(1, 3).Draw(t, "job"),
			Restart:     rapid.Uint32Range(0, 1).Draw(t, "restart"),
			ArrayTaskID: usage.NoTask,
			Account:     rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "account"),
			User:        rapid.SampledFrom([]string{"u", "v"}).Draw(t, "user"),
			QOS:         rapid.SampledFrom([]string{"", "high"}).Draw(t, "qos"),
			Nodes:       rapid.SampledFrom([]string{"", "n1"}).Draw(t, "nodes"),
			GPUs:        rapid.Int64Range(0, 9).Draw(t, "gpus"),
			Allocated:   rapid.Bool().Draw(t, "allocated"),
			StartedAt:   at(time.Duration(rapid.IntRange(0, 1).Draw(t, "start")) * 77 * time.Minute),
			SeenAt:      seconds(t, "seen", 0, 5),
			Suspended:   time.Duration(rapid.IntRange(0, 100).Draw(t, "suspended")) * 37 * time.Second,
		}
		if rapid.Bool().Draw(t, "in array") {
			r.ArrayJobID, r.ArrayTaskID = 1, rapid.Uint32Range(0, 1).Draw(t, "task")
		}
		if rapid.IntRange(0, 3).Draw(t, "suspended now") == 0 {
			r.SuspendedSince = new(seconds(t, "since", 0, 4*3600))
		}
		if rapid.Bool().Draw(t, "ended") {
			r.EndedAt = new(seconds(t, "end", 0, 5*3600))
			r.EndState = rapid.SampledFrom([]string{"COMPLETED", "FAILED"}).Draw(t, "state")
		}
		return r
	})
}

func TestOrderAndRepetitionOfSightingsDoNotMatter(t *testing.T) {
	db := pgtest.Pool(t)
	s := usage.NewStore(db)
	var n int
	rapid.Check(t, func(t *rapid.T) {
		n++
		one, other := fmt.Sprintf("one%d", n), fmt.Sprintf("other%d", n)
		setBucket(t, db, one, 20*time.Minute, epoch.Add(90*time.Minute))
		setBucket(t, db, other, 20*time.Minute, epoch.Add(90*time.Minute))
		seen := rapid.SliceOfN(aSighting(one), 1, 12).Draw(t, "sightings")
		require.NoError(t, s.WriteRuns(ctx, seen))

		again := append(slices.Clone(seen), rapid.SliceOfN(rapid.SampledFrom(seen), 0, 6).Draw(t, "repeated")...)
		again = rapid.Permutation(again).Draw(t, "order")
		for i := range again {
			again[i].Cluster = other
		}
		for len(again) > 0 {
			batch := rapid.IntRange(1, len(again)).Draw(t, "batch")
			require.NoError(t, s.WriteRuns(ctx, again[:batch]))
			again = again[batch:]
		}

		runs := allRuns(t, db, one)
		others := allRuns(t, db, other)
		for i := range others {
			others[i].Cluster = one
		}
		require.Equal(t, runs, others)
		require.Equal(t, split(runs), allBuckets(t, db, one))
		require.Equal(t, allBuckets(t, db, one), allBuckets(t, db, other))
	})
}

// A model of what WriteRuns keeps, written from its documentation.
func TestWhatIsKeptOfSightings(t *testing.T) {
	db := pgtest.Pool(t)
	s := usage.NewStore(db)
	var n int
	rapid.Check(t, func(t *rapid.T) {
		n++
		cluster := fmt.Sprintf("c%d", n)
		seen := rapid.SliceOfN(aSighting(cluster), 1, 8).Draw(t, "sightings")
		for i := range seen {
			seen[i].JobID, seen[i].StartedAt = 1, epoch
			seen[i].SeenAt = epoch.Add(time.Duration(i) * time.Second) // no ties
		}
		for _, r := range rapid.Permutation(seen).Draw(t, "order") {
			require.NoError(t, s.WriteRuns(ctx, []usage.Run{r}))
		}
		want := seen[0]
		var end *usage.Run
		for i, r := range seen { // in the order they were seen
			if r.GPUs > 0 || r.Nodes != "" || want.GPUs == 0 && want.Nodes == "" {
				want = r
			}
			if r.EndedAt != nil {
				end = &seen[i]
			}
		}
		want.EndedAt, want.EndState = nil, ""
		if end != nil {
			want.EndedAt, want.EndState = end.EndedAt, end.EndState
		}
		got := allRuns(t, db, cluster)
		require.Len(t, got, 1)
		require.Equal(t, want, got[0].Run)
	})
}

func TestDeletingRunsTakesThemOutOfTheBuckets(t *testing.T) {
	db := pgtest.Pool(t)
	s := usage.NewStore(db)
	require.NoError(t, s.WriteRuns(ctx, []usage.Run{ended("c", 1, 4, 0, 2*time.Hour), ended("c", 2, 1, time.Hour, 3*time.Hour)}))
	require.Len(t, allBuckets(t, db, "c"), 3)
	_, err := db.Exec(ctx, `DELETE FROM gpubudget.job_run WHERE job_id = 1`)
	require.NoError(t, err)
	require.Equal(t, split(allRuns(t, db, "c")), allBuckets(t, db, "c"))
	require.Len(t, allBuckets(t, db, "c"), 2)
}

// history writes runs of many accounts over a day, some open. The bucket length
// changes in between.
func history(t *rapid.T, db *pgxpool.Pool, cluster string) []storedRun {
	for _, from := range []time.Duration{-time.Hour, 12 * time.Hour} {
		lengths := []time.Duration{5 * time.Minute, time.Hour, 24 * time.Hour}
		setBucket(t, db, cluster, rapid.SampledFrom(lengths).Draw(t, "bucket"), at(from))
	}
	runs := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) usage.Run {
		start := time.Duration(rapid.IntRange(0, 24*3600).Draw(t, "start")) * time.Second
		length := time.Duration(rapid.SampledFrom([]int{0, 1, 59, 600, 3600, 5000, 20000}).Draw(t, "length")) * time.Second
		r := ended(cluster, rapid.Uint32().Draw(t, "job"), rapid.Int64Range(0, 16).Draw(t, "gpus"), start, start+length)
		r.Account = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "account")
		r.User = rapid.SampledFrom([]string{"u", "v"}).Draw(t, "user")
		r.Allocated = rapid.Bool().Draw(t, "allocated")
		r.GPUType = rapid.SampledFrom(gpuTypes).Draw(t, "type")
		r.Parts = rapid.SampledFrom([]int64{0, 0, 0, 1, 333_333, 1_500_000}).Draw(t, "parts")
		r.Suspended = time.Duration(rapid.SampledFrom([]int{0, 0, 0, 1, 700}).Draw(t, "suspended")) * time.Second
		if rapid.IntRange(0, 4).Draw(t, "open") == 0 {
			r.EndedAt, r.EndState = nil, ""
		}
		return r
	}), 0, 12).Draw(t, "runs")
	weighed := func() {
		for range rapid.IntRange(0, 3).Draw(t, "weights") {
			setWeight(t, db, cluster, aWeight(t))
		}
	}
	weighed()
	require.NoError(t, usage.NewStore(db).WriteRuns(ctx, runs))
	weighed()
	_, err := db.Exec(ctx, `UPDATE gpubudget.job_run SET metered_ms = (job_id % 5 - 2) * 77777 WHERE cluster = $1 AND job_id % 3 = 0`, cluster)
	require.NoError(t, err)
	weighed()
	return allRuns(t, db, cluster)
}

var gpuTypes = []string{"", "a100", "H100", "a100_1g.10gb", "3g.40gb", "a100:2,h100:0.5", "h100:1,h100_1g.20gb:3"}

// weight is an entry of the ledger. Nil is what takes one back.
type weight struct {
	gpuType string
	value   *int64
	from    time.Time
	until   *time.Time
}

// aWeight generates an entry about the day of history.
func aWeight(t *rapid.T) weight {
	w := weight{
		gpuType: rapid.SampledFrom([]string{"*", "a100", "h100", "1g.10gb", "a100_1g.10gb", "v100"}).Draw(t, "weight of"),
		from:    at(time.Duration(rapid.IntRange(-3600, 30*3600).Draw(t, "weight from")) * time.Second),
	}
	if value := rapid.SampledFrom([]int64{-1, 0, 1, 500, 1000, 1000, 2250, 3001}).Draw(t, "weight"); value >= 0 {
		w.value = &value
	}
	if hours := rapid.IntRange(-3, 6).Draw(t, "weight for"); hours > 0 {
		w.until = new(w.from.Add(time.Duration(hours) * time.Hour))
	}
	return w
}

func setWeight(t require.TestingT, db usage.DB, cluster string, w weight) {
	require.NoError(t, tryWeight(db, cluster, w))
}

func tryWeight(db usage.DB, cluster string, w weight) error {
	_, err := db.Exec(ctx, `
		INSERT INTO gpubudget.ledger (cluster, kind, actor, effective_from, effective_until, gpu_type, weight)
		VALUES ($1, 'weight_set', 'test', $2, $3, $4, $5)`, cluster, w.from, w.until, w.gpuType, w.value)
	return err
}

// What PostgreSQL says of a run is what Go does.
func TestRunsCountForTheSameInPostgresAndInGo(t *testing.T) {
	db := pgtest.Pool(t)
	s := usage.NewStore(db)
	var n int
	rapid.Check(t, func(t *rapid.T) {
		n++
		cluster := fmt.Sprintf("c%d", n)
		runs := history(t, db, cluster)
		got, err := s.Runs(ctx, cluster, fairshare.Period{From: fairshare.At(at(-time.Hour)), Until: fairshare.At(at(100 * time.Hour))})
		require.NoError(t, err)
		runs = slices.DeleteFunc(runs, func(r storedRun) bool { return r.EndedAt != nil && !r.EndedAt.After(r.StartedAt) })
		require.Len(t, got, len(runs))
		for i, want := range runs {
			require.Equal(t, want.Rates, got[i].Rates, "%s %v", want.GPUType, got[i].JobID)
		}
	})
}

// A GPU type whose name nobody has thought of counts for the same in both.
func TestTypesCountForTheSameInPostgresAndInGo(t *testing.T) {
	db := pgtest.Pool(t)
	for _, w := range []weight{{gpuType: "*", value: new(int64(700))}, {gpuType: "a100", value: new(int64(2000))}, {gpuType: "2g.10gb", value: new(int64(99))}} {
		w.from = epoch
		setWeight(t, db, "c", w)
	}
	weights, err := budgets.NewStore(db).Weights(ctx, "c", fairshare.Period{From: fairshare.Always, Until: fairshare.Never})
	require.NoError(t, err)
	check := func(t require.TestingT, name string) {
		var want int64
		require.NoError(t, db.QueryRow(ctx, `SELECT gpubudget.weight_at('c', $1, $2)`, name, epoch).Scan(&want))
		require.Equal(t, want, weights.At(name, fairshare.At(epoch)), name)
	}
	for _, name := range []string{
		"", "a100", "A100", "v100", "1g.10gb", "a100_1g.10gb", "A100-7g.80gb", "a100.3g.40gb+me", "x_1g.5gb.me", "2g.10gb", "b_2g.10gb",
		"1g.6gb", "2g.12gb", "4g.24gb", "1g.12gb", "1g.24gb", "1g.35gb", "1g.24gb-me", "1g.24gb+gfx", "gb200_1g.24gb", "1g.36gb", "1g.45gb", "1g.47gb", "1g.67gb", "1g.70gb", "gb300_1g.35gb", "gb300-1g.35gb+me",
		"nvidia_a100-sxm4-40gb_1g.10gb", "1g.16gb", "2g.32gb", "5g.1gb", "6g.1gb", "1g.10gb.g.b", "a_1g.5gb_2g.10gb", "A100_1G.20GB", "8g.10gb", "0g.1gb", "1g.gb", "1g.12345gb", "a1g.10gb", "_1g.10gb", "1g.10gb+", "1g.10gb+1", "g.10gb", "1g.",
	} {
		check(t, name)
	}
	name := rapid.StringMatching(`[a-b]{0,2}[-_:.]?[0-9]g\.[0-9]{0,5}(gb)?([-+.][a-g.]{0,4})?`)
	rapid.Check(t, func(t *rapid.T) { check(t, strings.ReplaceAll(name.Draw(t, "type"), ":", "-")) })
}

// So do the instances of GPUs that are divided in whatever way, beside others.
func TestInstancesCountForTheSameInPostgresAndInGo(t *testing.T) {
	db := pgtest.Pool(t)
	for _, w := range []weight{
		{gpuType: "*", value: new(int64(700))}, {gpuType: "a100", value: new(int64(2000))}, {gpuType: "h200_2g.35gb", value: new(int64(99))}, {gpuType: "1g.67gb", value: new(int64(1))},
	} {
		w.from = epoch
		setWeight(t, db, "c", w)
	}
	weights, err := budgets.NewStore(db).Weights(ctx, "c", fairshare.Period{From: fairshare.Always, Until: fairshare.Never})
	require.NoError(t, err)
	check := func(t require.TestingT, cluster string, w fairshare.GPUWeights, h fairshare.Holding) {
		var want int64
		require.NoError(t, db.QueryRow(ctx, `SELECT gpubudget.rate_at($1, $2, $3, $4, $5)`, cluster, h.Type, h.GPUs, h.Parts, epoch).Scan(&want))
		require.Equal(t, want, w.RateAt(h, fairshare.At(epoch)), "%s: %v", cluster, h)
	}
	for _, gpu := range migtest.GPUs() {
		layouts := gpu.Layouts()
		for _, p := range gpu.Profiles {
			check(t, "c", weights, fairshare.Holding{Type: gpu.Model + "_" + p.Name, GPUs: 3})
			check(t, "without weights", nil, fairshare.Holding{Type: p.Name, GPUs: 7})
		}
		for _, layout := range layouts {
			check(t, "c", weights, holding(gpu.Model+"_", layout))
		}
		check(t, "without weights", nil, holding("", slices.Concat(layouts...)))
	}
	gpus := rapid.SliceOfN(rapid.SampledFrom(migtest.GPUs()), 1, 4)
	rapid.Check(t, func(t *rapid.T) {
		var items []string
		for _, gpu := range gpus.Draw(t, "GPUs") {
			model := rapid.SampledFrom([]string{gpu.Model + "_", "a100-", ""}).Draw(t, "model")
			h := holding(model, rapid.SampledFrom(gpu.Layouts()).Draw(t, "layout"))
			items = append(items, h.Type, gpu.Model+rapid.SampledFrom([]string{":1", ":2.5", ":0.333333"}).Draw(t, "beside"))
		}
		h := fairshare.Holding{Type: strings.Join(items, ","), GPUs: 1}
		check(t, "c", weights, h)
		check(t, "without weights", nil, h)
	})
}

// holding is a job that has all these instances.
func holding(model string, layout migtest.Layout) fairshare.Holding {
	var items []string
	for _, p := range layout {
		items = append(items, model+p.Name+":1")
	}
	return fairshare.Holding{Type: strings.Join(items, ","), GPUs: int64(len(layout))}
}

func TestChargesAreExactForAnyWindow(t *testing.T) {
	db := pgtest.Pool(t)
	s := usage.NewStore(db)
	var n int
	rapid.Check(t, func(t *rapid.T) {
		n++
		cluster := fmt.Sprintf("c%d", n)
		runs := history(t, db, cluster)
		require.Equal(t, split(runs), allBuckets(t, db, cluster))

		from := rapid.IntRange(-3600_000, 30*3600_000).Draw(t, "from")
		length := rapid.SampledFrom([]int{0, 1, 1000, 60_000, 600_000, 3600_000, 7200_000, 86400_000}).Draw(t, "length")
		w := window(time.Duration(from)*time.Millisecond, time.Duration(from+length)*time.Millisecond)
		type key struct {
			account, user string
			allocated     bool
		}
		want := map[key]fairshare.GPUMillis{}
		for _, r := range runs {
			if r.Open() {
				continue
			}
			lo := max(w.From, fairshare.At(r.StartedAt))
			if hi := min(w.Until, fairshare.At(*r.EndedAt)); lo < hi {
				want[key{r.Account, r.User, r.Allocated}] += r.Charged(hi.Time()) - r.Charged(lo.Time())
			}
		}
		maps.DeleteFunc(want, func(_ key, sum fairshare.GPUMillis) bool { return sum == 0 })
		got := map[key]fairshare.GPUMillis{}
		allocated, unallocated, err := s.Charges(ctx, cluster, w)
		require.NoError(t, err)
		for i, c := range slices.Concat(allocated, unallocated) {
			require.Equal(t, w.Intersect(c.Period), c.Period, "a charge lies within the window")
			require.NotZero(t, c.Amount)
			got[key{c.Account, c.User, i < len(allocated)}] += c.Amount
		}
		require.Equal(t, want, got)
	})
}

// Cuts are where a tree changes: no charge lies on both sides of one, and what
// lies on either is exact.
func TestChargesAreExactBetweenCuts(t *testing.T) {
	db := pgtest.Pool(t)
	s := usage.NewStore(db)
	var n int
	rapid.Check(t, func(t *rapid.T) {
		n++
		cluster := fmt.Sprintf("c%d", n)
		history(t, db, cluster)
		from := rapid.IntRange(0, 20*3600).Draw(t, "from")
		w := window(time.Duration(from)*time.Second, time.Duration(from+10*3600)*time.Second)
		cuts := []fairshare.Instant{w.From, w.Until, w.From - 1, w.Until + 1}
		for _, second := range rapid.SliceOfN(rapid.IntRange(1, 10*3600-1), 0, 4).Draw(t, "cuts") {
			cuts = append(cuts, w.From+fairshare.Instant(second*1000))
		}
		allocated, unallocated, err := s.Charges(ctx, cluster, w, cuts...)
		require.NoError(t, err)
		whole := slices.Concat(allocated, unallocated)

		slices.Sort(cuts)
		cuts = slices.Compact(cuts)
		sums := func(charges []fairshare.Charge) map[[2]string]fairshare.GPUMillis {
			sums := map[[2]string]fairshare.GPUMillis{}
			for _, c := range charges {
				sums[[2]string{c.Account, c.User}] += c.Amount
			}
			return sums
		}
		for i := range cuts[:len(cuts)-1] {
			part := fairshare.Period{From: cuts[i], Until: cuts[i+1]}.Intersect(w)
			if part.Millis() == 0 {
				continue
			}
			within := slices.DeleteFunc(slices.Clone(whole), func(c fairshare.Charge) bool { return part.Intersect(c.Period).Millis() == 0 })
			for _, c := range within {
				require.Equal(t, part.Intersect(c.Period), c.Period, "a charge does not lie across a cut")
			}
			allocated, unallocated, err := s.Charges(ctx, cluster, part)
			require.NoError(t, err)
			require.Equal(t, sums(slices.Concat(allocated, unallocated)), sums(within))
		}
	})
}

func TestTotalsAreChargesAndOpenRuns(t *testing.T) {
	db := pgtest.Pool(t)
	s := usage.NewStore(db)
	var n int
	rapid.Check(t, func(t *rapid.T) {
		n++
		cluster := fmt.Sprintf("c%d", n)
		history(t, db, cluster)
		now := at(30 * time.Hour)
		w := fairshare.Lookback(fairshare.At(now), time.Duration(rapid.IntRange(1, 40*3600).Draw(t, "lookback"))*time.Second)
		type key struct {
			account, user string
			allocated     bool
		}
		got, want := map[key]fairshare.GPUMillis{}, map[key]fairshare.GPUMillis{}
		totals, err := s.Totals(ctx, cluster, w)
		require.NoError(t, err)
		for _, total := range totals {
			got[key{total.Account, total.User, total.Allocated}] += total.Amount
		}
		allocated, unallocated, err := s.Charges(ctx, cluster, w)
		require.NoError(t, err)
		for i, c := range slices.Concat(allocated, unallocated) {
			want[key{c.Account, c.User, i < len(allocated)}] += c.Amount
		}
		open, err := s.OpenRuns(ctx, cluster)
		require.NoError(t, err)
		for _, r := range open {
			// As an ended run would be cut at the window's beginning.
			r.EndedAt = &now
			want[key{r.Account, r.User, r.Allocated}] += r.Charged(now) - r.Charged(w.From.Time())
		}
		for _, m := range []map[key]fairshare.GPUMillis{got, want} {
			maps.DeleteFunc(m, func(_ key, sum fairshare.GPUMillis) bool { return sum == 0 })
		}
		require.Equal(t, want, got)
	})
}

func TestBucketLengthFollowsThePolicyInForceAtTheEndOfTheRun(t *testing.T) {
	db := pgtest.Pool(t)
	s := usage.NewStore(db)
	setBucket(t, db, "c", 15*time.Minute, at(2*time.Hour))
	early, late := ended("c", 1, 2, 0, 90*time.Minute), ended("c", 2, 2, time.Hour, 150*time.Minute)
	require.NoError(t, s.WriteRuns(ctx, []usage.Run{early, late}))
	lengths := func() map[time.Duration]fairshare.GPUMillis {
		sums := map[time.Duration]fairshare.GPUMillis{}
		for _, b := range allBuckets(t, db, "c") {
			sums[time.Duration(b.Millis())*time.Millisecond] += b.Amount
		}
		return sums
	}
	require.Equal(t, map[time.Duration]fairshare.GPUMillis{time.Hour: 3 * fairshare.GPUHour, 15 * time.Minute: 3 * fairshare.GPUHour}, lengths())

	// A policy entered afterwards doesn't move what is rolled up, and a run that
	// changes is taken out of the buckets it went into.
	setBucket(t, db, "c", 30*time.Minute, at(0))
	early.GPUs, early.SeenAt = 4, at(3*time.Hour)
	require.NoError(t, s.WriteRuns(ctx, []usage.Run{early}))
	require.Equal(t, split(allRuns(t, db, "c")), allBuckets(t, db, "c"))
	sums := lengths()
	require.Equal(t, 9*fairshare.GPUHour, sums[time.Hour]+sums[30*time.Minute]+sums[15*time.Minute])
}

func TestConcurrentWriters(t *testing.T) {
	db := pgtest.Pool(t)
	s := usage.NewStore(db)
	const writers, rounds, jobs = 8, 12, 40
	var batches [][]usage.Run
	for n := range writers * rounds {
		var batch []usage.Run
		for j := range jobs { // every writer touches every other job, in its own order
			job := uint32((j*7 + n) % (2 * jobs))
			r := ended("c", job, int64(job%5), 0, time.Duration(1+n%3)*time.Hour)
			r.User, r.SeenAt = fmt.Sprintf("u%d", n%4), at(time.Duration(n)*time.Second)
			batch = append(batch, r)
		}
		batches = append(batches, batch)
	}
	var next atomic.Int64
	var group sync.WaitGroup
	errs := make([]error, writers)
	for w := range writers {
		group.Go(func() {
			for n := next.Add(1) - 1; n < int64(len(batches)) && errs[w] == nil; n = next.Add(1) - 1 {
				errs[w] = s.WriteRuns(ctx, batches[n])
			}
		})
	}
	group.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	runs := allRuns(t, db, "c")
	require.Len(t, runs, 2*jobs)
	require.Equal(t, split(runs), allBuckets(t, db, "c"))

	for _, batch := range batches { // one after another gives the same
		for i := range batch {
			batch[i].Cluster = "serial"
		}
		require.NoError(t, s.WriteRuns(ctx, batch))
	}
	serial := allRuns(t, db, "serial")
	for i := range serial {
		serial[i].Cluster = "c"
	}
	require.Equal(t, serial, runs)
}

func TestTenThousandRunsAtOnce(t *testing.T) {
	db := pgtest.Pool(t)
	s := usage.NewStore(db)
	runs := manyRuns("c", 10_000)
	for range 2 { // the second time nothing changes
		began := time.Now()
		require.NoError(t, s.WriteRuns(ctx, runs))
		t.Logf("10,000 runs in %v", time.Since(began))
		var sum fairshare.GPUMillis
		for _, b := range allBuckets(t, db, "c") {
			sum += b.Amount
		}
		require.Equal(t, 10_000*8*2*fairshare.GPUHour, sum)
	}
}

// manyRuns are runs of two hours on 8 GPUs, one a minute.
func manyRuns(cluster string, n int) []usage.Run {
	runs := make([]usage.Run, n)
	for i := range runs {
		start := time.Duration(i*61) * time.Second
		runs[i] = ended(cluster, uint32(i), 8, start, start+2*time.Hour)
		runs[i].Account, runs[i].User = fmt.Sprintf("a%d", i%20), fmt.Sprintf("u%d", i%200)
	}
	return runs
}
