// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
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
	} {
		require.Equal(t, want, w.At(name, 0), name)
	}
	require.EqualValues(t, 1_000_000, fairshare.GPUWeights(nil).At("a100", 0))
	require.EqualValues(t, 142_857, fairshare.GPUWeights(nil).At("1g.10gb", 0))
}

// Whatever instances a GPU is divided into, together they count for no more than it.
func TestInstancesOfAGPUCountForNoMoreThanIt(t *testing.T) {
	for _, profiles := range [][]string{
		{"1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb"},
		{"3g.40gb", "3g.40gb"}, {"1g.20gb", "1g.20gb", "1g.20gb", "1g.20gb"}, {"2g.20gb", "2g.20gb", "2g.20gb"},
		{"4g.40gb", "3g.40gb"}, {"4g.20gb", "2g.10gb", "1g.5gb"}, {"7g.141gb"}, {"2g.12gb", "1g.6gb", "1g.6gb"},
	} {
		var sum int64
		for _, p := range profiles {
			sum += fairshare.GPUWeights(nil).At("gpu_"+p, 0)
		}
		// 4g and 3g are the one case in which compute and memory overlap.
		most := int64(fairshare.Millionths)
		if len(profiles) == 2 && profiles[0] == "4g.40gb" {
			most = 1_071_428
		}
		require.LessOrEqual(t, sum, most, profiles)
	}
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
