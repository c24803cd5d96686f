// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLevels(t *testing.T) {
	values := []int64{-10, 0, 500}
	tests := []struct {
		name string
		l    levels
		want map[int64]int64
	}{
		{"with gaps", newLevels(values, true, 100), map[int64]int64{
			math.MinInt64: 0, -11: 0, -10: 1, -5: 2, 0: 3, 1: 4, 499: 4, 500: 5, math.MaxInt64: 6,
		}},
		{"without gaps others go with the lower neighbour", newLevels(values, false, 100), map[int64]int64{
			math.MinInt64: 0, -10: 0, -5: 0, 0: 1, 499: 1, 500: 2, math.MaxInt64: 2,
		}},
		{"merged", newLevels(values, true, 3), map[int64]int64{-11: 0, -10: 0, -5: 0, 0: 1, 1: 1, 500: 2, 501: 2}},
		{"merged into one", newLevels(values, false, 1), map[int64]int64{-11: 0, 0: 0, 501: 0}},
		{"nothing seen", newLevels(nil, false, 1), map[int64]int64{-1: 0, 1: 0}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for value, want := range test.want {
				require.Equal(t, want, test.l.step(value), "%d", value)
				require.Less(t, test.l.step(value), test.l.steps)
			}
		})
	}
}
