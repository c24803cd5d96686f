// SPDX-License-Identifier: GPL-2.0-or-later

package pgtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestEachTestHasItsOwnDatabase(t *testing.T) {
	ctx := context.Background()
	first, second := pgtest.Pool(t), pgtest.Pool(t)

	_, err := first.Exec(ctx, `INSERT INTO gpubudget.ledger (cluster, kind, actor, setting, value)
		VALUES ('c', 'policy_set', 'test', 'mode', 'strict')`)
	require.NoError(t, err)

	var n int
	require.NoError(t, second.QueryRow(ctx, "SELECT count(*) FROM gpubudget.ledger").Scan(&n))
	require.Zero(t, n)
	require.NoError(t, first.QueryRow(ctx, "SELECT count(*) FROM gpubudget.ledger").Scan(&n))
	require.Equal(t, 1, n)
}

func TestDatabaseGoesWithItsTest(t *testing.T) {
	ctx := context.Background()
	count := func() (n int) {
		pool := pgtest.Pool(t)
		require.NoError(t, pool.QueryRow(ctx, "SELECT count(*) FROM pg_database").Scan(&n))
		return n
	}
	before := count()
	t.Run("inner", func(t *testing.T) { pgtest.Pool(t) })
	require.Equal(t, before+1, count(), "one more for the second count's own")
}

func TestEmptyDBHasNoSchema(t *testing.T) {
	require.Contains(t, pgtest.EmptyDB(t), "dbname=")
}

func BenchmarkDB(b *testing.B) {
	start := time.Now()
	for range b.N {
		pgtest.DB(b)
	}
	b.ReportMetric(float64(time.Since(start).Milliseconds())/float64(b.N), "ms/db")
}
