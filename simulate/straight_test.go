// SPDX-License-Identifier: GPL-2.0-or-later

package simulate

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// straightVictims asks the rules about every job that runs in the partition and
// leaves the choice to them.
func straightVictims(s *sim) func(*fairshare.Contract, *lane, *fairshare.Request, bool) []int {
	return func(rules *fairshare.Contract, l *lane, request *fairshare.Request, withHeld bool) []int {
		c := &s.scratch.candidates
		c.occupants, c.slots, c.rules = nil, nil, nil
		var running []int32
		running = append(running, s.free[l.part]...)
		for _, a := range s.standing.worst {
			for _, d := range s.accounts[a].guarded {
				running = append(running, d.slot())
			}
		}
		for _, n := range running {
			sl := &s.slots[n]
			o := fairshare.Occupant{
				Account: s.names[sl.account], GPUs: int64(sl.gpus), Allocated: sl.allocated,
				ProtectedUntil: s.instant(sl.protectedUntil), QOSPriority: s.jobs[sl.job].QOS,
			}
			if sl.allocated {
				o.Ahead = usage.ChargeAhead(o.GPUs*fairshare.Millionths, s.p.Lookback)
				if sl.record >= 0 {
					o.Preempted = s.records.all[sl.record].today(s.now)
				}
			}
			if d := rules.Decide(s.standing.ranking, s.instant(s.now), request, &o); d.Yields && sl.part == l.part {
				c.occupants, c.slots, c.rules = append(c.occupants, o), append(c.slots, n), append(c.rules, d.Rule)
			}
		}
		return rules.Victims(s.standing.ranking, s.instant(s.now), request, c.occupants, func(gone []int) bool {
			s.nodes.ask(l.part, l.gpus, withHeld)
			for _, i := range gone {
				s.nodes.without(s.slots[c.slots[i]].pieces)
			}
			defer s.nodes.forget()
			return s.nodes.room()
		})
	}
}

// straightly runs without any short cut.
func straightly(t require.TestingT, cfg Config) (*Result, []Stint) {
	var stints []Stint
	cfg.Record = func(st Stint) {
		st.Pieces = slices.Clone(st.Pieces)
		stints = append(stints, st)
	}
	require.Empty(t, cfg.Workload.Misfits(&cfg.Cluster, cfg.Budget))
	s := newSim(&cfg)
	s.search, s.straight = straightVictims(s), true
	s.run()
	return s.result(), stints
}

func requireSame(t require.TestingT, cfg Config) {
	want, wanted := straightly(t, cfg)
	got, stints := recorded(t, cfg)
	require.Equal(t, len(wanted), len(stints)) //nolint:testifylint // which would print them all
	for i := range wanted {
		require.Equal(t, wanted[i], stints[i], "stint %d", i)
	}
	a, err := json.Marshal(want)
	require.NoError(t, err)
	b, err := json.Marshal(got)
	require.NoError(t, err)
	require.JSONEq(t, string(a), string(b))
}

// What makes the simulator fast changes nothing.
func TestShortCutsChangeNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { requireSame(t, drawConfig(t)) })
}

// The same with load enough that every job waits and most of them yield.
func TestShortCutsChangeNothingUnderLoad(t *testing.T) {
	for _, policy := range PolicyNames() {
		t.Run(policy, func(t *testing.T) {
			g := DefaultGenerator()
			g.GPUs, g.Days, g.Accounts, g.LargestJob, g.Load, g.Unallocated = 64, 4, 5, 32, 2, 0.3
			w, budget, err := g.Generate()
			require.NoError(t, err)
			p, err := DefaultPolicy(policy)
			require.NoError(t, err)
			p.LargeJob, p.BackfillDepth = 16, 40
			if p.Contract != nil {
				rules := *p.Contract
				rules.PatientGPUs, rules.Patience = 16, 10*time.Minute
				p.Contract = &rules
			}
			requireSame(t, Config{
				Workload: w, Budget: budget, Policy: p, Until: w.Span() + 1,
				Cluster: Cluster{Partitions: []Partition{{Nodes: 8, GPUsPerNode: 8}}},
			})
		})
	}
}
