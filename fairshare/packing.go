// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"cmp"
	"math"
	"slices"
	"sort"
)

// Limits of what strict priorities are packed into.
const (
	// MaxStrict is the highest strict priority. It leaves a margin below 2^32
	// for an operator who wants to set one by hand above all others.
	MaxStrict = 4_000_000_000
	// minRest is how many steps age, size and so on keep when room is short.
	minRest = 100
	// maxRest is the most steps they get when there is room.
	maxRest = 1_000_000
	// maxColumn is the largest NICE that Slurm's protocol can carry.
	maxColumn = math.MaxInt32
)

// group is the accounts that share a place in the order.
type group struct {
	accounts []int   // by their places in the ranking
	users    int64   // steps needed: one for each level, one for users not listed
	nice     []int64 // values seen, and 0
	funded   bool
	// unallocated: of jobs of funded accounts that ask to be unallocated.
	unallocated bool
}

// groupAccounts gives the places from the lowest to the highest. The lowest is
// that of jobs without a known account. Then come accounts that aren't funded,
// jobs of funded ones that ask to be unallocated, if there are any, and all other
// jobs of these.
func groupAccounts(r *Ranking, seen *Seen) []group {
	groups := make([]group, 1, len(r.Accounts)+1)
	groups[0] = group{users: 1, nice: elsewhere(r, seen).sorted(0)}
	var funded []group
	places := make([]int, len(r.Accounts))
	for i := range places {
		places[i] = i
	}
	compare := func(x, y int) int { return ComparePlaces(&r.Accounts[x], &r.Accounts[y]) }
	slices.SortStableFunc(places, compare)
	users := usersSteps(r)
	for len(places) > 0 {
		n := 1
		for n < len(places) && compare(places[0], places[n]) == 0 {
			n++
		}
		g := newGroup(r, places[:n:n], users, seen)
		if !g.funded {
			groups = append(groups, g)
		} else {
			groups = append(groups, unallocatedOf(r, &g, seen)...)
			funded = append(funded, g)
		}
		places = places[n:]
	}
	return append(groups, funded...)
}

func newGroup(r *Ranking, equals []int, users []int64, seen *Seen) group {
	g := group{accounts: equals, users: 1, funded: r.Accounts[equals[0]].Funded}
	var nice union
	for _, a := range equals {
		g.users = max(g.users, users[a])
		nice.add(seen.nice[r.Accounts[a].Name])
		if !g.funded { // all its jobs are unallocated
			nice.add(seen.unallocated[r.Accounts[a].Name])
		}
	}
	g.nice = nice.sorted(0)
	return g
}

// unallocatedOf is the place of the jobs of a group that ask to be unallocated;
// none if there are no such jobs. What they use is charged to nobody, so users
// are not told apart.
func unallocatedOf(r *Ranking, g *group, seen *Seen) []group {
	if len(seen.unallocated) == 0 {
		return nil
	}
	var nice union
	for _, a := range g.accounts {
		nice.add(seen.unallocated[r.Accounts[a].Name])
	}
	if nice.of == nil {
		return nil
	}
	return []group{{accounts: g.accounts, users: 1, nice: nice.sorted(0), unallocated: true}}
}

// usersSteps is by account how many steps its users need. These are in the order
// of the accounts.
func usersSteps(r *Ranking) []int64 {
	steps := make([]int64, len(r.Accounts))
	a := 0
	for i := range r.Users {
		u := &r.Users[i]
		for r.Accounts[a].Name != u.Account {
			a++
		}
		steps[a] = max(steps[a], int64(u.Level)+2)
	}
	return steps
}

// elsewhere is the nice values seen outside the known accounts.
func elsewhere(r *Ranking, seen *Seen) *values {
	nice := &values{}
	for _, all := range []map[string]*values{seen.nice, seen.unallocated} {
		for account, those := range all {
			if _, known := r.Account(account); !known {
				nice.addAll(those)
			}
		}
	}
	return nice
}

// ComparePlaces orders accounts as strict priority does, from the last to be
// served to the first: unfunded ones, then those without a rank, then the
// highest rank, which is the worst.
func ComparePlaces(x, y *AccountStanding) int {
	return cmp.Or(
		compareBool(x.Funded, y.Funded),
		compareBool(x.Rank > 0, y.Rank > 0),
		cmp.Compare(y.Rank, x.Rank),
	)
}

// compareBool puts false before true.
func compareBool(x, y bool) int {
	switch {
	case x == y:
		return 0
	case y:
		return -1
	}
	return 1
}

// radices is how many steps each digit has.
type radices struct {
	qos, rest   int64
	users, nice int64 // at most, in each group; many need fewer
	gaps        bool  // QOS and nice have steps between the values seen
}

// packing is what has to find room.
type packing struct {
	groups []group
	qos    []int64 // values seen
}

// fit finds radices with which everything fits. If room is short, steps are
// given up in this order: of the rest down to 100; those between the QOS and
// nice values seen; of the users; of nice; of QOS; and the last of the rest.
// Steps given up merge neighbours: they never turn an order round.
func (p *packing) fit() radices {
	r := p.need(true)
	if !p.fits(r) {
		r = p.need(false)
	}
	for _, digit := range []*int64{&r.users, &r.nice, &r.qos, &r.rest} {
		*digit = largest(*digit, func(n int64) bool {
			*digit = n
			return p.fits(r)
		})
	}
	r.rest = p.widen(r)
	return r
}

// need is the radices that merge nothing.
func (p *packing) need(gaps bool) radices {
	r := radices{users: 1, nice: 1, qos: fullSteps(p.qos, gaps), rest: minRest, gaps: gaps}
	for i := range p.groups {
		r.users = max(r.users, p.groups[i].users)
		r.nice = max(r.nice, fullSteps(p.groups[i].nice, gaps))
	}
	return r
}

// largest is the largest number from 1 to most that fits, 1 if none does.
// Where a number fits, all smaller ones do.
func largest(most int64, fits func(int64) bool) int64 {
	tooLarge := sort.Search(int(most), func(i int) bool { return !fits(int64(i) + 1) })
	return max(int64(tooLarge), 1)
}

// widen is the rest with the room that is left, by powers of ten, so that the
// digits of a priority can be told apart by eye.
func (p *packing) widen(r radices) int64 {
	rest := r.rest
	for rest >= minRest && rest < maxRest {
		r.rest = rest * 10
		if !p.fits(r) {
			break
		}
		rest = r.rest
	}
	return rest
}

func (p *packing) fits(r radices) bool {
	var all int64
	for i := range p.groups {
		steps := p.groups[i].steps(r)
		if !productFits(maxColumn, steps, r.rest) {
			return false
		}
		all += steps
	}
	return productFits(MaxStrict, all, r.qos, r.rest)
}

// steps is how many steps of nice and users the group takes, for each QOS.
func (g *group) steps(r radices) int64 {
	return min(g.users, r.users) * min(fullSteps(g.nice, r.gaps), r.nice)
}

// productFits tells whether the product of positive factors is at most limit.
func productFits(limit int64, factors ...int64) bool {
	for _, f := range factors {
		if f > limit {
			return false
		}
		limit /= f
	}
	return true
}
