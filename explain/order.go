// SPDX-License-Identifier: GPL-2.0-or-later

package explain

import (
	"cmp"
	"slices"

	"gpubudget/fairshare"
)

// Parting is where the paths to two subjects part, and how the two sides stand
// there.
type Parting struct {
	Below string // the last account that both paths go through
	// Tied are the steps at which both sides were equal, so that those below
	// them were ranked together.
	Tied []Pair
	// Pair is the step that decides. It is the last of two equal ones if nothing
	// does.
	Pair
}

// Pair is two sides that are compared.
type Pair struct {
	Mine, Theirs Side
}

// Order tells who is served first: positive if mine is.
func (p *Parting) Order() int { return cmp.Compare(p.Mine.LevelFS, p.Theirs.LevelFS) }

// part finds where two paths part. It follows the rules of Fair Tree: equal
// accounts have those below them ranked together.
func part(r *fairshare.Ranking, mine, theirs Subject, pooled bool) (p Parting, ok bool) {
	a, b := chain(r, mine, pooled), chain(r, theirs, pooled)
	p.Below = fairshare.RootAccount
	for i := range min(len(a), len(b)) {
		if sameStep(a[i], b[i]) {
			p.Below = a[i].Account
			continue
		}
		if ok {
			p.Tied = append(p.Tied, p.Pair)
		}
		p.Pair, ok = Pair{a[i], b[i]}, true
		if p.Order() != 0 || !isAccount(a[i]) || !isAccount(b[i]) {
			break
		}
	}
	return p, ok
}

func sameStep(x, y Side) bool {
	return x.Account == y.Account && x.User == y.User && x.Users == y.Users
}

func isAccount(s Side) bool { return s.User == "" && !s.Users }

// chain is the steps from below root down to a subject. Pooled, the last is that
// of all users of the account as one, if it has any.
func chain(r *fairshare.Ranking, s Subject, pooled bool) []Side {
	var steps []Side
	for a, ok := r.Account(s.Account); ok && a.Depth > 0; a, ok = r.Account(a.Parent) {
		steps = append(steps, Side{Account: a.Name, LevelFS: a.LevelFS})
	}
	slices.Reverse(steps)
	if u, member := r.User(s.Account, s.User); member && !pooled {
		return append(steps, sideOf(u))
	}
	if a, ok := r.Account(s.Account); ok && a.Direct.Members > 0 {
		steps = append(steps, poolOf(a))
	}
	return steps
}

// order tells which of two subjects is served first: positive if it is mine, 0
// if neither. Whoever is not in the tree comes last, and before him come accounts
// without a budget. In additive priority a fair share tells none of these apart.
func order(r *fairshare.Ranking, strict bool, mine, theirs Subject) int {
	a, here := r.Account(mine.Account)
	b, there := r.Account(theirs.Account)
	switch {
	case !here || !there:
		return boolOrder(here, there)
	case a.Funded != b.Funded:
		return boolOrder(a.Funded, b.Funded)
	case !strict && !a.Funded:
		return 0
	case !strict && mine.User != "" && theirs.User != "":
		return orderOfUsers(r, mine, theirs, func(u *fairshare.UserStanding) int { return u.Rank })
	case !strict:
		return orderByPaths(r, mine, theirs, false)
	case mine.Account == theirs.Account:
		return orderOfUsers(r, mine, theirs, func(u *fairshare.UserStanding) int { return u.Level })
	case hasPlace(a, mine) && hasPlace(b, theirs):
		return fairshare.ComparePlaces(a, b)
	}
	return orderByPaths(r, mine, theirs, true)
}

// hasPlace tells whether a subject stands in the order of accounts: users do, as
// their account, and accounts that have users of their own. Others are compared
// where the paths part.
func hasPlace(a *fairshare.AccountStanding, s Subject) bool { return a.Rank > 0 || s.User != "" }

func orderByPaths(r *fairshare.Ranking, mine, theirs Subject, pooled bool) int {
	if p, parted := part(r, mine, theirs, pooled); parted {
		return p.Order()
	}
	return 0
}

// orderOfUsers compares by a number that is less for those served first. Who is
// no member comes last.
func orderOfUsers(r *fairshare.Ranking, mine, theirs Subject, number func(*fairshare.UserStanding) int) int {
	u, member := r.User(mine.Account, mine.User)
	v, theyToo := r.User(theirs.Account, theirs.User)
	if !member || !theyToo {
		return boolOrder(member, theyToo)
	}
	return cmp.Compare(number(v), number(u))
}

// boolOrder is positive if only x is true, negative if only y.
func boolOrder(x, y bool) int {
	switch {
	case x == y:
		return 0
	case x:
		return 1
	}
	return -1
}
