// SPDX-License-Identifier: GPL-2.0-or-later

package output

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func table() *Table {
	t := &Table{Columns: []Column{{Name: "Account"}, {Name: "Share", Right: true}, {Name: "Why"}}}
	t.Add("vision", "30%", "plan|Q3\nsecond line")
	t.Add(" höhle", "5%", "")
	return t
}

func write(t *testing.T, tab *Table, style Style, noHeader bool) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, tab.Write(&b, style, noHeader))
	return b.String()
}

func TestParsable(t *testing.T) {
	require.Equal(t, "Account|Share|Why|\nvision|30%|plan/Q3 second line|\n höhle|5%||\n", write(t, table(), Parsable, false))
	require.Equal(t, "vision|30%|plan/Q3 second line\n höhle|5%|\n", write(t, table(), Parsable2, true))
}

func TestWide(t *testing.T) {
	tab := &Table{Columns: []Column{{Name: "Account"}, {Name: "Share", Right: true}, {Name: "Why"}}}
	tab.Add("vision", "30%", "Q3")
	tab.Add(" höhle", "5%", "")
	require.Equal(t, strings.Join([]string{
		"Account Share Why",
		"------- ----- ---",
		"vision    30% Q3",
		" höhle     5%",
		"",
	}, "\n"), write(t, tab, Wide, false))
	require.Equal(t, "vision 30% Q3\n höhle  5%\n", write(t, tab, Wide, true))
}

func TestWideOfNoRows(t *testing.T) {
	tab := &Table{Columns: []Column{{Name: "Account"}}}
	require.Equal(t, "Account\n-------\n", write(t, tab, Wide, false))
	require.Empty(t, write(t, tab, Wide, true))
}

func TestWideOfManyLines(t *testing.T) {
	require.Equal(t, 4, strings.Count(write(t, table(), Wide, false), "\n"), "one line per row")
}
