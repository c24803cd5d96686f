// SPDX-License-Identifier: GPL-2.0-or-later

package reporttest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// LoadMeter writes what meters saw of the example: of the last ten hours on n1,
// where job 4 of seg/cyd holds four GPUs. GPU 0 works, of GPU 1 only the power is
// known, GPUs 2 and 3 have been idle for four and eight hours, and of what GPU 3
// draws nobody knows. The agent of n2 is silent.
func LoadMeter(t testing.TB, db DB) {
	t.Helper()
	exec := func(sql string, args ...any) {
		_, err := db.Exec(context.Background(), sql, args...)
		require.NoError(t, err)
	}
	exec(`SELECT gpubudget.make_partitions($1::timestamptz::date, 8)`, Start)
	exec(`INSERT INTO gpubudget.agent (cluster, node, incarnation, boot_id, started_at, version, seen_at, skew_ms, sampled_at, spooled, gpus, state)
		SELECT $1, node, gen_random_uuid(), 'b', $2, 'test', seen, 12, seen, 0, 8, 'ok'
		FROM (VALUES ('n1', $3::timestamptz), ('n2', $4::timestamptz)) a (node, seen)`,
		Cluster, Start, Now.Add(-20*time.Second), Now.Add(-time.Hour))
	exec(`INSERT INTO gpubudget.gpu (cluster, node, uuid, model, gres_index, first_seen, last_seen)
		SELECT $1, 'n1', 'GPU-' || n, 'H200', n, $2, $2 FROM generate_series(0, 7) n`, Cluster, Start)
	begin := Start.Add(158 * time.Hour)
	for _, gpu := range []struct {
		uuid        string
		busy, watts *int64 // percent and watts while it was at work; nil: not known
		idle        time.Duration
	}{
		{"GPU-0", new(int64(80)), new(int64(600)), 0},
		{"GPU-1", nil, new(int64(300)), 0},
		{"GPU-2", new(int64(50)), new(int64(400)), 4 * time.Hour},
		{"GPU-3", new(int64(10)), nil, 8 * time.Hour},
	} {
		var idle *time.Time
		if gpu.idle > 0 {
			idle = new(Now.Add(-gpu.idle))
		}
		exec(`INSERT INTO gpubudget.gpu_bucket (cluster, starts_at, ends_at, gpu, job_id, restart, incarnation, seq, node, source, user_name, account,
				held_from, held_until, held_ms, ended, part_ms, busy_ms, busy_known_ms, energy_mj, energy_known_ms, samples, idle_since)
			SELECT $1, h, h + interval '1 hour', $2, 4, 0, '00000000-0000-0000-0000-000000000001', 1, 'n1', 'prolog', 'cyd', 'seg',
				h, t, ms, false, ms,
				CASE WHEN $5::bigint IS NULL THEN NULL WHEN t > $7 THEN 0 ELSE $5 * ms / 100 END, CASE WHEN $5 IS NULL THEN 0 ELSE ms END,
				CASE WHEN $6::bigint IS NULL THEN NULL WHEN t > $7 THEN 90 * ms ELSE $6 * ms END, CASE WHEN $6 IS NULL THEN 0 ELSE ms END,
				360, CASE WHEN t > $7 THEN $7::timestamptz END
			FROM generate_series($3::timestamptz, $4::timestamptz - interval '1 hour', interval '1 hour') h,
				LATERAL (SELECT least(h + interval '1 hour', $4 - interval '20 seconds') AS t) p,
				LATERAL (SELECT gpubudget.unix_ms(t) - gpubudget.unix_ms(h) AS ms) l`,
			Cluster, gpu.uuid, begin, Now, gpu.busy, gpu.watts, idle)
	}
}
