// SPDX-License-Identifier: GPL-2.0-or-later

package usage_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/usage"
)

// BenchmarkCharges reads a week of hourly buckets of 200 users, with two weeks
// of runs in the table, and edges that cut a bucket.
func BenchmarkCharges(b *testing.B) {
	db := pgtest.Pool(b)
	s := usage.NewStore(db)
	const week = 7 * 24 * time.Hour
	var runs []usage.Run
	for i := range 60_000 {
		start := time.Duration(i) * (2 * week / 60_000)
		r := ended("c", uint32(i), 8, start, start+time.Duration(i%7+1)*time.Hour)
		r.Account, r.User = fmt.Sprintf("a%d", i%20), fmt.Sprintf("u%d", i%200)
		runs = append(runs, r)
	}
	for len(runs) > 0 {
		require.NoError(b, s.WriteRuns(ctx, runs[:10_000]))
		runs = runs[10_000:]
	}
	_, err := db.Exec(ctx, `VACUUM ANALYZE`)
	require.NoError(b, err)
	w := fairshare.Lookback(fairshare.At(at(2*week-17*time.Minute)), week)
	for b.Loop() {
		charges, _, err := s.Charges(ctx, "c", w)
		require.NoError(b, err)
		b.ReportMetric(float64(len(charges)), "rows")
	}
}

// BenchmarkWriteRuns writes 10,000 runs that have ended, in one batch.
func BenchmarkWriteRuns(b *testing.B) {
	s := usage.NewStore(pgtest.Pool(b))
	n := 0
	for b.Loop() {
		n++
		require.NoError(b, s.WriteRuns(ctx, manyRuns(fmt.Sprintf("c%d", n), 10_000)))
	}
}
