// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

// A component of a het job for which there is room has nobody offered, not even to spare.
func TestAComponentWithRoomHasNobodyEvicted(t *testing.T) {
	c := contest(t)
	for range 8 {
		c.run(1, "physics", "alice", 0, 1)
	}
	c.see(time.Second)
	ask := c.request("bio", "carol", 300, 4)
	require.NotEmpty(t, c.candidatesWith(ask, 0, 4))
	ask.HetJobID = 1
	require.Empty(t, c.candidatesWith(ask, 0, 4))
	require.NotEmpty(t, c.candidatesWith(ask, 0, 3))
	var offered int
	for range 2 * turnOfRoom {
		if len(c.candidatesWith(ask, 0, 4)) > 0 {
			offered++
		}
	}
	require.Equal(t, 2*roomDoubted, offered, "Slurm may know why it can't use that room")
}

// A request that never starts has others evicted twice, and from then on more and more
// rarely; the components of a het job are one request.
func TestNobodyGoesInVainAgainAndAgain(t *testing.T) {
	for name, het := range map[string]uint32{"a job": 0, "a het job": 1} {
		t.Run(name, func(t *testing.T) {
			c := contest(t)
			job := c.run(0, "physics", "alice", 0, 8)
			var asks []*Job
			for id := uint32(1); id <= 2; id++ {
				ask := c.request("bio", "carol", 300, 4)
				ask.JobID, ask.HetJobID = id, het
				asks = append(asks, ask)
			}
			if het == 0 {
				asks = asks[:1]
			}
			c.see(time.Second)
			var rounds []time.Duration
			for at := time.Duration(0); at < 4*time.Hour; at += 30 * time.Second {
				gone := false
				for _, ask := range asks {
					for _, id := range c.candidates(ask) {
						c.engine.Preempted(id, ask.JobID, true, c.ms())
						gone = true
					}
				}
				if gone { // and somebody else is there at once
					rounds = append(rounds, at)
					c.slurm.requeue(job)
					c.slurm.clean(job)
					job = c.run(0, "physics", "alice", 0, 8)
				}
				c.see(30 * time.Second)
			}
			var minutes []float64
			for _, at := range rounds {
				minutes = append(minutes, at.Minutes())
			}
			require.Equal(t, []float64{0, 0.5, 2.5, 6.5, 14.5, 30.5, 62.5, 122.5, 182.5}, minutes)
		})
	}
}

// A round of each of the tasks that an array's request stands for is not in vain.
func TestPauses(t *testing.T) {
	for _, tc := range []struct {
		rounds int
		tasks  uint32
		want   time.Duration
	}{
		{0, 1, 0},
		{1, 1, 0},
		{2, 1, 2 * time.Minute},
		{3, 1, 4 * time.Minute},
		{6, 1, 32 * time.Minute},
		{7, 1, time.Hour},
		{1000, 1, time.Hour},
		{19, 10, 0},
		{20, 10, 2 * time.Minute},
		{2, 0, 2 * time.Minute},
	} {
		tries := tries{rounds: tc.rounds, last: 1000}
		over := 1000 + tc.want.Milliseconds()
		if tc.want > 0 {
			require.True(t, tries.pausing(tc.tasks, fairshare.Instant(over-1)), tc)
		}
		require.False(t, tries.pausing(tc.tasks, fairshare.Instant(over)), tc)
	}
}
