// SPDX-License-Identifier: GPL-2.0-or-later

package meter

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestIntegrate(t *testing.T) {
	const s = 1_000_000
	tests := []struct {
		name    string
		samples []Sample
		want    Busy
	}{
		{"nothing", nil, Busy{}},
		{"each sample is about the time since the one before", []Sample{{5*s + 250_000, 100}, {5*s + 500_000, 0}, {6 * s, 50}},
			Busy{Busy: 500 * time.Millisecond, Known: time.Second}},
		{"a gap is not known, but for the last second of it", []Sample{{6 * s, 100}, {60 * s, 100}}, Busy{Busy: 2 * time.Second, Known: 2 * time.Second}},
		{"samples read before do not count again", []Sample{{4 * s, 100}, {5 * s, 100}, {5*s + 1, 100}}, Busy{Busy: time.Microsecond, Known: time.Microsecond}},
		{"a percentage that is none is time that is not known", []Sample{{6 * s, 101}, {7 * s, math.NaN()}, {8 * s, -1}, {9 * s, 100}},
			Busy{Busy: time.Second, Known: time.Second}},
		{"a time that is none", []Sample{{0, 100}, {math.MaxInt64, 100}}, Busy{Busy: time.Second, Known: time.Second}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.want.Source = FromSamples
			require.Equal(t, test.want, integrate(test.samples, 5*s))
		})
	}
}

func TestIntegrateProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		since := rapid.Int64Range(1, 1<<50).Draw(t, "since")
		at := since
		var samples []Sample
		for range rapid.IntRange(0, 50).Draw(t, "samples") {
			at += rapid.Int64Range(1, 3_000_000).Draw(t, "gap")
			samples = append(samples, Sample{at, float64(rapid.IntRange(-1, 101).Draw(t, "percent"))})
		}
		b := integrate(samples, since)
		require.LessOrEqual(t, b.Busy, b.Known)
		require.GreaterOrEqual(t, b.Busy, time.Duration(0))
		require.LessOrEqual(t, b.Known, time.Duration(at-since)*time.Microsecond, "no more than the time that passed")

		// However a poller cuts the ring, the sums are the same.
		cut := rapid.IntRange(0, len(samples)).Draw(t, "cut")
		first, middle := integrate(samples[:cut], since), since
		if cut > 0 {
			middle = samples[cut-1].At
		}
		second := integrate(samples[cut:], middle)
		require.Equal(t, b.Known, first.Known+second.Known)
		require.Equal(t, b.Busy, first.Busy+second.Busy)
	})
}

func TestBegin(t *testing.T) {
	const s = 1_000_000
	require.Equal(t, int64(90*s-100_000), begin(100*s, 90*s-100_000, 10*time.Second), "where the last round ended, though it was a little earlier")
	require.Equal(t, int64(90*s+100_000), begin(100*s, 90*s+100_000, 10*time.Second), "or later")
	require.Equal(t, int64(90*s), begin(100*s, 80*s, 10*time.Second), "there was a round in between that the ring told nothing of")
	require.Equal(t, int64(90*s), begin(100*s, 0, 10*time.Second))
}

func TestHasBadLists(t *testing.T) {
	for version, want := range map[string]bool{
		"535.43.02": true, "535.54.03": true, "535.86.10": true, "535.42": false, "535.104.05": false, "535.129.03": false,
		"530.54.03": false, "550.54.15": false, "": false, "535": false, "535.x": false,
	} {
		require.Equal(t, want, hasBadLists(version), version)
	}
}

func TestAlive(t *testing.T) {
	require.True(t, alive(1), "it is somebody else's, and alive")
	require.False(t, alive(maxPID), "PIDs end below this number")
}
