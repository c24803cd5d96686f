// SPDX-License-Identifier: GPL-2.0-or-later

package budgets_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
)

// large is a ledger of 500 accounts, 5,000 users and 100,000 entries, the
// last ones in the weeks around day(0).
func large(b *testing.B) *pgxpool.Pool {
	b.Helper()
	pool := pgtest.Pool(b)
	for _, sql := range []string{
		`INSERT INTO gpubudget.ledger (cluster, kind, actor, account, parent, share, effective_from)
		SELECT 'c1', 'account_add', 'bench', 'a' || i, CASE WHEN i <= 20 THEN 'root' ELSE 'a' || (i - 1) % 20 + 1 END,
			CASE WHEN i <= 20 THEN 50000000 ELSE 30000000 END, '2025-06-01Z'
		FROM generate_series(1, 500) i`,
		`INSERT INTO gpubudget.ledger (cluster, kind, actor, account, user_name, share, effective_from)
		SELECT 'c1', 'user_add', 'bench', 'a' || i % 480 + 21, 'u' || i, CASE WHEN i % 3 = 0 THEN 1000000 ELSE -1 END, '2025-06-02Z'
		FROM generate_series(1, 5000) i`,
		`INSERT INTO gpubudget.ledger (cluster, kind, actor, account, share, effective_from, effective_until)
		SELECT 'c1', 'share_set', 'bench', 'a' || i % 500 + 1, 30000000 + i % 10 * 1000000, t, CASE WHEN i % 50 = 0 THEN t + interval '3 days' END
		FROM generate_series(1, 94500) i, LATERAL (VALUES (timestamptz '2025-06-03Z' + i * interval '4 minutes')) v (t)`,
		`ANALYZE`,
	} {
		start := time.Now()
		_, err := pool.Exec(ctx, sql)
		require.NoError(b, err)
		b.Logf("%.30s... took %v", sql, time.Since(start))
	}
	return pool
}

func BenchmarkLarge(b *testing.B) {
	s := budgets.NewStore(large(b))
	at := day(0)

	b.Run("Load a week", func(b *testing.B) {
		w := fairshare.Lookback(fairshare.At(at), 7*24*time.Hour)
		for b.Loop() {
			_, err := s.Load(ctx, cluster, w)
			require.NoError(b, err)
		}
	})
	b.Run("SetShare", func(b *testing.B) {
		for b.Loop() {
			_, err := s.SetShare(ctx, cluster, "a7", 20_000_000, by(at))
			require.NoError(b, err)
		}
	})
	b.Run("SetShare of a year ago", func(b *testing.B) {
		for b.Loop() {
			_, err := s.SetShare(ctx, cluster, "a7", 20_000_000, by(at.AddDate(0, -8, 0)))
			require.NoError(b, err)
		}
	})
	b.Run("AddUser", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			_, err := s.AddUser(ctx, cluster, "a7", time.Duration(i).String(), 0, by(at))
			require.NoError(b, err)
		}
	})
}
