// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// swept is by setting two values to sweep.
var swept = map[string][2]string{
	optMode: {"strict", "additive"}, optLookback: {"1h", "2d"}, optHalfLife: {"1h", "2d"}, optMinRuntime: {"0s", "2h"}, optMinRuntimeCap: {"10m", "8h"}, optCheckpoint: {"0s", "1h"},
	optCalcInterval: {"30s", "1h"}, optBackfillInterval: {"10s", "10m"}, optMargin: {"0", "5"}, optEvictedPerGPU: {"0.1", "0"}, optPreemptPerDay: {"0", "1"},
	optLargeJob: {"0", "4"}, optPatientGPUs: {"0", "2"}, optPatience: {"0s", "1d"},
}

// A sweep says, as JSON, what each of its values says when it is given as an
// option, for each setting.
func TestASweepIsOneRunForEachValue(t *testing.T) {
	s := newSession(t, "")
	for _, setting := range settingOrder {
		t.Run(setting, func(t *testing.T) {
			values, ok := swept[setting]
			require.True(t, ok, "give this setting two values")
			const policies = "contract,multifactor"
			var want []map[string]any
			for _, value := range values {
				for _, r := range simulated(t, s, policies, "--"+setting, value) {
					r["policy"] = r["policy"].(string) + " " + setting + "=" + value
					want = append(want, r)
				}
			}
			got := simulated(t, s, policies, "--sweep", setting+"="+values[0]+","+values[1])
			slices.SortStableFunc(want, byLabel)
			slices.SortStableFunc(got, byLabel)
			require.Equal(t, want, got)
			require.True(t, slices.ContainsFunc(got, func(r map[string]any) bool { return differs(r, got) }), "it makes no difference")
		})
	}
}

func byLabel(x, y map[string]any) int {
	if x["policy"].(string) < y["policy"].(string) {
		return -1
	}
	return 1
}

// differs tells whether there is a run of the same policy with another result.
func differs(r map[string]any, all []map[string]any) bool {
	return slices.ContainsFunc(all, func(other map[string]any) bool {
		return r["policy"].(string)[:8] == other["policy"].(string)[:8] && r["occupancy_percent"] != other["occupancy_percent"]
	})
}

func simulated(t *testing.T, s *session, policies string, args ...string) []map[string]any {
	t.Helper()
	var got struct {
		Results []map[string]any `json:"results"`
	}
	line := append([]string{"simulate", "--nodes", "4x8", "--days", "2", "--accounts", "4", "--users", "2", "--largest", "16", "--patient-gpus", "4", "--policy", policies, "--json"}, args...)
	require.NoError(t, json.Unmarshal([]byte(s.must(line...)), &got))
	require.NotEmpty(t, got.Results)
	return got.Results
}
