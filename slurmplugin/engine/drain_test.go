// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/usage"
)

// set sets a policy from before the test began on.
func (h *host) set(setting, value string) {
	h.t.Helper()
	_, err := budgets.NewStore(h.pool).SetPolicy(context.Background(), h.cluster, setting, value, budgets.Note{Actor: "test", From: begin.Add(-time.Hour)})
	require.NoError(h.t, err)
}

// Only what nothing protects may leave a node that is being drained, and only if
// the policy says so; who left is recorded.
func TestWhoMayLeaveADrainedNode(t *testing.T) {
	h := hostOn(t)
	h.set(budgets.MinRuntime, "60s")
	h.start()
	s := newSlurm(h.now)
	h.pass()
	require.NoError(t, h.exchange())
	require.False(t, h.engine.Drains(), "by default they wait")
	h.set(budgets.DrainPolicy, "requeue")
	require.NoError(t, h.exchange())
	require.True(t, h.engine.Drains())

	charged, free := s.submit("physics", "alice", 1, 4), s.submit("idle", "dora", 2, 4)
	suspended, pending := s.submit("bio", "carol", 3, 1), s.submit("physics", "bob", 4, 4)
	for _, j := range []*simJob{charged, free, suspended} {
		s.start(j)
	}
	h.pass(s.list()...)
	may := func() (jobs []uint32) {
		for _, j := range []*simJob{charged, free, suspended, pending} {
			if h.engine.MayLeave(j.id, 0, h.now.UnixMilli()) {
				jobs = append(jobs, j.id)
			}
		}
		return jobs
	}
	require.Equal(t, []uint32{free.id}, may())
	require.False(t, h.engine.MayLeave(4711, 0, h.now.UnixMilli()), "nobody knows it")
	h.tick(s, 30*time.Second)
	s.suspend(suspended)
	h.pass(s.list()...)
	h.tick(s, 29*time.Second)
	h.pass(s.list()...)
	require.Equal(t, []uint32{free.id}, may())
	h.tick(s, time.Second)
	h.pass(s.list()...)
	require.Equal(t, []uint32{charged.id, free.id}, may(), "the other has had half of its time only")

	h.engine.Left(charged.id, "n7", h.now.UnixMilli())
	s.requeue(charged)
	h.pass(s.list()...)
	require.False(t, h.engine.MayLeave(charged.id, 0, h.now.UnixMilli()))
	h.engine.recorder.save(false)
	require.NoError(t, h.exchange())
	got, err := h.usage().PreemptionsOf(context.Background(), "titan", charged.id)
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.Equal(t, usage.Preemption{
		Cluster: "titan", At: h.now, Rule: usage.Drain, Mode: "requeue", Node: "n7", StartedAt: h.now.Add(-time.Minute), ProtectedUntil: new(h.now),
		Job: usage.Party{JobID: charged.id, Account: "physics", User: "alice", GPUs: 4, Allocated: true, MinRuntime: time.Minute, Rank: got[0].Job.Rank},
	}, got[0])

	h.set(budgets.DrainPolicy, "wait")
	require.NoError(t, h.exchange())
	require.False(t, h.engine.Drains())
	h.stop()
}

// The components of a het job leave together.
func TestHetJobsLeaveTogether(t *testing.T) {
	h := hostOn(t)
	h.start()
	h.pass()
	hour, minute := time.Hour, time.Minute
	component := func(job, het uint32, promised *time.Duration) *run {
		return &run{Run: usage.Run{JobID: job, HetJobID: het, Allocated: true, MinRuntime: promised, GPUs: 1, StartedAt: h.now.Add(-10 * time.Minute)}, decided: true}
	}
	for _, r := range []*run{component(20, 20, &minute), component(21, 20, &hour), component(30, 30, &minute), component(31, 30, &minute), component(41, 40, &hour)} {
		h.engine.tracker.jobs[r.JobID] = &job{id: r.JobID, run: r}
		h.engine.tracker.open = append(h.engine.tracker.open, r)
	}
	h.engine.tracker.jobs[40] = &job{id: 40} // has no GPUs, and so no run
	may := func(after time.Duration) (leaders []uint32) {
		for _, id := range []uint32{20, 30, 40, 50} {
			if h.engine.MayLeave(id, id, int64(fairshare.At(h.now.Add(after)))) {
				leaders = append(leaders, id)
			}
		}
		return leaders
	}
	require.Equal(t, []uint32{30}, may(0))
	require.Equal(t, []uint32{20, 30, 40}, may(50*time.Minute), "of 50 nothing is known")
	h.stop()
}

// A run that begins by a resize after the job's minimum runtime has nothing left of
// that: it must not stay for ever.
func TestAJobResizedAfterItsMinimumRuntimeMayLeaveADrainedNode(t *testing.T) {
	h := hostOn(t)
	h.set(budgets.MinRuntime, "60s")
	h.start()
	s := newSlurm(h.now)
	h.pass()
	require.NoError(t, h.exchange())
	j := s.submit("physics", "alice", 1, 4)
	s.start(j)
	h.pass(s.list()...)
	h.tick(s, 50*time.Second)
	require.False(t, h.engine.MayLeave(j.id, 0, h.now.UnixMilli()))
	h.tick(s, 20*time.Second)
	s.setSize(j, 2)
	h.pass(s.list()...)
	h.tick(s, time.Second)
	h.pass(s.list()...)
	require.True(t, h.engine.MayLeave(j.id, 0, h.now.UnixMilli()))
}
