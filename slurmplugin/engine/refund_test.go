// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
)

// A refund in the ledger takes the charge out of what priorities are made from, to
// the millisecond, while the window slides on over both, and also in an engine
// that starts with the snapshot file only.
func TestARefundTakesTheChargeBack(t *testing.T) {
	h := hostOn(t)
	h.start()
	s := newSlurm(h.now)
	lost, kept := s.submit("physics", "alice", 1, 4), s.submit("physics", "bob", 2, 4)
	s.start(lost)
	s.start(kept)
	h.pass(s.list()...)
	h.tick(s, 100*time.Second)
	s.complete(lost, NodeFail)
	s.complete(kept, Complete)
	h.pass(s.list()...)
	require.NoError(t, h.exchange())
	h.pass(s.list()...)
	used := func() (physics, alice fairshare.GPUMillis, level float64) {
		a, _ := h.engine.ranking.Account("physics")
		u, _ := h.engine.ranking.User("physics", "alice")
		return a.Used, u.Used, u.LevelFS
	}
	physics, alice, level := used()
	require.Equal(t, []fairshare.GPUMillis{2 * 400_000, 400_000}, []fairshare.GPUMillis{physics, alice})
	require.InDelta(t, 1, level, 1e-9)

	start, end := h.now.Add(-100*time.Second), h.now
	_, err := budgets.NewStore(h.pool).Refund(context.Background(), "titan", budgets.Lost{
		Job: lost.id, Start: start, Account: "physics", User: "alice", Amount: 400_000,
	}, budgets.Note{Actor: "test", From: start, Until: &end})
	require.NoError(t, err)
	refunded := func() {
		t.Helper()
		physics, alice, level := used()
		require.Equal(t, []fairshare.GPUMillis{400_000, 0}, []fairshare.GPUMillis{physics, alice})
		require.Equal(t, math.Inf(1), level)
	}
	require.NoError(t, h.exchange())
	h.pass(s.list()...)
	refunded()
	h.stop()

	h.configure(deadDSN)
	h.start()
	h.pass(s.list()...)
	refunded()
	// Where the window's edge cuts the run it cuts both.
	h.now = start.Add(7*24*time.Hour + 33*time.Second)
	h.pass()
	physics, alice, _ = used()
	require.Equal(t, []fairshare.GPUMillis{4 * 67_000, 0}, []fairshare.GPUMillis{physics, alice})
	h.stop()
}
