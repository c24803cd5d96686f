// SPDX-License-Identifier: GPL-2.0-or-later

package shimtest_test

import (
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/slurmplugin/shimtest"
)

const (
	minute = 60
	hour   = 60 * minute
	day    = 24 * hour
)

func TestMinimumRuntimesAsText(t *testing.T) {
	for text, want := range map[string]uint64{
		// Slurm's formats.
		"0": 0, "7": 7 * minute, "007": 7 * minute, "90": 90 * minute, "7:30": 7*minute + 30, "0:05": 5, "90:90": 91*minute + 30,
		"1:02:03": hour + 2*minute + 3, "00:00:00": 0, "100:00:00": 100 * hour,
		"0-4": 4 * hour, "2-3": 2*day + 3*hour, "0-0": 0, "1-2:03": day + 2*hour + 3*minute, "1-2:03:04": day + 2*hour + 3*minute + 4, "0-25": 25 * hour,
		// With a unit.
		"0s": 0, "90s": 90, "30m": 30 * minute, "2h": 2 * hour, "1d": day, "90S": 90, "30M": 30 * minute, "2H": 2 * hour, "1D": day,
		// As long as can be.
		"36525d": shimtest.MinRuntimeLongest, "36525-0": shimtest.MinRuntimeLongest, "52596000": shimtest.MinRuntimeLongest,
		"3155760000s": shimtest.MinRuntimeLongest, "00000000000000000000000000000000001": minute,
	} {
		seconds, ok := shimtest.MinRuntime(text, 77)
		require.True(t, ok, text)
		require.Equal(t, want, seconds, text)
	}
}

func TestWhatIsNoMinimumRuntime(t *testing.T) {
	for _, text := range []string{
		"", " ", "s", "d", "-", ":", "x", "1x", "1 ", " 1", "1\n", "1w", "1y", "1ms", "1min", "1hh", "1d1", "1dd", "1d2h", "2h3", "2h30m",
		"-1", "-1h", "-1:00", "+1", "1.5", "1.5h", "1,5", "1e3", "0x10", "NaN", "inf", "INFINITE", "UNLIMITED", "\xff", "१",
		"1:", ":1", "1::2", "1:2:", "1:2:3:", "1:2:3:4", "1:-2", "1:2h", "1:2:3s",
		"1-", "-1-2", "1-2-3", "1--2", "1-:2", "1-2:", "1-2:3:", "1-2:3:4:5", "1-2h", "1-2:3m", "1d-2", "1:2-3", "1-x",
		// Too long, by a second or by so much that it fits in no number.
		"36526d", "36525-0:0:1", "36525-1", "52596001", "3155760001s", "876601h", "0-876601", "1-876600", "876600:00:01",
		"4294967296d", "18446744073709551615", "18446744073709551616", "18446744073709551617s", "213503982334601d", "307445734561825861",
		"99999999999999999999999999999999999999:0:0", "0-99999999999999999999999999999999999999", "99999999999999999999999999999999999999-0",
	} {
		seconds, ok := shimtest.MinRuntime(text, 77)
		require.False(t, ok, "%q is %d seconds", text, seconds)
		require.Equal(t, uint64(77), seconds, "%q", text)
	}
}

func TestHowAMinimumRuntimeIsSaid(t *testing.T) {
	for seconds, want := range map[uint64]string{
		0: "00:00:00", 59: "00:00:59", hour - 1: "00:59:59", 8 * hour: "08:00:00", day - 1: "23:59:59", day: "1-00:00:00",
		2*day + 3*hour + 4*minute + 5: "2-03:04:05", math.MaxUint64: "213503982334601-07:00:15",
	} {
		require.Equal(t, want, shimtest.MinRuntimeText(seconds))
	}
}

// What it says it understands, and a number is as many of a unit whatever the unit.
func TestMinimumRuntimesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.Uint64Range(0, shimtest.MinRuntimeLongest).Draw(t, "seconds")
		for _, text := range []string{shimtest.MinRuntimeText(want), strconv.FormatUint(want, 10) + "s"} {
			seconds, ok := shimtest.MinRuntime(text, 0)
			require.True(t, ok, text)
			require.Equal(t, want, seconds, text)
		}
	})
}

// Whatever is written there, it is a time that isn't too long, or none.
func TestAnythingAsAMinimumRuntime(t *testing.T) {
	text := rapid.OneOf(rapid.StringMatching(`[0-9]{0,25}[-:]?[0-9]{0,3}:?[0-9]{0,25}[smhdx]?`), rapid.String())
	rapid.Check(t, func(t *rapid.T) {
		text := text.Draw(t, "text")
		seconds, ok := shimtest.MinRuntime(text, shimtest.MinRuntimeLongest)
		require.LessOrEqual(t, seconds, shimtest.MinRuntimeLongest)
		if !ok {
			return
		}
		require.Regexp(t, `^[0-9]+([smhdSMHD]|(:[0-9]+){0,2}|-[0-9]+(:[0-9]+){0,2})?(\x00.*)?$`, text)
	})
}
