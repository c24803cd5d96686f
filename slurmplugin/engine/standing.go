// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"math"
	"strings"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/usage"
)

// scorer is fairshare.Strict or fairshare.Additive.
type scorer interface {
	Priority(job *fairshare.Job, f *fairshare.Factors)
}

// rank ranks everybody at an instant: by the snapshot, by what ended since it
// was read, and by what runs. Without a snapshot nobody stands anywhere, and
// jobs are alike but for what they bring along: QOS, nice, age, size.
func (e *Engine) rank(now fairshare.Instant) *fairshare.Ranking {
	s := e.snapshot
	if s == nil {
		return fairshare.Rank(fairshare.Input{Budget: &fairshare.Budget{}, Window: fairshare.Period{From: now, Until: now}})
	}
	w := s.Lookback(now)
	budget := fairshare.Budget{
		Accounts: s.Budget.Accounts,
		Capacity: capacity(s.Budget.Capacity, e.tracker.capacity),
	}
	e.tracker.trim(w, s.Policy.Bucket)
	in := fairshare.Input{Budget: &budget, Window: w, Charges: append(e.charges[:0], e.window.in(w)...), Ahead: e.ahead[:0]}
	for i := range e.tracker.tail {
		if e.tracker.tail[i].run == nil {
			in.Charges = append(in.Charges, e.tracker.tail[i].Charge)
		}
	}
	at := now.Time()
	for _, r := range e.tracker.openRuns() {
		usage.AddOpen(&in, &r.Run, at)
	}
	e.charges, e.ahead = in.Charges, in.Ahead
	return fairshare.Rank(in)
}

// capacity puts what the database knew and what was seen since together. The
// last value holds on.
func capacity(stored []fairshare.Step[fairshare.MilliGPUs], seen []capacityStep) []fairshare.Step[fairshare.MilliGPUs] {
	steps := make([]fairshare.Step[fairshare.MilliGPUs], 0, len(stored)+len(seen))
	for _, step := range stored {
		if len(seen) > 0 && step.From >= seen[0].at {
			break
		}
		steps = append(steps, step)
	}
	for _, change := range seen {
		if n := len(steps); n > 0 {
			steps[n-1].Until = change.at
		}
		steps = append(steps, fairshare.Step[fairshare.MilliGPUs]{
			Period: fairshare.Period{From: change.at, Until: fairshare.Never}, Value: change.gpus,
		})
	}
	if n := len(steps); n > 0 {
		steps[n-1].Until = fairshare.Never
	}
	return steps
}

// stand ranks everybody as of now, once for each pass.
func (e *Engine) stand(now fairshare.Instant) {
	if e.stands {
		return
	}
	e.ranking = e.rank(now)
	e.stands = true
	if e.snapshot != nil {
		e.owners.standing = e.ranking
	}
}

// prepare makes ready to give the jobs of this pass their priorities.
func (e *Engine) prepare(now fairshare.Instant) {
	e.prepared, e.tres = true, len(e.weights.TRES)
	size := fairshare.ClusterSize{Nodes: e.size.Nodes, CPUs: e.size.CPUs}
	if e.slurm.inForce {
		e.scorer = fairshare.NewAdditive(nil, e.weights, size)
		return
	}
	e.stand(now)
	if e.snapshot != nil && e.snapshot.Policy.Mode == budgets.Additive {
		e.scorer = fairshare.NewAdditive(e.ranking, e.weights, size)
	} else {
		e.scorer = fairshare.NewStrict(e.ranking, e.weights, size, &e.seen)
	}
}

// fill is the job as fairshare takes it. It borrows the job's arrays.
func (e *Engine) fill(to *fairshare.Job, j *Job, now fairshare.Instant) {
	*to = fairshare.Job{
		Age: -1, QOSPriority: j.QOSPriority, Nice: j.Nice, Site: j.Site,
		CPUs: j.CPUs, MinNodes: j.MinNodes, TimeLimit: j.TimeLimit,
		AssocFactor: j.AssocFactor, PartitionFactor: j.PartFactor, QOSFactor: j.QOSFactor,
		TRES: floats(j.TRES, len(e.weights.TRES)), Parts: to.Parts[:0],
	}
	if e.slurm.inForce {
		to.Fairshare = e.slurm.factors[j.AssocID]
	} else {
		o := e.owners.of(j)
		to.Account, to.User, to.Place = o.account, o.user, &o.place
	}
	if j.Accrue > 0 {
		to.Age = max(0, unix(now)-j.Accrue)
	}
	for i := range j.parts() {
		part := &j.parts()[i]
		to.Parts = append(to.Parts, fairshare.JobPart{Factor: part.Factor, TRES: floats(part.TRES, len(e.weights.TRES))})
	}
}

// prioritize gives one job its priority.
func (e *Engine) prioritize(j *Job, now fairshare.Instant, out *Factors) {
	e.fill(&e.job, j, now)
	e.scorer.Priority(&e.job, &e.factors)
	f := &e.factors
	out.Age, out.Assoc, out.Fairshare = f.Age, f.Assoc, f.Fairshare
	out.JobSize, out.Partition, out.QOS = f.JobSize, f.Partition, f.QOS
	out.Site, out.Nice, out.Priority = f.Site, f.Nice, f.Priority
	copy(floats(out.TRES, e.tres), f.TRES)
	for i := range j.parts() {
		j.parts()[i].Priority = e.job.Parts[i].Priority
	}
}

// showStanding fills in how one association stands.
func showStanding(r *fairshare.Ranking, a *Assoc) {
	a.Known = 0
	root := r.Accounts[0]
	account := strings.ToLower(a.Account.borrow())
	if a.User.IsNil() {
		s, ok := r.Account(account)
		if !ok {
			return
		}
		a.Known, a.Factor = 1, 0
		a.LevelFS, a.SharesNorm = boundedLevel(s.LevelFS), s.ShareOfCluster
		a.UsageSeconds, a.UsageNorm = gpuSeconds(s.Used), part(s.Used, root.Used)
		return
	}
	s, ok := r.User(account, a.User.borrow())
	if !ok {
		return
	}
	a.Known, a.Factor = 1, s.Factor
	a.LevelFS, a.SharesNorm = boundedLevel(s.LevelFS), s.ShareOfCluster
	a.UsageSeconds, a.UsageNorm = gpuSeconds(s.Used), part(s.Used, root.Used)
}

// boundedLevel is a level fair share as it may leave the bridge.
func boundedLevel(x float64) float64 { return min(x, math.MaxFloat64) }

func gpuSeconds(g fairshare.GPUMillis) float64 { return float64(g) / 1000 }

// part is used as a part of all, 0 if there is none.
func part(used, all fairshare.GPUMillis) float64 {
	if all <= 0 {
		return 0
	}
	return float64(used) / float64(all)
}
