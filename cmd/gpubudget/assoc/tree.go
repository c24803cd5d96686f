// SPDX-License-Identifier: GPL-2.0-or-later

package assoc

import (
	"fmt"
	"math/big"
	"slices"
	"sort"
	"strings"

	"gpubudget/cmd/gpubudget/plan"
	"gpubudget/fairshare"
	"gpubudget/internal/nearest"
)

// Tree makes an account tree of the listing, which must be of one cluster and
// have parents. Raw shares become fractions of their siblings' sum, in
// billionths by largest remainder (ties by name), so that siblings make up
// the whole exactly; users and accounts are siblings of one level, as in
// Slurm. Users of an account who all have the same raw share get an equal part
// of what its child accounts leave. An account with Fairshare=parent weighs as
// much as all below it, so that these take part one level above, as in Slurm;
// a user with it weighs 1. Slurm's own user root in account root is left out.
//
// The notes say what was read in a way that the listing does not show.
func (l *Listing) Tree() (plan.Tree, []string, error) {
	b := &builder{accounts: map[string]*node{fairshare.RootAccount: {name: fairshare.RootAccount}}}
	if err := b.collect(l); err != nil {
		return plan.Tree{}, nil, err
	}
	root := b.accounts[fairshare.RootAccount]
	t := plan.Tree{Root: plan.Account{Name: root.name, Share: fairshare.Whole}}
	if len(l.Associations) > 0 {
		t.Cluster = l.Associations[0].Cluster
	}
	root.fill(&t.Root)
	return t, b.notes(), nil
}

// node is an account with what stands below it, in raw shares.
type node struct {
	name     string
	line     int
	parent   string
	share    int64
	children []*node
	users    []*leaf
}

// leaf is a user of an account; his associations, each with a partition or one
// without, are added up.
type leaf struct {
	name       string
	share      int64
	partitions []string
}

type builder struct {
	accounts map[string]*node
	// What was met of each case that a note tells of.
	inheritAccounts, inheritUsers, partitionUsers []string
	slurmsRoot                                    bool
}

// notes tells of what was met, whatever its number in one line each.
func (b *builder) notes() []string {
	var notes []string
	if b.slurmsRoot {
		notes = append(notes, "user root of account root is left out, it is Slurm's own")
	}
	if len(b.inheritAccounts) > 0 {
		notes = append(notes, "Fairshare=parent gives an account what all below it have together: "+some(b.inheritAccounts))
	}
	if len(b.inheritUsers) > 0 {
		notes = append(notes, "Fairshare=parent counts as 1 for a user: "+some(b.inheritUsers))
	}
	if len(b.partitionUsers) > 0 {
		notes = append(notes, "shares by partition are added up: "+some(b.partitionUsers))
	}
	return notes
}

// some is the first few names of a list.
func some(names []string) string {
	const few = 5
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
}

func (b *builder) collect(l *Listing) error {
	var order []*node
	for _, a := range l.Associations {
		if a.User != "" || a.Account == fairshare.RootAccount {
			continue
		}
		if before, ok := b.accounts[a.Account]; ok {
			return fmt.Errorf("line %d: account %s is there a second time (first in line %d)", a.Line, a.Account, before.line)
		}
		n := &node{name: a.Account, line: a.Line, parent: a.Parent, share: a.Share}
		b.accounts[a.Account] = n
		order = append(order, n)
	}
	for _, n := range order {
		parent, ok := b.accounts[n.parent]
		if !ok {
			return fmt.Errorf("line %d: account %s stands below %q, which is not in the list%s", n.line, n.name, n.parent, b.didYouMean(n.parent))
		}
		parent.children = append(parent.children, n)
		if n.share == Inherit {
			b.inheritAccounts = append(b.inheritAccounts, n.name)
		}
	}
	if err := b.checkReached(order); err != nil {
		return err
	}
	return b.collectUsers(l)
}

// checkReached makes sure that every account stands below root.
func (b *builder) checkReached(order []*node) error {
	reached := map[*node]bool{}
	b.accounts[fairshare.RootAccount].reach(reached)
	for _, n := range order {
		if !reached[n] {
			return fmt.Errorf("line %d: account %s stands in a circle", n.line, n.name)
		}
	}
	return nil
}

func (n *node) reach(reached map[*node]bool) {
	reached[n] = true
	for _, c := range n.children {
		c.reach(reached)
	}
}

func (b *builder) collectUsers(l *Listing) error {
	type key struct{ account, user string }
	seen := map[key]*leaf{}
	for _, a := range l.Associations {
		if a.User == "" {
			continue
		}
		if a.User == "root" && a.Account == fairshare.RootAccount {
			b.slurmsRoot = true
			continue
		}
		account, ok := b.accounts[a.Account]
		if !ok {
			return fmt.Errorf("line %d: user %s is in account %q, which is not in the list%s", a.Line, a.User, a.Account, b.didYouMean(a.Account))
		}
		u, ok := seen[key{a.Account, a.User}]
		if !ok {
			u = &leaf{name: a.User}
			seen[key{a.Account, a.User}] = u
			account.users = append(account.users, u)
		}
		if err := b.add(u, a); err != nil {
			return err
		}
	}
	return nil
}

// add adds one association to a user. Slurm may list the one that is for all
// partitions first or last.
func (b *builder) add(u *leaf, a Association) error {
	if slices.Contains(u.partitions, a.Partition) {
		return fmt.Errorf("line %d: user %s is in account %s a second time", a.Line, a.User, a.Account)
	}
	if u.partitions = append(u.partitions, a.Partition); len(u.partitions) == 2 {
		b.partitionUsers = append(b.partitionUsers, a.User+" in "+a.Account)
	}
	share := a.Share
	if share == Inherit {
		share = 1
		b.inheritUsers = append(b.inheritUsers, a.User+" in "+a.Account)
	}
	u.share += share
	return nil
}

func (b *builder) didYouMean(name string) string {
	known := make([]string, 0, len(b.accounts))
	for n := range b.accounts {
		known = append(known, n)
	}
	if near := nearest.Word(name, known); near != "" {
		return fmt.Sprintf(": did you mean %s?", near)
	}
	return ""
}

// weight is an account's part among its siblings: its raw share, or with
// Fairshare=parent the sum of those below it.
func (n *node) weight() int64 {
	if n.share != Inherit {
		return n.share
	}
	sum := n.userWeight()
	for _, c := range n.children {
		sum += c.weight()
	}
	return sum
}

func (n *node) userWeight() int64 {
	var sum int64
	for _, u := range n.users {
		sum += u.share
	}
	return sum
}

// fill sets the shares of all that stands below the account.
func (n *node) fill(a *plan.Account) {
	sort.Slice(n.children, func(i, j int) bool { return n.children[i].name < n.children[j].name })
	sort.Slice(n.users, func(i, j int) bool { return n.users[i].name < n.users[j].name })

	weights := make([]int64, 0, len(n.children)+len(n.users))
	for _, c := range n.children {
		weights = append(weights, c.weight())
	}
	// Equal users are one sibling here: they split its part among themselves.
	pooled := n.usersAreEqual()
	if pooled {
		weights = append(weights, n.userWeight())
	} else {
		for _, u := range n.users {
			weights = append(weights, u.share)
		}
	}
	shares := divide(weights)
	for i, c := range n.children {
		child := plan.Account{Name: c.name, Share: shares[i]}
		c.fill(&child)
		a.Accounts = append(a.Accounts, child)
	}
	for i, u := range n.users {
		share := fairshare.EqualPart
		if !pooled {
			share = shares[len(n.children)+i]
		}
		a.Users = append(a.Users, plan.User{Name: u.name, Share: share})
	}
}

// usersAreEqual tells whether the users can go without shares of their own. If
// nobody on the level has any, an equal part would give them all of it.
func (n *node) usersAreEqual() bool {
	for _, u := range n.users {
		if u.share != n.users[0].share {
			return false
		}
	}
	if n.userWeight() > 0 {
		return true
	}
	for _, c := range n.children {
		if c.weight() > 0 {
			return true
		}
	}
	return false
}

// divide splits the whole in proportion to weights by largest remainder; among
// equal remainders the first goes before. Without any weight all get nothing.
func divide(weights []int64) []fairshare.Share {
	shares := make([]fairshare.Share, len(weights))
	total := new(big.Int)
	for _, w := range weights {
		total.Add(total, big.NewInt(w))
	}
	if total.Sign() == 0 {
		return shares
	}
	left := int64(fairshare.Whole)
	remainders := make([]*big.Int, len(weights))
	order := make([]int, len(weights))
	for i, w := range weights {
		product := new(big.Int).Mul(big.NewInt(w), big.NewInt(int64(fairshare.Whole)))
		quotient, remainder := new(big.Int).QuoRem(product, total, new(big.Int))
		shares[i], remainders[i], order[i] = fairshare.Share(quotient.Int64()), remainder, i
		left -= quotient.Int64()
	}
	sort.SliceStable(order, func(i, j int) bool { return remainders[order[i]].Cmp(remainders[order[j]]) > 0 })
	for _, i := range order[:left] {
		shares[i]++
	}
	return shares
}
