// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
)

// rankWith ranks with a ranker that has ranked before.
func rankWith(k *fairshare.Ranker, in fairshare.Input) *fairshare.Ranking {
	chargeAll(k, in)
	return k.Rank()
}

func chargeAll(k *fairshare.Ranker, in fairshare.Input) {
	k.Begin(in.Window, in.Budget.Capacity)
	for _, c := range in.Charges {
		k.Charge(k.Owner(c.Account, c.User), c.Period, c.Amount)
	}
	for _, c := range in.Ahead {
		k.Ahead(k.Owner(c.Account, c.User), c.Amount)
	}
}

// Wherever the window moves, and whatever is used meanwhile, a ranker carries
// over nothing that changes a bit of a ranking.
func TestARankerRanksAsIfItRankedForTheFirstTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		if rapid.IntRange(0, 2).Draw(t, "tree without changes") == 0 {
			in.Budget = drawTree(t)
			in.Charges = drawCharges(t, in.Budget)
		}
		ledger := *in.Budget
		k := fairshare.NewRanker(&ledger)
		for range rapid.IntRange(1, 6).Draw(t, "passes") {
			switch rapid.SampledFrom([]string{"time", "time", "back", "usage", "capacity", "lookback"}).Draw(t, "change") {
			case "time":
				later := fairshare.Instant(rapid.Int64Range(0, 20*3_600_000).Draw(t, "later"))
				in.Window.From, in.Window.Until = in.Window.From+later, in.Window.Until+later
			case "back":
				in.Window.From, in.Window.Until = in.Window.From-hour, in.Window.Until-hour
			case "usage":
				in.Charges, in.Ahead = drawCharges(t, in.Budget), drawCharges(t, in.Budget)
			case "capacity":
				in.Budget = &fairshare.Budget{
					Accounts: in.Budget.Accounts,
					Capacity: drawLine(t, rapid.Custom(func(t *rapid.T) fairshare.MilliGPUs {
						return fairshare.MilliGPUs(rapid.Int64Range(0, 100_000).Draw(t, "gpus"))
					})),
				}
			case "lookback":
				in.Window.From = in.Window.Until - fairshare.Instant(rapid.Int64Range(0, 60*3_600_000).Draw(t, "length"))
			}
			want := fairshare.StraightRank(in)
			require.Equal(t, want, rankWith(k, in))
			require.Equal(t, want, fairshare.Rank(in))
		}
	})
}

// So it is with as many accounts as a large site has, where ties, deposits and
// moves are few.
func TestARankerRanksALargeClusterLikeAnyOther(t *testing.T) {
	in := largeInput(200, 2000, 30)
	rng := rand.New(rand.NewPCG(3, 4))
	k := fairshare.NewRanker(in.Budget)
	for range 5 {
		require.Equal(t, fairshare.StraightRank(in), rankWith(k, in))
		later := fairshare.Instant(rng.Int64N(day.Milliseconds()))
		in.Window.From, in.Window.Until = in.Window.From+later, in.Window.Until+later
	}
}

// A seat finds what names find, in all rankings of a ranker as long as nobody
// comes or goes.
func TestSeats(t *testing.T) {
	in := largeInput(20, 200, 0)
	k := fairshare.NewRanker(in.Budget)
	first := rankWith(k, in)
	in.Window.From, in.Window.Until = in.Window.From+1000, in.Window.Until+1000
	second := rankWith(k, in)
	require.True(t, second.Seats(first))
	require.False(t, second.Seats(fairshare.Rank(in)))
	require.False(t, second.Seats(nil))
	strict, additive := fairshare.NewStrict(second, fairshare.Weights{}, fairshare.ClusterSize{}, nil), fairshare.NewAdditive(second, fairshare.Weights{Fairshare: 1000}, fairshare.ClusterSize{})
	names := [][2]string{{"root", ""}, {"nowhere", "nobody"}, {"root", first.Users[0].User}, {first.Users[0].Account, "guest"}}
	for i := range first.Users {
		names = append(names, [2]string{first.Users[i].Account, first.Users[i].User})
	}
	for _, n := range names {
		seat := first.Seat(n[0], n[1])
		account, user := second.At(seat)
		wantAccount, known := second.Account(n[0])
		require.Equal(t, known, account != nil)
		if known {
			require.Same(t, wantAccount, account)
		}
		wantUser, member := second.User(n[0], n[1])
		require.Equal(t, member, user != nil)
		if member {
			require.Same(t, wantUser, user)
		}
		require.Equal(t, strict.Row(n[0], n[1]), strict.RowAt(seat))
		require.Equal(t, additive.Row(n[0], n[1]), additive.RowAt(seat))
	}
}

// Who joins an account takes a seat: those of rankings before don't hold.
func TestSeatsChangeWithTheTree(t *testing.T) {
	in := largeInput(20, 200, 20) // of changes in the window
	k := fairshare.NewRanker(in.Budget)
	late := rankWith(k, in)
	in.Window.Until = in.Window.From + 1
	require.False(t, rankWith(k, in).Seats(late))
}

// BenchmarkRanker ranks again and again, a second later each time, by what each
// user used in the week in sum.
func BenchmarkRanker(b *testing.B) {
	for _, size := range sizes {
		for name, changes := range map[string]int{"": 0, "/changes=20": 20} {
			b.Run(sizeName(size.accounts, size.users)+name, func(b *testing.B) {
				in := largeInput(size.accounts, size.users, changes)
				k := fairshare.NewRanker(in.Budget)
				var owners []fairshare.Owner
				for i := 0; i < len(in.Charges); i += 24 {
					owners = append(owners, k.Owner(in.Charges[i].Account, in.Charges[i].User))
				}
				b.ReportAllocs()
				for b.Loop() {
					in.Window.From, in.Window.Until = in.Window.From+1000, in.Window.Until+1000
					k.Begin(in.Window, in.Budget.Capacity)
					for i, o := range owners {
						k.Charge(o, in.Window, fairshare.GPUHour*fairshare.GPUMillis(i%7))
					}
					k.Rank()
				}
			})
		}
	}
}

// Places leaves out the figures and ranks of users, and factors, and changes nothing else, however
// often its memory was used again; and priorities that follow from ranking to
// ranking are those made anew.
func TestPlacesAreThoseOfTheRanking(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		k := fairshare.NewRanker(in.Budget)
		var seen fairshare.Seen
		seen.Add(&fairshare.Job{Account: "a", QOSPriority: 3, Nice: 5})
		weights := fairshare.Weights{Age: 10, MaxAge: 100}
		var strict *fairshare.Strict
		for range rapid.IntRange(1, 6).Draw(t, "passes") {
			if rapid.Bool().Draw(t, "later") {
				later := fairshare.Instant(rapid.Int64Range(0, 20*3_600_000).Draw(t, "by"))
				in.Window.From, in.Window.Until = in.Window.From+later, in.Window.Until+later
			}
			in.Charges, in.Ahead = drawCharges(t, in.Budget), drawCharges(t, in.Budget)
			want := fairshare.Rank(in)
			chargeAll(k, in)
			got := k.Places()
			if strict == nil {
				strict = fairshare.NewStrict(got, weights, fairshare.ClusterSize{}, &seen)
			}
			strict = strict.Follow(got, &seen)
			anew := fairshare.NewStrict(want, weights, fairshare.ClusterSize{}, &seen)
			require.Equal(t, anew.Table(), strict.Table())
			for i := range want.Users {
				u := &want.Users[i]
				require.Equal(t, anew.Row(u.Account, u.User), strict.Row(u.Account, u.User))
				u.Entitled, u.Used, u.Rank, u.Factor = 0, 0, 0, 0
			}
			for i := range want.Accounts {
				want.Accounts[i].Factor = 0
			}
			require.Equal(t, want, got)
		}
	})
}
