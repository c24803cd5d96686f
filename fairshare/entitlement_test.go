// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

// due is what accounts and users ("account/user") are due, in GPU-hours.
func due(b *fairshare.Budget, w fairshare.Period) func(account string, user ...string) float64 {
	e := b.Entitlements(w)
	return func(account string, user ...string) float64 {
		if len(user) > 0 {
			return e.User(account, user[0]).Hours()
		}
		return e.Account(account).Hours()
	}
}

func TestEntitlementsOverTime(t *testing.T) {
	closedAt := func(hour fairshare.Instant, parent string) []fairshare.Step[string] {
		line := always(parent)
		line[0].Until = hours(hour, hour).From
		return line
	}
	tests := []struct {
		name   string
		budget func() *fairshare.Budget
		window fairshare.Period
		want   map[string]float64
	}{
		{
			name: "a share that changes counts from then on",
			budget: func() *fairshare.Budget {
				a := account("a", "root", 0)
				a.Share = changing(percent(20), change[fairshare.Share]{6, percent(50)})
				return budget(100, a)
			},
			window: hours(0, 10),
			want:   map[string]float64{"root": 1000, "a": 6*20 + 4*50},
		},
		{
			name: "a change before the window is all that counts, one after it nothing",
			budget: func() *fairshare.Budget {
				a := account("a", "root", 0)
				a.Share = changing(percent(20), change[fairshare.Share]{-3, percent(50)}, change[fairshare.Share]{10, percent(70)})
				return budget(100, a)
			},
			window: hours(0, 10),
			want:   map[string]float64{"a": 500},
		},
		{
			name: "a share that was lent for a while falls back",
			budget: func() *fairshare.Budget {
				a := account("a", "root", 0)
				a.Share = changing(percent(20), change[fairshare.Share]{4, percent(50)}, change[fairshare.Share]{5, percent(20)})
				return budget(100, a)
			},
			window: hours(0, 10),
			want:   map[string]float64{"a": 9*20 + 50},
		},
		{
			name: "capacity comes and goes",
			budget: func() *fairshare.Budget {
				b := budget(0, account("a", "root", 50))
				b.Capacity = []fairshare.Step[fairshare.MilliGPUs]{
					{Period: hours(-5, 2), Value: 100 * fairshare.GPU}, // then none is known
					{Period: hours(4, 6), Value: 40 * fairshare.GPU},
					{Period: hours(6, 20), Value: fairshare.GPU / 2},
				}
				return b
			},
			window: hours(0, 10),
			want:   map[string]float64{"root": 282, "a": 141},
		},
		{
			name: "an account takes what it was due along when it moves",
			budget: func() *fairshare.Budget {
				moved := account("team", "", 50)
				moved.Parent = changing("lab1", change[string]{4, "lab2"})
				return budget(100, account("lab1", "root", 20), account("lab2", "root", 80), moved)
			},
			window: hours(0, 10),
			want:   map[string]float64{"lab1": 200, "lab2": 800, "team": 4*10 + 6*40},
		},
		{
			name: "a closed account is due nothing more, nor is what stood below it",
			budget: func() *fairshare.Budget {
				closed := account("lab", "", 40)
				closed.Parent = closedAt(3, "root")
				return budget(100, closed, account("team", "lab", 50, equal("u")))
			},
			window: hours(0, 10),
			want:   map[string]float64{"lab": 120, "team": 60, "team/u": 60},
		},
		{
			name: "a member who comes takes his part from the others",
			budget: func() *fairshare.Budget {
				late := fairshare.Member{User: "late", In: []fairshare.Step[fairshare.Share]{{Period: hours(5, 99), Value: fairshare.EqualPart}}}
				return budget(100, account("a", "root", 100, withShare("fixed", 40), equal("early"), late))
			},
			window: hours(0, 10),
			want:   map[string]float64{"a": 1000, "a/fixed": 400, "a/early": 5*60 + 5*30, "a/late": 5 * 30},
		},
		{
			name: "equal parts share with child accounts",
			budget: func() *fairshare.Budget {
				return budget(100, account("a", "root", 100, equal("x"), equal("y")), account("sub", "a", 70, equal("z")))
			},
			window: hours(0, 10),
			want:   map[string]float64{"a/x": 150, "a/y": 150, "sub": 700, "sub/z": 700},
		},
		{
			name: "a deposit to an inner account flows down, and counts above",
			budget: func() *fairshare.Budget {
				lab := account("lab", "root", 10)
				lab.Grants = []fairshare.Grant{{Period: hours(0, 10), Amount: 100 * fairshare.GPUHour}}
				return budget(100, account("org", "root", 50), func() fairshare.Account { lab.Parent = always("org"); return lab }(),
					account("team", "lab", 50, equal("u")))
			},
			window: hours(0, 10),
			want:   map[string]float64{"root": 1100, "org": 600, "lab": 150, "team": 75, "team/u": 75},
		},
		{
			name: "a grant that sticks out of the window counts in part",
			budget: func() *fairshare.Budget {
				a := account("a", "root", 0)
				a.Grants = []fairshare.Grant{
					{Period: hours(-6, 2), Amount: 80 * fairshare.GPUHour},  // 2 of 8 hours within
					{Period: hours(9, 13), Amount: 400 * fairshare.GPUHour}, // 1 of 4
					{Period: hours(11, 12), Amount: 77 * fairshare.GPUHour}, // none
					{Period: hours(3, 3), Amount: 5 * fairshare.GPUHour},    // at once
				}
				return budget(100, a)
			},
			window: hours(0, 10),
			want:   map[string]float64{"root": 1125, "a": 125},
		},
		{
			name: "a transfer from parent to child leaves the parent's figure alone",
			budget: func() *fairshare.Budget {
				lab, team := account("lab", "root", 50), account("team", "lab", 10)
				lab.Grants = []fairshare.Grant{{Period: hours(0, 10), Amount: -100 * fairshare.GPUHour}}
				team.Grants = []fairshare.Grant{{Period: hours(0, 10), Amount: 100 * fairshare.GPUHour}}
				return budget(100, lab, team)
			},
			window: hours(0, 10),
			want:   map[string]float64{"root": 1000, "lab": 500, "team": 40 + 100},
		},
		{
			name: "who gives more than he has, has nothing to distribute meanwhile",
			budget: func() *fairshare.Budget {
				a := account("a", "root", 10, equal("u"))
				a.Grants = []fairshare.Grant{{Period: hours(2, 4), Amount: -50 * fairshare.GPUHour}}
				return budget(100, a)
			},
			window: hours(0, 10),
			want:   map[string]float64{"a": 50, "a/u": 80}, // 10 an hour, but in two of them -15
		},
		{
			name: "a debit counts when there is no capacity, though nothing flows",
			budget: func() *fairshare.Budget {
				a := account("a", "root", 100, equal("u"))
				a.Grants = []fairshare.Grant{{Period: hours(0, 10), Amount: -100 * fairshare.GPUHour}}
				b := budget(0, a)
				b.Capacity = []fairshare.Step[fairshare.MilliGPUs]{{Period: hours(0, 5), Value: 100 * fairshare.GPU}}
				return b
			},
			window: hours(0, 10),
			want:   map[string]float64{"a": 400, "a/u": 450},
		},
		{
			name: "more is never given away than there is",
			budget: func() *fairshare.Budget {
				a := account("a", "root", 10)
				a.Grants = []fairshare.Grant{{Period: hours(0, 10), Amount: -500 * fairshare.GPUHour}}
				return budget(100, a)
			},
			window: hours(0, 10),
			want:   map[string]float64{"a": 0},
		},
		{
			name: "shares above the whole count in proportion",
			budget: func() *fairshare.Budget {
				return budget(100, account("a", "root", 100, equal("u")), account("b", "root", 100), account("c", "root", 50))
			},
			window: hours(0, 10),
			want:   map[string]float64{"a": 400, "b": 400, "c": 200, "a/u": 400},
		},
		{
			name: "circles, orphans and parents of root are due nothing and do no harm",
			budget: func() *fairshare.Budget {
				root := account("root", "a", 100)
				return budget(100, root, account("a", "b", 100), account("b", "a", 100), account("self", "self", 100),
					account("orphan", "nobody", 100), account("good", "root", 30))
			},
			window: hours(0, 10),
			want:   map[string]float64{"root": 1000, "a": 0, "b": 0, "self": 0, "orphan": 0, "good": 300},
		},
		{
			name:   "an empty window",
			budget: func() *fairshare.Budget { return budget(100, account("a", "root", 100)) },
			window: hours(10, 0),
			want:   map[string]float64{"root": 0, "a": 0},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := test.budget()
			hours := due(b, test.window)
			for name, want := range test.want {
				got := hours(name)
				if account, user, isUser := cutUser(name); isUser {
					got = hours(account, user)
				}
				require.InDelta(t, want, got, 1e-6, name)
			}
		})
	}
}

func TestEntitlementsOfUnknown(t *testing.T) {
	e := budget(100, account("a", "root", 100, equal("u"))).Entitlements(hours(0, 1))
	require.Zero(t, e.Account("b"))
	require.Zero(t, e.User("a", "v"))
	require.Zero(t, e.Unassigned("b"))
}

// Three equal children of 100 GPU-milliseconds: the first gets the one left over.
func TestLargestRemainderGoesByName(t *testing.T) {
	b := &fairshare.Budget{
		Capacity: always(fairshare.GPU),
		Accounts: []fairshare.Account{account("a", "root", 100, equal("z"), equal("y"), equal("x"))},
	}
	e := b.Entitlements(fairshare.Period{From: 0, Until: 100})
	require.EqualValues(t, 34, e.User("a", "x"))
	require.EqualValues(t, 33, e.User("a", "y"))
	require.EqualValues(t, 33, e.User("a", "z"))
}

// Thousandths of a GPU-millisecond are carried over from change to change.
func TestCapacityIsRoundedOnce(t *testing.T) {
	b := &fairshare.Budget{}
	for i := range fairshare.Instant(1000) {
		b.Capacity = append(b.Capacity, fairshare.Step[fairshare.MilliGPUs]{
			Period: fairshare.Period{From: i, Until: i + 1}, Value: 1500 + fairshare.MilliGPUs(i%2),
		})
	}
	e := b.Entitlements(fairshare.Period{From: 0, Until: 1000})
	require.EqualValues(t, 1500, e.Account("root")) // of 1500.5
}

// A chain of 60 accounts, each with half of the one above and a sibling: what
// the last one is due can't be counted in milliseconds, but it can be ranked.
func TestDeepTree(t *testing.T) {
	const depth = 60
	b := budget(1000)
	parent := fairshare.RootAccount
	var charges []fairshare.Charge
	for i := range depth {
		chain, sibling := fmt.Sprintf("chain%02d", i), fmt.Sprintf("side%02d", i)
		b.Accounts = append(b.Accounts, account(chain, parent, 50), account(sibling, parent, 50, equal("u")))
		charges = append(charges, charge(sibling, "u", hours(0, 1), 1))
		parent = chain
	}
	last := &b.Accounts[len(b.Accounts)-2]
	last.Users = []fairshare.Member{equal("v"), equal("w")}
	charges = append(charges, charge(last.Name, "v", hours(0, 1), 1))

	tree := b.Tree(start)
	require.Len(t, tree.Nodes, 1+2*depth)
	require.Equal(t, depth, tree.Nodes[depth].Depth)

	r := fairshare.Rank(fairshare.Input{Budget: b, Window: hours(0, 168), Charges: charges})
	require.Len(t, r.Users, depth+2)
	// The further down, the more GPU time was used for the little that was due.
	for i := range depth - 1 {
		u, ok := r.User(fmt.Sprintf("side%02d", i), "u")
		require.True(t, ok)
		require.Equal(t, i+1, u.Rank, u.Account)
	}
	v, _ := r.User(last.Name, "v")
	w, _ := r.User(last.Name, "w")
	require.Equal(t, v.Rank, w.Rank+2, "v used, w didn't; u of the sibling is between")
}
