// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
	"gpubudget/internal/migtest"
)

func steps[T any](values ...fairshare.Step[T]) []fairshare.Step[T] { return values }

func from[T any](at, until fairshare.Instant, value T) fairshare.Step[T] {
	return fairshare.Step[T]{Period: fairshare.Period{From: at, Until: until}, Value: value}
}

func TestWhatAGPUCountsFor(t *testing.T) {
	always := func(w fairshare.Weight) []fairshare.Step[fairshare.Weight] {
		return steps(from(fairshare.Always, fairshare.Never, w))
	}
	w := fairshare.GPUWeights{
		"*": always(500), "h100": always(2500), "a100_1g.5gb": always(111), "2g.10gb": always(300),
		"v100": always(fairshare.DefaultWeight), "free": always(0),
	}
	for name, want := range map[string]int64{
		"": 500_000, "a100": 500_000, "h100": 2_500_000, "H100": 2_500_000, "v100": 500_000, "free": 0,
		"a100_1g.5gb": 111_000, "a100_2g.10gb": 300_000, "2g.10gb": 300_000,
		"h100_1g.10gb": 357_142, "h100-3g.40gb": 1_250_000, "h100.7g.80gb": 2_500_000, "h100_1g.20gb": 625_000,
		"1g.10gb": 71_428, "a30_1g.6gb": 125_000, "a30_4g.24gb": 500_000, "a100_1g.10gb+me": 71_428, "x1g.10gb": 500_000,
		"rtx_1g.24gb-me": 125_000, "b300_1g.67gb": 125_000, "gb300_1g.35gb": 71_428, "h200_1g.35gb": 125_000, "gb200_1g.24gb": 71_428,
		"nvidia_a100-sxm4-40gb_1g.10gb": 125_000, "rtx_pro_4500_1g.16gb": 250_000,
	} {
		require.Equal(t, want, w.At(name, 0), name)
	}
	require.EqualValues(t, 1_000_000, fairshare.GPUWeights(nil).At("a100", 0))
	require.EqualValues(t, 142_857, fairshare.GPUWeights(nil).At("1g.10gb", 0))
}

// holdingOf is a job that has all instances of some layouts of a model's GPUs.
func holdingOf(model string, layouts ...migtest.Layout) fairshare.Holding {
	var names []string
	var gpus int64
	for _, layout := range layouts {
		for _, p := range layout {
			names = append(names, model+"_"+p.Name+":1")
			gpus++
		}
	}
	return fairshare.Holding{Type: strings.Join(names, ","), GPUs: gpus}
}

// Whatever instances a GPU is divided into, together they count for no more than it:
// for the greater of what they have of its compute slices and of its memory, so for
// all of it if they have all of either.
func TestInstancesOfAGPUCountForNoMoreThanIt(t *testing.T) {
	for _, gpu := range migtest.GPUs() {
		layouts := gpu.Layouts()
		require.NotEmpty(t, layouts)
		for _, layout := range layouts {
			compute, memory := layout.Slices()
			require.LessOrEqual(t, compute, gpu.Slices, layout)
			require.LessOrEqual(t, memory, gpu.Memory, layout)
			want := max(compute*fairshare.Millionths/gpu.Slices, memory*fairshare.Millionths/gpu.Memory)
			h := holdingOf(gpu.Model, layout)
			require.EqualValues(t, want, fairshare.GPUWeights(nil).RateAt(h, 0), h.Type)
			require.LessOrEqual(t, want, fairshare.Millionths)
			if compute == gpu.Slices || memory == gpu.Memory {
				require.Equal(t, fairshare.Millionths, want)
			}
			for _, p := range layout {
				one := fairshare.Holding{Type: gpu.Model + "_" + p.Name, GPUs: 1}
				part := max(p.Slices*fairshare.Millionths/gpu.Slices, p.Memory*fairshare.Millionths/gpu.Memory)
				require.EqualValues(t, part, fairshare.GPUWeights(nil).RateAt(one, 0), one.Type)
			}
		}
	}
}

// Nor do those of several GPUs count for more than they do; of other models they
// count apart; and what is held in one job never counts for more than in several.
func TestInstancesOfGPUsCountForNoMoreThanThem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := fairshare.GPUWeights{"*": steps(from(fairshare.Always, fairshare.Never, fairshare.Weight(rapid.Int64Range(0, 3000).Draw(t, "weight"))))}
		weight := w.At("any", 0)
		all, models := fairshare.Holding{}, map[string]int64{}
		var sum, most int64
		for range rapid.IntRange(1, 4).Draw(t, "models") {
			gpu := rapid.SampledFrom(migtest.GPUs()).Draw(t, "model")
			if models[gpu.Model] > 0 {
				continue
			}
			layouts := rapid.SliceOfN(rapid.SampledFrom(gpu.Layouts()), 1, 5).Draw(t, "layouts")
			h := holdingOf(gpu.Model, layouts...)
			models[gpu.Model] = w.RateAt(h, 0)
			require.LessOrEqual(t, models[gpu.Model], int64(len(layouts))*weight)
			var apart int64
			for _, layout := range layouts {
				apart += w.RateAt(holdingOf(gpu.Model, layout), 0) + 1 // that was rounded down
			}
			require.LessOrEqual(t, models[gpu.Model], apart)
			sum += models[gpu.Model]
			most += int64(len(layouts)) * weight
			all = fairshare.Holding{Type: strings.Trim(all.Type+","+h.Type, ","), GPUs: all.GPUs + h.GPUs}
		}
		require.Equal(t, sum, w.RateAt(all, 0))
		require.LessOrEqual(t, sum, most)
	})
}

// What is said of a type or a profile holds, whatever else is held of the GPU.
func TestWhatIsSaidOfAnInstanceHolds(t *testing.T) {
	w := fairshare.GPUWeights{
		"a100":         steps(from[fairshare.Weight](fairshare.Always, fairshare.Never, 2000)),
		"a100_3g.40gb": steps(from[fairshare.Weight](0, 100, 900)),
		"1g.10gb":      steps(from[fairshare.Weight](200, fairshare.Never, 500)),
	}
	h := fairshare.Holding{Type: "a100_3g.40gb:1,a100_4g.40gb:1,h100_1g.10gb:1", GPUs: 3}
	require.Equal(t, []fairshare.Rate{
		{-10, 2_000_000 + 142_857}, {0, 900_000 + 1_142_857 + 142_857}, {100, 2_000_000 + 142_857}, {200, 2_000_000 + 500_000},
	}, w.Rates(h, fairshare.Period{From: -10, Until: 1000}))
}

func TestRatesFollowTheWeights(t *testing.T) {
	w := fairshare.GPUWeights{
		"h100": steps(from[fairshare.Weight](100, 200, 2000), from[fairshare.Weight](200, 300, 2000), from[fairshare.Weight](300, fairshare.Never, 500)),
	}
	p := fairshare.Period{From: 0, Until: 1000}
	require.Equal(t, []fairshare.Rate{{0, 2_000_000}, {100, 4_000_000}, {300, 1_000_000}}, w.Rates(fairshare.Holding{Type: "h100", GPUs: 2}, p))
	require.Equal(t, []fairshare.Rate{{150, 500_000}}, w.Rates(fairshare.Holding{Type: "h100", Parts: 250_000}, fairshare.Period{From: 150, Until: 250}))
	require.Equal(t, []fairshare.Rate{{0, 1_500_000}, {100, 2_000_000}, {300, 1_250_000}},
		w.Rates(fairshare.Holding{Type: "a100:1,h100:0.5", GPUs: 1, Parts: 500_000}, p))
	require.Nil(t, w.Rates(fairshare.Holding{Type: "a100", GPUs: 2}, p), "it counts for what it is")
	require.Nil(t, w.Rates(fairshare.Holding{Type: "h100"}, p))
}

func TestCapacityIsWeighed(t *testing.T) {
	w := fairshare.GPUWeights{"h100": steps(from[fairshare.Weight](50, fairshare.Never, 2500))}
	got := w.Capacity(steps(
		from(0, 100, fairshare.Holding{Type: "a100:4,h100:2", GPUs: 6}),
		from(100, 200, fairshare.Holding{Type: "a100:9", GPUs: 9}),
		from(200, fairshare.Never, fairshare.Holding{GPUs: 3}),
	))
	require.Equal(t, steps(
		from[fairshare.MilliGPUs](0, 50, 6000), from[fairshare.MilliGPUs](50, 200, 9000), from[fairshare.MilliGPUs](200, fairshare.Never, 3000),
	), got)
}

// A list of types is the sum of what is in it.
func TestAHoldingIsTheSumOfItsParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := fairshare.Instant(0)
		weight := rapid.Map(rapid.Int64Range(0, 5000), func(n int64) []fairshare.Step[fairshare.Weight] {
			return steps(from(fairshare.Always, fairshare.Never, fairshare.Weight(n)))
		})
		w := fairshare.GPUWeights{"a": weight.Draw(t, "a"), "b": weight.Draw(t, "b")}
		a, b := rapid.Int64Range(0, 99).Draw(t, "of a"), rapid.Int64Range(0, 99).Draw(t, "of b")
		list := fairshare.Holding{Type: "a:" + itoa(a) + ",b:" + itoa(b), GPUs: a + b}
		require.Equal(t, w.RateAt(fairshare.Holding{Type: "a", GPUs: a}, at)+w.RateAt(fairshare.Holding{Type: "b", GPUs: b}, at), w.RateAt(list, at))
		require.Equal(t, []fairshare.Holding{{Type: "a", GPUs: a}, {Type: "b", GPUs: b}}, list.Split())
	})
}

func itoa(n int64) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + itoa(n%10)
}

func TestARateComesTo(t *testing.T) {
	require.EqualValues(t, 2500, fairshare.Charged(2_500_000, 1000))
	require.EqualValues(t, 142, fairshare.Charged(142_857, 1000))
	require.Zero(t, fairshare.Charged(-1, 1000))
	require.Zero(t, fairshare.Charged(1, 999_999))
	require.EqualValues(t, 1<<63-1, fairshare.Charged(1<<62, 1<<62))
}
