// SPDX-License-Identifier: GPL-2.0-or-later

package report_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/report"
	"gpubudget/report/reporttest"
	"gpubudget/usage"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var ctx = context.Background()

func build(t *testing.T, db *pgxpool.Pool, cluster string, now time.Time) *report.Report {
	t.Helper()
	r, err := report.Build(ctx, budgets.NewStore(db), usage.NewStore(db), cluster, now, report.Options{})
	require.NoError(t, err)
	return r
}

func TestReportOfAWeek(t *testing.T) {
	db := pgtest.Pool(t)
	reporttest.Load(t, db)
	r := build(t, db, reporttest.Cluster, reporttest.Now)

	require.Equal(t, 16*fairshare.GPU, r.Capacity)
	require.Equal(t, 2688*fairshare.GPUHour, r.CapacityTime)
	require.Equal(t, reporttest.Start, r.Window.From.Time())
	require.Equal(t, reporttest.Now, r.UsedUntil)
	require.False(t, r.Stale)
	require.Equal(t, 5*time.Second, r.At.Sub(r.SeenAt))

	var order []string
	for _, row := range r.Rows {
		order = append(order, row.Account+"/"+row.User)
	}
	require.Equal(t, []string{
		"root/", "infra/", "infra/fay", "nlp/", "nlp/dora", "nlp/eve", "nlp/gus",
		"vision/", "vision/ada", "vision/bob", "seg/", "seg/cyd",
		"old/", "old/ada", "stray/", "stray/zoe",
	}, order)

	const h = fairshare.GPUHour
	for _, want := range []struct {
		account, user                string
		entitled, used, owed, unaloc float64 // GPU-hours
		pending, running             int64
	}{
		// Owed is worked out per hour: capacity 16, so vision is due 8 of its
		// demand of 10 for 100 hours and 4 for the last 10; nlp 4.8 of 12 for 130.
		{"root", "", 2688, 384 + 12 + 360 + 40 + 960 + 10 + 8, 0, 40, 19, 4},
		{"vision", "", 1344, 384 + 12 + 360 + 40, 8*100 + 4*10, 0, 17, 4},
		{"seg", "", 537.6, 40, 3.2 * 10, 0, 1, 4},
		{"nlp", "", 806.4, 970, 4.8 * 130, 40, 2, 0},
		{"infra", "", 537.6, 8, 8, 0, 0, 0}, // what was charged was asked for
		{"vision", "ada", 403.2, 396, 0, 0, 16, 0},
		{"vision", "bob", 403.2, 360, 0, 0, 0, 0},
		{"seg", "cyd", 537.6, 40, 0, 0, 1, 4},
		{"nlp", "dora", 483.84, 960, 0, 0, 0, 0},
		{"nlp", "eve", 322.56, 0, 0, 40, 0, 0},
		{"nlp", "gus", 0, 10, 0, 0, 2, 0},
		{"old", "ada", 0, 8, 0, 0, 0, 0},
		{"stray", "zoe", 0, 0, 0, 3, 0, 1},
	} {
		row, ok := r.User(want.account, want.user)
		require.True(t, ok, want)
		require.InDelta(t, want.entitled, row.Entitled.Hours(), 1e-6, want)
		require.Equal(t, fairshare.GPUMillis(want.used*float64(h)), row.Used, want)
		require.Equal(t, fairshare.GPUMillis(want.unaloc*float64(h)), row.Unallocated, want)
		require.Equal(t, row.Used, row.Delivered, want)
		if want.account != "root" {
			require.InDelta(t, want.owed, row.Owed.Hours(), 1e-6, want)
		}
		require.Equal(t, want.pending, row.PendingGPUs, want)
		require.Equal(t, want.running, row.RunningGPUs, want)
	}

	infra, _ := r.Account("infra")
	require.True(t, infra.LevelFS > 1 && !math.IsInf(infra.LevelFS, 0))
	fay, _ := r.User("infra", "fay")
	require.True(t, math.IsInf(fay.LevelFS, 1), "she has used nothing")
	require.Equal(t, 1, fay.Rank)
	nlp, _ := r.Account("nlp")
	percent, ok := nlp.Percent()
	require.True(t, ok)
	require.Equal(t, 100.0, percent, "it got more than it was owed")
	strict, _ := nlp.StrictPercent()
	require.InDelta(t, 100*4.8*120/(4.8*130), strict, 1e-6, "but nothing in its last 10 hours of demand")
	percent, _ = infra.Percent()
	require.Equal(t, 100.0, percent)
	ratio, _ := nlp.Ratio()
	require.InDelta(t, 970/806.4, ratio, 1e-9)
	old, _ := r.Account("old")
	require.Equal(t, report.Closed, old.Place)
	gus, _ := r.User("nlp", "gus")
	require.Equal(t, report.Guest, gus.Place)
	stray, _ := r.Account("stray")
	require.Equal(t, report.Unbudgeted, stray.Place)
}

// The report's figures are those of fairshare.Rank on the plain records, as the
// plugin takes them.
func TestReportRanksAsThePluginDoes(t *testing.T) {
	db := pgtest.Pool(t)
	reporttest.Load(t, db)
	r := build(t, db, reporttest.Cluster, reporttest.Now)

	budget, err := budgets.NewStore(db).Load(ctx, reporttest.Cluster, r.Window)
	require.NoError(t, err)
	u := usage.NewStore(db)
	budget.Capacity, err = u.Capacity(ctx, reporttest.Cluster, r.Window)
	require.NoError(t, err)
	charges, _ := usage.Charges(reporttest.Runs(), reporttest.Now) // from the runs, not from buckets
	ranking := fairshare.Rank(fairshare.Input{
		Budget: budget, Window: r.Window, Charges: charges,
		Ahead: []fairshare.Charge{{Account: "seg", User: "cyd", Amount: 4 * 600_000}}, // ten minutes of what runs
	})
	require.NotEmpty(t, ranking.Accounts)
	for _, a := range ranking.Accounts {
		row, ok := r.Account(a.Name)
		require.True(t, ok)
		require.Equal(t, []any{a.Entitled, a.Used, a.LevelFS, a.Rank, a.ShareOfCluster, a.Funded},
			[]any{row.Entitled, row.Used, row.LevelFS, row.Rank, row.ShareOfCluster, row.Funded}, a.Name)
	}
	require.Len(t, ranking.Users, 6)
	for _, s := range ranking.Users {
		row, ok := r.User(s.Account, s.User)
		require.True(t, ok)
		require.Equal(t, []any{s.Entitled, s.Used, s.LevelFS, s.Rank, s.Factor},
			[]any{row.Entitled, row.Used, row.LevelFS, row.Rank, row.Factor}, s.User)
	}
}

// However finely charges are split, what is charged stays the same, and where
// they are split a window that has moved on is exact.
func TestSplitCharges(t *testing.T) {
	db := pgtest.Pool(t)
	reporttest.Load(t, db)
	read := func(now time.Time, o report.Options) *report.Record {
		r, err := report.Read(ctx, budgets.NewStore(db), usage.NewStore(db), reporttest.Cluster, now, o)
		require.NoError(t, err)
		return r
	}
	now := reporttest.Now
	whole := read(now, report.Options{})
	pieces := read(now, report.Options{Pieces: 1000}) // of ten minutes
	cut := read(now, report.Options{Cuts: []fairshare.Instant{fairshare.At(reporttest.Start.Add(50*time.Hour + 20*time.Minute))}})
	require.Equal(t, fairshare.Rank(whole.Input()), fairshare.Rank(pieces.Input()))
	require.Equal(t, fairshare.Rank(whole.Input()), fairshare.Rank(cut.Input()))
	require.Less(t, len(whole.Charged), len(cut.Charged))
	require.Less(t, len(cut.Charged), len(pieces.Charged))
	require.Equal(t, whole.Charged, read(now, report.Options{Pieces: 100}).Charged, "hours are finer")

	later := fairshare.At(reporttest.Start.Add(50*time.Hour + 20*time.Minute))
	moved := fairshare.Period{From: later, Until: later + 1000*3600*1000}
	require.Equal(t, whole.Budget.Usage(moved, read(reporttest.Now.Add(50*time.Hour+20*time.Minute), report.Options{}).Charged).Account("vision"),
		cut.Budget.Usage(moved, cut.Charged).Account("vision"))
}

// What an account used is what its users and the accounts below it used.
func TestRowsAddUp(t *testing.T) {
	db := pgtest.Pool(t)
	reporttest.Load(t, db)
	r := build(t, db, reporttest.Cluster, reporttest.Now.Add(-30*time.Hour-7*time.Second))
	parts := map[string][2]fairshare.GPUMillis{}
	for _, row := range r.Rows {
		if row.Parent == "" || row.Place == report.Unbudgeted {
			continue
		}
		sum := parts[row.Parent]
		sum[0] += row.Used
		sum[1] += row.Unallocated
		parts[row.Parent] = sum
	}
	for _, row := range r.Rows {
		if row.IsUser() || row.Place == report.Unbudgeted {
			continue
		}
		sum := parts[row.Account]
		if row.Account == "infra" { // "old", closed since, was below it
			old, _ := r.Account("old")
			sum[0] += old.Used
		}
		require.Equal(t, [2]fairshare.GPUMillis{row.Used, row.Unallocated}, sum, row.Account)
	}
}

func TestSilentRecorder(t *testing.T) {
	db := pgtest.Pool(t)
	reporttest.Load(t, db)
	seen := reporttest.Now.Add(-5 * time.Second)
	r := build(t, db, reporttest.Cluster, seen.Add(report.DefaultStaleAfter))
	require.False(t, r.Stale)
	require.Equal(t, r.At, r.UsedUntil)

	r = build(t, db, reporttest.Cluster, seen.Add(3*time.Hour))
	require.True(t, r.Stale)
	require.Equal(t, seen, r.UsedUntil)
	cyd, _ := r.User("seg", "cyd") // runs on 4 GPUs since 10 hours before reporttest.Now
	require.Equal(t, 40*fairshare.GPUHour-4*5000, cyd.Used)
}

func TestClusterWithoutRecords(t *testing.T) {
	db := pgtest.Pool(t)
	b := budgets.NewStore(db)
	_, err := b.AddAccount(ctx, "new", "a", "root", fairshare.Whole, budgets.Note{Actor: "x", From: reporttest.Start})
	require.NoError(t, err)
	r := build(t, db, "new", reporttest.Now)
	require.True(t, r.Stale)
	require.True(t, r.SeenAt.IsZero())
	require.Zero(t, r.Capacity)
	require.Len(t, r.Rows, 2)
	_, ok := r.Rows[1].Ratio()
	require.False(t, ok)
	_, ok = r.Rows[1].Percent()
	require.False(t, ok, "nothing was owed to it")
}

// An account is owed what it asked for since it was opened, be it in the middle
// of a bucket.
func TestOwedInTheHourInWhichAnAccountIsOpened(t *testing.T) {
	db := pgtest.Pool(t)
	b, u := budgets.NewStore(db), usage.NewStore(db)
	hour := reporttest.Start
	opened, now := hour.Add(52*time.Minute), hour.Add(58*time.Minute)
	_, err := b.AddAccount(ctx, "new", "a", "root", fairshare.Whole, budgets.Note{Actor: "x", From: opened})
	require.NoError(t, err)
	require.NoError(t, u.WriteCapacity(ctx, "new", hour, fairshare.Holding{GPUs: 16}))
	require.NoError(t, u.WriteDemand(ctx, "new", "1", []usage.DemandBucket{{
		Period: usage.Bucket(fairshare.At(hour), time.Hour), Account: "a", SeenAt: now,
		Pending: 20 * 6 * fairshare.GPUHour / 60, // 20 GPUs since the account was opened
	}}))
	require.NoError(t, u.Heartbeat(ctx, usage.Recorder{Cluster: "new", Incarnation: "1", SeenAt: now}))
	require.NoError(t, u.WriteRuns(ctx, []usage.Run{{
		Cluster: "new", JobID: 1, ArrayTaskID: usage.NoTask, Account: "a", User: "x", GPUs: 4, Allocated: true,
		StartedAt: now.Add(-3 * time.Minute), SeenAt: now,
	}}))
	r := build(t, db, "new", now)
	a, _ := r.Account("a")
	require.InDelta(t, 16*6/60.0, a.Owed.Hours(), 1e-6)
	percent, _ := a.Percent()
	require.InDelta(t, 100*4*3/(16*6.0), percent, 1e-6)
	require.InDelta(t, 20*6/60.0, r.Rows[0].Owed.Hours(), 1e-6, "the cluster could have given all of it since the hour began")
}

// Former members and closed accounts were due something, whether they used it or
// not, and what still runs in a closed account counts where that stood last.
func TestWhoLeftWasDueSomething(t *testing.T) {
	db := pgtest.Pool(t)
	b, u := budgets.NewStore(db), usage.NewStore(db)
	const cluster, h = "new", fairshare.GPUHour
	day := func(n int) budgets.Note {
		return budgets.Note{Actor: "x", From: reporttest.Start.Add(time.Duration(n) * 24 * time.Hour)}
	}
	ok := func(_ budgets.Entry, err error) { t.Helper(); require.NoError(t, err) }
	ok(b.AddAccount(ctx, cluster, "lab", "root", percent(50), day(-20)))
	ok(b.AddAccount(ctx, cluster, "gone", "lab", percent(100), day(-20)))
	ok(b.AddAccount(ctx, cluster, "group", "gone", percent(50), day(-20)))
	ok(b.AddAccount(ctx, cluster, "ancient", "lab", 0, day(-20)))
	for _, user := range []string{"amy", "ben"} {
		ok(b.AddUser(ctx, cluster, "root", user, percent(10), day(-20)))
		ok(b.AddUser(ctx, cluster, "group", user, fairshare.EqualPart, day(-20)))
	}
	ok(b.CloseAccount(ctx, cluster, "ancient", day(-10)))
	ok(b.RemoveUser(ctx, cluster, "root", "ben", day(1)))
	ok(b.CloseAccount(ctx, cluster, "group", day(2)))
	ok(b.CloseAccount(ctx, cluster, "gone", day(4)))
	require.NoError(t, u.WriteCapacity(ctx, cluster, reporttest.Start, fairshare.Holding{GPUs: 10}))
	require.NoError(t, u.WriteQueue(ctx, cluster, reporttest.Now, []usage.Queue{
		{Account: "group", User: "amy", RunningJobs: 1, RunningGPUs: 4, PendingJobs: 1, PendingGPUs: 2},
		{Account: "ancient", User: "cal", RunningJobs: 1, RunningGPUs: 1},
		{Account: "root", User: "amy", RunningJobs: 2, RunningGPUs: 2},
	}))
	r := build(t, db, cluster, reporttest.Now)
	type line struct {
		account, user    string
		place            report.Place
		entitled         fairshare.GPUMillis
		running, pending int64
	}
	var got []line
	for _, row := range r.Rows {
		got = append(got, line{row.Account, row.User, row.Place, row.Entitled, row.RunningGPUs, row.PendingGPUs})
	}
	require.Equal(t, []line{
		{"root", "", report.InTree, 10 * 168 * h, 7, 2},
		{"root", "amy", report.InTree, 168 * h, 2, 0},
		{"root", "ben", report.Guest, 24 * h, 0, 0},
		{"lab", "", report.InTree, 5 * 168 * h, 5, 2},
		{"ancient", "", report.Closed, 0, 1, 0},
		{"ancient", "cal", report.Closed, 0, 1, 0},
		{"gone", "", report.Closed, 5 * 96 * h, 4, 2},
		{"group", "", report.Closed, 5 * 48 * h / 2, 4, 2},
		{"group", "amy", report.Closed, 5 * 48 * h / 4, 4, 2},
		{"group", "ben", report.Closed, 5 * 48 * h / 4, 0, 0},
	}, got)
}

func percent(p int64) fairshare.Share { return fairshare.Whole / 100 * fairshare.Share(p) }

// A policy of seconds over months must not take that many buckets.
func TestShortBucketsOverALongWindow(t *testing.T) {
	db := pgtest.Pool(t)
	reporttest.Load(t, db)
	b := budgets.NewStore(db)
	for setting, value := range map[string]string{"bucket": "1s", "lookback": "180d"} {
		_, err := b.SetPolicy(ctx, reporttest.Cluster, setting, value, budgets.Note{Actor: "x", From: reporttest.Start})
		require.NoError(t, err)
	}
	began := time.Now()
	r := build(t, db, reporttest.Cluster, reporttest.Now)
	require.Less(t, time.Since(began), 10*time.Second)
	nlp, _ := r.Account("nlp")
	require.InEpsilon(t, 4.8*130, nlp.Owed.Hours(), 0.01)
}
