// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"cmp"
	"context"
	"maps"
	"math"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
)

// order is the jobs from the highest priority to the lowest.
func order(priorities map[uint32]uint32) []uint32 {
	return slices.SortedFunc(maps.Keys(priorities), func(x, y uint32) int {
		return cmp.Or(cmp.Compare(priorities[y], priorities[x]), cmp.Compare(x, y))
	})
}

// pending is a job that pends; change may alter it, and what else its priority
// depends on.
func (h *host) pending(id uint32, account, user string, change func(*Job, *fairshare.Job)) Job {
	j := Job{
		JobID: id, ArrayTaskID: NoTask, ArrayTasks: 1, DemandTasks: 1, Flags: Demands,
		Account: NewCString(account), User: NewCString(user), QOS: NewCString("normal"),
		Submit: h.now.Unix(), Begin: h.now.Unix(), GPUs: 1, MinRuntime: -1,
	}
	in := &fairshare.Job{Age: h.now.Unix(), CPUs: 1, MinNodes: 1, TimeLimit: 60}
	if change != nil {
		change(&j, in)
	}
	if h.inputs == nil {
		h.inputs = make(map[uint32]*fairshare.Job)
	}
	h.inputs[id] = in
	return j
}

var warmWeights = fairshare.Weights{Age: 1000, Fairshare: 10000, JobSize: 100, QOS: 2000, MaxAge: 86400}

// warm is an engine with a snapshot, on a cluster in which physics has used
// more of its share than bio.
func warm(t *testing.T) *host {
	t.Helper()
	h := hostOn(t)
	h.start()
	h.engine.Configure(warmWeights, 1)
	require.NoError(t, h.exchange())
	s := newSlurm(h.now)
	h.pass()
	s.start(s.submit("physics", "alice", 1, 8))
	h.tick(s, time.Minute)
	s.complete(s.jobs[0], Complete)
	h.tick(s, time.Second)
	h.pass(s.list()...)
	require.NoError(t, h.exchange())
	return h
}

func TestStrictPrioritiesFollowTheBudgets(t *testing.T) {
	h := warm(t)
	got := order(h.pass(
		h.pending(1, "idle", "dora", func(j *Job, _ *fairshare.Job) { j.QOSPriority, j.Nice = 1000, -10000 }),
		h.pending(2, "physics", "alice", func(j *Job, _ *fairshare.Job) { j.Nice = -10000 }),
		h.pending(3, "physics", "bob", nil),
		h.pending(4, "physics", "alice", nil),
		h.pending(5, "physics", "alice", func(j *Job, _ *fairshare.Job) { j.QOSPriority, j.Nice = 10, 10000 }),
		h.pending(6, "bio", "carol", func(j *Job, _ *fairshare.Job) { j.Nice = 10000 }),
		h.pending(7, "Bio", "carol", func(_ *Job, in *fairshare.Job) { in.Age -= 3600 }), // as typed, without slurmdbd
		h.pending(8, "", "carol", func(j *Job, _ *fairshare.Job) { j.Nice = -5 }),        // her account by default
		h.pending(9, "nowhere", "eve", nil),
	))
	require.Equal(t, []uint32{8, 7, 6, 5, 2, 3, 4, 1, 9}, got)
	h.stop()
}

// A job that is submitted between two passes gets the place it will have in the
// next.
func TestSetPlacesAJobAsThePassWould(t *testing.T) {
	h := warm(t)
	jobs := []Job{
		h.pending(2, "physics", "alice", func(j *Job, _ *fairshare.Job) { j.Nice = 100 }),
		h.pending(3, "physics", "bob", nil),
		h.pending(6, "bio", "carol", func(j *Job, _ *fairshare.Job) { j.Nice = 10000 }),
	}
	before := h.pass(jobs...)
	fresh := h.pending(7, "physics", "bob", func(j *Job, _ *fairshare.Job) { j.Nice = 50 })
	before[7] = h.score(&fresh).Priority
	after := h.pass(append(jobs, fresh)...)
	require.Equal(t, order(after), order(before))
	require.Equal(t, []uint32{6, 3, 7, 2}, order(after))
	h.stop()
}

// Associations stand nowhere before the first pass, and nobody is judged by how
// they do.
func TestStandingsBeforeTheFirstPass(t *testing.T) {
	h := warm(t)
	h.kill()
	h.start()
	h.engine.Configure(warmWeights, 2)
	require.Error(t, h.engine.Rank(&Extremes{}, &Table{}))
	require.ErrorIs(t, h.engine.FillTable(&Table{}), errRoom)
	assocs := []Assoc{{ID: 3, Account: NewCString("physics")}}
	h.engine.Standings(assocs)
	require.Zero(t, assocs[0].Known)
	require.Zero(t, assocs[0].Place)
	s := newSlurm(h.now)
	s.start(s.submit("physics", "bob", 1, 1))
	h.pass(s.list()...)
	require.True(t, h.engine.tracker.jobs[100].run.Allocated)
	h.engine.Standings(assocs)
	require.Equal(t, uint32(1), assocs[0].Known)
	h.stop()
}

// A table that was made meanwhile doesn't fit the arrays of the one before.
func TestATableIsFilledOnlyWhereItFits(t *testing.T) {
	h := warm(t)
	h.pass(h.pending(1, "physics", "alice", nil))
	slots := make([]Slot, len(h.engine.table.Slots))
	table := Table{QOSCount: uint32(len(h.engine.table.QOS)), NiceCount: uint32(len(h.engine.table.Nice)) + 1, SlotCount: uint32(len(slots)), Slots: &slots[0]}
	require.ErrorIs(t, h.engine.FillTable(&table), errRoom)
	require.Zero(t, slots[0])
	h.stop()
}

func TestAdditivePrioritiesAreSlurmsSum(t *testing.T) {
	h := warm(t)
	_, err := budgets.NewStore(h.pool).SetPolicy(context.Background(), "titan", budgets.Mode, budgets.Additive, budgets.Note{Actor: "t", From: begin})
	require.NoError(t, err)
	require.NoError(t, h.exchange())
	weights := fairshare.Weights{Age: 1000, Assoc: 3, Fairshare: 10000, JobSize: 100, Partition: 50, QOS: 2000, TRES: []float64{7, 11}, MaxAge: 86400}
	h.engine.Configure(weights, 1)

	job := h.pending(3, "bio", "carol", func(j *Job, in *fairshare.Job) {
		j.Nice = 5
		*in = fairshare.Job{
			Site: 20, QOSFactor: 0.5, AssocFactor: 0.5, PartitionFactor: 1, Age: h.now.Unix() - 8640, CPUs: 32, MinNodes: 2,
			TRES:  []float64{0.5, 0.25},
			Parts: []fairshare.JobPart{{Factor: 1, TRES: []float64{1, 1}}, {Factor: 0.5, TRES: []float64{0.5, 0.25}}},
		}
	})
	h.pass(job)
	carol, ok := h.engine.ranking.User("bio", "carol")
	require.True(t, ok)
	require.Equal(t, 1.0, carol.Factor)
	want := fairshare.Factors{
		Age: 100, Assoc: 1.5, Fairshare: 1_010_000, JobSize: 50, Partition: 50, QOS: 1000, Site: 20, Nice: 5,
		TRES: []float64{3.5, 2.75}, Priority: 1_011_222, // and .75; a million since it is allocated
	}
	require.Equal(t, want, h.score(&job))
	parts := h.inputs[3].Parts
	require.Equal(t, uint32(1_011_234), parts[0].Priority)
	require.Equal(t, uint32(1_011_197), parts[1].Priority)
	h.stop()
}

// Without any snapshot nobody is put before another but for what his job brings
// along.
func TestPrioritiesWithoutASnapshot(t *testing.T) {
	h := &host{t: t, dir: t.TempDir(), cluster: "titan", now: begin}
	h.configure(deadDSN)
	h.start()
	h.engine.Configure(fairshare.Weights{Age: 1000, MaxAge: 86400}, 1)
	got := order(h.pass(
		h.pending(1, "physics", "alice", nil),
		h.pending(2, "bio", "carol", func(_ *Job, in *fairshare.Job) { in.Age -= 3600 }),
		h.pending(3, "nowhere", "eve", func(_ *Job, in *fairshare.Job) { in.Age -= 7200 }),
		h.pending(4, "physics", "alice", func(j *Job, _ *fairshare.Job) { j.QOSPriority = 5 }),
	))
	require.Equal(t, []uint32{4, 3, 2, 1}, got)
	h.stop()
}

// A restart without Postgres changes no order.
func TestARestartKeepsTheOrder(t *testing.T) {
	h := warm(t)
	jobs := []Job{
		h.pending(2, "physics", "alice", nil), h.pending(3, "physics", "bob", nil), h.pending(6, "bio", "carol", nil),
	}
	want := h.pass(jobs...)
	h.configure(deadDSN)
	h.kill()
	h.start()
	h.engine.Configure(warmWeights, 1)
	require.Equal(t, want, h.pass(jobs...))
	h.stop()
}

func TestStandingsShowWhatSshareShows(t *testing.T) {
	h := warm(t)
	ask := func(account, user string) Assoc {
		a := Assoc{Account: NewCString(account), LevelFS: -1}
		if user != "" {
			a.User = NewCString(user)
		}
		all := []Assoc{a}
		h.engine.Standings(all)
		return all[0]
	}
	physics := ask("physics", "")
	require.Equal(t, uint32(1), physics.Known)
	require.Equal(t, 0.5, physics.SharesNorm)
	require.Equal(t, 480.0, physics.UsageSeconds)
	require.Equal(t, 1.0, physics.UsageNorm)
	require.Zero(t, physics.Factor)

	require.Equal(t, math.MaxFloat64, ask("bio", "").LevelFS, "no infinity leaves the bridge")
	require.Equal(t, 1.0, ask("bio", "carol").Factor)
	alice := ask("PHYSICS", "alice")
	require.Equal(t, 0.25, alice.SharesNorm)
	require.Less(t, alice.Factor, ask("physics", "bob").Factor)
	require.Zero(t, ask("physics", "carol").Known)
	require.Zero(t, ask("nowhere", "").Known)
	h.stop()
}

// An association has the standing of its names, whatever they were before, and
// also once the budget is another.
func TestStandingsFollowTheNamesOfAssociations(t *testing.T) {
	h := warm(t)
	ask := func(id uint32, account, user string) Assoc {
		a := Assoc{ID: id, Account: NewCString(account)}
		if user != "" {
			a.User = NewCString(user)
		}
		all := []Assoc{a}
		h.engine.Standings(all)
		all[0].ID, all[0].Account, all[0].User = 0, CString{}, CString{}
		return all[0]
	}
	ledger := budgets.NewStore(h.pool)
	names := [][2]string{{"physics", ""}, {"physics", "alice"}, {"physics", "bob"}, {"PHYSICS", "bob"}, {"bio", "carol"}, {"bio", "bob"}, {"nowhere", "bob"}}
	for range 2 {
		for _, n := range names {
			require.Equal(t, ask(0, n[0], n[1]), ask(7, n[0], n[1]), n)
			require.Equal(t, ask(0, n[0], n[1]), ask(lowAssocs+7, n[0], n[1]), n)
		}
		require.NotEqual(t, ask(7, "physics", "alice"), ask(7, "physics", "bob"))
		require.Zero(t, ask(7, "bio", "bob").Known)
		_, err := ledger.AddUser(t.Context(), h.cluster, "bio", "bob", fairshare.EqualPart, budgets.Note{Actor: "t", From: h.now})
		require.NoError(t, err)
		require.NoError(t, h.exchange())
		h.pass()
		require.Equal(t, uint32(1), ask(7, "bio", "bob").Known)
		h.tick(newSlurm(h.now), time.Minute)
		_, err = ledger.RemoveUser(t.Context(), h.cluster, "bio", "bob", budgets.Note{Actor: "t", From: h.now})
		require.NoError(t, err)
		require.NoError(t, h.exchange())
		h.pass()
	}
	h.stop()
}

// A burst between two refreshes isn't free: the pass after a start knows of it.
func TestAStartCountsAtOnce(t *testing.T) {
	h := hostOn(t)
	h.start()
	require.NoError(t, h.exchange())
	s := newSlurm(h.now)
	h.pass()
	h.tick(s, time.Minute)
	jobs := []Job{h.pending(1, "physics", "bob", nil), h.pending(2, "bio", "carol", nil)}
	even := h.pass(jobs...)
	require.Equal(t, even[1], even[2])
	s.start(s.submit("bio", "carol", 0, 8)) // this very second
	got := h.pass(append(jobs, s.list()...)...)
	require.Greater(t, got[1], got[2])
	h.stop()
}

// A fault in the midst of a pass leaves no lock behind, and the jobs that the
// pass did not come to are not gone.
func TestAPassThatBreaksOffKeepsTheEngineGoing(t *testing.T) {
	h := warm(t)
	good, bad := h.pending(1, "physics", "alice", nil), h.pending(2, "physics", "alice", nil)
	h.pass(good)
	forbidden, err := syscall.Mmap(-1, 0, 4096, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	defer func() { require.NoError(t, syscall.Munmap(forbidden)) }()
	bad.Account = CString{&forbidden[0]}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // as the library does
	for range missedPasses + 1 {
		h.engine.BeginPass(h.ms(), Cluster{})
		require.Panics(t, func() { h.engine.Observe([]Job{bad}) })
		require.Error(t, h.engine.EndPass())
	}
	require.NotNil(t, h.engine.tracker.jobs[1])
	require.Len(t, h.pass(good), 1)
	h.stop()
}
