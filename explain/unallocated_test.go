// SPDX-License-Identifier: GPL-2.0-or-later

package explain

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/usage"
)

// A job that asks for no minimum runtime has nothing in the column FAIRSHARE. It
// is told apart from one of an account without a budget, from one that an operator
// has put somewhere, and from one that has no columns yet.
func TestUnallocatedJob(t *testing.T) {
	u, v, poor := Subject{"a", "u"}, Subject{"b", "v"}, Subject{"c", "p"}
	byHand := Pending{JobID: 1, Owner: u, Partition: "gpu", Tasks: 1, GPUs: 1}
	byHand.Factors.Priority = 1_000_000
	fresh := Pending{JobID: 1, Owner: u, Partition: "gpu", Tasks: 1, GPUs: 1}
	fresh.Factors.Priority = 1
	for _, tt := range []struct {
		name string
		mode string
		job  Pending
		all  []Pending
		want bool
	}{
		{"strict", budgets.Strict, pending(1, u, "gpu", 0, 700, 0, 5), nil, true},
		{"strict, allocated", budgets.Strict, pending(1, u, "gpu", 700, 0, 0, 5), nil, false},
		{"strict, without a budget", budgets.Strict, pending(1, poor, "gpu", 1, 0, 0, 5), nil, false},
		{"strict, without columns", budgets.Strict, fresh, nil, false},
		{"by hand", budgets.Strict, byHand, nil, false},
		{"additive", budgets.Additive, pending(1, u, "gpu", 0, 0, 0, 5), []Pending{pending(2, v, "gpu", 100, 0, 0, 5)}, true},
		{"additive, nobody else waits", budgets.Additive, pending(1, u, "gpu", 0, 0, 0, 5), nil, true},
		{"additive, the least there is", budgets.Additive, fresh, []Pending{pending(2, v, "gpu", 1_000_000, 0, 0, 5)}, true},
		{"additive, allocated", budgets.Additive, pending(1, u, "gpu", 1_000_000, 0, 0, 5), nil, false},
		{"additive, without a budget", budgets.Additive, pending(1, poor, "gpu", 0, 0, 0, 5), nil, false},
		{"additive, a guest", budgets.Additive, pending(1, Subject{"a", "guest"}, "gpu", 0, 0, 0, 5), nil, true},
		{"additive, without columns", budgets.Additive, fresh, nil, false},
		{"additive, by hand", budgets.Additive, byHand, []Pending{pending(2, v, "gpu", 1_000_000, 0, 0, 5)}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rec := record(tt.mode, account("a", "root", 20, equal("u")), account("b", "root", 20, equal("v")), account("c", "root", 0, equal("p")))
			rec.Charged = []fairshare.Charge{charge("a", "u", period(0, 50), 30)}
			e, ok := Job(rec, []Pending{tt.job}, append(tt.all, tt.job))
			require.True(t, ok)
			require.Equal(t, tt.want, e.Unallocated)
			if tt.want {
				changeOf(t, e, Allocate)
			}
		})
	}
}

// All that is allocated is ahead of it, for that reason alone.
func TestAllocatedJobsAreAheadOfAnUnallocatedOne(t *testing.T) {
	rec := record(budgets.Strict, account("a", "root", 20, equal("u")), account("b", "root", 20, equal("v")))
	rec.Charged = []fairshare.Charge{charge("b", "v", period(0, 50), 30)}
	mine := pending(1, Subject{"a", "u"}, "gpu", 0, 700, 0, 5)
	same := pending(2, Subject{"a", "u"}, "gpu", 0, 900, 0, 5)
	behind := pending(3, Subject{"b", "v"}, "gpu", 5000, 0, 0, 5)
	e, ok := Job(rec, []Pending{mine}, []Pending{mine, same, behind})
	require.True(t, ok)
	require.Len(t, e.Ahead, 2)
	require.Equal(t, Why{Cause: Allocated}, e.Ahead[0].Why)
	require.Equal(t, "b", e.Ahead[0].Account)
	require.Equal(t, Why{Cause: QOS, Column: "QOS", Points: 200}, e.Ahead[1].Why)
}

// In additive priority an unallocated job is behind all allocated ones for that
// reason, whatever columns they have, and no number of points takes it past them; an
// account's jobs are so without a budget. Among themselves the sum decides.
func TestUnallocatedJobsInAdditivePriority(t *testing.T) {
	rec := record(budgets.Additive, account("a", "root", 20, equal("u")), account("b", "root", 20, equal("v")), account("c", "root", 0, equal("p")))
	rec.Charged = []fairshare.Charge{charge("b", "v", period(0, 50), 30)}
	u, v, poor, nobody := Subject{"a", "u"}, Subject{"b", "v"}, Subject{"c", "p"}, Subject{"nowhere", "z"}
	charged := pending(1, v, "gpu", 1_000_000, 0, 500, 0)
	older := pending(2, u, "gpu", 0, 0, 0, 900)
	mine := pending(3, u, "gpu", 0, 700, 0, 5)
	last := pending(4, poor, "gpu", 0, 600, 0, 5)
	unknown := pending(5, nobody, "gpu", 0, 300, 0, 5)
	byHand := Pending{JobID: 6, Owner: v, Partition: "gpu", Tasks: 1, GPUs: 1}
	byHand.Factors.Priority = 4_000
	all := []Pending{charged, older, mine, last, unknown}
	causes := func(e *Explanation) (causes []Why) {
		for _, r := range e.Ahead {
			causes = append(causes, r.Why)
		}
		return causes
	}

	e, ok := Job(rec, []Pending{mine}, all)
	require.True(t, ok)
	require.Equal(t, []Why{{Cause: Allocated}, {Cause: Column, Column: "AGE", Points: 895}}, causes(e))
	require.EqualValues(t, 196, changeOf(t, e, Points).Points, "to pass the older one, not the allocated one")
	changeOf(t, e, Allocate)

	e, ok = Job(rec, []Pending{last}, all)
	require.True(t, ok)
	require.False(t, e.Unallocated, "it doesn't ask for it")
	require.Equal(t, []Why{{Cause: Funded}, {Cause: Column, Column: "AGE", Points: 895}, {Cause: Column, Column: "QOS", Points: 100}}, causes(e))
	require.Equal(t, "c", changeOf(t, e, Unfunded).Mine.Account)
	require.EqualValues(t, 101, changeOf(t, e, Points).Points)

	e, ok = Job(rec, []Pending{older}, []Pending{charged, byHand, older})
	require.True(t, ok)
	require.Equal(t, []Why{{Cause: Allocated}, {Cause: SetByHand}}, causes(e))
	for _, c := range e.Changes {
		require.NotEqual(t, Points, c.Kind, "there is no number that would do")
	}

	edge := pending(1, u, "gpu", 0, 0, -999_000, 1000)
	e, ok = Job(rec, []Pending{older}, []Pending{edge, older})
	require.True(t, ok)
	require.Len(t, e.Ahead, 1)
	for _, c := range e.Changes {
		require.NotEqual(t, Points, c.Kind, "there is no number that would do")
	}

	rec.Queue = []usage.Queue{{Account: "a", User: "u", PendingJobs: 1, PendingGPUs: 1}, {Account: "c", User: "q", PendingJobs: 1, PendingGPUs: 1}}
	require.Equal(t, []Why{{Cause: Funded}}, causes(explained(t, rec, poor)))
}

// A job of additive priority passes the next one with as many points as are named,
// by nice or whatever else, and not with one less; what names none can't.
func TestPointsInAdditivePriorityAreEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rec := drawRecord(t)
		rec.Policy.Mode = budgets.Additive
		ranking := fairshare.Rank(rec.Input())
		p := fairshare.NewAdditive(ranking, fairshare.Weights{Fairshare: 1000, Age: 1000, MaxAge: 100}, fairshare.ClusterSize{})
		jobs := make([]fairshare.Job, rapid.IntRange(2, 8).Draw(t, "jobs"))
		var all []Pending
		show := func(i int) Pending {
			j := &jobs[i]
			row := Pending{JobID: uint32(i), Owner: Subject{j.Account, j.User}, Partition: "gpu", Tasks: 1, GPUs: 1, Nice: j.Nice}
			p.Priority(j, &row.Factors)
			return row
		}
		for i := range jobs {
			a := rapid.SampledFrom(rec.Budget.Accounts).Draw(t, "account")
			jobs[i] = fairshare.Job{
				Account: a.Name, User: rapid.SampledFrom([]string{"u0", "u1", "guest"}).Draw(t, "user"), Age: rapid.Int64Range(1, 100).Draw(t, "age"),
				Nice: rapid.OneOf(rapid.Int64Range(-5000, 5000), rapid.SampledFrom([]int64{-1_000_000, math.MaxInt32})).Draw(t, "nice"), Unallocated: rapid.Bool().Draw(t, "unallocated"),
			}
			all = append(all, show(i))
		}
		e, ok := Job(rec, all[:1], all)
		require.True(t, ok)
		passed := func() (n int) {
			mine := show(0)
			for i := 1; i < len(all); i++ {
				if !mine.rival(&all[i]) {
					n++
				}
			}
			return n
		}
		nice, before := jobs[0].Nice, passed()
		for _, c := range e.Changes {
			if c.Kind == Points {
				jobs[0].Nice = nice - c.Points
				require.Greater(t, passed(), before)
				jobs[0].Nice = nice - c.Points + 2 // one for the fractions
				require.Equal(t, before, passed())
				return
			}
		}
		jobs[0].Nice = math.MinInt32
		require.Equal(t, before, passed(), "no nice value helps")
	})
}
