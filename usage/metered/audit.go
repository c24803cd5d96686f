// SPDX-License-Identifier: GPL-2.0-or-later

package metered

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// DefaultTolerance is how long Slurm's record and the meters may differ at a
// stretch until it counts as a disagreement: Prolog runs after the start of a run,
// Epilog after its end, and agents write each half minute.
const DefaultTolerance = time.Minute

// Kind is what a disagreement is about.
type Kind string

// The kinds of disagreements.
const (
	NoMeter    Kind = "no-meter"   // a run of which nothing was metered
	Missing    Kind = "gap"        // a stretch of a run in which not all of its GPUs were metered
	TooMany    Kind = "extra"      // more GPUs were metered than the run has
	NoRun      Kind = "outside"    // metered, and in no run of the job
	Silent     Kind = "silent"     // an agent that gives no sign of life
	Unmeasured Kind = "unmeasured" // an agent that can't look at its GPUs
	NoAgent    Kind = "no-agent"   // GPUs that Slurm can schedule, and that no agent knows
)

// Disagreement is something in which Slurm's record and the meters differ, or
// because of which they will.
type Disagreement struct {
	fairshare.Period // empty if it is about now

	Kind           Kind
	JobID, Restart uint32 // 0: it is about no job
	User           string
	Nodes          string // a node, or several as Slurm lists them
	GPU            string
	Amount         fairshare.GPUMillis // GPU time that it is about
	Why            string
}

// Node is how much of what ran on a node was metered.
type Node struct {
	Name string
	// Used is what runs have used on the node, Covered what of it was metered. A
	// run on several nodes counts on each by the GPUs that were metered there; of
	// what is missing, those that have least get one GPU after the other.
	Used, Covered fairshare.GPUMillis
	Agent         *Agent // nil: none has ever written
}

// Audit is the comparison of Slurm's record with the meters over a period.
type Audit struct {
	Reading       *Reading
	Nodes         []Node // by name
	Disagreements []Disagreement
	Used, Covered fairshare.GPUMillis
}

// Audit compares Slurm's record with the meters over a period. now is the present
// moment by the database's clock; node, unless it is empty, is the only one that
// is looked at.
func (s *Store) Audit(ctx context.Context, cluster string, w fairshare.Period, now time.Time, tolerance time.Duration, node string) (*Audit, error) {
	var a *Audit
	err := usage.NewStore(s.db).Snapshot(ctx, func(u *usage.Store) error {
		s := NewStore(u.DB())
		f, err := OpenRunsUntil(ctx, u, cluster, now)
		if err != nil {
			return err
		}
		r, err := s.Read(ctx, cluster, w, f)
		if err != nil {
			return err
		}
		agents, err := s.Agents(ctx, cluster)
		if err != nil {
			return err
		}
		devices, err := s.Devices(ctx, cluster)
		if err != nil {
			return err
		}
		gpus, known, err := u.Schedulable(ctx, cluster, now)
		if err != nil {
			return err
		}
		b := auditor{Audit: Audit{Reading: r}, now: now, tolerance: tolerance.Milliseconds(), node: node, nodes: map[string]*Node{}}
		b.agents(agents)
		for i := range r.Runs {
			b.run(&r.Runs[i])
		}
		b.outside()
		if known {
			b.agentless(agents, devices, gpus.GPUs)
		}
		a = b.done()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("compare the meters of %s with the runs: %w", cluster, err)
	}
	return a, nil
}

// recorderSilent is how long the recorder may be silent until open runs count up
// to its last sign of life only, as in all reports.
const recorderSilent = 2 * time.Minute

// OpenRunsUntil has open runs count as far as they are known to have gone on.
func OpenRunsUntil(ctx context.Context, u *usage.Store, cluster string, now time.Time) (Filter, error) {
	f := Filter{OpenUntil: fairshare.At(now)}
	r, seen, err := u.LastSeen(ctx, cluster)
	if err == nil && seen && now.Sub(r.SeenAt) > recorderSilent {
		f.OpenUntil = fairshare.At(r.SeenAt)
	}
	return f, err
}

type auditor struct {
	Audit

	now       time.Time
	tolerance int64
	node      string
	nodes     map[string]*Node
}

// at is the account of a node.
func (b *auditor) at(name string) *Node {
	n := b.nodes[name]
	if n == nil {
		n = &Node{Name: name}
		b.nodes[name] = n
	}
	return n
}

// tell adds a disagreement, if it is about the node that is looked at.
func (b *auditor) tell(d Disagreement) {
	if b.node == "" || slices.Contains(Nodes(d.Nodes), b.node) {
		b.Disagreements = append(b.Disagreements, d)
	}
}

// agents looks at signs of life. One that ended before the period, on a node that
// nobody has used since, is of a node that is no more.
func (b *auditor) agents(agents []Agent) {
	used := map[string]bool{}
	for i := range b.Reading.Runs {
		for _, name := range Nodes(b.Reading.Runs[i].Nodes) {
			used[name] = true
		}
	}
	for i := range agents {
		a := &agents[i]
		if !used[a.Node] && fairshare.At(a.SeenAt) < b.Reading.Period.From {
			continue
		}
		b.at(a.Node).Agent = a
		d := Disagreement{Nodes: a.Node}
		switch {
		case a.Silent(b.now):
			d.Kind, d.Period = Silent, fairshare.Period{From: fairshare.At(a.SeenAt), Until: fairshare.At(b.now)}
			d.Why = "no sign of life of the agent: is gpubudget-agent running there, can it reach the database?"
		case a.State != "ok":
			d.Kind, d.Why = Unmeasured, a.State
		default:
			continue
		}
		b.tell(d)
	}
}

func (b *auditor) run(r *Run) {
	b.share(r)
	d := Disagreement{JobID: r.JobID, Restart: r.Restart, User: r.User, Nodes: r.Nodes}
	switch {
	case r.GPUCount() == 0:
	case len(r.GPUs) == 0:
		if r.Within.Millis() > b.tolerance {
			d.Kind, d.Period, d.Amount, d.Why = NoMeter, r.Within, r.Used, "nothing of the run was metered: charged from Slurm's record"
			b.tell(d)
		}
	default:
		for _, g := range r.Gaps {
			if g.Millis() > b.tolerance {
				d.Kind, d.Period, d.Amount, d.Why = Missing, g.Period, g.Amount, "not metered: charged from Slurm's record"
				d.Nodes = lacking(r, g.Period)
				b.tell(d)
			}
		}
		for _, p := range r.Extra {
			if p.Millis() > b.tolerance && !slices.ContainsFunc(r.GPUs, func(g GPU) bool { return g.Shared }) {
				d.Kind, d.Period, d.Amount, d.Nodes = TooMany, p.Period, p.Amount, r.Nodes
				d.Why = fmt.Sprintf("more GPUs were metered than the %d that Slurm's record has: not charged", r.GPUCount())
				b.tell(d)
			}
		}
	}
}

// lacking are the nodes of a run where fewer GPUs were metered in a gap than the
// run has there.
func lacking(r *Run, gap fairshare.Period) string {
	metered := map[string]int64{}
	for i := range r.GPUs {
		for _, p := range r.GPUs[i].Held {
			metered[r.GPUs[i].Node] += p.Intersect(gap).Millis()
		}
	}
	names, gpus := placed(r)
	return strings.Join(slices.DeleteFunc(names, func(name string) bool { return metered[name] >= gpus[name]*gap.Millis() }), ",")
}

// placed is how many GPUs a run has on each of its nodes: those that were metered
// there; and of what is missing, the nodes that have least get one after the
// other. Slurm's record has the sum only.
func placed(r *Run) (names []string, gpus map[string]int64) {
	names, gpus = Nodes(r.Nodes), map[string]int64{}
	total := int64(0)
	for i := range r.GPUs {
		if node := r.GPUs[i].Node; slices.Contains(names, node) && total < r.GPUCount() {
			gpus[node]++
			total++
		}
	}
	for ; total < r.GPUCount(); total++ {
		gpus[slices.MinFunc(names, func(a, b string) int { return cmp.Compare(gpus[a], gpus[b]) })]++
	}
	return names, gpus
}

// share counts a run on its nodes.
func (b *auditor) share(r *Run) {
	if r.GPUCount() == 0 {
		return
	}
	names, gpus := placed(r)
	metered := map[string]int64{}
	for i := range r.GPUs {
		metered[r.GPUs[i].Node] += r.GPUs[i].HeldMillis()
	}
	restUsed, restCovered, restGPUs, restMetered := int64(r.Used), int64(r.Covered), r.GPUCount(), int64(0)
	for _, name := range names {
		restMetered += metered[name]
	}
	for _, name := range names { // what is lost by rounding goes to the last
		n := b.at(name)
		used := mulDiv(restUsed, gpus[name], restGPUs)
		covered := min(mulDiv(restCovered, metered[name], restMetered), used)
		n.Used += fairshare.GPUMillis(used)
		n.Covered += fairshare.GPUMillis(covered)
		restUsed, restGPUs = restUsed-used, restGPUs-gpus[name]
		restCovered, restMetered = restCovered-covered, restMetered-metered[name]
	}
	b.Used += r.Used
	b.Covered += r.Covered
}

func (b *auditor) outside() {
	for i := range b.Reading.Outside {
		o := &b.Reading.Outside[i]
		b.at(o.Node)
		if o.Millis() <= b.tolerance {
			continue
		}
		why := "outside of the job's runs: not charged"
		if !o.Known {
			why = "Slurm's record has no run of this job in the period: not charged"
		}
		b.tell(Disagreement{
			Kind: NoRun, Period: o.Period, JobID: o.JobID, Restart: o.Restart, User: o.User, Nodes: o.Node, GPU: o.GPU,
			Amount: fairshare.GPUMillis(o.Millis()), Why: why,
		})
	}
}

// agentless compares what Slurm can schedule with what agents know of. Where a
// node's GPUs are divided, Slurm counts the instances.
func (b *auditor) agentless(agents []Agent, devices []Device, gpus int64) {
	if b.node != "" {
		return
	}
	divided, leaves := map[string]bool{}, map[string]int64{}
	for i := range devices {
		divided[devices[i].Parent] = true
	}
	for i := range devices {
		if !divided[devices[i].UUID] {
			leaves[devices[i].Node]++
		}
	}
	var known int64
	for i := range agents {
		if !agents[i].Silent(b.now) {
			known += max(agents[i].GPUs, leaves[agents[i].Node])
		}
	}
	if missing := gpus - known; missing > 0 {
		b.tell(Disagreement{
			Kind: NoAgent,
			Why:  fmt.Sprintf("Slurm can schedule %d GPUs and agents that are alive know %d: %d are not metered", known+missing, known, missing),
		})
	}
}

func (b *auditor) done() *Audit {
	for _, name := range slices.Sorted(maps.Keys(b.nodes)) {
		if b.node == "" || b.node == name {
			b.Nodes = append(b.Nodes, *b.nodes[name])
		}
	}
	if b.node != "" {
		b.Used, b.Covered = 0, 0
		for i := range b.Nodes {
			b.Used += b.Nodes[i].Used
			b.Covered += b.Nodes[i].Covered
		}
	}
	slices.SortStableFunc(b.Disagreements, func(x, y Disagreement) int {
		return cmp.Or(cmp.Compare(rank(x.Kind), rank(y.Kind)), cmp.Compare(x.JobID, y.JobID), cmp.Compare(x.From, y.From), cmp.Compare(x.Nodes, y.Nodes), cmp.Compare(x.GPU, y.GPU))
	})
	return &b.Audit
}

// rank orders kinds: what is wrong with meters comes first, since it explains the
// rest.
func rank(k Kind) int {
	return slices.Index([]Kind{NoAgent, Silent, Unmeasured, NoMeter, Missing, TooMany, NoRun}, k)
}
