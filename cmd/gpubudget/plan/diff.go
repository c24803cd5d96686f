// SPDX-License-Identifier: GPL-2.0-or-later

package plan

import (
	"fmt"
	"sort"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/internal/amount"
)

// Op is what a change does.
type Op int

// The operations, in the order in which Run carries them out: what is added
// must be there before something is put below it, and what is closed must be
// empty.
const (
	SetPolicy Op = iota
	SetWeight
	AddAccount
	MoveAccount
	SetShare
	SetMinRuntime
	AddUser
	SetUserShare
	RemoveUser
	CloseAccount
)

// Change is one difference between two trees.
type Change struct {
	Op      Op
	Account string
	Parent  string // AddAccount, MoveAccount: the account above from then on
	User    string // AddUser, SetUserShare, RemoveUser
	Share   fairshare.Share
	Setting string // SetPolicy
	Value   string // SetPolicy, SetMinRuntime
	GPUType string // SetWeight
	Weight  fairshare.Weight

	// What it was before, for display.
	OldParent string
	OldShare  fairshare.Share
	OldValue  string
	OldWeight fairshare.Weight
}

// String is the change as a line of a difference: + for what is new, - for
// what goes, ~ for what becomes other.
func (c Change) String() string {
	switch c.Op {
	case SetPolicy:
		return fmt.Sprintf("~ policy %s: %s -> %s", c.Setting, c.OldValue, c.Value)
	case SetWeight:
		return fmt.Sprintf("~ weight of %s: %s -> %s", c.GPUType, amount.Weight(c.OldWeight), amount.Weight(c.Weight))
	case AddAccount:
		return fmt.Sprintf("+ account %s below %s, share %s", c.Account, c.Parent, amount.Percent(c.Share))
	case MoveAccount:
		return fmt.Sprintf("~ account %s: below %s -> %s, share %s -> %s",
			c.Account, c.OldParent, c.Parent, amount.Percent(c.OldShare), amount.Percent(c.Share))
	case SetShare:
		return fmt.Sprintf("~ account %s: share %s -> %s", c.Account, amount.Percent(c.OldShare), amount.Percent(c.Share))
	case SetMinRuntime:
		return fmt.Sprintf("~ policy %s of account %s: %s -> %s", budgets.MinRuntime, c.Account, c.OldValue, c.Value)
	case AddUser:
		return fmt.Sprintf("+ user %s in %s, share %s", c.User, c.Account, amount.Percent(c.Share))
	case SetUserShare:
		return fmt.Sprintf("~ user %s in %s: share %s -> %s", c.User, c.Account, amount.Percent(c.OldShare), amount.Percent(c.Share))
	case RemoveUser:
		return fmt.Sprintf("- user %s in %s", c.User, c.Account)
	case CloseAccount:
		return fmt.Sprintf("- account %s below %s", c.Account, c.OldParent)
	}
	return fmt.Sprintf("? operation %d", c.Op)
}

// Difference is what has to change in current to make it want, and what
// current has beyond that.
type Difference struct {
	Changes []Change
	// Surplus closes the accounts and removes the users that want does not
	// have.
	Surplus []Change
}

// Diff compares two trees. Accounts are the same if their names are; want must
// have each name once.
func Diff(current, want Tree) Difference {
	d := differ{have: index(&current.Root), want: index(&want.Root)}
	d.policy(current.Policy, want.Policy)
	d.weights(current.Weights, want.Weights)
	want.Root.Walk(func(parent, a *Account) { d.account(parent, a) })
	current.Root.Walk(func(parent, a *Account) { d.surplus(parent, a) })
	return d.Difference
}

type differ struct {
	Difference
	have, want map[string]place
}

// place is an account and the one above it, nil for root.
type place struct{ parent, account *Account }

func index(root *Account) map[string]place {
	places := map[string]place{}
	root.Walk(func(parent, a *Account) { places[a.Name] = place{parent, a} })
	return places
}

func (d *differ) policy(current, want map[string]string) {
	names := make([]string, 0, len(want))
	for name := range want {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if current[name] != want[name] {
			d.Changes = append(d.Changes, Change{Op: SetPolicy, Setting: name, OldValue: current[name], Value: want[name]})
		}
	}
}

func (d *differ) weights(current, want map[string]fairshare.Weight) {
	for _, name := range sortedKeys(want) {
		c := Change{Op: SetWeight, GPUType: name, OldWeight: fairshare.DefaultWeight, Weight: want[name]}
		if old, said := current[name]; said {
			c.OldWeight = old
		}
		if c.OldWeight != c.Weight {
			d.Changes = append(d.Changes, c)
		}
	}
}

// account compares an account that is wanted with the one that is there.
func (d *differ) account(parent, a *Account) {
	old, exists := d.have[a.Name]
	if parent != nil { // root is always there and whole
		d.place(parent, a, old, exists)
	}
	var members []User
	if exists {
		members = old.account.Users
	}
	d.minRuntime(a, old.account)
	d.users(a, members)
}

// minRuntime compares an account's minimum runtime; old is nil if it isn't there.
func (d *differ) minRuntime(a, old *Account) {
	c := Change{Op: SetMinRuntime, Account: a.Name, OldValue: budgets.Inherit, Value: a.MinRuntime}
	if old != nil && old.MinRuntime != "" {
		c.OldValue = old.MinRuntime
	}
	if c.Value != "" && c.Value != c.OldValue {
		d.Changes = append(d.Changes, c)
	}
}

func (d *differ) place(parent, a *Account, old place, exists bool) {
	c := Change{Account: a.Name, Parent: parent.Name, Share: a.Share}
	if exists {
		c.OldParent, c.OldShare = old.parent.Name, old.account.Share
	}
	switch {
	case !exists:
		c.Op = AddAccount
	case c.OldParent != c.Parent:
		c.Op = MoveAccount
	case c.OldShare != c.Share:
		c.Op = SetShare
	default:
		return
	}
	d.Changes = append(d.Changes, c)
}

func (d *differ) users(a *Account, members []User) {
	share := map[string]fairshare.Share{}
	for _, u := range members {
		share[u.Name] = u.Share
	}
	for _, u := range a.Users {
		c := Change{Account: a.Name, User: u.Name, Share: u.Share}
		old, exists := share[u.Name]
		switch {
		case !exists:
			c.Op = AddUser
		case old != u.Share:
			c.Op, c.OldShare = SetUserShare, old
		default:
			continue
		}
		d.Changes = append(d.Changes, c)
	}
}

// surplus finds what is there and not wanted. The members of an account that
// goes leave with it.
func (d *differ) surplus(parent, a *Account) {
	want, wanted := d.want[a.Name]
	if !wanted {
		d.Surplus = append(d.Surplus, Change{Op: CloseAccount, Account: a.Name, OldParent: parent.Name})
		return
	}
	keep := map[string]bool{}
	for _, u := range want.account.Users {
		keep[u.Name] = true
	}
	for _, u := range a.Users {
		if !keep[u.Name] {
			d.Surplus = append(d.Surplus, Change{Op: RemoveUser, Account: a.Name, User: u.Name})
		}
	}
}
