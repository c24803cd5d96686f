// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

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

// drawnOccupants are running jobs of all kinds.
func drawnOccupants(t *rapid.T, most int) []fairshare.Occupant {
	var all []fairshare.Occupant
	for range rapid.IntRange(0, most).Draw(t, "occupants") {
		all = append(all, fairshare.Occupant{
			Account:        rapid.SampledFrom([]string{"ahead", "behind", "lab", "bench", "poor", "root", "gone"}).Draw(t, "account"),
			GPUs:           rapid.Int64Range(1, 12).Draw(t, "gpus"),
			Allocated:      rapid.Bool().Draw(t, "allocated"),
			ProtectedUntil: contractNow + fairshare.Instant(rapid.Int64Range(-3, 2).Draw(t, "over"))*hour,
			Ahead:          fairshare.GPUMillis(rapid.Int64Range(0, 300).Draw(t, "ahead")) * fairshare.GPUMillis(hour),
			QOSPriority:    rapid.Uint32Range(9, 11).Draw(t, "qos"),
			Nice:           rapid.Int64Range(-1, 1).Draw(t, "nice"),
			Preempted:      rapid.IntRange(0, 5).Draw(t, "preempted"),
		})
	}
	return all
}

// The order of R6, written down as it is told: by one criterion after the other,
// each sorting what the ones after it have left.
func TestR6OrderIsByOneCriterionAfterTheOther(t *testing.T) {
	r := contractRanking()
	place := func(account string) int {
		if s, known := r.Account(account); known && s.Rank > 0 {
			return s.Rank
		}
		return len(r.Accounts) + 1
	}
	rapid.Check(t, func(t *rapid.T) {
		c := fairshare.DefaultContract()
		c.EvictedPerGPU = 0
		occupants := drawnOccupants(t, 40)
		want := make([]int, len(occupants))
		for i := range want {
			want[i] = i
		}
		lost := func(o fairshare.Occupant) int64 { return o.GPUs * max(0, int64(contractNow-o.ProtectedUntil)) }
		by := func(compare func(a, b fairshare.Occupant) int) {
			slices.SortStableFunc(want, func(a, b int) int { return compare(occupants[a], occupants[b]) })
		}
		by(func(a, b fairshare.Occupant) int { return cmp.Compare(a.GPUs, b.GPUs) })
		by(func(a, b fairshare.Occupant) int { return cmp.Compare(lost(a), lost(b)) })
		by(func(a, b fairshare.Occupant) int { return cmp.Compare(place(b.Account), place(a.Account)) })
		by(func(a, b fairshare.Occupant) int {
			switch {
			case a.Allocated == b.Allocated:
				return 0
			case a.Allocated:
				return 1
			}
			return -1
		})
		all := func(gone []int) bool { return len(gone) == len(occupants) }
		got := c.Victims(r, contractNow, request(), occupants, all)
		require.ElementsMatch(t, want, got)
		if len(want) > 0 {
			require.Equal(t, want, got)
		}
	})
}

// A judge of many says what the rules say of each.
func TestJudgeDecidesAsTheRulesDo(t *testing.T) {
	r := contractRanking()
	rapid.Check(t, func(t *rapid.T) {
		c := fairshare.DefaultContract()
		c.WithinAccount = rapid.Bool().Draw(t, "within")
		c.EvictedPerGPU = float64(rapid.IntRange(0, 2).Draw(t, "evicted per GPU"))
		q := request(func(q *fairshare.Request) {
			q.Account = rapid.SampledFrom([]string{"behind", "lab", "bench", "poor", "root", "gone"}).Draw(t, "of")
			q.Allocated = rapid.IntRange(0, 5).Draw(t, "allocated") > 0
			q.GPUs = rapid.SampledFrom([]int64{1, 4, 32}).Draw(t, "asks for")
			q.Waited = rapid.SampledFrom([]time.Duration{0, 2 * time.Hour}).Draw(t, "waited")
		})
		judge := c.Judge(r, contractNow, q)
		for _, o := range drawnOccupants(t, 40) {
			d := c.Decide(r, contractNow, q, &o)
			require.Equal(t, d, judge.Decide(&o))
			if q.Allocated {
				require.Equal(t, d.Rule == fairshare.R2, judge.Protects(&o))
			}
		}
	})
}
