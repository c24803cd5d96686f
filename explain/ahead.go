// SPDX-License-Identifier: GPL-2.0-or-later

package explain

import (
	"cmp"
	"slices"

	"gpubudget/fairshare"
	"gpubudget/report"
)

// Cause is what puts a job ahead.
type Cause string

// The causes, in the order in which strict priority goes by them.
const (
	// SetByHand: an operator has set one of the two priorities.
	SetByHand Cause = "set_by_hand"
	// Allocated: it is charged to a budget, and the subject asks not to be. In additive
	// priority, too, this and Funded go before all columns.
	Allocated Cause = "allocated"
	// Funded: its account has a budget.
	Funded Cause = "funded"
	// Guest: it is a member's, and the subject is none.
	Guest Cause = "guest"
	// Tree: its account, or in additive priority its user, is served first where
	// the paths part.
	Tree Cause = "tree"
	// QOS, Nice and User come next, between accounts that share a place: the
	// higher QOS priority, the lower nice value, the user who is further behind.
	QOS  Cause = "qos"
	Nice Cause = "nice"
	User Cause = "user"
	// Column: a column of sprio, if nothing before it differs; in additive
	// priority the one that makes the greatest difference.
	Column Cause = "column"
	// Earlier: it has the same priority and was submitted first.
	Earlier Cause = "earlier"
)

// Why is why a job is ahead.
type Why struct {
	Cause Cause
	// Parting is where the paths part, if they do; it decides if Cause is Tree.
	Parting *Parting
	// Column is the column of sprio that decides, by Points; "" if Cause is not
	// about one.
	Column string
	Points float64
	// Standing is how both stand, where Slurm's own shares decide.
	Standing *Standing
}

// Standing is how two of Slurm's associations stand. The ratios are their factors
// by classic fair share.
type Standing struct {
	Mine, Theirs           fairshare.Association
	MineRatio, TheirsRatio float64
}

// Rival is jobs ahead: those of one account that are so for one cause.
type Rival struct {
	Account string
	Rank    int // of the account; 0 if it has none
	Jobs    int64
	GPUs    int64
	Why     Why // of the first of them
	First   Subject
}

// Pending is a job that waits in a partition, as squeue and sprio show it.
type Pending struct {
	JobID     uint32
	Owner     Subject
	Partition string
	Tasks     int64 // of an array, each a job
	GPUs      int64 // of each
	Nice      int64 // as squeue shows it
	Factors   fairshare.Factors
}

// setByHand tells whether an operator has set the job's priority: then sprio
// shows no columns.
func (p *Pending) setByHand() bool { return p.Factors.Priority > 1 && p.bare() }

// bare tells whether the job has no columns, or none that isn't 0.
func (p *Pending) bare() bool {
	f := &p.Factors
	columns := []float64{f.Age, f.Assoc, f.Fairshare, f.JobSize, f.Partition, f.QOS, sum(f.TRES), float64(f.Site), float64(f.Nice)}
	return !slices.ContainsFunc(columns, func(c float64) bool { return c != 0 })
}

// rival tells whether q is served before p, in a partition that is both's.
func (p *Pending) rival(q *Pending) bool {
	if p.Partition != q.Partition || p.JobID == q.JobID {
		return false
	}
	return cmp.Or(cmp.Compare(q.Factors.Priority, p.Factors.Priority), cmp.Compare(p.JobID, q.JobID)) > 0
}

// Job explains how a job stands that waits, in each of the partitions it names.
// All is everything that waits, the job included. ok is false if the job's
// account is not in the tree.
func Job(rec *report.Record, job []Pending, all []Pending) (e *Explanation, ok bool) {
	x := newExplainer(rec, job[0].Owner)
	if _, ok := x.ranking.Account(job[0].Owner.Account); !ok {
		return nil, false
	}
	x.start()
	x.unallocated(job, all)
	x.jobsAhead(job, all)
	x.change(job, all)
	return x.explanation, true
}

// rivalKey is what jobs have in common that are listed as one rival.
type rivalKey struct {
	account string
	cause   Cause
	column  string
}

// rivals collects jobs ahead.
type rivals struct {
	of    map[rivalKey]*Rival
	order []*Rival
}

func (r *rivals) add(s Subject, rank int, jobs, gpus int64, why Why) {
	key := rivalKey{s.Account, why.Cause, why.Column}
	rival := r.of[key]
	if rival == nil {
		rival = &Rival{Account: s.Account, Rank: rank, Why: why, First: s}
		r.of[key] = rival
		r.order = append(r.order, rival)
	}
	rival.Jobs += jobs
	rival.GPUs += gpus
}

// first is a job ahead, in the partition where it is furthest ahead.
type first struct {
	mine, theirs *Pending
}

// firstAhead is the jobs ahead of a job, each once, the most urgent first.
func firstAhead(job, all []Pending) []first {
	ahead := map[uint32]first{}
	for i := range all {
		for j := range job {
			mine, theirs := &job[j], &all[i]
			if !mine.rival(theirs) {
				continue
			}
			if known, ok := ahead[theirs.JobID]; !ok || known.theirs.Factors.Priority < theirs.Factors.Priority {
				ahead[theirs.JobID] = first{mine, theirs}
			}
		}
	}
	sorted := make([]first, 0, len(ahead))
	for _, f := range ahead {
		sorted = append(sorted, f)
	}
	slices.SortFunc(sorted, func(p, q first) int {
		return cmp.Or(cmp.Compare(q.theirs.Factors.Priority, p.theirs.Factors.Priority), cmp.Compare(p.theirs.JobID, q.theirs.JobID))
	})
	return sorted
}

// jobsAhead lists the jobs ahead of a job.
func (x *explainer) jobsAhead(job, all []Pending) {
	found := rivals{of: map[rivalKey]*Rival{}}
	for _, f := range firstAhead(job, all) {
		found.add(f.theirs.Owner, x.rank(f.theirs.Owner.Account), f.theirs.Tasks, f.theirs.Tasks*f.theirs.GPUs, x.why(f.mine, f.theirs))
	}
	x.list(found)
}

func (x *explainer) list(found rivals) {
	for _, r := range found.order {
		x.explanation.Ahead = append(x.explanation.Ahead, *r)
	}
}

func (x *explainer) rank(account string) int {
	if a, ok := x.ranking.Account(account); ok {
		return a.Rank
	}
	return 0
}

// why tells why their job comes before mine.
func (x *explainer) why(mine, theirs *Pending) Why {
	if mine.setByHand() || theirs.setByHand() {
		return Why{Cause: SetByHand}
	}
	if !x.explanation.Strict {
		return x.whySum(mine, theirs)
	}
	if x.asked[mine.JobID] && !x.asked[theirs.JobID] {
		return Why{Cause: Allocated}
	}
	if mine.Owner.Account != theirs.Owner.Account {
		if why, ok := x.whyAccount(mine.Owner, theirs.Owner); ok {
			return why
		}
	}
	return x.whyDigits(mine, theirs)
}

// whyAccount tells why their account comes before mine; ok is false if it
// doesn't.
func (x *explainer) whyAccount(mine, theirs Subject) (why Why, ok bool) {
	if order(x.ranking, x.explanation.Strict, mine, theirs) >= 0 {
		return Why{}, false
	}
	a, here := x.ranking.Account(mine.Account)
	b, there := x.ranking.Account(theirs.Account)
	if here && there && b.Funded && !a.Funded {
		return Why{Cause: Funded}, true
	}
	return x.whyTree(mine, theirs), true
}

// parting is where two paths part, nil if they don't. Strict priority compares
// users with each other within an account only.
func (x *explainer) parting(mine, theirs Subject) *Parting {
	if p, parted := part(x.ranking, mine, theirs, x.pooled(mine, theirs)); parted {
		return &p
	}
	return nil
}

func (x *explainer) pooled(mine, theirs Subject) bool {
	return x.explanation.Strict && mine.Account != theirs.Account
}

// whyTree tells where the paths part, if theirs is served first.
func (x *explainer) whyTree(mine, theirs Subject) Why {
	if x.outside(mine, theirs) {
		return Why{Cause: Guest}
	}
	cause := Tree
	if x.explanation.Strict && mine.Account == theirs.Account {
		cause = User
	}
	return Why{Cause: cause, Parting: x.parting(mine, theirs)}
}

// outside tells whether mine is a user who isn't compared at the level that
// decides, because he is no member of his account. Strict priority compares
// accounts first, unless his has no members at all.
func (x *explainer) outside(mine, theirs Subject) bool {
	if _, member := x.ranking.User(mine.Account, mine.User); member || mine.User == "" {
		return false
	}
	return !x.pooled(mine, theirs) || x.rank(mine.Account) == 0
}

// whyDigits compares two jobs whose accounts share a place, digit by digit.
func (x *explainer) whyDigits(mine, theirs *Pending) Why {
	a, b := &mine.Factors, &theirs.Factors
	switch {
	case b.QOS > a.QOS:
		return Why{Cause: QOS, Column: "QOS", Points: b.QOS - a.QOS}
	case b.Nice < a.Nice:
		return Why{Cause: Nice, Column: "NICE", Points: float64(a.Nice - b.Nice)}
	case b.Fairshare > a.Fairshare:
		if mine.Owner.Account != theirs.Owner.Account || mine.Owner.User == theirs.Owner.User {
			return Why{Cause: Column, Column: fairshareColumn, Points: b.Fairshare - a.Fairshare}
		}
		return x.whyTree(mine.Owner, theirs.Owner)
	}
	return greatest([]column{
		{"AGE", b.Age - a.Age}, {"JOBSIZE", b.JobSize - a.JobSize}, {"ASSOC", b.Assoc - a.Assoc}, {"SITE", float64(b.Site - a.Site)},
		{"PARTITION", b.Partition - a.Partition}, {"TRES", sum(b.TRES) - sum(a.TRES)},
	})
}

// fairshareColumn is sprio's column of the fair-share factor.
const fairshareColumn = "FAIRSHARE"

// whySum compares two jobs by the weighted sum, if both are allocated or neither is.
func (x *explainer) whySum(mine, theirs *Pending) Why {
	a, known := x.ranking.Account(mine.Owner.Account)
	switch {
	case mine.allocated() || !theirs.allocated():
	case x.asked[mine.JobID]:
		return Why{Cause: Allocated}
	case !known || !a.Funded:
		return Why{Cause: Funded}
	}
	why := whySum(mine, theirs)
	if why.Column == fairshareColumn {
		why.Parting = x.parting(mine.Owner, theirs.Owner)
	}
	return why
}

func whySum(mine, theirs *Pending) Why {
	a, b := &mine.Factors, &theirs.Factors
	return greatest([]column{
		{fairshareColumn, b.Fairshare - a.Fairshare}, {"QOS", b.QOS - a.QOS}, {"NICE", float64(a.Nice - b.Nice)},
		{"AGE", b.Age - a.Age}, {"JOBSIZE", b.JobSize - a.JobSize}, {"ASSOC", b.Assoc - a.Assoc}, {"SITE", float64(b.Site - a.Site)},
		{"PARTITION", b.Partition - a.Partition}, {"TRES", sum(b.TRES) - sum(a.TRES)},
	})
}

// column is by how many points a column of theirs is higher.
type column struct {
	name   string
	points float64
}

func greatest(columns []column) Why {
	most := slices.MaxFunc(columns, func(x, y column) int { return cmp.Compare(x.points, y.points) })
	if most.points <= 0 {
		return Why{Cause: Earlier}
	}
	return Why{Cause: Column, Column: most.name, Points: most.points}
}

func sum(values []float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}

// queueAhead lists whose pending jobs come before those of the subject, by the
// queue that the plugin has last seen.
func (x *explainer) queueAhead() {
	s, found := x.explanation.Subject, rivals{of: map[rivalKey]*Rival{}}
	for _, q := range x.rec.Queue {
		theirs := Subject{q.Account, q.User}
		if q.PendingJobs == 0 || theirs == s || s.User == "" && x.within(q.Account, s.Account) {
			continue
		}
		if s.User == "" {
			theirs.User = ""
		}
		why, ahead := x.whyAccount(s, theirs)
		if !ahead {
			continue
		}
		found.add(theirs, x.rank(q.Account), q.PendingJobs, q.PendingGPUs, why)
	}
	slices.SortStableFunc(found.order, func(p, q *Rival) int {
		return order(x.ranking, x.explanation.Strict, q.First, p.First)
	})
	x.list(found)
}

// within tells whether an account is another or stands below it.
func (x *explainer) within(account, above string) bool {
	for a, ok := x.ranking.Account(account); ok; a, ok = x.ranking.Account(a.Parent) {
		if a.Name == above {
			return true
		}
	}
	return false
}
