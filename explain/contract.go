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
	Run            *usage.Run
	ProtectedUntil time.Time // zero if it isn't
	fairshare.Decision
}

// Offer is what running jobs yield to a request, as far as the records and the
// queue tell.
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
	ranking, contract := fairshare.Rank(rec.Input()), rec.Policy.Contract
	for i := range rec.Open {
		r := &rec.Open[i]
		if r.GPUs == 0 {
			continue
		}
		y := Yielding{Run: r}
		occupant := occupantOf(rec, r, &y)
		occupant.Preempted = queued.Preempted(r.JobID)
		var sameQOS bool
		if occupant.Nice, sameQOS = queued.Nice(r.JobID); !sameQOS {
			occupant.Nice = q.Nice // so that nice decides nothing
		}
		y.Decision = contract.Decide(ranking, rec.Window.Until, &q, &occupant)
		later := contract.Decide(ranking, occupant.ProtectedUntil, &q, &occupant)
		o.add(&y, later, sameQOS)
	}
	slices.SortStableFunc(o.Yields, func(x, y Yielding) int { return cmp.Compare(x.Rule, y.Rule) })
	return o
}

// add adds a running job; later is what the rules say once its protection has
// ended.
func (o *Offer) add(y *Yielding, later fairshare.Decision, sameQOS bool) {
	if y.Yields {
		o.Yields = append(o.Yields, *y)
		o.GPUs += y.Run.GPUs
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

// occupantOf is a run as the contract sees it.
func occupantOf(rec *report.Record, r *usage.Run, y *Yielding) fairshare.Occupant {
	o := fairshare.Occupant{
		Account: r.Account, GPUs: r.GPUs, Allocated: r.Allocated,
		Ahead: r.Ahead(rec.UsedUntil, time.Duration(rec.Window.Millis())*time.Millisecond),
	}
	switch until, ok := r.ProtectedUntil(rec.UsedUntil); {
	case ok:
		y.ProtectedUntil, o.ProtectedUntil = until, fairshare.At(until)
	case r.Allocated: // nobody knows: it keeps its GPUs
		o.ProtectedUntil = fairshare.Never
	}
	return o
}

// Rules are what the contract's rules say, in a few words.
var Rules = map[string]string{
	"R1": "an unallocated job yields to any allocated one",
	"R2": "its minimum runtime has not passed",
	"R3": "the account of the one was further behind than that of the other",
	"R4": "within one account, the higher declared priority",
	"R5": "an unallocated job preempts nobody",
	"R7": "no job is preempted too often, and none evicts too much",

	usage.Drain: "a node was drained",
}
