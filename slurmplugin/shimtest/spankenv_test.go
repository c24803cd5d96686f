// SPDX-License-Identifier: GPL-2.0-or-later

package shimtest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/slurmplugin/shimtest"
)

// The client's option sends seconds. Whoever goes round it may send anything.
func TestMinimumRuntimesInTheSpankEnvironment(t *testing.T) {
	const longest = 100 * 365.25 * 86400
	for text, want := range map[string]int64{
		"0": 0, "7200": 7200, "000060": 60, "3155760000": longest, "3155760001": longest, "18446744073709551616": longest,
		"99999999999999999999999999999999999999999999999999": longest,
	} {
		seconds, ok := shimtest.SpankSeconds(text)
		require.True(t, ok, text)
		require.Equal(t, want, seconds, text)
	}
	for _, text := range []string{"", " ", "-1", "+1", " 1", "1 ", "1.5", "2h", "1:00", "0x10", "1e3", "NaN", "\xff", "१"} {
		_, ok := shimtest.SpankSeconds(text)
		require.False(t, ok, "%q", text)
	}
}

func TestTheVariableOfTheSpankEnvironment(t *testing.T) {
	for _, tt := range []struct {
		env  []string
		text string
		at   int
	}{
		{[]string{"GPUBUDGET_MIN_RUNTIME=5"}, "5", 0},
		{[]string{"A=1", "GPUBUDGET_MIN_RUNTIME="}, "", 1},
		{[]string{"A=1", "SPANK_GPUBUDGET_MIN_RUNTIME=-7", "GPUBUDGET_MIN_RUNTIME=5"}, "-7", 1},
		{[]string{"GPUBUDGET_MIN_RUNTIMES=1", "XGPUBUDGET_MIN_RUNTIME=2", "GPUBUDGET_MIN_RUNTIM=3", "", "=", "SPANK_", "GPUBUDGET_MIN_RUNTIME"}, "none", 0},
		{nil, "none", 0},
	} {
		text, at, ok := shimtest.SpankFind(tt.env...)
		if !ok {
			text = "none"
		}
		require.Equal(t, tt.text, text, tt.env)
		require.Equal(t, tt.at, at, tt.env)
	}
}
