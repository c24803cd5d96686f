// SPDX-License-Identifier: GPL-2.0-or-later

package usage_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/pgtest"
	"gpubudget/usage"
)

func preemption(job uint32, at time.Time) usage.Preemption {
	until := at.Add(-time.Minute)
	return usage.Preemption{
		Cluster: "titan", At: at, Rule: "R3", Mode: "requeue", StartedAt: at.Add(-time.Hour), ProtectedUntil: &until,
		Job: usage.Party{JobID: job, Restart: 2, Account: "vision", User: "ann", GPUs: 8, Allocated: true, MinRuntime: 59 * time.Minute,
			QOSPriority: 5, Nice: -3, Ratio: new(0.5), Rank: 7},
		For: &usage.Party{JobID: 99, Account: "speech", User: "bob", GPUs: 4, Allocated: true, MinRuntime: time.Hour,
			QOSPriority: 6, Nice: 4, Ratio: new(math.Inf(1)), Rank: 1},
	}
}

func TestPreemptions(t *testing.T) {
	ctx := context.Background()
	s := usage.NewStore(pgtest.Pool(t))
	at := time.Date(2026, 10, 12, 9, 0, 0, 123e6, time.UTC)
	full := preemption(7, at)
	drained := usage.Preemption{
		Cluster: "titan", At: at.Add(time.Second), Rule: usage.Drain, Node: "n1", StartedAt: at,
		Job: usage.Party{JobID: 8, Account: "", User: "0", GPUs: 1},
	}
	other := preemption(7, at)
	other.Cluster = "rhea"
	all := []usage.Preemption{full, drained, other}
	require.NoError(t, s.WritePreemptions(ctx, nil))
	require.NoError(t, s.WritePreemptions(ctx, all))

	got, err := s.Preemptions(ctx, "titan", at)
	require.NoError(t, err)
	require.Equal(t, []usage.Preemption{full, drained}, got)
	got, err = s.Preemptions(ctx, "titan", at.Add(time.Millisecond))
	require.NoError(t, err)
	require.Equal(t, []usage.Preemption{drained}, got)
	for _, job := range []uint32{7, 99} {
		got, err = s.PreemptionsOf(ctx, "titan", job)
		require.NoError(t, err)
		require.Equal(t, []usage.Preemption{full}, got)
	}

	// Repeated, late, in any order: the earliest about a run is what is kept.
	earlier, later := preemption(7, at.Add(-time.Second)), preemption(7, at.Add(time.Second))
	earlier.StartedAt, later.StartedAt = full.StartedAt, full.StartedAt
	earlier.Rule = "R1"
	require.NoError(t, s.WritePreemptions(ctx, []usage.Preemption{later, earlier, full, earlier}))
	got, err = s.PreemptionsOf(ctx, "titan", 7)
	require.NoError(t, err)
	require.Equal(t, []usage.Preemption{earlier}, got)

	wrong := preemption(9, at)
	wrong.Rule = "whim"
	require.ErrorContains(t, s.WritePreemptions(ctx, []usage.Preemption{preemption(10, at), wrong}), "preemption_rule_check")
	got, err = s.PreemptionsOf(ctx, "titan", 10)
	require.NoError(t, err)
	require.Empty(t, got, "all or none")
}
