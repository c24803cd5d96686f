// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"cmp"
	"slices"
)

// fairTree ranks the leaves of a tree by the Fair Tree algorithm.
//
// Siblings are sorted by falling level fair share. Walking down the sorted
// list, a leaf takes the next rank; an account is entered and its own children
// are ranked before the walk goes on, so that no leaf of a better-placed
// account comes behind a leaf of a worse-placed one. Of equals, leaves come
// before accounts and share a rank; accounts have their children put together
// and ranked as if they stood under one parent; and the best leaf below an
// account shares the rank of a leaf equal to that account.
//
// Stock Slurm means to do the same, but its count of tied accounts stops at
// the next account, so it never puts children together; with two equal
// accounts its factors depend on the order of its lists. With apart set this is
// what happens here, too: of equal accounts one is ranked after the other, by
// number, and the best leaf of each shares the last rank of the one before.
type fairTree struct {
	apart    bool
	children [][]entry // by account
	ranks    []int     // by leaf; 0 if not met
	next     int
	rank     int // the last one given
}

// entry is an account or a leaf among its siblings.
type entry struct {
	levelFS float64
	rest    float64 // what levelFS leaves out of a longer number
	account int     // -1 for a leaf
	leaf    int     // -1 for an account
}

func newFairTree(accounts, leaves int) *fairTree {
	t := &fairTree{}
	t.reset(accounts, leaves)
	return t
}

// reset empties the tree and keeps its memory.
func (t *fairTree) reset(accounts, leaves int) {
	t.children = slices.Grow(t.children[:0], accounts)[:accounts]
	for a := range t.children {
		t.children[a] = t.children[a][:0]
	}
	t.ranks = slices.Grow(t.ranks[:0], leaves)[:leaves]
	clear(t.ranks)
	t.next, t.rank = 1, 1
}

func (t *fairTree) addAccount(a, child int, levelFS float64) {
	t.children[a] = append(t.children[a], entry{levelFS, 0, child, -1})
}

func (t *fairTree) addLeaf(a, leaf int, levelFS float64) {
	t.children[a] = append(t.children[a], entry{levelFS, 0, -1, leaf})
}

// visit ranks the leaves among and below siblings. If tied is set the first of
// them shares the last rank given.
func (t *fairTree) visit(siblings []entry, tied bool) {
	slices.SortFunc(siblings, compareEntries)
	for len(siblings) > 0 {
		equals := leadingEquals(siblings)
		var below []entry
		for _, e := range equals {
			switch {
			case e.account < 0:
				t.give(e.leaf, tied)
			case t.apart:
				t.visit(t.children[e.account], tied)
			case below == nil:
				below = slices.Clip(t.children[e.account])
				continue
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

func (t *fairTree) give(leaf int, tied bool) {
	if !tied {
		t.rank = t.next
	}
	t.ranks[leaf] = t.rank
	t.next++
}

// ranked is how many leaves were ranked.
func (t *fairTree) ranked() int { return t.next - 1 }

// compareEntries sorts by falling level fair share, leaves before accounts.
// What comes then makes the order definite; it has an effect on ranks only where
// equal accounts are ranked apart.
func compareEntries(x, y entry) int {
	switch { // almost always the first; and sorting is most of the work
	case x.levelFS > y.levelFS:
		return -1
	case x.levelFS < y.levelFS:
		return 1
	}
	return cmp.Or(
		cmp.Compare(y.rest, x.rest),
		cmp.Compare(min(x.account, 0), min(y.account, 0)),
		cmp.Compare(x.leaf, y.leaf),
		cmp.Compare(x.account, y.account),
	)
}

func leadingEquals(sorted []entry) []entry {
	n := 1
	for n < len(sorted) && sorted[n].levelFS == sorted[0].levelFS && sorted[n].rest == sorted[0].rest {
		n++
	}
	return sorted[:n]
}
