// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
)

// window is what the random budgets change in.
var window = hours(0, 48)

// drawTree is a budget that does not change, in which shares and usage are such
// that ties are frequent, and no account holds more than the whole.
func drawTree(t *rapid.T) *fairshare.Budget {
	b := budget(rapid.Int64Range(1, 1000).Draw(t, "gpus"))
	left := map[string]int{fairshare.RootAccount: 100}
	take := func(a string) float64 {
		share := min(rapid.SampledFrom([]int{0, 10, 25, 25, 33, 50, 50, 100}).Draw(t, "share"), left[a])
		left[a] -= share
		return float64(share)
	}
	names := []string{fairshare.RootAccount}
	for i := range rapid.IntRange(1, 9).Draw(t, "accounts") {
		name, parent := fmt.Sprint("a", i), rapid.SampledFrom(names).Draw(t, "parent")
		b.Accounts = append(b.Accounts, account(name, parent, take(parent)))
		names, left[name] = append(names, name), 100
	}
	for i := range b.Accounts {
		a := &b.Accounts[i]
		for j := range rapid.IntRange(0, 3).Draw(t, "users") {
			user := fmt.Sprint("u", j)
			if rapid.Bool().Draw(t, "equal") {
				a.Users = append(a.Users, equal(user))
			} else {
				a.Users = append(a.Users, withShare(user, take(a.Name)))
			}
		}
	}
	return b
}

// drawSteps is a timeline that changes at whole hours, with gaps.
func drawSteps[T any](t *rapid.T, value *rapid.Generator[T]) []fairshare.Step[T] {
	edges := rapid.SliceOfNDistinct(rapid.Int64Range(-10, 58), 0, 4, rapid.ID).Draw(t, "edges")
	slices.Sort(edges)
	var line []fairshare.Step[T]
	for i, edge := range edges {
		until := fairshare.Never
		if i+1 < len(edges) {
			until = start + fairshare.Instant(edges[i+1])*hour
		}
		if rapid.IntRange(0, 3).Draw(t, "gap") > 0 {
			line = append(line, fairshare.Step[T]{
				Period: fairshare.Period{From: start + fairshare.Instant(edge)*hour, Until: until}, Value: value.Draw(t, "value"),
			})
		}
	}
	return line
}

func drawLine[T any](t *rapid.T, value *rapid.Generator[T]) []fairshare.Step[T] {
	if rapid.IntRange(0, 2).Draw(t, "changes") > 0 {
		return always(value.Draw(t, "value"))
	}
	return drawSteps(t, value)
}

// drawPeriod is one of whole hours that may stick out of the window.
func drawPeriod(t *rapid.T) fairshare.Period {
	from := rapid.Int64Range(-10, 55).Draw(t, "from")
	until := rapid.Int64Range(from+1, 60).Draw(t, "until")
	return hours(fairshare.Instant(from), fairshare.Instant(until))
}

// drawBudget is one in which everything changes and not all is as it should be:
// accounts may have no parent, stand in circles or hold too much.
func drawBudget(t *rapid.T) *fairshare.Budget {
	b := &fairshare.Budget{Capacity: drawLine(t, rapid.Map(rapid.Int64Range(0, 100_000), func(n int64) fairshare.MilliGPUs {
		return fairshare.MilliGPUs(n)
	}))}
	share := rapid.Map(rapid.Int64Range(0, int64(fairshare.Whole)), func(n int64) fairshare.Share { return fairshare.Share(n) })
	names := []string{fairshare.RootAccount, fairshare.RootAccount, "nobody"}
	n := rapid.IntRange(0, 7).Draw(t, "accounts")
	for i := range n {
		names = append(names, fmt.Sprint("a", i))
	}
	for i := range n {
		a := fairshare.Account{
			Name: fmt.Sprint("a", i), Parent: drawLine(t, rapid.SampledFrom(names)), Share: drawLine(t, share),
		}
		for j := range rapid.IntRange(0, 3).Draw(t, "users") {
			in := drawLine(t, rapid.OneOf(share, rapid.Just(fairshare.EqualPart)))
			a.Users = append(a.Users, fairshare.Member{User: fmt.Sprint("u", j), In: in})
		}
		for range rapid.IntRange(0, 2).Draw(t, "grants") {
			amount := fairshare.GPUMillis(rapid.Int64Range(-500, 500).Draw(t, "amount")) * fairshare.GPUHour
			a.Grants = append(a.Grants, fairshare.Grant{Period: drawPeriod(t), Amount: amount})
		}
		b.Accounts = append(b.Accounts, a)
	}
	return b
}

// drawCharges are charges to accounts and users of the budget and to others.
func drawCharges(t *rapid.T, b *fairshare.Budget) []fairshare.Charge {
	accounts := []string{"stranger", fairshare.RootAccount}
	for i := range b.Accounts {
		accounts = append(accounts, b.Accounts[i].Name)
	}
	var charges []fairshare.Charge
	for range rapid.IntRange(0, 12).Draw(t, "charges") {
		charges = append(charges, fairshare.Charge{
			Period:  drawPeriod(t),
			Account: rapid.SampledFrom(accounts).Draw(t, "account"),
			User:    fmt.Sprint("u", rapid.IntRange(0, 3).Draw(t, "user")),
			Amount:  fairshare.GPUMillis(rapid.Int64Range(0, 1<<40).Draw(t, "amount")),
		})
	}
	return charges
}

func drawInput(t *rapid.T) fairshare.Input {
	b := drawBudget(t)
	return fairshare.Input{Budget: b, Window: window, Charges: drawCharges(t, b), Ahead: drawCharges(t, b)}
}

// drawUse lets the users of an exact tree, and now and then a user who is not
// listed, use whole GPU-hours, and gives the charges.
func drawUse(t *rapid.T, b *fairshare.Budget, nodes map[string]*ratNode) (charges []fairshare.Charge) {
	use := func(account, user string) {
		used := rapid.SampledFrom([]int64{0, 0, 1, 1, 2, 3, 5}).Draw(t, "used")
		charges = append(charges, charge(account, user, window, used))
		node, listed := nodes[account+"/"+user]
		if listed {
			node.used += used
		} else {
			nodes[account].guests += used
		}
		for a := account; ; a = b.Accounts[slices.IndexFunc(b.Accounts, func(x fairshare.Account) bool { return x.Name == a })].Parent[0].Value {
			nodes[a].used += used
			if a == fairshare.RootAccount {
				return
			}
		}
	}
	for _, a := range b.Accounts {
		for _, u := range a.Users {
			use(a.Name, u.User)
		}
		if len(nodes[a.Name].children) == 1 && nodes[a.Name+"/"] != nil {
			use(a.Name, "")
		} else if rapid.IntRange(0, 4).Draw(t, "guest") == 0 {
			use(a.Name, "guest")
		}
	}
	return charges
}

// Fair Tree in exact numbers gives the same ranks, ties included, as ours in
// floating point.
func TestRankAgreesWithExactFairTree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawTree(t)
		nodes := newOracle(b).exactTree()
		in := fairshare.Input{Budget: b, Window: window, Charges: drawUse(t, b, nodes)}
		root := nodes[fairshare.RootAccount]
		root.measure()
		users := rank(root.children, 1, 0)

		r := fairshare.Rank(in)
		factor := func(n *ratNode) float64 { return float64(users-n.rank+1) / float64(users) }
		for _, u := range r.Users {
			n := nodes[u.Account+"/"+u.User]
			requireLevelFS(t, n, u.LevelFS)
			require.Equal(t, n.rank, u.Rank, "%s/%s", u.Account, u.User)
			require.InDelta(t, factor(n), u.Factor, 1e-12)
		}
		for _, a := range r.Accounts[1:] {
			requireLevelFS(t, nodes[a.Name], a.LevelFS)
			if n := nodes[a.Name+"/"]; n != nil {
				require.InDelta(t, factor(n), a.Factor, 1e-12)
			}
		}
	})
}

func requireLevelFS(t *rapid.T, n *ratNode, got float64) {
	t.Helper()
	if n.infinite {
		require.True(t, math.IsInf(got, 1), n.name)
		return
	}
	want, _ := n.levelFS.Float64()
	require.InEpsilon(t, want+1, got+1, 1e-11, n.name)
}

// Every account's and user's entitlement is what exact numbers give, but for
// less than a GPU-millisecond in each stretch and generation.
func TestEntitlementsAgreeWithExactNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawBudget(t)
		e := b.Entitlements(window)
		o := newOracle(b)
		near := func(want *big.Rat, got fairshare.GPUMillis, name string) {
			t.Helper()
			const roundings = 50 * 8
			x, _ := want.Float64()
			require.InDelta(t, max(x, 0)*float64(fairshare.GPUHour), float64(got), roundings, name)
		}
		near(o.entitled(fairshare.RootAccount, window), e.Account(fairshare.RootAccount), fairshare.RootAccount)
		for i := range b.Accounts {
			a := &b.Accounts[i]
			near(o.entitled(a.Name, window), e.Account(a.Name), a.Name)
			for j := range a.Users {
				near(o.user(a.Name, &a.Users[j], window), e.User(a.Name, a.Users[j].User), a.Name+"/"+a.Users[j].User)
			}
		}
	})
}

// Of users who used the same, the level fair shares are to each other as what
// they were due.
func TestLevelFSIsInProportion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawBudget(t)
		in := fairshare.Input{Budget: b, Window: window}
		for _, a := range b.Accounts {
			for _, u := range a.Users {
				in.Charges = append(in.Charges, charge(a.Name, u.User, window, 1))
			}
		}
		r := fairshare.Rank(in)
		o := newOracle(b)
		member := func(u fairshare.UserStanding) *fairshare.Member {
			users := o.accounts[u.Account].Users
			return &users[slices.IndexFunc(users, func(m fairshare.Member) bool { return m.User == u.User })]
		}
		for i := 1; i < len(r.Users); i++ {
			u, v := r.Users[i-1], r.Users[i]
			if u.Account != v.Account || min(u.Entitled, v.Entitled) < fairshare.GPUHour || u.Used != v.Used {
				continue
			}
			want := o.user(u.Account, member(u), window)
			ratio, _ := want.Quo(want, o.user(v.Account, member(v), window)).Float64()
			require.InEpsilon(t, ratio, u.LevelFS/v.LevelFS, 1e-4) // grants are in whole milliseconds
		}
	})
}

// What users have and what nobody has is the capacity and the grants of the
// accounts in the tree, to the GPU-millisecond.
func TestEntitlementsAreConserved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawBudget(t)
		e := b.Entitlements(window)
		got := e.Unassigned(fairshare.RootAccount)
		for _, a := range b.Accounts {
			got += e.Unassigned(a.Name)
			for _, u := range a.Users {
				got += e.User(a.Name, u.User)
			}
		}
		var capacity, granted fairshare.GPUMillis
		o := newOracle(b)
		for at := window.From; at < window.Until; at += hour {
			gpus, _ := fairshare.ValueAt(b.Capacity, at)
			capacity += fairshare.GPUMillis(gpus) * fairshare.GPUMillis(hour)
			for _, a := range b.Accounts {
				if _, ok := o.path(a.Name, at); ok {
					granted += partOf(a.Grants, fairshare.Period{From: at, Until: at + hour})
				}
			}
		}
		require.Equal(t, capacity/fairshare.GPUMillis(fairshare.GPU)+granted, got)
	})
}

// partOf is what grants give from one whole hour to another.
func partOf(grants []fairshare.Grant, p fairshare.Period) (sum fairshare.GPUMillis) {
	until := func(g fairshare.Grant, at fairshare.Instant) fairshare.GPUMillis {
		passed := int64((min(max(at, g.From), g.Until) - g.From) / hour)
		x := big.NewInt(int64(g.Amount))
		x.Mul(x, big.NewInt(passed))
		return fairshare.GPUMillis(x.Quo(x, big.NewInt(int64((g.Until-g.From)/hour))).Int64())
	}
	for _, g := range grants {
		sum += until(g, p.Until) - until(g, p.From)
	}
	return sum
}

// The parts of a window hold together what the window holds: of usage exactly,
// of entitlements but for the rounding.
func TestWindowsAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		at := window.From + fairshare.Instant(rapid.Int64Range(0, window.Millis()).Draw(t, "cut"))
		left, right := fairshare.Period{From: window.From, Until: at}, fairshare.Period{From: at, Until: window.Until}

		used := func(w fairshare.Period) *fairshare.Usage { return in.Budget.Usage(w, in.Charges) }
		l, r, all := used(left), used(right), used(window)
		due := func(w fairshare.Period) *fairshare.Entitlements { return in.Budget.Entitlements(w) }
		dl, dr, dall := due(left), due(right), due(window)
		require.Equal(t, all.Account(fairshare.RootAccount), l.Account(fairshare.RootAccount)+r.Account(fairshare.RootAccount))
		for _, a := range in.Budget.Accounts {
			require.Equal(t, all.Account(a.Name), l.Account(a.Name)+r.Account(a.Name))
			require.Equal(t, all.Direct(a.Name), l.Direct(a.Name)+r.Direct(a.Name))
			for _, u := range a.Users {
				require.Equal(t, all.User(a.Name, u.User), l.User(a.Name, u.User)+r.User(a.Name, u.User))
				parts := dl.User(a.Name, u.User) + dr.User(a.Name, u.User)
				require.InDelta(t, float64(dall.User(a.Name, u.User)), float64(parts), 50)
			}
		}
		require.Equal(t, amount(all.Unbudgeted), amount(l.Unbudgeted)+amount(r.Unbudgeted))
	})
}

func amount(charges []fairshare.Charge) (sum fairshare.GPUMillis) {
	for _, c := range charges {
		sum += c.Amount
	}
	return sum
}

// No charge is lost: what root has and what is unbudgeted is all there was.
func TestUsageIsConserved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawBudget(t)
		charges := drawCharges(t, b)
		wide := hours(-10, 60)
		u := b.Usage(wide, charges)
		require.Equal(t, amount(charges), u.Account(fairshare.RootAccount)+amount(u.Unbudgeted))
		direct := u.Direct(fairshare.RootAccount)
		for _, a := range b.Accounts {
			direct += u.Direct(a.Name)
		}
		require.Equal(t, u.Account(fairshare.RootAccount), direct)
	})
}

// A charge counts for all accounts that stood above its account at its time.
func TestUsageRollsUpTheTreeOfItsTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawBudget(t)
		o := newOracle(b)
		at := fairshare.Instant(rapid.Int64Range(0, 47).Draw(t, "hour"))
		name := fmt.Sprint("a", rapid.IntRange(0, 7).Draw(t, "account"))
		path, ok := o.path(name, hours(at, at).From)
		if !ok {
			t.Skip()
		}
		u := b.Usage(window, []fairshare.Charge{charge(name, "u0", hours(at, at+1), 3)})
		for account := range o.accounts {
			var want fairshare.GPUMillis
			if slices.Contains(path, account) {
				want = 3 * fairshare.GPUHour
			}
			require.Equal(t, want, u.Account(account), account)
		}
	})
}

// requireSound checks what holds for every ranking.
func requireSound(t require.TestingT, r *fairshare.Ranking) {
	for _, u := range r.Users {
		require.True(t, u.Factor > 0 && u.Factor <= 1, "factor %v", u.Factor)
		require.GreaterOrEqual(t, u.LevelFS, 0.0)
		require.True(t, u.ShareOfCluster >= 0 && u.ShareOfCluster <= 1+1e-9, "share %v", u.ShareOfCluster)
		require.True(t, u.Rank >= 1 && u.Level >= 0 && u.Entitled >= 0)
	}
	for _, a := range r.Accounts {
		require.True(t, a.Factor >= 0 && a.Factor <= 1, "factor %v", a.Factor)
		require.GreaterOrEqual(t, a.LevelFS, 0.0)
		require.True(t, a.ShareOfCluster >= 0 && a.ShareOfCluster <= 1+1e-9, "share %v", a.ShareOfCluster)
		require.True(t, a.Rank >= 0 && a.Entitled >= 0)
	}
	byRank := slices.SortedFunc(slices.Values(r.Users), func(x, y fairshare.UserStanding) int { return x.Rank - y.Rank })
	for i := 1; i < len(byRank); i++ {
		require.GreaterOrEqual(t, byRank[i-1].Factor, byRank[i].Factor)
	}
}

func TestRankIsSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { requireSound(t, fairshare.Rank(drawInput(t))) })
}

// The order in which things are listed has no effect on anything.
func TestRankIgnoresOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		want := fairshare.Rank(in)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		b := *in.Budget
		b.Accounts = shuffled(rng, b.Accounts)
		for i := range b.Accounts {
			b.Accounts[i].Users = shuffled(rng, b.Accounts[i].Users)
			b.Accounts[i].Grants = shuffled(rng, b.Accounts[i].Grants)
		}
		got := fairshare.Rank(fairshare.Input{
			Budget: &b, Window: in.Window, Charges: shuffled(rng, in.Charges), Ahead: shuffled(rng, in.Ahead),
		})
		require.Equal(t, want, got)
	})
}

func shuffled[T any](rng *rand.Rand, s []T) []T {
	s = slices.Clone(s)
	rng.Shuffle(len(s), func(i, j int) { s[i], s[j] = s[j], s[i] })
	return s
}

// Who of two accounts that are equal in all else used more, is not before the
// other, nor are his users before theirs.
func TestMoreUsageNeverRaises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawTree(t)
		b.Accounts = append(b.Accounts,
			account("twin1", fairshare.RootAccount, 0, equal("v")), account("twin2", fairshare.RootAccount, 0, equal("v")))
		share := always(fairshare.Share(rapid.Int64Range(1, 1e9).Draw(t, "share")))
		b.Accounts[len(b.Accounts)-1].Share, b.Accounts[len(b.Accounts)-2].Share = share, share
		used := rapid.Int64Range(0, 5).Draw(t, "used")
		more := used + rapid.Int64Range(0, 5).Draw(t, "more")
		charges := drawUse(t, b, newOracle(b).exactTree())
		charges = slices.DeleteFunc(charges, func(c fairshare.Charge) bool { return c.Account == "twin1" || c.Account == "twin2" })
		charges = append(charges, charge("twin1", "v", window, used), charge("twin2", "v", window, more))

		r := fairshare.Rank(fairshare.Input{Budget: b, Window: window, Charges: charges})
		twin1, _ := r.Account("twin1")
		twin2, _ := r.Account("twin2")
		v1, _ := r.User("twin1", "v")
		v2, _ := r.User("twin2", "v")
		require.GreaterOrEqual(t, twin1.LevelFS, twin2.LevelFS)
		require.LessOrEqual(t, twin1.Rank, twin2.Rank)
		require.LessOrEqual(t, v1.Rank, v2.Rank)
		if used == more {
			require.Equal(t, twin1.Rank, twin2.Rank)
			require.Equal(t, v1.Factor, v2.Factor)
		}
	})
}

// By whom an account's usage was used is nothing to its siblings.
func TestSplittingUsageOverUsersLeavesAccountsAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		for _, charges := range [][]fairshare.Charge{in.Charges, in.Ahead} {
			for i := range charges {
				charges[i].Period = hours(47, 48) // uncut, or each part would be rounded apart
			}
		}
		want := fairshare.Rank(in)
		in.Charges = splitOverUsers(t, in.Charges)
		in.Ahead = splitOverUsers(t, in.Ahead)
		got := fairshare.Rank(in)
		for i, a := range want.Accounts {
			// An account's own factor is its users' and may change.
			a.Factor = got.Accounts[i].Factor
			require.Equal(t, a, got.Accounts[i])
		}
	})
}

// splitOverUsers divides every charge at random between two users.
func splitOverUsers(t *rapid.T, charges []fairshare.Charge) []fairshare.Charge {
	var split []fairshare.Charge
	for _, c := range charges {
		part := fairshare.GPUMillis(rapid.Int64Range(0, int64(c.Amount)).Draw(t, "part"))
		other := c
		other.User, other.Amount = fmt.Sprint("u", rapid.IntRange(0, 3).Draw(t, "other")), part
		c.Amount -= part
		split = append(split, c, other)
	}
	return split
}
