// SPDX-License-Identifier: GPL-2.0-or-later

package demo

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

// A short run goes the whole way to the verdict, whose numbers are the
// cluster's; it is too short to ask that the verdict be good.
func TestShortRun(t *testing.T) {
	var out strings.Builder
	err := Run(t.Context(), &out, Options{Length: 20 * time.Second})
	verdict := out.String()
	if failure, ok := errors.AsType[*VerdictError](err); ok {
		verdict = failure.Verdict
	} else {
		require.NoError(t, err)
		require.Contains(t, verdict, "\ndemo: OK max share error ")
	}
	require.Regexp(t, `max share error \d+\.\d points \(language [\d.]+% of 50%, vision [\d.]+% of 30%, robots [\d.]+% of 20%\); `+
		`[1-9]\d+ jobs of 7 users, .*; usage equals sacct: [1-9]\d+ GPU-seconds`, verdict)
	require.Contains(t, out.String(), "gpub_ann", "gshare's table")
	require.Regexp(t, `demo: metered by 2 agents on simulated GPUs: [1-9][\d.]+ of the [1-9]\d+ GPU-seconds of sacct were metered \(\d+\.\d%\)`, out.String())
	require.Regexp(t, `(?m)^root .* (9\d|100)\.\d\d$`, out.String(), "Meter% in gshare's table of what was metered")
}

func TestVerdict(t *testing.T) {
	s := sample{total: 1000, capacity: 1250, used: map[string]fairshare.GPUMillis{"language": 440, "vision": 320, "robots": 240}}
	m := newMeter(nil)
	worst, judged := s.worst(m)
	require.InDelta(t, 6, worst, 1e-9)
	require.Equal(t, 3, judged)
	require.InDelta(t, 0.8, s.occupancy(), 1e-9)

	// Who had nothing to run can't be given his budget.
	m.idle["language"] = true
	worst, judged = s.worst(m)
	require.InDelta(t, 4, worst, 1e-9)
	require.Equal(t, 2, judged)
	require.Equal(t, []string{"language"}, m.idleTeams())

	require.Zero(t, sample{}.share("vision"))
	require.Zero(t, sample{}.occupancy())
}

func TestTeams(t *testing.T) {
	require.Equal(t, "language", teamOf("speech"))
	require.Equal(t, "robots", teamOf("robots"))
	require.Len(t, users(), 7)
	for _, user := range users() {
		require.Positive(t, waiting[user], user)
	}
	var sum float64
	for _, team := range teams {
		sum += team.budget
	}
	require.InDelta(t, 100, sum, 0)
}
