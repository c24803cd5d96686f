// SPDX-License-Identifier: GPL-2.0-or-later

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubudget/internal/testcluster"
)

// PreemptOptions is how much of preemption is measured.
type PreemptOptions struct {
	Running  []int  // jobs that run: measured at each of these
	Cases    string // clusters with this in their names
	Pending  int    // jobs that are held, for each that runs: Slurm asks about these as well
	Searches uint64 // that count, of each case
	Users    int
	Accounts int
	// Tools is the folder with probe.so and submit.
	Tools string
}

const (
	// requests is how many jobs wait for whom others may have to go. Each is tried
	// once in a cycle of the backfill scheduler, which begins every second.
	requests = 4
	// inVain is how often each of them was tried before it counts: by then our plugin
	// offers as many nodes as it ever does, nearly all to one attempt in 16 (engine.spare).
	inVain = 26
	// mostOfCycle is how long a cycle of the backfill scheduler may take.
	mostOfCycle = 10 * time.Minute
	// urgent is the QOS of the requests of stock Slurm, which preempts normal.
	urgent = "urgent"
)

// fullCluster is a cluster on which there is no GPU left, and who asks for some.
type fullCluster struct {
	name       string
	priority   string
	minRuntime string // of the jobs that run, in seconds
	asks       []preemptCase
}

// preemptCase is some requests, and whether anybody is to yield to them.
type preemptCase struct {
	name   string // of it all
	qos    string // "" is the default, as of the jobs that run
	yields bool
	// patience is for how long it is tried, as long as it takes if 0. Stock Slurm takes
	// away candidate after candidate to place a request: among 10,000 it is at it for
	// longer than anybody waits. The search that is measured comes before that.
	patience time.Duration
}

var fullClusters = []fullCluster{
	{name: "unallocated", priority: testcluster.Gpubudget, minRuntime: "0", asks: []preemptCase{{name: "gpubudget/unallocated", yields: true}}},
	{name: "past their minimum", priority: testcluster.Gpubudget, minRuntime: "1", asks: []preemptCase{{name: "gpubudget/past-minimum", yields: true}}},
	{name: "protected", priority: testcluster.Gpubudget, minRuntime: "28800", asks: []preemptCase{{name: "gpubudget/protected"}}},
	{name: "stock", priority: testcluster.Multifactor, asks: []preemptCase{
		{name: "stock/nobody-yields"}, {name: "stock/all-yield", qos: urgent, yields: true, patience: 3 * time.Minute},
	}},
}

// RunPreempt measures what it takes slurmctld to find whom a request may evict,
// with our preempt plugin and with Slurm's own, and prints lines
// "bench: preempt/NAME VALUE UNIT" as it goes. Without preemption there is no such
// search, so all of it is what preemption adds to an attempt to place a job.
func RunPreempt(ctx context.Context, out io.Writer, opts PreemptOptions) error {
	if err := opts.check(); err != nil {
		return err
	}
	p := &printer{out: out}
	for _, n := range opts.Running {
		for i := range fullClusters {
			if !strings.Contains(fullClusters[i].name, opts.Cases) {
				continue
			}
			if err := runPreempt(ctx, p, &fullClusters[i], n, opts); err != nil {
				return fmt.Errorf("measure preemption: %s, %d jobs: %w", fullClusters[i].name, n, err)
			}
		}
	}
	return p.err
}

func (o PreemptOptions) check() error {
	for _, n := range o.Running {
		if n < 2*gpusPerNode || n%gpusPerNode != 0 {
			return fmt.Errorf("%d running jobs: name a multiple of %d that fills two nodes at least", n, gpusPerNode)
		}
	}
	switch {
	case len(o.Running) == 0:
		return errors.New("no numbers of running jobs")
	case o.Accounts < 1 || o.Users < o.Accounts:
		return fmt.Errorf("%d users in %d accounts: each account needs one", o.Users, o.Accounts)
	case o.Pending < 0 || o.Searches < 1:
		return errors.New("no fewer jobs than none are held, and at least one search is measured")
	case !slices.ContainsFunc(fullClusters, func(k fullCluster) bool { return strings.Contains(k.name, o.Cases) }):
		return fmt.Errorf("no cluster has %q in its name", o.Cases)
	}
	return nil
}

func runPreempt(ctx context.Context, p *printer, k *fullCluster, running int, opts PreemptOptions) (err error) {
	s, err := startFull(ctx, k, running, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	// Nobody else has to know of the pending ones than Slurm's list.
	if _, err := s.submit(ctx, running, opts.Pending*running, 2, "-H"); err != nil {
		return err
	}
	if err := s.settle(ctx); err != nil {
		return err
	}
	if err := wait(ctx, settled); err != nil {
		return err
	}
	for i := range k.asks {
		if err := s.ask(ctx, p, k, &k.asks[i], running, opts.Searches); err != nil {
			return err
		}
	}
	return nil
}

// ask has some jobs wait in vain until they have been tried often enough.
func (s *side) ask(ctx context.Context, p *printer, k *fullCluster, ask *preemptCase, running int, searches uint64) error {
	// Held, as Slurm would try to place them before it answers, which with thousands of
	// candidates takes it longer than clients wait.
	name := "request-" + strings.ReplaceAll(ask.name, "/", "-")
	options := []string{"-J", name, "-H", "-x", "-g", strconv.Itoa(gpusPerNode), "-m", "60"}
	if ask.qos != "" {
		options = append(options, "-q", ask.qos)
	}
	for i := range requests {
		// All of the first owner, whose account is behind all others.
		if _, err := s.submit(ctx, i*s.users, 1, 1, options...); err != nil {
			return err
		}
	}
	if _, err := s.cluster.Exec(ctx, "root", "scontrol", "release", "jobname="+name); err != nil {
		return err
	}
	if k.priority == testcluster.Gpubudget && ask.yields {
		if err := s.attempts(ctx, mostOfCycle, inVain*requests); err != nil {
			return err
		}
	}
	before := s.probe.searched()
	// The first one is of a cycle that may have begun before they came.
	err := s.attempts(ctx, ask.limit(), requests+searches)
	if err != nil {
		// While slurmctld is at it nobody is served, us included: that is the end of this
		// cluster, and what it has searched is what there is.
		if ask.patience != 0 && ctx.Err() == nil && s.probe.searched() > before {
			return errors.Join(p.searches(ask, running, s.probe.lastSearches(s.probe.searched()-before)), s.cluster.KillSlurmctld())
		}
		return err
	}
	if err := p.searches(ask, running, s.probe.lastSearches(searches)); err != nil {
		return err
	}
	_, err = s.cluster.Exec(ctx, "root", "scancel", "--jobname="+name)
	return err
}

// limit is how long a cycle may take.
func (k *preemptCase) limit() time.Duration {
	if k.patience != 0 {
		return k.patience
	}
	return mostOfCycle
}

// attempts waits until there were so many, for each cycle so long. The backfill scheduler begins a cycle only
// if something has changed: a comment.
func (s *side) attempts(ctx context.Context, limit time.Duration, n uint64) error {
	for until, cycle := s.probe.searched()+n, 0; s.probe.searched() < until; cycle++ {
		if _, err := s.cluster.Exec(ctx, "root", "scontrol", "update", "JobId=1", fmt.Sprintf("Comment=cycle %d", cycle)); err != nil {
			return err
		}
		before, began := s.probe.searched(), time.Now()
		for s.probe.searched() < before+requests {
			if time.Since(began) > limit {
				return fmt.Errorf("in %v the backfill scheduler has tried %d of %d requests", limit, s.probe.searched()-before, requests)
			}
			if err := wait(ctx, 10*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

// searches prints what some searches took. That nobody or many were found tells
// whether it is what the case is to show.
func (p *printer) searches(k *preemptCase, running int, searches []search) error {
	var cpu, wall, found []float64
	for _, s := range searches {
		cpu = append(cpu, milliseconds(time.Duration(s.cpu)))
		wall = append(wall, milliseconds(time.Duration(s.wall)))
		found = append(found, float64(s.found))
	}
	line := func(name string, value float64, unit string) {
		p.print(fmt.Sprintf("preempt/%s/%s/running=%d", k.name, name, running), value, unit)
	}
	line("cpu-p50", quantile(cpu, 0.50), "ms")
	line("cpu-mean", mean(cpu), "ms")
	line("cpu-max", slices.Max(cpu), "ms")
	line("wall-p50", quantile(wall, 0.50), "ms")
	line("wall-max", slices.Max(wall), "ms")
	line("candidates-p50", median(found), "jobs")
	line("candidates-max", slices.Max(found), "jobs")
	line("searches", float64(len(searches)), "searches")
	if found := median(found); found < 0 || (found > 0) != k.yields {
		return fmt.Errorf("%v candidates were found", found)
	}
	return p.err
}

// startFull starts a cluster on which as many jobs of a GPU run as there are GPUs.
// Its nodes are hollow and its jobs allocations, so that there is no process for any.
// A job without GPUs has a CPU of each node, so that a request for whole nodes is
// tried in vain, and all stays as it is.
func startFull(ctx context.Context, k *fullCluster, running int, opts PreemptOptions) (s *side, err error) {
	s = &side{name: k.name, tools: opts.Tools, gpus: running, users: opts.Users}
	defer func(started *side) {
		if err != nil {
			err = errors.Join(err, started.stop())
		}
	}(s)
	if err := s.makeState(); err != nil {
		return nil, err
	}
	accounts, users := tree(opts.Users, opts.Accounts)
	nodes := running / gpusPerNode
	lines := []string{
		"StateSaveLocation=" + s.state, "MaxJobCount=300000", "MessageTimeout=60", "SlurmctldDebug=info", "SlurmdTimeout=0",
		"SchedulerParameters=sched_interval=-1,bf_interval=1,bf_max_time=600,bf_continue,bf_max_job_test=100,preempt_strict_order,preempt_reorder_count=8",
	}
	if k.priority == testcluster.Multifactor {
		lines = append(lines, "PreemptType=preempt/qos", "PreemptMode=REQUEUE")
	}
	s.cluster, err = testcluster.Start(ctx, testcluster.Options{
		NoAgents: "what is measured is slurmctld, and nothing runs on the nodes",
		Nodes:    1, Hollow: nodes - 1, GPUsPerNode: gpusPerNode, CPUsPerNode: 16, Users: users, Accounts: accounts, Slurmdbd: true,
		QOS: map[string]int{urgent: 10}, Priority: k.priority, Preempt: k.priority == testcluster.Gpubudget, SlurmConf: lines,
		SlurmctldEnv: []string{"LD_AUDIT=" + filepath.Join(s.state, "probe.so"), "GPUBENCH_PROBE=" + filepath.Join(s.state, "probe")},
		Conf:         map[string]string{"RefreshInterval": "10", "CalcInterval": "10"},
	})
	if err != nil {
		return nil, err
	}
	s.pid = s.cluster.SlurmctldPID()
	if err := s.writeOwners(accounts); err != nil {
		return nil, err
	}
	if k.priority == testcluster.Gpubudget {
		if err := s.cluster.LoadBudgetsFrom(ctx, time.Now().Add(-history), nil); err != nil {
			return nil, err
		}
		if err := s.addUsage(ctx, sisters(accounts)...); err != nil {
			return nil, err
		}
	} else if _, err := s.cluster.Exec(ctx, "root", "sacctmgr", "--immediate", "modify", "qos", urgent, "set", "preempt=normal"); err != nil {
		return nil, err
	}
	return s, s.occupy(ctx, k, running, nodes)
}

// sisters are the accounts with the parent of the first owner's.
func sisters(accounts []testcluster.Account) (names []string) {
	first := slices.IndexFunc(accounts, func(a testcluster.Account) bool { return len(a.Users) > 0 })
	for i := range accounts {
		if accounts[i].Parent == accounts[first].Parent {
			names = append(names, accounts[i].Name)
		}
	}
	return names
}

// occupy starts the jobs.
func (s *side) occupy(ctx context.Context, k *fullCluster, running, nodes int) error {
	if _, err := s.submit(ctx, 0, 1, 1, "-a", "-g", "0", "-N", strconv.Itoa(nodes), "-q", urgent); err != nil {
		return err
	}
	args := []string{"-a", "-w", "-g", "1"} // Slurm is quicker where it has no choice
	if k.minRuntime != "" {
		args = append(args, "-m", k.minRuntime)
	}
	if _, err := s.submit(ctx, 0, running, 2, args...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, mostOfCycle)
	defer cancel()
	return s.cluster.Wait(ctx, "all jobs to run", func() (bool, error) {
		rows, err := s.cluster.Rows(ctx, "root", "squeue", "--noheader", "--states=RUNNING", "--format=%i")
		return len(rows) == running+1, err
	})
}
