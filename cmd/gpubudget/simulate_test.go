// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// On a terminal each run has a bar that fills, and none is left at the end.
func TestASimulationShowsHowFarItIs(t *testing.T) {
	s := newSession(t, "")
	line := []string{"gpubudget", "simulate", "--nodes", "2x8", "--days", "2", "--accounts", "2", "--users", "2", "--policy", "contract,fifo"}
	p, stdout, stderr := s.program("", false)
	p.progress = true
	require.Zero(t, p.run(context.Background(), line))
	shown := strings.Split(stderr.String(), "\r")
	require.Equal(t, []string{"", "\x1b[K"}, []string{shown[0], shown[len(shown)-1]})
	bars := shown[1 : len(shown)-1]
	for i, policy := range []string{"contract", "fifo"} {
		full := -1
		for len(bars) > 0 && strings.HasPrefix(bars[0], policy+" ") {
			at := strings.Count(bars[0], "#")
			require.Greater(t, at, full, "it is drawn again only when there is more to show")
			_, bar, _ := strings.Cut(bars[0], "[")
			require.Len(t, bar, 30+len("] 1 of 2"))
			require.True(t, strings.HasSuffix(bars[0], []string{" 1 of 2", " 2 of 2"}[i]), bars[0])
			full, bars = at, bars[1:]
		}
		require.Equal(t, 30, full, policy)
	}
	require.Empty(t, bars)

	quiet, want, none := s.program("", false)
	require.Zero(t, quiet.run(context.Background(), line))
	require.Empty(t, none.String(), "nobody watches")
	require.Equal(t, want.String(), stdout.String())
}

// What was made up and what was left out is on the page, too.
func TestThePageSaysWhatWasMadeUpAndLeftOut(t *testing.T) {
	s, out := newSession(t, ""), filepath.Join(t.TempDir(), "out.html")
	s.must("simulate", "--trace", "testdata/bad_jobs.csv", "--nodes", "1x8", "--skip-bad", "--policy", "fifo", "--report", out)
	html, err := os.ReadFile(out)
	require.NoError(t, err)
	for _, note := range []string{
		"users: drawn, 20 in each account by Zipf&#39;s law with exponent 1.2 (seed 1)", "budgets: equal shares for all 2 accounts",
		"skipped: 2 with truncated or overlong row", "skipped: 1 with negative", "skipped: 1 with more GPUs than there are",
	} {
		require.Contains(t, string(html), "<li>"+note+"</li>")
	}
}
