// SPDX-License-Identifier: GPL-2.0-or-later

// Package plan describes an account tree as it should be, finds what has to
// change in a cluster's ledger to get there, and makes these changes.
package plan

import (
	"sort"

	"gpubudget/fairshare"
)

// Tree is a cluster's account tree at one instant.
type Tree struct {
	// Cluster is the cluster's name, "" if the tree does not say.
	Cluster string
	// Policy is settings and their values. A setting that is not here is left
	// as it is.
	Policy map[string]string
	// Weights are what GPUs of some types count for. A type that is not here is left
	// as it is.
	Weights map[string]fairshare.Weight
	// Root is the account above all others. Its share is fairshare.Whole.
	Root Account
}

// Account is an account with what stands below it.
type Account struct {
	Name  string
	Share fairshare.Share // of the account above
	// MinRuntime is that of jobs which name none, budgets.Inherit if it has none of
	// its own. "" leaves it as it is.
	MinRuntime string
	Users      []User
	Accounts   []Account
}

// User is a member of an account.
type User struct {
	Name  string
	Share fairshare.Share // of the account, or fairshare.EqualPart
}

// Sort puts accounts and users in the order of their names, at every level.
func (a *Account) Sort() {
	sort.Slice(a.Users, func(i, j int) bool { return a.Users[i].Name < a.Users[j].Name })
	sort.Slice(a.Accounts, func(i, j int) bool { return a.Accounts[i].Name < a.Accounts[j].Name })
	for i := range a.Accounts {
		a.Accounts[i].Sort()
	}
}

// Walk calls visit for the account and all below it, parents first. parent is
// nil for the account itself.
func (a *Account) Walk(visit func(parent, account *Account)) { walk(nil, a, visit) }

func walk(parent, a *Account, visit func(parent, account *Account)) {
	visit(parent, a)
	for i := range a.Accounts {
		walk(a, &a.Accounts[i], visit)
	}
}

// Current is the tree in force that t describes.
func Current(t *fairshare.Tree) Tree {
	children := make([][]int, len(t.Nodes))
	for i, n := range t.Nodes {
		if n.Parent >= 0 {
			children[n.Parent] = append(children[n.Parent], i)
		}
	}
	return Tree{Root: currentAccount(t, children, 0)}
}

func currentAccount(t *fairshare.Tree, children [][]int, i int) Account {
	n := t.Nodes[i]
	out := Account{Name: n.Name, Share: n.Share}
	for _, u := range n.Users {
		share := u.Share
		if u.EqualPart {
			share = fairshare.EqualPart
		}
		out.Users = append(out.Users, User{Name: u.Name, Share: share})
	}
	for _, child := range children[i] {
		out.Accounts = append(out.Accounts, currentAccount(t, children, child))
	}
	return out
}
