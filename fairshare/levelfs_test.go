// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLevelFS(t *testing.T) {
	inf := math.Inf(1)
	tests := []struct {
		name            string
		due, levelDue   float64
		used, levelUsed GPUMillis
		want            float64
	}{
		{"as much as due", 25, 100, 50, 200, 1},
		{"half", 25, 100, 100, 200, 0.5},
		{"alone", 7, 7, 3, 3, 1},
		{"unused", 25, 100, 0, 200, inf},
		{"nobody used anything", 25, 100, 0, 0, inf},
		{"nothing due", 0, 100, 50, 200, 0},
		{"nothing due, unused", 0, 100, 0, 200, 0},
		{"nobody is due anything", 0, 0, 0, 0, 0},
		{"given back more than used", 25, 100, -5, 200, inf},
		{"due is no number", math.NaN(), 100, 50, 200, 0},
		{"the level's due is no number", 1, math.NaN(), 50, 200, 0},
		{"hardly anything due", math.SmallestNonzeroFloat64, 1e300, 1, 1, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			require.Equal(t, test.want, levelFS(test.due, test.levelDue, test.used, test.levelUsed))
		})
	}
}

// Equal fractions are equal numbers, whatever the numbers they are made of.
// Unrounded, one in seven of these would differ.
func TestLevelFSOfEqualsIsEqual(t *testing.T) {
	for due := 1.0; due < 12; due++ {
		for used := GPUMillis(1); used < 12; used++ {
			want := levelFS(due, 1000, used, 1000)
			for k := 2.0; k < 12; k++ {
				require.Equal(t, want, levelFS(k*due, 1000, GPUMillis(k)*used, 1000), "%v times %v/%v", k, due, used)
			}
		}
	}
}

func TestRoundingKeepsOrder(t *testing.T) {
	require.Equal(t, math.Inf(1), comparable40(math.Inf(1)))
	for _, x := range []float64{0, math.SmallestNonzeroFloat64, 1e-300, 0.1, 1, 1.5, 1e300, math.MaxFloat64 / 1.01} {
		require.InEpsilon(t, 1+x, 1+comparable40(x), 1e-12)
		last := comparable40(x)
		for range 10_000 {
			x = math.Nextafter(x, math.Inf(1))
			require.GreaterOrEqual(t, comparable40(x), last)
			last = comparable40(x)
		}
	}
}
