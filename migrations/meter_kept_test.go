// SPDX-License-Identifier: GPL-2.0-or-later

package migrations_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/migrations"
)

// Who could read what was used before the meters' tables were there can read those
// too, new days among them, and nobody else; dropping days is the owner's.
func TestUpLetsReadersOfUsageReadMeters(t *testing.T) {
	cfg := emptyDatabase(t)
	require.NoError(t, migrations.UpTo(ctx, cfg, 5))
	conn := connect(t, cfg)
	exec := func(sql string) {
		t.Helper()
		_, err := conn.Exec(ctx, sql)
		require.NoError(t, err)
	}
	exec(`DROP ROLE IF EXISTS meter_reader, meter_stranger`)
	exec(`CREATE ROLE meter_reader; CREATE ROLE meter_stranger`)
	defer exec(`DROP OWNED BY meter_reader, meter_stranger; DROP ROLE meter_reader, meter_stranger`)
	exec(`GRANT USAGE ON SCHEMA gpubudget TO meter_reader, meter_stranger`)
	exec(`GRANT SELECT ON ALL TABLES IN SCHEMA gpubudget TO meter_reader`)
	exec(`GRANT SELECT ON gpubudget.capacity TO meter_stranger`)
	require.NoError(t, migrations.Up(ctx, cfg, nil))
	exec(`SELECT gpubudget.make_partitions('2026-01-01', 1)`)

	exec(`SET ROLE meter_reader`)
	require.Equal(t, []int64{0}, query[int64](t, conn, "SELECT count(*) FROM gpubudget.gpu_bucket, gpubudget.gpu, gpubudget.agent"))
	_, err := conn.Exec(ctx, "SELECT gpubudget.drop_partitions('2026-01-02')")
	require.ErrorContains(t, err, "permission denied")
	exec(`SET ROLE meter_stranger`)
	_, err = conn.Exec(ctx, "SELECT count(*) FROM gpubudget.gpu_bucket")
	require.ErrorContains(t, err, "permission denied")
	exec(`RESET ROLE`)
	require.Equal(t, []string{"2026-01-01"}, query[string](t, conn, "SELECT dropped::text FROM gpubudget.drop_partitions('2026-01-02')"))
}
