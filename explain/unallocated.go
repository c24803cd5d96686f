// SPDX-License-Identifier: GPL-2.0-or-later

package explain

import (
	"math"
	"slices"

	"gpubudget/fairshare"
)

// asksUnallocated tells whether a job asks for no minimum runtime, and so comes
// after all that is allocated. Slurm's commands don't show what it asks for, but
// it has nothing in the column FAIRSHARE, while any other job of a funded account
// has.
func (x *explainer) asksUnallocated(p *Pending, all []Pending) bool {
	a, known := x.ranking.Account(p.Owner.Account)
	if !known || !a.Funded || p.Factors.Fairshare != 0 || p.setByHand() {
		return false
	}
	if x.explanation.Strict {
		return p.Factors.QOS > 0 // else it has no columns yet
	}
	return !p.bare() || slices.ContainsFunc(all, func(q Pending) bool { return q.allocated() })
}

// allocated tells whether a job of additive priority is: then it has something in the
// column FAIRSHARE.
func (p *Pending) allocated() bool { return p.Factors.Fairshare > 0 }

// within are the jobs that a job can pass in additive priority if it only has
// enough points: of earlier ones none at the end of the range, and if it is
// unallocated none that are allocated, or stand where an operator has put them.
func (p *Pending) within(all []Pending) []Pending {
	return slices.DeleteFunc(slices.Clone(all), func(q Pending) bool {
		first := q.JobID < p.JobID
		if p.allocated() || p.setByHand() {
			return first && q.Factors.Priority == math.MaxUint32
		}
		return q.allocated() || q.setByHand() || first && fairshare.IsBand(q.Factors.Priority)
	})
}

// hidden is how many points of a job of additive priority make no difference, as
// its priority is the least there is all the same: by so much the column NICE is
// less than what is declared.
func (p *Pending) hidden() int64 { return max(p.Nice-p.Factors.Nice, 0) }

// unallocated notes which jobs ask for no minimum runtime.
func (x *explainer) unallocated(job, all []Pending) {
	x.asked = make(map[uint32]bool)
	for i := range all {
		if x.asksUnallocated(&all[i], all) {
			x.asked[all[i].JobID] = true
		}
	}
	x.explanation.Unallocated = x.asked[job[0].JobID]
}
