// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"math"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/conf"
	"gpubudget/fairshare"
)

// slurmTree is a small tree of Slurm's: two accounts of equal shares, alice and
// bob in the first, which used more, carol in the second.
func slurmTree() []SlurmAssoc {
	return []SlurmAssoc{
		{ID: 1, Usage: 100},
		{ID: 2, Parent: 0, Shares: 1, Usage: 75},
		{ID: 3, Parent: 0, Shares: 1, Usage: 25},
		{ID: 4, Parent: 1, Shares: 1, Usage: 75, Flags: AssocUser},
		{ID: 5, Parent: 1, Shares: 1, Flags: AssocUser},
		{ID: 6, Parent: 2, Shares: 1, Usage: 25, Flags: AssocUser},
	}
}

// goBySlurm is what the shim does before a pass; it returns the tree with how
// all stand.
func (h *host) goBySlurm() []SlurmAssoc {
	h.t.Helper()
	require.True(h.t, h.engine.GoesBySlurm())
	tree := slurmTree()
	require.NoError(h.t, h.engine.SlurmShares(tree))
	return tree
}

func (h *host) of(id, assoc uint32) Job {
	return h.pending(id, "", "", func(j *Job, in *fairshare.Job) { j.AssocID, in.Age = assoc, -1 })
}

// alone is a host without any database.
func alone(t *testing.T, lines string) *host {
	t.Helper()
	h := &host{t: t, dir: t.TempDir(), cluster: "titan", now: begin}
	require.NoError(t, os.WriteFile(h.confPath(), []byte(lines), 0o600))
	return h
}

func TestPrioritiesBySlurmsShares(t *testing.T) {
	h := alone(t, "Shares=slurm")
	h.start()
	weights := fairshare.Weights{Fairshare: 900, QOS: 50, Flags: fairshare.FairTreeFlag}
	h.engine.Configure(weights, 1)
	tree := h.goBySlurm()
	require.Equal(t, []float64{0.75, 0.25}, []float64{tree[1].UsageEffective, tree[2].UsageEffective})
	require.Equal(t, math.MaxFloat64, tree[4].LevelFS, "no infinity leaves the bridge")
	require.Equal(t, []float64{1. / 3, 2. / 3, 1}, []float64{tree[3].Factor, tree[4].Factor, tree[5].Factor})

	other := h.of(13, 5)
	h.inputs[13].QOSFactor = 1
	got := h.pass(h.of(11, 4), h.of(12, 6), other, h.of(14, 77))
	require.Equal(t, map[uint32]uint32{11: 300, 12: 900, 13: 650, 14: 1}, got)
	fresh := h.of(15, 5)
	require.Equal(t, uint32(600), h.score(&fresh).Priority)

	weights.Flags, weights.Damping = 0, 2
	h.engine.Configure(weights, 1)
	tree = h.goBySlurm()
	require.Zero(t, tree[5].Factor, "sshare works it out")
	require.Equal(t, uint32(900*math.Exp2(-0.25/0.5/2)), h.pass(h.of(12, 6))[12])

	require.Error(t, h.engine.SlurmShares([]SlurmAssoc{{ID: 1}, {ID: 2, Parent: 2}}), "no tree")
}

func TestFairTreeTiesFollowTheConfiguration(t *testing.T) {
	for ties, want := range map[conf.Ties][]float64{conf.TiesMerge: {1. / 3, 1, 2. / 3}, conf.TiesSlurm: {2. / 3, 1, 2. / 3}} {
		h := alone(t, "Shares=slurm\nFairTreeTies="+string(ties))
		h.start()
		h.engine.Configure(fairshare.Weights{Flags: fairshare.FairTreeFlag}, 1)
		require.True(t, h.engine.GoesBySlurm())
		tree := []SlurmAssoc{
			{Usage: 40}, {Shares: 1, Usage: 20}, {Shares: 1, Usage: 20},
			{Parent: 1, Shares: 1, Usage: 15, Flags: AssocUser}, {Parent: 1, Shares: 1, Usage: 5, Flags: AssocUser},
			{Parent: 2, Shares: 8, Usage: 20, Flags: AssocUser},
		}
		require.NoError(t, h.engine.SlurmShares(tree))
		require.Equal(t, want, []float64{tree[3].Factor, tree[4].Factor, tree[5].Factor}, ties)
	}
}

// Without a DSN nothing is recorded, written or connected to, and nothing said
// but that once.
func TestSlurmsSharesNeedNoDatabase(t *testing.T) {
	h := alone(t, "Shares=slurm")
	t.Setenv("PGHOST", h.dir) // would have it look for a server there
	e, err := Start(h.describe())
	require.NoError(t, err)
	h.engine = e
	s := newSlurm(h.now)
	s.start(s.submit("physics", "alice", 1, 8))
	for range 3 {
		h.goBySlurm()
		h.pass(s.list()...)
		h.tick(s, time.Minute)
	}
	s.complete(s.jobs[0], Complete)
	e.Sight(&s.list()[0], h.ms())
	h.pass(s.list()...)
	time.Sleep(2 * leastGap) // for a refresher that should not
	require.NoError(t, e.Stop())

	require.Len(t, h.lines, 2, "%q", h.lines)
	require.Equal(t, 1, h.logged("there is no DSN in "+h.confPath()+", so nothing is recorded"))
	files, err := os.ReadDir(h.dir)
	require.NoError(t, err)
	require.Len(t, files, 1, "only gpubudget.conf")
}

// From Slurm's shares to the ledger's and back, on reconfigure: with a DSN all
// that runs is recorded meanwhile, and a shadow of the ledger is logged.
func TestMigrationToTheLedgerAndBack(t *testing.T) {
	h := hostOn(t)
	h.configure(h.dsn, "Shares=slurm", "Shadow=yes")
	h.start()
	h.engine.Configure(fairshare.Weights{Fairshare: 900, Flags: fairshare.FairTreeFlag}, 1)
	s := newSlurm(h.now)
	s.start(s.submit("physics", "alice", 1, 8))
	h.goBySlurm()
	h.pass(s.list()...)
	h.tick(s, time.Minute)
	h.goBySlurm()
	require.Equal(t, uint32(900), h.pass(append(s.list(), h.of(12, 6))...)[12])
	h.engine.Standings([]Assoc{
		{ID: 2, Account: NewCString("physics")},
		{ID: 4, Account: NewCString("physics"), User: NewCString("alice")},
		{ID: 5, Account: NewCString("physics"), User: NewCString("bob")},
	})
	require.NoError(t, h.exchange())
	require.Equal(t, 1, h.logged("shadow: by the ledger account bio has rank 1, level fair share +Inf"), "%q", h.lines)
	require.Equal(t, 1, h.logged("shadow: by the ledger account physics has rank 2"))
	require.Equal(t, 1, h.logged("; by Slurm's shares it has level fair share 0.666667 and fair-share factor 0.333333"), "%q", h.lines)
	require.Equal(t, 2, h.logged("; by Slurm's shares it is not there"), "bio and idle: %q", h.lines)

	switchTo := func(lines ...string) {
		h.configure(h.dsn, lines...)
		h.engine.Configure(fairshare.Weights{Fairshare: 900, Flags: fairshare.FairTreeFlag}, 1)
		require.NoError(t, h.exchange())
		require.True(t, h.engine.Wanted())
	}
	switchTo("Shares=ledger")
	require.False(t, h.engine.GoesBySlurm())
	got := h.pass(append(s.list(), h.pending(12, "bio", "carol", nil), h.pending(13, "idle", "dora", nil))...)
	require.Greater(t, got[12], got[13])
	require.Positive(t, got[13])
	require.NotEqual(t, uint32(900), got[12], "packed, not a weighted sum")

	switchTo("Shares=slurm")
	h.goBySlurm()
	require.Equal(t, uint32(900), h.pass(append(s.list(), h.of(12, 6))...)[12])
	h.stop()
}

// A database that comes to an engine which began without: nothing is amiss.
func TestADatabaseIsAddedLater(t *testing.T) {
	h := hostOn(t)
	require.NoError(t, os.WriteFile(h.confPath(), []byte("Shares=slurm\n"), 0o600))
	c, err := conf.Load(h.confPath())
	require.NoError(t, err)
	h.engine = newEngine(h.describe(), c)
	s := newSlurm(h.now)
	s.start(s.submit("physics", "alice", 1, 8))
	h.pass(s.list()...)
	h.configure(h.dsn, "Shares=slurm")
	h.engine.refresher.reconfigure()
	h.engine.refresher.reload()
	h.tick(s, time.Second)
	h.pass(s.list()...)
	h.engine.recorder.save(false)
	require.NoError(t, h.exchange())
	require.Equal(t, []string{"alice  allocated"}, h.recorded())
	require.Empty(t, h.lines)
	h.stop()
}

// A refresh may come when a pass has not shown the associations yet: then there is
// no shadow, or that of the pass before.
func TestTheShadowWaitsForTheAssociations(t *testing.T) {
	h := hostOn(t)
	h.configure(h.dsn, "Shares=slurm", "Shadow=yes")
	h.start()
	h.engine.Configure(fairshare.Weights{Fairshare: 900, Flags: fairshare.FairTreeFlag}, 1)
	s := newSlurm(h.now)
	s.start(s.submit("physics", "alice", 1, 8))
	h.goBySlurm()
	h.pass(s.list()...)
	require.NoError(t, h.exchange())
	require.Zero(t, h.logged("shadow: by the ledger"), "%q", h.lines)

	associations := []Assoc{{ID: 2, Account: NewCString("physics")}, {ID: 4, Account: NewCString("physics"), User: NewCString("alice")}}
	h.engine.Standings(associations)
	for n := range 2 {
		require.NoError(t, h.exchange())
		require.Equal(t, n+1, h.logged("shadow: by the ledger account physics has rank"), "%q", h.lines)
		require.Equal(t, n+1, h.logged("; by Slurm's shares it has"), "%q", h.lines)
		h.goBySlurm()
		h.pass(s.list()...)
	}
	h.stop()
}
