// SPDX-License-Identifier: GPL-2.0-or-later

package nearest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWord(t *testing.T) {
	accounts := []string{"vision", "video", "speech", "ml", "nlp", "proga", "progb"}
	for _, tc := range []struct{ word, want string }{
		{"visoin", "vision"},    // two letters swapped
		{"visio", "vision"},     // begins it
		{"VISION", "vision"},    // case
		{"speach", "speech"},    // one replaced
		{"progc", "proga"},      // a tie: the first by name
		{"mll", "ml"},           // one too many
		{"physics", ""},         // nothing like it
		{"", ""},                // nothing typed
		{"x", ""},               // a single letter matches nothing by its beginning
		{"visionary", "vision"}, // begun by it
	} {
		require.Equal(t, tc.want, Word(tc.word, accounts), "%q", tc.word)
	}
	require.Empty(t, Word("vision", nil))
}

func TestWordDoesNotReorderItsInput(t *testing.T) {
	in := []string{"b", "a"}
	Word("a", in)
	require.Equal(t, []string{"b", "a"}, in)
}
