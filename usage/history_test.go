// SPDX-License-Identifier: GPL-2.0-or-later

package usage_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/usage"
)

// stretch is a user in an account between two cuts.
type stretch struct {
	account, user string
	part          int
}

// sumsOf sums charges up, none of which may lie on both sides of a cut or out of w.
func sumsOf(t require.TestingT, w fairshare.Period, cuts []fairshare.Instant, charges []fairshare.Charge) map[stretch]fairshare.GPUMillis {
	sums := make(map[stretch]fairshare.GPUMillis)
	for _, c := range charges {
		require.Equal(t, c.Period, w.Intersect(c.Period))
		part := 0
		for _, cut := range cuts {
			require.False(t, c.From < cut && c.Until > cut, "%v across %d", c.Period, cut)
			if cut <= c.From {
				part++
			}
		}
		sums[stretch{c.Account, c.User, part}] += c.Amount
	}
	maps.DeleteFunc(sums, func(_ stretch, sum fairshare.GPUMillis) bool { return sum == 0 })
	return sums
}

// follower follows a cluster that changes at random, with transactions that
// overlap.
type follower struct {
	*rapid.T
	db      *pgxpool.Pool
	store   *usage.Store
	cluster string
	open    map[int]pgx.Tx // by writer
	history *usage.History
	now     time.Duration
	look    time.Duration
	cuts    []fairshare.Instant
}

// write changes runs of one writer. Each has users of his own, but two may make
// rows of one bucket vanish; then the second gives up, and ok is false.
func (f *follower) write(tx pgx.Tx, writer int) (ok bool) {
	_, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '10ms'`)
	require.NoError(f.T, err)
	job := writer*100 + rapid.IntRange(1, 3).Draw(f.T, "job")
	switch rapid.SampledFrom([]string{"run", "run", "run", "run", "change", "move", "end", "delete", "swap", "meter"}).Draw(f.T, "kind") {
	case "run":
		from := at(f.now - time.Duration(rapid.IntRange(0, 30*60).Draw(f.T, "minutes ago"))*time.Minute)
		length := time.Duration(rapid.SampledFrom([]int{1, 59, 600, 3600, 5000, 90000}).Draw(f.T, "seconds")) * time.Second
		suspended := rapid.SampledFrom([]int{0, 0, 0, 1, 777}).Draw(f.T, "suspended")
		_, err = tx.Exec(ctx, `INSERT INTO gpubudget.job_run (cluster, job_id, account, user_name, gpus, allocated, started_at, ended_at, suspended_ms,
				gpu_type, parts, seen_at, end_seen_at, bucket_ms)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, now(), now(), gpubudget.bucket_ms($1, $8)) ON CONFLICT DO NOTHING`,
			f.cluster, job, rapid.SampledFrom([]string{"a", "b"}).Draw(f.T, "account"), fmt.Sprintf("u%d", writer),
			rapid.IntRange(0, 9).Draw(f.T, "gpus")+1, rapid.IntRange(0, 9).Draw(f.T, "allocated") < 8, from, from.Add(length), suspended,
			rapid.SampledFrom(gpuTypes).Draw(f.T, "type"), rapid.SampledFrom([]int64{0, 0, 250_000}).Draw(f.T, "parts"))
	case "change":
		_, err = tx.Exec(ctx, `UPDATE gpubudget.job_run SET gpus = $3, suspended_ms = $4 WHERE cluster = $1 AND job_id = $2`,
			f.cluster, job, rapid.IntRange(0, 9).Draw(f.T, "gpus"), rapid.IntRange(0, 90_000).Draw(f.T, "suspended"))
	case "meter":
		_, err = tx.Exec(ctx, `UPDATE gpubudget.job_run SET metered_ms = $3 WHERE cluster = $1 AND job_id = $2`,
			f.cluster, job, rapid.IntRange(-5_000_000, 1000_000).Draw(f.T, "metered"))
	case "move":
		_, err = tx.Exec(ctx, `UPDATE gpubudget.job_run SET account = $3, allocated = NOT allocated WHERE cluster = $1 AND job_id = $2`,
			f.cluster, job, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(f.T, "account"))
	case "end":
		_, err = tx.Exec(ctx, `UPDATE gpubudget.job_run SET ended_at = CASE WHEN ended_at IS NULL THEN started_at + interval '1 hour' END
			WHERE cluster = $1 AND job_id = $2`, f.cluster, job)
	case "delete":
		_, err = tx.Exec(ctx, `DELETE FROM gpubudget.job_run WHERE cluster = $1 AND job_id = $2`, f.cluster, job)
	case "swap": // as much in the bucket, at another time
		_, err = tx.Exec(ctx, `UPDATE gpubudget.job_run SET ended_at = started_at + 2 * (ended_at - started_at), gpus = gpus / 2
			WHERE cluster = $1 AND job_id = $2 AND gpus % 2 = 0 AND ended_at > started_at`, f.cluster, job)
	}
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "55P03" {
		return false
	}
	require.NoError(f.T, err)
	return true
}

func (f *follower) step() {
	switch rapid.SampledFrom([]string{"begin", "write", "write", "write", "savepoint", "commit", "roll back", "now",
		"now", "now", "time", "time", "bucket", "cuts", "lookback", "restart", "weight", "weight"}).Draw(f.T, "step") {
	case "begin", "write":
		writer := rapid.IntRange(0, 2).Draw(f.T, "writer")
		if f.open[writer] == nil {
			tx, err := f.db.Begin(ctx)
			require.NoError(f.T, err)
			f.open[writer] = tx
		}
		if !f.write(f.open[writer], writer) {
			f.end(writer, false)
		}
	case "savepoint":
		for _, writer := range slices.Sorted(maps.Keys(f.open)) {
			inner, err := f.open[writer].Begin(ctx)
			require.NoError(f.T, err)
			if f.write(inner, writer) && rapid.Bool().Draw(f.T, "release") {
				require.NoError(f.T, inner.Commit(ctx))
			} else {
				require.NoError(f.T, inner.Rollback(ctx))
			}
		}
	case "commit", "roll back":
		for _, writer := range slices.Sorted(maps.Keys(f.open)) {
			if rapid.Bool().Draw(f.T, "this one") {
				f.end(writer, rapid.Bool().Draw(f.T, "keep"))
			}
		}
	case "now":
		tx, err := f.db.Begin(ctx)
		require.NoError(f.T, err)
		f.open[3] = tx
		f.end(3, f.write(tx, 3))
	case "time":
		f.now += time.Duration(rapid.IntRange(-600, 2*3600).Draw(f.T, "seconds")) * time.Second
	case "bucket":
		lengths := []time.Duration{5 * time.Minute, time.Hour, 24 * time.Hour}
		setBucket(f.T, f.db, f.cluster, rapid.SampledFrom(lengths).Draw(f.T, "bucket"), at(f.now-time.Hour))
	case "cuts":
		f.cuts = nil
		for range rapid.IntRange(0, 3).Draw(f.T, "cuts") {
			f.cuts = append(f.cuts, fairshare.At(at(f.now-time.Duration(rapid.IntRange(-60, 24*60).Draw(f.T, "cut"))*time.Minute)))
		}
		slices.Sort(f.cuts)
		f.cuts = slices.Compact(f.cuts)
	case "lookback":
		f.look = time.Duration(rapid.IntRange(1, 30*60).Draw(f.T, "lookback")) * time.Minute
	case "restart":
		f.history = f.saved()
	case "weight": // it waits for writers, here in vain
		w := aWeight(f.T)
		err := pgx.BeginFunc(ctx, f.db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '10ms'`); err != nil {
				return err
			}
			return tryWeight(tx, f.cluster, w)
		})
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != "55P03" {
			require.NoError(f.T, err)
		}
	}
}

func (f *follower) end(writer int, keep bool) {
	tx := f.open[writer]
	delete(f.open, writer)
	if keep {
		require.NoError(f.T, tx.Commit(ctx))
	} else {
		require.NoError(f.T, tx.Rollback(ctx))
	}
}

// saved is the history as it comes back from a file.
func (f *follower) saved() *usage.History {
	if f.history == nil {
		return nil
	}
	var file bytes.Buffer
	require.NoError(f.T, f.history.Encode(&file))
	h, err := usage.DecodeHistory(&file)
	require.NoError(f.T, err)
	require.Equal(f.T, f.history.Charges(f.window(), f.cuts...), h.Charges(f.window(), f.cuts...))
	return h
}

func (f *follower) window() fairshare.Period {
	if f.history == nil {
		return fairshare.Lookback(fairshare.At(at(f.now)), f.look)
	}
	return fairshare.Period{From: f.history.Since(), Until: f.history.At()}
}

// read goes on with the history and compares it with all there is.
func (f *follower) read() {
	w := fairshare.Lookback(fairshare.At(at(f.now)), f.look)
	later := w
	later.From += fairshare.Instant(rapid.Int64Range(0, 3*60*1000).Draw(f.T, "later"))
	later.Until += fairshare.Instant(rapid.Int64Range(0, 3*60*1000).Draw(f.T, "later"))
	require.NoError(f.T, f.store.Snapshot(ctx, func(s *usage.Store) error {
		before := f.history
		var kept []fairshare.Charge
		if before != nil {
			kept = before.Charges(f.window())
		}
		h, err := s.History(ctx, f.cluster, w, f.cuts, before)
		require.NoError(f.T, err)
		if before != nil {
			require.Equal(f.T, kept, before.Charges(f.window()), "a history does not change")
		}
		for _, w := range []fairshare.Period{w, later} {
			want, _, err := s.Charges(ctx, f.cluster, w, f.cuts...)
			require.NoError(f.T, err)
			got := sumsOf(f.T, w, f.cuts, h.Charges(w, f.cuts...))
			if f.sharp(w.From - h.Since()) {
				require.Equal(f.T, sumsOf(f.T, w, f.cuts, want), got, "%v", w)
			}
			f.sumUp(h, w, got)
		}
		f.history = h
		return nil
	}))
}

// sharp tells that the edge, moved on by so much, is still in the buckets in which
// it was: those are known run by run.
func (f *follower) sharp(moved fairshare.Instant) bool {
	const shortest = 5 * 60 * 1000
	from := fairshare.At(at(f.now)) - fairshare.Instant(f.look.Milliseconds())
	return moved == 0 || from%shortest != 0 && from%shortest+moved <= shortest
}

// sumUp compares the sums with the charges, in a window and in later ones.
func (f *follower) sumUp(h *usage.History, w fairshare.Period, want map[stretch]fairshare.GPUMillis) {
	sums := usage.NewSums(h, f.cuts)
	for range 3 {
		var charges []fairshare.Charge
		sums.In(w, func(owner uint32, p fairshare.Period, amount fairshare.GPUMillis) {
			o := h.Owners()[owner]
			charges = append(charges, fairshare.Charge{Period: p, Account: o.Account, User: o.User, Amount: amount})
		})
		require.Equal(f.T, want, sumsOf(f.T, w, f.cuts, charges))
		w.From += fairshare.Instant(rapid.Int64Range(0, 30*60*1000).Draw(f.T, "later"))
		w.Until = max(w.From, w.Until+fairshare.Instant(rapid.Int64Range(-60*1000, 30*60*1000).Draw(f.T, "later")))
		want = sumsOf(f.T, w, f.cuts, h.Charges(w, f.cuts...))
	}
}

// What a server sends as text, as it does to some poolers, is read like what it
// sends in its own form.
func TestAHistoryIsReadOverTheSimpleProtocol(t *testing.T) {
	pool := pgtest.Pool(t)
	_, err := pool.Exec(ctx, `INSERT INTO gpubudget.job_run
		(cluster, job_id, account, user_name, gpus, allocated, started_at, ended_at, seen_at, end_seen_at)
		SELECT 'c', i, CASE i % 4 WHEN 0 THEN 'a "b", {c}' ELSE 'a' || i % 4 END, CASE i % 5 WHEN 0 THEN '' ELSE 'ü' || i % 5 END, 1 + i % 3, true,
			t, t + i * interval '7 minutes', t, t
		FROM generate_series(1, 200) i, LATERAL (VALUES (timestamptz '2026-03-01Z' + i * interval '11 minutes')) v (t)`)
	require.NoError(t, err)
	w := fairshare.Period{From: fairshare.At(time.Date(2026, 3, 1, 0, 30, 0, 0, time.UTC)), Until: fairshare.At(time.Date(2026, 3, 4, 0, 0, 0, 0, time.UTC))}
	want, err := usage.NewStore(pool).History(ctx, "c", w, nil, nil)
	require.NoError(t, err)
	require.Greater(t, want.Len(), 100)
	config := pool.Config()
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	simple, err := pgxpool.NewWithConfig(ctx, config)
	require.NoError(t, err)
	defer simple.Close()
	got, err := usage.NewStore(simple).History(ctx, "c", w, nil, nil)
	require.NoError(t, err)
	require.Equal(t, want.Charges(w), got.Charges(w))
}

// Whatever changes, and in whatever order transactions are committed, what is
// known by reading changes only is what is there.
func TestAHistoryThatIsFollowedIsTheOneThatIsReadAnew(t *testing.T) {
	// Each check meets Postgres some hundred times; -rapid.checks asks for more.
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		require.NoError(t, checks.Value.Set("20"))
		defer func() { require.NoError(t, checks.Value.Set(checks.DefValue)) }()
	}
	db := pgtest.Pool(t)
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		f := &follower{
			T: t, db: db, store: usage.NewStore(db), cluster: fmt.Sprintf("c%d", n),
			open: make(map[int]pgx.Tx), now: 30 * time.Hour, look: 25 * time.Hour,
		}
		defer func() {
			for _, tx := range f.open {
				_ = tx.Rollback(ctx)
			}
		}()
		for range rapid.IntRange(12, 40).Draw(t, "steps") {
			f.step()
			f.read()
		}
		for _, writer := range slices.Sorted(maps.Keys(f.open)) {
			f.end(writer, true)
			f.read()
		}
	})
}

// The transaction with the lower number commits last, after a reader has seen
// what the other one wrote; and one is open all the while.
func TestAHistoryMissesNothingThatIsCommittedLate(t *testing.T) {
	db := pgtest.Pool(t)
	s := usage.NewStore(db)
	w := window(-time.Hour, 24*time.Hour)
	var h *usage.History
	read := func() map[string]fairshare.GPUMillis {
		t.Helper()
		sums := make(map[string]fairshare.GPUMillis)
		require.NoError(t, s.Snapshot(ctx, func(s *usage.Store) (err error) {
			h, err = s.History(ctx, "c", w, nil, h)
			return err
		}))
		for _, c := range h.Charges(w) {
			sums[c.User] += c.Amount
		}
		return sums
	}
	require.Empty(t, read())
	begin := func() pgx.Tx {
		t.Helper()
		tx, err := db.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, `SELECT pg_current_xact_id()`)
		require.NoError(t, err)
		return tx
	}
	idle, early, late := begin(), begin(), begin()
	for _, tx := range []pgx.Tx{idle, early, late} {
		defer func() { _ = tx.Rollback(ctx) }() // or the pool would wait for it
	}
	write := func(tx pgx.Tx, job int, user string, hours int) {
		t.Helper()
		_, err := tx.Exec(ctx, `INSERT INTO gpubudget.job_run (cluster, job_id, account, user_name, gpus, allocated, started_at, ended_at, seen_at, end_seen_at)
			VALUES ('c', $1, 'a', $2, 1, true, $3, $3::timestamptz + $4 * interval '1 hour', now(), now())`, job, user, epoch, hours)
		require.NoError(t, err)
	}
	write(early, 1, "u", 1)
	write(late, 2, "v", 2)
	require.NoError(t, late.Commit(ctx))
	require.Equal(t, map[string]fairshare.GPUMillis{"v": 2 * fairshare.GPUHour}, read())
	write(early, 3, "u", 3)
	require.Equal(t, map[string]fairshare.GPUMillis{"v": 2 * fairshare.GPUHour}, read())
	require.NoError(t, early.Commit(ctx))
	require.Equal(t, map[string]fairshare.GPUMillis{"u": 4 * fairshare.GPUHour, "v": 2 * fairshare.GPUHour}, read())
	write(idle, 4, "v", 1)
	require.NoError(t, idle.Commit(ctx))
	require.Equal(t, map[string]fairshare.GPUMillis{"u": 4 * fairshare.GPUHour, "v": 3 * fairshare.GPUHour}, read())
}

// A run may change without any bucket of its being more or less: where an edge cuts
// it that tells.
func TestAHistoryFollowsARunThatChangesWithinABucket(t *testing.T) {
	db := pgtest.Pool(t)
	s := usage.NewStore(db)
	require.NoError(t, s.WriteRuns(ctx, []usage.Run{ended("c", 1, 4, 10*time.Minute, 20*time.Minute)}))
	w := window(15*time.Minute, 2*time.Hour)
	var h *usage.History
	used := func() (sum fairshare.GPUMillis) {
		t.Helper()
		require.NoError(t, s.Snapshot(ctx, func(s *usage.Store) (err error) {
			h, err = s.History(ctx, "c", w, nil, h)
			return err
		}))
		for _, c := range h.Charges(w) {
			sum += c.Amount
		}
		return sum
	}
	require.Equal(t, fairshare.GPUHour/3, used())
	_, err := db.Exec(ctx, `UPDATE gpubudget.job_run SET gpus = 2, ended_at = started_at + interval '20 minutes'`)
	require.NoError(t, err)
	require.Equal(t, fairshare.GPUHour/2, used())
}

// Only what has changed is read.
func TestAHistoryReadsChangesOnly(t *testing.T) {
	db := pgtest.Pool(t)
	s := usage.NewStore(db)
	w := window(0, 24*time.Hour)
	require.NoError(t, s.WriteRuns(ctx, manyRuns("c", 500)))
	require.NoError(t, s.Snapshot(ctx, func(s *usage.Store) error {
		h, err := s.History(ctx, "c", w, nil, nil)
		require.NoError(t, err)
		require.Greater(t, h.Len(), 1000)
		// Behind the back of the trigger; a reader of all would see it.
		return nil
	}))
	var h *usage.History
	read := func() {
		require.NoError(t, s.Snapshot(ctx, func(s *usage.Store) (err error) {
			h, err = s.History(ctx, "c", w, nil, h)
			return err
		}))
	}
	read()
	before := h.Len()
	_, err := db.Exec(ctx, `ALTER TABLE gpubudget.job_run DISABLE TRIGGER USER; DELETE FROM gpubudget.usage_bucket`)
	require.NoError(t, err)
	read()
	require.Equal(t, before, h.Len())
	h = nil
	read()
	require.Zero(t, h.Len())
}

func TestADamagedHistoryIsRefused(t *testing.T) {
	h := usage.NewHistory(0, 1000, []fairshare.Charge{
		{Period: fairshare.Period{From: 10, Until: 20}, Account: "a", User: "u", Amount: 5},
		{Period: fairshare.Period{From: 10, Until: 20}, Account: "b", User: "v", Amount: 7},
		{Period: fairshare.Period{From: -30, Until: 20}, Account: "a", User: "v", Amount: 1 << 60},
	})
	var file bytes.Buffer
	require.NoError(t, h.Encode(&file))
	whole := file.Bytes()
	got, err := usage.DecodeHistory(bytes.NewReader(whole))
	require.NoError(t, err)
	w := fairshare.Period{From: 0, Until: 1000}
	require.Equal(t, h.Charges(w), got.Charges(w))
	for n := range whole {
		_, err := usage.DecodeHistory(bytes.NewReader(whole[:n]))
		require.Error(t, err)
	}
	rapid.Check(t, func(t *rapid.T) {
		text := slices.Clone(whole)
		text[rapid.IntRange(0, len(text)-1).Draw(t, "at")] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		if h, err := usage.DecodeHistory(bytes.NewReader(text)); err == nil {
			h.Charges(w) // it must not panic
		}
	})
}
