// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

// halves is a budget of two accounts with half of the cluster each.
func halves() *fairshare.Budget {
	return budget(100, account("a", "root", 50, equal("u"), equal("v")), account("b", "root", 50, equal("w")))
}

func TestChargeAheadCountsInLevelFSOnly(t *testing.T) {
	now := hours(0, 10)
	in := fairshare.Input{
		Budget: halves(), Window: now,
		Charges: []fairshare.Charge{charge("a", "u", now, 10), charge("b", "w", now, 10)},
		Ahead:   []fairshare.Charge{charge("a", "u", hours(10, 11), 10), charge("nobody", "u", hours(10, 11), 10)},
	}
	r := fairshare.Rank(in)
	a, _ := r.Account("a")
	b, _ := r.Account("b")
	u, _ := r.User("a", "u")
	require.Equal(t, 10*fairshare.GPUHour, a.Used)
	require.Equal(t, 10*fairshare.GPUHour, u.Used)
	require.InDelta(t, 0.5/(20.0/30), a.LevelFS, 1e-9)
	require.Equal(t, []int{2, 1}, []int{a.Rank, b.Rank})
	require.Empty(t, r.Unbudgeted)
	root, _ := r.Account("root")
	require.Equal(t, 20*fairshare.GPUHour, root.Used)
}

func TestFunded(t *testing.T) {
	lent := account("lent", "root", 0)
	lent.Share = changing(percent(0), change[fairshare.Share]{2, percent(10)}, change[fairshare.Share]{5, 0})
	ended := account("ended", "root", 0)
	ended.Grants = []fairshare.Grant{{Period: hours(-9, 0), Amount: fairshare.GPUHour}}
	starts := account("starts", "root", 0)
	starts.Grants = []fairshare.Grant{{Period: hours(10, 12), Amount: fairshare.GPUHour}}
	late := account("late", "root", 0)
	late.Grants = []fairshare.Grant{{Period: hours(11, 12), Amount: fairshare.GPUHour}}
	gives := account("gives", "root", 0)
	gives.Grants = []fairshare.Grant{{Period: hours(0, 20), Amount: -fairshare.GPUHour}}
	receives := account("receives", "poor", 0)
	receives.Grants = []fairshare.Grant{{Period: hours(0, 20), Amount: fairshare.GPUHour}}
	b := budget(100, lent, ended, starts, late, gives, account("below", "starts", 50), account("unshared", "starts", 0),
		account("poor", "root", 0), account("poorer", "poor", 50), receives)
	r := fairshare.Rank(fairshare.Input{Budget: b, Window: hours(0, 10)})
	want := map[string]bool{
		"root": true, "lent": true, "ended": false, "starts": true, "late": false, "gives": false,
		"below": true, "unshared": false, "receives": true,
		"poor":   false, // what was granted below it isn't for its own jobs
		"poorer": false, // half of nothing
	}
	for name, funded := range want {
		a, ok := r.Account(name)
		require.True(t, ok, name)
		require.Equal(t, funded, a.Funded, name)
	}
	poor, _ := r.Account("poor")
	require.Equal(t, fairshare.GPUHour/2, poor.Entitled)
}

// Whoever lives on grants has nothing left once he has used what they brought in
// the window and still bring; whoever has a share always has something.
func TestSpent(t *testing.T) {
	grant := func(name string, from, until fairshare.Instant, amount fairshare.GPUMillis) fairshare.Account {
		a := account(name, "root", 0, equal("u"))
		a.Grants = []fairshare.Grant{{Period: hours(from, until), Amount: amount * fairshare.GPUHour}}
		return a
	}
	had := account("had", "root", 0, equal("u"))
	had.Share = changing(percent(10), change[fairshare.Share]{5, 0}) // 50 hours
	both := grant("both", 0, 20, 10)
	both.Share = changing(percent(1))
	b := budget(100, grant("begun", 0, 20, 10), grant("ended", 0, 5, 10), grant("older", -10, 10, 20), grant("later", 12, 20, 100), had, both,
		account("below", "begun", 50, equal("u")))
	for _, tt := range []struct {
		account string
		used    int64
		spent   bool
		funded  bool
	}{
		{"begun", 9, false, true}, // 5 of the 10 are still to come
		{"begun", 10, true, false},
		{"ended", 9, false, true}, {"ended", 10, true, false},
		{"older", 9, false, true}, {"older", 10, true, false}, // what was before the window is forgotten
		{"later", 0, false, false}, {"later", 5, false, false}, // nothing yet
		{"had", 49, false, true}, {"had", 50, true, false},
		{"both", 1000, false, true},
		{"below", 4, false, true}, {"below", 5, true, false},
	} {
		t.Run(fmt.Sprint(tt.account, tt.used), func(t *testing.T) {
			r := fairshare.Rank(fairshare.Input{Budget: b, Window: hours(0, 10), Charges: []fairshare.Charge{charge(tt.account, "u", hours(0, 10), tt.used)}})
			a, ok := r.Account(tt.account)
			require.True(t, ok)
			require.Equal(t, tt.spent, a.Spent)
			require.Equal(t, tt.funded, a.Funded)
		})
	}
}

// On a cluster without a single GPU accounts stay funded, and everyone ties.
func TestRankWithoutCapacity(t *testing.T) {
	b := halves()
	b.Capacity = nil
	r := fairshare.Rank(fairshare.Input{Budget: b, Window: hours(0, 10), Charges: []fairshare.Charge{charge("a", "u", hours(0, 1), 1)}})
	for _, u := range r.Users {
		require.Zero(t, u.LevelFS)
		require.Equal(t, 1, u.Rank)
		require.Equal(t, 1.0, u.Factor)
	}
	a, _ := r.Account("a")
	require.True(t, a.Funded)
}

func TestRankOfNothing(t *testing.T) {
	r := fairshare.Rank(fairshare.Input{Budget: &fairshare.Budget{}, Window: hours(0, 10)})
	require.Equal(t, []fairshare.AccountStanding{{
		Name: "root", Share: fairshare.Whole, ShareOfCluster: 1, Funded: true, Rank: 1, Factor: 1,
	}}, r.Accounts)
	require.Empty(t, r.Users)
	_, ok := r.Account("a")
	require.False(t, ok)
	_, ok = r.User("a", "u")
	require.False(t, ok)
}

// A member who left and an account that was closed are not in the ranking; one
// that is added for later isn't yet.
func TestRankIsOfTheEndOfTheWindow(t *testing.T) {
	left := fairshare.Member{User: "left", In: []fairshare.Step[fairshare.Share]{{Period: hours(0, 10), Value: percent(50)}}}
	stays := fairshare.Member{User: "stays", In: []fairshare.Step[fairshare.Share]{{Period: hours(9, 11), Value: percent(50)}}}
	closed, planned := account("closed", "", 10), account("planned", "", 10)
	closed.Parent = []fairshare.Step[string]{{Period: hours(0, 10), Value: "root"}}
	planned.Parent = []fairshare.Step[string]{{Period: hours(11, 12), Value: "root"}}
	r := fairshare.Rank(fairshare.Input{Budget: budget(1, account("a", "root", 50, left, stays), closed, planned), Window: hours(0, 10)})
	require.Len(t, r.Accounts, 2)
	require.Len(t, r.Users, 1)
	require.Equal(t, "stays", r.Users[0].User)
}

func TestDefaultAccount(t *testing.T) {
	b := budget(1, account("zebra", "root", 10, equal("u")), account("ape", "zebra", 10, equal("u"), equal("v")), account("cat", "root", 10, equal("u")))
	r := fairshare.Rank(fairshare.Input{Budget: b, Window: hours(0, 10)})
	home, ok := r.DefaultAccount("u")
	require.True(t, ok)
	require.Equal(t, "ape", home)
	_, ok = r.DefaultAccount("w")
	require.False(t, ok)
}

func TestTree(t *testing.T) {
	moved := account("team", "", 50, withShare("y", 30), equal("x"), equal("z"))
	moved.Parent = changing("lab1", change[string]{4, "lab2"})
	b := budget(100, account("lab2", "root", 40), account("lab1", "root", 20), moved, account("lost", "nobody", 10))

	tree := b.Tree(hours(5, 5).From)
	team := 0.2 // no constant, so that the products below are rounded
	require.Equal(t, []fairshare.Node{
		{Name: "root", Parent: -1, Share: fairshare.Whole, ShareOfCluster: 1, Unassigned: percent(40)},
		{Name: "lab1", Depth: 1, Share: percent(20), ShareOfCluster: 0.2, Unassigned: fairshare.Whole},
		{Name: "lab2", Depth: 1, Share: percent(40), ShareOfCluster: 0.4, Unassigned: percent(50)},
		{Name: "team", Parent: 2, Depth: 2, Share: percent(50), ShareOfCluster: 0.2, Users: []fairshare.NodeUser{
			{Name: "x", Share: percent(35), EqualPart: true, ShareOfCluster: team * 0.35},
			{Name: "y", Share: percent(30), ShareOfCluster: team * 0.3},
			{Name: "z", Share: percent(35), EqualPart: true, ShareOfCluster: team * 0.35},
		}},
	}, tree.Nodes)
	before := b.Tree(hours(3, 3).From)
	require.Equal(t, "team", before.Nodes[2].Name)
	require.Equal(t, 0.1, before.Nodes[2].ShareOfCluster)
}

// Who gave away all he had is due nothing, and so are those below him: a
// fraction of a millisecond that was lost in rounding makes nobody wait longest.
func TestNothingIsLeftOfWhatWasGivenAway(t *testing.T) {
	window := hours(0, 10)
	for share := 0.1; share < 99; share += 0.7654321 {
		a := account("a", "root", share, equal("u"))
		b := budget(7, a, account("b", "root", 1, equal("u")))
		all := b.Entitlements(window).Account("a")
		b.Accounts[0].Grants = []fairshare.Grant{{Period: window, Amount: -all}}
		r := fairshare.Rank(fairshare.Input{Budget: b, Window: window})
		require.Zero(t, r.Accounts[1].Entitled)
		require.Zero(t, r.Accounts[1].LevelFS, "share %v", share)
		require.Zero(t, r.Users[0].LevelFS, "share %v", share)
		require.True(t, math.IsInf(r.Accounts[2].LevelFS, 1))
	}
}

// Level fair shares that are equal but for the last bits of a float tie.
func TestTiesOfEqualsByDifferentRoads(t *testing.T) {
	a, b := account("a", "root", 0, equal("u")), account("b", "root", 0, equal("v"))
	// Both are due a tenth on average: one all the time, one by and by.
	a.Share = always(percent(10))
	b.Share = changing(percent(3), change[fairshare.Share]{3, percent(7)}, change[fairshare.Share]{5, percent(15.4)})
	window := hours(0, 10)
	r := fairshare.Rank(fairshare.Input{Budget: budget(7, a, b), Window: window, Charges: []fairshare.Charge{
		charge("a", "u", window, 3), charge("b", "v", hours(0, 5), 1), charge("b", "v", hours(5, 7), 2),
	}})
	require.Equal(t, 1, r.Users[0].Rank)
	require.Equal(t, 1, r.Users[1].Rank)
	require.False(t, math.IsNaN(r.Accounts[1].LevelFS))
}
