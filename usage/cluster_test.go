// SPDX-License-Identifier: GPL-2.0-or-later

package usage_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/usage"
)

type capacity = fairshare.Step[fairshare.MilliGPUs]

func TestCapacityHoldsUntilTheNext(t *testing.T) {
	s := usage.NewStore(pgtest.Pool(t))
	const hour = time.Hour
	read := func(w fairshare.Period) []capacity {
		steps, err := s.Capacity(ctx, "c", w)
		require.NoError(t, err)
		return steps
	}
	require.Empty(t, read(window(0, hour)), "nothing is known yet")

	for _, c := range []struct {
		at   time.Duration
		gpus int64
	}{{3 * hour, 16}, {hour, 32}, {2 * hour, 32}, {4 * hour, 8}, {3 * hour, 16}, {3 * hour, 12}} {
		require.NoError(t, s.WriteCapacity(ctx, "c", at(c.at), fairshare.Holding{GPUs: c.gpus}))
	}
	require.NoError(t, s.WriteCapacity(ctx, "other", at(0), fairshare.Holding{GPUs: 1}))

	require.Equal(t, []capacity{
		{Period: window(1*hour, 3*hour), Value: 32 * fairshare.GPU},
		{Period: window(3*hour, 4*hour), Value: 16 * fairshare.GPU},
		{Period: window(4*hour, 9*hour), Value: 8 * fairshare.GPU},
	}, read(window(0, 9*hour)))
	require.Equal(t, []capacity{{Period: window(90*time.Minute, 110*time.Minute), Value: 32 * fairshare.GPU}},
		read(window(90*time.Minute, 110*time.Minute)))
	require.Equal(t, []capacity{{Period: window(2*hour, 3*hour), Value: 32 * fairshare.GPU}}, read(window(2*hour, 3*hour)))
	require.Equal(t, []capacity{{Period: window(5*hour, 6*hour), Value: 8 * fairshare.GPU}}, read(window(5*hour, 6*hour)))
	require.Empty(t, read(window(-hour, hour)), "there is none before the first")
}

func TestQueueIsThatOfTheNewestSighting(t *testing.T) {
	s := usage.NewStore(pgtest.Pool(t))
	queue, seen, err := s.Queue(ctx, "c")
	require.NoError(t, err)
	require.Empty(t, queue)
	require.True(t, seen.IsZero())

	first := []usage.Queue{{"a", "u", 1, 8, 2, 16}, {"b", "v", 3, 3, 0, 0}}
	later := []usage.Queue{{"a", "u", 0, 0, 3, 24}}
	require.NoError(t, s.WriteQueue(ctx, "c", at(2), later))
	require.NoError(t, s.WriteQueue(ctx, "c", at(-time.Hour), first)) // late: ignored
	queue, seen, err = s.Queue(ctx, "c")
	require.NoError(t, err)
	require.Equal(t, later, queue)
	require.Equal(t, at(0), seen)

	require.NoError(t, s.WriteQueue(ctx, "c", at(time.Hour), first))
	require.NoError(t, s.WriteQueue(ctx, "c", at(time.Hour), append(first, usage.Queue{"b", "v", 1, 1, 0, 0}))) // the same user twice
	queue, _, err = s.Queue(ctx, "c")
	require.NoError(t, err)
	require.Equal(t, []usage.Queue{{"a", "u", 1, 8, 2, 16}, {"b", "v", 4, 4, 0, 0}}, queue)

	require.NoError(t, s.WriteQueue(ctx, "c", at(2*time.Hour), nil))
	queue, seen, err = s.Queue(ctx, "c")
	require.NoError(t, err)
	require.Empty(t, queue)
	require.Equal(t, at(2*time.Hour), seen, "an empty queue was seen")
}

func TestHeartbeat(t *testing.T) {
	s := usage.NewStore(pgtest.Pool(t))
	_, alive, err := s.LastSeen(ctx, "c")
	require.NoError(t, err)
	require.False(t, alive)

	now := usage.Recorder{Cluster: "c", Incarnation: "2", Host: "ctl", Version: "1", SeenAt: at(time.Hour), Lag: 1500 * time.Millisecond}
	old := usage.Recorder{Cluster: "c", Incarnation: "1", Host: "ctl", Version: "1", SeenAt: at(0)}
	require.NoError(t, s.Heartbeat(ctx, now))
	require.NoError(t, s.Heartbeat(ctx, old))
	got, alive, err := s.LastSeen(ctx, "c")
	require.NoError(t, err)
	require.True(t, alive)
	require.Equal(t, now, got)
}

// What a clock that was ahead has left in the future gives way as soon as it is
// right again, and not only when that time has come.
func TestSightingsOfTheFutureGiveWay(t *testing.T) {
	s := usage.NewStore(pgtest.Pool(t))
	now := time.Now().UTC().Truncate(time.Millisecond)
	alive := usage.Recorder{Cluster: "c", Incarnation: "1", Host: "ctl", Version: "1", SeenAt: now.Add(24 * time.Hour)}
	require.NoError(t, s.WriteQueue(ctx, "c", alive.SeenAt, []usage.Queue{{"a", "u", 1, 8, 2, 16}}))
	require.NoError(t, s.Heartbeat(ctx, alive))

	alive.SeenAt = now
	require.NoError(t, s.WriteQueue(ctx, "c", now, nil))
	require.NoError(t, s.Heartbeat(ctx, alive))
	queue, seen, err := s.Queue(ctx, "c")
	require.NoError(t, err)
	require.Empty(t, queue)
	require.Equal(t, now, seen)
	got, _, err := s.LastSeen(ctx, "c")
	require.NoError(t, err)
	require.Equal(t, alive, got)
}

func TestDemandIsTheSumOverIncarnationsThatOnlyGrow(t *testing.T) {
	s := usage.NewStore(pgtest.Pool(t))
	hour := window(0, time.Hour)
	write := func(incarnation string, pending, running fairshare.GPUMillis, seen time.Duration) {
		require.NoError(t, s.WriteDemand(ctx, "c", incarnation, []usage.DemandBucket{
			{Period: hour, Account: "a", Pending: pending, Running: running, SeenAt: at(seen)},
			{Period: hour, Account: "b", Pending: 1, SeenAt: at(time.Minute)},
		}))
	}
	read := func() []fairshare.Demand {
		demand, err := s.Demand(ctx, "c", window(10*time.Minute, 50*time.Minute))
		require.NoError(t, err)
		return demand
	}
	write("first", 100, 50, 10*time.Minute)
	write("first", 200, 60, 20*time.Minute)
	write("first", 100, 50, 10*time.Minute) // late
	require.Equal(t, []fairshare.Demand{
		{Period: window(0, 20*time.Minute), Account: "a", Amount: 260},
		{Period: window(0, 20*time.Minute), Account: "b", Amount: 1},
	}, read(), "the bucket ends where it was last seen")
	write("second", 7, 0, 2*time.Hour)
	require.Equal(t, []fairshare.Demand{
		{Period: hour, Account: "a", Amount: 267},
		{Period: hour, Account: "b", Amount: 2},
	}, read())

	demand, err := s.Demand(ctx, "c", window(time.Hour, 2*time.Hour))
	require.NoError(t, err)
	require.Empty(t, demand, "it meets at the edge only")
}

// The period of an account's demand begins when it first asked for anything, as
// far as that is known of all that counted it.
func TestDemandBeginsWhenAnAccountFirstAskedForAnything(t *testing.T) {
	db := pgtest.Pool(t)
	s := usage.NewStore(db)
	hour := window(0, time.Hour)
	write := func(incarnation string, begun time.Duration) {
		require.NoError(t, s.WriteDemand(ctx, "c", incarnation, []usage.DemandBucket{
			{Period: hour, Account: "a", Pending: 100, BegunAt: at(begun)},
			{Period: hour, Account: "b", Pending: 100},
		}))
	}
	begins := func(from time.Duration) {
		t.Helper()
		demand, err := s.Demand(ctx, "c", hour)
		require.NoError(t, err)
		periods := map[string]fairshare.Period{}
		for _, d := range demand {
			periods[d.Account] = d.Period
		}
		require.Equal(t, map[string]fairshare.Period{"a": window(from, time.Hour), "b": hour}, periods)
	}
	write("first", 52*time.Minute)
	begins(52 * time.Minute)
	write("first", 53*time.Minute)
	begins(52 * time.Minute)
	write("second", 40*time.Minute)
	begins(40 * time.Minute)
	_, err := db.Exec(ctx, `UPDATE gpubudget.demand_bucket SET begun_at = NULL WHERE incarnation = 'first'`) // as an older release wrote it
	require.NoError(t, err)
	begins(0)
	write("first", 50*time.Minute)
	begins(0)
}

func TestOrderAndRepetitionOfDemandDoNotMatter(t *testing.T) {
	db := pgtest.Pool(t)
	s := usage.NewStore(db)
	rows := func(t require.TestingT, cluster string) []string {
		r, err := db.Query(ctx, `
			SELECT concat_ws(' ', starts_at, ends_at, account, incarnation, pending_ms, running_ms, begun_at, seen_at)
			FROM gpubudget.demand_bucket WHERE cluster = $1 ORDER BY 1`, cluster)
		require.NoError(t, err)
		out, err := pgx.CollectRows(r, pgx.RowTo[string])
		require.NoError(t, err)
		return out
	}
	var n int
	rapid.Check(t, func(t *rapid.T) {
		n++
		one, other := fmt.Sprintf("one%d", n), fmt.Sprintf("other%d", n)
		type write struct {
			incarnation string
			bucket      usage.DemandBucket
		}
		writes := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) write {
			at := fairshare.At(epoch) + fairshare.Instant(rapid.IntRange(0, 5_000_000).Draw(t, "at"))
			return write{rapid.SampledFrom([]string{"x", "y"}).Draw(t, "incarnation"), usage.DemandBucket{
				Period:  usage.Bucket(at, time.Hour),
				Account: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "account"),
				Pending: fairshare.GPUMillis(rapid.IntRange(0, 9).Draw(t, "pending")),
				Running: fairshare.GPUMillis(rapid.IntRange(0, 9).Draw(t, "running")),
				BegunAt: rapid.SampledFrom([]time.Time{{}, at.Time()}).Draw(t, "begun"),
				SeenAt:  at.Time(),
			}}
		}), 1, 10).Draw(t, "writes")
		for _, w := range writes {
			require.NoError(t, s.WriteDemand(ctx, one, w.incarnation, []usage.DemandBucket{w.bucket}))
		}
		batches := map[string][]usage.DemandBucket{} // all at once, shuffled, some twice
		again := slices.Concat(writes, rapid.SliceOf(rapid.SampledFrom(writes)).Draw(t, "repeated"))
		for _, w := range rapid.Permutation(again).Draw(t, "order") {
			batches[w.incarnation] = append(batches[w.incarnation], w.bucket)
		}
		for incarnation, batch := range batches {
			require.NoError(t, s.WriteDemand(ctx, other, incarnation, batch))
		}
		require.Equal(t, rows(t, one), rows(t, other))
	})
}

func TestSnapshotSeesOneState(t *testing.T) {
	s := usage.NewStore(pgtest.Pool(t))
	open := ended("c", 1, 4, 0, 0)
	open.EndedAt, open.EndState = nil, ""
	require.NoError(t, s.WriteRuns(ctx, []usage.Run{open}))
	w := window(0, 2*time.Hour)
	err := s.Snapshot(ctx, func(view *usage.Store) error {
		charged, _, err := view.Charges(ctx, "c", w)
		require.NoError(t, err)
		require.Empty(t, charged)
		// The run ends between the two reads, and is still open in the second.
		require.NoError(t, s.WriteRuns(ctx, []usage.Run{ended("c", 1, 4, 0, time.Hour)}))
		runs, err := view.OpenRuns(ctx, "c")
		require.NoError(t, err)
		require.Len(t, runs, 1)
		return nil
	})
	require.NoError(t, err)
	charged, _, err := s.Charges(ctx, "c", w)
	require.NoError(t, err)
	require.Len(t, charged, 1)
	require.Error(t, s.Snapshot(ctx, func(view *usage.Store) error {
		return view.WriteCapacity(ctx, "c", at(0), fairshare.Holding{GPUs: 1})
	}), "it only reads")
}
