// SPDX-License-Identifier: GPL-2.0-or-later

package migrations_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/migrations"
)

// What meters told before there were sums is in them, in the account of the run
// where Prolog knew none; who could read the one reads the other.
func TestUpSumsUpWhatMetersToldBefore(t *testing.T) {
	cfg := emptyDatabase(t)
	require.NoError(t, migrations.UpTo(ctx, cfg, 8))
	conn := connect(t, cfg)
	exec := func(sql string) {
		t.Helper()
		_, err := conn.Exec(ctx, sql)
		require.NoError(t, err)
	}
	exec(`DROP ROLE IF EXISTS sums_reader`)
	exec(`CREATE ROLE sums_reader`)
	defer exec(`DROP OWNED BY sums_reader; DROP ROLE sums_reader`)
	exec(`GRANT USAGE ON SCHEMA gpubudget TO sums_reader; GRANT SELECT ON gpubudget.gpu_bucket TO sums_reader`)
	exec(`SELECT gpubudget.make_partitions('2026-01-01', 2)`)
	exec(`INSERT INTO gpubudget.job_run (cluster, job_id, started_at, account, user_name, gpus, allocated, seen_at, ended_at, end_seen_at)
		VALUES ('c1', 2, '2026-01-01 09:30Z', 'chem', 'bob', 1, true, now(), '2026-01-01 10:30Z', now())`)
	exec(`INSERT INTO gpubudget.gpu_bucket (cluster, starts_at, ends_at, gpu, job_id, restart, incarnation, seq, node, source, user_name, account,
			held_from, held_until, held_ms, ended, part_ms, busy_ms, busy_known_ms)
		SELECT 'c1', '2026-01-01 10:00Z', '2026-01-01 11:00Z', 'GPU-' || n, n, 0, '7b0a3c52-9a3e-4c57-8f50-0c0f7a4f2a11', 1, 'n1', 'prolog', '', a,
			'2026-01-01 10:00Z', '2026-01-01 10:01Z', 60000, false, 60000, CASE n WHEN 1 THEN 30000 END, CASE n WHEN 1 THEN 40000 ELSE 0 END
		FROM (VALUES (1, 'physics'), (2, ''), (3, '')) v (n, a)`)

	require.NoError(t, migrations.Up(ctx, cfg, nil))
	exec(`SET ROLE sums_reader`)
	require.Equal(t, []string{
		"/ 1 60000 60000 0 0", "chem/bob 1 60000 60000 0 0", "physics/ 1 60000 60000 30000 40000",
	}, query[string](t, conn, `SELECT format('%s/%s %s %s %s %s %s', account, user_name, holdings, held_ms, part_ms, busy_ms, busy_known_ms)
		FROM gpubudget.metered_bucket WHERE holdings > 0 ORDER BY 1`))
	require.Equal(t, []int64{3600_000}, query[int64](t, conn, "SELECT sum(used_ms)::bigint FROM gpubudget.metered_day"))
	_, err := conn.Exec(ctx, "DELETE FROM gpubudget.metered_bucket")
	require.ErrorContains(t, err, "permission denied")
	exec(`RESET ROLE`)
	exec(`SELECT gpubudget.drop_partitions('2026-01-02')`)
	for _, table := range []string{"metered_bucket", "metered_day"} {
		require.Equal(t, []int64{0}, query[int64](t, conn, "SELECT sum(holdings + held_ms + part_ms + busy_ms + busy_known_ms)::bigint FROM gpubudget."+table))
	}
}

// Runs with parts of GPUs that were in the sums by their parts are in them by the GPUs
// they were on; others stay as they were.
func TestUpCountsRunsOnShardsByTheirGPUs(t *testing.T) {
	cfg := emptyDatabase(t)
	require.NoError(t, migrations.UpTo(ctx, cfg, 15))
	conn := connect(t, cfg)
	exec := func(sql string) {
		t.Helper()
		_, err := conn.Exec(ctx, sql)
		require.NoError(t, err)
	}
	exec(`INSERT INTO gpubudget.job_run (cluster, job_id, started_at, account, user_name, gpus, parts, nodes, allocated, seen_at, ended_at, end_seen_at)
		SELECT 'c1', n, '2026-01-01 09:30Z', 'chem', u, g, p, l, true, now(), '2026-01-01 10:45Z', now()
		FROM (VALUES (1, 'ann', 2, 0, 'n1'), (2, 'bob', 0, 250000, 'n1'), (3, 'cyd', 0, 500000, 'n[1-2],m')) v (n, u, g, p, l)`)
	byHour := func() []string {
		return query[string](t, conn, `SELECT format('%s %s', user_name, string_agg(ms::text, ' ' ORDER BY starts_at)) FROM (
			SELECT user_name, starts_at, sum(used_ms) AS ms FROM (SELECT * FROM gpubudget.metered_bucket UNION ALL SELECT * FROM gpubudget.metered_delta) m
			GROUP BY 1, 2) s GROUP BY user_name ORDER BY 1`)
	}
	require.Equal(t, []string{"ann 3600000 5400000", "bob 450000 675000", "cyd 900000 1350000"}, byHour())
	require.NoError(t, migrations.Up(ctx, cfg, nil))
	require.Equal(t, []string{"ann 3600000 5400000", "bob 1800000 2700000", "cyd 5400000 8100000"}, byHour())
	exec(`UPDATE gpubudget.job_run SET ended_at = '2026-01-01 10:00Z' WHERE job_id = 3`)
	require.Equal(t, []string{"ann 3600000 5400000", "bob 1800000 2700000", "cyd 5400000 0"}, byHour())
	exec(`DELETE FROM gpubudget.job_run`)
	exec(`SELECT gpubudget.fold_meter()`)
	require.Equal(t, []int64{0}, query[int64](t, conn, "SELECT sum(used_ms)::bigint FROM gpubudget.metered_day"))
}
