// SPDX-License-Identifier: GPL-2.0-or-later

package demo

import (
	"context"
	"fmt"
	"math"
	"strings"

	"gpubudget/fairshare"
	"gpubudget/internal/testcluster"
)

// meter measures how the teams stand.
type meter struct {
	cluster *testcluster.Cluster
	idle    map[string]bool // teams that have been without waiting jobs
}

func newMeter(c *testcluster.Cluster) *meter { return &meter{cluster: c, idle: map[string]bool{}} }

// sample is how the teams stand at one moment.
type sample struct {
	used     map[string]fairshare.GPUMillis // by team, within the window
	total    fairshare.GPUMillis
	capacity fairshare.GPUMillis
	waiting  int64 // GPUs
	busy     int64
	gpus     int
}

func (m *meter) sample(ctx context.Context, f *feeder) (sample, error) {
	r, err := m.cluster.Report(ctx)
	if err != nil {
		return sample{}, err
	}
	waiting, busy := f.queue()
	s := sample{used: map[string]fairshare.GPUMillis{}, capacity: r.CapacityTime, busy: busy, gpus: m.cluster.GPUs()}
	for _, team := range teams {
		row, ok := r.Account(team.name)
		if !ok {
			return sample{}, fmt.Errorf("the report lacks account %s", team.name)
		}
		s.used[team.name] = row.Used
		s.total += row.Used
		s.waiting += waiting[team.name]
		if waiting[team.name] == 0 {
			m.idle[team.name] = true
		}
	}
	return s, nil
}

// idleTeams are the teams that were without demand at some time.
func (m *meter) idleTeams() []string {
	var names []string
	for _, team := range teams {
		if m.idle[team.name] {
			names = append(names, team.name)
		}
	}
	return names
}

// share is a team's part of what was used, in percent.
func (s sample) share(team string) float64 {
	if s.total == 0 {
		return 0
	}
	return 100 * float64(s.used[team]) / float64(s.total)
}

// occupancy is the part of the cluster's time that was used.
func (s sample) occupancy() float64 {
	if s.capacity == 0 {
		return 0
	}
	return float64(s.total) / float64(s.capacity)
}

// worst is how many points the team that is furthest off its budget is off,
// among those that had demand all the time; judged is how many those are.
func (s sample) worst(m *meter) (points float64, judged int) {
	for _, team := range teams {
		if m.idle[team.name] {
			continue
		}
		judged++
		points = max(points, math.Abs(s.share(team.name)-team.budget))
	}
	return points, judged
}

func (s sample) shares() string {
	var parts []string
	for _, team := range teams {
		parts = append(parts, fmt.Sprintf("%s %.1f%% of %.0f%%", team.name, s.share(team.name), team.budget))
	}
	return strings.Join(parts, ", ")
}

func (s sample) String() string {
	return fmt.Sprintf("%s   GPUs busy %d/%d, waited for %d", s.shares(), s.busy, s.gpus, s.waiting)
}
