// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"gpubudget/fairshare"
)

const day = 24 * time.Hour

// largeInput is a cluster of three levels: programs, projects and users, with
// changes spread over a window of a week, hourly charges for every user's last
// day and one charge for each user that runs now.
func largeInput(accounts, users, changes int) fairshare.Input {
	now := fairshare.At(time.Date(2026, 3, 9, 0, 0, 0, 0, time.UTC))
	window := fairshare.Lookback(now, 7*day)
	rng := rand.New(rand.NewPCG(1, 2))
	b := &fairshare.Budget{Capacity: always(1000 * fairshare.GPU)}
	programs := max(accounts/25, 1)
	for i := range accounts {
		name, parent, share := fmt.Sprintf("p%04d", i), "root", fairshare.Whole/fairshare.Share(programs)
		if i >= programs {
			parent, share = fmt.Sprintf("p%04d", i%programs), fairshare.Whole/40
		}
		b.Accounts = append(b.Accounts, fairshare.Account{Name: name, Parent: always(parent), Share: always(share)})
	}
	for i := range users {
		a := &b.Accounts[i%accounts]
		a.Users = append(a.Users, fairshare.Member{User: fmt.Sprintf("u%05d", i), In: always(fairshare.EqualPart)})
	}
	for i := range changes {
		at := window.From + fairshare.Instant(rng.Int64N(window.Millis()))
		a := &b.Accounts[accounts-1-i%accounts]
		old := a.Share[0].Value
		a.Share = []fairshare.Step[fairshare.Share]{
			{Period: fairshare.Period{From: fairshare.Always, Until: at}, Value: old},
			{Period: fairshare.Period{From: at, Until: fairshare.Never}, Value: old / 2},
		}
	}
	in := fairshare.Input{Budget: b, Window: window}
	for i := range b.Accounts {
		for _, user := range b.Accounts[i].Users {
			for h := range 24 {
				until := now - fairshare.Instant(h)*fairshare.Instant(time.Hour.Milliseconds())
				in.Charges = append(in.Charges, fairshare.Charge{
					Period:  fairshare.Lookback(until, time.Hour),
					Account: b.Accounts[i].Name, User: user.User,
					Amount: fairshare.GPUMillis(rng.Int64N(int64(fairshare.GPUHour))),
				})
			}
		}
	}
	return in
}

var sizes = []struct{ accounts, users int }{{5, 50}, {50, 500}, {500, 5000}}

func BenchmarkEntitlements(b *testing.B) {
	for _, size := range sizes {
		in := largeInput(size.accounts, size.users, 20)
		b.Run(fmt.Sprintf("accounts=%d/users=%d", size.accounts, size.users), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				in.Budget.Entitlements(in.Window)
			}
		})
	}
}

func BenchmarkRank(b *testing.B) {
	for _, size := range sizes {
		in := largeInput(size.accounts, size.users, 20)
		b.Run(fmt.Sprintf("accounts=%d/users=%d/charges=%d", size.accounts, size.users, len(in.Charges)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				fairshare.Rank(in)
			}
		})
	}
}

func BenchmarkDeliver(b *testing.B) {
	for _, size := range sizes {
		in := largeInput(size.accounts, size.users, 20)
		b.Run(fmt.Sprintf("accounts=%d/users=%d", size.accounts, size.users), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				fairshare.Deliver(fairshare.DeliveryInput{Budget: in.Budget, Window: in.Window, Charges: in.Charges})
			}
		})
	}
}

// benchmarkJobs are a job for each user, with a few QOS and nice values.
func benchmarkJobs(r *fairshare.Ranking) ([]fairshare.Job, *fairshare.Seen) {
	jobs := make([]fairshare.Job, len(r.Users))
	seen := &fairshare.Seen{}
	for i, u := range r.Users {
		jobs[i] = fairshare.Job{
			Account: u.Account, User: u.User, QOSPriority: uint32(i % 3 * 10), Nice: int64(i % 5 * 100),
			Age: int64(i), CPUs: 8, MinNodes: 1, TRES: []float64{0.1, 0.2, 0.3, 0.4, 0.5},
		}
		seen.Add(&jobs[i])
	}
	return jobs, seen
}

var benchmarkWeights = fairshare.Weights{
	Age: 1000, Fairshare: 100_000, JobSize: 100, Partition: 100, QOS: 10_000,
	TRES: []float64{0, 0, 0, 0, 100}, MaxAge: 604_800,
}

type prioritizer interface {
	Priority(job *fairshare.Job, f *fairshare.Factors)
}

func benchmarkPriority(b *testing.B, prepare func(*fairshare.Ranking, *fairshare.Seen) prioritizer) {
	b.Helper()
	for _, size := range sizes {
		r := fairshare.Rank(largeInput(size.accounts, size.users, 0))
		jobs, seen := benchmarkJobs(r)
		p := prepare(r, seen)
		b.Run(fmt.Sprintf("accounts=%d/users=%d", size.accounts, size.users), func(b *testing.B) {
			b.ReportAllocs()
			var f fairshare.Factors
			i := 0
			for b.Loop() {
				p.Priority(&jobs[i], &f)
				if i++; i == len(jobs) {
					i = 0
				}
			}
		})
	}
}

func BenchmarkAdditivePriority(b *testing.B) {
	benchmarkPriority(b, func(r *fairshare.Ranking, _ *fairshare.Seen) prioritizer {
		return fairshare.NewAdditive(r, benchmarkWeights, fairshare.ClusterSize{Nodes: 100, CPUs: 6400})
	})
}

func BenchmarkStrictPriority(b *testing.B) {
	benchmarkPriority(b, func(r *fairshare.Ranking, seen *fairshare.Seen) prioritizer {
		return fairshare.NewStrict(r, benchmarkWeights, fairshare.ClusterSize{Nodes: 100, CPUs: 6400}, seen)
	})
}

func BenchmarkNewStrict(b *testing.B) {
	for _, size := range sizes {
		r := fairshare.Rank(largeInput(size.accounts, size.users, 0))
		_, seen := benchmarkJobs(r)
		b.Run(fmt.Sprintf("accounts=%d/users=%d", size.accounts, size.users), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				fairshare.NewStrict(r, benchmarkWeights, fairshare.ClusterSize{Nodes: 100, CPUs: 6400}, seen)
			}
		})
	}
}

func BenchmarkSeenAdd(b *testing.B) {
	jobs, seen := benchmarkJobs(fairshare.Rank(largeInput(500, 5000, 0)))
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		seen.Add(&jobs[i])
		if i++; i == len(jobs) {
			i = 0
		}
	}
}

// Slurm's shares: 5,000 users in 500 accounts.
func BenchmarkSlurmShares(b *testing.B) {
	list := []fairshare.Association{root(0)}
	for i := range 500 {
		list = append(list, assocOf(0, uint32(i%7+1), 0))
	}
	for i := range 5000 {
		u := user(1+i%500, uint32(i%3+1), float64(i*7919%10007))
		list = append(list, u)
		list[u.Parent].Usage += u.Usage
		list[0].Usage += u.Usage
	}
	for name, policy := range map[string]fairshare.SlurmPolicy{"FairTree": apart, "Classic": {}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := fairshare.SlurmShares(list, policy); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func sizeName(accounts, users int) string {
	return fmt.Sprintf("accounts=%d/users=%d", accounts, users)
}
