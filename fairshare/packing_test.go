// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What is given up when room is short, in this order.
func TestFit(t *testing.T) {
	groups := func(n int, users int64, nice int) []group {
		all, values := make([]group, n), make([]int64, nice)
		for i := range all {
			all[i] = group{users: users, nice: values}
		}
		return all
	}
	tests := []struct {
		name string
		p    packing
		want radices
	}{
		{"room for all", packing{groups(1, 1, 1), nil}, radices{qos: 1, users: 1, nice: 3, rest: 1_000_000, gaps: true}},
		{"less of the rest", packing{groups(500, 11, 5), make([]int64, 3)}, radices{qos: 7, users: 11, nice: 11, rest: 1000, gaps: true}},
		{"least of the rest", packing{groups(5000, 11, 10), make([]int64, 5)}, radices{qos: 11, users: 11, nice: 21, rest: 100, gaps: true}},
		{"no gaps", packing{groups(5000, 11, 20), make([]int64, 10)}, radices{qos: 10, users: 11, nice: 20, rest: 100}},
		{"fewer users", packing{groups(5000, 101, 20), make([]int64, 10)}, radices{qos: 10, users: 40, nice: 20, rest: 100}},
		{"one user, less nice", packing{groups(5000, 101, 2000), make([]int64, 10)}, radices{qos: 10, users: 1, nice: 800, rest: 100}},
		{"one nice, fewer QOS", packing{groups(500_000, 101, 2000), make([]int64, 100)}, radices{qos: 80, users: 1, nice: 1, rest: 100}},
		{"nice must fit its column", packing{groups(1, 1_000_000, 400), nil}, radices{qos: 1, users: 53687, nice: 400, rest: 100}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := test.p.fit()
			require.Equal(t, test.want, r)
			require.True(t, test.p.fits(r))
		})
	}
}

func TestMergeNeverInverts(t *testing.T) {
	for _, full := range []int64{1, 2, 7, 100} {
		for steps := int64(1); steps <= full+1; steps++ {
			last := int64(0)
			for step := range full {
				merged := merge(step, full, steps)
				require.GreaterOrEqual(t, merged, last)
				require.LessOrEqual(t, merged-last, int64(1))
				require.Less(t, merged, max(steps, 1))
				last = merged
			}
		}
	}
}
