// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// owner is a user in an account, as jobs name them. What a pass counts for each
// job lies together, in a line of the processor's cache.
type owner struct {
	pass                     uint32 // the last one that counted in these
	pendingJobs, pendingGPUs int64
	runningJobs, runningGPUs int64
	waited                   int64 // what was waited for counts for, from the pass before to this one, in millionths of a GPU

	// Where the account's nice values are noted, and those of jobs that ask to be
	// unallocated, with the passes that they are of.
	seenIn, unallocatedIn uint64
	nice, unallocated     fairshare.SeenNice

	account, user string
	demand        *accountDemand
}

type ownerName struct{ account, user string }

// owners are all owners ever met. Their names are stored once.
type owners struct {
	demand  *demand
	all     []*owner
	byName  map[ownerName]*owner
	byAssoc assocOwners

	judge
	pass uint32
}

func newOwners(d *demand) *owners {
	return &owners{demand: d, byName: make(map[ownerName]*owner), judge: judge{unallocated: UnallocatedZero}}
}

// assocOwners are owners by association. slurmdbd numbers associations from 1.
type assocOwners struct {
	low  []*owner
	high map[uint32]*owner // from lowAssocs on
}

const lowAssocs = 1 << 20

func (a *assocOwners) of(assoc uint32) *owner {
	if int(assoc) < len(a.low) {
		return a.low[assoc]
	}
	return a.high[assoc]
}

func (a *assocOwners) set(assoc uint32, of *owner) {
	if assoc >= lowAssocs {
		if a.high == nil {
			a.high = make(map[uint32]*owner)
		}
		a.high[assoc] = of
		return
	}
	if missing := int(assoc) + 1 - len(a.low); missing > 0 {
		a.low = append(a.low, make([]*owner, missing)...)
	}
	a.low[assoc] = of
}

// begin begins to count the queue anew.
func (o *owners) begin(pass uint32) { o.pass = pass }

// of is the owner of a job.
func (o *owners) of(j *Job) *owner {
	if j.AssocID != 0 {
		if known := o.byAssoc.of(j.AssocID); known != nil {
			return known
		}
	}
	name := o.nameOf(j.Account, j.User, j.UserID)
	found := o.byName[name]
	if found == nil {
		found = o.add(name)
	}
	if j.AssocID != 0 && !j.Account.IsNil() {
		o.byAssoc.set(j.AssocID, found)
	}
	return found
}

// nameOf is who owns jobs that name these; the strings may be borrowed. Slurm
// keeps account names in lower case, but without slurmdbd what the user typed.
func (o *owners) nameOf(account, user CString, uid uint32) ownerName {
	return nameBy(o.standing, account, user, uid)
}

// nameBy is the same by a ranking, or without any.
func nameBy(standing *fairshare.Ranking, account, user CString, uid uint32) ownerName {
	name := ownerName{strings.ToLower(account.borrow()), user.borrow()}
	if name.user == "" {
		name.user = strconv.FormatUint(uint64(uid), 10)
	}
	if name.account == "" && standing != nil {
		name.account, _ = standing.DefaultAccount(name.user)
	}
	return name
}

// named is the owner of these names.
func (o *owners) named(account, user string) *owner {
	name := ownerName{account, user}
	if found := o.byName[name]; found != nil {
		return found
	}
	return o.add(name)
}

func (o *owners) add(name ownerName) *owner {
	name = ownerName{strings.Clone(name.account), strings.Clone(name.user)}
	found := &owner{account: name.account, user: name.user, demand: o.demand.account(name.account)}
	o.byName[name] = found
	o.all = append(o.all, found)
	return found
}

// judge tells which runs that start now are allocated.
type judge struct {
	standing *fairshare.Ranking // the latest; nil as long as there is no snapshot
	terms    fairshare.Terms    // of the snapshot
	// unallocated are the jobs that are unallocated whatever their account has.
	unallocated UnallocatedKinds
}

func newJudge(standing *fairshare.Ranking, terms fairshare.Terms) judge {
	return judge{standing, terms, unallocatedBy(terms)}
}

// note notes the priority that a job of the owner declares.
func (o *owner) note(seen *fairshare.Seen, pass uint64, j *Job, unallocated bool) {
	if unallocated {
		if o.unallocatedIn != pass {
			o.unallocatedIn, o.unallocated = pass, seen.OfUnallocated(o.account)
		}
		seen.AddDeclared(o.unallocated, j.QOSPriority, j.Nice)
		return
	}
	if o.seenIn != pass {
		o.seenIn, o.nice = pass, seen.Of(o.account)
	}
	seen.AddDeclared(o.nice, j.QOSPriority, j.Nice)
}

// knows tells whether there is anything to judge by.
func (j judge) knows() bool { return j.standing != nil }

// decide tells whether a run on these terms is charged to the account's budget,
// and for how long it is left alone.
func (j judge) decide(account string, on askedTerms) (allocated bool, minRuntime time.Duration) {
	standing, ok := j.standing.Account(account)
	allocated = ok && standing.Funded && !j.terms.Unallocated(on.asked)
	return allocated, on.promise(j.termsOf(account), allocated)
}

// termsOf are the terms for jobs of an account.
func (j judge) termsOf(account string) fairshare.Terms {
	return j.terms.Of(account, func(account string) string {
		if a, ok := j.standing.Account(account); ok {
			return a.Parent
		}
		return ""
	})
}

// decide decides it of a run, if there is anything to judge by.
func (r *run) decide(by judge) {
	if r.decided = by.knows(); !r.decided {
		return
	}
	allocated, minRuntime := by.decide(r.Account, r.terms)
	r.Allocated, r.MinRuntime, r.dirty = allocated, &minRuntime, true
}

// count makes ready to count what an owner has in this pass.
func (o *owners) count(of *owner) {
	if of.pass != o.pass {
		of.pass = o.pass
		of.pendingJobs, of.pendingGPUs, of.runningJobs, of.runningGPUs, of.waited = 0, 0, 0, 0, 0
	}
}

func (o *owners) pend(of *owner, j *Job) {
	o.count(of)
	tasks := int64(max(j.ArrayTasks, 1))
	of.pendingJobs += tasks
	of.pendingGPUs += tasks * j.gpus()
}

func (o *owners) run(of *owner, gpus int64) {
	o.count(of)
	of.runningJobs++
	of.runningGPUs += gpus
}

// waited counts, once for each owner, what was waited for all the time between
// two passes.
func (o *owners) waited(from, until fairshare.Instant) {
	for _, of := range o.all {
		if of.pass == o.pass && of.waited != 0 {
			o.demand.pending(of.demand, of.waited, from, until)
			of.waited = 0
		}
	}
}

// queue is what was counted in this pass, by account and user.
func (o *owners) queue() []usage.Queue {
	var all []usage.Queue
	for _, of := range o.all {
		if of.pass == o.pass {
			all = append(all, usage.Queue{
				Account: of.account, User: of.user,
				PendingJobs: of.pendingJobs, PendingGPUs: of.pendingGPUs,
				RunningJobs: of.runningJobs, RunningGPUs: of.runningGPUs,
			})
		}
	}
	slices.SortFunc(all, func(x, y usage.Queue) int {
		return cmp.Or(cmp.Compare(x.Account, y.Account), cmp.Compare(x.User, y.User))
	})
	return all
}
