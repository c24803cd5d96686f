// SPDX-License-Identifier: GPL-2.0-or-later

package explain

import "slices"

// asksUnallocated tells whether a job asks for no minimum runtime, and so comes
// after all that is allocated. Slurm's commands don't show what it asks for, but
// it has nothing in the column FAIRSHARE, while any other job of a funded account
// has: in strict priority always, else if that column has a weight.
func (x *explainer) asksUnallocated(p *Pending, all []Pending) bool {
	a, known := x.ranking.Account(p.Owner.Account)
	if !known || !a.Funded || p.Factors.Fairshare != 0 || p.setByHand() {
		return false
	}
	if x.explanation.Strict {
		return p.Factors.QOS > 0 // else it has no columns yet
	}
	u, member := x.ranking.User(p.Owner.Account, p.Owner.User)
	return member && u.Factor > 0 &&
		slices.ContainsFunc(all, func(q Pending) bool { return q.Factors.Fairshare > 0 })
}

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
