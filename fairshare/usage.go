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
	m := newMeter(l)
	m.begin(window)
	for i := range charges {
		m.charge(m.owner(charges[i].Account, charges[i].User), charges[i].Period, charges[i].Amount)
	}
	return m.end()
}

// Owner is a user in an account, as a Ranker numbers them.
type Owner int32

// meter sums up usage, window after window. Its memory is used again.
type meter struct {
	*layout
	others map[memberKey]Owner // who is no member of the account, or it isn't known
	owners []owner             // the members first, as in layout.users
	used   *Usage
	epochs []epoch
	lost   []GPUMillis // by owner: what counted nowhere; empty if all counted
	byName []Owner     // all owners as lost ones are listed; found out when there are any
	latest Owner       // the last that was looked up
}

type owner struct {
	memberKey
	at   int // number of the account; -1 if there is none
	user int // number of the user; -1 if he is no member
}

func newMeter(l *layout) *meter {
	m := &meter{layout: l, used: l.newUsage(Period{}), owners: make([]owner, len(l.users))}
	for i := range l.users {
		a := l.users[i].account
		m.owners[i] = owner{memberKey{l.accounts[a].Name, l.users[i].User}, a, i}
	}
	return m
}

// owner is the number of a user in an account, whether the budget knows them or
// not.
func (m *meter) owner(account, user string) Owner {
	key := memberKey{account, user}
	if int(m.latest) < len(m.owners) && m.owners[m.latest].memberKey == key {
		return m.latest
	}
	m.latest = m.find(key)
	return m.latest
}

func (m *meter) find(key memberKey) Owner {
	if i, member := m.member[key]; member {
		return Owner(i)
	}
	if known, ok := m.others[key]; ok {
		return known
	}
	if m.others == nil {
		m.others = make(map[memberKey]Owner)
	}
	number := Owner(len(m.owners))
	m.others[key] = number
	m.owners = append(m.owners, owner{key, m.layout.find(key.account), -1})
	return number
}

// begin begins to sum up what falls into a window.
func (m *meter) begin(window Period) {
	m.used.Window, m.used.Unbudgeted = window, nil
	clear(m.used.total)
	clear(m.used.direct)
	clear(m.used.users)
	m.lost = m.lost[:0]
	m.epochs = m.cutEpochs(m.epochs, window, nil)
}

// charge adds an amount that is spread evenly over a period.
func (m *meter) charge(number Owner, p Period, amount GPUMillis) {
	o := &m.owners[number]
	within, lost := m.spread(m.epochs, o.at, p, amount)
	m.book(m.used, o, within)
	if lost != 0 {
		for len(m.lost) < len(m.owners) {
			m.lost = append(m.lost, 0)
		}
		m.lost[number] = add(m.lost[number], lost)
	}
}

// inOrder are all owners by account and user. They are sorted when there are
// new ones, not for each window.
func (m *meter) inOrder() []Owner {
	if len(m.byName) == len(m.owners) {
		return m.byName
	}
	m.byName = m.byName[:0]
	for number := range m.owners {
		m.byName = append(m.byName, Owner(number))
	}
	slices.SortFunc(m.byName, func(x, y Owner) int {
		a, b := &m.owners[x], &m.owners[y]
		return cmp.Or(cmp.Compare(a.account, b.account), cmp.Compare(a.memberKey.user, b.memberKey.user))
	})
	return m.byName
}

// book books an amount on an account and a user. Accounts above get it by
// rollUp.
func (l *layout) book(u *Usage, o *owner, amount GPUMillis) {
	if amount == 0 {
		return
	}
	u.direct[o.at] = add(u.direct[o.at], amount)
	if o.user >= 0 {
		u.users[o.user] = add(u.users[o.user], amount)
	}
}

// end is the sum; it holds until the next begin.
func (m *meter) end() *Usage {
	for i := range m.epochs {
		m.epochs[i].rollUp()
		for a, sum := range m.epochs[i].sums {
			m.used.total[a] = add(m.used.total[a], sum)
		}
	}
	if len(m.lost) == 0 {
		return m.used
	}
	for _, number := range m.inOrder() {
		if o := &m.owners[number]; int(number) < len(m.lost) && m.lost[number] != 0 {
			m.used.Unbudgeted = append(m.used.Unbudgeted, Charge{m.used.Window, o.account, o.memberKey.user, m.lost[number]})
		}
	}
	return m.used
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
	return l.cutEpochs(nil, window, cuts)
}

// cutEpochs is epochs in the memory of earlier ones.
func (l *layout) cutEpochs(epochs []epoch, window Period, cuts []Instant) []epoch {
	c := &changes{window: window}
	first := sort.Search(len(l.moves), func(i int) bool { return l.moves[i] > window.From })
	for i := first; i < len(l.moves) && l.moves[i] < window.Until; i++ {
		c.at(l.moves[i])
	}
	for _, at := range cuts {
		c.at(at)
	}
	segments := c.segments()
	epochs = slices.Grow(epochs[:0], len(segments))[:len(segments)]
	for i, p := range segments {
		e := &epochs[i]
		e.Period, e.shape = p, l.shape(p.From, true)
		e.sums = slices.Grow(e.sums[:0], len(l.accounts))[:len(l.accounts)]
		clear(e.sums)
	}
	return epochs
}

// spread adds an amount of account a to the epochs it falls into. It returns
// how much that is and how much was lost because a stood nowhere in the tree.
func (l *layout) spread(epochs []epoch, a int, p Period, amount GPUMillis) (within, lost GPUMillis) {
	if len(epochs) == 1 && epochs[0].Period == p && !p.Empty() && a >= 0 && epochs[0].shape.reached[a] {
		epochs[0].sums[a] = add(epochs[0].sums[a], amount) // no part of it to be worked out
		return amount, 0
	}
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
