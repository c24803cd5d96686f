// SPDX-License-Identifier: GPL-2.0-or-later

package explain

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// Kind is what a Change is about.
type Kind string

// The kinds of changes.
const (
	// Allocate: the job asks to be unallocated.
	Allocate Kind = "allocate"
	// Unfunded: the account has no budget.
	Unfunded Kind = "unfunded"
	// Balance: by how much usage exceeds entitlement.
	Balance Kind = "balance"
	// Wait: when old usage has left the window.
	Wait Kind = "wait"
	// Share: with which share both would stand level.
	Share Kind = "share"
	// Within: what nice and QOS can do.
	Within Kind = "within"
	// Points: how many points of priority are missing.
	Points Kind = "points"
)

// Change is something about the subject that keeps it behind or would bring it
// forward. Mine is the step of its path that decides against Theirs, on the path
// to the nearest of those ahead.
type Change struct {
	Kind         Kind
	Mine, Theirs Side
	Rival        Subject // the nearest of those ahead

	// Amount is usage less entitlement in the window, of a Balance.
	Amount fairshare.GPUMillis
	// At is when Mine passes Theirs if from now on it uses nothing while what
	// others run goes on, of a Wait. It is 0 if that is not within a lookback
	// window from now.
	At fairshare.Instant
	// Share is what Mine would have to have had throughout the window to be level
	// with Theirs, and Has what it has now. Free is the most it could have beside
	// the shares of its siblings.
	Share, Has, Free fairshare.Share
	// Jobs is how many jobs ahead are of the same account, of a Within.
	Jobs int64
	// Points is how many more are needed to pass the next job ahead, of a Points.
	Points int64
}

// change fills in what would bring the subject forward. job is its rows if it
// is a job, of all that waits.
func (x *explainer) change(job, all []Pending) {
	mine := x.explanation.Subject
	if x.explanation.Unallocated {
		x.add(Change{Kind: Allocate, Mine: Side{Account: mine.Account}})
	}
	if a, ok := x.ranking.Account(mine.Account); ok && !a.Funded {
		x.add(Change{Kind: Unfunded, Mine: Side{Account: mine.Account}})
	}
	if theirs, ok := x.nearest(func(r *Rival) bool { return r.Account != mine.Account }); ok {
		x.pass(theirs)
	} else if job == nil && len(x.explanation.Ahead) == 0 {
		if theirs, ok := x.nearestAccount(); ok {
			x.pass(theirs)
		}
	}
	if theirs, ok := x.nearest(func(r *Rival) bool { return r.Account == mine.Account }); ok {
		x.pass(theirs)
	}
	switch {
	case job == nil || len(x.explanation.Ahead) == 0:
	case x.explanation.Strict:
		x.withinAccount()
	default:
		if points := pointsMissing(job, job[0].within(all)); points > 0 {
			x.add(Change{Kind: Points, Points: points + job[0].hidden()})
		}
	}
}

func (x *explainer) add(c Change) { x.explanation.Changes = append(x.explanation.Changes, c) }

// nearest is, of the rivals that are ahead because of the tree, the one that is
// served last.
func (x *explainer) nearest(of func(*Rival) bool) (nearest Subject, ok bool) {
	for i := range x.explanation.Ahead {
		r := &x.explanation.Ahead[i]
		if of(r) && r.Why.Parting != nil {
			nearest, ok = x.nearer(nearest, ok, r.First)
		}
	}
	return nearest, ok
}

// nearestAccount is the nearest of all accounts ahead, whether anything waits
// there or not.
func (x *explainer) nearestAccount() (nearest Subject, ok bool) {
	mine := x.explanation.Subject.Account
	for _, a := range x.ranking.Accounts {
		if a.Rank > 0 && !x.within(a.Name, mine) && !x.within(mine, a.Name) {
			nearest, ok = x.nearer(nearest, ok, Subject{Account: a.Name})
		}
	}
	return nearest, ok
}

// nearer is the one of two that is served later, if it is ahead of the subject.
func (x *explainer) nearer(nearest Subject, ok bool, other Subject) (Subject, bool) {
	strict := x.explanation.Strict
	if order(x.ranking, strict, x.explanation.Subject, other) >= 0 {
		return nearest, ok
	}
	if !ok || order(x.ranking, strict, nearest, other) > 0 {
		return other, true
	}
	return nearest, ok
}

// pass tells what it takes to pass a rival.
func (x *explainer) pass(theirs Subject) {
	p := x.parting(x.explanation.Subject, theirs)
	if p == nil || p.Order() >= 0 {
		return
	}
	entitled, used := x.balance(p.Mine)
	x.add(Change{Kind: Balance, Mine: p.Mine, Theirs: p.Theirs, Rival: theirs, Amount: used - entitled})
	x.add(Change{Kind: Wait, Mine: p.Mine, Theirs: p.Theirs, Rival: theirs, At: x.whenPassing(p.Mine, theirs)})
	if c, ok := x.levelShare(p.Pair, theirs); ok {
		x.add(c)
	}
}

// balance is what a side was due and used in the window.
func (x *explainer) balance(s Side) (entitled, used fairshare.GPUMillis) {
	if u, ok := x.ranking.User(s.Account, s.User); ok {
		return u.Entitled, u.Used
	}
	a, ok := x.ranking.Account(s.Account)
	switch {
	case !ok:
		return 0, 0
	case s.Users:
		return a.Direct.Entitled, a.Direct.Used
	}
	return a.Entitled, a.Used
}

// withinAccount tells what nice and QOS can do for a job.
func (x *explainer) withinAccount() {
	c := Change{Kind: Within, Mine: Side{Account: x.explanation.Subject.Account}}
	for _, r := range x.explanation.Ahead {
		if r.Account == c.Mine.Account {
			c.Jobs += r.Jobs
		}
	}
	x.add(c)
}

// pointsMissing is how many more points a job needs to pass the next ahead of
// it, in the partition where that takes least; 0 if there is none.
func pointsMissing(job, all []Pending) int64 {
	var least int64
	for i := range job {
		for j := range all {
			if mine, theirs := &job[i], &all[j]; mine.rival(theirs) {
				if gap := int64(theirs.Factors.Priority) - int64(mine.Factors.Priority) + 1; least == 0 || gap < least {
					least = gap
				}
			}
		}
	}
	return least
}

// ---- later ----

// maxSteps bounds at how many instants a ranking to come is worked out. Where
// more than these have something change, some are left out between them.
const maxSteps = 128

// whenPassing is the first instant, to the second, at which the subject is
// served before a rival if one step of its path uses nothing from now on, 0 if
// there is none within a lookback window. The ranking is worked out where the
// window's edges meet the beginning or the end of a charge or of a share, and in
// between where that makes the difference.
func (x *explainer) whenPassing(idle Side, theirs Subject) fairshare.Instant {
	f := x.future(idle, theirs)
	passes := func(at fairshare.Instant) bool {
		return order(fairshare.Rank(f.at(at)), x.explanation.Strict, x.explanation.Subject, theirs) > 0
	}
	before := f.now
	for _, at := range f.steps() {
		if !passes(at) {
			before = at
			continue
		}
		const second = 1000
		n := sort.Search(int((at-before)/second), func(n int) bool { return passes(before + fairshare.Instant(n)*second) })
		return min(before+fairshare.Instant(n)*second, at)
	}
	return 0
}

// future is the record as it will be if one side uses nothing more.
type future struct {
	budget   *fairshare.Budget
	now      fairshare.Instant
	until    time.Time // open runs are known up to here
	lookback time.Duration
	ended    []fairshare.Charge
	open     []usage.Run
}

func (x *explainer) future(idle Side, theirs Subject) *future {
	rec := x.rec
	f := &future{budget: rec.Budget, now: rec.Window.Until, until: rec.UsedUntil, lookback: rec.Policy.Lookback, ended: slices.Clip(rec.Charged)}
	for i, r := range rec.Open {
		switch {
		case !r.Allocated:
		case x.covers(idle, Subject{r.Account, r.User}):
			charges, _ := usage.Charges(rec.Open[i:i+1], f.until)
			f.ended = append(f.ended, charges...)
		default:
			f.open = append(f.open, r)
		}
	}
	if x.pooled(x.explanation.Subject, theirs) {
		f.ended = byAccount(f.ended)
	}
	return f
}

// covers tells whether what a user runs in an account counts for a side.
func (x *explainer) covers(s Side, owner Subject) bool {
	switch {
	case s.User != "":
		return owner == Subject{s.Account, s.User}
	case s.Users:
		return owner.Account == s.Account
	}
	return x.within(owner.Account, s.Account)
}

// byAccount sums charges up that differ in the user only. The ranking of
// accounts is the same.
func byAccount(charges []fairshare.Charge) []fairshare.Charge {
	sorted := slices.Clone(charges)
	for i := range sorted {
		sorted[i].User = ""
	}
	slices.SortFunc(sorted, func(x, y fairshare.Charge) int {
		return cmp.Or(cmp.Compare(x.From, y.From), cmp.Compare(x.Until, y.Until), cmp.Compare(x.Account, y.Account))
	})
	sums := sorted[:0]
	for _, c := range sorted {
		if n := len(sums); n > 0 && sums[n-1].Period == c.Period && sums[n-1].Account == c.Account {
			sums[n-1].Amount += c.Amount
			continue
		}
		sums = append(sums, c)
	}
	return sums
}

// at is what the ranking of a later instant is made from.
func (f *future) at(at fairshare.Instant) fairshare.Input {
	until := f.until.Add(time.Duration(at-f.now) * time.Millisecond)
	return usage.Input(f.budget, fairshare.Lookback(at, f.lookback), f.ended, f.open, until)
}

// steps are the instants within a lookback window from now at which something
// changes its course, ascending.
func (f *future) steps() []fairshare.Instant {
	length := fairshare.Instant(f.lookback.Milliseconds())
	end := f.now + length
	steps := []fairshare.Instant{end}
	meets := func(at fairshare.Instant) {
		for _, step := range []fairshare.Instant{at, at + length} {
			if step > f.now && step < end {
				steps = append(steps, step)
			}
		}
	}
	for i := range f.ended {
		meets(f.ended[i].From)
		meets(f.ended[i].Until)
	}
	for i := range f.open {
		meets(fairshare.At(f.open[i].StartedAt))
	}
	changesOf(f.budget, meets)
	slices.Sort(steps)
	return thin(slices.Compact(steps))
}

// changesOf names all instants at which a budget changes.
func changesOf(b *fairshare.Budget, meets func(fairshare.Instant)) {
	period := func(p fairshare.Period) {
		if p.From > fairshare.Always {
			meets(p.From)
		}
		if p.Until < fairshare.Never {
			meets(p.Until)
		}
	}
	edges(b.Capacity, period)
	for i := range b.Accounts {
		a := &b.Accounts[i]
		edges(a.Parent, period)
		edges(a.Share, period)
		for _, g := range a.Grants {
			period(g.Period)
		}
		for _, r := range a.Refunds {
			period(r.Period)
		}
		for _, m := range a.Users {
			edges(m.In, period)
		}
	}
}

func edges[T any](steps []fairshare.Step[T], period func(fairshare.Period)) {
	for i := range steps {
		period(steps[i].Period)
	}
}

// thin leaves maxSteps of the steps, the last among them.
func thin(steps []fairshare.Instant) []fairshare.Instant {
	n := len(steps)
	if n <= maxSteps {
		return steps
	}
	kept := make([]fairshare.Instant, maxSteps)
	for i := range kept {
		kept[i] = steps[(i+1)*n/maxSteps-1]
	}
	return kept
}

// ---- another share ----

// shareStep is how finely a share is searched for: a hundredth of a percent.
const shareStep = fairshare.Whole / 10_000

// levelShare is the least share with which, had it been in force throughout the
// window, the subject would be served no later than a rival. ok is false if
// there is none, or if the side has no share of its own.
func (x *explainer) levelShare(p Pair, theirs Subject) (c Change, ok bool) {
	c = Change{Kind: Share, Mine: p.Mine, Theirs: p.Theirs, Rival: theirs}
	if p.Mine.Users || math.IsInf(p.Theirs.LevelFS, 1) {
		return c, false // nothing to set, or nothing that would help
	}
	c.Has, c.Free = x.shares(p.Mine)
	in := x.rec.Input()
	if x.pooled(x.explanation.Subject, theirs) {
		in.Charges = byAccount(in.Charges)
	}
	level := func(n int) bool {
		in.Budget = withShare(x.rec.Budget, p.Mine, fairshare.Share(n)*shareStep)
		return order(fairshare.Rank(in), x.explanation.Strict, x.explanation.Subject, theirs) >= 0
	}
	from, whole := int(c.Has/shareStep), int(fairshare.Whole/shareStep)
	n := from + 1 + sort.Search(whole-from, func(n int) bool { return level(from + 1 + n) })
	if n > whole {
		return c, false
	}
	c.Share = fairshare.Share(n) * shareStep
	return c, true
}

// shares is the share of an account or a user, and the most it could have.
func (x *explainer) shares(s Side) (has, free fairshare.Share) {
	tree := x.rec.Budget.Tree(x.rec.Window.Until)
	parent := s.Account
	if s.User == "" {
		a, _ := x.ranking.Account(s.Account)
		has, parent = a.Share, a.Parent
	} else {
		u, _ := x.ranking.User(s.Account, s.User)
		has = u.Share
	}
	free = fairshare.Whole
	for i := range tree.Nodes {
		n := &tree.Nodes[i]
		if n.Parent >= 0 && tree.Nodes[n.Parent].Name == parent && (s.User != "" || n.Name != s.Account) {
			free -= n.Share
		}
		if n.Name != parent {
			continue
		}
		for _, u := range n.Users {
			if !u.EqualPart && s.User != u.Name {
				free -= u.Share
			}
		}
	}
	return has, max(free, 0)
}

// withShare is a budget in which an account or a user has had one share
// throughout. The budget that is given stays as it is.
func withShare(b *fairshare.Budget, s Side, share fairshare.Share) *fairshare.Budget {
	always := []fairshare.Step[fairshare.Share]{{Period: fairshare.Period{From: fairshare.Always, Until: fairshare.Never}, Value: share}}
	out := *b
	out.Accounts = slices.Clone(b.Accounts)
	for i := range out.Accounts {
		a := &out.Accounts[i]
		switch {
		case a.Name != s.Account:
		case s.User == "":
			a.Share = always
		default:
			a.Users = slices.Clone(a.Users)
			for j := range a.Users {
				if a.Users[j].User == s.User {
					a.Users[j].In = during(a.Users[j].In, share)
				}
			}
		}
	}
	return &out
}

// during is a membership with one share throughout.
func during(in []fairshare.Step[fairshare.Share], share fairshare.Share) []fairshare.Step[fairshare.Share] {
	in = slices.Clone(in)
	for i := range in {
		in[i].Value = share
	}
	return in
}
