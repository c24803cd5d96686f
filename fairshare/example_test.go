// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"fmt"
	"time"

	"gpubudget/fairshare"
)

// Two programs share a cluster of 100 GPUs, 60 to 40. Over a week the first
// used half as much again as its share, so the jobs of the second come first.
func ExampleRank() {
	now := fairshare.At(time.Date(2026, 3, 9, 0, 0, 0, 0, time.UTC))
	week := fairshare.Lookback(now, 7*24*time.Hour)
	always := fairshare.Period{From: fairshare.Always, Until: fairshare.Never}
	under := func(parent string) []fairshare.Step[string] {
		return []fairshare.Step[string]{{Period: always, Value: parent}}
	}
	share := func(percent int64) []fairshare.Step[fairshare.Share] {
		return []fairshare.Step[fairshare.Share]{{Period: always, Value: fairshare.Share(percent) * fairshare.Whole / 100}}
	}
	member := func(user string) fairshare.Member {
		return fairshare.Member{User: user, In: []fairshare.Step[fairshare.Share]{{Period: always, Value: fairshare.EqualPart}}}
	}
	budget := &fairshare.Budget{
		Capacity: []fairshare.Step[fairshare.MilliGPUs]{{Period: always, Value: 100 * fairshare.GPU}},
		Accounts: []fairshare.Account{
			{Name: "language", Parent: under("root"), Share: share(60), Users: []fairshare.Member{member("ada"), member("alan")}},
			{Name: "vision", Parent: under("root"), Share: share(40), Users: []fairshare.Member{member("vera")}},
		},
	}
	r := fairshare.Rank(fairshare.Input{Budget: budget, Window: week, Charges: []fairshare.Charge{
		{Period: week, Account: "language", User: "ada", Amount: 9000 * fairshare.GPUHour},
		{Period: week, Account: "vision", User: "vera", Amount: 1000 * fairshare.GPUHour},
	}})
	for _, a := range r.Accounts[1:] {
		fmt.Printf("%-8s due %5.0f used %4.0f LevelFS %.2f rank %d\n", a.Name, a.Entitled.Hours(), a.Used.Hours(), a.LevelFS, a.Rank)
	}
	for _, u := range r.Users {
		fmt.Printf("%-8s %-4s rank %d factor %.2f\n", u.Account, u.User, u.Rank, u.Factor)
	}
	// Output:
	// language due 10080 used 9000 LevelFS 0.67 rank 2
	// vision   due  6720 used 1000 LevelFS 4.00 rank 1
	// language ada  rank 3 factor 0.33
	// language alan rank 2 factor 0.67
	// vision   vera rank 1 factor 1.00
}
