// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
	"gpubudget/slurmplugin/shimtest"
)

// scorer is what Strict and Additive have in common.
type scorer interface {
	Priority(job *fairshare.Job, f *fairshare.Factors)
	Table() *fairshare.Table
	Row(account, user string) fairshare.Row
}

// requireSameInC holds the C of the plugin beside the Go, to the last bit.
func requireSameInC(t require.TestingT, s scorer, table *fairshare.Table, jobs []fairshare.Job) {
	for _, job := range jobs {
		inC := job
		inC.Parts = slices.Clone(job.Parts)
		job.Parts = slices.Clone(job.Parts)
		var want, got fairshare.Factors
		s.Priority(&job, &want)
		shimtest.Score(table, s.Row(job.Account, job.User), &inC, &got)
		require.Equal(t, want, got, "%+v", job)
		for i := range job.Parts {
			require.Equal(t, job.Parts[i].Priority, inC.Parts[i].Priority, "%+v", job)
		}
	}
}

// drawWildJob is a job of which nothing can be relied on.
func drawWildJob(t *rapid.T, r *fairshare.Ranking, tres int) fairshare.Job {
	job := drawJob(t, r)
	wild := rapid.OneOf(
		rapid.Float64Range(0, 1), rapid.Float64Range(0, 1e6), rapid.Float64(),
		rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, math.MaxFloat64}))
	extreme := rapid.SampledFrom([]int64{math.MinInt32, math.MaxInt32, math.MinInt32 + 1, 0, 1})
	job.Nice = rapid.OneOf(rapid.Just(job.Nice), extreme).Draw(t, "nice")
	job.Site = rapid.OneOf(rapid.Just(job.Site), extreme).Draw(t, "site")
	job.Age = rapid.OneOf(rapid.Just(job.Age), rapid.SampledFrom([]int64{-1, 0, 1 << 40, math.MaxInt64})).Draw(t, "age")
	job.MinNodes = rapid.OneOf(rapid.Just(job.MinNodes), rapid.Uint32()).Draw(t, "nodes")
	job.CPUs = rapid.OneOf(rapid.Just(job.CPUs), rapid.Uint32()).Draw(t, "cpus")
	job.TimeLimit = rapid.OneOf(rapid.Uint32Range(0, 100), rapid.Just(uint32(fairshare.Unlimited))).Draw(t, "limit")
	job.AssocFactor, job.PartitionFactor, job.QOSFactor = wild.Draw(t, "assoc"), wild.Draw(t, "partition"), wild.Draw(t, "qos")
	factors := func() []float64 {
		if tres == 0 {
			return nil
		}
		return rapid.SliceOfN(wild, tres, tres).Draw(t, "tres")
	}
	job.TRES = factors()
	for range rapid.IntRange(0, 3).Draw(t, "parts") {
		job.Parts = append(job.Parts, fairshare.JobPart{Factor: wild.Draw(t, "part"), TRES: factors()})
	}
	return job
}

// drawWildWeights are any weights and flags there can be.
func drawWildWeights(t *rapid.T) fairshare.Weights {
	weight := rapid.OneOf(rapid.Just(uint32(0)), rapid.Uint32Range(1, 10_000), rapid.Uint32(), rapid.Just(uint32(math.MaxUint32)))
	w := fairshare.Weights{
		Age: weight.Draw(t, "age"), Assoc: weight.Draw(t, "assoc"), Fairshare: weight.Draw(t, "fairshare"),
		JobSize: weight.Draw(t, "size"), Partition: weight.Draw(t, "partition"), QOS: weight.Draw(t, "qos"),
		MaxAge: weight.Draw(t, "max age"), FavorSmall: rapid.Bool().Draw(t, "small"),
		Flags: fairshare.Flags(rapid.Uint32Range(0, 1<<12-1).Draw(t, "flags")),
	}
	float := rapid.OneOf(rapid.Float64Range(0, 1e6), rapid.SampledFrom([]float64{0, -1, math.NaN(), math.MaxUint32, math.Inf(1)}))
	if n := rapid.IntRange(0, 3).Draw(t, "number of TRES"); n > 0 {
		w.TRES = rapid.SliceOfN(float, n, n).Draw(t, "TRES weights")
	}
	return w
}

// The plugin works priorities out in C, from a Table. Whatever the jobs, weights
// and flags, and whether or not the values were seen before, it says what Strict
// and Additive say.
func TestTablesSayTheSameInC(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := fairshare.Rank(drawInput(t))
		w := drawWildWeights(t)
		size := fairshare.ClusterSize{
			Nodes: rapid.OneOf(rapid.Uint32Range(0, 100), rapid.Uint32()).Draw(t, "nodes"),
			CPUs:  rapid.OneOf(rapid.Uint32Range(0, 6400), rapid.Uint32()).Draw(t, "cpus"),
		}
		jobs := make([]fairshare.Job, rapid.IntRange(1, 12).Draw(t, "jobs"))
		for i := range jobs {
			jobs[i] = drawWildJob(t, r, len(w.TRES))
		}
		var seen fairshare.Seen
		for i := range rapid.IntRange(0, len(jobs)).Draw(t, "seen") {
			seen.Add(&jobs[i])
		}
		for _, s := range []scorer{fairshare.NewStrict(r, w, size, &seen), fairshare.NewAdditive(r, w, size)} {
			requireSameInC(t, s, s.Table(), jobs)
		}
	})
}

// Where steps are short and neighbours merge.
func TestCrowdedTablesSayTheSameInC(t *testing.T) {
	r := fairshare.Rank(largeInput(300, 3000, 0))
	jobs, _ := benchmarkJobs(r)
	for i := range jobs {
		jobs[i].Nice, jobs[i].QOSPriority = int64(i*7%200-100), uint32(i%70)
	}
	s := strictOf(r, benchmarkWeights, jobs)
	jobs = append(jobs[:2000], fairshare.Job{Account: "nowhere", User: "nobody", Nice: 7})
	for i := range jobs {
		jobs[i].Nice += int64(i % 3) // some were not seen
	}
	requireSameInC(t, s, s.Table(), jobs)
}

// By Slurm's shares each job brings its own factor.
func TestRowsOfFactors(t *testing.T) {
	w := fairshare.Weights{Fairshare: 1000, QOS: 10}
	s := fairshare.NewAdditive(nil, w, cluster)
	for _, factor := range []float64{0, 0.3, 1, math.NaN(), math.Inf(1)} {
		job := fairshare.Job{Fairshare: factor, QOSFactor: 0.7}
		var want, got fairshare.Factors
		s.Priority(&job, &want)
		shimtest.Score(s.Table(), s.RowOf(factor), &job, &got)
		require.Equal(t, want, got)
	}
	require.Zero(t, s.Row("a", "u"))
}

func TestTheRowOfAnUnknownAccount(t *testing.T) {
	s := strictOf(ladder(), fairshare.Weights{Age: 1}, nil)
	require.Equal(t, s.Table().Unknown, s.Row("nobody", "u"))
	require.Less(t, s.Table().Unknown.Fairshare, s.Row("free", "u").Fairshare)
}

// What is unallocated is told by one bit for each kind of job.
func TestUnallocatedInC(t *testing.T) {
	for minRuntime, bit := range map[int64]uint32{-1: 1 << 1, -2: 1 << 1, 0: 1 << 0, 1: 1 << 2, math.MaxInt64: 1 << 2} {
		for bits := range uint32(1 << 3) {
			require.Equal(t, bits&bit != 0, shimtest.Unallocated(bits, minRuntime))
		}
	}
}
