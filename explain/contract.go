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

// Offer is what running jobs yield to a request, as far as the records tell: of
// jobs of its own account they don't, since there the declared priority decides.
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
	Same             int // of its own account
}

// OfferTo is the offer to a request. preempted tells how often a job was in the
// last 24 hours.
func OfferTo(rec *report.Record, q fairshare.Request, preempted func(job uint32) int) Offer {
	o := Offer{Request: q}
	if !q.Allocated {
		return o
	}
	ranking := fairshare.Rank(rec.Input())
	contract := rec.Policy.Contract
	now := rec.Window.Until
	for i := range rec.Open {
		r := &rec.Open[i]
		if r.GPUs == 0 {
			continue
		}
		y := Yielding{Run: r}
		occupant := occupantOf(rec, r, &y)
		occupant.Preempted = preempted(r.JobID)
		switch y.Decision = contract.Decide(ranking, now, &q, &occupant); {
		case y.Yields && y.Rule != fairshare.R4:
			o.Yields = append(o.Yields, y)
			o.GPUs += r.GPUs
		case y.Rule == fairshare.R4:
			o.Same++
		case y.Rule == fairshare.R2:
			o.Protected++
			later := contract.Decide(ranking, occupant.ProtectedUntil, &q, &occupant)
			if y.Decision = later; later.Yields && later.Rule != fairshare.R4 && (o.Next == nil || y.ProtectedUntil.Before(o.Next.ProtectedUntil)) {
				o.Next = &y
			}
		default:
			o.Ahead++
		}
	}
	slices.SortStableFunc(o.Yields, func(x, y Yielding) int { return cmp.Compare(x.Rule, y.Rule) })
	return o
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
	"R4": "within one account, the higher declared priority or a large job that has waited",
	"R5": "an unallocated job preempts nobody",
	"R7": "no job is preempted too often, and none evicts too much",

	usage.Drain: "a node was drained",
}
