// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

func TestPauseAfter(t *testing.T) {
	for rounds, want := range map[int]time.Duration{
		-1: 0, 0: 0, 1: 0, 2: 2 * time.Minute, 3: 4 * time.Minute, 4: 8 * time.Minute, 6: 32 * time.Minute, 7: time.Hour, 8: time.Hour, math.MaxInt: time.Hour,
	} {
		require.Equal(t, fairshare.Instant(want.Milliseconds()), fairshare.PauseAfter(rounds), rounds)
	}
}

func TestRounds(t *testing.T) {
	for _, tc := range []struct {
		at   []fairshare.Instant
		want int
	}{
		{nil, 0},
		{[]fairshare.Instant{7}, 1},
		{[]fairshare.Instant{0, 0, 5000, 10000}, 1},
		{[]fairshare.Instant{0, 5001}, 2},
		{[]fairshare.Instant{0, 1, 60000, 60001, 120000}, 3},
	} {
		require.Equal(t, tc.want, fairshare.Rounds(tc.at), tc.at)
	}
}
