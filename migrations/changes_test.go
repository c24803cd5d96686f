// SPDX-License-Identifier: GPL-2.0-or-later

package migrations_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/migrations"
)

// Buckets that an older release filled stay, and what happens to them from then
// on is noted, be it by a role that was given its rights before.
func TestUpNotesChangesOfBuckets(t *testing.T) {
	cfg := emptyDatabase(t)
	require.NoError(t, migrations.UpTo(ctx, cfg, 4))
	conn := connect(t, cfg)
	exec := func(sql string) {
		t.Helper()
		_, err := conn.Exec(ctx, sql)
		require.NoError(t, err)
	}
	const run = `INSERT INTO gpubudget.job_run (cluster, job_id, account, user_name, gpus, allocated, started_at, ended_at, seen_at, end_seen_at)
		SELECT 'c1', i, 'physics', 'u' || i, 2, true, '2026-10-05 11:30Z', '2026-10-05 12:30Z', now(), now() FROM generate_series(`
	exec(run + `1, 100) i`)
	exec(`DROP ROLE IF EXISTS older_plugin`)
	exec(`CREATE ROLE older_plugin`)
	defer exec(`DROP OWNED BY older_plugin; DROP ROLE older_plugin`)
	exec(`GRANT USAGE ON SCHEMA gpubudget TO older_plugin`)
	exec(`GRANT SELECT ON ALL TABLES IN SCHEMA gpubudget TO older_plugin, PUBLIC`)
	exec(`GRANT INSERT, UPDATE, DELETE ON gpubudget.job_run, gpubudget.usage_bucket TO older_plugin`)
	const all = "SELECT (to_jsonb(b) - 'changed_by')::text FROM gpubudget.usage_bucket b ORDER BY starts_at, user_name"
	before := query[string](t, conn, all)
	require.Len(t, before, 200)

	require.NoError(t, migrations.Up(ctx, cfg, nil))
	require.Equal(t, before, query[string](t, conn, all))
	const changed = "SELECT count(*) FROM gpubudget.usage_bucket WHERE changed_by > '0'"
	require.Equal(t, []int64{0}, query[int64](t, conn, changed))

	exec(`SET ROLE older_plugin`)
	exec(run + `101, 101) i`)
	exec(`UPDATE gpubudget.job_run SET gpus = 3 WHERE job_id = 1`)
	require.Equal(t, []int64{4}, query[int64](t, conn, changed))
	require.Equal(t, []int64{0}, query[int64](t, conn, "SELECT count(*) FROM gpubudget.usage_erased"))
	exec(`DELETE FROM gpubudget.job_run WHERE job_id = 2`)
	require.Equal(t, []int64{2}, query[int64](t, conn, "SELECT count(*) FROM gpubudget.usage_erased"))
	exec(`RESET ROLE`)
	require.Equal(t, []bool{true}, query[bool](t, conn, `
		SELECT has_table_privilege('older_plugin', 'gpubudget.usage_erased', 'INSERT, UPDATE, SELECT')
		AND EXISTS (SELECT FROM pg_class, aclexplode(relacl) a WHERE oid = 'gpubudget.usage_erased'::regclass AND a.grantee = 0)`))
	require.Len(t, query[string](t, conn, all), 200) // 200 + 2 - 2
}
