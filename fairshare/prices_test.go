// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"testing"

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
