// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// straightly considers all that run without leaving out anything: the rules are
// asked about every component with all that there is to say of it, with the GPUs and
// the advance of its job, and a job yields if all its components do.
func (e *Engine) straightly(r *fairshare.Ranking, q *fairshare.Request, occupants []Occupant, now fairshare.Instant) map[int]fairshare.Decision {
	rules, keeps, said := e.rules(), map[uint32]bool{}, map[int]fairshare.Decision{}
	gpus, ahead := map[uint32]int64{}, map[uint32]map[string]fairshare.GPUMillis{}
	advance := func(r *run) fairshare.GPUMillis { return usage.ChargeAhead(r.RateAt(now), e.snapshot.Policy.Lookback) }
	for i := range occupants {
		o := &occupants[i]
		rec := e.tracker.jobs[o.JobID]
		if o.HetJobID == 0 || o.GPUs == 0 || !rec.run.Allocated {
			continue
		}
		if ahead[o.HetJobID] == nil {
			ahead[o.HetJobID] = map[string]fairshare.GPUMillis{}
		}
		gpus[o.HetJobID] += rec.run.GPUs
		ahead[o.HetJobID][rec.run.Account] += advance(rec.run)
	}
	for i := range occupants {
		o := &occupants[i]
		job := o.HetJobID
		if job == 0 {
			job = o.JobID
		}
		if o.GPUs == 0 && o.HetJobID != 0 {
			said[i] = fairshare.Decision{Yields: true}
			continue
		}
		rec := e.tracker.jobs[o.JobID]
		if o.GPUs == 0 || rec == nil || rec.run == nil || rec.run.origin != o.Start {
			keeps[job] = true
			continue
		}
		run := rec.run
		until, ok := run.ProtectedUntil(now.Time())
		if !ok {
			until = run.StartedAt
		}
		occupant := fairshare.Occupant{
			Account: run.Account, GPUs: run.GPUs, Allocated: run.Allocated, ProtectedUntil: fairshare.At(until),
			Ahead: advance(run), QOSPriority: o.QOSPriority, Nice: o.Nice, Preempted: len(e.contract.evictions[o.JobID]),
		}
		if o.HetJobID != 0 {
			occupant.GPUs, occupant.Ahead = gpus[o.HetJobID], ahead[o.HetJobID][run.Account]
		}
		said[i] = rules.Decide(r, now, q, &occupant)
		if !said[i].Yields {
			keeps[job] = true
		}
	}
	for i := range occupants {
		if keeps[occupants[i].JobID] || keeps[occupants[i].HetJobID] {
			delete(said, i)
		}
	}
	return said
}

// drawOccupants are most of some jobs: components of het jobs, others without GPUs,
// or in a run that nobody has seen.
func (c *contested) drawOccupants(t *rapid.T, jobs []*simJob, now fairshare.Instant) (occupants []Occupant, pieces []Piece) {
	for _, j := range jobs {
		if rapid.IntRange(0, 9).Draw(t, "left out") == 0 {
			continue
		}
		o := Occupant{JobID: j.id, Start: j.start, GPUs: j.gpus, QOSPriority: rapid.Uint32Range(0, 1).Draw(t, "qos")}
		if rapid.IntRange(0, 2).Draw(t, "het") == 0 {
			o.HetJobID = rapid.Uint32Range(9000, 9003).Draw(t, "of")
		}
		if rapid.IntRange(0, 9).Draw(t, "none") == 0 {
			o.GPUs = 0
		}
		o.Start += int64(rapid.IntRange(0, 20).Draw(t, "another run") / 20)
		c.engine.contract.evictions[j.id] = evicted(rapid.IntRange(0, 4).Draw(t, "evicted"), now)
		pieces = append(pieces, Piece{uint32(len(occupants)), uint32(c.where[j.id]), fairshare.Room{int64(o.GPUs), 1}})
		occupants = append(occupants, o)
	}
	return occupants, pieces
}

// What is left out of the question because it can't matter doesn't.
func TestWhoYieldsIsWhatTheRulesSayOfEach(t *testing.T) {
	c := contest(t)
	accounts := []struct{ account, user string }{{"physics", "alice"}, {"physics", "bob"}, {"bio", "carol"}, {"idle", "dora"}}
	runs := []int{0, 1, 0, 2, 1, 0, 1, 3} // physics has used most
	var jobs []*simJob
	for i := range 32 {
		by := accounts[runs[i%len(runs)]]
		jobs = append(jobs, c.run(i%4, by.account, by.user, int64(i%5)*200, uint64(1+i%3)))
	}
	c.see(time.Second)
	for i, j := range jobs {
		if i%7 == 0 {
			c.slurm.suspend(j)
		}
	}
	c.see(300 * time.Second)
	for i, j := range jobs {
		if i%14 == 0 {
			c.slurm.resume(j)
		}
	}
	yielded := map[fairshare.Rule]int{}
	rapid.Check(t, func(t *rapid.T) {
		c.see(time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds")) * time.Second)
		now := fairshare.Instant(c.ms())
		c.engine.contract.ask(1, now) // as there is one
		occupants, pieces := c.drawOccupants(t, jobs, now)
		if len(occupants) == 0 {
			return
		}
		by := accounts[rapid.SampledFrom([]int{0, 2}).Draw(t, "by")]
		ask := c.request(by.account, by.user, 300, 2)
		ask.QOSPriority = 1
		q, _ := c.engine.requestOf(ask, now)
		ranking := c.engine.contracted()
		p := &Placing{Pieces: &pieces[0], Occupants: &occupants[0], PieceCount: uint32(len(pieces)), OccupantCount: uint32(len(occupants))}

		want := c.engine.straightly(ranking, &q, occupants, now)
		found := c.engine.consider(ranking, &q, p, now)
		got := map[int]bool{}
		for k := range found.whole {
			members := slices.Collect(found.members(k))
			require.Len(t, found.pieces[k], len(members))
			for _, i := range members {
				require.Contains(t, want, i)
				got[i] = true
				if len(members) == 1 {
					require.Equal(t, want[i].Rule, found.whole[k].rule)
				}
			}
			yielded[found.whole[k].rule]++
		}
		for i, d := range want {
			if d.Rule != fairshare.NoRule { // a component without GPUs may be all there is
				require.True(t, got[i], "occupant %d yields by R%d", i, d.Rule)
			}
		}
	})
	require.Positive(t, yielded[fairshare.R1])
	require.Positive(t, yielded[fairshare.R3])
	require.Positive(t, yielded[fairshare.R4])
}
