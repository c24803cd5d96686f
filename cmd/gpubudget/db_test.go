// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/usage"
)

// meteredDays are the days of which there are partitions, and the jobs that they have
// records of.
func (s *session) meteredDays() (days []string, jobs []int64) {
	s.t.Helper()
	s.used(func(ctx context.Context, u *usage.Store) error {
		err := u.DB().QueryRow(ctx, `SELECT array_agg(right(c.relname, 8) ORDER BY c.relname) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
			WHERE i.inhparent = 'gpubudget.gpu_bucket'::regclass`).Scan(&days)
		if err != nil {
			return err
		}
		return u.DB().QueryRow(ctx, `SELECT coalesce(array_agg(DISTINCT job_id ORDER BY job_id), '{}') FROM gpubudget.gpu_bucket`).Scan(&jobs)
	})
	return days, jobs
}

// charged is what all runs are charged, by the runs and by the buckets.
func (s *session) charged() (runs, buckets fairshare.GPUMillis) {
	s.t.Helper()
	s.used(func(ctx context.Context, u *usage.Store) error {
		if _, err := u.ChargeMetered(ctx, "titan"); err != nil {
			return err
		}
		return u.DB().QueryRow(ctx, `SELECT (SELECT sum(gpubudget.run_charged(started_at, ended_at, suspended_ms, suspended_since, gpus, parts, rate, rate_changes, metered_ms, ended_at))
			FROM gpubudget.job_run)::bigint, (SELECT sum(gpu_ms) FROM gpubudget.usage_bucket)::bigint`).Scan(&runs, &buckets)
	})
	return runs, buckets
}

// gpubudget db prune drops the days that are older than the policy keeps meters'
// records, of all clusters the longest; it keeps the others, the days that have been
// made ahead, and all that was charged, also what was charged by what meters saw.
func TestPruneFollowsThePolicy(t *testing.T) {
	s := newSession(t, pgtest.DB(t))
	s.must("-Q", "-M", "titan", "account", "add", "vision", "--share", "50%", "--from", "2025-01-01")
	s.must("-Q", "policy", "set", "charge", "utilisation", "--from", "2025-01-01")
	const aDay = 24 * time.Hour
	if left := time.Until(time.Now().Truncate(aDay).Add(aDay)); left < time.Minute { // all is of one day
		time.Sleep(left)
	}
	today := time.Now().UTC().Truncate(aDay)
	day := func(ago int) string { return today.AddDate(0, 0, -ago).Format("20060102") }
	for job, ago := range []int{50, 36, 35, 20, 2} {
		at := func(hour int) string {
			return today.AddDate(0, 0, -ago).Add(time.Duration(hour) * time.Hour).In(s.zone).Format("2006-01-02T15:04:05")
		}
		require.Empty(t, s.execute(fmt.Sprintf("[run vision/ann 2 n1] %s %s", at(3), at(7))))
		require.Empty(t, s.execute(fmt.Sprintf("[meter %d n1-0 0 90] %s %s %s", job+1, at(3), at(7), at(3))))
	}
	const fourHours = fairshare.GPUMillis(4 * 3_600_000)
	unchanged := func() {
		t.Helper()
		runs, buckets := s.charged()
		require.Equal(t, 5*fourHours, runs, "of two GPUs the one that idled is free")
		require.Equal(t, runs, buckets)
	}
	unchanged()
	prune := func() (dropped []string) {
		t.Helper()
		for line := range strings.Lines(s.must("db", "prune")) {
			date, ok := strings.CutPrefix(strings.TrimSpace(line), "dropped ")
			require.True(t, ok, line)
			dropped = append(dropped, strings.ReplaceAll(date, "-", ""))
		}
		unchanged()
		return dropped
	}

	require.Equal(t, []string{day(50), day(36)}, prune(), "35 days are kept by default")
	days, jobs := s.meteredDays()
	require.Equal(t, []int64{3, 4, 5}, jobs)
	require.Equal(t, []string{day(35), day(20), day(2)}, days[:3])
	require.Equal(t, day(-7), days[len(days)-1], "a week is made ahead")
	require.Equal(t, "nothing is older than 35d\n", s.must("db", "prune"))

	// Of two clusters the one that keeps them longer decides.
	s.must("-Q", "policy", "set", "keep_meter", "10d")
	s.must("-Q", "-M", "mini", "--new-cluster", "account", "add", "small", "--share", "50%", "--from", "2025-01-01")
	s.must("-Q", "-M", "mini", "policy", "set", "keep_meter", "30d")
	require.Equal(t, []string{day(35)}, prune())
	s.must("-Q", "-M", "mini", "policy", "set", "keep_meter", "2d")
	require.Equal(t, []string{day(20)}, prune())
	_, jobs = s.meteredDays()
	require.Equal(t, []int64{5}, jobs)
	require.Contains(t, s.must("usage", "job", "1", "-M", "titan"), "8.00 GPU-hours, 0.00% metered, charged 4.00")
	require.Contains(t, s.must("usage", "job", "5", "-M", "titan"), "8.00 GPU-hours, 50.00% metered, charged 4.00")
}
