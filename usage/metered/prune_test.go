// SPDX-License-Identifier: GPL-2.0-or-later

package metered_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/pgtest"
	"gpubudget/usage/metered"
)

// Whole days go that ended before the instant, and nothing else; a spool of a day
// that went makes it anew.
func TestPrune(t *testing.T) {
	db := pgtest.Pool(t)
	s := metered.NewStore(db)
	now := time.Now().UTC()
	today := now.Truncate(24 * time.Hour)
	old := hour() - 9*24*hours
	report(t, db, "titan", "n1", held(1, 0, "GPU-0", 1, period(old, old+minute))...)
	report(t, db, "titan", "n1", held(2, 0, "GPU-0", 1, period(hour(), hour()+minute))...)
	_, err := db.Exec(ctx, "SELECT gpubudget.make_partitions($1, 20)", today.AddDate(0, 0, -10))
	require.NoError(t, err)
	rows := func() (n int) {
		require.NoError(t, db.QueryRow(ctx, "SELECT count(*) FROM gpubudget.gpu_bucket").Scan(&n))
		return n
	}
	require.Equal(t, 2, rows())

	days, err := s.Prune(ctx, now.AddDate(0, 0, -7), time.Minute)
	require.NoError(t, err)
	require.Equal(t, []time.Time{today.AddDate(0, 0, -10), today.AddDate(0, 0, -9), today.AddDate(0, 0, -8)}, days)
	require.Equal(t, 1, rows())
	requireSummedUp(t, db)
	days, err = s.Prune(ctx, now.AddDate(0, 0, -7), time.Minute)
	require.NoError(t, err)
	require.Empty(t, days)

	report(t, db, "titan", "n1", held(1, 0, "GPU-0", 1, period(old, old+minute))...)
	require.Equal(t, 2, rows())

	// Who reads is not disturbed for longer than that.
	tx, err := db.Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, "SELECT count(*) FROM gpubudget.gpu_bucket")
	require.NoError(t, err)
	_, err = s.Prune(ctx, now.AddDate(0, 0, -7), 100*time.Millisecond)
	require.ErrorContains(t, err, "lock timeout")
	require.NoError(t, tx.Rollback(ctx))
	require.Equal(t, 2, rows())
}
