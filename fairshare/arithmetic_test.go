// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestAddStopsAtTheEnds(t *testing.T) {
	const most, least = GPUMillis(math.MaxInt64), GPUMillis(math.MinInt64)
	for _, test := range []struct{ a, b, want GPUMillis }{
		{1, 2, 3}, {most, 1, most}, {most, most, most}, {least, -1, least}, {least, least, least}, {most, least, -1}, {least, most, -1},
	} {
		require.Equal(t, test.want, add(test.a, test.b))
	}
}

func TestScale(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.Int64().Draw(t, "amount")
		whole := rapid.Uint64Range(1, math.MaxUint64).Draw(t, "whole")
		part := rapid.Uint64Range(0, whole).Draw(t, "part")
		x := new(big.Int).Mul(big.NewInt(amount), new(big.Int).SetUint64(part))
		x.Quo(x, new(big.Int).SetUint64(whole))
		require.Equal(t, GPUMillis(x.Int64()), scale(GPUMillis(amount), part, whole))
	})
}

// However a period is cut, its parts make up the amount, and each is what falls
// to its length but for one.
func TestPortionsAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		instant := rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64Range(int64(Always), int64(Never)))
		at := func(name string) Instant { return Instant(instant.Draw(t, name)) }
		spread := Period{From: at("from"), Until: at("until")}
		amount := GPUMillis(rapid.Int64().Draw(t, "amount"))
		cut := at("cut")
		left := portion(amount, spread, Period{From: math.MinInt64, Until: cut})
		right := portion(amount, spread, Period{From: cut, Until: math.MaxInt64})
		require.Equal(t, amount, left+right)
		if spread.From < spread.Until && spread.From <= cut && cut <= spread.Until {
			whole, passed := float64(spread.Until)-float64(spread.From), float64(cut)-float64(spread.From)
			require.InDelta(t, float64(amount)*passed/whole, float64(left), 1+math.Abs(float64(amount))*1e-9)
		}
	})
}

func TestApportionment(t *testing.T) {
	tests := []struct {
		name    string
		pool    GPUMillis
		weights []uint64
		want    []GPUMillis
	}{
		{"nothing", 0, []uint64{1, 2}, []GPUMillis{0, 0}},
		{"even", 30, []uint64{1, 2}, []GPUMillis{10, 20}},
		{"equal remainders: the first", 10, []uint64{1, 1, 1}, []GPUMillis{4, 3, 3}},
		{"the largest remainder", 1, []uint64{4, 6}, []GPUMillis{0, 1}},
		{"the largest remainders", 101, []uint64{201, 339, 460}, []GPUMillis{20, 34, 47}}, // 20.301 34.239 46.46
		{"two left over", 10, []uint64{1, 7, 7, 1}, []GPUMillis{1, 4, 4, 1}},              // .625 4.375 4.375 .625
		{"without weight there is nothing", 7, []uint64{0, 3, 0}, []GPUMillis{0, 7, 0}},
		{"as much as can be", math.MaxInt64, []uint64{1, 1}, []GPUMillis{1 << 62, 1<<62 - 1}},
	}
	var a apportionment
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a.weights = test.weights
			var total uint64
			for _, weight := range test.weights {
				total += weight
			}
			require.Equal(t, test.want, a.distribute(test.pool, total))
		})
	}
}

func TestApportionmentKeepsToQuota(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := apportionment{weights: rapid.SliceOfN(rapid.Uint64Range(0, uint64(Whole)*5000), 1, 20).Draw(t, "weights")}
		var total uint64
		for _, weight := range a.weights {
			total += weight
		}
		if total == 0 {
			t.Skip()
		}
		pool := GPUMillis(rapid.Int64Range(0, math.MaxInt64).Draw(t, "pool"))
		var sum GPUMillis
		for i, part := range a.distribute(pool, total) {
			quota, _ := mulDiv(uint64(pool), a.weights[i], total)
			require.True(t, part == GPUMillis(quota) || part == GPUMillis(quota)+1)
			sum += part
		}
		require.Equal(t, pool, sum)
	})
}

func TestPeriod(t *testing.T) {
	all := Period{From: Always, Until: Never}
	require.EqualValues(t, math.MaxInt64, all.Millis())
	require.EqualValues(t, 5, Period{From: 3, Until: 8}.Millis())
	require.Zero(t, Period{From: 8, Until: 3}.Millis())
	require.Equal(t, Period{From: 3, Until: 8}, all.Intersect(Period{From: 3, Until: 8}))
	require.True(t, Period{From: 3, Until: 8}.Intersect(Period{From: 9, Until: 10}).Empty())
	require.True(t, Period{From: 3, Until: 8}.Contains(3))
	require.False(t, Period{From: 3, Until: 8}.Contains(8))
}

// Segments are never empty, whatever changes at the edges of the window.
func TestSegments(t *testing.T) {
	c := changes{window: Period{From: 10, Until: 20}}
	for _, at := range []Instant{12, 10, 20, 9, 21, 15, 12, Always, Never} {
		c.at(at)
	}
	require.Equal(t, []Period{{10, 12}, {12, 15}, {15, 20}}, c.segments())
	empty := changes{window: Period{From: 10, Until: 10}}
	empty.at(10)
	require.Empty(t, empty.segments())
}

func TestSplit(t *testing.T) {
	const hour = 3_600_000
	require.Equal(t, []Period{{-hour, 0}, {0, hour}}, split(Period{From: -hour, Until: hour}, 0))
	require.Equal(t, []Period{{-1, 0}, {0, 1}}, split(Period{From: -1, Until: 1}, 3_600_000_000_000))
	require.Equal(t, []Period{{5, 6}, {6, 7}}, split(Period{From: 5, Until: 7}, 1000))
	require.Empty(t, split(Period{From: 5, Until: 5}, 0))
}
