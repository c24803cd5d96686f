// SPDX-License-Identifier: GPL-2.0-or-later

package migrations_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/migrations"
)

// Runs that an older release wrote are charged as they were, until a weight is set;
// then they are charged by it, those of other types are not.
func TestUpWeighsNothingByItself(t *testing.T) {
	cfg := emptyDatabase(t)
	require.NoError(t, migrations.UpTo(ctx, cfg, 7))
	conn := connect(t, cfg)
	exec := func(sql string) {
		t.Helper()
		_, err := conn.Exec(ctx, sql)
		require.NoError(t, err)
	}
	exec(`INSERT INTO gpubudget.job_run (cluster, job_id, account, user_name, gpus, gpu_type, allocated, started_at, ended_at, seen_at, end_seen_at)
		SELECT 'c1', i, 'physics', 'u' || i, 2, CASE i % 2 WHEN 0 THEN 'A100' ELSE 'h100' END, true,
			'2026-10-05 11:30Z', '2026-10-05 12:30Z', now(), now() FROM generate_series(1, 10) i`)
	exec(`INSERT INTO gpubudget.capacity (cluster, since, milli_gpus) VALUES ('c1', '2026-10-05', 16000)`)
	const all = "SELECT (to_jsonb(b) - 'changed_by')::text FROM gpubudget.usage_bucket b ORDER BY starts_at, user_name"
	before := query[string](t, conn, all)
	require.Len(t, before, 20)

	require.NoError(t, migrations.Up(ctx, cfg, nil))
	require.Equal(t, before, query[string](t, conn, all))
	const capacity = "SELECT milli_gpus FROM gpubudget.capacity_steps('c1', '2026-10-06', '2026-10-07')"
	require.Equal(t, []int64{16000}, query[int64](t, conn, capacity))

	exec(`INSERT INTO gpubudget.ledger (cluster, kind, actor, effective_from, gpu_type, weight) VALUES ('c1', 'weight_set', 'a', '2026-10-05 12:00Z', 'A100', 500)`)
	require.Equal(t, []int64{10 * 3600000, 5*3600000 + 5*1800000}, query[int64](t, conn,
		"SELECT sum(gpu_ms)::bigint FROM gpubudget.usage_bucket GROUP BY starts_at ORDER BY starts_at"))
	require.Equal(t, []int64{16000}, query[int64](t, conn, capacity), "of no type")
	exec(`INSERT INTO gpubudget.ledger (cluster, kind, actor, effective_from, gpu_type, weight) VALUES ('c1', 'weight_set', 'a', '2026-10-01', '*', 2000)`)
	require.Equal(t, []int64{32000}, query[int64](t, conn, capacity))
	require.Equal(t, []int64{20 * 3600000 / 1, 10*3600000 + 5*1800000}, query[int64](t, conn,
		"SELECT sum(gpu_ms)::bigint FROM gpubudget.usage_bucket GROUP BY starts_at ORDER BY starts_at"))

	for _, bad := range []string{
		`'weight_set', 'a100', 1000001`, `'weight_set', 'a100', -1`, `'weight_set', '', 1`, `'weight_set', 'a*', 1`, `'weight_set', NULL, 1`, `'share_set', 'a100', 1`,
	} {
		_, err := conn.Exec(ctx, `INSERT INTO gpubudget.ledger (cluster, actor, kind, gpu_type, weight) VALUES ('c1', 'a', `+bad+`)`)
		require.Error(t, err, bad)
	}
}

// Runs on MIG instances that an older release has weighed are charged by what they
// have of a GPU together; others, and what was said of an instance, stay.
func TestUpWeighsInstancesAnew(t *testing.T) {
	cfg := emptyDatabase(t)
	require.NoError(t, migrations.UpTo(ctx, cfg, 17))
	conn := connect(t, cfg)
	exec := func(sql string) {
		t.Helper()
		_, err := conn.Exec(ctx, sql)
		require.NoError(t, err)
	}
	exec(`INSERT INTO gpubudget.ledger (cluster, kind, actor, effective_from, gpu_type, weight) VALUES
		('c1', 'weight_set', 'a', '2026-10-01', 'h100', 2000), ('c1', 'weight_set', 'a', '2026-10-05 12:00Z', 'a30_1g.6gb', 100)`)
	exec(`INSERT INTO gpubudget.job_run (cluster, job_id, account, user_name, gpus, gpu_type, allocated, started_at, ended_at, seen_at, end_seen_at)
		SELECT 'c1', i, 'physics', 'u' || i, gpus, type, true, '2026-10-05 11:30Z', CASE WHEN i < 9 THEN '2026-10-05 12:30Z'::timestamptz END, now(), now()
		FROM (VALUES (1, 2, 'H100_3G.40GB:1,h100_4g.40gb:1'), (2, 7, '1g.10gb'), (3, 2, 'h100'), (4, 4, 'a30_1g.6gb'), (9, 4, 'gb300_1g.35gb')) r (i, gpus, type)`)
	exec(`INSERT INTO gpubudget.capacity (cluster, since, milli_gpus, types) VALUES ('c1', '2026-10-05', 14000, 'h100_3g.40gb:2,h100_4g.40gb:2,1g.10gb:7,h100:3')`)
	const (
		rates    = "SELECT coalesce(rate, gpus * 1000000) FROM gpubudget.job_run ORDER BY job_id"
		hours    = "SELECT sum(gpu_ms)::bigint FROM gpubudget.usage_bucket GROUP BY user_name ORDER BY user_name"
		capacity = "SELECT milli_gpus FROM gpubudget.capacity_steps('c1', '2026-10-06', '2026-10-07')"
	)
	require.Equal(t, []int64{2_142_856, 999_999, 4_000_000, 1_000_000, 1_000_000}, query[int64](t, conn, rates))
	require.Equal(t, []int64{11_285}, query[int64](t, conn, capacity))

	require.NoError(t, migrations.Up(ctx, cfg, nil))
	require.Equal(t, []int64{2_000_000, 1_000_000, 4_000_000, 1_000_000, 571_428}, query[int64](t, conn, rates))
	require.Equal(t, []int64{2 * 3600000, 3600000, 4 * 3600000, 1800000 + 720000}, query[int64](t, conn, hours))
	require.Equal(t, []int64{11_000}, query[int64](t, conn, capacity))
}

// Jobs on parts of GPUs that an older release charged by max are charged anew.
func TestUpChargesSharedGPUsAnew(t *testing.T) {
	cfg := emptyDatabase(t)
	require.NoError(t, migrations.UpTo(ctx, cfg, 19))
	conn := connect(t, cfg)
	exec := func(sql string) {
		t.Helper()
		_, err := conn.Exec(ctx, sql)
		require.NoError(t, err)
	}
	exec(`INSERT INTO gpubudget.ledger (cluster, kind, actor, effective_from, effective_until, setting, value) VALUES
		('c1', 'policy_set', 'a', '2026-10-01', '2026-10-06', 'charge', 'max'), ('c1', 'policy_set', 'a', '2026-10-06', NULL, 'charge', 'utilisation')`)
	exec(`SELECT gpubudget.make_partitions('2026-10-04', 4)`)
	exec(`INSERT INTO gpubudget.job_run (cluster, job_id, account, user_name, gpus, parts, nodes, allocated, started_at, ended_at, seen_at, end_seen_at)
		SELECT 'c1', i, 'physics', 'u' || i, gpus, parts, 'n1', true, at::timestamptz, at::timestamptz + interval '10min', now(), now()
		FROM (VALUES (1, 0, 125000, '2026-10-05 12:00Z'), (2, 0, 375000, '2026-10-05 12:00Z'), (3, 1, 0, '2026-10-05 12:00Z'), (4, 0, 125000, '2026-10-06 12:00Z')) r (i, gpus, parts, at)`)
	exec(`INSERT INTO gpubudget.gpu_bucket (cluster, starts_at, ends_at, gpu, job_id, restart, incarnation, seq, node, source,
			held_from, held_until, held_ms, ended, shared_ms, part_ms, busy_ms, busy_known_ms)
		SELECT 'c1', at, at + interval '1h', CASE job WHEN 3 THEN 'G2' ELSE 'G1' END, job, 0, '00000000-0000-0000-0000-000000000001', 1, 'n1', 'prolog',
			at, at + interval '10min', 600000, true, 0, 300000, 600000, 600000
		FROM (SELECT r.job_id AS job, r.started_at AS at FROM gpubudget.job_run r) r`)
	exec(`SELECT gpubudget.charge_metered('c1', 100)`)
	const charged = "SELECT gpus * 600000 + parts * 600 / 1000 + metered_ms FROM gpubudget.job_run ORDER BY job_id"
	require.Equal(t, []int64{300_000, 300_000, 600_000, 75_000}, query[int64](t, conn, charged), "by halves, as the meter had it")

	require.NoError(t, migrations.UpTo(ctx, cfg, 22))
	require.Equal(t, []int64{1, 2}, query[int64](t, conn, "SELECT job_id FROM gpubudget.meter_due ORDER BY 1"))
	exec(`SELECT gpubudget.charge_metered('c1', 100)`)
	require.Equal(t, []int64{150_000, 450_000, 600_000, 75_000}, query[int64](t, conn, charged))
}

// What a GPU was at work while a job was alone on it is that job's, also by records of
// agents of before, which told nothing of shared time; later ones add to these.
func TestUpChargesWorkAloneWhole(t *testing.T) {
	cfg := emptyDatabase(t)
	require.NoError(t, migrations.UpTo(ctx, cfg, 22))
	conn := connect(t, cfg)
	exec := func(sql string) {
		t.Helper()
		_, err := conn.Exec(ctx, sql)
		require.NoError(t, err)
	}
	exec(`INSERT INTO gpubudget.ledger (cluster, kind, actor, effective_from, setting, value) VALUES ('c1', 'policy_set', 'a', '2026-10-01', 'charge', 'max')`)
	exec(`SELECT gpubudget.make_partitions('2026-10-04', 4)`)
	exec(`INSERT INTO gpubudget.job_run (cluster, job_id, account, user_name, gpus, parts, nodes, allocated, started_at, ended_at, seen_at, end_seen_at) VALUES
		('c1', 1, 'physics', 'ann', 0, 250000, 'n1', true, '2026-10-05 12:00Z', '2026-10-05 12:40Z', now(), now()),
		('c1', 2, 'physics', 'ben', 0, 750000, 'n1', true, '2026-10-05 12:10Z', '2026-10-05 12:30Z', now(), now())`)
	exec(`INSERT INTO gpubudget.gpu_bucket (cluster, starts_at, ends_at, gpu, job_id, restart, incarnation, seq, node, source,
			held_from, held_until, held_ms, ended, shared_ms, part_ms, busy_ms, busy_known_ms)
		SELECT 'c1', '2026-10-05 12:00Z', '2026-10-05 13:00Z', 'G1', r.job_id, 0, '00000000-0000-0000-0000-000000000001', 1, 'n1', 'prolog', r.started_at, r.ended_at,
			minutes * 60000, true, 1200000, 600000, CASE r.job_id WHEN 1 THEN 600000 END, CASE r.job_id WHEN 1 THEN 1200000 ELSE 0 END
		FROM gpubudget.job_run r, LATERAL (SELECT extract(epoch FROM r.ended_at - r.started_at)::bigint / 60) l (minutes)`)
	exec(`SELECT gpubudget.charge_metered('c1', 100)`)
	const charged = "SELECT metered_ms FROM gpubudget.job_run ORDER BY job_id"
	require.Equal(t, []int64{75_000, 0}, query[int64](t, conn, charged), "thinned out by the time that was shared")
	const row = "SELECT (to_jsonb(b) - '{shared_busy_ms,shared_busy_known_ms}'::text[])::text FROM gpubudget.gpu_bucket b ORDER BY job_id"
	before := query[string](t, conn, row)

	require.NoError(t, migrations.Up(ctx, cfg, nil))
	require.Equal(t, before, query[string](t, conn, row))
	require.Equal(t, []int64{2}, query[int64](t, conn, "SELECT count(*) FROM gpubudget.gpu_bucket WHERE shared_busy_ms IS NULL AND shared_busy_known_ms = 0"))
	exec(`SELECT gpubudget.charge_metered('c1', 100)`)
	require.Equal(t, []int64{300_000, 0}, query[int64](t, conn, charged))

	exec(`UPDATE gpubudget.gpu_bucket SET shared_busy_ms = 1200000, shared_busy_known_ms = 1200000`)
	exec(`SELECT gpubudget.charge_metered('c1', 100)`)
	require.Equal(t, []int64{300_000, 0}, query[int64](t, conn, charged), "it held a quarter of that")
	_, err := conn.Exec(ctx, `UPDATE gpubudget.gpu_bucket SET shared_busy_known_ms = 1200001 WHERE job_id = 1`)
	require.ErrorContains(t, err, "gpu_bucket_shared_busy_valid")
}
