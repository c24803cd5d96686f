// SPDX-License-Identifier: GPL-2.0-or-later

// Package explain says why an account, a user or a job stands where it does:
// the path from root down to it, who is ahead and where in the tree the two
// paths part, and what would change that. It works out nothing by itself: all
// figures are those of fairshare.Rank, of now, of a later instant or of another
// share; of fairshare.SlurmShares where shares are Slurm's. It does no I/O and reads no clock.
package explain

import (
	"slices"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/report"
)

// Subject is an account, or a user in it.
type Subject struct {
	Account string
	User    string // empty for the account
}

// Explanation is how a subject stands, and why.
type Explanation struct {
	Subject Subject
	Strict  bool // else priorities are the weighted sum
	// Guest: the user is no member of the account, or no longer.
	Guest bool
	// Unallocated: it is a job that waits and asks for no minimum runtime.
	Unallocated bool
	// Path leads from root to the subject.
	Path []Level
	// Ahead are the jobs that come first, the most urgent account first.
	Ahead []Rival
	// Changes are what would let the subject pass the nearest of those ahead.
	Changes []Change
}

// Side is one step of a path: an account, a user, or the users of an account as
// one.
type Side struct {
	Account string
	User    string
	Users   bool // the account's own users, among its child accounts
	LevelFS float64
}

// Level is how one step of the path stands.
type Level struct {
	Side
	Depth          int             // 0 for root
	Share          fairshare.Share // of the account above, now; no meaning for Users
	EqualPart      bool            // a user without a share of his own
	ShareOfCluster float64         // now, 0 to 1; no meaning for Users
	Entitled, Used fairshare.GPUMillis
	// Place is the place among the Of siblings that this one is compared with,
	// itself included: 1 is the most under-served, equals share a place. 0 for
	// root. Strict priority takes the users of an account as one among its child
	// accounts, and compares them with each other only after that.
	Place, Of int
	// Rank is among all accounts (0 if it has none, as an account without
	// users), or of a user among all users.
	Rank   int
	Factor float64 // the fair-share factor, of a user only
	Funded bool    // of an account
}

// Account explains how an account or one of its users stands, by the queue as
// the plugin has last seen it. ok is false if the account is not in the tree.
func Account(rec *report.Record, s Subject) (e *Explanation, ok bool) {
	x := newExplainer(rec, s)
	if _, ok := x.ranking.Account(s.Account); !ok {
		return nil, false
	}
	x.start()
	x.queueAhead()
	x.change(nil, nil)
	return x.explanation, true
}

// Path explains how an account or one of its users stands, and no more.
func Path(rec *report.Record, s Subject) (e *Explanation, ok bool) {
	x := newExplainer(rec, s)
	if _, ok := x.ranking.Account(s.Account); !ok {
		return nil, false
	}
	x.start()
	return x.explanation, true
}

// explainer makes one explanation.
type explainer struct {
	rec         *report.Record
	ranking     *fairshare.Ranking
	explanation *Explanation
	asked       map[uint32]bool // jobs that ask for no minimum runtime
}

func newExplainer(rec *report.Record, s Subject) *explainer {
	return &explainer{
		rec:         rec,
		ranking:     fairshare.Rank(rec.Input()),
		explanation: &Explanation{Subject: s, Strict: rec.Policy.Mode != budgets.Additive},
	}
}

// start fills in how the subject stands.
func (x *explainer) start() {
	e := x.explanation
	e.Path = x.path()
	_, member := x.ranking.User(e.Subject.Account, e.Subject.User)
	e.Guest = e.Subject.User != "" && !member
}

// path is the levels from root to the subject.
func (x *explainer) path() []Level {
	s, strict := x.explanation.Subject, x.explanation.Strict
	var path []Level
	for a, ok := x.ranking.Account(s.Account); ok; a, ok = x.ranking.Account(a.Parent) {
		l := Level{
			Side: Side{Account: a.Name, LevelFS: a.LevelFS}, Depth: a.Depth, Share: a.Share, ShareOfCluster: a.ShareOfCluster,
			Entitled: a.Entitled, Used: a.Used, Rank: a.Rank, Funded: a.Funded,
		}
		if a.Depth > 0 {
			l.place(x.siblings(a.Parent, strict))
		}
		path = append(path, l)
	}
	slices.Reverse(path)
	if s.User == "" {
		return path
	}
	leaf := path[len(path)-1]
	if a, _ := x.ranking.Account(s.Account); strict && a.Direct.Members > 0 && x.hasChildren(s.Account) {
		l := Level{Side: poolOf(a), Depth: leaf.Depth + 1, Entitled: a.Direct.Entitled, Used: a.Direct.Used}
		l.place(x.siblings(s.Account, strict))
		path = append(path, l)
	}
	return append(path, x.userLevel(leaf))
}

// userLevel is the last step, for a user in the account of the one before.
func (x *explainer) userLevel(account Level) Level {
	s := x.explanation.Subject
	u, member := x.ranking.User(s.Account, s.User)
	if !member {
		a, _ := x.ranking.Account(s.Account)
		return Level{Side: Side{Account: s.Account, User: s.User}, Depth: account.Depth + 1, Factor: a.Factor, Used: x.usedBy(s)}
	}
	l := Level{
		Side: sideOf(u), Depth: account.Depth + 1, Share: u.Share, EqualPart: u.EqualPart, ShareOfCluster: u.ShareOfCluster,
		Entitled: u.Entitled, Used: u.Used, Rank: u.Rank, Factor: u.Factor,
	}
	if x.explanation.Strict {
		l.place(x.members(s.Account))
	} else {
		l.place(x.siblings(s.Account, false))
	}
	return l
}

// usedBy is what was charged to a user who is no member of the account.
func (x *explainer) usedBy(s Subject) fairshare.GPUMillis {
	budget := *x.rec.Budget
	budget.Accounts = slices.Clone(budget.Accounts)
	for i := range budget.Accounts {
		if a := &budget.Accounts[i]; a.Name == s.Account {
			a.Users = append(slices.Clone(a.Users), fairshare.Member{User: s.User})
		}
	}
	in := x.rec.Input()
	return budget.Usage(in.Window, in.Charges).User(s.Account, s.User)
}

// place counts who of the siblings, itself among them, stands before it.
func (l *Level) place(siblings []Side) {
	l.Place, l.Of = 1, len(siblings)
	for _, s := range siblings {
		if s.LevelFS > l.LevelFS {
			l.Place++
		}
	}
}

// siblings are all that are compared with each other below an account.
func (x *explainer) siblings(account string, pooled bool) []Side {
	var sides []Side
	for i := range x.ranking.Accounts {
		if a := &x.ranking.Accounts[i]; a.Parent == account && a.Depth > 0 {
			sides = append(sides, Side{Account: a.Name, LevelFS: a.LevelFS})
		}
	}
	if !pooled {
		return append(sides, x.members(account)...)
	}
	if a, ok := x.ranking.Account(account); ok && a.Direct.Members > 0 {
		sides = append(sides, poolOf(a))
	}
	return sides
}

func (x *explainer) hasChildren(account string) bool {
	return slices.ContainsFunc(x.ranking.Accounts, func(a fairshare.AccountStanding) bool { return a.Parent == account && a.Depth > 0 })
}

// members are the users of an account.
func (x *explainer) members(account string) []Side {
	var sides []Side
	for i := range x.ranking.Users {
		if u := &x.ranking.Users[i]; u.Account == account {
			sides = append(sides, sideOf(u))
		}
	}
	return sides
}

func poolOf(a *fairshare.AccountStanding) Side {
	return Side{Account: a.Name, Users: true, LevelFS: a.Direct.LevelFS}
}

func sideOf(u *fairshare.UserStanding) Side {
	return Side{Account: u.Account, User: u.User, LevelFS: u.LevelFS}
}
