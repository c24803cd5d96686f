// SPDX-License-Identifier: GPL-2.0-or-later

package budgets_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/usage"
)

// ran records a run of alice in physics, on 4 GPUs from day 1 to day 2, with
// changes.
func ran(t *testing.T, pool *pgxpool.Pool, job uint32, changes ...func(*usage.Run)) usage.Run {
	t.Helper()
	end := day(2)
	r := usage.Run{
		Cluster: cluster, JobID: job, ArrayTaskID: usage.NoTask, Account: "physics", User: "alice", GPUs: 4, Allocated: true,
		StartedAt: day(1), EndedAt: &end, EndState: "NODE_FAIL", SeenAt: end,
	}
	for _, change := range changes {
		change(&r)
	}
	require.NoError(t, usage.NewStore(pool).WriteRuns(ctx, []usage.Run{r}))
	return r
}

func lostAll(r usage.Run) (budgets.Lost, budgets.Note) {
	return budgets.Lost{Job: r.JobID, Start: r.StartedAt, Account: r.Account, User: r.User, Amount: r.Charged(*r.EndedAt)}, until(r.StartedAt, *r.EndedAt)
}

func TestRefund(t *testing.T) {
	pool := pgtest.Pool(t)
	s := fill(t, budgets.NewStore(pool))
	r := ran(t, pool, 7)
	lost, n := lostAll(r)
	n.Why = "node failure"
	e := ok(t)(s.Refund(ctx, cluster, lost, n))
	require.Equal(t, budgets.Refund, e.Kind)
	require.Equal(t, []any{"physics", "alice", 96 * fairshare.GPUHour, uint32(7), day(1), day(1), day(2), "refund/7/2026-03-02T00:00:00Z"},
		[]any{e.Account, e.User, e.Amount, e.Job, e.JobStart, e.From, *e.Until, e.Key})
	again := ok(t)(s.Refund(ctx, cluster, lost, n))
	require.True(t, again.Repeated)
	require.Equal(t, e.Seq, again.Seq)

	b, err := s.Load(ctx, cluster, fairshare.Period{From: fairshare.At(day(0)), Until: fairshare.At(day(7))})
	require.NoError(t, err)
	require.Equal(t, []fairshare.Charge{{
		Period:  fairshare.Period{From: fairshare.At(day(1)), Until: fairshare.At(day(2))},
		Account: "physics", User: "alice", Amount: -96 * fairshare.GPUHour,
	}}, b.Refunds())
	b, err = s.Load(ctx, cluster, fairshare.Period{From: fairshare.At(day(2)), Until: fairshare.At(day(7))})
	require.NoError(t, err)
	require.Empty(t, b.Refunds(), "it has left the window, as the charge has")
}

// What the ledger takes out of the charges is what the runs were charged, to the
// millisecond, wherever a window cuts them.
func TestRefundsCancelCharges(t *testing.T) {
	pool := pgtest.Pool(t)
	s := fill(t, budgets.NewStore(pool))
	used := usage.NewStore(pool)
	for i, suspended := range []time.Duration{0, 1234567 * time.Millisecond, 7 * time.Hour} {
		r := ran(t, pool, uint32(10+i), func(r *usage.Run) { r.Suspended, r.GPUs = suspended, 7 })
		lost, n := lostAll(r)
		ok(t)(s.Refund(ctx, cluster, lost, n))
	}
	for _, w := range []fairshare.Period{
		{From: fairshare.At(day(0)), Until: fairshare.At(day(9))},
		{From: fairshare.At(day(1).Add(12345678 * time.Millisecond)), Until: fairshare.At(day(9))},
		{From: fairshare.At(day(0)), Until: fairshare.At(day(1).Add(time.Millisecond))},
		{From: fairshare.At(day(1).Add(11111 * time.Second)), Until: fairshare.At(day(1).Add(22223333 * time.Millisecond))},
	} {
		b, err := s.Load(ctx, cluster, w)
		require.NoError(t, err)
		charged, _, err := used.Charges(ctx, cluster, w, b.Moves()...)
		require.NoError(t, err)
		in := usage.Input(b, w, charged, nil, w.Until.Time())
		u := b.Usage(w, in.Charges)
		require.Zero(t, u.Account("physics"), w)
		require.Zero(t, u.User("physics", "alice"), w)
		require.NotEmpty(t, charged, w)
	}
}

// What a run counted for may have changed while it ran. The refund of all of it, or
// of the end that was lost, is what was charged in just that time: in no window it
// takes back what was charged in another.
func TestARefundLiesWhereTheChargeLies(t *testing.T) {
	pool := pgtest.Pool(t)
	s := fill(t, budgets.NewStore(pool))
	used := usage.NewStore(pool)
	for hours, weight := range map[int]fairshare.Weight{0: 1500, 8: 4000, 13: 0, 16: 333} {
		ok(t)(s.SetWeight(ctx, cluster, "a100", weight, by(day(1).Add(time.Duration(hours)*time.Hour))))
	}
	since := func(hours int) time.Time { return day(1).Add(time.Duration(hours) * time.Hour) }
	charged := func(w fairshare.Period) fairshare.GPUMillis {
		b, err := s.Load(ctx, cluster, w)
		require.NoError(t, err)
		charges, _, err := used.Charges(ctx, cluster, w, b.Moves()...)
		require.NoError(t, err)
		in := usage.Input(b, w, charges, nil, w.Until.Time())
		return b.Usage(w, in.Charges).User("physics", "alice")
	}
	for i, suspended := range []time.Duration{0, 1234567 * time.Millisecond} {
		r := ran(t, pool, uint32(20+i), func(r *usage.Run) { r.Suspended, r.GPUs, r.GPUType = suspended, 7, "a100" })
		runs, err := used.JobRuns(ctx, cluster, r.JobID)
		require.NoError(t, err)
		require.Len(t, runs[0].Rates, 4)
		lost, n := lostAll(runs[0])
		ok(t)(s.Refund(ctx, cluster, lost, n))
	}
	for hour := range 23 {
		w := fairshare.Period{From: fairshare.At(since(hour)), Until: fairshare.At(since(hour + 1).Add(777 * time.Millisecond))}
		require.Zero(t, charged(w), "hour %d", hour)
	}

	// The last eleven hours of another one.
	ran(t, pool, 30, func(r *usage.Run) { r.GPUType = "a100" })
	runs, err := used.JobRuns(ctx, cluster, 30)
	require.NoError(t, err)
	r := runs[0]
	lost, n := lostAll(r)
	lost.Amount -= r.Charged(since(13))
	n.From = since(13)
	ok(t)(s.Refund(ctx, cluster, lost, n))
	for hour := range 23 {
		want := r.Charged(since(hour+1)) - r.Charged(since(hour))
		if hour >= 13 {
			want = 0
		}
		require.Equal(t, want, charged(fairshare.Period{From: fairshare.At(since(hour)), Until: fairshare.At(since(hour + 1))}), "hour %d", hour)
	}
}

// PostgreSQL refuses what the record of the runs doesn't bear out.
func TestRefundIsRefused(t *testing.T) {
	pool := pgtest.Pool(t)
	s := fill(t, budgets.NewStore(pool))
	whole := ran(t, pool, 1)
	ran(t, pool, 2, func(r *usage.Run) { r.EndedAt, r.EndState = nil, "" })
	ran(t, pool, 3, func(r *usage.Run) { r.Allocated = false })
	ran(t, pool, 4)
	refunded, n := lostAll(ran(t, pool, 5))
	e := ok(t)(s.Refund(ctx, cluster, refunded, n))

	tests := []struct {
		name   string
		change func(*budgets.Lost, *budgets.Note)
		want   budgets.RefundError
	}{
		{"unknown job", func(l *budgets.Lost, _ *budgets.Note) { l.Job = 9 }, budgets.RefundError{Job: 9, Problem: budgets.RefundUnknown}},
		{"other run", func(l *budgets.Lost, _ *budgets.Note) { l.Start = day(1).Add(1e9) },
			budgets.RefundError{Job: 1, Start: day(1).Add(1e9), Problem: budgets.RefundUnknown}},
		{"running", func(l *budgets.Lost, _ *budgets.Note) { l.Job = 2 }, budgets.RefundError{Job: 2, Problem: budgets.RefundRunning}},
		{"unallocated", func(l *budgets.Lost, _ *budgets.Note) { l.Job = 3 }, budgets.RefundError{Job: 3, Problem: budgets.RefundUnallocated}},
		{"other user", func(l *budgets.Lost, _ *budgets.Note) { l.User = "bob" }, budgets.RefundError{Job: 1, Problem: budgets.RefundOwner}},
		{"other account", func(l *budgets.Lost, _ *budgets.Note) { l.Account = "chem" }, budgets.RefundError{Job: 1, Problem: budgets.RefundOwner}},
		{"before the run", func(_ *budgets.Lost, n *budgets.Note) { n.From = day(1).Add(-time.Second) },
			budgets.RefundError{Job: 1, Problem: budgets.RefundPeriod}},
		{"after the run", func(_ *budgets.Lost, n *budgets.Note) { n.Until = new(day(3)) }, budgets.RefundError{Job: 1, Problem: budgets.RefundPeriod}},
		{"too much", func(l *budgets.Lost, _ *budgets.Note) { l.Amount += 2 },
			budgets.RefundError{Job: 1, Problem: budgets.RefundTooMuch, Amount: 96*fairshare.GPUHour + 2, Charged: 96 * fairshare.GPUHour}},
		{"too much of a part", func(_ *budgets.Lost, n *budgets.Note) { n.From = day(1).Add(12 * time.Hour) },
			budgets.RefundError{Job: 1, Problem: budgets.RefundTooMuch, Amount: 96 * fairshare.GPUHour, Charged: 48 * fairshare.GPUHour}},
		{"again, with another key", func(l *budgets.Lost, n *budgets.Note) { *l, n.Key = refunded, "mine" },
			budgets.RefundError{Job: 5, Problem: budgets.RefundedAlready, Seq: e.Seq}},
		{"again, another part", func(l *budgets.Lost, n *budgets.Note) { *l, n.From = refunded, day(1).Add(time.Hour) },
			budgets.RefundError{Job: 5, Problem: budgets.RefundedAlready, Seq: e.Seq}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			lost, n := lostAll(whole)
			test.change(&lost, &n)
			_, err := s.Refund(ctx, cluster, lost, n)
			if test.want.Start.IsZero() {
				test.want.Start = day(1)
			}
			require.Equal(t, &test.want, err)
			require.ErrorContains(t, err, "job ")
		})
	}
	require.ErrorAs(t, func() error { _, err := s.Refund(ctx, cluster, refunded, by(day(1))); return err }(), new(*budgets.PeriodError))
}

// A refund names the run, and nothing else does.
func TestRefundNamesTheRun(t *testing.T) {
	pool := pgtest.Pool(t)
	fill(t, budgets.NewStore(pool))
	_, err := pool.Exec(ctx, `INSERT INTO gpubudget.ledger (cluster, kind, actor, account, user_name, amount, effective_until)
		VALUES ($1, 'refund', 'x', 'physics', 'alice', 5, 'infinity')`, cluster)
	require.Error(t, err)
	_, err = pool.Exec(ctx, `INSERT INTO gpubudget.ledger (cluster, kind, actor, account, share, job_id)
		VALUES ($1, 'share_set', 'x', 'physics', 5, 7)`, cluster)
	require.ErrorContains(t, err, "ledger_kind_valid")
}
