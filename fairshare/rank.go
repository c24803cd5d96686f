// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"slices"
)

// Input is what a ranking is made from.
type Input struct {
	Budget *Budget
	Window Period // the lookback window; the ranking holds as of its end
	// Charges is the allocated time: closed runs, and running jobs up to now.
	Charges []Charge
	// Ahead is counted in the level fair share only, whole, whatever its
	// period: what running jobs are about to use, so that a burst of starts is
	// felt before it has been used.
	Ahead []Charge
}

// Ranking is who is how far from what he is due. It is not changed after it
// was made and can be read from several goroutines.
type Ranking struct {
	Window     Period
	Accounts   []AccountStanding // depth first, siblings by name; the first is root
	Users      []UserStanding    // in the order of Accounts, then by name
	Unbudgeted []Charge          // see Usage.Unbudgeted; nothing of Ahead

	accounts map[string]int
	users    map[memberKey]int
	homes    map[string]string
}

// AccountStanding is how an account stands.
type AccountStanding struct {
	Name, Parent   string
	Depth          int     // 0 for root
	Share          Share   // of the parent, now
	ShareOfCluster float64 // now, 0 to 1
	Entitled, Used GPUMillis
	// LevelFS compares it to its siblings, child accounts and users of its
	// parent: 0 to +Inf, above 1 if under-served.
	LevelFS float64
	// Rank places the account's own users, as one, among those of all
	// accounts: 1 is the most under-served, equals share a rank. It is 0 if the
	// account has child accounts but no users.
	Rank int
	// Direct is its own users as one, among its child accounts.
	Direct Pool
	// Funded: something flows to the account in the window or does so now.
	Funded bool
	// Factor is the fair-share factor of a user whom the budget doesn't list in
	// this account: the lowest of its members', that of the account itself if
	// it has neither users nor child accounts, 0 if it has child accounts only.
	Factor float64
}

// Pool is the direct users of an account as one, former members and guests
// included. It is empty if the account has no members.
type Pool struct {
	Members        int // now
	Entitled, Used GPUMillis
	LevelFS        float64 // as in AccountStanding; what Rank goes by
}

// UserStanding is how a user stands in one of his accounts.
type UserStanding struct {
	Account, User  string
	Share          Share   // of the account, now; for an equal part what it comes to
	EqualPart      bool    // no share of his own
	ShareOfCluster float64 // now, 0 to 1
	Entitled, Used GPUMillis
	LevelFS        float64 // as in AccountStanding
	Factor         float64 // (number of users - Rank + 1) / number of users, in (0,1]
	Rank           int     // 1 is the most under-served; equals share a rank
	Level          int     // order of LevelFS within the account: 0 is the most under-served, no gaps
}

// Account is the standing of an account; ok is false if it's not in the tree.
func (r *Ranking) Account(name string) (s *AccountStanding, ok bool) {
	i, ok := r.accounts[name]
	if !ok {
		return nil, false
	}
	return &r.Accounts[i], true
}

// User is the standing of a user in an account; ok is false if he's no member.
func (r *Ranking) User(account, user string) (s *UserStanding, ok bool) {
	i, ok := r.users[memberKey{account, user}]
	if !ok {
		return nil, false
	}
	return &r.Users[i], true
}

// DefaultAccount is the account of a job that names none: the user's first by
// name. ok is false if he has none.
func (r *Ranking) DefaultAccount(user string) (account string, ok bool) {
	account, ok = r.homes[user]
	return account, ok
}

// Rank ranks all accounts and users as of the end of the window, which the
// budget must cover, its end included.
//
// Users are ranked by the Fair Tree algorithm (Cox and Morrison, Slurm 14.11),
// see fairTree. Accounts are ranked by the same algorithm with the direct
// users of each account pooled into one.
func Rank(in Input) *Ranking {
	l := newLayout(in.Budget)
	now := in.Window.Until
	k := &ranker{
		layout: l,
		now:    now,
		shape:  l.shape(now, false),
		due:    l.entitlements(in.Window),
		used:   l.usage(in.Window, in.Charges),
	}
	k.loads = l.loads(k.used, in.Ahead, now)
	k.funded = l.funded(k.shape, k.due, now)
	r := k.standings()
	k.measure(r)
	k.rankUsers(r)
	k.rankAccounts(r)
	return r
}

// ranker holds what Rank has worked out on its way.
type ranker struct {
	*layout
	now    Instant
	shape  *shape
	due    *Entitlements
	used   *Usage
	loads  *Usage // used and what is charged ahead
	funded []bool

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
			l.charge(sum, &ahead[i], ahead[i].Amount)
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

// standings fills in all that needs no comparison.
func (k *ranker) standings() *Ranking {
	tree := k.treeOf(k.shape, k.now)
	r := &Ranking{
		Window: k.due.Window, Unbudgeted: k.used.Unbudgeted,
		Accounts: make([]AccountStanding, len(tree.Nodes)),
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
			Entitled: k.due.total[a].entitled(), Used: k.used.total[a], Funded: k.funded[a],
		}
		if node.Parent >= 0 {
			r.Accounts[i].Parent = tree.Nodes[node.Parent].Name
		}
		k.seats[a][0] = len(r.Users)
		for _, user := range node.Users {
			k.sit(r, node.Name, user)
		}
		k.seats[a][1] = len(r.Users)
	}
	return r
}

func (k *ranker) sit(r *Ranking, account string, user NodeUser) {
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
func (k *ranker) measure(r *Ranking) {
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
		setLevels(r.Users[k.seats[a][0]:k.seats[a][1]])
	}
}

// level is what the child accounts and the users of account a are due and used.
func (k *ranker) level(a int) (due float64, used GPUMillis) {
	due, used = k.due.direct[a].weight(), max(k.loads.direct[a], 0)
	for _, child := range k.shape.children[a] {
		due += k.due.total[child].weight()
		used = add(used, max(k.loads.total[child], 0))
	}
	return due, used
}

// setLevels numbers the levels of one account's users.
func setLevels(users []UserStanding) {
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
func (k *ranker) rankUsers(r *Ranking) {
	users := len(r.Users) // the leaves: users, then vacant accounts
	t := newFairTree(len(k.accounts), users+len(r.Accounts))
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
func (k *ranker) setFactors(r *Ranking, t *fairTree) {
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
func (k *ranker) vacant(a int) bool {
	return len(k.shape.children[a]) == 0 && !k.peopled(a)
}

// peopled tells that account a has members.
func (k *ranker) peopled(a int) bool { return k.seats[a][0] < k.seats[a][1] }

// lone is the level fair share of account a among nobody but itself.
func (k *ranker) lone(a int) float64 {
	due, used := k.due.total[a].weight(), k.loads.total[a]
	return levelFS(due, due, used, used)
}

// pool is the direct users of account a as one.
func (k *ranker) pool(a int) Pool {
	due, used := k.level(a)
	return Pool{
		Members:  k.seats[a][1] - k.seats[a][0],
		Entitled: k.due.direct[a].entitled(), Used: k.used.direct[a],
		LevelFS: levelFS(k.due.direct[a].weight(), due, k.loads.direct[a], used),
	}
}

// rankAccounts ranks the accounts that have users and those that are vacant.
func (k *ranker) rankAccounts(r *Ranking) {
	t := newFairTree(len(k.accounts), len(r.Accounts))
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
