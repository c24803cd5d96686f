// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
)

func TestMinRuntime(t *testing.T) {
	usual := fairshare.Terms{Default: time.Hour, Cap: 8 * time.Hour}
	for _, tt := range []struct {
		name         string
		terms        fairshare.Terms
		asked, limit time.Duration
		want         time.Duration
	}{
		{"nothing said", usual, fairshare.NotAsked, 0, time.Hour},
		{"any negative is nothing said", usual, -time.Hour, 0, time.Hour},
		{"asked for", usual, 2 * time.Hour, 0, 2 * time.Hour},
		{"the cap", usual, 8 * time.Hour, 0, 8 * time.Hour},
		{"beyond the cap", usual, 9 * time.Hour, 0, 8 * time.Hour},
		{"none", usual, 0, time.Hour, 0},
		{"the default beyond the time limit", usual, fairshare.NotAsked, 10 * time.Minute, 10 * time.Minute},
		{"asked for, beyond the time limit", usual, 2 * time.Hour, time.Hour, time.Hour},
		{"within the time limit", usual, 2 * time.Hour, 3 * time.Hour, 2 * time.Hour},
		{"beyond both", usual, 12 * time.Hour, 10 * time.Hour, 8 * time.Hour},
		{"the cap isn't for the default", fairshare.Terms{Default: 2 * time.Hour, Cap: time.Hour}, fairshare.NotAsked, 0, 2 * time.Hour},
		{"no default", fairshare.Terms{Cap: time.Hour}, fairshare.NotAsked, time.Hour, 0},
		{"no default, asked for", fairshare.Terms{Cap: time.Hour}, time.Minute, 0, time.Minute},
		{"nobody may ask for any", fairshare.Terms{Default: time.Hour}, time.Minute, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, tt.terms.MinRuntime(tt.asked, tt.limit))
			require.Equal(t, tt.want == 0, tt.terms.Unallocated(tt.asked))
		})
	}
}

// No time limit but none at all makes a job unallocated, and asking for more
// never brings less.
func TestMinRuntimeProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		terms := fairshare.Terms{Default: length(t, "default"), Cap: length(t, "cap")}
		asked, more, limit := length(t, "asked"), length(t, "more"), length(t, "limit")
		got := terms.MinRuntime(asked, limit)
		require.LessOrEqual(t, got, terms.MinRuntime(asked+more, limit))
		require.LessOrEqual(t, got, min(asked, terms.Cap))
		require.Equal(t, terms.Unallocated(asked), got == 0)
		if limit > 0 {
			require.LessOrEqual(t, got, limit)
		}
	})
}

func length(t *rapid.T, label string) time.Duration {
	return time.Duration(rapid.Int64Range(0, 3).Draw(t, label)) * time.Minute
}

// The nearest account says it, then the cluster; who names a time gets that.
func TestMinRuntimeOfAnAccount(t *testing.T) {
	above := map[string]string{"detection": "vision", "vision": "root", "speech": "root", "faces": "detection"}
	parent := func(account string) string { return above[account] }
	terms := fairshare.Terms{Default: time.Hour, Cap: 8 * time.Hour, Accounts: map[string]time.Duration{
		"vision": 30 * time.Minute, "faces": 10 * time.Hour,
	}}
	for account, want := range map[string]time.Duration{
		"vision": 30 * time.Minute, "detection": 30 * time.Minute, "faces": 10 * time.Hour,
		"speech": time.Hour, "root": time.Hour, "nobody": time.Hour, "": time.Hour,
	} {
		of := terms.Of(account, parent)
		require.Equal(t, want, of.MinRuntime(fairshare.NotAsked, 0), account)
		require.Equal(t, min(want, 20*time.Minute), of.MinRuntime(fairshare.NotAsked, 20*time.Minute), account)
		require.Equal(t, 2*time.Hour, of.MinRuntime(2*time.Hour, 0), account)
		require.Equal(t, time.Duration(0), of.MinRuntime(0, 0), account)
		for _, asked := range []time.Duration{0, time.Hour, fairshare.NotAsked} {
			require.Equal(t, terms.Unallocated(asked), of.Unallocated(asked), "no account changes that")
		}
	}
	terms.Default = 0
	require.True(t, terms.Of("vision", parent).Unallocated(fairshare.NotAsked))
}
