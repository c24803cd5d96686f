// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

func TestPricesOfRequests(t *testing.T) {
	weights := fairshare.GPUWeights{
		"h100": {{Period: fairshare.Period{From: 100, Until: fairshare.Never}, Value: 2500}},
		"a100": {{Period: fairshare.Period{From: 0, Until: fairshare.Never}, Value: 500}},
	}
	mixed := fairshare.Holding{Type: "a100:3,h100:1", GPUs: 4}
	var p fairshare.Prices
	for _, tt := range []struct {
		name    string
		weights fairshare.GPUWeights
		cluster fairshare.Holding
		at      fairshare.Instant
		asked   fairshare.Holding
		want    int64
	}{
		{"without weights", nil, mixed, 100, fairshare.Holding{Type: "h100", GPUs: 2}, 2_000_000},
		{"a type", weights, mixed, 100, fairshare.Holding{Type: "h100", GPUs: 2}, 5_000_000},
		{"before its weight", weights, mixed, 99, fairshare.Holding{Type: "h100", GPUs: 2}, 2_000_000},
		{"several types", weights, mixed, 100, fairshare.Holding{Type: "a100:2,h100:1", GPUs: 3}, 3_500_000},
		{"any: the mean", weights, fairshare.Holding{Type: "a100:1,h100:1", GPUs: 2}, 100, fairshare.Holding{GPUs: 2}, 3_000_000},
		{"any of no GPUs", weights, fairshare.Holding{}, 100, fairshare.Holding{GPUs: 2}, 2_000_000},
		{"a part of any", weights, fairshare.Holding{Type: "h100", GPUs: 8}, 100, fairshare.Holding{Parts: 100_000}, 250_000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p.Set(tt.weights, tt.cluster, tt.at)
			for range 2 { // the second is from memory
				require.Equal(t, tt.want, p.Of(tt.asked))
			}
		})
	}
}

// What counts for nothing is no time that a request would be charged for; a request
// without a rate has one by its GPUs.
func TestARequestForGPUsOfWeightZeroPromisesNothing(t *testing.T) {
	var p fairshare.Prices
	p.Set(fairshare.GPUWeights{
		"old": {{Period: fairshare.Period{From: fairshare.Always, Until: fairshare.Never}, Value: 0}},
	}, fairshare.Holding{Type: "old", GPUs: 8}, 0)
	for _, gpuType := range []string{"old", ""} {
		asked := fairshare.Holding{Type: gpuType, GPUs: 4}
		require.Zero(t, p.Of(asked))
		q := fairshare.Request{GPUs: 4, Rate: p.RateOf(asked), MinRuntime: time.Hour}
		require.Zero(t, q.Promised())
	}
	require.Equal(t, 4*fairshare.GPUHour, (&fairshare.Request{GPUs: 4, MinRuntime: time.Hour}).Promised())
	require.EqualValues(t, 1_000_000, p.RateOf(fairshare.Holding{Type: "new", GPUs: 1}))
}
