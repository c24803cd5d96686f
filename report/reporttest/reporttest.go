// SPDX-License-Identifier: GPL-2.0-or-later

// Package reporttest holds the example cluster that tests of reports look at:
// one week of a cluster of 16 GPUs, small enough to check by hand.
//
//	root                        capacity 16 GPUs, 2688 GPU-hours in the week
//	  infra   20%  fay          has used nothing
//	  nlp     30%  dora 60%, eve; a guest gus
//	  vision  50%  ada, bob
//	    seg   40%  cyd
//	  (old    10% of infra, closed after two days)
package reporttest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/usage"
)

// Cluster is the example's name.
const Cluster = "titan"

// Start and Now are the ends of the week.
var (
	Start = time.Date(2026, 10, 5, 0, 0, 0, 0, time.UTC)
	Now   = Start.Add(7 * 24 * time.Hour)
)

// DB is what both stores work on.
type DB interface {
	budgets.DB
	usage.DB
}

// Load writes the example into a migrated database.
func Load(t testing.TB, db DB) {
	t.Helper()
	ctx := context.Background()
	loadLedger(ctx, t, budgets.NewStore(db))
	loadUsage(ctx, t, usage.NewStore(db))
}

func percent(p int64) fairshare.Share { return fairshare.Whole / 100 * fairshare.Share(p) }

func loadLedger(ctx context.Context, t testing.TB, b *budgets.Store) {
	t.Helper()
	note := budgets.Note{Actor: "root", From: Start.Add(-24 * time.Hour)}
	account := func(name, parent string, share int64, users map[string]fairshare.Share) {
		_, err := b.AddAccount(ctx, Cluster, name, parent, percent(share), note)
		require.NoError(t, err)
		for user, share := range users {
			_, err := b.AddUser(ctx, Cluster, name, user, share, note)
			require.NoError(t, err)
		}
	}
	const equal = fairshare.EqualPart
	account("vision", "root", 50, map[string]fairshare.Share{"ada": equal, "bob": equal})
	account("seg", "vision", 40, map[string]fairshare.Share{"cyd": equal})
	account("nlp", "root", 30, map[string]fairshare.Share{"dora": percent(60), "eve": equal})
	account("infra", "root", 20, map[string]fairshare.Share{"fay": equal})
	account("old", "infra", 10, nil)
	note.From = Start.Add(48 * time.Hour)
	_, err := b.CloseAccount(ctx, Cluster, "old", note)
	require.NoError(t, err)
}

func loadUsage(ctx context.Context, t testing.TB, u *usage.Store) {
	t.Helper()
	require.NoError(t, u.WriteCapacity(ctx, Cluster, Start.Add(-24*time.Hour), fairshare.Holding{GPUs: 16}))
	require.NoError(t, u.WriteRuns(ctx, Runs()))
	require.NoError(t, u.WriteDemand(ctx, Cluster, "1", demand()))
	require.NoError(t, u.WriteQueue(ctx, Cluster, Now.Add(-12*time.Second), []usage.Queue{
		{Account: "vision", User: "ada", PendingJobs: 2, PendingGPUs: 16},
		{Account: "seg", User: "cyd", PendingJobs: 1, PendingGPUs: 1, RunningJobs: 1, RunningGPUs: 4},
		{Account: "nlp", User: "gus", PendingJobs: 1, PendingGPUs: 2},
		{Account: "stray", User: "zoe", RunningJobs: 1, RunningGPUs: 1},
	}))
	require.NoError(t, u.Heartbeat(ctx, usage.Recorder{
		Cluster: Cluster, Incarnation: "1", Host: "ctl", Version: "test", SeenAt: Now.Add(-5 * time.Second),
	}))
}

// Runs are the example's job runs.
func Runs() []usage.Run {
	var runs []usage.Run
	add := func(account, user string, gpus int64, allocated bool, from, until, suspended time.Duration) {
		end := Start.Add(until)
		r := usage.Run{
			Cluster: Cluster, JobID: uint32(len(runs) + 1), //nolint:gosec // a handful
			ArrayTaskID: usage.NoTask, Account: account, User: user,
			Partition: "gpu", QOS: "normal", Nodes: "n1", GPUs: gpus, Allocated: allocated,
			StartedAt: Start.Add(from), EndedAt: &end, EndState: "COMPLETED", Suspended: suspended, SeenAt: end,
		}
		if until == 0 {
			r.EndedAt, r.EndState, r.SeenAt = nil, "", Now
		}
		runs = append(runs, r)
	}
	const h = time.Hour
	add("vision", "ada", 8, true, 0, 48*h, 0)      // 384 GPU-hours
	add("vision", "ada", 2, true, 50*h, 60*h, 4*h) // 12: suspended for 4 h
	add("vision", "bob", 4, true, -10*h, 90*h, 0)  // 360 of 400 in the window
	add("seg", "cyd", 4, true, 158*h, 0, 0)        // 40 so far
	add("nlp", "dora", 8, true, 0, 120*h, 0)       // 960: more than its share
	add("nlp", "gus", 2, true, 10*h, 15*h, 0)      // 10: no member
	add("nlp", "eve", 2, false, 20*h, 40*h, 0)     // 40 unallocated
	runs[len(runs)-1].MinRuntime = new(time.Duration(0))
	add("stray", "zoe", 1, false, 165*h, 0, 0) // 3 unallocated, the ledger doesn't know the account
	runs[len(runs)-1].MinRuntime = new(h)
	add("old", "ada", 1, true, 40*h, 48*h, 0)      // 8, before the account was closed
	add("nlp", "eve", 0, true, 20*h, 40*h, 0)      // no GPUs
	add("vision", "bob", 4, true, -30*h, -20*h, 0) // before the window
	return runs
}

// demand is 10 GPUs of vision for 100 hours, 12 of nlp for 130 and 4 of seg
// for the last 10.
func demand() []usage.DemandBucket {
	var buckets []usage.DemandBucket
	add := func(account string, gpus fairshare.GPUMillis, from, until int) {
		for hour := from; hour < until; hour++ {
			at := fairshare.At(Start.Add(time.Duration(hour) * time.Hour))
			buckets = append(buckets, usage.DemandBucket{
				Period: usage.Bucket(at, time.Hour), Account: account, Pending: gpus * fairshare.GPUHour / 2, Running: gpus * fairshare.GPUHour / 2,
			})
		}
	}
	add("vision", 10, 0, 100)
	add("nlp", 12, 0, 130)
	add("seg", 4, 158, 168)
	return buckets
}
