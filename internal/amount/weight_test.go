// SPDX-License-Identifier: GPL-2.0-or-later

package amount

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
)

func TestParseWeight(t *testing.T) {
	for text, want := range map[string]fairshare.Weight{
		"1": 1000, "0": 0, "2.25": 2250, ".5": 500, "1.": 1000, "0.001": 1, "1000": 1_000_000, "0.1000": 100, "Default": fairshare.DefaultWeight,
	} {
		got, err := ParseWeight(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for text, want := range map[string]string{
		"":        `weight "" is not understood: give a number (1, 0.5, 2.25) from 0 to 1000, or default`,
		"-1":      `weight "-1" is negative: give a number (1, 0.5, 2.25) from 0 to 1000, or default`,
		"0.0005":  `weight "0.0005" has more than three decimals`,
		"1000.1":  `weight "1000.1" is too much: give a number (1, 0.5, 2.25) from 0 to 1000, or default`,
		"1,5":     `weight "1,5" can be read in two ways, as a decimal comma or as thousands: give a number (1, 0.5, 2.25) from 0 to 1000, or default`,
		"1e3":     `weight "1e3" is not understood: give a number (1, 0.5, 2.25) from 0 to 1000, or default`,
		"nan":     `weight "nan" is not understood: give a number (1, 0.5, 2.25) from 0 to 1000, or default`,
		"50%":     `weight "50%" is not understood: give a number (1, 0.5, 2.25) from 0 to 1000, or default`,
		"1000000": `weight "1000000" is too much: give a number (1, 0.5, 2.25) from 0 to 1000, or default`,
	} {
		_, err := ParseWeight(text)
		require.EqualError(t, err, want)
	}
}

func TestWeightReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := fairshare.Weight(rapid.Int64Range(-1, int64(fairshare.MaxWeight)).Draw(t, "weight"))
		got, err := ParseWeight(Weight(w))
		require.NoError(t, err)
		require.Equal(t, w, got)
	})
}
