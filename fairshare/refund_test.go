// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
)

func TestRefundsAreNegativeCharges(t *testing.T) {
	b := halves()
	require.Empty(t, b.Refunds())
	b.Accounts[0].Refunds = []fairshare.Refund{
		{Period: hours(0, 2), User: "u", Amount: 5}, {Period: hours(1, 2), User: "v", Amount: 7},
	}
	b.Accounts[1].Refunds = []fairshare.Refund{{Period: hours(3, 4), User: "w", Amount: 9}}
	require.Equal(t, []fairshare.Charge{
		{Period: hours(0, 2), Account: "a", User: "u", Amount: -5},
		{Period: hours(1, 2), Account: "a", User: "v", Amount: -7},
		{Period: hours(3, 4), Account: "b", User: "w", Amount: -9},
	}, b.Refunds())
}

// Who gets the whole of a charge back stands, in every window and in every
// figure, where he would without the charge: whatever moves, comes or goes in
// the tree meanwhile.
func TestARefundMakesWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		edges := []fairshare.Instant{
			start + fairshare.Instant(rapid.Int64Range(-5, 20).Draw(t, "from"))*hour/2,
			start + fairshare.Instant(rapid.Int64Range(21, 110).Draw(t, "until"))*hour/2,
		}
		in.Window = fairshare.Period{From: edges[0], Until: edges[1]}
		lost := drawCharges(t, in.Budget)
		lost = slices.DeleteFunc(lost, func(c fairshare.Charge) bool {
			return !slices.ContainsFunc(in.Budget.Accounts, func(a fairshare.Account) bool { return a.Name == c.Account })
		})
		refunded := *in.Budget
		refunded.Accounts = slices.Clone(in.Budget.Accounts)
		for _, c := range lost {
			i := slices.IndexFunc(refunded.Accounts, func(a fairshare.Account) bool { return a.Name == c.Account })
			a := &refunded.Accounts[i]
			a.Refunds = append(slices.Clip(a.Refunds), fairshare.Refund{Period: c.Period, User: c.User, Amount: c.Amount})
		}
		without := fairshare.Rank(in)

		with := in
		with.Budget = &refunded
		with.Charges = slices.Concat(in.Charges, lost, refunded.Refunds())
		require.Equal(t, without, fairshare.Rank(with))
		require.Equal(t,
			fairshare.Deliver(fairshare.DeliveryInput{Budget: in.Budget, Window: in.Window, Charges: in.Charges}),
			fairshare.Deliver(fairshare.DeliveryInput{Budget: with.Budget, Window: with.Window, Charges: with.Charges}))
	})
}

// Who is refunded more than he was charged counts as one who has used nothing.
func TestRefundedBeyondTheCharge(t *testing.T) {
	b := halves()
	w := hours(0, 10)
	in := fairshare.Input{Budget: b, Window: w, Charges: []fairshare.Charge{
		charge("a", "u", w, 1), charge("a", "u", w, -2), charge("b", "w", w, 3),
	}}
	r := fairshare.Rank(in)
	a, _ := r.Account("a")
	require.Equal(t, 1, a.Rank)
	require.Greater(t, a.LevelFS, 1e300)
}
