// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
)

// strictOf prepares strict priorities for jobs that have all been seen.
func strictOf(r *fairshare.Ranking, w fairshare.Weights, jobs []fairshare.Job) *fairshare.Strict {
	var seen fairshare.Seen
	for i := range jobs {
		seen.Add(&jobs[i])
	}
	return fairshare.NewStrict(r, w, cluster, &seen)
}

// ladder is a ranking with everything in it: behind is the most under-served,
// then equal1 and equal2, then ahead; free isn't funded.
func ladder() *fairshare.Ranking {
	w := hours(0, 10)
	b := budget(100,
		account("behind", "root", 25, equal("u"), equal("v")),
		account("equal1", "root", 25, equal("u"), equal("v")),
		account("equal2", "root", 25, equal("u")),
		account("ahead", "root", 25, equal("u"), equal("v"), equal("w")),
		account("free", "root", 0, equal("u")))
	return fairshare.Rank(fairshare.Input{Budget: b, Window: w, Charges: []fairshare.Charge{
		charge("behind", "u", w, 10), charge("equal1", "u", w, 100), charge("equal2", "u", w, 100),
		charge("ahead", "u", w, 200), charge("ahead", "v", w, 100), charge("free", "u", w, 7),
	}})
}

func TestStrictOrder(t *testing.T) {
	job := func(account, user string, qos uint32, nice, age int64) fairshare.Job {
		return fairshare.Job{Account: account, User: user, QOSPriority: qos, Nice: nice, Age: age}
	}
	unallocated := func(job fairshare.Job) fairshare.Job {
		job.Unallocated = true
		return job
	}
	// From the first to the last; jobs of one line are equal.
	order := [][]fairshare.Job{
		{job("behind", "u", 50, 0, 9)},
		{job("behind", "v", 10, -100, 0)},
		{job("behind", "v", 10, 0, 9)},
		{job("behind", "v", 10, 0, 5)},
		{job("behind", "u", 10, 0, 9)},
		{job("behind", "stranger", 10, 0, 9)},
		{job("behind", "v", 10, math.MaxInt32, 9)},
		{job("behind", "v", 0, -100, 9)},
		{job("equal1", "v", 50, 0, 9), job("equal2", "u", 50, 0, 9)},
		{job("equal1", "u", 50, 0, 9)},
		{job("ahead", "w", 50, 0, 9)},
		{job("ahead", "v", 50, 0, 9)},
		{job("ahead", "u", 50, 0, 9)},
		{unallocated(job("behind", "v", 50, 0, 9)), unallocated(job("behind", "u", 50, 0, 9))},
		{unallocated(job("behind", "u", 10, -100, 9))},
		{unallocated(job("behind", "u", 10, 0, 9))},
		{unallocated(job("equal1", "u", 1000, -100, 9)), unallocated(job("equal2", "u", 1000, -100, 9))},
		{job("free", "u", 1000, -100, 9), unallocated(job("free", "u", 1000, -100, 9))},
		{unallocated(job("free", "u", 10, 0, 9))},
		{job("nobody", "u", 1000, -100, 9), job("", "u", 1000, -100, 9), job("", "", 1000, -100, 9)},
		{job("nobody", "u", 0, math.MaxInt32, 0)},
	}
	var jobs []fairshare.Job
	for _, equals := range order {
		jobs = append(jobs, equals...)
	}
	s := strictOf(ladder(), fairshare.Weights{Age: 1000, MaxAge: 10}, jobs)
	last := uint32(math.MaxUint32)
	for _, equals := range order {
		var priorities []uint32
		for i := range equals {
			var f fairshare.Factors
			s.Priority(&equals[i], &f)
			priorities = append(priorities, f.Priority)
		}
		require.Less(t, priorities[0], last, "%+v", equals[0])
		require.Len(t, slices.Compact(priorities), 1, "%+v", equals)
		last = priorities[0]
	}
	require.GreaterOrEqual(t, last, uint32(1))
}

// Where no job of an account was seen that asks to be unallocated, one comes after
// all known accounts until the next pass. Either way it has nothing in the column
// of its account, by which it is known in sprio.
func TestStrictUnallocatedUnseen(t *testing.T) {
	first := fairshare.Job{Account: "behind", User: "u", QOSPriority: 50, Unallocated: true}
	last := fairshare.Job{Account: "free", User: "u"}
	seen := []fairshare.Job{last}
	for _, first.Nice = range []int64{0, 7} {
		for range 2 {
			s := strictOf(ladder(), fairshare.Weights{Age: 1000, MaxAge: 10}, seen)
			var f, g fairshare.Factors
			s.Priority(&first, &f)
			s.Priority(&last, &g)
			requireColumns(t, &f)
			require.Zero(t, f.Fairshare)
			require.Equal(t, len(seen) > 1, f.Priority > g.Priority)
			seen = append(seen, first)
		}
		seen = seen[:1]
	}
}

// The columns of sprio: round numbers that can be read.
func TestStrictColumns(t *testing.T) {
	jobs := []fairshare.Job{
		{Account: "ahead", User: "w", QOSPriority: 0, Age: 5, MinNodes: 50, TRES: []float64{0.5}},
		{Account: "ahead", User: "w", QOSPriority: 10, Nice: 10, Age: 10, MinNodes: 100, AssocFactor: 1, PartitionFactor: 1, TRES: []float64{1}},
	}
	w := fairshare.Weights{Age: 40, JobSize: 30, Assoc: 10, Partition: 10, TRES: []float64{10}, MaxAge: 10}
	s := strictOf(ladder(), w, jobs)
	var f fairshare.Factors

	// 5 steps of QOS (below 0, 0, between, 10, above) of 5 steps of nice of up to
	// 4 steps of users (in ahead: u, v, w and strangers), each of 1,000,000 steps
	// of the rest. Below ahead are the accounts nowhere (1 user step, 5·3 others;
	// nobody there had a nice of 10), root (1) and free (2).
	const below = (5*3*1 + 5*3*1 + 5*3*2) * 1_000_000
	s.Priority(&jobs[0], &f)
	require.Equal(t, fairshare.Factors{
		// 3 steps of nice are below 0, each of 4 users; w is the third above 0.
		Fairshare: 1 + below + 3*4*1_000_000 + 3*1_000_000,
		QOS:       1 * 5 * 4 * 1_000_000,
		Age:       199_999, JobSize: 149_999, TRES: []float64{49_999},
		Priority: uint32(f.Sum()),
	}, f)

	s.Priority(&jobs[1], &f)
	require.Equal(t, fairshare.Factors{
		Fairshare: 1 + below + 3*4*1_000_000 + 3*1_000_000,
		QOS:       3 * 5 * 4 * 1_000_000,
		Nice:      2 * 4 * 1_000_000,
		Age:       399_999, JobSize: 299_999, Assoc: 99_999, Partition: 99_999, TRES: []float64{99_999},
		Priority: uint32(f.Sum()),
	}, f)
}

// Nothing in slurm.conf says how to weigh the rest: the longest wait is first.
func TestStrictWithoutWeightsGoesByAge(t *testing.T) {
	s := strictOf(ladder(), fairshare.Weights{MaxAge: 100}, nil)
	var young, old fairshare.Factors
	s.Priority(&fairshare.Job{Account: "behind", User: "u", Age: 10}, &young)
	s.Priority(&fairshare.Job{Account: "behind", User: "u", Age: 20, MinNodes: 1}, &old)
	require.Greater(t, old.Priority, young.Priority)
}

func TestStrictParts(t *testing.T) {
	job := fairshare.Job{
		Account: "behind", User: "u", PartitionFactor: 0.5, Age: 5, TRES: []float64{0.5},
		Parts: []fairshare.JobPart{{Factor: 0.5, TRES: []float64{0.5}}, {Factor: 1, TRES: []float64{0.1}}, {Factor: 0}},
	}
	w := fairshare.Weights{Age: 10, Partition: 1000, TRES: []float64{10}, MaxAge: 10}
	s := strictOf(ladder(), w, []fairshare.Job{job})
	var f fairshare.Factors
	s.Priority(&job, &f)
	require.Equal(t, f.Priority, job.Parts[0].Priority)
	require.Greater(t, job.Parts[1].Priority, f.Priority)
	require.Less(t, job.Parts[2].Priority, f.Priority)
	require.EqualValues(t, float64(f.Priority)-f.Partition-f.TRES[0], job.Parts[2].Priority)
}

// Site factors, and raw factors, count from the lowest to the highest seen.
func TestStrictRawFactors(t *testing.T) {
	jobs := make([]fairshare.Job, 5)
	for i := range jobs {
		jobs[i] = fairshare.Job{Account: "behind", User: "u", Site: int64(i*100 - 250)}
	}
	s := strictOf(ladder(), fairshare.Weights{Age: 100, MaxAge: 100}, jobs)
	requireRising(t, s, jobs)
	var f fairshare.Factors
	s.Priority(&fairshare.Job{Account: "behind", User: "u", Site: math.MinInt64}, &f)
	require.Zero(t, f.Site)

	for i := range jobs {
		jobs[i] = fairshare.Job{Account: "behind", User: "u", PartitionFactor: float64(i * 1000), TRES: []float64{float64(i * 64)}}
	}
	w := fairshare.Weights{Partition: 1, TRES: []float64{1}, Flags: fairshare.NoNormalPart | fairshare.NoNormalTRES}
	requireRising(t, strictOf(ladder(), w, jobs), jobs)

	job := fairshare.Job{Account: "behind", User: "u", Site: 500, Parts: []fairshare.JobPart{{Factor: 1000}, {Factor: 2000}, {Factor: 65_533}}}
	strictOf(ladder(), w, []fairshare.Job{job, {Site: 900}}).Priority(&job, &f)
	require.Zero(t, f.Site, "it is the lowest")
	require.Less(t, job.Parts[0].Priority, job.Parts[1].Priority)
	require.Less(t, job.Parts[1].Priority, job.Parts[2].Priority)
}

func requireRising(t *testing.T, s *fairshare.Strict, jobs []fairshare.Job) {
	t.Helper()
	var last fairshare.Factors
	for i := range jobs {
		var f fairshare.Factors
		s.Priority(&jobs[i], &f)
		require.Greater(t, f.Priority, last.Priority, "job %d", i)
		last = f
	}
}

// Weights too small to divide by.
func TestStrictTinyWeights(t *testing.T) {
	job := fairshare.Job{Account: "behind", User: "u", Age: 10, TRES: []float64{1}}
	s := strictOf(ladder(), fairshare.Weights{TRES: []float64{math.SmallestNonzeroFloat64}}, []fairshare.Job{job})
	var f fairshare.Factors
	s.Priority(&job, &f)
	requireColumns(t, &f)
}

// A nil Seen, and jobs with values that were never seen.
func TestStrictUnseen(t *testing.T) {
	s := fairshare.NewStrict(ladder(), fairshare.Weights{Age: 1, MaxAge: 1}, cluster, nil)
	priority := func(nice int64, qos uint32) uint32 {
		var f fairshare.Factors
		s.Priority(&fairshare.Job{Account: "ahead", User: "u", Nice: nice, QOSPriority: qos}, &f)
		requireColumns(t, &f)
		return f.Priority
	}
	require.Greater(t, priority(0, 0), priority(1, 0))
	require.Equal(t, priority(1, 0), priority(math.MaxInt64, 0))
	require.Less(t, priority(0, 0), priority(-1, 0))
	require.Equal(t, priority(0, 0), priority(0, math.MaxUint32), "no QOS was seen, so none is told apart")
}

func requireColumns(t require.TestingT, f *fairshare.Factors) {
	columns := append([]float64{f.Age, f.Assoc, f.Fairshare, f.JobSize, f.Partition, f.QOS}, f.TRES...)
	sum := f.Site - f.Nice
	for _, x := range columns {
		require.Equal(t, x, math.Trunc(x))
		require.True(t, x >= 0 && x <= math.MaxUint32, "column %v", x)
		sum += int64(x)
	}
	require.EqualValues(t, f.Priority, sum)
	require.Equal(t, float64(f.Priority), f.Sum())
	require.True(t, f.Priority >= 1 && f.Priority <= fairshare.MaxStrict, "priority %v", f.Priority)
	require.True(t, f.Nice >= math.MinInt32 && f.Nice <= math.MaxInt32, "nice %v", f.Nice)
	require.True(t, f.Site >= 0 && f.Site <= math.MaxInt32, "site %v", f.Site)
}

// drawJob is a job of any account and user, known or not.
func drawJob(t *rapid.T, r *fairshare.Ranking) fairshare.Job {
	accounts := []string{"", "nobody"}
	for _, a := range r.Accounts {
		accounts = append(accounts, a.Name)
	}
	unit := rapid.Float64Range(0, 1)
	return fairshare.Job{
		Account:     rapid.SampledFrom(accounts).Draw(t, "account"),
		User:        fmt.Sprint("u", rapid.IntRange(0, 3).Draw(t, "user")),
		QOSPriority: rapid.OneOf(rapid.Uint32Range(0, 3), rapid.Uint32()).Draw(t, "qos"),
		Nice:        rapid.OneOf(rapid.Int64Range(-2, 2), rapid.Map(rapid.Int32(), func(n int32) int64 { return int64(n) })).Draw(t, "nice"),
		Site:        rapid.Int64Range(-1000, 1000).Draw(t, "site"),
		Age:         rapid.Int64Range(0, 2000).Draw(t, "age"),
		MinNodes:    rapid.Uint32Range(0, 200).Draw(t, "nodes"),
		CPUs:        rapid.Uint32Range(0, 10_000).Draw(t, "cpus"),
		AssocFactor: unit.Draw(t, "assoc"), PartitionFactor: unit.Draw(t, "partition"), QOSFactor: unit.Draw(t, "qos factor"),
		TRES:        []float64{unit.Draw(t, "tres"), unit.Draw(t, "tres")},
		Unallocated: rapid.IntRange(0, 3).Draw(t, "unallocated") == 0,
	}
}

func drawWeights(t *rapid.T) fairshare.Weights {
	weight := rapid.OneOf(rapid.Just(uint32(0)), rapid.Uint32Range(1, 10_000), rapid.Uint32())
	return fairshare.Weights{
		Age: weight.Draw(t, "age"), Assoc: weight.Draw(t, "assoc"), Fairshare: weight.Draw(t, "fairshare"),
		JobSize: weight.Draw(t, "size"), Partition: weight.Draw(t, "partition"), QOS: weight.Draw(t, "qos"),
		TRES: []float64{float64(weight.Draw(t, "tres")), float64(weight.Draw(t, "tres"))}, MaxAge: 1000,
	}
}

// comparePlace says which job is first by the rule, but for the rest.
func comparePlace(r *fairshare.Ranking, x, y *fairshare.Job) int {
	place := func(job *fairshare.Job) []int64 {
		a, known := r.Account(job.Account)
		if !known {
			return []int64{0, 0, 0, int64(job.QOSPriority), -job.Nice, 0}
		}
		const unfunded, unallocated, allocated = 1, 2, 3
		var user int64 = -1 << 40
		if u, ok := r.User(job.Account, job.User); ok {
			user = int64(-u.Level)
		}
		kind := int64(unfunded)
		switch {
		case a.Funded && job.Unallocated:
			kind, user = unallocated, 0
		case a.Funded:
			kind = allocated
		}
		bit := map[bool]int64{true: 1}
		return []int64{kind, bit[a.Rank > 0], int64(-a.Rank), int64(job.QOSPriority), -job.Nice, user}
	}
	return slices.Compare(place(x), place(y))
}

func TestStrictIsLexicographic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		if rapid.Bool().Draw(t, "plain") {
			b := drawTree(t)
			in = fairshare.Input{Budget: b, Window: window, Charges: drawUse(t, b, newOracle(b).exactTree())}
		}
		r := fairshare.Rank(in)
		jobs := make([]fairshare.Job, rapid.IntRange(2, 12).Draw(t, "jobs"))
		for i := range jobs {
			jobs[i] = drawJob(t, r)
		}
		s := strictOf(r, drawWeights(t), jobs)
		priorities := make([]uint32, len(jobs))
		for i := range jobs {
			var f fairshare.Factors
			s.Priority(&jobs[i], &f)
			requireColumns(t, &f)
			priorities[i] = f.Priority
		}
		for i := range jobs {
			for j := range jobs {
				if want := comparePlace(r, &jobs[i], &jobs[j]); want != 0 {
					require.Equal(t, want, cmp.Compare(priorities[i], priorities[j]), "%+v\n%+v", jobs[i], jobs[j])
				}
			}
		}
	})
}

// Within one place more age never means less priority, and it counts.
func TestStrictRestRises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := ladder()
		job := drawJob(t, r)
		w := drawWeights(t)
		s := strictOf(r, w, []fairshare.Job{job})
		older, larger := job, job
		older.Age += rapid.Int64Range(0, 5000).Draw(t, "more")
		larger.MinNodes += rapid.Uint32Range(0, 100).Draw(t, "larger")
		var f, g, h fairshare.Factors
		s.Priority(&job, &f)
		s.Priority(&older, &g)
		s.Priority(&larger, &h)
		require.GreaterOrEqual(t, g.Priority, f.Priority)
		require.GreaterOrEqual(t, h.Priority, f.Priority)
		requireColumns(t, &g)
		requireColumns(t, &h)
	})
}

// Values that were not seen lie between those that were.
func TestStrictPlacesUnseenBetweenNeighbours(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.Int64Range(0, 20)
		seen := rapid.SliceOf(value).Draw(t, "seen")
		jobs := make([]fairshare.Job, len(seen))
		for i, v := range seen {
			jobs[i] = fairshare.Job{Account: "ahead", User: "u", Nice: v - 10, QOSPriority: uint32(v)}
		}
		s := strictOf(ladder(), fairshare.Weights{}, jobs)
		priority := func(nice int64, qos uint32) uint32 {
			var f fairshare.Factors
			s.Priority(&fairshare.Job{Account: "ahead", User: "u", Nice: nice, QOSPriority: qos}, &f)
			requireColumns(t, &f)
			return f.Priority
		}
		for v := range int64(20) {
			told := slices.Contains(seen, v) || slices.Contains(seen, v+1)
			byNice, byQOS := cmp.Compare(priority(v-10, 0), priority(v-9, 0)), cmp.Compare(priority(0, uint32(v+1)), priority(0, uint32(v)))
			require.GreaterOrEqual(t, byNice, 0)
			require.GreaterOrEqual(t, byQOS, 0)
			if told {
				require.Equal(t, []int{1, 1}, []int{byNice, byQOS})
			}
		}
	})
}

// However many nice values the users of one account think up, jobs of other
// accounts are told apart as before, and none gets past another account.
func TestStrictFloodOfNiceValues(t *testing.T) {
	r := ladder()
	var seen fairshare.Seen
	for i := range int64(300_000) {
		seen.Add(&fairshare.Job{Account: "ahead", User: "u", Nice: i * 7})
	}
	others := []fairshare.Job{
		{Account: "behind", User: "u", Nice: 100}, {Account: "behind", User: "u", Nice: 50}, {Account: "behind", User: "v", Nice: 50},
	}
	for i := range others {
		seen.Add(&others[i])
	}
	s := fairshare.NewStrict(r, fairshare.Weights{Age: 1, MaxAge: 1000}, cluster, &seen)
	requireRising(t, s, others)
	var flood, last fairshare.Factors
	s.Priority(&fairshare.Job{Account: "equal1", User: "u", Nice: math.MaxInt32}, &last)
	for i := int64(0); i < 300_000*7; i += 1000 {
		s.Priority(&fairshare.Job{Account: "ahead", User: "u", Nice: i}, &flood)
		require.LessOrEqual(t, flood.Priority, last.Priority)
		requireColumns(t, &flood)
		last = flood
	}
}

func TestStrictAllocatesNothing(t *testing.T) {
	job := fairshare.Job{Account: "behind", User: "u", TRES: []float64{1, 2}}
	s := strictOf(ladder(), fairshare.Weights{TRES: []float64{1, 1}}, []fairshare.Job{job})
	f := fairshare.Factors{TRES: make([]float64, 2)}
	require.Zero(t, testing.AllocsPerRun(100, func() { s.Priority(&job, &f) }))
}
