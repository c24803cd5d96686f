// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
)

// meet is a few passes over jobs, each with an exchange.
func (h *host) meet(s *slurm) {
	h.t.Helper()
	for range 3 {
		h.tick(s, time.Second)
		h.pass(s.list()...)
		require.NoError(h.t, h.exchange())
	}
}

// Who has jobs but is unknown to the ledger is told of once, and again only if
// he was known in between.
func TestStrangersAreToldOfOnce(t *testing.T) {
	h := hostOn(t)
	h.start()
	s, ctx, n := newSlurm(h.now), context.Background(), budgets.Note{Actor: "t", From: h.now}
	store := budgets.NewStore(h.pool)
	_, err := store.AddAccount(ctx, h.cluster, "open", fairshare.RootAccount, 0, n)
	require.NoError(t, err)
	s.submit("physics", "alice", 1, 4)
	s.submit("physics", "guest", 2, 4)
	s.submit("nowhere", "eve", 3, 4)
	s.submit("nowhere", "fay", 4, 4)
	s.submit("", "gus", 0, 4)
	s.submit("open", "eve", 5, 4) // it lists nobody
	s.submit("", "alice", 0, 4)   // in physics
	h.meet(s)
	h.meet(s)
	const physics = "user guest has jobs in account physics but is no member"
	require.Equal(t, 1, h.logged(physics), "%q", h.lines)
	require.Equal(t, 1, h.logged("account nowhere has jobs but is not open in the ledger"))
	require.Equal(t, 1, h.logged("user gus has jobs that name no account"))
	require.Equal(t, 3, h.logged("; see: gpubudget "))

	_, err = store.AddUser(ctx, h.cluster, "physics", "guest", fairshare.EqualPart, n)
	require.NoError(t, err)
	h.meet(s)
	_, err = store.RemoveUser(ctx, h.cluster, "physics", "guest", budgets.Note{Actor: "t", From: h.now})
	require.NoError(t, err)
	_, err = store.CloseAccount(ctx, h.cluster, "bio", budgets.Note{Actor: "t", From: h.now})
	require.NoError(t, err)
	s.submit("bio", "carol", 6, 4)
	h.meet(s)
	require.Equal(t, 2, h.logged(physics), "%q", h.lines)
	require.Equal(t, 1, h.logged("account bio has jobs but is not open in the ledger"))
	require.Equal(t, 5, h.logged("; see: gpubudget "))
	h.stop()
}

// However many strangers there are, the log stays readable.
func TestManyStrangers(t *testing.T) {
	h := hostOn(t)
	h.start()
	s := newSlurm(h.now)
	for i := range 2 * mostStrangers {
		s.submit(fmt.Sprintf("nowhere%d", i), "eve", uint32(10+i), 1)
	}
	h.meet(s)
	require.Equal(t, mostStrangers, h.logged("is not open in the ledger"))
	require.Equal(t, 1, h.logged("there are more accounts and users"))
	h.stop()
}

// With Slurm's shares a job without an association has factor 0, and one line
// says so for all of them.
func TestJobsWithoutAssociation(t *testing.T) {
	h := alone(t, "Shares=slurm")
	h.start()
	h.engine.Configure(fairshare.Weights{Fairshare: 900, Flags: fairshare.FairTreeFlag}, 1)
	for range 3 {
		h.goBySlurm()
		require.Equal(t, map[uint32]uint32{7: 900, 8: 1, 9: 1}, h.pass(h.of(7, 6), h.of(8, 0), h.of(9, 0)))
	}
	const line = "2 pending jobs have no association, such as JobId=8"
	require.Equal(t, 1, h.logged(line), "%q", h.lines)
	h.goBySlurm()
	h.pass(h.of(7, 6))
	h.goBySlurm()
	h.pass(h.of(8, 0), h.of(9, 0))
	require.Equal(t, 2, h.logged(line), "again, after there was none")
	h.stop()
}
