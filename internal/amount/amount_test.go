// SPDX-License-Identifier: GPL-2.0-or-later

package amount

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
)

func TestParseHours(t *testing.T) {
	const hour = fairshare.GPUHour
	for _, tc := range []struct {
		text string
		want fairshare.GPUMillis
	}{
		{"100", 100 * hour},
		{"100h", 100 * hour},
		{"100 hours", 100 * hour},
		{"5 GPU-hours", 5 * hour},
		{"1.5h", hour + hour/2},
		{".5", hour / 2},
		{"2.", 2 * hour},
		{"90m", hour + hour/2},
		{"30s", 30_000},
		{"2d", 48 * hour},
		{"1-12", 36 * hour},
		{"1-12:00:00", 36 * hour},
		{"0-00:00:01", 1000},
		{"100:30:00", 100*hour + hour/2},
		{"0.0000002", 1}, // 0.72 ms
		{"1000000000", 1_000_000_000 * hour},
		{"000000000000000000000000000001", hour},
	} {
		got, err := ParseHours(tc.text)
		require.NoError(t, err, "%q", tc.text)
		require.Equal(t, tc.want, got, "%q", tc.text)
	}
}

func TestParseHoursRefuses(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"-5", `GPU time "-5" is negative: give a positive amount; to take GPU time from an account, transfer it to another`},
		{"- 5h", `GPU time "- 5h" is negative: give a positive amount; to take GPU time from an account, transfer it to another`},
		{"0", `GPU time "0" is zero: give more than half a millisecond`},
		{"0-00:00:00", `GPU time "0-00:00:00" is zero: give more than half a millisecond`},
		{"0.0000001", `GPU time "0.0000001" is zero: give more than half a millisecond`},
		{"NaN", `GPU time "NaN" is not a finite number: give ` + HoursForms},
		{"-Inf", `GPU time "-Inf" is not a finite number: give ` + HoursForms},
		{"unlimited", `GPU time "unlimited" is not a finite number: give ` + HoursForms},
		{"1000000001", `GPU time "1000000001" is too much: the most is 1000000000 hours`},
		{"99999999999999999999999999", `GPU time "99999999999999999999999999" is too much: the most is 1000000000 hours`},
		{"1,000", `GPU time "1,000" can be read in two ways, as a decimal comma or as thousands: write 1.000 or 1000`},
		{"1:30", `GPU time "1:30" can be read as hours:minutes or as minutes:seconds: write HH:MM:SS`},
		{"1-24:00:00", `GPU time "1-24:00:00": hours go to 23, minutes and seconds to 59`},
		{"10:60:00", `GPU time "10:60:00": hours go to 23, minutes and seconds to 59`},
		{"5 weeks", `GPU time "5 weeks" has an unknown unit "weeks": give ` + HoursForms},
		{"1e3", `GPU time "1e3" is not understood: give ` + HoursForms},
		{"", `GPU time "" is not understood: give ` + HoursForms},
		{"ten", `GPU time "ten" is not understood: give ` + HoursForms},
	} {
		_, err := ParseHours(tc.text)
		require.EqualError(t, err, tc.want)
	}
}

func TestHours(t *testing.T) {
	require.Equal(t, "100", Hours(100*fairshare.GPUHour))
	require.Equal(t, "1.5", Hours(5_400_000))
	require.Equal(t, "0.000278", Hours(1000))
	require.Equal(t, "-2.25", Hours(-8_100_000))
	require.Equal(t, "0", Hours(0))
}

func TestParsePercent(t *testing.T) {
	for _, tc := range []struct {
		text string
		want fairshare.Share
	}{
		{"30", 300_000_000},
		{"30%", 300_000_000},
		{" 12.5 % ", 125_000_000},
		{"0", 0},
		{"0%", 0},
		{"0.3%", 3_000_000},
		{".5%", 5_000_000},
		{"100", fairshare.Whole},
		{"100.0%", fairshare.Whole},
		{"33.3333333", 333_333_333},
		{"0.0000001%", 1},
		{"1", 10_000_000},
	} {
		got, err := ParsePercent(tc.text)
		require.NoError(t, err, "%q", tc.text)
		require.Equal(t, tc.want, got, "%q", tc.text)
	}
}

func TestParsePercentRefuses(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"-1", `share "-1" is negative: give percent (30, 30%, 12.5%) from 0 to 100`},
		{"100.1", `share "100.1" is more than 100% of the parent: give percent (30, 30%, 12.5%) from 0 to 100`},
		{"0.3", `share "0.3" can be read in two ways, as 0.3% or as a fraction: write 0.3% or 30%`},
		{"33.33333333%", `share "33.33333333%" has more than seven decimals`},
		{"NaN", `share "NaN" is not understood: give percent (30, 30%, 12.5%) from 0 to 100`},
		{"1/3", `share "1/3" is not understood: give percent (30, 30%, 12.5%) from 0 to 100`},
		{"12,5", `share "12,5" is not understood: give percent (30, 30%, 12.5%) from 0 to 100`},
		{"", `share "" is not understood: give percent (30, 30%, 12.5%) from 0 to 100`},
	} {
		_, err := ParsePercent(tc.text)
		require.EqualError(t, err, tc.want)
	}
}

func TestParseUserShare(t *testing.T) {
	s, err := ParseUserShare("Equal")
	require.NoError(t, err)
	require.Equal(t, fairshare.EqualPart, s)
	s, err = ParseUserShare("10%")
	require.NoError(t, err)
	require.Equal(t, fairshare.Share(100_000_000), s)
	_, err = ParseUserShare("half")
	require.EqualError(t, err, `share "half" is not understood: give percent (30, 30%, 12.5%) from 0 to 100, or equal`)
}

// Every share is printed so that it reads back as itself.
func TestPercentReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := fairshare.Share(rapid.Int64Range(-1, int64(fairshare.Whole)).Draw(t, "share"))
		got, err := ParseUserShare(Percent(want))
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"1.5h", "1-12:00:00", "33%", "0.1", ".", "1e9", "9999999999999d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if g, err := ParseHours(s); err == nil {
			require.Positive(t, g)
			require.LessOrEqual(t, g.Hours(), float64(MaxHours))
		}
		if p, err := ParsePercent(s); err == nil {
			require.True(t, p >= 0 && p <= fairshare.Whole)
		}
	})
}
