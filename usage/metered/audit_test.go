// SPDX-License-Identifier: GPL-2.0-or-later

package metered_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/usage"
	"gpubudget/usage/metered"
)

func TestNodes(t *testing.T) {
	for list, want := range map[string][]string{
		"n1":                 {"n1"},
		"n1,m[2-3]":          {"n1", "m2", "m3"},
		"gpu[08-10,7]":       {"gpu08", "gpu09", "gpu10", "gpu7"},
		"r[1-2]n[01-02]x":    {"r1n01x", "r1n02x", "r2n01x", "r2n02x"},
		"n[1":                {"n[1"},
		"n[3-1]":             {"n[3-1]"},
		"n[a]":               {"n[a]"},
		"n]1":                {"n]1"},
		"n[0-99999999]":      {"n[0-99999999]"},
		"n[1-300]m[1-90000]": {"n[1-300]m[1-90000]"},
		"":                   {""},
	} {
		require.Equal(t, want, metered.Nodes(list), list)
	}
}

// Everything in which Slurm's record and meters can differ is told, each for what
// it is, and nothing else.
func TestEveryDisagreementIsTold(t *testing.T) {
	db, start, now := pgtest.Pool(t), hour(), time.Now()
	u, s := usage.NewStore(db), metered.NewStore(db)
	lasts := func(job uint32, gpus int64, nodes string, p fairshare.Period) usage.Run {
		r := run("titan", job, 0, gpus, p)
		r.Nodes = nodes
		return r
	}
	hour := period(start, start+hours)
	require.NoError(t, u.WriteRuns(ctx, []usage.Run{
		lasts(1, 1, "n1", hour), lasts(2, 2, "n[1-2]", hour), lasts(3, 1, "n3", hour), lasts(4, 1, "n1", hour), lasts(5, 0, "n1", hour),
		lasts(6, 1, "n3", period(start, start+minute)),
	}))
	require.NoError(t, u.WriteCapacity(ctx, "titan", hour.From.Time(), fairshare.Holding{GPUs: 20}))
	send(t, db, "titan", "n1", sign{gpus: 8}, slices.Concat(
		held(1, 0, "GPU-0", 1, period(start+second, hour.Until+second)), // as it should be
		held(2, 0, "GPU-1", 1, hour),                                    // nothing of its other node
		held(4, 0, "GPU-2", 1, period(start, start+20*minute)),          // then the agent was away
		held(4, 0, "GPU-2", 2, period(start+30*minute, hour.Until)),     //
		held(4, 0, "GPU-3", 2, period(start+40*minute, hour.Until)),     // Slurm says one
		held(5, 0, "GPU-4", 1, hour),                                    // a job on shards
		held(9, 0, "GPU-5", 1, period(start, start+5*minute)),           // nobody knows it
	)...)
	send(t, db, "titan", "n2", sign{gpus: 8, state: "no driver"})
	send(t, db, "titan", "n4", sign{gpus: 2, uuids: []string{"a", "b"}, skew: 90 * time.Second})
	_, err := db.Exec(ctx, "UPDATE gpubudget.agent SET seen_at = seen_at - interval '6 minutes' WHERE node = 'n4'")
	require.NoError(t, err)

	a, err := s.Audit(ctx, "titan", period(start-hours, start+2*hours), now, metered.DefaultTolerance, "")
	require.NoError(t, err)
	type told struct {
		kind   metered.Kind
		job    uint32
		nodes  string
		gpu    string
		amount fairshare.GPUMillis
	}
	var got []told
	for _, d := range a.Disagreements {
		got = append(got, told{d.Kind, d.JobID, d.Nodes, d.GPU, d.Amount})
		require.NotEmpty(t, d.Why)
	}
	const m = fairshare.GPUMillis(minute)
	require.Equal(t, []told{
		{metered.NoAgent, 0, "", "", 0},
		{metered.Silent, 0, "n4", "", 0},
		{metered.Unmeasured, 0, "n2", "", 0},
		{metered.NoMeter, 3, "n3", "", 60 * m},
		{metered.Missing, 2, "n2", "", 60 * m},
		{metered.Missing, 4, "n1", "", 10 * m},
		{metered.TooMany, 4, "n1", "", 20 * m},
		{metered.NoRun, 9, "n1", "GPU-5", 5 * m},
	}, got)

	type node struct {
		name          string
		used, covered fairshare.GPUMillis
	}
	var nodes []node
	for _, n := range a.Nodes {
		nodes = append(nodes, node{n.Name, n.Used, n.Covered})
	}
	require.Equal(t, []node{
		{"n1", 180 * m, 170 * m}, {"n2", 60 * m, 0}, {"n3", 61 * m, 0}, {"n4", 0, 0},
	}, nodes)
	require.Equal(t, 301*m, a.Used)
	require.Equal(t, 170*m, a.Covered)
	require.InDelta(t, 90, a.Nodes[3].Agent.Skew.Seconds(), 60)

	// Of one node.
	a, err = s.Audit(ctx, "titan", period(start-hours, start+2*hours), now, metered.DefaultTolerance, "n2")
	require.NoError(t, err)
	require.Len(t, a.Nodes, 1)
	require.Len(t, a.Disagreements, 2)
	require.Equal(t, []fairshare.GPUMillis{60 * m, 0}, []fairshare.GPUMillis{a.Used, a.Covered})
}
