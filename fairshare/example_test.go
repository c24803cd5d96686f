// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"fmt"
	"time"

	"gpubudget/fairshare"
)

// The helpers of these examples: values that hold always.
var forever = fairshare.Period{From: fairshare.Always, Until: fairshare.Never}

func under(parent string) []fairshare.Step[string] {
	return []fairshare.Step[string]{{Period: forever, Value: parent}}
}

func holds(percent fairshare.Share) []fairshare.Step[fairshare.Share] {
	return []fairshare.Step[fairshare.Share]{{Period: forever, Value: percent * fairshare.Whole / 100}}
}

func equally(users ...string) (members []fairshare.Member) {
	for _, user := range users {
		members = append(members, fairshare.Member{
			User: user, In: []fairshare.Step[fairshare.Share]{{Period: forever, Value: fairshare.EqualPart}},
		})
	}
	return members
}

// programs is a cluster of 100 GPUs that two programs share 60 to 40.
func programs() *fairshare.Budget {
	return &fairshare.Budget{
		Capacity: []fairshare.Step[fairshare.MilliGPUs]{{Period: forever, Value: 100 * fairshare.GPU}},
		Accounts: []fairshare.Account{
			{Name: "language", Parent: under("root"), Share: holds(60), Users: equally("ada", "alan")},
			{Name: "vision", Parent: under("root"), Share: holds(40), Users: equally("vera")},
			{Name: "3d", Parent: under("vision"), Share: holds(50), Users: equally("dora")},
		},
	}
}

var (
	now  = fairshare.At(time.Date(2026, 3, 9, 0, 0, 0, 0, time.UTC))
	week = fairshare.Lookback(now, 7*24*time.Hour)
)

// lastWeek is the ranking after a week in which language used more than its
// part of the GPU time used.
func lastWeek() *fairshare.Ranking {
	return fairshare.Rank(fairshare.Input{Budget: programs(), Window: week, Charges: []fairshare.Charge{
		{Period: week, Account: "language", User: "ada", Amount: 9000 * fairshare.GPUHour},
		{Period: week, Account: "vision", User: "vera", Amount: 700 * fairshare.GPUHour},
		{Period: week, Account: "3d", User: "dora", Amount: 300 * fairshare.GPUHour},
	}})
}

func ExampleRank() {
	r := lastWeek()
	for _, a := range r.Accounts[1:] {
		fmt.Printf("%-8s due %5.0f used %4.0f LevelFS %.2f rank %d\n", a.Name, a.Entitled.Hours(), a.Used.Hours(), a.LevelFS, a.Rank)
	}
	for _, u := range r.Users {
		fmt.Printf("%-8s %-4s rank %d factor %.2f\n", u.Account, u.User, u.Rank, u.Factor)
	}
	// Output:
	// language due 10080 used 9000 LevelFS 0.67 rank 3
	// vision   due  6720 used 1000 LevelFS 4.00 rank 2
	// 3d       due  3360 used  300 LevelFS 1.67 rank 1
	// language ada  rank 4 factor 0.25
	// language alan rank 3 factor 0.50
	// vision   vera rank 2 factor 0.75
	// 3d       dora rank 1 factor 1.00
}

func ExampleBudget_Tree() {
	for _, n := range programs().Tree(now).Nodes {
		fmt.Printf("%*s%-8s %3.0f%% of the cluster\n", 2*n.Depth, "", n.Name, 100*n.ShareOfCluster)
		for _, u := range n.Users {
			fmt.Printf("%*s%-6s %3.0f%%\n", 2*n.Depth+4, "", u.Name, 100*u.ShareOfCluster)
		}
	}
	// Output:
	// root     100% of the cluster
	//   language  60% of the cluster
	//       ada     30%
	//       alan    30%
	//   vision    40% of the cluster
	//       vera    20%
	//     3d        20% of the cluster
	//         dora    20%
}

// A share that was raised two days ago counts for two days.
func ExampleBudget_Entitlements() {
	b := programs()
	raised := now - fairshare.Instant(48*time.Hour/time.Millisecond)
	b.Accounts[0].Share = []fairshare.Step[fairshare.Share]{
		{Period: fairshare.Period{From: fairshare.Always, Until: raised}, Value: fairshare.Whole / 2},
		{Period: fairshare.Period{From: raised, Until: fairshare.Never}, Value: fairshare.Whole * 6 / 10},
	}
	fmt.Println(b.Entitlements(week).Account("language").Hours())
	// Output: 8880
}

// A job of the program that is behind comes first whatever the other declares;
// within a program the declared priority decides.
func ExampleStrict() {
	jobs := []fairshare.Job{
		{Account: "language", User: "ada", QOSPriority: 100},
		{Account: "language", User: "alan", Nice: 50},
		{Account: "language", User: "ada"},
		{Account: "vision", User: "vera", Nice: 1000},
	}
	var seen fairshare.Seen
	for i := range jobs {
		seen.Add(&jobs[i])
	}
	strict := fairshare.NewStrict(lastWeek(), fairshare.Weights{MaxAge: 604_800}, fairshare.ClusterSize{Nodes: 13, CPUs: 1664}, &seen)
	var f fairshare.Factors
	for i := range jobs {
		strict.Priority(&jobs[i], &f)
		fmt.Printf("%-8s %-4s %d = %.0f + %.0f - %d\n", jobs[i].Account, jobs[i].User, f.Priority, f.Fairshare, f.QOS, f.Nice)
	}
	// Output:
	// language ada  85000001 = 40000001 + 45000000 - 0
	// language alan 50000001 = 41000001 + 15000000 - 6000000
	// language ada  55000001 = 40000001 + 15000000 - 0
	// vision   vera 118000001 = 112000001 + 10000000 - 4000000
}

func ExampleDeliver() {
	hour := fairshare.Lookback(now, time.Hour)
	for _, d := range fairshare.Deliver(fairshare.DeliveryInput{
		Budget: programs(), Window: hour,
		Demand: []fairshare.Demand{
			{Period: hour, Account: "language", Amount: 200 * fairshare.GPUHour},
			{Period: hour, Account: "3d", Amount: 8 * fairshare.GPUHour},
		},
		Charges: []fairshare.Charge{
			{Period: hour, Account: "language", User: "ada", Amount: 57 * fairshare.GPUHour},
			{Period: hour, Account: "3d", User: "dora", Amount: 8 * fairshare.GPUHour},
		},
	}) {
		fmt.Printf("%-8s owed %3.0f delivered %2.0f: %.0f%%\n", d.Account, d.Owed.Hours(), d.Delivered.Hours(), d.Percent())
	}
	// Output:
	// root     owed 100 delivered 65: 65%
	// language owed  60 delivered 57: 95%
	// vision   owed   8 delivered  8: 100%
	// 3d       owed   8 delivered  8: 100%
}
