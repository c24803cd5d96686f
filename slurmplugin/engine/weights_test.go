// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// said is weights in force from an instant on, and all the time.
func said(from fairshare.Instant, weights map[string]fairshare.Weight) fairshare.GPUWeights {
	w := make(fairshare.GPUWeights)
	for name, weight := range weights {
		w[name] = []fairshare.Step[fairshare.Weight]{{Period: fairshare.Period{From: from, Until: fairshare.Never}, Value: weight}}
	}
	return w
}

func TestWhatAJobWaitsForCountsByItsType(t *testing.T) {
	weights := said(0, map[string]fairshare.Weight{"h100": 2500, "a100": 500, "2g.20gb": 300})
	mixed := fairshare.Holding{Type: "a100:3,h100:1", GPUs: 4} // 4 that count for 4
	plenty := fairshare.Holding{Type: "h100", GPUs: 8}
	for _, c := range []struct {
		name    string
		weights fairshare.GPUWeights
		gpus    fairshare.Holding
		job     Job
		wanted  int64
	}{
		{"nothing said", nil, plenty, Job{GPUs: 3}, 3_000_000},
		{"nothing said of a type", nil, plenty, Job{GPUs: 3, GPUType: NewCString("h100")}, 3_000_000},
		{"a type", weights, mixed, Job{GPUs: 3, GPUType: NewCString("h100")}, 7_500_000},
		{"in whatever case", weights, mixed, Job{GPUs: 2, GPUType: NewCString("A100")}, 1_000_000},
		{"a type that nothing is said of", weights, mixed, Job{GPUs: 2, GPUType: NewCString("v100")}, 2_000_000},
		{"several types", weights, mixed, Job{GPUs: 3, GPUType: NewCString("a100:2,h100:1")}, 3_500_000},
		{"part of a type", weights, mixed, Job{GPUParts: 250_000, GPUType: NewCString("h100")}, 625_000},
		{"any type", weights, mixed, Job{GPUs: 2}, 2_000_000},
		{"any type, where all are of one", weights, plenty, Job{GPUs: 2}, 5_000_000},
		{"part of any", weights, plenty, Job{GPUParts: 100_000}, 250_000},
		{"any type of no GPUs", weights, fairshare.Holding{}, Job{GPUs: 2}, 2_000_000},
		{"a profile", weights, mixed, Job{GPUs: 1, GPUType: NewCString("h100_2g.20gb")}, 300_000},
		{"all of a GPU's slices", nil, mixed, Job{GPUs: 7, GPUType: NewCString("1g.10gb")}, 1_000_000},
		{"all of a GPU in two instances", weights, mixed, Job{GPUs: 2, GPUType: NewCString("h100_3g.40gb:1,h100_4g.40gb:1")}, 2_500_000},
		{"one instance of each of two GPUs", weights, mixed, Job{GPUs: 2, GPUType: NewCString("a100_3g.40gb:1,h100_4g.40gb:1")}, 250_000 + 1_428_571},
		{"several types that count for nothing", said(0, map[string]fairshare.Weight{"*": 0}), mixed, Job{GPUs: 2, GPUType: NewCString("a100:1,h100:1")}, 0},
		{"a part of its model", weights, mixed, Job{GPUs: 2, GPUType: NewCString("h100_3g.40gb")}, 2_500_000},
		{"nothing", weights, mixed, Job{}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLab()
			l.weigh(c.weights)
			l.begin(l.instant(), c.gpus)
			for range 2 { // the second is from memory
				require.Equal(t, c.wanted, l.wanted(&c.job))
			}
			rate := c.wanted
			if rate == 0 {
				rate = fairshare.CountsNothing
			}
			require.Equal(t, rate, l.rateOf(&c.job))
		})
	}
}

func TestEachPassCountsByTheWeightsOfItsInstant(t *testing.T) {
	l := newLab()
	change := l.instant() + 60_000
	weights := said(change, map[string]fairshare.Weight{"h100": 2500})
	l.weigh(weights)
	job := Job{GPUs: 2, GPUType: NewCString("h100")}
	for range 4 { // passes at 0, 30, 60 and 90 seconds
		l.begin(l.instant(), fairshare.Holding{Type: "h100", GPUs: 8})
		want := int64(2_000_000)
		if l.instant() >= change {
			want = 5_000_000
		}
		require.Equal(t, want, l.wanted(&job))
		require.Equal(t, want, l.wanted(&Job{GPUs: 2}), "of any type")
		l.slurm.now += 30
	}
}

func TestRunsAreWeighedOnceForEachChangeOfWeights(t *testing.T) {
	l := newLab()
	start := time.UnixMilli(int64(l.instant())).UTC()
	at := fairshare.At(start)
	r := &run{Run: usage.Run{GPUs: 2, GPUType: "h100", StartedAt: start}}

	l.rate(r)
	require.Empty(t, r.Rates, "it counts for what it holds")

	l.weigh(said(at+1000, map[string]fairshare.Weight{"h100": 2500}))
	l.rate(r)
	require.Equal(t, []fairshare.Rate{{Since: at, Millionths: 2_000_000}, {Since: at + 1000, Millionths: 5_000_000}}, r.Rates)

	r.Rates = r.Rates[:1]
	l.rate(r)
	require.Len(t, r.Rates, 1, "nothing has changed since")

	l.weigh(nil)
	l.rate(r)
	require.Empty(t, r.Rates, "what was said was taken back")
}
