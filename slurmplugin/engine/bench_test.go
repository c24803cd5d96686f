// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"fmt"
	"testing"
	"time"

	"gpubudget/budgets"
	"gpubudget/conf"
	"gpubudget/fairshare"
	"gpubudget/usage"
)

// The size of the cluster that the benchmarks are about.
const (
	benchAccounts = 500
	benchUsers    = 10 // in each
)

// benchEngine is an engine with a snapshot of all accounts and users and a week
// of charges: each user has run something in one hour of four.
func benchEngine(b *testing.B) *Engine {
	b.Helper()
	e := newEngine(Host{
		Cluster: "bench", StateDir: b.TempDir(), Log: func(Level, string) {},
		Clock: func() time.Time { return begin },
	}, conf.Defaults())
	now := fairshare.At(begin)
	s := &Snapshot{Cluster: "bench", ReadAt: now, Policy: budgets.DefaultPolicy, Budget: &fairshare.Budget{
		Capacity: []fairshare.Step[fairshare.MilliGPUs]{{Period: fairshare.Period{From: fairshare.Always, Until: now}, Value: 1000 * fairshare.GPU}},
	}}
	var charges []fairshare.Charge
	always := fairshare.Period{From: fairshare.Always, Until: fairshare.Never}
	for a := range benchAccounts {
		account := fairshare.Account{
			Name:   fmt.Sprintf("account%d", a),
			Parent: []fairshare.Step[string]{{Period: always, Value: fairshare.RootAccount}},
			Share:  []fairshare.Step[fairshare.Share]{{Period: always, Value: fairshare.Whole / benchAccounts}},
		}
		for u := range benchUsers {
			user := fmt.Sprintf("user%d", a*benchUsers+u)
			account.Users = append(account.Users, fairshare.Member{
				User: user, In: []fairshare.Step[fairshare.Share]{{Period: always, Value: fairshare.EqualPart}}})
			for hour := fairshare.Instant(u % 4); hour < 7*24; hour += 4 {
				from := now - (hour+1)*3_600_000
				charges = append(charges, fairshare.Charge{
					Period: fairshare.Period{From: from, Until: from + 3_600_000}, Account: account.Name, User: user,
					Amount: fairshare.GPUHour,
				})
			}
		}
		s.Budget.Accounts = append(s.Budget.Accounts, account)
	}
	s.History = usage.NewHistory(s.Lookback(now).From, now, charges)
	e.install(s, false)
	e.Configure(fairshare.Weights{Age: 1000, Fairshare: 10000, JobSize: 100, Partition: 10, QOS: 2000, MaxAge: 7 * 86400}, 1)
	return e
}

func benchJobs(n int) []Job {
	jobs := make([]Job, n)
	for i := range jobs {
		owner := i * 7919 % (benchAccounts * benchUsers)
		jobs[i] = Job{
			JobID: uint32(1000 + i), ArrayTaskID: NoTask, ArrayTasks: 1, DemandTasks: 1, AssocID: uint32(owner + 1),
			Account: NewCString(fmt.Sprintf("account%d", owner/benchUsers)), User: NewCString(fmt.Sprintf("user%d", owner)),
			Partition: NewCString("gpu"), QOS: NewCString("normal"),
			Submit: begin.Unix() - int64(i), Begin: begin.Unix(),
			Flags: Demands, GPUs: uint64(1 + i%8),
			Nice: int64(i % 3), QOSPriority: uint32(i % 2 * 10), MinRuntime: int64(i%4)*3600 - 1,
		}
		if i%20 == 0 { // one in twenty runs
			jobs[i].State, jobs[i].Flags = Running, 0
			jobs[i].Start, jobs[i].End = begin.Unix()-int64(i%5000), begin.Unix()+3600
		}
	}
	return jobs
}

// BenchmarkPass is what the engine does in a pass over n jobs, all but one in
// twenty of which pend.
func BenchmarkPass(b *testing.B) {
	for _, n := range []int{1000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("jobs=%d", n), func(b *testing.B) {
			e, jobs := benchEngine(b), benchJobs(n)
			now := begin.UnixMilli()
			assocs := make([]Assoc, benchAccounts*benchUsers)
			for i := range assocs {
				assocs[i] = Assoc{
					ID: uint32(i + 1), Account: NewCString(fmt.Sprintf("account%d", i/benchUsers)), User: NewCString(fmt.Sprintf("user%d", i)),
				}
			}
			benchLook(b, e, jobs, now)
			b.ReportAllocs()
			for b.Loop() {
				now += 1000
				benchLook(b, e, jobs, now)
				if err := e.Rank(&Extremes{}, &Table{}); err != nil {
					b.Fatal(err)
				}
				e.Standings(assocs)
			}
		})
	}
}

// BenchmarkLook is a look at n jobs between two passes.
func BenchmarkLook(b *testing.B) {
	e, jobs := benchEngine(b), benchJobs(100_000)
	now := begin.UnixMilli()
	benchLook(b, e, jobs, now)
	b.ReportAllocs()
	for b.Loop() {
		now += 1000
		benchLook(b, e, jobs, now)
	}
}

func benchLook(b *testing.B, e *Engine, jobs []Job, now int64) {
	b.Helper()
	const batch = 128
	e.BeginPass(now, Cluster{Nodes: 125, CPUs: 8000, GPUs: 1000})
	for i := 0; i < len(jobs); i += batch {
		e.Observe(jobs[i:min(i+batch, len(jobs))])
	}
	if err := e.EndPass(); err != nil {
		b.Fatal(err)
	}
}
