// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/slurmplugin/shimtest"
	"gpubudget/usage"
)

var usualTerms = fairshare.Terms{Default: time.Hour, Cap: 8 * time.Hour}

// What a job asks for, and its time limit, decide for how long its run is left
// alone, and whether it is charged at all; the database hears of it.
func TestARunIsPromisedItsMinimumRuntime(t *testing.T) {
	for _, tc := range []struct {
		name         string
		account      string
		asked, limit int64
		allocated    bool
		want         time.Duration
	}{
		{"the default", "physics", -1, 0, true, time.Hour},
		{"the default is cut to the time limit", "physics", -1, 600, true, 10 * time.Minute},
		{"asked for", "physics", 7200, 86400, true, 2 * time.Hour},
		{"beyond the cap", "physics", 10 * 3600, 0, true, 8 * time.Hour},
		{"beyond the time limit", "physics", 7200, 3600, true, time.Hour},
		{"beyond any time", "physics", 1 << 62, 1 << 62, true, 8 * time.Hour},
		{"none", "physics", 0, 0, false, 0},
		{"no budget", "idle", 7200, 0, false, 2 * time.Hour},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab()
			l.fund()
			j := l.startJobOf(tc.account, tc.asked, tc.limit)
			l.lookAll(1)
			run := l.openRuns()[0]
			require.Equal(t, tc.allocated, run.Allocated)
			require.Equal(t, tc.want, *run.MinRuntime)
			told := l.runs[run.key()]
			require.Equal(t, run.Run, told.usageRun("titan"))

			l.slurm.requeue(j)
			l.lookAll(1)
			l.slurm.clean(j)
			l.lookAll(120)
			l.slurm.start(j)
			l.lookAll(1)
			run = l.openRuns()[0]
			require.Equal(t, tc.want, *run.MinRuntime, "each run has all of it")
			until, protected := run.ProtectedUntil(seconds(l.slurm.now))
			require.Equal(t, tc.allocated, protected)
			if protected {
				require.Equal(t, tc.want, until.Sub(run.StartedAt))
			}
		})
	}
}

// startJobOf is a job that has just started.
func (l *lab) startJobOf(account string, asked, limit int64) *simJob {
	j := l.slurm.submit(account, "alice", 0, 4)
	j.asked, j.limit = asked, limit
	l.lookAll(10)
	l.slurm.start(j)
	return j
}

// Who resizes a job again and again doesn't prolong its protection, however it
// is suspended in between.
func TestAResizeProlongsNoProtection(t *testing.T) {
	l := newLab()
	l.fund()
	j := l.startJobOf("physics", 600, 0)
	l.lookAll(1)
	start := l.slurm.now - 1
	l.slurm.now += 99
	l.slurm.suspend(j)
	l.lookAll(0)
	l.slurm.now += 50
	l.slurm.resume(j)
	l.lookAll(0)
	l.slurm.now += 100
	l.slurm.setSize(j, 2)
	l.lookAll(0)
	until, protected := l.openRuns()[0].ProtectedUntil(seconds(l.slurm.now))
	require.True(t, protected)
	require.Equal(t, start+650, until.Unix())
	l.slurm.now += 500
	l.slurm.setSize(j, 1)
	l.lookAll(0)
	run := l.openRuns()[0]
	require.True(t, run.Allocated, "it is charged on")
	_, protected = run.ProtectedUntil(seconds(l.slurm.now))
	require.False(t, protected)
}

// A run that began before anybody could judge it is judged by the terms that it
// began on, also by an engine that has only the spool.
func TestARunIsJudgedOnceThereAreTerms(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		h := hostOn(t)
		h.configure(deadDSN)
		h.start()
		s := newSlurm(h.now)
		for _, asked := range []int64{-1, 0, 7200} {
			j := s.submit("physics", "alice", 1, 2)
			j.asked, j.limit = asked, 1800
			s.start(j)
		}
		h.pass(s.list()...)
		h.engine.recorder.save(false)
		require.Error(t, h.exchange())
		if restarted {
			h.kill()
			h.start()
		}
		h.configure(h.dsn)
		h.engine.refresher.reconfigure()
		require.NoError(t, h.exchange())
		h.tick(s, time.Second)
		h.pass(s.list()...)
		require.NoError(t, h.exchange())
		runs, err := h.usage().OpenRuns(context.Background(), h.cluster)
		require.NoError(t, err)
		require.Len(t, runs, 3)
		for i, want := range []time.Duration{30 * time.Minute, 0, 30 * time.Minute} {
			require.Equal(t, want != 0, runs[i].Allocated)
			require.Equal(t, want, *runs[i].MinRuntime)
		}
		h.stop()
	}
}

// The terms are the policy's.
func TestTermsAreThePolicys(t *testing.T) {
	h := hostOn(t)
	ctx, note := context.Background(), budgets.Note{Actor: "test", From: begin.Add(-time.Hour)}
	store := budgets.NewStore(h.pool)
	for setting, value := range map[string]string{budgets.MinRuntime: "30m", budgets.MinRuntimeCap: "45m"} {
		_, err := store.SetPolicy(ctx, h.cluster, setting, value, note)
		require.NoError(t, err)
	}
	h.start()
	require.NoError(t, h.exchange())
	require.Equal(t, fairshare.Terms{Default: 30 * time.Minute, Cap: 45 * time.Minute}, h.engine.judge().terms)
	h.stop()
}

// An account's own minimum runtime is that of its jobs which name none, and of
// those of the accounts below.
func TestAnAccountHasTermsOfItsOwn(t *testing.T) {
	h := hostOn(t)
	ctx, note := context.Background(), budgets.Note{Actor: "test", From: begin.Add(-time.Hour)}
	store := budgets.NewStore(h.pool)
	set := func(account, value string) {
		_, err := store.SetMinRuntime(ctx, h.cluster, account, value, note)
		require.NoError(t, err)
	}
	for _, child := range []string{"optics", "lasers"} {
		_, err := store.AddAccount(ctx, h.cluster, child, "physics", fairshare.Whole/10, note)
		require.NoError(t, err)
		_, err = store.AddUser(ctx, h.cluster, child, "alice", fairshare.EqualPart, note)
		require.NoError(t, err)
	}
	set("physics", "30m")
	set("lasers", "2h")
	h.start()
	require.NoError(t, h.exchange())
	s := newSlurm(h.now)
	for _, account := range []string{"physics", "optics", "lasers", "chemistry"} {
		j := s.submit(account, "alice", 0, 1)
		j.asked = -1
		s.start(j)
	}
	h.tick(s, time.Second)
	h.pass(s.list()...)
	promised := map[string]time.Duration{}
	for _, r := range h.engine.tracker.openRuns() {
		promised[r.Account] = *r.MinRuntime
	}
	require.Equal(t, map[string]time.Duration{
		"physics": 30 * time.Minute, "optics": 30 * time.Minute, "lasers": 2 * time.Hour, "chemistry": time.Hour,
	}, promised)
	h.stop()
}

// A run that an older release recorded stays allocated as it was; how long it is
// left alone is worked out when it is seen.
func TestARunOfAnOlderReleaseIsPromisedSomethingToo(t *testing.T) {
	l := newLab()
	l.fund()
	j := l.startJobOf("physics", 0, 0)
	l.adopt([]usage.Run{{
		Cluster: "titan", JobID: j.id, ArrayTaskID: NoTask, Account: "physics", User: "alice", GPUs: 4, Allocated: true, StartedAt: seconds(j.start),
	}}, l.instant())
	l.lookAll(1)
	run := l.openRuns()[0]
	require.True(t, run.Allocated)
	require.Equal(t, time.Duration(0), *run.MinRuntime)
}

// Whoever asks for more than there is gets what there is, and the log says so
// once for each job.
func TestAJobThatAsksForTooMuchIsToldOfOnce(t *testing.T) {
	h := hostOn(t)
	h.start()
	require.NoError(t, h.exchange())
	s := newSlurm(h.now)
	for _, asked := range []int64{8 * 3600, 8*3600 + 1, -1, 0} {
		s.submit("physics", "alice", 1, 2).asked = asked
	}
	for range 2 {
		h.tick(s, time.Second)
		h.pass(s.list()...)
	}
	require.Equal(t, 1, h.logged("JobId=101 of user alice asks for a minimum runtime of 8h0m1s: it gets 8h0m0s"))
	require.Equal(t, 1, h.logged("minimum runtime"))
	for range 15 {
		s.submit("physics", "alice", 1, 2).asked = 1 << 40
	}
	h.tick(s, time.Second)
	h.pass(s.list()...)
	require.Equal(t, 11, h.logged("minimum runtime"))
	require.Equal(t, 1, h.logged("5 other jobs ask for more than that as well"))
	h.stop()
}

// Kinds of jobs in C and in Go, by terms.
func TestUnallocatedKinds(t *testing.T) {
	for _, terms := range []fairshare.Terms{
		usualTerms, {}, {Default: time.Hour}, {Cap: time.Hour}, {Default: time.Second, Cap: time.Second},
	} {
		kinds := unallocatedBy(terms)
		for _, asked := range []int64{-1, 0, 1, 3600} {
			want := terms.Unallocated((&Job{MinRuntime: asked}).asked())
			require.Equal(t, want, kinds.Include(asked))
			require.Equal(t, want, shimtest.Unallocated(uint32(kinds), asked))
		}
	}
}

// Whoever asks for no minimum runtime comes after all that are allocated, in
// either mode, also at once when he submits; so do all who say nothing if the
// policy says so.
func TestUnallocatedJobsComeLast(t *testing.T) {
	for _, mode := range []string{budgets.Strict, budgets.Additive} {
		t.Run(mode, func(t *testing.T) {
			h := warm(t)
			set := func(setting, value string) {
				_, err := budgets.NewStore(h.pool).SetPolicy(context.Background(), "titan", setting, value, budgets.Note{Actor: "t", From: begin})
				require.NoError(t, err)
				require.NoError(t, h.exchange())
			}
			set(budgets.Mode, mode)
			zero := func(j *Job, _ *fairshare.Job) { j.MinRuntime = 0 }
			jobs := []Job{
				h.pending(1, "bio", "carol", zero), // bio is ahead of physics
				h.pending(2, "bio", "carol", nil), h.pending(3, "physics", "alice", func(j *Job, _ *fairshare.Job) { j.MinRuntime = 60 }),
			}
			require.Equal(t, []uint32{2, 3, 1}, order(h.pass(jobs...)))
			require.Zero(t, h.score(&jobs[0]).Fairshare)

			priorities := h.pass(jobs[1:]...)
			priorities[1] = h.score(&jobs[0]).Priority
			require.Equal(t, []uint32{2, 3, 1}, order(priorities), "between two passes, and none of its kind was there")

			worst := h.pending(4, "physics", "alice", func(j *Job, in *fairshare.Job) { j.Nice, in.Site = 1<<31-1, -1<<31 })
			best := func(j *Job, in *fairshare.Job) {
				zero(j, in)
				j.Nice, j.QOSPriority, in.Site, in.QOSFactor, in.Age = -1<<31, 1000, 1<<31-1, 1, 0
			}
			jobs = append(jobs, worst, h.pending(5, "bio", "carol", best), h.pending(6, "idle", "dora", best), h.pending(7, "nowhere", "eve", best))
			got := order(h.pass(jobs...))
			require.Equal(t, []uint32{2, 3, 4}, got[:3], "whatever they have")
			jobs = jobs[:3]

			set(budgets.MinRuntime, "0s")
			require.Equal(t, uint32(3), order(h.pass(jobs...))[0], "it alone asks for any")
			h.stop()
		})
	}
}

// By Slurm's shares nothing is unallocated.
func TestSlurmsSharesKnowNoMinimumRuntime(t *testing.T) {
	h := warm(t)
	h.configure(h.dsn, "Shares=slurm")
	h.engine.refresher.reconfigure()
	require.NoError(t, h.exchange())
	h.pass(h.pending(1, "bio", "carol", func(j *Job, _ *fairshare.Job) { j.MinRuntime = 0 }))
	require.Zero(t, h.unallocated)
	h.stop()
}

// What asks to be unallocated is owed nothing, while it waits and while it runs.
func TestUnallocatedJobsAreNoDemand(t *testing.T) {
	l := newLab()
	l.fund()
	l.lookAll(0)
	j := l.slurm.submit("physics", "alice", 1, 4)
	j.asked = 0
	l.lookAll(7)
	l.lookAll(7)
	l.slurm.start(j)
	l.lookAll(8)
	l.lookAll(8)
	l.slurm.complete(j, Complete)
	l.lookAll(1)
	l.requireAsked(t, 0, 0)
	require.Equal(t, []usage.Queue(nil), l.owners.queue())
	l.slurm.submit("physics", "alice", 1, 4)
	l.lookAll(1)
	l.lookAll(1)
	l.requireAsked(t, 2*4, 0)
}

// What jobs that wait ask for is in the database, for whoever explains one; Slurm
// shows it to nobody.
func TestWhatWaitingJobsAskForIsWritten(t *testing.T) {
	h := hostOn(t)
	h.start()
	s := newSlurm(h.now)
	submit := func(asked int64, gpus uint64) *simJob {
		j := s.submit("physics", "alice", 0, gpus)
		j.asked = asked
		return j
	}
	long, none, silent, withoutGPUs, starts := submit(7200, 4), submit(0, 1), submit(-1, 1), submit(60, 0), submit(60, 4)
	asked := func(j *simJob) time.Duration {
		t.Helper()
		d, ok, err := h.usage().Asked(context.Background(), h.cluster, j.id)
		require.NoError(t, err)
		if !ok {
			return fairshare.NotAsked
		}
		return d
	}
	h.pass(s.list()...)
	require.NoError(t, h.exchange())
	want := []time.Duration{2 * time.Hour, 0, fairshare.NotAsked, fairshare.NotAsked, time.Minute}
	require.Equal(t, want, []time.Duration{asked(long), asked(none), asked(silent), asked(withoutGPUs), asked(starts)})
	s.start(starts)
	h.pass(s.list()...)
	require.NoError(t, h.exchange())
	require.Equal(t, fairshare.NotAsked, asked(starts), "it runs: job_run has it")
	h.stop()
}
