// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"maps"
	"math/big"
	"slices"

	"gpubudget/fairshare"
)

// oracle works out entitlements and ranks by another road than the package:
// exact rational numbers, recursion from the leaves up, hour by hour, and Fair
// Tree by comparing paths. It is slow, and needs all changes to fall on whole
// hours since start.
type oracle struct {
	budget   *fairshare.Budget
	accounts map[string]*fairshare.Account
}

func newOracle(b *fairshare.Budget) *oracle {
	o := &oracle{budget: b, accounts: map[string]*fairshare.Account{fairshare.RootAccount: {Name: fairshare.RootAccount}}}
	for i := range b.Accounts {
		o.accounts[b.Accounts[i].Name] = &b.Accounts[i]
	}
	return o
}

// path is the accounts from a up to root; ok is false if root isn't reached.
func (o *oracle) path(a string, at fairshare.Instant) (path []string, ok bool) {
	for range len(o.accounts) + 1 {
		path = append(path, a)
		if a == fairshare.RootAccount {
			return path, true
		}
		account, known := o.accounts[a]
		if !known {
			return nil, false
		}
		if a, known = fairshare.ValueAt(account.Parent, at); !known {
			return nil, false
		}
	}
	return nil, false
}

// flow is F_a in GPU-hours per hour, in the hour that begins at an instant.
func (o *oracle) flow(a string, at fairshare.Instant) *big.Rat {
	f := new(big.Rat)
	if a == fairshare.RootAccount {
		gpus, _ := fairshare.ValueAt(o.budget.Capacity, at)
		f.SetFrac64(int64(gpus), int64(fairshare.GPU))
	} else {
		parent, _ := fairshare.ValueAt(o.accounts[a].Parent, at)
		share, _ := fairshare.ValueAt(o.accounts[a].Share, at)
		f.Mul(positive(o.flow(parent, at)), o.part(parent, share, at))
	}
	return f.Add(f, o.granted(a, at))
}

func positive(x *big.Rat) *big.Rat {
	if x.Sign() < 0 {
		return new(big.Rat)
	}
	return x
}

// granted is what grants give to account a in the hour, in GPU-hours.
func (o *oracle) granted(a string, at fairshare.Instant) *big.Rat {
	sum := new(big.Rat)
	for _, g := range o.accounts[a].Grants {
		if g.Contains(at) {
			length := int64((g.Until - g.From) / hour)
			sum.Add(sum, big.NewRat(int64(g.Amount), int64(fairshare.GPUHour)*length))
		}
	}
	return sum
}

// part is a share as a part of account a's flow.
func (o *oracle) part(a string, share fairshare.Share, at fairshare.Instant) *big.Rat {
	taken, equals := o.taken(a, at)
	whole := max(int64(fairshare.Whole), taken)
	if share == fairshare.EqualPart {
		return big.NewRat(whole-taken, whole*int64(equals))
	}
	return big.NewRat(int64(share), whole)
}

// taken sums up the shares of account a's child accounts and users.
func (o *oracle) taken(a string, at fairshare.Instant) (taken int64, equals int) {
	for _, account := range o.accounts {
		if parent, ok := fairshare.ValueAt(account.Parent, at); ok && parent == a && account.Name != fairshare.RootAccount {
			share, _ := fairshare.ValueAt(account.Share, at)
			taken += int64(share)
		}
	}
	for _, user := range o.accounts[a].Users {
		switch share, in := fairshare.ValueAt(user.In, at); {
		case in && share == fairshare.EqualPart:
			equals++
		case in:
			taken += int64(share)
		}
	}
	return taken, equals
}

// entitled is E_a in GPU-hours over a window of whole hours.
func (o *oracle) entitled(a string, w fairshare.Period) *big.Rat {
	sum := new(big.Rat)
	for at := w.From; at < w.Until; at += hour {
		if _, ok := o.path(a, at); !ok {
			continue
		}
		sum.Add(sum, o.flow(a, at))
		for below := range o.accounts {
			if path, ok := o.path(below, at); ok && slices.Contains(path[1:], a) {
				sum.Add(sum, o.granted(below, at))
			}
		}
	}
	return sum
}

// user is what a user of account a is due.
func (o *oracle) user(a string, user *fairshare.Member, w fairshare.Period) *big.Rat {
	sum := new(big.Rat)
	for at := w.From; at < w.Until; at += hour {
		share, in := fairshare.ValueAt(user.In, at)
		if _, ok := o.path(a, at); ok && in {
			part := o.part(a, share, at)
			sum.Add(sum, part.Mul(part, positive(o.flow(a, at))))
		}
	}
	return sum
}

// ratNode is an account or user in a tree of exact level fair shares.
type ratNode struct {
	name     string
	user     bool
	due      *big.Rat
	used     int64 // with guests
	guests   int64 // of that by users who are not listed
	infinite bool
	levelFS  *big.Rat
	children []*ratNode
	rank     int
}

// measure works out the level fair shares below n.
func (n *ratNode) measure() {
	due, used := new(big.Rat), n.guests
	for _, c := range n.children {
		due.Add(due, c.due)
		used += c.used
	}
	for _, c := range n.children {
		c.levelFS = new(big.Rat)
		switch {
		case c.due.Sign() <= 0:
		case c.used == 0:
			c.infinite = true
		default:
			s := new(big.Rat).Quo(c.due, due)
			c.levelFS.Quo(s, big.NewRat(c.used, used))
		}
		c.measure()
	}
}

func (n *ratNode) compare(m *ratNode) int {
	if n.infinite != m.infinite {
		if n.infinite {
			return 1
		}
		return -1
	}
	return n.levelFS.Cmp(m.levelFS)
}

// exactTree is the tree of a budget that does not change, with what each was
// due in an hour and nothing used. A vacant account has one user without name.
func (o *oracle) exactTree() map[string]*ratNode {
	hour := hours(0, 1)
	nodes := map[string]*ratNode{}
	for name := range o.accounts {
		nodes[name] = &ratNode{name: name, due: o.entitled(name, hour)}
	}
	for _, a := range o.budget.Accounts {
		parent, _ := fairshare.ValueAt(a.Parent, start)
		nodes[parent].children = append(nodes[parent].children, nodes[a.Name])
		for i := range a.Users {
			user := &ratNode{name: a.Users[i].User, user: true, due: o.user(a.Name, &a.Users[i], hour)}
			nodes[a.Name+"/"+user.name] = user
			nodes[a.Name].children = append(nodes[a.Name].children, user)
		}
	}
	for name, node := range maps.Clone(nodes) {
		if !node.user && len(node.children) == 0 {
			nodes[name+"/"] = &ratNode{user: true, due: node.due}
			node.children = append(node.children, nodes[name+"/"])
		}
	}
	return nodes
}

// rank ranks the users below the children: it takes the best ones out, again
// and again. first is the rank they get; tied, if not 0, that of the best.
// It returns how many there are.
func rank(children []*ratNode, first, tied int) int {
	if len(children) == 0 {
		return 0
	}
	best := slices.MaxFunc(children, (*ratNode).compare)
	var rest, below []*ratNode
	var users int
	for _, c := range children {
		switch {
		case c.compare(best) != 0:
			rest = append(rest, c)
		case c.user:
			users++
			c.rank = first
			if tied != 0 {
				c.rank = tied
			}
		default:
			below = append(below, c.children...)
		}
	}
	next := tied
	if users > 0 && tied == 0 {
		next = first
	}
	n := users + rank(below, first+users, next)
	return n + rank(rest, first+n, 0)
}
