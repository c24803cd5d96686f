// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"cmp"
	"slices"
)

// StraightRank ranks as one reads it in docs/algorithm.md: from the beginning,
// charge by charge, and without carrying anything over.
func StraightRank(in Input) *Ranking {
	l := newLayout(in.Budget)
	now := in.Window.Until
	k := &straight{
		layout: l,
		now:    now,
		shape:  l.shape(now, false),
		due:    l.straightEntitlements(in.Window),
		used:   l.straightUsage(in.Window, in.Charges),
	}
	k.loads = l.loads(k.used, in.Ahead, now)
	k.funded, k.spent = l.funded(k.shape, k.due, now), l.spent(in.Budget, k)
	r := k.standings()
	k.measure(r)
	k.rankUsers(r)
	k.rankAccounts(r)
	return r
}

// straight holds what StraightRank has worked out on its way.
type straight struct {
	*layout
	now    Instant
	shape  *shape
	due    *Entitlements
	used   *Usage
	loads  *Usage // used and what is charged ahead
	funded []bool
	spent  []bool

	place   []int    // by account: index in Ranking.Accounts
	seats   [][2]int // by account: its members now are Ranking.Users[from:until]
	sitting []int    // by index in Ranking.Users: number of the user
}

// loads is the usage with what is charged ahead, rolled up the tree of now.
func (l *layout) loads(used *Usage, ahead []Charge, now Instant) *Usage {
	sum := &Usage{
		Window: used.Window, layout: l,
		total: slices.Clone(used.total), direct: slices.Clone(used.direct), users: slices.Clone(used.users),
	}
	e := epoch{shape: l.shape(now, true), sums: make([]GPUMillis, len(l.accounts))}
	for i := range ahead {
		if a := l.find(ahead[i].Account); a >= 0 {
			e.sums[a] = add(e.sums[a], ahead[i].Amount)
			l.straightCharge(sum, &ahead[i], ahead[i].Amount)
		}
	}
	e.rollUp()
	for a := range e.sums {
		sum.total[a] = add(sum.total[a], e.sums[a])
	}
	return sum
}

// funded tells by account whether anything flowed to it in the window, or
// would flow to it now on a cluster that has GPUs.
func (l *layout) funded(s *shape, e *Entitlements, now Instant) []bool {
	funded, open := make([]bool, len(l.accounts)), make([]bool, len(l.accounts))
	open[l.root] = true
	for _, a := range s.order {
		if parent := s.parent[a]; parent >= 0 {
			open[a] = open[parent] && l.shareOf(a, now) > 0
		}
		for _, grant := range l.accounts[a].Grants {
			open[a] = open[a] || grant.Amount > 0 && grant.Contains(now)
		}
		funded[a] = open[a] || e.flow[a].whole > 0
	}
	return funded
}

// spent tells by account whether it has used up what it was due in the window and
// what grants in force still bring, and no share brings it anything now.
func (l *layout) spent(b *Budget, k *straight) []bool {
	rest := &Budget{Accounts: slices.Clone(b.Accounts)} // as if what is left came at once
	for i := range rest.Accounts {
		a := &rest.Accounts[i]
		grants := a.Grants
		a.Grants = nil
		for _, g := range grants {
			if g.Contains(k.now) {
				left := portion(g.Amount, g.Period, Period{k.now, g.Until})
				a.Grants = append(a.Grants, Grant{Period: Period{k.now, k.now + 1}, Amount: left})
			}
		}
	}
	coming := newLayout(rest).straightEntitlements(Period{k.now, k.now + 1})
	spent, shared := make([]bool, len(l.accounts)), make([]bool, len(l.accounts))
	shared[l.root] = true
	for _, a := range k.shape.order {
		if parent := k.shape.parent[a]; parent >= 0 {
			shared[a] = shared[parent] && l.shareOf(a, k.now) > 0
		}
		due := add(k.due.total[a].entitled(), coming.total[a].entitled())
		spent[a] = !shared[a] && due > 0 && k.used.total[a] >= due
	}
	return spent
}

// standings fills in all that needs no comparison.
func (k *straight) standings() *Ranking {
	tree := k.treeOf(k.shape, k.now)
	r := &Ranking{
		Window: k.due.Window, Unbudgeted: k.used.Unbudgeted,
		seating:  new(seating),
		Accounts: make([]AccountStanding, len(tree.Nodes)),
		parents:  make([]int, len(tree.Nodes)),
		accounts: make(map[string]int, len(tree.Nodes)),
		users:    make(map[memberKey]int, len(k.users)),
		homes:    make(map[string]string, len(k.users)),
	}
	k.place, k.seats = make([]int, len(k.accounts)), make([][2]int, len(k.accounts))
	for i, node := range tree.Nodes {
		a := k.shape.order[i]
		k.place[a] = i
		r.accounts[node.Name] = i
		r.Accounts[i] = AccountStanding{
			Name: node.Name, Depth: node.Depth, Share: node.Share, ShareOfCluster: node.ShareOfCluster,
			Entitled: k.due.total[a].entitled(), Used: k.used.total[a], Load: k.loads.total[a], Funded: k.funded[a] && !k.spent[a], Spent: k.spent[a],
		}
		if node.Parent >= 0 {
			r.Accounts[i].Parent, r.parents[i] = tree.Nodes[node.Parent].Name, node.Parent
		}
		k.seats[a][0] = len(r.Users)
		for _, user := range node.Users {
			k.sit(r, node.Name, user)
		}
		k.seats[a][1] = len(r.Users)
	}
	return r
}

func (k *straight) sit(r *Ranking, account string, user NodeUser) {
	key := memberKey{account, user.Name}
	u := k.member[key]
	k.sitting = append(k.sitting, u)
	r.users[key] = len(r.Users)
	if home, ok := r.homes[user.Name]; !ok || account < home {
		r.homes[user.Name] = account
	}
	r.Users = append(r.Users, UserStanding{
		Account: account, User: user.Name, Share: user.Share, EqualPart: user.EqualPart,
		ShareOfCluster: user.ShareOfCluster, Entitled: k.due.users[u].whole, Used: k.used.users[u],
	})
}

// measure works out the level fair shares. What an account's former members
// were due and used counts in the sums of the level, as it does for the
// account, though they themselves no longer stand there.
func (k *straight) measure(r *Ranking) {
	r.Accounts[0].LevelFS = k.lone(k.root)
	for _, a := range k.shape.order {
		due, used := k.level(a)
		for _, child := range k.shape.children[a] {
			r.Accounts[k.place[child]].LevelFS = levelFS(k.due.total[child].weight(), due, k.loads.total[child], used)
		}
		for seat := k.seats[a][0]; seat < k.seats[a][1]; seat++ {
			u := k.sitting[seat]
			r.Users[seat].LevelFS = levelFS(k.due.users[u].weight(), due, k.loads.users[u], used)
		}
		straightLevels(r.Users[k.seats[a][0]:k.seats[a][1]])
	}
}

// level is what the child accounts and the users of account a are due and used.
func (k *straight) level(a int) (due float64, used GPUMillis) {
	due, used = k.due.direct[a].weight(), max(k.loads.direct[a], 0)
	for _, child := range k.shape.children[a] {
		due += k.due.total[child].weight()
		used = add(used, max(k.loads.total[child], 0))
	}
	return due, used
}

// setLevels numbers the levels of one account's users.
func straightLevels(users []UserStanding) {
	ratios := make([]float64, len(users))
	for i := range users {
		ratios[i] = users[i].LevelFS
	}
	slices.Sort(ratios)
	ratios = slices.Compact(ratios)
	for i := range users {
		below, _ := slices.BinarySearch(ratios, users[i].LevelFS)
		users[i].Level = len(ratios) - 1 - below
	}
}

// rankUsers ranks every member. A vacant account stands in the tree as one
// user: whoever runs in it.
func (k *straight) rankUsers(r *Ranking) {
	users := len(r.Users) // the leaves: users, then vacant accounts
	t := newStraightTree(len(k.accounts), users+len(r.Accounts))
	for _, a := range k.shape.order {
		t.addAccounts(k, r, a)
		for seat := k.seats[a][0]; seat < k.seats[a][1]; seat++ {
			t.addLeaf(a, seat, r.Users[seat].LevelFS, r.Users[seat].User)
		}
		if k.vacant(a) {
			t.addLeaf(a, users+k.place[a], k.lone(a), "")
		}
	}
	t.visit(t.children[k.root], false)
	k.setFactors(r, t)
}

// setFactors turns the ranks of a tree of users into factors.
func (k *straight) setFactors(r *Ranking, t *straightTree) {
	factor := func(rank int) float64 { return float64(t.ranked()-rank+1) / float64(t.ranked()) }
	for i := range r.Users {
		u := &r.Users[i]
		u.Rank = t.ranks[i]
		u.Factor = factor(u.Rank)
		if account := &r.Accounts[r.accounts[u.Account]]; account.Factor == 0 || u.Factor < account.Factor {
			account.Factor = u.Factor
		}
	}
	for _, a := range k.shape.order {
		if k.vacant(a) {
			r.Accounts[k.place[a]].Factor = factor(t.ranks[len(r.Users)+k.place[a]])
		}
	}
}

// vacant tells that account a has neither members nor child accounts.
func (k *straight) vacant(a int) bool {
	return len(k.shape.children[a]) == 0 && !k.peopled(a)
}

// peopled tells that account a has members.
func (k *straight) peopled(a int) bool { return k.seats[a][0] < k.seats[a][1] }

// lone is the level fair share of account a among nobody but itself.
func (k *straight) lone(a int) float64 {
	due, used := k.due.total[a].weight(), k.loads.total[a]
	return levelFS(due, due, used, used)
}

// pool is the direct users of account a as one.
func (k *straight) pool(a int) Pool {
	due, used := k.level(a)
	return Pool{
		Members:  k.seats[a][1] - k.seats[a][0],
		Entitled: k.due.direct[a].entitled(), Used: k.used.direct[a], Load: k.loads.direct[a],
		LevelFS: levelFS(k.due.direct[a].weight(), due, k.loads.direct[a], used),
	}
}

// rankAccounts ranks the accounts that have users and those that are vacant.
func (k *straight) rankAccounts(r *Ranking) {
	t := newStraightTree(len(k.accounts), len(r.Accounts))
	for _, a := range k.shape.order {
		t.addAccounts(k, r, a)
		switch {
		case k.vacant(a):
			t.addLeaf(a, k.place[a], k.lone(a), "")
		case k.peopled(a):
			r.Accounts[k.place[a]].Direct = k.pool(a)
			t.addLeaf(a, k.place[a], r.Accounts[k.place[a]].Direct.LevelFS, "")
		}
	}
	t.visit(t.children[k.root], false)
	for i := range r.Accounts {
		r.Accounts[i].Rank = t.ranks[i]
	}
}

func (l *layout) straightUsage(window Period, charges []Charge) *Usage {
	u := l.newUsage(window)
	epochs := l.epochs(window, nil)
	outside := straightRest{}
	for i := range charges {
		c := &charges[i]
		within, lost := l.spread(epochs, l.find(c.Account), c.Period, c.Amount)
		l.straightCharge(u, c, within)
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

// straightCharge books an amount on the account and the user of a charge. Accounts
// above get it by rollUp.
func (l *layout) straightCharge(u *Usage, c *Charge, amount GPUMillis) {
	if amount == 0 {
		return
	}
	a := l.number[c.Account]
	u.direct[a] = add(u.direct[a], amount)
	if user, member := l.member[memberKey{c.Account, c.User}]; member {
		u.users[user] = add(u.users[user], amount)
	}
}

// straightRest sums up what belongs to no account of the tree.
type straightRest map[memberKey]GPUMillis

func (u straightRest) add(c *Charge, amount GPUMillis) {
	if amount != 0 {
		key := memberKey{c.Account, c.User}
		u[key] = add(u[key], amount)
	}
}

func (u straightRest) charges(window Period) []Charge {
	var charges []Charge
	for key, amount := range u {
		charges = append(charges, Charge{Period: window, Account: key.account, User: key.user, Amount: amount})
	}
	slices.SortFunc(charges, func(x, y Charge) int {
		return cmp.Or(cmp.Compare(x.Account, y.Account), cmp.Compare(x.User, y.User))
	})
	return charges
}

func (l *layout) straightEntitlements(window Period) *Entitlements {
	e := l.newEntitlements(window)
	in := newStraightIntegrator(l)
	for _, segment := range l.straightChanges(window).segments() {
		in.integrate(e, segment)
	}
	return e
}

// straightChanges are all instants at which the flow of GPU time changes its
// course. Changes of capacity only swell it and needn't be told apart, unless
// a negative grant makes it run dry.
func (l *layout) straightChanges(window Period) *changes {
	c := &changes{window: window}
	debit := false
	for i := range l.accounts {
		a := &l.accounts[i]
		addSteps(c, a.parents)
		addSteps(c, a.Share)
		for _, grant := range a.Grants {
			c.period(grant.Period)
			debit = debit || grant.Amount < 0
		}
	}
	for i := range l.users {
		addSteps(c, l.users[i].In)
	}
	if debit {
		addSteps(c, l.budget.Capacity)
	}
	return c
}

// straightIntegrator lets GPU time flow through one segment after the other.
type straightIntegrator struct {
	*layout
	shape    *shape // the tree in the segment
	capacity capacity
	division division
	split    apportionment
	inflow   []due // by account: from the parent
	granted  []due // by account: of its own
	below    []due // by account: granted to the accounts below it
}

func newStraightIntegrator(l *layout) *straightIntegrator {
	n := len(l.accounts)
	return &straightIntegrator{
		layout: l, capacity: capacity{steps: l.budget.Capacity},
		inflow: make([]due, n), granted: make([]due, n), below: make([]due, n),
	}
}

func (in *straightIntegrator) integrate(e *Entitlements, segment Period) {
	in.shape = in.layout.shape(segment.From, false)
	in.inflow[in.root] = in.capacity.over(segment)
	for _, a := range in.shape.order {
		in.granted[a] = in.grants(a, segment)
		flow := in.inflow[a]
		flow.add(in.granted[a])
		e.flow[a].add(flow)
		e.total[a].add(flow)
		in.distribute(e, a, flow, segment.From)
	}
	in.addBelow(e)
}

// addBelow adds to every account's total what was granted below it.
func (in *straightIntegrator) addBelow(e *Entitlements) {
	clear(in.below)
	for _, a := range slices.Backward(in.shape.order) {
		e.total[a].add(in.below[a])
		if parent := in.shape.parent[a]; parent >= 0 {
			in.below[parent].add(in.below[a])
			in.below[parent].add(in.granted[a])
		}
	}
}

func (in *straightIntegrator) grants(a int, segment Period) (sum due) {
	for _, grant := range in.accounts[a].Grants {
		part := portion(grant.Amount, grant.Period, segment)
		sum.add(due{part, float64(part), part < 0})
	}
	return sum
}

// distribute lets what account a has flow to its child accounts and users.
func (in *straightIntegrator) distribute(e *Entitlements, a int, flow due, at Instant) {
	d, children := &in.division, in.shape.children[a]
	in.divide(d, in.shape, a, at)
	pool := due{whole: flow.entitled(), exact: flow.weight()}
	in.split.weights = d.weights
	parts := in.split.distribute(pool.whole, d.total)
	for i, child := range children {
		in.inflow[child] = due{whole: parts[i], exact: pool.exact * d.fraction(i)}
	}
	for i, user := range d.members {
		part := due{whole: parts[len(children)+i], exact: pool.exact * d.fraction(len(children)+i)}
		e.users[user].add(part)
		e.direct[a].add(part)
	}
	overdrawn := min(flow.whole, 0)
	e.unassigned[a] = add(e.unassigned[a], add(parts[len(parts)-1], overdrawn))
}

type straightTree struct {
	apart    bool
	children [][]straightEntry // by account
	ranks    []int             // by leaf; 0 if not met
	next     int
	rank     int // the last one given
}

// straightEntry is an account or a leaf among its siblings.
type straightEntry struct {
	levelFS float64
	rest    float64 // what levelFS leaves out of a longer number
	name    string
	account int // -1 for a leaf
	leaf    int // -1 for an account
}

func newStraightTree(accounts, leaves int) *straightTree {
	return &straightTree{children: make([][]straightEntry, accounts), ranks: make([]int, leaves), next: 1, rank: 1}
}

func (t *straightTree) addAccounts(k *straight, r *Ranking, a int) {
	for _, child := range k.shape.children[a] {
		standing := &r.Accounts[k.place[child]]
		t.children[a] = append(t.children[a], straightEntry{standing.LevelFS, 0, standing.Name, child, -1})
	}
}

func (t *straightTree) addLeaf(a, leaf int, levelFS float64, name string) {
	t.children[a] = append(t.children[a], straightEntry{levelFS, 0, name, -1, leaf})
}

// visit ranks the leaves among and below siblings. If tied is set the first of
// them shares the last rank given.
func (t *straightTree) visit(siblings []straightEntry, tied bool) {
	slices.SortFunc(siblings, straightCompare)
	for len(siblings) > 0 {
		equals := straightEquals(siblings)
		var below []straightEntry
		for _, e := range equals {
			switch {
			case e.account < 0:
				t.give(e.leaf, tied)
			case t.apart:
				t.visit(t.children[e.account], tied)
			default:
				below = append(below, t.children[e.account]...)
				continue
			}
			tied = true
		}
		t.visit(below, tied)
		siblings, tied = siblings[len(equals):], false
	}
}

func (t *straightTree) give(leaf int, tied bool) {
	if !tied {
		t.rank = t.next
	}
	t.ranks[leaf] = t.rank
	t.next++
}

// ranked is how many leaves were ranked.
func (t *straightTree) ranked() int { return t.next - 1 }

// straightCompare sorts by falling level fair share, leaves before accounts.
// What comes then makes the order definite; it has an effect on ranks only where
// equal accounts are ranked apart.
func straightCompare(x, y straightEntry) int {
	if c := cmp.Compare(y.levelFS, x.levelFS); c != 0 {
		return c // almost always, and sorting is most of the work
	}
	return cmp.Or(
		cmp.Compare(y.rest, x.rest),
		cmp.Compare(min(x.account, 0), min(y.account, 0)),
		cmp.Compare(x.name, y.name),
		cmp.Compare(x.leaf, y.leaf),
		cmp.Compare(x.account, y.account),
	)
}

func straightEquals(sorted []straightEntry) []straightEntry {
	n := 1
	for n < len(sorted) && sorted[n].levelFS == sorted[0].levelFS && sorted[n].rest == sorted[0].rest {
		n++
	}
	return sorted[:n]
}
