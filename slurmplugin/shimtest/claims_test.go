// SPDX-License-Identifier: GPL-2.0-or-later

package shimtest_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/slurmplugin/shimtest"
)

// The threads that sort queues.
const backfill, scheduler = 1, 2

func TestNobodyGoesBeforeTheQueueIsSorted(t *testing.T) {
	var c shimtest.Claims
	require.False(t, c.Test(10, 10, false, backfill, 100))
	require.Equal(t, shimtest.NoClaim, c.Sort(10, 10, backfill), "nobody has to go")
	require.False(t, c.Test(10, 11, true, backfill, 100))
	require.Equal(t, shimtest.NeedsRoom, c.Sort(10, 11, scheduler))
	require.False(t, c.Test(10, 11, true, backfill, 100), "backfill's wasn't")
	require.Equal(t, shimtest.HasRoom, c.Sort(10, 10, backfill))
	require.True(t, c.Test(10, 11, true, backfill, 101))
	require.False(t, c.Test(10, 10, true, backfill, 101), "another component needs room now")
	require.False(t, c.Test(10, 11, true, backfill, 101))
	c.Sort(10, 10, backfill)
	require.True(t, c.Test(10, 10, true, backfill, 102))
	c.Pause(10, 102)
	require.Equal(t, shimtest.NoClaim, c.Sort(10, 10, backfill), "a component is held back")
	require.False(t, c.Test(10, 10, true, backfill, 103))
}

func TestWhatWasFreedIsKeptForTheWholeJob(t *testing.T) {
	var c shimtest.Claims
	for now := range int64(2) {
		c.Test(10, 11, true, backfill, 100+30*now)
		c.Sort(10, 11, backfill)
	}
	c.Evicts(10, 170)
	c.Test(10, 11, false, backfill, 230)
	require.Equal(t, shimtest.HasRoom, c.Sort(10, 11, backfill), "backfill comes by every 30 seconds: until 230")
	c.Test(10, 11, false, backfill, 231)
	require.Equal(t, shimtest.NoClaim, c.Sort(10, 11, backfill))
}

// While nothing comes of a claim others are first only for a few passes, more and more
// rarely.
func TestAClaimThatComesToNothingPauses(t *testing.T) {
	var c shimtest.Claims
	now, pause := int64(100), shimtest.ClaimPause
	for range shimtest.ClaimDoublings + 3 {
		c.Test(10, 11, true, backfill, now)
		for range shimtest.ClaimTests - 1 {
			require.Equal(t, shimtest.NeedsRoom, c.Sort(10, 11, backfill))
			now++
			require.True(t, c.Test(10, 11, true, backfill, now))
		}
		now++
		require.False(t, c.Test(10, 11, true, backfill, now))
		for range 2 {
			require.Equal(t, shimtest.NoClaim, c.Sort(10, 11, backfill))
			require.False(t, c.Test(10, 11, true, backfill, now+pause-1))
		}
		now += pause
		pause = min(2*pause, shimtest.ClaimPause<<shimtest.ClaimDoublings)
	}
}

// Of two components that could take the only room there is the one that comes second needs
// room, which puts it first in the next pass.
func TestComponentsThatTakeEachOthersRoomPause(t *testing.T) {
	var c shimtest.Claims
	first := 0
	for now := range int64(100) {
		needy := uint32(10 + now%2)
		c.Test(10, 21-needy, false, backfill, 100+now)
		require.False(t, c.Test(10, needy, true, backfill, 100+now))
		if c.Sort(10, needy, backfill) != shimtest.NoClaim {
			first++
		}
	}
	require.Equal(t, 4*shimtest.ClaimTests, first, "with pauses of 10, 20, 40 and 80 seconds")
}

func TestClaimsAreFew(t *testing.T) {
	var c shimtest.Claims
	claims := func(het uint32, now int64) bool {
		c.Test(het, het, true, backfill, now)
		return c.Sort(het, het, backfill) == shimtest.NeedsRoom
	}
	for i := range shimtest.MostClaims {
		require.True(t, claims(uint32(1+i), 100))
	}
	require.False(t, claims(1000, 100))
	require.True(t, claims(1, 100+shimtest.ClaimForgotten), "one that is asked for still")
	require.False(t, claims(1000, 100+shimtest.ClaimForgotten))
	require.True(t, claims(1000, 101+shimtest.ClaimForgotten), "the others are forgotten")
	require.True(t, claims(1, 101+shimtest.ClaimForgotten))
}

// hetPart is a component as backfill sees it.
type hetPart struct {
	id      uint32
	needs   bool
	free    int // passes until those who went are gone
	started bool
}

// However many of its components need room, and whichever of them come first, a het job on
// a cluster that does nothing else starts after a few passes, nobody goes twice for a
// component, and none is started before all can be.
func TestAHetJobStartsAtOnceOrNotAtAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c shimtest.Claims
		var parts []*hetPart
		for i := range rapid.IntRange(2, shimtest.ClaimComponents).Draw(t, "components") {
			parts = append(parts, &hetPart{id: uint32(10 + i), needs: rapid.Bool().Draw(t, "needs")})
		}
		parts = rapid.Permutation(parts).Draw(t, "priorities")
		leaves := rapid.IntRange(1, 3).Draw(t, "passes that jobs take to end")
		evicted, now := 0, int64(100)
		for range leaves + 4 {
			slices.SortStableFunc(parts, func(x, y *hetPart) int {
				return int(c.Sort(10, x.id, backfill)) - int(c.Sort(10, y.id, backfill))
			})
			all := true
			for _, p := range parts {
				allowed := c.Test(10, p.id, p.needs, backfill, now)
				all = all && p.free == 0 && (!p.needs || allowed)
			}
			evicting := false
			for _, p := range parts {
				switch {
				case !all:
				case p.needs: // and with it all others that do
					evicting = true
				case evicting:
				default:
					p.started = true
				}
			}
			for _, p := range parts {
				p.free = max(p.free-1, 0)
				if evicting && p.needs {
					require.False(t, p.started)
					p.needs, p.free = false, leaves
					evicted++
					c.Evicts(10, now+40)
				}
				require.False(t, evicting && p.started, "it would be taken back")
			}
			now += 30
		}
		for _, p := range parts {
			require.True(t, p.started)
		}
		require.LessOrEqual(t, evicted, len(parts))
	})
}
