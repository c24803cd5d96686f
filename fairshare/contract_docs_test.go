// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each rule has its line in the manual, which names the functions that are the rule
// and their table tests.
func TestEveryRuleHasItsFunctionAndItsTest(t *testing.T) {
	manual, err := os.ReadFile("../docs/contract.md")
	require.NoError(t, err)
	source, tests := goFiles(t)
	names := regexp.MustCompile("`(\\w+)`")
	found := map[string]bool{}
	rule := ""
	_, table, _ := strings.Cut(string(manual), "| Rule | Says | Function | Table test |\n")
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(line, "|")
		require.Len(t, cells, 6, line)
		if strings.Contains(cells[1], "-") {
			continue // below the head
		}
		if name := strings.TrimSpace(cells[1]); name != "" {
			rule = name
		}
		functions, itsTests := names.FindAllStringSubmatch(cells[3], -1), names.FindAllStringSubmatch(cells[4], -1)
		require.NotEmpty(t, functions, line)
		require.NotEmpty(t, itsTests, line)
		for _, f := range functions {
			require.Regexp(t, `(?m)^func (\(\w+ \*?\w+\) )?`+f[1]+`\(`, source, rule)
		}
		for _, f := range itsTests {
			require.Regexp(t, `(?m)^func `+f[1]+`\(t \*testing\.T\)`, tests, rule)
			require.Contains(t, f[1], rule)
		}
		found[rule] = true
	}
	require.Equal(t, map[string]bool{"R1": true, "R2": true, "R3": true, "R4": true, "R5": true, "R6": true, "R7": true}, found)
}

// goFiles are the package's source and its tests.
func goFiles(t *testing.T) (source, tests string) {
	t.Helper()
	paths, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		if strings.HasSuffix(path, "_test.go") {
			tests += string(text)
			continue
		}
		source += string(text)
	}
	return source, tests
}
