// SPDX-License-Identifier: GPL-2.0-or-later

package simulate

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

// scenario is a few jobs of accounts "a", "b" and "c", who have a third each, on
// nodes with 4 GPUs. Their owners are 0, 1 and 2.
func scenario(t *testing.T, policy string, nodes int, jobs ...Job) Config {
	t.Helper()
	p, err := DefaultPolicy(policy)
	require.NoError(t, err)
	w := &Workload{
		Begin:  time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC),
		Owners: []Owner{{"a", "ann"}, {"b", "bob"}, {"c", "cyd"}}, Jobs: jobs,
	}
	for i := range w.Jobs {
		if w.Jobs[i].Limit == 0 {
			w.Jobs[i].Limit = max(w.Jobs[i].Run, 1)
		}
	}
	w.Sort()
	return Config{Workload: w, Cluster: Cluster{Partitions: []Partition{{"", nodes, 4}}}, Budget: w.EqualBudget(), Policy: p}
}

// job runs for so many minutes, undeclared.
func job(owner int32, gpus int32, submit, minutes int64) Job {
	return Job{Owner: owner, GPUs: gpus, Submit: submit, Run: minutes * 60, MinRuntime: Undeclared}
}

// starts are the seconds of all starts, job by job.
func starts(t *testing.T, cfg Config) [][]int64 {
	t.Helper()
	_, stints := recorded(t, cfg)
	out := make([][]int64, len(cfg.Workload.Jobs))
	for _, s := range stints {
		out[s.Job] = append(out[s.Job], s.Start)
	}
	return out
}

func TestBackfillDoesNotDelayWhoWaits(t *testing.T) {
	long := job(0, 3, 0, 60)
	wide := job(0, 4, 10, 60)     // waits for the long one
	short := job(0, 1, 20, 30)    // is gone by then: it starts with the next full pass
	tooLong := job(0, 1, 30, 100) // is not
	cfg := scenario(t, "fifo", 1, long, wide, short, tooLong)
	require.Equal(t, [][]int64{{0}, {3600}, {30}, {7200}}, starts(t, cfg))
}

func TestTimeLimitsDecideWhatCanBeBackfilled(t *testing.T) {
	long, wide, short := job(0, 3, 0, 60), job(0, 4, 10, 60), job(0, 1, 20, 30)
	short.Limit = 7200 // nobody knows that it will be short
	require.Equal(t, [][]int64{{0}, {3600}, {7200}}, starts(t, scenario(t, "fifo", 1, long, wide, short)))
}

func TestGangsStartWhole(t *testing.T) {
	// Two GPUs on each of two nodes don't make four on one.
	cfg := scenario(t, "fifo", 2, job(0, 3, 0, 10), job(0, 3, 0, 20), job(0, 2, 5, 10))
	require.Equal(t, [][]int64{{0}, {0}, {600}}, starts(t, cfg))
	r, _ := recorded(t, cfg)
	require.InDelta(t, 2*595.0/3600, r.StrandedHours, 1e-9, "two idle, one on each node")
}

func TestBudgetsPutTheLeastServedFirst(t *testing.T) {
	hog := job(0, 4, 0, 60)
	again := job(0, 4, 1, 60)
	other := job(1, 4, 600, 60)
	for policy, want := range map[string][][]int64{
		"fifo": {{0}, {3600}, {7200}}, "gpubudget": {{0}, {7200}, {3600}}, "multifactor": {{0}, {7200}, {3600}},
	} {
		cfg := scenario(t, policy, 1, hog, again, other)
		require.Equal(t, want, starts(t, cfg), policy)
	}
}

func TestQuota(t *testing.T) {
	// A third of 12 GPUs is 4.
	cfg := scenario(t, "quota", 3, job(0, 4, 0, 60), job(0, 4, 0, 60), job(1, 4, 10, 60))
	require.Equal(t, [][]int64{{0}, {3600}, {10}}, starts(t, cfg), "the second waits though GPUs are idle")
	cfg = scenario(t, "overflow", 3, job(0, 4, 0, 60), job(0, 4, 0, 60), job(0, 4, 0, 60), job(1, 4, 1200, 60))
	got := starts(t, cfg)
	require.Equal(t, []int64{1200}, got[3], "b has quota left, and overflow yields to it")
	require.Equal(t, []int64{0}, got[0], "who is within his quota stays")
	require.Len(t, append(got[1], got[2]...), 3, "one of the others starts twice")
}

func TestContract(t *testing.T) {
	t.Run("protected for an hour, then it yields to who is behind", func(t *testing.T) {
		got := starts(t, scenario(t, "contract", 1, job(0, 4, 0, 300), job(1, 4, 600, 30)))
		require.Equal(t, []int64{0, got[1][0] + 1800}, got[0], "it goes on when the other has ended")
		require.GreaterOrEqual(t, got[1][0], int64(3600))
		require.LessOrEqual(t, got[1][0], int64(3600+300), "a priority pass later at most")
	})
	t.Run("what it saved it need not do again", func(t *testing.T) {
		cfg := scenario(t, "contract", 1, job(0, 4, 0, 300), job(1, 4, 600, 30))
		r, stints := recorded(t, cfg)
		evicted := stints[0]
		require.Equal(t, Preempted, evicted.Ended)
		saved := (evicted.End - evicted.Start) / 1800 * 1800
		require.Equal(t, 300*60-saved, stints[2].End-stints[2].Start)
		require.InDelta(t, 4*float64(evicted.End-evicted.Start-saved)/3600, r.LostHours, 1e-9)
		require.Equal(t, map[string]int{"R3": 1}, r.ByRule)
	})
	t.Run("unallocated at once", func(t *testing.T) {
		filler := job(0, 4, 0, 300)
		filler.MinRuntime = 0
		got := starts(t, scenario(t, "contract", 1, filler, job(0, 4, 600, 30)))
		require.Equal(t, [][]int64{{0, 2400}, {600}}, got)
	})
	t.Run("a declared minimum holds up to the cap", func(t *testing.T) {
		long := job(0, 4, 0, 1200)
		long.MinRuntime = 20 * 3600
		got := starts(t, scenario(t, "contract", 1, long, job(1, 4, 600, 30)))
		require.GreaterOrEqual(t, got[1][0], int64(8*3600))
		require.LessOrEqual(t, got[1][0], int64(8*3600+300))
	})
	t.Run("without it nobody yields", func(t *testing.T) {
		require.Equal(t, [][]int64{{0}, {300 * 60}}, starts(t, scenario(t, "gpubudget", 1, job(0, 4, 0, 300), job(1, 4, 600, 30))))
	})
	t.Run("a debug job of the same account goes first", func(t *testing.T) {
		debug := job(0, 1, 4000, 5)
		debug.QOS, debug.Debug, debug.MinRuntime = 100, true, 300
		cfg := scenario(t, "contract", 1, job(0, 2, 0, 300), job(0, 2, 0, 300), debug)
		got := starts(t, cfg)
		require.InDelta(t, 4000, got[2][0], 30)
		r, _ := recorded(t, cfg)
		require.Equal(t, map[string]int{"R4": 1}, r.ByRule)
	})
}

// An account without a share is unallocated, until a grant begins to bring it something.
func TestAGrantIsChargedAsLongAsItLasts(t *testing.T) {
	granted := func(hours int64) Config {
		before, within := job(0, 4, 0, 30), job(0, 4, 7200, 180)
		cfg := scenario(t, "contract", 1, before, within, job(1, 4, 10_800, 30))
		for i := range cfg.Budget.Accounts {
			a := &cfg.Budget.Accounts[i]
			switch a.Name {
			case "a":
				a.Share = Always(fairshare.Share(0))
				begin := fairshare.At(cfg.Workload.Begin) + 7_200_000
				a.Grants = []fairshare.Grant{{Period: fairshare.Period{From: begin, Until: begin + 36_000_000}, Amount: fairshare.GPUMillis(hours * 3_600_000)}}
			case "b":
				a.Share = Always(fairshare.Whole / 2)
			}
		}
		return cfg
	}
	r, stints := recorded(t, granted(1000))
	require.False(t, stints[0].Allocated, "nothing is due yet")
	require.True(t, stints[1].Allocated)
	require.Equal(t, "a", r.Accounts[0].Account)
	require.InDelta(t, 2, r.Accounts[0].UnallocHours, 1e-9)
	require.InDelta(t, 12, r.Accounts[0].Delivered, 1e-9, "b's job waits: a has had far less than it is due")
	_, stints = recorded(t, granted(0))
	require.False(t, stints[1].Allocated, "a grant of nothing brings nothing")
	require.Equal(t, Preempted, stints[1].Ended)
}

// In additive mode a job that has waited for long can come before one of an account
// that is further behind.
func TestAdditiveWeighsAgeAgainstFairShare(t *testing.T) {
	order := func(additive bool) bool {
		// a has used the node all the time; its next job has waited for five hours when b's come.
		cfg := scenario(t, "gpubudget", 1, job(0, 4, 0, 360), job(0, 4, 3600, 60), job(1, 4, 21_300, 60))
		cfg.Policy.Additive, cfg.Policy.FairshareWeight, cfg.Policy.AgeWeight, cfg.Policy.MaxAge = additive, 100, 100_000, 6*time.Hour
		got := starts(t, cfg)
		return got[1][0] < got[2][0]
	}
	require.True(t, order(true))
	require.False(t, order(false))
}

// But none that is unallocated, by what it asks for or for want of a budget, comes
// before one that is allocated, however long it has waited.
func TestAdditivePutsUnallocatedJobsLast(t *testing.T) {
	free := job(0, 4, 1800, 60)
	free.MinRuntime = 0
	for name, first := range map[string]Job{"asks for it": free, "has no budget": job(2, 4, 1800, 60)} {
		cfg := scenario(t, "contract", 1, job(1, 4, 0, 360), first, job(1, 4, 21_300, 60))
		cfg.Policy.Additive, cfg.Policy.FairshareWeight, cfg.Policy.AgeWeight, cfg.Policy.MaxAge = true, 100, 4_000_000_000, 6*time.Hour
		cfg.Budget.Accounts[slices.IndexFunc(cfg.Budget.Accounts, func(a fairshare.Account) bool { return a.Name == "c" })].Share = Always(fairshare.Share(0))
		got := starts(t, cfg)
		require.Equal(t, [][]int64{{0}, {25_200}, {21_600}}, got, name)
	}
}

func TestOutages(t *testing.T) {
	cfg := scenario(t, "fifo", 2, job(0, 4, 0, 120), job(0, 4, 0, 120))
	cfg.Cluster.Outages = []Outage{{Node: 0, From: 3600, Until: 7200}, {Node: 1, From: 3600, Until: 10_000, Drain: true}}
	r, stints := recorded(t, cfg)
	require.Equal(t, 1, r.NodeLosses)
	require.Equal(t, NodeLost, stints[0].Ended)
	require.Equal(t, int64(3600), stints[0].End)
	require.Equal(t, int64(7200), stints[1].End, "the node that drains lets its job end")
	require.Equal(t, int64(7200), stints[2].Start)
	require.InDelta(t, 8*10_800.0/3600-4*3600.0/3600-4*2800.0/3600, r.CapacityHours, 1e-9, "while it drains what its job holds is there")
}

func TestOutstanding(t *testing.T) {
	cfg := scenario(t, "fifo", 3, job(0, 4, 0, 60), job(0, 4, 0, 60), job(1, 4, 0, 60))
	cfg.Workload.Outstanding = []int{4, 0, 0}
	require.Equal(t, [][]int64{{0}, {3600}, {0}}, starts(t, cfg), "ann submits the second when the first is done")
	r, _ := recorded(t, cfg)
	require.Zero(t, r.Wait("all").P99)
}

func TestMisfits(t *testing.T) {
	cfg := scenario(t, "fifo", 2, job(0, 9, 0, 1), job(0, 5, 0, 1), job(2, 1, 0, 1))
	cfg.Budget = &fairshare.Budget{Accounts: []fairshare.Account{{Name: "a"}}}
	misfits := cfg.Workload.Misfits(&cfg.Cluster, cfg.Budget)
	require.Len(t, misfits, 2)
	require.EqualError(t, misfits[0], `job 0: it asks for 9 GPUs: expected 1 to 8, as many as the cluster has`)
	require.EqualError(t, misfits[1], `job 2: account "c" is not in the budget: did you mean a?`)
	_, err := Run(cfg)
	require.ErrorContains(t, err, "2 jobs cannot run, the first: job 0")
	cfg.Workload.Without(misfits)
	require.Len(t, cfg.Workload.Jobs, 1)
}

func TestMisfitsSayWhereAndWhatWasExpected(t *testing.T) {
	large, stranger, misspelt := job(0, 9, 0, 1), job(1, 1, 0, 1), job(2, 1, 0, 1)
	large.Line, large.GPUsColumn, large.AccountColumn = 7, 30, 5
	stranger.Line, stranger.GPUsColumn, stranger.AccountColumn = 8, 31, 6
	misspelt.Line = 9 // nobody knows the column
	cfg := scenario(t, "fifo", 2, large, stranger, misspelt)
	cfg.Cluster.Partitions[0].Name = "gpu"
	cfg.Budget = &fairshare.Budget{}
	for _, name := range []string{"root", "a", "vision", "language", "robotics", "genomics", "physics", "chemistry", "climate", "history"} {
		cfg.Budget.Accounts = append(cfg.Budget.Accounts, fairshare.Account{Name: name})
	}
	cfg.Workload.Owners[1].Account, cfg.Workload.Owners[2].Account = "speech", "visoin"
	var got []string
	for _, m := range cfg.Workload.Misfits(&cfg.Cluster, cfg.Budget) {
		got = append(got, m.Error())
	}
	require.Equal(t, []string{
		"line 7, column 30: it asks for 9 GPUs: expected 1 to 8, as many as partition gpu has",
		`line 8, column 6: account "speech" is not in the budget: expected one of a, vision, language, robotics, genomics, physics, chemistry, climate and 1 more`,
		`line 9: account "visoin" is not in the budget: did you mean vision?`,
	}, got)
}

func TestWithShare(t *testing.T) {
	cfg := scenario(t, "fifo", 1)
	b, err := WithShare(cfg.Budget, "b", fairshare.Whole/2)
	require.NoError(t, err)
	tree := b.Tree(0)
	require.InDelta(t, 0.25, tree.Nodes[1].ShareOfCluster, 1e-6)
	require.InDelta(t, 0.5, tree.Nodes[2].ShareOfCluster, 1e-6)
	require.InDelta(t, 0.25, tree.Nodes[3].ShareOfCluster, 1e-6)
	_, err = WithShare(cfg.Budget, "d", 1)
	require.EqualError(t, err, `account "d" is not in the budget`)
}

func TestGeneratorIsWhatItSays(t *testing.T) {
	g := DefaultGenerator()
	g.Days = 10
	w, b, err := g.Generate()
	require.NoError(t, err)
	require.Len(t, b.Accounts, 15)
	var shares fairshare.Share
	for _, a := range b.Accounts {
		shares += a.Share[0].Value
	}
	require.InDelta(t, float64(fairshare.Whole), float64(shares), 100)
	require.LessOrEqual(t, shares, fairshare.Whole)
	require.InDelta(t, 2.5, w.Load(1024), 0.3)
	again, _, err := g.Generate()
	require.NoError(t, err)
	require.Equal(t, w, again)
	g.Seed = 2
	other, _, err := g.Generate()
	require.NoError(t, err)
	require.NotEqual(t, w.Jobs, other.Jobs)
	g.Jobs, g.Load = 1000, 0.5
	few, _, err := g.Generate()
	require.NoError(t, err)
	require.Len(t, few.Jobs, 1000)
	require.InDelta(t, 0.5, few.Load(1024), 0.1)
}

// What an account above is owed and got contains what those below it were and did.
func TestAccountsBelowOthersAreNotCountedTwice(t *testing.T) {
	cfg := scenario(t, "gpubudget", 2, job(0, 4, 0, 60), job(1, 4, 0, 60))
	cfg.Budget = &fairshare.Budget{Accounts: []fairshare.Account{
		{Name: "a", Parent: Always("root"), Share: Always(fairshare.Whole), Users: []fairshare.Member{{User: "ann", In: Always(fairshare.EqualPart)}}},
		{Name: "b", Parent: Always("a"), Share: Always(fairshare.Whole / 2), Users: []fairshare.Member{{User: "bob", In: Always(fairshare.EqualPart)}}},
		{Name: "c", Parent: Always("root"), Share: Always(fairshare.Share(0))},
	}}
	r, _ := recorded(t, cfg)
	require.Len(t, r.Accounts, 3)
	require.InDelta(t, 8, r.OwedHours, 1e-9)
	require.InDelta(t, 8, r.DemandHours, 1e-9)
	require.InDelta(t, 100, r.DeliveredPercent, 1e-9)
}

// A ranking that puts all in the same places changes no priority, so that it makes
// no difference whether the order is worked out anew.
func TestSamePlaces(t *testing.T) {
	b := scenario(t, "fifo", 1).Budget
	b.Capacity = Always(4 * fairshare.GPU)
	rank := func(used ...int64) *fairshare.Ranking {
		in := fairshare.Input{Budget: b, Window: fairshare.Period{From: 0, Until: 1000}}
		for i, u := range used {
			in.Charges = append(in.Charges, fairshare.Charge{Period: in.Window, Account: string(rune('a' + i)), User: []string{"ann", "bob", "cyd"}[i], Amount: fairshare.GPUMillis(u)})
		}
		return fairshare.Rank(in)
	}
	require.True(t, samePlaces(rank(1, 2, 3), rank(10, 20, 30)))
	require.False(t, samePlaces(rank(1, 2, 3), rank(2, 1, 3)))
	require.False(t, samePlaces(rank(1, 2, 3), rank(1, 2, 2)))
	require.False(t, samePlaces(rank(1, 2, 3), fairshare.Rank(fairshare.Input{Budget: &fairshare.Budget{}})))
}

// An account's own minimum runtime is that of its jobs which declare none.
func TestAnAccountsOwnMinimumRuntime(t *testing.T) {
	declares := job(0, 1, 0, 600)
	declares.MinRuntime = 120
	cfg := scenario(t, "contract", 1, job(0, 1, 0, 600), job(1, 1, 0, 600), job(0, 1, 0, 2), declares)
	cfg.Policy.MinRuntimes = map[string]time.Duration{"a": 10 * time.Minute}
	s := newSim(&cfg)
	got := map[int64]int{}
	for i := range s.jobs {
		got[s.minRuntime(&s.jobs[i])]++
	}
	require.Equal(t, map[int64]int{600: 1, 3600: 1, 120: 2}, got)
}
