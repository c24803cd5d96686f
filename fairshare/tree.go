// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"cmp"
	"slices"
	"sort"
)

// Tree is the account tree in force at one instant.
type Tree struct {
	At    Instant
	Nodes []Node // depth first, siblings by name; the first is root
}

// Node is an account in a Tree. An account that cannot be reached from root
// (its parent is unknown or closed, or it stands in a circle) is not in the
// tree.
type Node struct {
	Name           string
	Parent         int     // index in Nodes; -1 for root
	Depth          int     // 0 for root
	Share          Share   // of its parent; Whole for root
	ShareOfCluster float64 // product of the shares up to root, 0 to 1
	Users          []NodeUser
	Unassigned     Share // what neither child accounts nor users have
}

// NodeUser is a member of an account in a Tree, sorted by name.
type NodeUser struct {
	Name           string
	Share          Share   // of the account; of an equal part, rounded down
	EqualPart      bool    // he has no share of his own
	ShareOfCluster float64 // 0 to 1
}

// Tree is the tree in force at an instant. Siblings whose shares exceed the
// whole, which a ledger does not let happen, count in proportion.
func (b *Budget) Tree(at Instant) *Tree {
	return newLayout(b).tree(at)
}

// Moves are the instants at which any account is opened, moves or is closed,
// ascending. What was charged across one of them must be known to either side of
// it to count where it belongs.
func (b *Budget) Moves() []Instant { return newLayout(b).moves }

// LastParents tells under whom it counts what accounts use at an instant: by
// account its parent, for a closed account the one under which it stood last, ""
// for root. Accounts that root does not reach are missing.
func (b *Budget) LastParents(at Instant) map[string]string {
	l := newLayout(b)
	s := l.shape(at, true)
	parents := make(map[string]string, len(s.order))
	for _, a := range s.order {
		parents[l.accounts[a].Name] = ""
		if parent := s.parent[a]; parent >= 0 {
			parents[l.accounts[a].Name] = l.accounts[parent].Name
		}
	}
	return parents
}

// layout is a Budget with everything sorted and numbered: accounts by name,
// users by (account, name). It depends on no order in the Budget.
type layout struct {
	budget   *Budget
	accounts []placed
	number   map[string]int // of an account
	root     int
	users    []member // of all accounts
	member   map[memberKey]int
	moves    []Instant // at which any account moves, comes or goes; ascending
	changes  []Instant // at which GPU time changes its course; ascending
	grants   bool      // there are any
	debits   bool      // some of which take away
	shapes   map[shapeKey]*shape
}

type placed struct {
	*Account
	parents     []Step[int] // Account.Parent by number; -1 if there is no such account
	first, last int         // its users are layout.users[first:last]
}

type member struct {
	*Member
	account int
}

type memberKey struct{ account, user string }

func newLayout(b *Budget) *layout {
	l := &layout{budget: b, number: make(map[string]int, len(b.Accounts)+1)}
	for i := range b.Accounts {
		l.accounts = append(l.accounts, placed{Account: &b.Accounts[i]})
	}
	if !slices.ContainsFunc(l.accounts, func(a placed) bool { return a.Name == RootAccount }) {
		l.accounts = append(l.accounts, placed{Account: &Account{Name: RootAccount}})
	}
	slices.SortStableFunc(l.accounts, func(x, y placed) int { return cmp.Compare(x.Name, y.Name) })
	l.accounts = slices.CompactFunc(l.accounts, func(x, y placed) bool { return x.Name == y.Name })
	for i := range l.accounts {
		l.number[l.accounts[i].Name] = i
	}
	l.root = l.number[RootAccount]
	l.numberParents()
	l.numberUsers()
	l.findMoves()
	l.findChanges()
	return l
}

// find is the number of an account, -1 if there is none.
func (l *layout) find(account string) int {
	if a, known := l.number[account]; known {
		return a
	}
	return -1
}

func (l *layout) numberParents() {
	for i := range l.accounts {
		a := &l.accounts[i]
		if i == l.root {
			continue // whatever the ledger says, nothing stands above root
		}
		for _, step := range a.Parent {
			a.parents = append(a.parents, Step[int]{step.Period, l.find(step.Value)})
		}
	}
}

func (l *layout) numberUsers() {
	for i := range l.accounts {
		a := &l.accounts[i]
		a.first = len(l.users)
		for j := range a.Users {
			l.users = append(l.users, member{&a.Users[j], i})
		}
		own := l.users[a.first:]
		slices.SortStableFunc(own, func(x, y member) int { return cmp.Compare(x.User, y.User) })
		own = slices.CompactFunc(own, func(x, y member) bool { return x.User == y.User })
		l.users = l.users[:a.first+len(own)]
		a.last = len(l.users)
	}
	l.member = make(map[memberKey]int, len(l.users))
	for i, u := range l.users {
		l.member[memberKey{l.accounts[u.account].Name, u.User}] = i
	}
}

func (l *layout) findMoves() {
	for i := range l.accounts {
		for _, step := range l.accounts[i].parents {
			l.moves = append(l.moves, step.From, step.Until)
		}
	}
	slices.Sort(l.moves)
	l.moves = slices.Compact(l.moves)
	l.shapes = make(map[shapeKey]*shape)
}

// findChanges finds all instants at which a parent, share, membership or grant
// changes.
func (l *layout) findChanges() {
	for i := range l.accounts {
		a := &l.accounts[i]
		l.changes = appendEnds(appendEnds(l.changes, a.parents), a.Share)
		for _, grant := range a.Grants {
			l.changes = append(l.changes, grant.From, grant.Until)
			l.grants, l.debits = true, l.debits || grant.Amount < 0
		}
	}
	for i := range l.users {
		l.changes = appendEnds(l.changes, l.users[i].In)
	}
	slices.Sort(l.changes)
	l.changes = slices.Compact(l.changes)
}

func appendEnds[T any](ends []Instant, steps []Step[T]) []Instant {
	for i := range steps {
		ends = append(ends, steps[i].From, steps[i].Until)
	}
	return ends
}

// interval numbers the stretches of time in which nothing of a budget changes.
func (l *layout) interval(at Instant) int {
	return sort.Search(len(l.changes), func(i int) bool { return l.changes[i] > at })
}

// shape is who stands under whom while no account moves.
type shape struct {
	order    []int   // the accounts that root reaches, depth first, siblings by name
	parent   []int   // by account; -1 for root and those not reached
	depth    []int   // by account
	children [][]int // by account, by name
	reached  []bool  // by account
}

// shapeKey is how many moves lie behind, and whether closed accounts stand.
type shapeKey struct {
	moves  int
	closed bool
}

// shape is the tree at an instant. With closed set, accounts that were closed
// stand where they stood last, so that what still runs in them counts there.
func (l *layout) shape(at Instant, closed bool) *shape {
	moves := sort.Search(len(l.moves), func(i int) bool { return l.moves[i] > at })
	key := shapeKey{moves, closed}
	if l.shapes[key] == nil {
		l.shapes[key] = l.newShape(at, closed)
	}
	return l.shapes[key]
}

func (l *layout) newShape(at Instant, closed bool) *shape {
	n := len(l.accounts)
	s := &shape{
		order: make([]int, 0, n), parent: make([]int, n), depth: make([]int, n),
		children: make([][]int, n), reached: make([]bool, n),
	}
	for i := range l.accounts {
		s.parent[i] = -1
		parent, exists := ValueAt(l.accounts[i].parents, at)
		if !exists && closed {
			parent, exists = latestValue(l.accounts[i].parents, at)
		}
		if exists && parent >= 0 {
			s.parent[i] = parent
			s.children[parent] = append(s.children[parent], i)
		}
	}
	s.walk(l.root)
	for i := range s.parent {
		if !s.reached[i] {
			s.parent[i] = -1
		}
	}
	return s
}

// walk fills order, depth and reached. Every account has one parent at most
// and root none, so each is met once and a circle never.
func (s *shape) walk(root int) {
	stack := []int{root}
	for len(stack) > 0 {
		a := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		s.order, s.reached[a] = append(s.order, a), true
		for _, child := range slices.Backward(s.children[a]) {
			s.depth[child] = s.depth[a] + 1
			stack = append(stack, child)
		}
	}
}

// division is how an account's GPU time is split at one instant: in units of
// which total make the whole.
type division struct {
	weights    []uint64 // of the child accounts, then of the members, by name; then what nobody has
	members    []int    // numbers of the users who are members
	total      uint64
	equalParts int // how many members have no share of their own
}

// divide splits account a among its children in s and its members at an
// instant, into d, whose memory it reuses.
func (l *layout) divide(d *division, s *shape, a int, at Instant) {
	d.weights, d.members, d.equalParts = d.weights[:0], d.members[:0], 0
	var taken uint64
	for _, child := range s.children[a] {
		taken += d.take(l.shareOf(child, at))
	}
	for i := l.accounts[a].first; i < l.accounts[a].last; i++ {
		share, in := ValueAt(l.users[i].In, at)
		if !in {
			continue
		}
		d.members = append(d.members, i)
		if share == EqualPart {
			d.equalParts++
			d.weights = append(d.weights, equalWeight)
			continue
		}
		taken += d.take(share)
	}
	d.settle(taken)
}

// equalWeight stands in division.weights for a weight that isn't known yet.
const equalWeight = ^uint64(0)

func (d *division) take(share Share) uint64 {
	weight := uint64(min(max(share, 0), Whole))
	d.weights = append(d.weights, weight)
	return weight
}

// settle gives what the shares leave to the equal parts, or to nobody. So that
// equal parts are whole numbers, the unit becomes as many times smaller as
// there are of them.
func (d *division) settle(taken uint64) {
	whole := max(uint64(Whole), taken)
	left := whole - taken
	if d.equalParts == 0 {
		d.weights = append(d.weights, left)
		d.total = whole
		return
	}
	n := uint64(d.equalParts)
	for i, weight := range d.weights {
		if weight == equalWeight {
			d.weights[i] = left
		} else {
			d.weights[i] = weight * n
		}
	}
	d.weights = append(d.weights, 0)
	d.total = whole * n
}

func (l *layout) shareOf(account int, at Instant) Share {
	share, _ := ValueAt(l.accounts[account].Share, at)
	return min(max(share, 0), Whole)
}

func (l *layout) tree(at Instant) *Tree {
	return l.treeOf(l.shape(at, false), at)
}

func (l *layout) treeOf(s *shape, at Instant) *Tree {
	t := &Tree{At: at, Nodes: make([]Node, len(s.order))}
	place := make([]int, len(l.accounts))
	ofCluster := make([]float64, len(l.accounts))
	ofCluster[l.root] = 1
	var d division
	for i, a := range s.order {
		place[a] = i
		node := &t.Nodes[i]
		*node = Node{Name: l.accounts[a].Name, Parent: -1, Depth: s.depth[a], Share: Whole, ShareOfCluster: ofCluster[a]}
		if s.parent[a] >= 0 {
			node.Parent, node.Share = place[s.parent[a]], l.shareOf(a, at)
		}
		l.divide(&d, s, a, at)
		for j, child := range s.children[a] {
			ofCluster[child] = ofCluster[a] * d.fraction(j)
		}
		l.fillUsers(node, &d, len(s.children[a]), at)
	}
	return t
}

func (l *layout) fillUsers(node *Node, d *division, children int, at Instant) {
	for j, u := range d.members {
		share, _ := ValueAt(l.users[u].In, at)
		user := NodeUser{Name: l.users[u].User, Share: max(share, 0), EqualPart: share == EqualPart}
		if user.EqualPart {
			user.Share = d.share(children + j)
		}
		user.ShareOfCluster = node.ShareOfCluster * d.fraction(children+j)
		node.Users = append(node.Users, user)
	}
	node.Unassigned = d.share(len(d.weights) - 1)
}

// fraction is the i-th part of the whole, 0 to 1.
func (d *division) fraction(i int) float64 { return float64(d.weights[i]) / float64(d.total) }

// share is the i-th part of the whole in billionths, rounded down.
func (d *division) share(i int) Share {
	q, _ := mulDiv(d.weights[i], uint64(Whole), d.total)
	return Share(q)
}
