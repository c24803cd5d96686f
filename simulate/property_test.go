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
)

// drawConfig draws a small cluster with outages, jobs of all sorts and a policy.
func drawConfig(t *rapid.T) Config {
	var c Cluster
	for i := range rapid.IntRange(1, 2).Draw(t, "partitions") {
		c.Partitions = append(c.Partitions, Partition{string(rune('a' + i)), rapid.IntRange(1, 5).Draw(t, "nodes"), rapid.IntRange(1, 4).Draw(t, "gpus")})
	}
	for range rapid.IntRange(0, 3).Draw(t, "outages") {
		from := rapid.Int64Range(0, 20_000).Draw(t, "from")
		c.Outages = append(c.Outages, Outage{
			rapid.IntRange(0, c.Nodes()-1).Draw(t, "node"), from, from + rapid.Int64Range(1, 20_000).Draw(t, "for"), rapid.Bool().Draw(t, "drain"),
		})
	}
	w := &Workload{Begin: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)}
	for i := range rapid.IntRange(1, 6).Draw(t, "owners") {
		w.Owners = append(w.Owners, Owner{string(rune('p' + i%3)), string(rune('x' + i/3))})
	}
	if rapid.Bool().Draw(t, "limited") {
		for range w.Owners {
			w.Outstanding = append(w.Outstanding, rapid.IntRange(0, 8).Draw(t, "outstanding"))
		}
	}
	for range rapid.IntRange(1, 60).Draw(t, "jobs") {
		part := rapid.IntRange(0, len(c.Partitions)-1).Draw(t, "partition")
		p := c.Partitions[part]
		gpus := rapid.IntRange(1, p.GPUsPerNode).Draw(t, "size")
		if rapid.Bool().Draw(t, "wide") {
			gpus = p.GPUsPerNode * rapid.IntRange(1, p.Nodes).Draw(t, "whole nodes")
		}
		limit := rapid.Int64Range(1, 8000).Draw(t, "limit")
		w.Jobs = append(w.Jobs, Job{
			Submit: rapid.Int64Range(0, 20_000).Draw(t, "submit"), Run: rapid.Int64Range(0, 9000).Draw(t, "run"), Limit: limit,
			MinRuntime: rapid.SampledFrom([]int64{Undeclared, Undeclared, 0, 60, 600}).Draw(t, "min"),
			Owner:      int32(rapid.IntRange(0, len(w.Owners)-1).Draw(t, "owner")), GPUs: int32(gpus), Partition: int16(part),
			QOS: rapid.SampledFrom([]uint32{0, 0, 100}).Draw(t, "qos"), Debug: rapid.Bool().Draw(t, "debug"),
		})
	}
	w.Sort()
	policy, err := DefaultPolicy(rapid.SampledFrom(PolicyNames()).Draw(t, "policy"))
	require.NoError(t, err)
	policy.CalcInterval = time.Duration(rapid.IntRange(1, 600).Draw(t, "calc")) * time.Second
	policy.Checkpoint = time.Duration(rapid.IntRange(0, 1200).Draw(t, "checkpoint")) * time.Second
	policy.MinRuntime = time.Duration(rapid.IntRange(0, 1200).Draw(t, "minimum")) * time.Second
	policy.Lookback = time.Duration(rapid.IntRange(600, 20_000).Draw(t, "lookback")) * time.Second
	policy.LargeJob = rapid.IntRange(0, 8).Draw(t, "large")
	policy.Additive = rapid.Bool().Draw(t, "additive")
	budget := w.EqualBudget()
	if rapid.Bool().Draw(t, "granted") {
		a := &budget.Accounts[rapid.IntRange(0, len(budget.Accounts)-1).Draw(t, "account")]
		begin := fairshare.At(w.Begin) + fairshare.Instant(1000*rapid.Int64Range(0, 20_000).Draw(t, "grant from"))
		a.Grants = append(a.Grants, fairshare.Grant{
			Period: fairshare.Period{From: begin, Until: begin + fairshare.Instant(1000*rapid.Int64Range(1, 20_000).Draw(t, "grant for"))},
			Amount: fairshare.GPUMillis(rapid.Int64Range(1, 40_000_000).Draw(t, "grant")),
		})
		if rapid.Bool().Draw(t, "grant alone") {
			a.Share = Always(fairshare.Share(0))
		}
	}
	return Config{Workload: w, Cluster: c, Budget: budget, Policy: policy, Until: rapid.SampledFrom([]int64{0, 0, 10_000}).Draw(t, "until")}
}

// recorded is a run with all stints.
func recorded(t require.TestingT, cfg Config) (*Result, []Stint) {
	var stints []Stint
	cfg.Record = func(s Stint) {
		s.Pieces = slices.Clone(s.Pieces)
		stints = append(stints, s)
	}
	r, err := Run(cfg)
	require.NoError(t, err)
	return r, stints
}

func TestEveryRunKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		r, stints := recorded(t, cfg)
		noGPUIsUsedTwice(t, &cfg, stints)
		nothingRunsOnNodesThatAreAway(t, &cfg, stints)
		jobsRunWhole(t, &cfg, r, stints)
		gpuTimeAddsUp(t, &cfg, r, stints)
	})
}

// noGPUIsUsedTwice: at no instant do jobs hold more of a node than it has.
func noGPUIsUsedTwice(t require.TestingT, cfg *Config, stints []Stint) {
	type edge struct {
		at   int64
		gpus int
	}
	byNode := make(map[int32][]edge)
	for _, s := range stints {
		if s.Start == s.End {
			continue // it was evicted by who came in the same second
		}
		for _, p := range s.Pieces {
			require.Positive(t, p.GPUs)
			byNode[p.Node] = append(byNode[p.Node], edge{s.Start, int(p.GPUs)}, edge{s.End, -int(p.GPUs)})
		}
	}
	at := 0
	for _, part := range cfg.Cluster.Partitions {
		for range part.Nodes {
			edges := byNode[int32(at)]
			slices.SortFunc(edges, func(x, y edge) int {
				if x.at != y.at {
					return int(x.at - y.at)
				}
				return x.gpus - y.gpus
			})
			held := 0
			for _, e := range edges {
				held += e.gpus
				require.LessOrEqual(t, held, part.GPUsPerNode, "node %d at %d", at, e.at)
				require.GreaterOrEqual(t, held, 0)
			}
			at++
		}
	}
}

func nothingRunsOnNodesThatAreAway(t require.TestingT, cfg *Config, stints []Stint) {
	for _, o := range cfg.Cluster.Outages {
		for _, s := range stints {
			for _, p := range s.Pieces {
				if int(p.Node) != o.Node || s.End <= o.From || s.Start >= o.Until || s.Start == s.End {
					continue
				}
				require.True(t, o.Drain && s.Start < o.From, "job %d from %d to %d on node %d that is away from %d to %d", s.Job, s.Start, s.End, o.Node, o.From, o.Until)
			}
		}
	}
}

// jobsRunWhole: with all their GPUs or not at all, one stint after the other, not
// evicted before their time, and in the end for as long as they have to.
func jobsRunWhole(t require.TestingT, cfg *Config, r *Result, stints []Stint) {
	byJob := make(map[int][]Stint)
	for _, s := range stints {
		j := &cfg.Workload.Jobs[s.Job]
		var gpus int32
		for _, p := range s.Pieces {
			gpus += int32(p.GPUs)
		}
		require.Equal(t, j.GPUs, gpus, "job %d", s.Job)
		require.GreaterOrEqual(t, s.Start, j.Submit)
		if s.Ended == Preempted && s.Allocated {
			require.GreaterOrEqual(t, s.End, s.ProtectedUntil, "job %d was evicted within its protection", s.Job)
		}
		if s.Ended == Preempted {
			require.True(t, !s.Allocated || cfg.Policy.Contract != nil)
		}
		byJob[s.Job] = append(byJob[s.Job], s)
	}
	done := 0
	every := int64(cfg.Policy.Checkpoint.Seconds())
	for job, of := range byJob {
		j := &cfg.Workload.Jobs[job]
		saved := int64(0)
		for i, s := range of {
			if i > 0 {
				require.GreaterOrEqual(t, s.Start, of[i-1].End+int64(cfg.Policy.RequeueHold.Seconds()))
			}
			switch s.Ended {
			case Done:
				require.Equal(t, i, len(of)-1)
				require.Equal(t, min(max(j.Run-saved, 1), j.Limit), s.End-s.Start)
				done++
			case Preempted, NodeLost:
				if every > 0 {
					saved += (s.End - s.Start) / every * every
				}
			case Unfinished:
			}
		}
	}
	require.Equal(t, done, r.Finished)
	if cfg.Until == 0 {
		require.Equal(t, len(cfg.Workload.Jobs), r.Finished+r.Waiting+r.Withheld)
	}
}

// gpuTimeAddsUp: what jobs held is what was charged and what was not, to the
// second, and never more than there was.
func gpuTimeAddsUp(t require.TestingT, cfg *Config, r *Result, stints []Stint) {
	var charged, free float64
	for _, s := range stints {
		time := float64(cfg.Workload.Jobs[s.Job].GPUs) * float64(s.End-s.Start) / 3600
		if s.Allocated {
			charged += time
		} else {
			free += time
		}
	}
	require.InDelta(t, charged, r.AllocatedHours, 1e-6)
	require.InDelta(t, free, r.UnallocHours, 1e-6)
	require.LessOrEqual(t, r.Occupancy, 100+1e-9)
	require.InDelta(t, (charged+free)*100, r.Occupancy*r.CapacityHours, 1e-3)
	var delivered float64
	for _, a := range r.Accounts {
		delivered += a.Delivered
	}
	require.InDelta(t, charged, delivered, 1e-6)
}

func TestSameSeedSameBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		first, stints := recorded(t, cfg)
		second, again := recorded(t, cfg)
		a, err := json.Marshal(first)
		require.NoError(t, err)
		b, err := json.Marshal(second)
		require.NoError(t, err)
		require.Equal(t, string(a), string(b))
		require.Equal(t, stints, again)
	})
}

// A job that could run alone runs in the end, whatever the policy, if nothing is
// ever preempted or lost.
func TestNobodyIsForgotten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		cfg.Until, cfg.Cluster.Outages, cfg.Policy.Contract, cfg.Policy.Overflow = 0, nil, nil, false
		r, _ := recorded(t, cfg)
		require.Equal(t, len(cfg.Workload.Jobs), r.Finished)
	})
}

// What a gauge says of a window is what adding up second by second says.
func TestGauge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var g gauge
		var perSecond []int64
		now, gpus := int64(0), int64(0)
		length := rapid.Int64Range(1, 50).Draw(t, "window")
		for range rapid.IntRange(1, 40).Draw(t, "changes") {
			for range rapid.IntRange(0, 20).Draw(t, "seconds") {
				perSecond = append(perSecond, gpus)
				now++
			}
			var want int64
			for s := max(now-length, 0); s < now; s++ {
				want += perSecond[s]
			}
			require.Equal(t, want, g.within(now, length))
			more := rapid.Int64Range(-gpus, 5).Draw(t, "more")
			gpus += more
			g.add(now, more)
		}
	})
}

// Room that is promised if some jobs were gone is there once they are.
func TestRoomIfSomeWereGone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Cluster{Partitions: []Partition{{"a", rapid.IntRange(1, 6).Draw(t, "nodes"), rapid.IntRange(1, 4).Draw(t, "gpus")}}}
		ns := newNodes(&c)
		var jobs [][]Piece
		for range rapid.IntRange(0, 8).Draw(t, "jobs") {
			gpus := int32(rapid.IntRange(1, c.GPUs()).Draw(t, "size"))
			if ns.fits(0, gpus, true) {
				pieces := ns.place(0, gpus, true, nil)
				var sum int32
				for _, p := range pieces {
					sum += int32(p.GPUs)
				}
				require.Equal(t, gpus, sum)
				ns.takeAll(pieces)
				jobs = append(jobs, pieces)
			}
		}
		for node := range c.Nodes() {
			if rapid.IntRange(0, 3).Draw(t, "class") == 0 {
				ns.move(int32(node), class(rapid.IntRange(1, 2).Draw(t, "to")))
			}
		}
		gone := rapid.IntRange(0, len(jobs)).Draw(t, "gone")
		gpus := int32(rapid.IntRange(1, c.GPUs()).Draw(t, "wanted"))
		withHeld := rapid.Bool().Draw(t, "with held")
		ns.ask(0, gpus, withHeld)
		for _, pieces := range jobs[:gone] {
			ns.without(pieces)
		}
		promised := ns.room()
		ns.forget()
		for _, pieces := range jobs[:gone] {
			ns.giveBack(pieces)
		}
		require.Equal(t, ns.fits(0, gpus, withHeld), promised)
		if promised {
			var sum int32
			seen := map[int32]bool{}
			for _, p := range ns.place(0, gpus, withHeld, nil) {
				require.False(t, seen[p.Node])
				require.LessOrEqual(t, p.GPUs, ns.free[p.Node])
				seen[p.Node] = true
				sum += int32(p.GPUs)
			}
			require.Equal(t, gpus, sum)
		}
	})
}
