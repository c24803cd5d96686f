// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/internal/testcluster"
	"gpubudget/simulate"
	"gpubudget/usage"
)

// The simulator is held beside a real slurmctld: the same jobs, as they were
// submitted and for as long as they ran there, start and start again in the same
// order and at the same times.

// killWait is KillWait of the test clusters: for so long a job that is evicted may take
// to go. The simulator's are gone at once, and what comes after is earlier there.
const killWait = 2 * time.Second

// fidelity is a cluster of 2 nodes with 8 GPUs each and jobs for it. The first of
// them run while all are submitted.
type fidelity struct {
	policy  string
	preempt bool
	// interval is that between two passes of the scheduler over the whole queue, and
	// by how much a start may differ.
	interval time.Duration
	shares   []int // percent, of fidelityOwners
	first    int   // how many run at once
	jobs     []fidelityJob
}

var fidelityOwners = []simulate.Owner{{Account: "blue", User: cem}, {Account: "green", User: bob}, {Account: "red", User: ann}}

const (
	blue = iota
	green
	red
)

type fidelityJob struct {
	owner, gpus, seconds int
	minRuntime           int64 // seconds
}

// timeLimit is that of all jobs: nobody is gone before somebody else could start.
const timeLimit = 60

// TestSimulatorStartsJobsAsSlurmDoes has jobs whose order is the same if any of
// them take a second or two longer, and of which no two of one account start
// together: Slurm may or may not have recalculated priorities in between.
func TestSimulatorStartsJobsAsSlurmDoes(t *testing.T) {
	const none = simulate.Undeclared
	t.Run("strict order", fidelity{
		policy: "gpubudget", interval: 8 * time.Second, shares: []int{20, 30, 50}, first: 1,
		jobs: []fidelityJob{
			{red, 16, 14, none}, {red, 16, 9, none}, {green, 8, 9, none}, {red, 8, 3, none}, {blue, 4, 3, none},
			{green, 16, 6, none}, {green, 8, 8, none}, {red, 8, 6, none}, {blue, 8, 6, none}, {blue, 16, 3, none},
		},
	}.compare)
	// The unallocated job of green makes way for blue at once, red's when it has
	// had its minimum runtime; both start again, red's first.
	t.Run("preemption", fidelity{
		policy: "contract", preempt: true, interval: time.Second, shares: []int{80, 10, 10}, first: 2,
		jobs: []fidelityJob{{green, 8, 30, 0}, {red, 8, 28, 18}, {blue, 8, 20, 5}, {blue, 8, 20, 5}},
	}.compare)
}

func (f fidelity) compare(t *testing.T) {
	s := f.start(t)
	slurm := f.run(s)
	simulated, evicted := f.simulate(t, slurm)
	for i, j := range slurm {
		t.Logf("job %2d of %-5s %2d GPUs, submitted %3d, ran for %2d s, started at %v, simulated %v",
			i, fidelityOwners[f.jobs[i].owner].Account, f.jobs[i].gpus, j.submit, j.length, j.starts, simulated[i])
	}
	f.requireSameStarts(t, slurm, simulated, evicted)
}

func (f fidelity) start(t *testing.T) *scenario {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	opts := testcluster.Options{
		Nodes: 2, CPUsPerNode: 64, Users: []string{ann, bob, cem}, Priority: testcluster.Gpubudget, Preempt: f.preempt,
		SlurmConf: []string{"MinJobAge=300"},
	}
	scheduler := fmt.Sprintf("SchedulerParameters=bf_interval=%d,bf_resolution=1,batch_sched_delay=0,sched_min_interval=0", whole(f.interval))
	if f.preempt {
		scheduler += ",preempt_strict_order,preempt_reorder_count=8"
	}
	opts.SlurmConf = append(opts.SlurmConf, scheduler, fmt.Sprintf("KillWait=%d", whole(killWait)))
	for i, o := range fidelityOwners {
		opts.Accounts = append(opts.Accounts, testcluster.Account{Name: o.Account, Share: fmt.Sprintf("%d%%", f.shares[i]), Users: []string{o.User}})
	}
	c, err := testcluster.Start(ctx, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	require.NoError(t, c.LoadBudgets(ctx, map[string]string{"lookback": "1h"}))
	s := newScenario(t, c, "fidelity")
	ctx, cancel = context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	s.ctx = ctx
	return s
}

// ran is what became of a job, in seconds since the first started.
type ran struct {
	submit, length int64
	starts         []int64
}

// run runs the jobs on the cluster.
func (f fidelity) run(s *scenario) []ran {
	s.t.Helper()
	ids, submitted := make([]uint32, len(f.jobs)), make([]time.Time, len(f.jobs))
	for i, j := range f.jobs {
		args := []string{fmt.Sprintf("--gpus=%d", j.gpus), "--time=1"}
		if j.gpus > 8 {
			args = []string{fmt.Sprintf("--nodes=%d", j.gpus/8), "--gpus-per-node=8", "--time=1"}
		}
		if j.minRuntime != simulate.Undeclared {
			args = append(args, fmt.Sprintf("--min-runtime=%ds", j.minRuntime))
		}
		o := fidelityOwners[j.owner]
		ids[i] = s.submit(o.User, o.Account, j.seconds, args...)
		at, err := time.ParseInLocation("2006-01-02T15:04:05", s.show(ids[i], "SubmitTime"), time.Local)
		require.NoError(s.t, err)
		submitted[i] = at // it changes when the job is requeued
		if i < f.first {
			s.waitState(ids[i], "R")
		}
	}
	s.wait("all jobs to end", func() bool {
		return len(s.rows("squeue", "--noheader", "--format=%A|%t")) == 0
	})
	jobs := make([]ran, len(f.jobs))
	began := s.recordedRuns(ids[:1])[ids[0]][0].StartedAt
	runs := s.recordedRuns(ids)
	for i, id := range ids {
		jobs[i].submit = max(whole(submitted[i].Sub(began)), 0)
		for _, r := range runs[id] {
			jobs[i].starts = append(jobs[i].starts, whole(r.StartedAt.Sub(began)))
			jobs[i].length = whole(r.EndedAt.Sub(r.StartedAt))
		}
	}
	return jobs
}

// recordedRuns are what is on record of jobs that have ended, by job, in the order
// of their starts.
func (s *scenario) recordedRuns(ids []uint32) map[uint32][]usage.Run {
	s.t.Helper()
	conn, err := pgx.Connect(s.ctx, s.DSN())
	require.NoError(s.t, err)
	defer conn.Close(s.ctx)
	var byJob map[uint32][]usage.Run
	s.wait("all runs to be on record", func() bool {
		now := time.Now()
		day := fairshare.Period{From: fairshare.At(now.Add(-24 * time.Hour)), Until: fairshare.At(now.Add(time.Hour))}
		runs, err := usage.NewStore(conn).Runs(s.ctx, s.Name(), day)
		require.NoError(s.t, err)
		byJob = make(map[uint32][]usage.Run)
		for _, r := range runs {
			if r.EndedAt == nil {
				return false
			}
			byJob[r.JobID] = append(byJob[r.JobID], r)
		}
		return !slices.ContainsFunc(ids, func(id uint32) bool { return len(byJob[id]) == 0 })
	})
	return byJob
}

func whole(d time.Duration) int64 { return int64(d.Round(time.Second).Seconds()) }

// simulate is the starts of each job in the simulator, and when jobs were evicted
// there. A job that has to start anew has lost all, and comes back as soon as its
// credential has expired.
func (f fidelity) simulate(t *testing.T, jobs []ran) (starts [][]int64, evicted []int64) {
	t.Helper()
	w := &simulate.Workload{Begin: time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC), Owners: fidelityOwners}
	for i, j := range f.jobs {
		w.Jobs = append(w.Jobs, simulate.Job{
			Submit: jobs[i].submit, Run: jobs[i].length, Limit: timeLimit, MinRuntime: j.minRuntime,
			Owner: int32(j.owner), GPUs: int32(j.gpus), Line: int32(i),
		})
	}
	w.Sort()
	budget := &fairshare.Budget{}
	for i, o := range fidelityOwners {
		budget.Accounts = append(budget.Accounts, fairshare.Account{
			Name: o.Account, Parent: simulate.Always(fairshare.RootAccount), Share: simulate.Always(fairshare.Share(f.shares[i]) * fairshare.Whole / 100),
			Users: []fairshare.Member{{User: o.User, In: simulate.Always(fairshare.EqualPart)}},
		})
	}
	policy, err := simulate.DefaultPolicy(f.policy)
	require.NoError(t, err)
	policy.Lookback, policy.CalcInterval, policy.BackfillInterval = time.Hour, time.Second, f.interval
	if f.preempt {
		policy.RequeueHold, policy.Checkpoint = 6*time.Second, 0
	}
	starts = make([][]int64, len(f.jobs))
	_, err = simulate.Run(simulate.Config{
		Workload: w, Budget: budget, Policy: policy,
		Cluster: simulate.Cluster{Partitions: []simulate.Partition{{Nodes: 2, GPUsPerNode: 8}}},
		Record: func(st simulate.Stint) {
			i := w.Jobs[st.Job].Line
			starts[i] = append(starts[i], st.Start)
			if st.Ended == simulate.Preempted {
				evicted = append(evicted, st.End)
			}
		},
	})
	require.NoError(t, err)
	return starts, evicted
}

// requireSameStarts compares how often each job started, when, and in what order. A
// start may differ by one interval, and by what those take to go who were evicted up to then.
func (f fidelity) requireSameStarts(t *testing.T, jobs []ran, simulated [][]int64, evicted []int64) {
	t.Helper()
	type start struct{ real, simulated int64 }
	var starts []start
	for i, j := range jobs {
		require.Len(t, simulated[i], len(j.starts), "job %d started at %v, simulated %v", i, j.starts, simulated[i])
		for k := range j.starts {
			may := f.interval
			for _, at := range evicted {
				if at <= simulated[i][k] {
					may += killWait
				}
			}
			require.InDelta(t, j.starts[k], simulated[i][k], may.Seconds(), "start %d of job %d", k, i)
			starts = append(starts, start{j.starts[k], simulated[i][k]})
		}
	}
	for _, x := range starts {
		for _, y := range starts {
			if x.simulated < y.simulated {
				require.LessOrEqual(t, x.real, y.real, "the order of those simulated to start at %d and %d", x.simulated, y.simulated)
			}
		}
	}
}
