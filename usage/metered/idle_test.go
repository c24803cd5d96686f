// SPDX-License-Identifier: GPL-2.0-or-later

package metered_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/agent/tally"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/usage"
	"gpubudget/usage/metered"
)

// Held and idle is what a job holds now, with no work seen for a while and no
// power drawn that tells otherwise. What is not known is not idle.
func TestIdle(t *testing.T) {
	db := pgtest.Pool(t)
	u, s := usage.NewStore(db), metered.NewStore(db)
	now := fairshare.At(time.Now().Add(-time.Second))
	began := now - 3*hours
	open := run("titan", 1, 0, 8, period(began, now))
	open.EndedAt, open.EndState, open.Account = nil, "", "seg"
	require.NoError(t, u.WriteRuns(ctx, []usage.Run{open}))

	var all []tally.Bucket
	hold := func(job uint32, gpu string, until fairshare.Instant, change func(b *tally.Bucket)) {
		buckets := held(job, 0, gpu, 1, period(began, until))
		for i := range buckets {
			change(&buckets[i])
		}
		all = append(all, buckets...)
	}
	idle := func(since fairshare.Instant, watts int64) func(b *tally.Bucket) {
		return func(b *tally.Bucket) {
			b.Account, b.BusyKnown, b.Busy = "prolog", b.Held(), new(int64)
			b.EnergyKnown, b.Energy = b.Held(), new(watts*b.Held())
			if b.From < since { // it was at work
				b.Energy = new(700 * b.Held())
			}
			if b.Until > since {
				b.IdleSince = &since
			}
		}
	}
	hold(1, "idle", now, idle(now-90*minute, 90))
	hold(1, "shortly", now, idle(now-minute, 90))
	hold(1, "all-the-time", now, idle(began, 120))
	hold(1, "draws-power", now, idle(began, 400))
	hold(1, "warm", now, idle(began, 190))
	hold(1, "powerless", now, func(b *tally.Bucket) {
		b.BusyKnown, b.Busy = b.Held(), new(int64)
		if b.Until > began+minute { // not if it is just before the hour
			b.IdleSince = new(began + minute)
		}
	})
	hold(1, "unknown", now, func(*tally.Bucket) {})
	hold(1, "silent", now-6*minute, idle(began, 90))
	hold(1, "given-back", now, func(b *tally.Bucket) { idle(began, 90)(b); b.Ended = b.Until == now })
	hold(2, "no-record", now, idle(began+2*minute, 90))
	send(t, db, "titan", "n1", sign{gpus: 8, uuids: []string{"idle", "all-the-time", "warm"}}, all...)

	type found struct {
		gpu     string
		job     uint32
		account string
		cost    fairshare.GPUMillis
	}
	look := func(atLeast time.Duration, watts float64) (got []found) {
		list, err := s.Idle(ctx, "titan", time.Now(), atLeast, watts)
		require.NoError(t, err)
		for _, i := range list {
			got = append(got, found{i.GPU, i.JobID, i.Account, i.Cost})
			if i.GPU == "idle" {
				require.InDelta(t, 90, *i.Watts, 1, "what it drew while it was at work does not count")
				require.InDelta(t, 180, i.Working(), 1)
				require.Equal(t, int64(0), *i.Index)
				require.Equal(t, []any{"H200", "ann", began, now}, []any{i.Model, i.User, i.HeldFrom, i.Until})
			}
		}
		return got
	}
	const m = fairshare.GPUMillis(minute)
	listed := []found{{"all-the-time", 1, "seg", 180 * m}, {"powerless", 1, "seg", 179 * m}, {"no-record", 2, "prolog", 178 * m}, {"idle", 1, "seg", 90 * m}}
	// Idle H200s draw 90 W here, so that one of 190 W works; of the others nothing is
	// known but that 200 W are no idle GPU's.
	require.Equal(t, listed, look(10*time.Minute, 0))
	require.Equal(t, append(listed, found{"shortly", 1, "seg", m}), look(0, 0))
	require.Equal(t, slices.Insert(listed, 1, found{"warm", 1, "seg", 180 * m}), look(10*time.Minute, metered.WorkingWatts))
	require.Equal(t, []found{{"powerless", 1, "seg", 179 * m}}, look(100*time.Minute, 50))
	require.Len(t, look(10*time.Minute, 1000), 6, "power is let be what it will")
}

// What an idle GPU costs is what it is charged: by the weight of its type, from the
// instant on from which that holds, of a MIG instance or of shards their part of a GPU,
// and nothing while the job is suspended.
func TestIdleGPUsCostWhatTheyCountFor(t *testing.T) {
	db := pgtest.Pool(t)
	u, s := usage.NewStore(db), metered.NewStore(db)
	now := fairshare.At(time.Now().Add(-time.Second))
	began := now - 3*hours
	weigh := func(gpuType string, weight int, from fairshare.Instant) {
		_, err := db.Exec(ctx, `INSERT INTO gpubudget.ledger (cluster, kind, actor, gpu_type, weight, effective_from)
			VALUES ('titan', 'weight_set', 'test', $1, $2, $3)`, gpuType, weight, from.Time())
		require.NoError(t, err)
	}
	weigh("h100", 2000, began)
	weigh("h100", 4000, now-hours)

	var runs []usage.Run
	var all []tally.Bucket
	hold := func(job uint32, gpuType string, gpus, parts int64, change func(r *usage.Run)) {
		r := run("titan", job, 0, gpus, period(began, now))
		r.EndedAt, r.EndState, r.GPUType, r.Parts, r.Nodes = nil, "", gpuType, parts, "n1"
		change(&r)
		runs = append(runs, r)
		since := now - 2*hours
		for _, b := range held(job, 0, gpuType+strconv.Itoa(int(job)), 1, period(began, now)) {
			b.BusyKnown, b.Busy = b.Held(), new(int64)
			if b.Until > since {
				b.IdleSince = &since
			}
			all = append(all, b)
		}
	}
	nothing := func(*usage.Run) {}
	hold(1, "h100", 1, 0, nothing)
	hold(2, "a100", 4, 0, nothing)
	hold(3, "a100_3g.20gb", 1, 0, nothing)
	hold(4, "h100", 0, fairshare.Millionths/4, nothing)
	hold(5, "a100", 1, 0, func(r *usage.Run) { r.Suspended = time.Duration(hours) * time.Millisecond })
	require.NoError(t, u.WriteRuns(ctx, runs))
	send(t, db, "titan", "n1", sign{gpus: 8}, all...)

	list, err := s.Idle(ctx, "titan", time.Now(), 2*time.Hour, 0)
	require.NoError(t, err)
	got := map[uint32]fairshare.GPUMillis{}
	var order []uint32
	for i := range list {
		require.Equal(t, 2*time.Hour, list[i].For())
		got[list[i].JobID] = list[i].Cost
		order = append(order, list[i].JobID)
	}
	const h = fairshare.GPUMillis(hours)
	require.Equal(t, map[uint32]fairshare.GPUMillis{1: 6 * h, 2: 2 * h, 3: h, 4: 6 * h / 4, 5: 2 * 2 * h / 3}, got)
	require.Equal(t, []uint32{1, 2, 4, 5, 3}, order, "the dearest first")
}
