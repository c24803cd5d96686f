// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

// Shards or MPS that make a whole GPU are not "1 of a GPU".
func TestWhatARunHoldsInWords(t *testing.T) {
	for want, h := range map[string]fairshare.Holding{
		"1 GPU": {GPUs: 1}, "8 GPUs": {GPUs: 8}, "0 GPUs": {},
		"0.25 of a GPU": {Parts: 250_000}, "parts of GPUs that make 1": {Parts: 1_000_000}, "parts of GPUs that make 1.5": {Parts: 1_500_000},
		"2 GPUs and 0.125 of one": {GPUs: 2, Parts: 125_000}, "2 GPUs and parts that make 1.5": {GPUs: 2, Parts: 1_500_000},
	} {
		require.Equal(t, want, held(h))
	}
}
