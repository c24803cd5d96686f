// SPDX-License-Identifier: GPL-2.0-or-later

package explain

import (
	"cmp"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/report"
	"gpubudget/usage"
)

const (
	hour = fairshare.Instant(3_600_000)
)

func period(from, until fairshare.Instant) fairshare.Period {
	return fairshare.Period{From: from * hour, Until: until * hour}
}

func percent(p int64) fairshare.Share { return fairshare.Whole / 100 * fairshare.Share(p) }

func throughout[T any](value T) []fairshare.Step[T] {
	return []fairshare.Step[T]{{Period: fairshare.Period{From: fairshare.Always, Until: fairshare.Never}, Value: value}}
}

func account(name, parent string, share int64, users ...fairshare.Member) fairshare.Account {
	return fairshare.Account{Name: name, Parent: throughout(parent), Share: throughout(percent(share)), Users: users}
}

func equal(user string) fairshare.Member {
	return fairshare.Member{User: user, In: throughout(fairshare.EqualPart)}
}

func charge(account, user string, p fairshare.Period, hours int64) fairshare.Charge {
	return fairshare.Charge{Period: p, Account: account, User: user, Amount: fairshare.GPUMillis(hours) * fairshare.GPUHour}
}

// record is a cluster of 10 GPUs, 100 hours after it began, with a lookback
// window as long.
func record(mode string, accounts ...fairshare.Account) *report.Record {
	w := period(0, 100)
	return &report.Record{
		Cluster: "titan", At: w.Until.Time(), Window: w, UsedUntil: w.Until.Time(),
		Policy: budgets.Policy{Mode: mode, Lookback: 100 * time.Hour},
		Budget: &fairshare.Budget{Accounts: accounts, Capacity: throughout(10 * fairshare.GPU)},
	}
}

func changeOf(t *testing.T, e *Explanation, kind Kind) Change {
	t.Helper()
	for _, c := range e.Changes {
		if c.Kind == kind {
			return c
		}
	}
	require.Fail(t, "no such change", "%s in %+v", kind, e.Changes)
	return Change{}
}

func explained(t *testing.T, rec *report.Record, s Subject) *Explanation {
	t.Helper()
	e, ok := Account(rec, s)
	require.True(t, ok)
	return e
}

// Two accounts are due 200 each. a used 300 in the first half of the window, 6
// an hour; b 100 in the second. Once 200 of a's have left the window, 33 hours
// and 20 minutes from now, both stand level, and a second later a is ahead.
func TestWhenPassing(t *testing.T) {
	rec := record(budgets.Strict, account("a", "root", 20, equal("u")), account("b", "root", 20, equal("v")))
	rec.Charged = []fairshare.Charge{charge("a", "u", period(0, 50), 300), charge("b", "v", period(50, 100), 100)}
	rec.Queue = []usage.Queue{{Account: "b", User: "v", PendingJobs: 3, PendingGPUs: 12}, {Account: "a", User: "u", PendingJobs: 1, PendingGPUs: 1}}

	e := explained(t, rec, Subject{Account: "a"})
	require.Equal(t, []Rival{{
		Account: "b", Rank: 1, Jobs: 3, GPUs: 12, First: Subject{Account: "b"},
		Why: Why{Cause: Tree, Parting: &Parting{Below: "root", Pair: Pair{
			Mine: Side{Account: "a", LevelFS: e.Path[1].LevelFS}, Theirs: Side{Account: "b", LevelFS: 2},
		}}},
	}}, e.Ahead)
	require.InDelta(t, 0.5/0.75, e.Path[1].LevelFS, 1e-9)
	require.Equal(t, 100*fairshare.GPUHour, changeOf(t, e, Balance).Amount)
	require.Equal(t, fairshare.Instant(100*3600+33*3600+20*60+1)*1000, changeOf(t, e, Wait).At)

	// To be level now a would have to have had three times b's share.
	c := changeOf(t, e, Share)
	require.Equal(t, []fairshare.Share{percent(60), percent(20), percent(80)}, []fairshare.Share{c.Share, c.Has, c.Free})

	require.Empty(t, explained(t, rec, Subject{Account: "b"}).Ahead, "nothing is ahead of b")
}

// What a itself runs ends, what b runs goes on.
func TestWhatRunsGoesOnElsewhere(t *testing.T) {
	rec := record(budgets.Strict, account("a", "root", 20, equal("u")), account("b", "root", 20, equal("v")))
	rec.Charged = []fairshare.Charge{charge("a", "u", period(99, 100), 100)}
	run := usage.Run{Account: "b", User: "v", GPUs: 4, Allocated: true, StartedAt: rec.At.Add(-20 * time.Hour)}
	rec.Open = []usage.Run{run}
	rec.Queue = []usage.Queue{{Account: "b", User: "v", PendingJobs: 1, PendingGPUs: 1}}
	// b has used 80, and 4 more each hour, and 0.4 ahead: 99.6 are reached after
	// 4.9 hours.
	require.Equal(t, fairshare.Instant((100*3600+4.9*3600+1)*1000), changeOf(t, explained(t, rec, Subject{Account: "a"}), Wait).At)

	run.Account, run.User = "a", "u"
	rec.Open = append(rec.Open, run)
	e := explained(t, rec, Subject{Account: "a"})
	require.Equal(t, (180-200)*fairshare.GPUHour, changeOf(t, e, Balance).Amount, "less than it is due")
	require.Equal(t, fairshare.Instant((100*3600+(180-80-0.4)/4*3600+1)*1000), changeOf(t, e, Wait).At)
}

func TestNoWayToPass(t *testing.T) {
	rec := record(budgets.Strict, account("a", "root", 20, equal("u")), account("b", "root", 20, equal("v")))
	rec.Charged = []fairshare.Charge{charge("a", "u", period(99, 100), 100)}
	rec.Queue = []usage.Queue{{Account: "b", User: "v", PendingJobs: 1, PendingGPUs: 1}}
	e := explained(t, rec, Subject{Account: "a"})
	require.Zero(t, changeOf(t, e, Wait).At, "b has used nothing: at best a will be level")
	for _, c := range e.Changes {
		require.NotEqual(t, Share, c.Kind, "no share makes up for that")
	}
}

// Where paths part above the account it is the program that has to wait, and
// all that runs below it.
func TestPartingHigherUp(t *testing.T) {
	rec := record(budgets.Strict, account("p", "root", 50), account("p1", "p", 50, equal("u")), account("p2", "p", 50, equal("w")),
		account("q", "root", 50, equal("v")))
	rec.Charged = []fairshare.Charge{charge("p2", "w", period(0, 50), 600), charge("q", "v", period(50, 100), 300)}
	rec.Queue = []usage.Queue{{Account: "q", User: "v", PendingJobs: 1, PendingGPUs: 1}}
	e := explained(t, rec, Subject{Account: "p1"})
	why := e.Ahead[0].Why.Parting
	require.Equal(t, []string{"root", "p", "q"}, []string{why.Below, why.Mine.Account, why.Theirs.Account})
	require.True(t, math.IsInf(e.Path[2].LevelFS, 1))
	require.Equal(t, []int{0, 2, 1}, []int{e.Path[0].Place, e.Path[1].Place, e.Path[2].Place})
	require.Equal(t, 100*fairshare.GPUHour, changeOf(t, e, Balance).Amount)
	require.Equal(t, fairshare.Instant(100*3600+25*3600)*1000, changeOf(t, e, Wait).At, "of two equal programs the users are ranked together, and p1 has used nothing")
}

// Users of one account are compared with each other, in strict priority after
// their account as a whole; in additive priority among its child accounts.
func TestUsersAndChildAccounts(t *testing.T) {
	accounts := []fairshare.Account{account("p", "root", 50, equal("u"), equal("v")), account("p1", "p", 40, equal("w")), account("q", "root", 50, equal("x"))}
	charged := []fairshare.Charge{charge("p", "u", period(0, 50), 300), charge("p", "v", period(50, 100), 100), charge("p1", "w", period(0, 100), 50)}
	queue := []usage.Queue{
		{Account: "p", User: "v", PendingJobs: 1, PendingGPUs: 1}, {Account: "p1", User: "w", PendingJobs: 2, PendingGPUs: 2},
		{Account: "q", User: "x", PendingJobs: 4, PendingGPUs: 4},
	}
	rec := record(budgets.Strict, accounts...)
	rec.Charged, rec.Queue = charged, queue
	e := explained(t, rec, Subject{"p", "u"})
	require.Equal(t, []Side{
		{Account: "root", LevelFS: 1}, {Account: "p", LevelFS: e.Path[1].LevelFS},
		{Account: "p", Users: true, LevelFS: e.Path[2].LevelFS}, {Account: "p", User: "u", LevelFS: e.Path[3].LevelFS},
	}, []Side{e.Path[0].Side, e.Path[1].Side, e.Path[2].Side, e.Path[3].Side})
	require.Equal(t, [][2]int{{0, 0}, {2, 2}, {2, 2}, {2, 2}}, places(e))
	require.Equal(t, 300*fairshare.GPUHour, e.Path[2].Entitled)
	require.Equal(t, 400*fairshare.GPUHour, e.Path[2].Used)
	require.Equal(t, "q p1 p/v", rivalNames(e))
	require.Equal(t, User, e.Ahead[2].Why.Cause)
	// v, the nearest of the own account, is due as much and has used 100.
	wait := e.Changes[len(e.Changes)-2]
	require.Equal(t, Wait, wait.Kind)
	require.Equal(t, []string{"u", "v"}, []string{wait.Mine.User, wait.Theirs.User})
	require.Equal(t, fairshare.Instant(100*3600+33*3600+20*60+1)*1000, wait.At)

	rec.Policy.Mode = budgets.Additive
	e = explained(t, rec, Subject{"p", "u"})
	require.Equal(t, [][2]int{{0, 0}, {2, 2}, {3, 3}}, places(e))
	require.Equal(t, 4, e.Path[2].Rank)
	require.InDelta(t, 0.25, e.Path[2].Factor, 1e-12)
}

func places(e *Explanation) (out [][2]int) {
	for _, l := range e.Path {
		out = append(out, [2]int{l.Place, l.Of})
	}
	return out
}

func rivalNames(e *Explanation) (names string) {
	for i, r := range e.Ahead {
		if i > 0 {
			names += " "
		}
		names += r.First.Account
		if r.Why.Cause == User {
			names += "/" + r.First.User
		}
	}
	return names
}

func TestUnfundedAndGuest(t *testing.T) {
	rec := record(budgets.Strict, account("a", "root", 0, equal("u")), account("b", "root", 20, equal("v")))
	rec.Queue = []usage.Queue{{Account: "b", User: "v", PendingJobs: 1, PendingGPUs: 1}, {Account: "stray", User: "z", PendingJobs: 1}}
	rec.Charged = []fairshare.Charge{charge("b", "v", period(0, 10), 10), charge("b", "g", period(0, 10), 7)}
	e := explained(t, rec, Subject{Account: "a"})
	require.Len(t, e.Ahead, 1)
	require.Equal(t, Funded, e.Ahead[0].Why.Cause)
	require.Equal(t, "a", changeOf(t, e, Unfunded).Mine.Account)

	e = explained(t, rec, Subject{"b", "g"})
	require.True(t, e.Guest)
	require.Equal(t, 7*fairshare.GPUHour, e.Path[2].Used)
	require.Equal(t, "v", e.Ahead[0].First.User)
	require.Equal(t, Guest, e.Ahead[0].Why.Cause)

	_, ok := Account(rec, Subject{Account: "stray"})
	require.False(t, ok)
}

// A job in an account that has child accounts only comes after all that have a
// rank; the account itself is placed among its siblings.
func TestAccountWithoutUsers(t *testing.T) {
	for _, mode := range []string{budgets.Strict, budgets.Additive} {
		rec := record(mode, account("p", "root", 50), account("p1", "p", 40, equal("u")), account("q", "root", 20, equal("v")))
		rec.Charged = []fairshare.Charge{charge("q", "v", period(0, 10), 10), charge("p", "g", period(0, 10), 1), charge("p1", "u", period(0, 10), 1)}
		rec.Queue = []usage.Queue{{Account: "q", User: "v", PendingJobs: 1, PendingGPUs: 1}, {Account: "p1", User: "u", PendingJobs: 1, PendingGPUs: 1}}
		require.Empty(t, explained(t, rec, Subject{Account: "p"}).Ahead)
		e := explained(t, rec, Subject{"p", "g"})
		require.Equal(t, "p1 q", rivalNames(e))
		for _, r := range e.Ahead {
			require.Equal(t, Why{Cause: Guest}, r.Why)
		}
	}
}

// pending makes a job of strict priority out of its columns.
func pending(id uint32, s Subject, partition string, fairshareColumn, qos float64, nice int64, age float64) Pending {
	f := fairshare.Factors{Fairshare: fairshareColumn, QOS: qos, Nice: nice, Age: age}
	f.Priority = uint32(f.Sum())
	return Pending{JobID: id, Owner: s, Partition: partition, Tasks: 1, GPUs: 2, Nice: nice, Factors: f}
}

func TestJobsAhead(t *testing.T) {
	rec := record(budgets.Strict, account("a", "root", 20, equal("u"), equal("w")), account("b", "root", 20, equal("v")))
	rec.Charged = []fairshare.Charge{charge("a", "u", period(0, 50), 300), charge("b", "v", period(50, 100), 100)}
	u, w, v := Subject{"a", "u"}, Subject{"a", "w"}, Subject{"b", "v"}
	job := []Pending{pending(10, u, "gpu", 1000, 500, 0, 50)}
	byHand := Pending{JobID: 1, Owner: w, Partition: "gpu", Tasks: 1, GPUs: 1}
	byHand.Factors.Priority = 1_000_000
	array := pending(2, v, "gpu", 9000, 0, 700, 0)
	array.Tasks = 5
	all := append([]Pending{
		byHand,
		array,
		pending(3, v, "gpu", 9000, 0, 600, 0),
		pending(4, v, "cpu", 9000, 0, 0, 0), // not where the job could run
		pending(5, u, "gpu", 1000, 800, 10, 0),
		pending(6, u, "gpu", 1000, 500, -100, 0),
		pending(7, w, "gpu", 1100, 500, 0, 0),
		pending(8, u, "gpu", 1000, 500, 0, 60),
		pending(9, u, "gpu", 1000, 500, 0, 50),  // as high, and earlier
		pending(11, u, "gpu", 1000, 500, 0, 50), // as high, and later
		pending(12, u, "gpu", 1000, 400, 0, 60), // lower
	}, job...)

	e, ok := Job(rec, job, all)
	require.True(t, ok)
	var got []string
	for _, r := range e.Ahead {
		got = append(got, fmt.Sprint(r.Account, " ", r.Why.Cause, " ", r.Why.Column, " ", r.Jobs, " ", r.GPUs))
	}
	require.Equal(t, []string{
		"a set_by_hand  1 1", "b tree  6 12", "a qos QOS 1 2", "a nice NICE 1 2", "a user  1 2", "a column AGE 1 2", "a earlier  1 2",
	}, got)
	require.EqualValues(t, 6, changeOf(t, e, Within).Jobs)

	// In another partition besides, each job counts once.
	more := pending(10, u, "cpu", 1000, 500, 0, 50)
	e, _ = Job(rec, append(job, more), append(all, more, pending(3, v, "cpu", 9000, 0, 600, 0)))
	require.EqualValues(t, 7, e.Ahead[1].Jobs)
}

// In additive priority the column decides that makes the greatest difference.
func TestJobsAheadBySum(t *testing.T) {
	rec := record(budgets.Additive, account("a", "root", 20, equal("u")), account("b", "root", 20, equal("v")))
	rec.Charged = []fairshare.Charge{charge("a", "u", period(0, 50), 300), charge("b", "v", period(50, 100), 100)}
	u, v := Subject{"a", "u"}, Subject{"b", "v"}
	job := []Pending{pending(10, u, "gpu", 500, 0, 0, 50)}
	e, ok := Job(rec, job, append([]Pending{pending(1, v, "gpu", 1000, 0, 100, 0), pending(2, v, "gpu", 1000, 3000, 0, 0), pending(3, u, "gpu", 500, 0, -80, 0)}, job...))
	require.True(t, ok)
	require.Equal(t, []Why{
		{Cause: Column, Column: "QOS", Points: 3000},
		{Cause: Column, Column: "FAIRSHARE", Points: 500, Parting: &Parting{Below: "root", Pair: Pair{
			Mine: Side{Account: "a", LevelFS: e.Path[1].LevelFS}, Theirs: Side{Account: "b", LevelFS: 2}}}},
		{Cause: Column, Column: "NICE", Points: 80},
	}, []Why{e.Ahead[0].Why, e.Ahead[1].Why, e.Ahead[2].Why})
	require.EqualValues(t, 31, changeOf(t, e, Points).Points, "80 of job 3 are to be outdone, 50 of age are there")
	require.Equal(t, fairshare.Instant(100*3600+33*3600+20*60+1)*1000, changeOf(t, e, Wait).At)
}

// drawRecord is a small tree in which ties are frequent.
func drawRecord(t *rapid.T) *report.Record {
	rec := record(rapid.SampledFrom([]string{budgets.Strict, budgets.Additive}).Draw(t, "mode"))
	names, left := []string{fairshare.RootAccount}, map[string]int64{fairshare.RootAccount: 100}
	for i := range rapid.IntRange(1, 8).Draw(t, "accounts") {
		name, parent := fmt.Sprint("a", i), rapid.SampledFrom(names).Draw(t, "parent")
		share := min(rapid.SampledFrom([]int64{0, 25, 25, 50}).Draw(t, "share"), left[parent])
		left[parent] -= share
		a := account(name, parent, share)
		for j := range rapid.IntRange(0, 2).Draw(t, "users") {
			a.Users = append(a.Users, equal(fmt.Sprint("u", j)))
			if hours := rapid.SampledFrom([]int64{0, 0, 50, 100}).Draw(t, "hours"); hours > 0 {
				rec.Charged = append(rec.Charged, charge(name, fmt.Sprint("u", j), rapid.SampledFrom([]fairshare.Period{
					period(0, 100), period(0, 100), period(0, 50), period(50, 100),
				}).Draw(t, "period"), hours))
			}
		}
		rec.Budget.Accounts = append(rec.Budget.Accounts, a)
		names, left[name] = append(names, name), 100
	}
	return rec
}

// Where two paths part agrees with who is ranked first, for accounts and for
// users.
func TestPartingAgreesWithRank(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rec := drawRecord(t)
		r := fairshare.Rank(rec.Input())
		check := func(mine, theirs Subject, pooled bool, ranks int) {
			p, parted := part(r, mine, theirs, pooled)
			require.True(t, parted, "%v and %v", mine, theirs)
			if o := p.Order(); o != 0 && isLeafOrSame(p) {
				require.Equal(t, o, ranks, "%v and %v part so: %+v", mine, theirs, p)
			}
			if ranks != 0 {
				require.NotEqual(t, -ranks, p.Order(), "%v and %v part so: %+v", mine, theirs, p)
			}
			require.NotEmpty(t, p.Below)
		}
		for i := range r.Accounts {
			for j := range r.Accounts {
				if a, b := &r.Accounts[i], &r.Accounts[j]; i != j && a.Rank > 0 && b.Rank > 0 && a.Direct.Members > 0 && b.Direct.Members > 0 {
					check(Subject{Account: a.Name}, Subject{Account: b.Name}, true, cmp.Compare(b.Rank, a.Rank))
				}
			}
		}
		for i := range r.Users {
			for j := range r.Users {
				if u, v := &r.Users[i], &r.Users[j]; i != j {
					check(Subject{u.Account, u.User}, Subject{v.Account, v.User}, false, cmp.Compare(v.Rank, u.Rank))
				}
			}
		}
	})
}

// isLeafOrSame tells that no account equal to a user was met on the way, whose
// best user shares that one's rank.
func isLeafOrSame(p Parting) bool {
	for _, tied := range p.Tied {
		if isAccount(tied.Mine) != isAccount(tied.Theirs) {
			return false
		}
	}
	return true
}

// Nothing that is listed as ahead stands behind, and whoever waits the time that
// is named does pass.
func TestAheadAndWaitHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rec := drawRecord(t)
		for _, a := range rec.Budget.Accounts {
			for _, u := range a.Users {
				rec.Queue = append(rec.Queue, usage.Queue{Account: a.Name, User: u.User, PendingJobs: 1, PendingGPUs: 1})
			}
		}
		r := fairshare.Rank(rec.Input())
		strict := rec.Policy.Mode == budgets.Strict
		for _, a := range rec.Budget.Accounts {
			s := Subject{Account: a.Name}
			e, ok := Account(rec, s)
			require.True(t, ok)
			for _, rival := range e.Ahead {
				require.Negative(t, order(r, strict, s, rival.First))
			}
			for _, c := range e.Changes {
				if c.Kind == Wait && c.At > 0 {
					f := newExplainer(rec, s).future(c.Mine, c.Rival)
					require.Positive(t, order(fairshare.Rank(f.at(c.At)), strict, s, c.Rival))
					require.LessOrEqual(t, order(fairshare.Rank(f.at(c.At-1000)), strict, s, c.Rival), 0)
				}
				if c.Kind == Share {
					in := rec.Input()
					in.Budget = withShare(rec.Budget, c.Mine, c.Share)
					require.GreaterOrEqual(t, order(fairshare.Rank(in), strict, s, c.Rival), 0)
					in.Budget = withShare(rec.Budget, c.Mine, c.Share-shareStep)
					require.Negative(t, order(fairshare.Rank(in), strict, s, c.Rival))
				}
			}
		}
	})
}
