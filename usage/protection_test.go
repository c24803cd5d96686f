// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestComponentsOfAHetJobAreOneJob(t *testing.T) {
	runs := []Run{{JobID: 1}, {JobID: 5, HetJobID: 4}, {JobID: 2}, {JobID: 4, HetJobID: 4}, {JobID: 8, HetJobID: 8}}
	var ids [][]uint32
	for _, job := range Jobs(runs) {
		var of []uint32
		for _, r := range job {
			of = append(of, r.JobID)
		}
		ids = append(ids, of)
	}
	require.Equal(t, [][]uint32{{1}, {5, 4}, {2}, {8}}, ids)
}

func TestTheProtectionThatLastsLongestCounts(t *testing.T) {
	start := time.Date(2026, 10, 5, 8, 0, 0, 0, time.UTC)
	run := func(gpus int64, allocated bool, minRuntime time.Duration) *Run {
		return &Run{GPUs: gpus, Allocated: allocated, MinRuntime: &minRuntime, StartedAt: start}
	}
	unknown := &Run{GPUs: 1, Allocated: true, StartedAt: start}
	for _, tt := range []struct {
		name string
		job  []*Run
		want Protection
	}{
		{"alone", []*Run{run(2, true, time.Hour)}, Protection{Until: start.Add(time.Hour), Allocated: true, GPUs: 2}},
		{"unallocated", []*Run{run(2, false, time.Hour)}, Protection{GPUs: 2}},
		{"the longer", []*Run{run(2, true, time.Hour), run(1, true, 2*time.Hour), run(1, true, time.Minute)},
			Protection{Until: start.Add(2 * time.Hour), Allocated: true, GPUs: 4}},
		{"an unallocated sibling", []*Run{run(2, false, 0), run(1, true, time.Hour)},
			Protection{Until: start.Add(time.Hour), Allocated: true, GPUs: 3}},
		{"nothing left of it after a resize", []*Run{run(2, true, 0)}, Protection{Allocated: true, GPUs: 2}},
		{"of an older release", []*Run{unknown}, Protection{Unknown: true, Allocated: true, GPUs: 1}},
		{"a sibling of an older release", []*Run{run(2, true, time.Hour), unknown},
			Protection{Until: start.Add(time.Hour), Unknown: true, Allocated: true, GPUs: 3}},
		{"a sibling without a whole GPU", []*Run{run(2, true, time.Hour), run(0, true, 9*time.Hour)},
			Protection{Until: start.Add(time.Hour), Allocated: true, GPUs: 2}},
		{"no whole GPU", []*Run{run(0, true, time.Hour)}, Protection{Until: start.Add(time.Hour), Allocated: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, ProtectionOf(tt.job, start.Add(30*time.Minute)))
		})
	}
}
