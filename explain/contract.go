// SPDX-License-Identifier: GPL-2.0-or-later

package explain

import (
	"cmp"
	"slices"
	"time"

	"gpubudget/fairshare"
	"gpubudget/report"
	"gpubudget/usage"
)

// Yielding is a running job and what the contract says of it and a request.
type Yielding struct {
	Runs           []*usage.Run // of a het job those of all components, else one
	ProtectedUntil time.Time    // zero if it isn't
	fairshare.Decision
}

// Name is the run by which the job is called: of a het job the first component's.
func (y *Yielding) Name() *usage.Run {
	return slices.MinFunc(y.Runs, func(a, b *usage.Run) int { return cmp.Compare(a.JobID, b.JobID) })
}

// Offer is what running jobs yield to a request, as far as the records and the
// queue tell. Het jobs are one job each.
type Offer struct {
	Request fairshare.Request
	// Yields are the jobs that would make way now, in the order of the record.
	// Room for the request, and R7 for all of them together, is Slurm's and the
	// plugin's to find out.
	Yields []Yielding
	GPUs   int64 // of these
	// Next is the job whose protection ends first of those that will yield then;
	// nil if there is none.
	Next *Yielding
	// Protected and Ahead are how many others are protected still, and how many
	// are of accounts that the request's is not far enough behind.
	Protected, Ahead int
	Spared           int // by R7
	Unknown          int // nobody knows for how long they are protected: they keep their GPUs
	// Same are those of its own account whose minimum runtime has passed and that
	// are not spared, those that yield among them; OtherQOS are how many of these are
	// in another QOS, so that nobody knows here.
	Same, OtherQOS int
}

// Queued is what Slurm's queue, and the record of preemptions, tell of jobs.
type Queued interface {
	// Preempted is how often a job was preempted in the last 24 hours.
	Preempted(job uint32) int
	// Nice is a running job's, if its QOS is the request's: whichever QOS is the
	// higher decides else.
	Nice(job uint32) (nice int64, sameQOS bool)
}

// OfferTo is the offer to a request.
func OfferTo(rec *report.Record, q fairshare.Request, queued Queued) Offer {
	o := Offer{Request: q}
	if !q.Allocated {
		return o
	}
	ranking := fairshare.Rank(rec.Input())
	for _, runs := range usage.Jobs(rec.Open) {
		protection := usage.ProtectionOf(runs, rec.UsedUntil)
		switch {
		case protection.GPUs == 0: // of parts of GPUs nobody is preempted
		case protection.Unknown:
			o.Unknown++
		default:
			c := newCandidate(rec, runs, &q, queued)
			y := Yielding{Runs: runs, ProtectedUntil: protection.Until}
			var sameQOS bool
			y.Decision, sameQOS = c.decide(rec, ranking, rec.Window.Until)
			later, _ := c.decide(rec, ranking, max(rec.Window.Until, fairshare.At(protection.Until)))
			o.add(&y, protection.GPUs, later, sameQOS)
		}
	}
	slices.SortStableFunc(o.Yields, func(x, y Yielding) int { return cmp.Compare(x.Rule, y.Rule) })
	return o
}

// add adds a running job; later is what the rules say once its protection has
// ended.
func (o *Offer) add(y *Yielding, gpus int64, later fairshare.Decision, sameQOS bool) {
	if y.Yields {
		o.Yields = append(o.Yields, *y)
		o.GPUs += gpus
	}
	switch {
	case y.Rule == fairshare.R4:
		o.Same++
		if !y.Yields && !sameQOS {
			o.OtherQOS++
		}
	case y.Yields:
	case y.Rule == fairshare.R2:
		o.Protected++
		if y.Decision = later; later.Yields && (o.Next == nil || y.ProtectedUntil.Before(o.Next.ProtectedUntil)) {
			o.Next = y
		}
	case y.Rule == fairshare.R7:
		o.Spared++
	default:
		o.Ahead++
	}
}

// candidate is a running job that may yield to a request.
type candidate struct {
	request   *fairshare.Request
	occupants []fairshare.Occupant // its components that have GPUs
	sameQOS   []bool               // as the request
}

func newCandidate(rec *report.Record, runs []*usage.Run, q *fairshare.Request, queued Queued) *candidate {
	c := &candidate{request: q}
	for _, r := range runs {
		if r.GPUs == 0 {
			continue
		}
		o := occupantOf(rec, r)
		o.Preempted = queued.Preempted(r.JobID)
		nice, sameQOS := queued.Nice(r.JobID)
		if o.Nice = nice; !sameQOS {
			o.Nice = q.Nice // so that nice decides nothing
		}
		c.occupants, c.sameQOS = append(c.occupants, o), append(c.sameQOS, sameQOS)
	}
	fairshare.Together(c.occupants)
	return c
}

// decide is what the rules say of the job at an instant: all components yield or
// none does. If none does it is for the component that is protected, if there is
// one; if they do it is for what the allocated ones do.
func (c *candidate) decide(rec *report.Record, r *fairshare.Ranking, at fairshare.Instant) (whole fairshare.Decision, sameQOS bool) {
	for i := range c.occupants {
		d := rec.Policy.Contract.Decide(r, at, c.request, &c.occupants[i])
		if i == 0 || precedence(d) > precedence(whole) {
			whole, sameQOS = d, c.sameQOS[i]
		}
	}
	return whole, sameQOS
}

// precedence tells which decision about a component decides about its job.
func precedence(d fairshare.Decision) int {
	switch {
	case d.Yields && d.Rule == fairshare.R1:
		return 0
	case d.Yields:
		return 1
	case d.Rule == fairshare.R2:
		return 4
	case d.Rule == fairshare.R7:
		return 3
	}
	return 2
}

// occupantOf is a run as the contract sees it.
func occupantOf(rec *report.Record, r *usage.Run) fairshare.Occupant {
	o := fairshare.Occupant{
		Account: r.Account, GPUs: r.GPUs, Allocated: r.Allocated, ProtectedUntil: fairshare.At(r.StartedAt),
		Ahead: r.Ahead(rec.UsedUntil, time.Duration(rec.Window.Millis())*time.Millisecond),
	}
	if until, ok := r.ProtectedUntil(rec.UsedUntil); ok {
		o.ProtectedUntil = fairshare.At(until)
	}
	return o
}

// Rules are what the contract's rules say, in a few words.
var Rules = map[string]string{
	"R1": "an unallocated job yields to any allocated one",
	"R2": "its minimum runtime has not passed",
	"R3": "the account that asked was further behind than that of the job that made way",
	"R4": "within one account, the higher declared priority",
	"R5": "an unallocated job preempts nobody",
	"R7": "no job is preempted too often, and none evicts too much",

	usage.Drain: "a node was drained",
}
