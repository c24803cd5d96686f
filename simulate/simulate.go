// SPDX-License-Identifier: GPL-2.0-or-later

// Package simulate runs a workload through a cluster in simulated time, under
// gpubudget or under what it is to replace, and measures who got what and who
// waited for how long.
//
// Under gpubudget the ranking, the order of jobs and the rules of who yields to whom
// come from the package fairshare, from the functions that the plugin calls. Who of
// those that would yield has to go is chosen by fairshare.Contract.Victims, where the
// plugin makes offers to Slurm. The rest of a scheduler, that is placement on nodes,
// backfill and requeueing, is modelled here; docs/simulation.md says how, and what is
// left out.
//
// The same configuration gives the same result, to the byte.
package simulate

import (
	"errors"
	"fmt"
	"time"

	"gpubudget/fairshare"
)

// Config is one run.
type Config struct {
	Workload *Workload
	Cluster  Cluster
	// Budget is who is due what; its capacity is that of Cluster.
	Budget *fairshare.Budget
	Policy Policy
	// Until is the second at which the run ends, counted from Workload.Begin; 0
	// is when all jobs have ended.
	Until int64
	// Progress is told at the beginning, now and then, and at the end how many of
	// the jobs have been submitted; nil if nobody wants to know.
	Progress func(submitted, jobs int)
	// Record is told of each stretch of time that a job ran when it ends; nil if
	// nobody wants to know. It must not keep Stint.Pieces.
	Record func(Stint)
}

// Stint is a job's time on its nodes, from a start to an end.
type Stint struct {
	Job            int // index in Workload.Jobs
	Start, End     int64
	ProtectedUntil int64 // Start for what isn't allocated, its time limit where nobody is preempted
	Waited         int64 // until this start, if it was the job's first; -1 if not
	Allocated      bool
	Ended          Ending
	Pieces         []Piece
}

// Piece is GPUs of one node.
type Piece struct {
	Node int32
	GPUs int16
}

// Ending is why a job no longer runs.
type Ending uint8

// The endings.
const (
	Done       Ending = iota // it has done its work, or its time limit has come
	Preempted                // it had to yield
	NodeLost                 // its node failed
	Unfinished               // the run of the simulator ended before it
)

// Kind is what decides who is next.
type Kind uint8

// The kinds of policies.
const (
	Budgets     Kind = iota // gpubudget: strict priority by budgets
	Multifactor             // Slurm's own: Fair Tree with usage that decays, and age
	FIFO                    // who came first
	Quota                   // as many GPUs at once as the account's share is of the cluster
)

// Policy is how a cluster is scheduled.
type Policy struct {
	Name string
	Kind Kind
	// Contract is the rules of preemption, of Budgets only; nil if nobody is
	// preempted. Then no job is unallocated by its own choice, either.
	Contract *fairshare.Contract
	// Overflow lets jobs of accounts whose quota is used up run on idle GPUs,
	// where they yield to those within a quota.
	Overflow bool
	// Additive makes priorities of Budgets as Slurm does, with its own fair-share
	// factor and the weights below, instead of strict ones.
	Additive bool
	// Lookback is the window of Budgets.
	Lookback time.Duration
	// HalfLife is PriorityDecayHalfLife of Multifactor.
	HalfLife time.Duration
	// FairshareWeight, AgeWeight and MaxAge are those of slurm.conf, for
	// Multifactor and Additive.
	FairshareWeight, AgeWeight uint32
	MaxAge                     time.Duration

	// CalcInterval is the time between two priority passes.
	CalcInterval time.Duration
	// BackfillInterval is the time between two passes over the whole queue; in
	// between, jobs start in order until one has to wait.
	BackfillInterval time.Duration
	// BackfillDepth is how many jobs such a pass looks at that could be placed
	// but might delay the job for which nodes are held.
	BackfillDepth int

	// MinRuntime is for how long a job is protected that declares nothing, at
	// most its time limit; MinRuntimeCap is the longest that it can declare.
	MinRuntime, MinRuntimeCap time.Duration
	// MinRuntimes stand in for MinRuntime in some accounts, in those only.
	MinRuntimes map[string]time.Duration
	// Checkpoint is how often a job saves what it has done; 0 is never.
	Checkpoint time.Duration
	// RequeueHold is for how long Slurm holds a requeued job back.
	RequeueHold time.Duration
	// LargeJob is from how many GPUs on a job for which nodes are held keeps
	// them until it starts, even if others come before it in the meantime; 0 is
	// for no job, and the default: Slurm has nothing of the kind.
	LargeJob int
}

// DefaultPolicy is one of the policies by name, with Slurm's and gpubudget's
// defaults.
func DefaultPolicy(name string) (Policy, error) {
	p := Policy{
		Name: name, Lookback: 7 * day, HalfLife: 7 * day,
		FairshareWeight: 100_000, AgeWeight: 1000, MaxAge: 7 * day,
		CalcInterval: 5 * time.Minute, BackfillInterval: 30 * time.Second, BackfillDepth: 500,
		MinRuntime: time.Hour, MinRuntimeCap: 8 * time.Hour, Checkpoint: 30 * time.Minute, RequeueHold: 121 * time.Second,
	}
	switch name {
	case "contract":
		contract := fairshare.DefaultContract()
		p.Contract = &contract
	case "gpubudget":
	case "multifactor":
		p.Kind = Multifactor
	case "fifo":
		p.Kind = FIFO
	case "quota":
		p.Kind = Quota
	case "overflow":
		p.Kind, p.Overflow = Quota, true
	default:
		return Policy{}, fmt.Errorf("unknown policy %q", name)
	}
	return p, nil
}

// PolicyNames are the names that DefaultPolicy knows: gpubudget with its contract
// and without, Slurm's multifactor, first come first served, and quotas without
// and with overflow.
func PolicyNames() []string {
	return []string{"contract", "gpubudget", "multifactor", "fifo", "quota", "overflow"}
}

const day = 24 * time.Hour

// Cluster is what there is to run on.
type Cluster struct {
	Partitions []Partition
	Outages    []Outage
}

// Partition is nodes that are alike. A job runs in one partition.
type Partition struct {
	Name        string
	Nodes       int
	GPUsPerNode int
}

// Outage is a time for which a node is not to be had. What runs there when it
// begins is lost and requeued; with Drain it may end in peace.
type Outage struct {
	Node        int // of all partitions, counted from 0
	From, Until int64
	Drain       bool
}

// GPUs is how many the cluster has.
func (c *Cluster) GPUs() int {
	n := 0
	for _, p := range c.Partitions {
		n += p.Nodes * p.GPUsPerNode
	}
	return n
}

// Nodes is how many the cluster has.
func (c *Cluster) Nodes() int {
	n := 0
	for _, p := range c.Partitions {
		n += p.Nodes
	}
	return n
}

// mostGPUs is more than any cluster has.
const mostGPUs = 1 << 20

func (c *Cluster) check() error {
	if len(c.Partitions) == 0 {
		return errors.New("the cluster has no partition")
	}
	for _, p := range c.Partitions {
		if p.Nodes < 1 || p.GPUsPerNode < 1 || p.GPUsPerNode > 1024 {
			return fmt.Errorf("partition %q has %d nodes with %d GPUs each: there must be a node, and 1 to 1024 GPUs on each", p.Name, p.Nodes, p.GPUsPerNode)
		}
		if p.Nodes > mostGPUs/p.GPUsPerNode {
			return fmt.Errorf("partition %q has more than %d GPUs", p.Name, mostGPUs)
		}
	}
	if c.GPUs() > 1<<slotBits {
		return fmt.Errorf("the cluster has %d GPUs, more than %d", c.GPUs(), 1<<slotBits)
	}
	for _, o := range c.Outages {
		if o.Node < 0 || o.Node >= c.Nodes() {
			return fmt.Errorf("outage of node %d: the cluster's nodes are 0 to %d", o.Node, c.Nodes()-1)
		}
		if o.Until <= o.From {
			return fmt.Errorf("outage of node %d ends before it begins", o.Node)
		}
	}
	return nil
}

// Run runs a workload. It is an error if a job can never run on the cluster or
// its account isn't in the budget: Workload.Misfits finds those.
func Run(cfg Config) (*Result, error) {
	if err := cfg.Cluster.check(); err != nil {
		return nil, err
	}
	if problems := cfg.Workload.Misfits(&cfg.Cluster, cfg.Budget); len(problems) > 0 {
		return nil, fmt.Errorf("%d jobs cannot run, the first: %w", len(problems), problems[0])
	}
	s := newSim(&cfg)
	s.run()
	return s.result(), nil
}
