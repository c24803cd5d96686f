// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"cmp"
	"slices"
	"sort"
)

// Usage is GPU time charged in a window, rolled up the tree.
type Usage struct {
	Window Period
	// Unbudgeted is what was charged to accounts that the budget does not know
	// (or that stood nowhere in the tree), cut to the window and summed by
	// (account, user), in this order. It is in no other figure.
	Unbudgeted []Charge

	layout *layout
	total  []GPUMillis // by account, with all below it
	direct []GPUMillis // by account, charged to itself
	users  []GPUMillis // by user
}

// Usage sums up charges. A charge that the window cuts counts for its part
// within; charges in windows that follow each other add up exactly. A charge
// rolls up the tree in force at its time: one that spans a move counts, part
// by part, where the account stood. What is charged to a closed account rolls
// up to where it stood last. A charge to a user who is no member counts at its
// account only.
func (b *Budget) Usage(window Period, charges []Charge) *Usage {
	return newLayout(b).usage(window, charges)
}

// Account is what was charged to the account and all accounts below it.
func (u *Usage) Account(name string) GPUMillis { return u.at(u.total, name) }

// Direct is what was charged to the account itself.
func (u *Usage) Direct(account string) GPUMillis { return u.at(u.direct, account) }

func (u *Usage) at(of []GPUMillis, account string) GPUMillis {
	a, known := u.layout.number[account]
	if !known {
		return 0
	}
	return of[a]
}

// User is what was charged to a user in an account.
func (u *Usage) User(account, user string) GPUMillis {
	i, known := u.layout.member[memberKey{account, user}]
	if !known {
		return 0
	}
	return u.users[i]
}

func (l *layout) newUsage(window Period) *Usage {
	return &Usage{
		Window: window, layout: l,
		total:  make([]GPUMillis, len(l.accounts)),
		direct: make([]GPUMillis, len(l.accounts)),
		users:  make([]GPUMillis, len(l.users)),
	}
}

func (l *layout) usage(window Period, charges []Charge) *Usage {
	u := l.newUsage(window)
	epochs := l.epochs(window, nil)
	outside := unbudgeted{}
	for i := range charges {
		c := &charges[i]
		within, lost := l.spread(epochs, l.find(c.Account), c.Period, c.Amount)
		l.charge(u, c, within)
		outside.add(c, lost)
	}
	for i := range epochs {
		epochs[i].rollUp()
		for a, sum := range epochs[i].sums {
			u.total[a] = add(u.total[a], sum)
		}
	}
	u.Unbudgeted = outside.charges(window)
	return u
}

// charge books an amount on the account and the user of a charge. Accounts
// above get it by rollUp.
func (l *layout) charge(u *Usage, c *Charge, amount GPUMillis) {
	if amount == 0 {
		return
	}
	a := l.number[c.Account]
	u.direct[a] = add(u.direct[a], amount)
	if user, member := l.member[memberKey{c.Account, c.User}]; member {
		u.users[user] = add(u.users[user], amount)
	}
}

// epoch is a stretch of time in which no account moves, with the sums that
// fall into it.
type epoch struct {
	Period
	shape *shape
	sums  []GPUMillis // by account; with those below after rollUp
}

// epochs cuts the window wherever an account moves and at further instants.
func (l *layout) epochs(window Period, cuts []Instant) []epoch {
	c := &changes{window: window}
	for _, at := range slices.Concat(l.moves, cuts) {
		c.at(at)
	}
	segments := c.segments()
	epochs := make([]epoch, len(segments))
	for i, p := range segments {
		epochs[i] = epoch{Period: p, shape: l.shape(p.From, true), sums: make([]GPUMillis, len(l.accounts))}
	}
	return epochs
}

// spread adds an amount of account a to the epochs it falls into. It returns
// how much that is and how much was lost because a stood nowhere in the tree.
func (l *layout) spread(epochs []epoch, a int, p Period, amount GPUMillis) (within, lost GPUMillis) {
	first := sort.Search(len(epochs), func(i int) bool { return epochs[i].Until > p.From })
	for i := first; i < len(epochs); i++ {
		e := &epochs[i]
		if e.From > p.From && e.From >= p.Until {
			break
		}
		part := portion(amount, p, e.Period)
		if a < 0 || !e.shape.reached[a] {
			lost = add(lost, part)
			continue
		}
		e.sums[a] = add(e.sums[a], part)
		within = add(within, part)
	}
	return within, lost
}

// rollUp adds to every account what falls to the accounts below it.
func (e *epoch) rollUp() {
	for _, a := range slices.Backward(e.shape.order) {
		if parent := e.shape.parent[a]; parent >= 0 {
			e.sums[parent] = add(e.sums[parent], e.sums[a])
		}
	}
}

// unbudgeted sums up what belongs to no account of the tree.
type unbudgeted map[memberKey]GPUMillis

func (u unbudgeted) add(c *Charge, amount GPUMillis) {
	if amount != 0 {
		key := memberKey{c.Account, c.User}
		u[key] = add(u[key], amount)
	}
}

func (u unbudgeted) charges(window Period) []Charge {
	var charges []Charge
	for key, amount := range u {
		charges = append(charges, Charge{Period: window, Account: key.account, User: key.user, Amount: amount})
	}
	slices.SortFunc(charges, func(x, y Charge) int {
		return cmp.Or(cmp.Compare(x.Account, y.Account), cmp.Compare(x.User, y.User))
	})
	return charges
}
