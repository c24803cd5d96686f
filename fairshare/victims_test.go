// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
)

// gpusGone is room for a request when occupants with as many GPUs are gone.
func gpusGone(occupants []fairshare.Occupant, need int64) func([]int) bool {
	return func(gone []int) bool {
		var free int64
		for _, i := range gone {
			free += occupants[i].GPUs
		}
		return free >= need
	}
}

func TestR6Victims(t *testing.T) {
	r := contractRanking()
	of := func(account string, gpus int64, over fairshare.Instant, allocated bool) fairshare.Occupant {
		return fairshare.Occupant{Account: account, GPUs: gpus, ProtectedUntil: contractNow - over*hour, Allocated: allocated}
	}
	for _, tc := range []struct {
		name      string
		occupants []fairshare.Occupant
		need      int64
		want      []int
	}{
		{"unallocated first", []fairshare.Occupant{of("ahead", 1, 0, true), of("behind", 1, 5, false)}, 1, []int{1}},
		{"then the most over-served", []fairshare.Occupant{of("lab", 1, 0, true), of("ahead", 1, 5, true)}, 1, []int{1}},
		{"who is in no account before all others", []fairshare.Occupant{of("ahead", 1, 0, true), of("gone", 1, 5, true)}, 1, []int{1}},
		{"then the least that is lost", []fairshare.Occupant{of("ahead", 1, 5, true), of("ahead", 1, 1, true)}, 1, []int{1}},
		{"in GPU time", []fairshare.Occupant{of("ahead", 4, 2, true), of("ahead", 1, 5, true)}, 1, []int{1}},
		{"then the smallest", []fairshare.Occupant{of("ahead", 4, 0, true), of("ahead", 2, 0, true)}, 1, []int{1}},
		{"then the first", []fairshare.Occupant{of("ahead", 1, 1, true), of("ahead", 1, 1, true)}, 1, []int{0}},
		{"nobody for nothing", []fairshare.Occupant{of("ahead", 1, 0, false)}, 2, nil},
		{"nobody if there is room", []fairshare.Occupant{of("ahead", 1, 0, false)}, 0, nil},
		{
			"who isn't needed stays",
			[]fairshare.Occupant{of("ahead", 1, 0, true), of("ahead", 2, 1, true), of("lab", 4, 0, true)},
			4,
			[]int{2},
		},
		{
			"as many as needed",
			[]fairshare.Occupant{of("ahead", 2, 0, true), of("ahead", 2, 1, true), of("lab", 4, 0, true)},
			4,
			[]int{0, 1},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := fairshare.DefaultContract()
			got := c.Victims(r, contractNow, request(), tc.occupants, gpusGone(tc.occupants, tc.need))
			if len(tc.want) == 0 {
				require.Empty(t, got)
				return
			}
			require.Equal(t, tc.want, got)
		})
	}
}

func TestR7LimitsAllVictimsTogether(t *testing.T) {
	c := fairshare.DefaultContract()
	half := fairshare.Occupant{Account: "ahead", GPUs: 5, Allocated: true, ProtectedUntil: contractNow}
	free := fairshare.Occupant{Account: "ahead", GPUs: 500}
	all := func(n int) func([]int) bool { return func(gone []int) bool { return len(gone) >= n } }
	r := contractRanking()
	require.Equal(t, []int{0}, c.Victims(r, contractNow, request(), []fairshare.Occupant{half, half}, all(1)))
	require.Empty(t, c.Victims(r, contractNow, request(), []fairshare.Occupant{half, half}, all(2)))
	require.Equal(t, []int{1, 0}, c.Victims(r, contractNow, request(), []fairshare.Occupant{half, free}, all(2)))
}

// Each victim is needed, and nobody is evicted in vain.
func TestVictimsAreNeeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := fairshare.DefaultContract()
		c.EvictedPerGPU = 0
		var occupants []fairshare.Occupant
		for range rapid.IntRange(0, 8).Draw(t, "occupants") {
			occupants = append(occupants, fairshare.Occupant{
				Account:        rapid.SampledFrom([]string{"ahead", "behind", "lab", "gone"}).Draw(t, "account"),
				GPUs:           rapid.Int64Range(1, 8).Draw(t, "gpus"),
				Allocated:      rapid.Bool().Draw(t, "allocated"),
				ProtectedUntil: contractNow - fairshare.Instant(rapid.Int64Range(0, 5).Draw(t, "over"))*hour,
			})
		}
		need := rapid.Int64Range(0, 40).Draw(t, "need")
		room := gpusGone(occupants, need)
		gone := c.Victims(contractRanking(), contractNow, request(), occupants, room)
		all := make([]int, len(occupants))
		for i := range all {
			all[i] = i
		}
		if need == 0 || !room(all) {
			require.Empty(t, gone)
			return
		}
		require.True(t, room(gone))
		for i := range gone {
			require.False(t, room(append(append([]int{}, gone[:i]...), gone[i+1:]...)), "number %d of %v isn't needed", i, gone)
		}
	})
}
