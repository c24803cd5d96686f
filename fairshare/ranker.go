// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import "slices"

// Ranker ranks by one budget again and again, as time goes by and usage grows.
// What follows from the budget alone it works out once, and it uses its memory
// again; the rankings are those that Rank would make. A ranking begins with
// Begin, is told of usage by Charge and Ahead, and is made by Rank.
//
// It is not safe for concurrent use. The Rankings it makes are.
type Ranker struct {
	meter
	integrator *integrator
	due        *Entitlements
	coming     *Entitlements // what grants in force still bring; nil if there are no grants
	carried    carried

	window Period
	ahead  *Usage // sums of what is charged ahead
	frames map[int]*frame
	frame  *frame // of now
	loads  *Usage // used and ahead
	tree   fairTree

	turns [2]turn // of Places
	turn  int
}

// turn is a ranking whose memory is used again, with the frame it is made from.
type turn struct {
	frame   *frame
	ranking Ranking
}

// rung is a user among those of his account.
type rung struct {
	levelFS float64
	seat    int
}

// carried tells which entitlements Ranker.due holds: those of any window in which
// nothing changes and as much flows in.
type carried struct {
	interval int
	root     due
	valid    bool
}

// frame is what rankings have in common while nothing of the budget changes.
type frame struct {
	seating  seating
	shape    *shape
	closed   *shape // with closed accounts where they stood last
	accounts []AccountStanding
	users    []UserStanding

	parents   []int
	byAccount map[string]int
	byUser    map[memberKey]int
	homes     map[string]string

	place   []int    // by account: index in accounts
	seats   [][2]int // by account: its members now are users[from:until]
	sitting []int    // by index in users: number of the user
	rungs   []rung   // users, those of an account as they were sorted the last time
	open    []bool   // by account: something flows to it on a cluster that has GPUs
	shared  []bool   // by account: and comes from what the cluster has, not from grants alone
}

// NewRanker is a ranker by a budget, which must not change any more; but for its
// capacity, which comes with each ranking.
func NewRanker(b *Budget) *Ranker {
	k := newRanker(b)
	k.integrator.keepPlans()
	return k
}

func newRanker(b *Budget) *Ranker {
	l := newLayout(b)
	k := &Ranker{
		meter: *newMeter(l), integrator: newIntegrator(l, nil), due: l.newEntitlements(Period{}),
		ahead: l.newUsage(Period{}), loads: l.newUsage(Period{}),
		frames: make(map[int]*frame),
	}
	if l.grants {
		k.coming = l.newEntitlements(Period{})
	}
	return k
}

// Owner is the number of a user in an account. Any names have one.
func (k *Ranker) Owner(account, user string) Owner { return k.owner(account, user) }

// Moves are the instants at which any account moves, as Budget.Moves tells.
func (k *Ranker) Moves() []Instant { return k.moves }

// Begin begins a ranking as of the end of a window, which the budget and the
// capacity must cover.
func (k *Ranker) Begin(window Period, capacity []Step[MilliGPUs]) {
	k.window = window
	k.begin(window)
	k.frame = k.frameAt(window.Until)
	clear(k.ahead.total)
	clear(k.ahead.direct)
	clear(k.ahead.users)
	k.entitle(capacity)
}

// Charge adds allocated time, spread evenly over a period; the part of it that
// lies in the window counts.
func (k *Ranker) Charge(o Owner, p Period, amount GPUMillis) { k.charge(o, p, amount) }

// Ahead adds an amount that counts in the level fair share only: see Input.
func (k *Ranker) Ahead(o Owner, amount GPUMillis) {
	whose := &k.owners[o]
	if whose.at < 0 {
		return
	}
	k.ahead.total[whose.at] = add(k.ahead.total[whose.at], amount)
	k.book(k.ahead, whose, amount)
}

// Rank is the ranking.
func (k *Ranker) Rank() *Ranking {
	f := k.frame
	r := f.blank()
	k.settle(&r)
	for i, u := range f.sitting {
		r.Users[i].Entitled, r.Users[i].Used = k.due.users[u].whole, k.used.users[u]
	}
	k.rankUsers(&r)
	return &r
}

// Places is the ranking without what strict priorities and the contract don't go
// by, which is what users are due and have used, their ranks, and all factors:
// they are 0. The ranking is overwritten by the call of Places after the next.
func (k *Ranker) Places() *Ranking {
	k.turn = 1 - k.turn
	t := &k.turns[k.turn]
	if t.frame != k.frame {
		t.frame, t.ranking = k.frame, k.frame.blank()
	}
	k.settle(&t.ranking)
	return &t.ranking
}

// blank is a ranking of which nothing is known but the budget.
func (f *frame) blank() Ranking {
	return Ranking{
		Accounts: slices.Clone(f.accounts), Users: slices.Clone(f.users),
		seating: &f.seating, parents: f.parents, accounts: f.byAccount, users: f.byUser, homes: f.homes,
	}
}

// settle fills in a ranking but for what Places leaves out.
func (k *Ranker) settle(r *Ranking) {
	k.end()
	k.load()
	r.Window, r.Unbudgeted = k.window, k.used.Unbudgeted
	k.fill(r)
	k.measure(r)
	k.rankAccounts(r)
}

// entitle works out what everybody is due, unless that is known.
func (k *Ranker) entitle(steps []Step[MilliGPUs]) {
	in := k.integrator
	in.forget(k.window.From)
	in.capacity = capacity{steps: steps}
	if k.coming != nil {
		k.coming.reset(Period{k.window.Until, Never})
		in.comeIn(k.coming, k.window.Until)
	}
	segments := k.budgetChanges(k.window, steps).segments()
	if len(segments) != 1 || k.grants {
		k.carried.valid = false
		k.due.reset(k.window)
		in.integrate(k.due, segments)
		return
	}
	now := carried{k.interval(k.window.From), in.capacity.over(k.window), true}
	if now == k.carried {
		k.due.Window = k.window
		return
	}
	k.carried = now
	k.due.reset(k.window)
	in.flowIn(k.due, k.window, now.root)
}

// mostFrames bounds how many frames are kept. One is enough while time goes by.
const mostFrames = 2

func (k *Ranker) frameAt(now Instant) *frame {
	number := k.interval(now)
	if known := k.frames[number]; known != nil {
		return known
	}
	if len(k.frames) >= mostFrames {
		clear(k.frames)
	}
	k.frames[number] = k.newFrame(now)
	return k.frames[number]
}

// newFrame is the frame of an instant.
func (l *layout) newFrame(now Instant) *frame {
	f := &frame{shape: l.shape(now, false), closed: l.shape(now, true)}
	tree := l.treeOf(f.shape, now)
	f.accounts = make([]AccountStanding, len(tree.Nodes))
	f.parents = make([]int, len(tree.Nodes))
	f.byAccount = make(map[string]int, len(tree.Nodes))
	f.byUser, f.homes = make(map[memberKey]int, len(l.users)), make(map[string]string, len(l.users))
	f.place, f.seats = make([]int, len(l.accounts)), make([][2]int, len(l.accounts))
	f.open, f.shared = l.open(f.shape, now)
	for i := range tree.Nodes {
		node, a := &tree.Nodes[i], f.shape.order[i]
		f.place[a] = i
		f.byAccount[node.Name] = i
		f.accounts[i] = AccountStanding{Name: node.Name, Depth: node.Depth, Share: node.Share, ShareOfCluster: node.ShareOfCluster}
		if node.Parent >= 0 {
			f.accounts[i].Parent = tree.Nodes[node.Parent].Name
			f.parents[i] = node.Parent
		}
		f.seats[a][0] = len(f.users)
		for j := range node.Users {
			l.sit(f, node.Name, &node.Users[j])
		}
		f.seats[a][1] = len(f.users)
	}
	return f
}

func (l *layout) sit(f *frame, account string, user *NodeUser) {
	key := memberKey{account, user.Name}
	f.sitting = append(f.sitting, l.member[key])
	f.rungs = append(f.rungs, rung{seat: len(f.users)})
	f.byUser[key] = len(f.users)
	if home, ok := f.homes[user.Name]; !ok || account < home {
		f.homes[user.Name] = account
	}
	f.users = append(f.users, UserStanding{
		Account: account, User: user.Name, Share: user.Share, EqualPart: user.EqualPart, ShareOfCluster: user.ShareOfCluster,
	})
}

// open tells by account whether anything would flow to it at an instant on a
// cluster that has GPUs, and whether any of it would come from there by shares
// alone, without grants.
func (l *layout) open(s *shape, now Instant) (open, shared []bool) {
	open, shared = make([]bool, len(l.accounts)), make([]bool, len(l.accounts))
	open[l.root], shared[l.root] = true, true
	for _, a := range s.order {
		if parent := s.parent[a]; parent >= 0 {
			has := l.shareOf(a, now) > 0
			open[a], shared[a] = open[parent] && has, shared[parent] && has
		}
		for _, grant := range l.accounts[a].Grants {
			open[a] = open[a] || grant.Amount > 0 && grant.Contains(now)
		}
	}
	return open, shared
}

// load adds up what was used and what is charged ahead, the latter rolled up the
// tree of now.
func (k *Ranker) load() {
	e := epoch{shape: k.frame.closed, sums: k.ahead.total}
	e.rollUp()
	addUp(k.loads.total, k.used.total, k.ahead.total)
	addUp(k.loads.direct, k.used.direct, k.ahead.direct)
	addUp(k.loads.users, k.used.users, k.ahead.users)
}

func addUp(sums, x, y []GPUMillis) {
	for i := range sums {
		sums[i] = add(x[i], y[i])
	}
}

// fill fills in what of accounts needs no comparison.
func (k *Ranker) fill(r *Ranking) {
	f := k.frame
	for i, a := range f.shape.order {
		s := &r.Accounts[i]
		s.Entitled, s.Used, s.Load = k.due.total[a].entitled(), k.used.total[a], k.loads.total[a]
		s.Spent = k.spent(a)
		s.Funded = !s.Spent && (f.open[a] || k.due.flow[a].whole > 0)
	}
}

// spent tells whether account a has used up all it has: no share brings it anything
// now, and what it was due in the window and grants in force still bring is no
// more than what was charged, what runs included up to now. As long as shares bring something
// they do so at every moment, and are never used up.
func (k *Ranker) spent(a int) bool {
	if k.frame.shared[a] {
		return false
	}
	due := k.due.total[a].entitled()
	if k.coming != nil {
		due = add(due, k.coming.total[a].entitled())
	}
	return due > 0 && k.used.total[a] >= due
}

// measure works out the level fair shares and the levels of users. What an
// account's former members were due and used counts in the sums of the level, as
// it does for the account, though they themselves no longer stand there.
func (k *Ranker) measure(r *Ranking) {
	f := k.frame
	r.Accounts[0].LevelFS = k.lone(k.root)
	for _, a := range f.shape.order {
		due, used := k.level(a)
		for _, child := range f.shape.children[a] {
			r.Accounts[f.place[child]].LevelFS = levelFS(k.due.total[child].weight(), due, k.loads.total[child], used)
		}
		from, until := f.seats[a][0], f.seats[a][1]
		for seat := from; seat < until; seat++ {
			u := f.sitting[seat]
			r.Users[seat].LevelFS = levelFS(k.due.users[u].weight(), due, k.loads.users[u], used)
		}
	}
	k.setLevels(r)
}

// level is what the child accounts and the users of account a are due and used.
func (k *Ranker) level(a int) (due float64, used GPUMillis) {
	due, used = k.due.direct[a].weight(), max(k.loads.direct[a], 0)
	for _, child := range k.frame.shape.children[a] {
		due += k.due.total[child].weight()
		used = add(used, max(k.loads.total[child], 0))
	}
	return due, used
}

// setLevels numbers the levels of each account's users. Little changes between
// one ranking and the next, so they are sorted from where they stood.
func (k *Ranker) setLevels(r *Ranking) {
	for _, a := range k.frame.shape.order {
		rungs := k.frame.rungs[k.frame.seats[a][0]:k.frame.seats[a][1]]
		for i := range rungs {
			rungs[i].levelFS = r.Users[rungs[i].seat].LevelFS
		}
		if !slices.IsSortedFunc(rungs, compareRungs) {
			slices.SortFunc(rungs, compareRungs)
		}
		level := 0
		for i := range rungs {
			if i > 0 && rungs[i].levelFS != rungs[i-1].levelFS {
				level++
			}
			r.Users[rungs[i].seat].Level = level
		}
	}
}

// compareRungs sorts by falling level fair share.
func compareRungs(x, y rung) int {
	switch {
	case x.levelFS > y.levelFS:
		return -1
	case x.levelFS < y.levelFS:
		return 1
	}
	return 0
}

// rankUsers ranks every member. A vacant account stands in the tree as one
// user: whoever runs in it.
func (k *Ranker) rankUsers(r *Ranking) {
	f, t := k.frame, &k.tree
	users := len(r.Users) // the leaves: users, then vacant accounts
	t.reset(len(k.accounts), users+len(r.Accounts))
	for _, a := range f.shape.order {
		k.addAccounts(r, a)
		for seat := f.seats[a][0]; seat < f.seats[a][1]; seat++ {
			t.addLeaf(a, seat, r.Users[seat].LevelFS)
		}
		if k.vacant(a) {
			t.addLeaf(a, users+f.place[a], k.lone(a))
		}
	}
	t.visit(t.children[k.root], false)
	k.setFactors(r)
}

func (k *Ranker) addAccounts(r *Ranking, a int) {
	for _, child := range k.frame.shape.children[a] {
		k.tree.addAccount(a, child, r.Accounts[k.frame.place[child]].LevelFS)
	}
}

// setFactors turns the ranks of a tree of users into factors.
func (k *Ranker) setFactors(r *Ranking) {
	t := &k.tree
	factor := func(rank int) float64 { return float64(t.ranked()-rank+1) / float64(t.ranked()) }
	for _, a := range k.frame.shape.order {
		account := &r.Accounts[k.frame.place[a]]
		for seat := k.frame.seats[a][0]; seat < k.frame.seats[a][1]; seat++ {
			u := &r.Users[seat]
			u.Rank = t.ranks[seat]
			u.Factor = factor(u.Rank)
			if account.Factor == 0 || u.Factor < account.Factor {
				account.Factor = u.Factor
			}
		}
		if k.vacant(a) {
			account.Factor = factor(t.ranks[len(r.Users)+k.frame.place[a]])
		}
	}
}

// vacant tells that account a has neither members nor child accounts.
func (k *Ranker) vacant(a int) bool {
	return len(k.frame.shape.children[a]) == 0 && !k.peopled(a)
}

// peopled tells that account a has members.
func (k *Ranker) peopled(a int) bool { return k.frame.seats[a][0] < k.frame.seats[a][1] }

// lone is the level fair share of account a among nobody but itself.
func (k *Ranker) lone(a int) float64 {
	due, used := k.due.total[a].weight(), k.loads.total[a]
	return levelFS(due, due, used, used)
}

// pool is the direct users of account a as one.
func (k *Ranker) pool(a int) Pool {
	due, used := k.level(a)
	return Pool{
		Members:  k.frame.seats[a][1] - k.frame.seats[a][0],
		Entitled: k.due.direct[a].entitled(), Used: k.used.direct[a], Load: k.loads.direct[a],
		LevelFS: levelFS(k.due.direct[a].weight(), due, k.loads.direct[a], used),
	}
}

// rankAccounts ranks the accounts that have users and those that are vacant.
func (k *Ranker) rankAccounts(r *Ranking) {
	f, t := k.frame, &k.tree
	t.reset(len(k.accounts), len(r.Accounts))
	for _, a := range f.shape.order {
		k.addAccounts(r, a)
		switch {
		case k.vacant(a):
			t.addLeaf(a, f.place[a], k.lone(a))
		case k.peopled(a):
			pool := &r.Accounts[f.place[a]].Direct
			*pool = k.pool(a)
			t.addLeaf(a, f.place[a], pool.LevelFS)
		}
	}
	t.visit(t.children[k.root], false)
	for i := range r.Accounts {
		r.Accounts[i].Rank = t.ranks[i]
	}
}
