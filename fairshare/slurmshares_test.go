// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
)

// The helpers write a list of associations as sshare draws it.
func root(usage float64) fairshare.Association {
	return fairshare.Association{Parent: -1, Usage: usage}
}

func assocOf(parent int, shares uint32, usage float64) fairshare.Association {
	return fairshare.Association{Parent: parent, Shares: shares, Usage: usage}
}

func user(parent int, shares uint32, usage float64) fairshare.Association {
	a := assocOf(parent, shares, usage)
	a.User = true
	return a
}

func parentShares(a fairshare.Association) fairshare.Association {
	a.ParentShares = true
	return a
}

var (
	byFairTree = fairshare.SlurmPolicy{FairTree: true}
	apart      = fairshare.SlurmPolicy{FairTree: true, TiesApart: true}
	inf        = math.Inf(1)
)

func reckon(t require.TestingT, p fairshare.SlurmPolicy, list ...fairshare.Association) []fairshare.Association {
	require.NoError(t, fairshare.SlurmShares(list, p))
	return list
}

// column is one field of all associations.
func column(list []fairshare.Association, field func(fairshare.Association) float64) []float64 {
	values := make([]float64, len(list))
	for i := range list {
		values[i] = field(list[i])
	}
	return values
}

func factors(list []fairshare.Association) (of []float64) {
	for _, a := range list {
		if a.User {
			of = append(of, a.Factor)
		}
	}
	return of
}

// lab is a tree in which all that matters occurs: 40 and 60 shares, half the
// usage each; an account with its parent's shares.
func lab() []fairshare.Association {
	return []fairshare.Association{
		0: root(1000),
		1: assocOf(0, 40, 500),
		2: user(1, 1, 300),
		3: user(1, 3, 200),
		4: assocOf(0, 60, 500),
		5: user(4, 10, 100),
		6: parentShares(assocOf(4, 0, 400)),
		7: user(4, 30, 400), // in 6, but 4's child to compete
		8: parentShares(user(4, 0, 0)),
	}
}

func TestFairTreeFromSlurmsShares(t *testing.T) {
	got := reckon(t, byFairTree, lab()...)
	require.Equal(t, []float64{0, 0.4, 0.25, 0.75, 0.6, 0.25, 0.6, 0.75, 0.6},
		column(got, func(a fairshare.Association) float64 { return a.SharesNorm }))
	require.Equal(t, []float64{1, 0.5, 0.3, 0.2, 0.5, 0.1, 0.4, 0.4, 0},
		column(got, func(a fairshare.Association) float64 { return a.UsageNorm }))
	require.Equal(t, []float64{1, 0.5, 0.6, 0.4, 0.5, 0.2, 0.8, 0.8, 0},
		column(got, func(a fairshare.Association) float64 { return a.UsageEffective }))
	require.InDeltaSlice(t, []float64{0.8, 0.25 / 0.6, 1.875, 1.2, 1.25, 0.9375},
		column([]fairshare.Association{got[1], got[2], got[3], got[4], got[5], got[7]},
			func(a fairshare.Association) float64 { return a.LevelFS }), 1e-15)
	// Account 4 comes first, and in it who has its shares.
	require.Equal(t, []float64{0.2, 0.4, 0.8, 0.6, 1}, factors(got))
}

func TestClassicFromSlurmsShares(t *testing.T) {
	got := reckon(t, fairshare.SlurmPolicy{}, lab()...)
	require.InDeltaSlice(t, []float64{1, 0.4, 0.1, 0.3, 0.6, 0.15, 0.6, 0.45, 0.6},
		column(got, func(a fairshare.Association) float64 { return a.SharesNorm }), 1e-15)
	effective := []float64{
		1, 0.5, 0.3 + (0.5-0.3)/4, 0.2 + (0.5-0.2)*3/4,
		0.5, 0.1 + (0.5-0.1)/4, 0.5, 0.4 + (0.5-0.4)*3/4, 0.5,
	}
	require.InDeltaSlice(t, effective, column(got, func(a fairshare.Association) float64 { return a.UsageEffective }), 1e-15)
	require.InDeltaSlice(t, []float64{
		math.Exp2(-0.35 / 0.1), math.Exp2(-0.425 / 0.3), math.Exp2(-0.2 / 0.15), math.Exp2(-0.475 / 0.45), math.Exp2(-0.5 / 0.6),
	}, factors(got), 1e-15)

	damped := reckon(t, fairshare.SlurmPolicy{Damping: 5}, lab()...)
	require.InDelta(t, math.Exp2(-0.35/0.1/5), damped[2].Factor, 1e-15)
	require.Equal(t, effective[2], damped[2].UsageEffective)
}

func TestDepthObliviousFromSlurmsShares(t *testing.T) {
	got := reckon(t, fairshare.SlurmPolicy{DepthOblivious: true}, lab()...)
	require.Equal(t, 0.5, got[1].UsageEffective, "below root it is what was used")

	// Account 1 used 1.25 of its due. User 2 used (0.3/0.1) and his siblings
	// together (0.5/0.4): both are over their due, and it counts whole.
	above, here := 0.5/0.4, (0.3/0.1)/(0.5/0.4)
	require.InDelta(t, above*here*0.1, got[2].UsageEffective, 1e-12)

	// User 3 is below his: that makes up for the account's only in part.
	here = (0.2 / 0.3) / (0.5 / 0.4)
	weight := 1 / (1 + math.Pow(5*math.Log(above), 2))
	require.InDelta(t, above*math.Pow(here, weight)*0.3, got[3].UsageEffective, 1e-12)
	require.InDelta(t, math.Exp2(-above*math.Pow(here, weight)), got[3].Factor, 1e-12)

	require.Equal(t, got[4].UsageEffective, got[8].UsageEffective, "with its parent's shares")
	unused := reckon(t, fairshare.SlurmPolicy{DepthOblivious: true}, root(1), assocOf(0, 1, 1), user(1, 1, 1), user(1, 1, 0))
	require.Zero(t, unused[3].UsageEffective)
	require.InDelta(t, 1, unused[3].Factor, 0)
}

// What Slurm does with its parent's shares right below root: sshare shows the
// association's own usage, jobs get the factor of root.
func TestParentSharesBelowRoot(t *testing.T) {
	got := reckon(t, fairshare.SlurmPolicy{}, root(100), parentShares(user(0, 0, 25)), user(0, 1, 75))
	require.Equal(t, 0.25, got[1].UsageEffective)
	require.Equal(t, 1.0, got[1].SharesNorm)
	require.Equal(t, 0.5, got[1].Factor)
}

func TestTiesFromSlurmsShares(t *testing.T) {
	// Two accounts that stand equal, with two users each.
	equal := []fairshare.Association{
		root(200),
		assocOf(0, 1, 100), user(1, 1, 60), user(1, 1, 40),
		assocOf(0, 1, 100), user(4, 1, 70), user(4, 1, 30),
	}
	merged := reckon(t, byFairTree, append([]fairshare.Association{}, equal...)...)
	require.Equal(t, []float64{0.5, 0.75, 0.25, 1}, factors(merged), "four users of one level")

	// Slurm goes through the accounts in turn; the second's best user shares
	// the rank of the first's last.
	got := reckon(t, apart, append([]fairshare.Association{}, equal...)...)
	require.Equal(t, []float64{0.75, 1, 0.25, 0.75}, factors(got))

	// Users with equal level fair shares share a rank by either rule, and one
	// that stands like an account comes before it and shares that of its best.
	for _, p := range []fairshare.SlurmPolicy{byFairTree, apart} {
		got = reckon(t, p, root(90),
			assocOf(0, 1, 30), user(1, 1, 10), user(1, 1, 10), user(1, 1, 10),
			user(0, 1, 30), user(0, 1, 30))
		require.Equal(t, []float64{1, 1, 1, 1, 1}, factors(got))
		got = reckon(t, p, root(80),
			assocOf(0, 1, 20), user(1, 1, 5), user(1, 1, 15),
			user(0, 1, 20), user(0, 1, 40))
		require.Equal(t, []float64{1, 0.5, 1, 0.25}, factors(got))
	}

	// An account without users passes on the first rank.
	got = reckon(t, apart, root(0), assocOf(0, 1, 0), assocOf(0, 1, 0), user(2, 1, 0))
	require.Equal(t, []float64{1}, factors(got))
}

// An account with its parent's shares stands in Slurm's list between those who
// used nothing and all others, and if that is the first place the tie of the
// account they are all in ends there.
func TestParentSharesEndATie(t *testing.T) {
	tied := func(first ...fairshare.Association) []fairshare.Association {
		list := []fairshare.Association{root(12), assocOf(0, 0, 0), user(1, 1, 0), assocOf(0, 0, 12)}
		return append(append(list, first...), user(3, 1, 12))
	}
	require.Equal(t, []float64{1, 1}, factors(reckon(t, apart, tied()...)), "of equal accounts the first user shares the last rank")
	end := parentShares(assocOf(3, 0, 12)) // holds the user
	require.Equal(t, []float64{1, 0.5}, factors(reckon(t, apart, tied(end)...)))
	require.Equal(t, []float64{1, 1, 1. / 3}, factors(reckon(t, apart, tied(end, user(3, 1, 0))...)), "who used nothing comes before it")
	require.Equal(t, factors(reckon(t, byFairTree, tied()...)), factors(reckon(t, byFairTree, tied(end)...)), "it makes no difference where ties are merged")
}

// 1/3 over 1/3 is not always 1: what is equal but for rounding stands equal
// where users are ranked together, and as Slurm's numbers have it otherwise.
func TestTiesButForRounding(t *testing.T) {
	list := func(usage, rest float64) []fairshare.Association {
		second := user(0, 1, usage)
		second.UsageRest = rest
		return []fairshare.Association{root(6), user(0, 1, 3), second}
	}
	tiny := math.Exp2(-62) // the last bit of a long double of 3
	require.Equal(t, []float64{1, 1}, factors(reckon(t, apart, list(3, 0)...)))
	require.Equal(t, []float64{0.5, 1}, factors(reckon(t, apart, list(3, -tiny)...)))
	require.Equal(t, []float64{1, 0.5}, factors(reckon(t, apart, list(3, tiny)...)))
	require.Equal(t, []float64{1, 1}, factors(reckon(t, byFairTree, list(3, tiny)...)))
}

func TestNothingDueNothingUsed(t *testing.T) {
	got := reckon(t, apart, root(0), assocOf(0, 0, 0), user(1, 1, 0), assocOf(0, 2, 0), user(3, 0, 0), user(3, 5, 0))
	require.Equal(t, []float64{0, inf, inf, 0, inf}, column(got[1:], func(a fairshare.Association) float64 { return a.LevelFS }))
	require.InDeltaSlice(t, []float64{1. / 3, 2. / 3, 1}, factors(got), 1e-15)
	require.Zero(t, got[1].UsageNorm)

	got = reckon(t, fairshare.SlurmPolicy{}, root(10), assocOf(0, 1, 10), user(1, 0, 10))
	require.Equal(t, []float64{0}, factors(got), "no shares at all in the account")
	require.Equal(t, got[1].UsageEffective, got[2].UsageEffective)
}

func TestSlurmSharesRefusesWhatIsNoTree(t *testing.T) {
	require.Error(t, fairshare.SlurmShares([]fairshare.Association{root(0), assocOf(1, 1, 1)}, apart))
	require.Error(t, fairshare.SlurmShares([]fairshare.Association{root(0), assocOf(-1, 1, 1)}, apart))
	require.Error(t, fairshare.SlurmShares([]fairshare.Association{user(-1, 1, 1)}, apart))
	require.NoError(t, fairshare.SlurmShares(nil, apart))
	require.NoError(t, fairshare.SlurmShares(nil, fairshare.SlurmPolicy{}))
}

// drawAssociations is a random tree with its usage added up.
func drawAssociations(t *rapid.T, usage *rapid.Generator[float64]) []fairshare.Association {
	list := []fairshare.Association{root(0)}
	for n := rapid.IntRange(0, 30).Draw(t, "associations"); n > 0; n-- {
		a := assocOf(0, rapid.Uint32Range(0, 5).Draw(t, "shares"), 0)
		for {
			a.Parent = rapid.IntRange(0, len(list)-1).Draw(t, "parent")
			if above := list[a.Parent]; !above.User && !above.ParentShares {
				break
			}
		}
		a.ParentShares = rapid.IntRange(0, 5).Draw(t, "parent's shares") == 0
		if a.User = rapid.Bool().Draw(t, "user"); a.User {
			a.Usage = usage.Draw(t, "usage")
		}
		list = append(list, a)
	}
	for i := len(list) - 1; i > 0; i-- {
		list[list[i].Parent].Usage += list[i].Usage
	}
	return list
}

// Whatever the tree: factors are proper, and by Fair Tree whoever's account
// stands better than another's, at the level where their ways part, comes first.
func TestSlurmSharesHoldsForAnyTree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := drawAssociations(t, rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(0, 1e6), rapid.Map(rapid.IntRange(0, 4), func(n int) float64 { return float64(n) })))
		p := fairshare.SlurmPolicy{
			FairTree: rapid.Bool().Draw(t, "Fair Tree"), DepthOblivious: rapid.Bool().Draw(t, "depth oblivious"),
			TiesApart: rapid.Bool().Draw(t, "apart"), Damping: rapid.Uint32Range(0, 10).Draw(t, "damping"),
		}
		got := reckon(t, p, list...)
		for i, a := range got {
			require.True(t, a.SharesNorm >= 0 && a.SharesNorm <= 1 && a.UsageNorm >= 0 && a.UsageNorm <= 1 && a.UsageEffective >= 0 && a.LevelFS >= 0, "%d: %+v", i, a)
			require.True(t, a.Factor >= 0 && a.Factor <= 1 && (a.User || a.Factor == 0), "%d: %+v", i, a)
		}
		if !p.FairTree {
			return
		}
		for i, x := range got {
			for j, y := range got {
				if !x.User || !y.User || !better(got, i, j) {
					continue
				}
				if p.TiesApart {
					// Slurm hands "tied" on past an account without users: the first
					// user below the next of its equals then shares a rank with
					// whoever came before both.
					require.GreaterOrEqual(t, x.Factor, y.Factor, "%d not behind %d: %+v", i, j, got)
					continue
				}
				require.Greater(t, x.Factor, y.Factor, "%d before %d: %+v", i, j, got)
			}
		}
	})
}

// better tells whether i stands clearly better than j where they part.
func better(list []fairshare.Association, i, j int) bool {
	above := func(i int) (path []int) {
		for ; i >= 0; i = list[i].Parent {
			path = append([]int{i}, path...)
		}
		return path
	}
	x, y := above(i), above(j)
	for n := range min(len(x), len(y)) {
		if x[n] != y[n] {
			return list[x[n]].LevelFS > list[y[n]].LevelFS*(1+1e-9)
		}
	}
	return false
}

// Unless accounts stand equal it doesn't matter how those are treated.
func TestTheRulesForTiesDifferOnlyInTies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := drawAssociations(t, rapid.Float64Range(1, 1e6))
		for i := range list { // no two accounts alike
			if list[i].Shares == 0 {
				list[i].Shares = 1
			}
		}
		together := reckon(t, byFairTree, append([]fairshare.Association{}, list...)...)
		met := map[[2]float64]bool{}
		for _, a := range together {
			key := [2]float64{float64(a.Parent), float64(float32(a.LevelFS))}
			if met[key] && !a.ParentShares {
				t.Skip("a tie")
			}
			met[key] = true
		}
		inTurn := reckon(t, apart, append([]fairshare.Association{}, list...)...)
		require.Equal(t, factors(together), factors(inTurn))
	})
}
