// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

// allDemand is what was recorded of an account's demand, in GPU-seconds.
func (h *host) allDemand(account string) (pending, running int64) {
	h.t.Helper()
	require.NoError(h.t, h.pool.QueryRow(context.Background(), `SELECT coalesce(sum(pending_ms), 0) / 1000, coalesce(sum(running_ms), 0) / 1000
		FROM gpubudget.demand_bucket WHERE account = $1`, account).Scan(&pending, &running))
	return pending, running
}

// Whichever way the clock is set, and back, a line says so, priorities stay what
// they are, and demand is what was asked for in the time that really passed.
func TestAClockThatIsSet(t *testing.T) {
	for name, by := range map[string]time.Duration{
		"back an hour": -time.Hour, "back a day": -24 * time.Hour, "ahead an hour": time.Hour, "ahead a month": 30 * 24 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			h := hostOn(t)
			h.start()
			s := newSlurm(h.now)
			first := s.submit("physics", "alice", 1, 4)
			s.submit("bio", "carol", 2, 2)
			h.meet(s)
			s.start(first)
			h.meet(s)
			before := h.pass(s.list()...)

			h.setClock(s, by)
			h.meet(s)
			require.Equal(t, before, h.pass(s.list()...))
			require.Equal(t, 1, h.logged("the clock was set "), "%q", h.lines)
			h.setClock(s, -by)
			h.meet(s)
			require.Equal(t, before, h.pass(s.list()...))
			require.Equal(t, 2, h.logged("the clock was set "))

			h.tick(s, time.Second)
			s.complete(first, Complete)
			h.meet(s)
			pending, running := h.allDemand("physics")
			require.Equal(t, []int64{4 * 2, 4 * 10}, []int64{pending, running})
			pending, running = h.allDemand("bio")
			require.Equal(t, []int64{2 * 15, 0}, []int64{pending, running})
			physics, ok := h.engine.ranking.Account("physics")
			require.True(t, ok)
			require.Equal(t, fairshare.GPUMillis(4*10*1000), physics.Used)
			h.stop()
		})
	}
}

// A clock that is only slewed, or a pass that comes late, is nothing to tell.
func TestALatePassIsNoJump(t *testing.T) {
	h := hostOn(t)
	h.start()
	s := newSlurm(h.now)
	h.tick(s, time.Second)
	h.pass()
	h.tick(s, time.Hour)
	h.pass()
	h.setClock(s, 9*time.Second)
	h.pass()
	h.setClock(s, -9*time.Second)
	h.pass()
	require.Zero(t, h.logged("the clock"))
	h.stop()
}

// What is seen after the clock was set back counts, of runs and of capacity,
// although it seems to be older than what is known.
func TestWhatIsSeenAfterTheClockWasSetBackCounts(t *testing.T) {
	h := hostOn(t)
	h.start()
	s := newSlurm(h.now)
	j := s.submit("physics", "alice", 1, 4)
	h.setClock(s, 24*time.Hour)
	s.start(j)
	h.meet(s)
	h.setClock(s, -24*time.Hour)
	h.tick(s, 10*time.Second)
	h.meet(s)
	steps := h.engine.tracker.capacity
	require.NotEmpty(t, steps)
	require.LessOrEqual(t, steps[len(steps)-1].at, fairshare.At(h.now))
	h.stop()
}
