// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

func TestGPUMillis(t *testing.T) {
	start := time.Date(2026, 10, 5, 8, 0, 0, 0, time.UTC)
	after := func(d time.Duration) *time.Time { at := start.Add(d); return &at }
	for _, tt := range []struct {
		name  string
		run   Run
		until time.Duration
		want  fairshare.GPUMillis
	}{
		{"open", Run{GPUs: 3}, 10 * time.Second, 30_000},
		{"open, before it started", Run{GPUs: 3}, -10 * time.Second, 0},
		{"open, was suspended", Run{GPUs: 3, Suspended: 4 * time.Second}, 10 * time.Second, 18_000},
		{"open, suspended longer than it ran", Run{GPUs: 3, Suspended: time.Hour}, 10 * time.Second, 0},
		{"open, suspended now", Run{GPUs: 3, Suspended: time.Second, SuspendedSince: after(4 * time.Second)}, 10 * time.Second, 9_000},
		{"open, suspended before it started", Run{GPUs: 3, SuspendedSince: after(-time.Second)}, 10 * time.Second, 0},
		{"ended", Run{GPUs: 3, EndedAt: after(5 * time.Second)}, 10 * time.Second, 15_000},
		{"ended, cut", Run{GPUs: 3, EndedAt: after(20 * time.Second)}, 10 * time.Second, 30_000},
		{"ended, cut, was suspended", Run{GPUs: 1, Suspended: 10 * time.Second, EndedAt: after(20 * time.Second)}, 1001 * time.Millisecond, 500},
		{"ended before it started", Run{GPUs: 3, EndedAt: after(-time.Second)}, 10 * time.Second, 0},
		{"without GPUs", Run{EndedAt: after(time.Second)}, 10 * time.Second, 0},
		{"large", Run{GPUs: 1 << 20, Suspended: time.Second, EndedAt: after(8000 * time.Hour)}, 4000 * time.Hour, 1 << 20 * (8000*3600_000 - 1000) / 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.run.StartedAt = start
			require.Equal(t, tt.want, tt.run.GPUMillis(start.Add(tt.until)))
		})
	}
}

func TestBucket(t *testing.T) {
	const hour = fairshare.Instant(3600_000)
	for _, tt := range []struct {
		at     fairshare.Instant
		length time.Duration
		want   fairshare.Period
	}{
		{0, time.Hour, fairshare.Period{From: 0, Until: hour}},
		{hour - 1, time.Hour, fairshare.Period{From: 0, Until: hour}},
		{hour, time.Hour, fairshare.Period{From: hour, Until: 2 * hour}},
		{-1, time.Hour, fairshare.Period{From: -hour, Until: 0}},
		{-hour, time.Hour, fairshare.Period{From: -hour, Until: 0}},
		{12_345, 10 * time.Second, fairshare.Period{From: 10_000, Until: 20_000}},
		{12_345, 0, fairshare.Period{From: 0, Until: hour}},
	} {
		require.Equal(t, tt.want, Bucket(tt.at, tt.length), tt)
	}
}

func TestCharges(t *testing.T) {
	start := time.Date(2026, 10, 5, 8, 0, 0, 0, time.UTC)
	now := start.Add(time.Hour)
	p := fairshare.Period{From: fairshare.At(start), Until: fairshare.At(now)}
	allocated, unallocated := Charges([]Run{
		{Account: "a", User: "u", GPUs: 2, Allocated: true, StartedAt: start},
		{Account: "a", User: "v", GPUs: 1, StartedAt: start},
		{Account: "a", User: "w", Allocated: true, StartedAt: start}, // no GPUs
		{Account: "b", User: "u", GPUs: 1, Allocated: true, StartedAt: now.Add(time.Minute)},
	}, now)
	require.Equal(t, []fairshare.Charge{{Period: p, Account: "a", User: "u", Amount: 2 * fairshare.GPUHour}}, allocated)
	require.Equal(t, []fairshare.Charge{{Period: p, Account: "a", User: "v", Amount: fairshare.GPUHour}}, unallocated)
}

func TestProtectedUntil(t *testing.T) {
	hour, start := time.Hour, time.Date(2026, 10, 5, 8, 0, 0, 0, time.UTC)
	run := Run{Allocated: true, MinRuntime: &hour, StartedAt: start, GPUs: 1}
	for _, tt := range []struct {
		name   string
		change func(*Run)
		now    time.Duration
		want   time.Duration // from the start; negative: never
	}{
		{"from its start on", nil, time.Minute, time.Hour},
		{"long ago", nil, 5 * time.Hour, time.Hour},
		{"suspended time doesn't count", func(r *Run) { r.Suspended = 10 * time.Minute }, 30 * time.Minute, 70 * time.Minute},
		{"suspended now", func(r *Run) {
			r.Suspended, r.SuspendedSince = 10*time.Minute, new(start.Add(20*time.Minute))
		}, 30 * time.Minute, 80 * time.Minute},
		{"it has ended", func(r *Run) { r.EndedAt = new(start.Add(time.Minute)) }, 30 * time.Minute, time.Hour},
		{"unallocated", func(r *Run) { r.Allocated = false }, time.Minute, -1},
		{"nothing left of it after a resize", func(r *Run) { r.MinRuntime = new(time.Duration(0)) }, time.Minute, -1},
		{"of an older release", func(r *Run) { r.MinRuntime = nil }, time.Minute, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := run
			if tt.change != nil {
				tt.change(&r)
			}
			until, ok := r.ProtectedUntil(start.Add(tt.now))
			require.Equal(t, tt.want >= 0, ok)
			if ok {
				require.Equal(t, tt.want, until.Sub(start))
			}
		})
	}
}
