// SPDX-License-Identifier: GPL-2.0-or-later

package shimtest_test

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
	"gpubudget/slurmplugin/shimtest"
)

func TestPartsOfSharedGPUs(t *testing.T) {
	const most = math.MaxUint64
	for _, c := range []struct {
		name                      string
		count, shares, gpus, want uint64
	}{
		{"a shard of four", 1, 4, 1, 250_000},
		{"all of them", 4, 4, 1, 1_000_000},
		{"rounded down", 1, 3, 1, 333_333},
		{"none", 0, 4, 1, 0},
		{"a percentage of MPS", 37, 100, 1, 370_000},
		{"more than there are since gres.conf was changed", 8, 4, 1, 1_000_000},
		{"of a GPU that has none any more", 1, 0, 1, 0},
		{"of a node's four, no one knows of which", 3, 16, 4, 750_000},
		{"more than a node's", 17, 16, 4, 4_000_000},
		{"of no GPUs", 3, 16, 0, 0},
		{"counts that don't fit", most, most, 1, 1_000_000},
		{"nearly so many", most / 2, most, 1, 499_999},
		{"of a node's eight", most / 4, most, 8, 1_999_999},
	} {
		require.Equal(t, c.want, shimtest.PartsOf(c.count, c.shares, c.gpus), c.name)
	}
}

// Whatever the counts, a job has no more of GPUs than they are, and what it has is
// its part, rounded down; of counts that no cluster has, nearly so.
func TestAPartIsNeverMoreThanTheGPUs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count, shares := rapid.Uint64().Draw(t, "count"), rapid.Uint64().Draw(t, "shares")
		gpus := rapid.Uint64Range(0, 64).Draw(t, "gpus")
		got := shimtest.PartsOf(count, shares, gpus)
		require.LessOrEqual(t, got, gpus*fairshare.Millionths)
		if shares == 0 {
			require.Zero(t, got)
			return
		}
		want := new(big.Int).SetUint64(min(count, shares))
		want.Mul(want, new(big.Int).SetUint64(gpus*fairshare.Millionths))
		want.Quo(want, new(big.Int).SetUint64(shares))
		if count < 1<<32 {
			require.Equal(t, want.Uint64(), got)
		}
		require.LessOrEqual(t, got, want.Uint64())
		require.InDelta(t, float64(want.Uint64()), float64(got), 1+float64(want.Uint64())/1000)
	})
}

// Shares that are spread over GPUs are all on one of them.
func TestSharesAreSpreadEvenly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count, gpus := rapid.Uint64().Draw(t, "count"), rapid.Uint64Range(1, 64).Draw(t, "gpus")
		var sum uint64
		for nth := range gpus {
			on := shimtest.SharesOn(count, gpus, nth)
			require.Contains(t, []uint64{count / gpus, count/gpus + 1}, on)
			sum += on
		}
		require.Equal(t, count, sum)
	})
}
