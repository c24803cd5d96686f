// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
)

// The band is a power of ten above the sum of all weights but the fair-share
// factor's.
func TestAdditiveBand(t *testing.T) {
	const most = math.MaxUint32
	for _, tt := range []struct {
		w    fairshare.Weights
		want float64
	}{
		{fairshare.Weights{}, 1e6},
		{fairshare.Weights{Fairshare: most}, 1e6},
		{fairshare.Weights{Age: 1000, Assoc: 1000, JobSize: 1000, Partition: 1000, QOS: 10_000, Fairshare: 100_000}, 1e6},
		{fairshare.Weights{QOS: 999_999}, 1e6},
		{fairshare.Weights{QOS: 1_000_000}, 1e7},
		{fairshare.Weights{Age: 2e6, Assoc: 2e6, JobSize: 2e6, Partition: 2e6, QOS: 2e6}, 1e8},
		{fairshare.Weights{TRES: []float64{4e6, math.NaN(), -9e6, 6e6}}, 1e8},
		{fairshare.Weights{TRES: []float64{math.Inf(1)}}, 1e9},
		{fairshare.Weights{Age: most, Assoc: most, JobSize: most, Partition: most, QOS: most, Fairshare: most}, 1e9},
		{fairshare.Weights{QOS: 1, Flags: fairshare.NoNormalQOS}, 1e9},
		{fairshare.Weights{Assoc: 1, Flags: fairshare.NoNormalAssoc}, 1e9},
		{fairshare.Weights{Partition: 1, Flags: fairshare.NoNormalPart}, 1e9},
		{fairshare.Weights{TRES: []float64{1}, Flags: fairshare.NoNormalTRES}, 1e9},
		{fairshare.Weights{Age: 1, Flags: fairshare.NoNormalQOS | fairshare.NoNormalAssoc | fairshare.NoNormalPart | fairshare.NoNormalTRES}, 1e6},
	} {
		require.InDelta(t, tt.want, fairshare.NewAdditive(twoUsers(), tt.w, cluster).Table().Band, 0, "%+v", tt.w)
		require.Zero(t, fairshare.NewAdditive(nil, tt.w, cluster).Table().Band)
	}
}

// What would take a priority over the edge is taken up by NICE, then by others.
func TestAdditiveEdges(t *testing.T) {
	w := fairshare.Weights{QOS: 5000, Fairshare: 3000, TRES: []float64{700}}
	for _, tt := range []struct {
		name string
		job  fairshare.Job
		want fairshare.Factors
	}{
		{"in the midst", fairshare.Job{QOSFactor: 1, Nice: -100, TRES: []float64{1}},
			fairshare.Factors{QOS: 5000, Nice: -100, TRES: []float64{700}, Priority: 5800}},
		{"the most", fairshare.Job{QOSFactor: 1, Nice: -995_000},
			fairshare.Factors{QOS: 5000, Nice: -995_000, TRES: []float64{0}, Priority: 1_000_000}},
		{"one more", fairshare.Job{QOSFactor: 1, Nice: -995_001},
			fairshare.Factors{QOS: 5000, Nice: -995_000, TRES: []float64{0}, Priority: 1_000_000}},
		{"fractions stay", fairshare.Job{QOSFactor: 0.0001, Nice: -1_000_000},
			fairshare.Factors{QOS: 0.5, Nice: -1_000_000, TRES: []float64{0}, Priority: 1_000_000}},
		{"all that Slurm can carry", fairshare.Job{QOSFactor: 1, Nice: math.MinInt64, Site: math.MaxInt64, TRES: []float64{1}},
			fairshare.Factors{QOS: 5000, Nice: math.MaxInt32 - 1_000_000 + 5700, Site: math.MaxInt32, TRES: []float64{700}, Priority: 1_000_000}},
		{"nothing", fairshare.Job{}, fairshare.Factors{TRES: []float64{0}, Priority: 1}},
		{"less than nothing", fairshare.Job{Nice: 1000}, fairshare.Factors{Nice: -1, TRES: []float64{0}, Priority: 1}},
		{"allocated", fairshare.Job{Account: "a", User: "u", QOSFactor: 1, Nice: 100},
			fairshare.Factors{Fairshare: 1_003_000, QOS: 5000, Nice: 100, TRES: []float64{0}, Priority: 1_007_900}},
		{"allocated, the least", fairshare.Job{Account: "a", User: "u", QOSFactor: 1, Nice: 7999},
			fairshare.Factors{Fairshare: 1_003_000, QOS: 5000, Nice: 7999, TRES: []float64{0}, Priority: 1_000_001}},
		{"allocated, and nicer", fairshare.Job{Account: "a", User: "u", QOSFactor: 1, Nice: math.MaxInt64},
			fairshare.Factors{Fairshare: 1_003_000, QOS: 5000, Nice: 7999, TRES: []float64{0}, Priority: 1_000_001}},
		{"allocated, as low as can be", fairshare.Job{Account: "a", User: "u", Nice: math.MaxInt64, Site: math.MinInt64},
			fairshare.Factors{Fairshare: 1_003_000, Nice: math.MinInt32 + 2999, Site: math.MinInt32, TRES: []float64{0}, Priority: 1_000_001}},
		{"allocated, as high as can be", fairshare.Job{Account: "a", User: "u", Nice: math.MinInt64, Site: math.MaxInt64},
			fairshare.Factors{Fairshare: 1_003_000, Nice: math.MinInt32 + 1_003_000, Site: math.MaxInt32, TRES: []float64{0}, Priority: math.MaxUint32}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var f fairshare.Factors
			fairshare.NewAdditive(twoUsers(), w, cluster).Priority(&tt.job, &f)
			require.Equal(t, tt.want, f)
		})
	}
}

// additive is the priority of a job by Additive, whose columns have to add up to
// it; to the point, as sprio shows them. A sum of less than 1 counts as 1.
func additive(t require.TestingT, p *fairshare.Additive, job fairshare.Job) fairshare.Factors {
	var f fairshare.Factors
	job.Parts = slices.Clone(job.Parts)
	p.Priority(&job, &f)
	require.InDelta(t, float64(f.Priority), f.Sum(), 1, "%+v of %+v", f, job)
	require.True(t, f.Nice >= math.MinInt32 && f.Nice <= math.MaxInt32, "nice %v", f.Nice)
	require.True(t, f.Site >= math.MinInt32 && f.Site <= math.MaxInt32, "site %v", f.Site)
	return f
}

// No unallocated job has a priority as high as any allocated one, in any of its
// partitions, whatever weights, flags, nice values, site factors and the other
// factors are, and however broken.
func TestAdditiveUnallocatedBelowAllAllocated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := fairshare.Rank(drawInput(t))
		w := drawWildWeights(t)
		p := fairshare.NewAdditive(r, w, cluster)
		highest, lowest := uint32(0), uint32(math.MaxUint32)
		for range rapid.IntRange(2, 20).Draw(t, "jobs") {
			job := drawWildJob(t, r, len(w.TRES))
			f := additive(t, p, job)
			p.Priority(&job, &fairshare.Factors{})
			priorities := []uint32{f.Priority}
			for _, part := range job.Parts {
				priorities = append(priorities, part.Priority)
			}
			if a, known := r.Account(job.Account); known && a.Funded && !job.Unallocated {
				require.Positive(t, f.Fairshare)
				lowest = min(lowest, slices.Min(priorities))
			} else {
				require.Zero(t, f.Fairshare)
				highest = max(highest, slices.Max(priorities))
			}
		}
		require.Less(t, highest, lowest)
	})
}

// Among jobs of one kind the order is that of Slurm's sum: a job that is put higher by
// its nice value or QOS is never lower than it was, and if weights leave
// room it is higher by as much.
func TestAdditiveKeepsSlurmsOrderWithinAKind(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := ladder()
		w := drawWeights(t)
		p := fairshare.NewAdditive(r, w, cluster)
		job := drawJob(t, r)
		better := job
		points := rapid.Int64Range(0, 1_000_000).Draw(t, "points")
		better.Nice = job.Nice - points
		f, g := additive(t, p, job), additive(t, p, better)
		require.GreaterOrEqual(t, g.Priority, f.Priority)
		better.Nice, better.QOSFactor = job.Nice, rapid.Float64Range(job.QOSFactor, 1).Draw(t, "better QOS")
		require.GreaterOrEqual(t, additive(t, p, better).Priority, f.Priority)

		// By the same factor, Slurm's own sum is as far apart.
		small := fairshare.NewAdditive(r, fairshare.Weights{Fairshare: 10_000, QOS: 10_000}, cluster)
		job.Nice, job.Site = rapid.Int64Range(-10_000, 0).Draw(t, "nice"), 100
		better.Nice, better.Site = job.Nice, job.Site
		apart := int64(additive(t, small, better).Priority) - int64(additive(t, small, job).Priority)
		require.InDelta(t, 10_000*(better.QOSFactor-job.QOSFactor), float64(apart), 1)
	})
}
