// SPDX-License-Identifier: GPL-2.0-or-later

package metered_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/usage/metered"
)

// benchNodes is how many nodes of 8 GPUs the benchmark's week has: a tenth of a
// large cluster.
const benchNodes = 200

// benchWeek writes a week of nodes full of jobs of 2 GPUs, 4 hours each, of 200
// users, metered throughout.
func benchWeek(b *testing.B, db *pgxpool.Pool) fairshare.Period {
	b.Helper()
	until := fairshare.At(time.Now().UTC().Truncate(24 * time.Hour))
	w := period(until-7*24*hours, until)
	for _, sql := range []string{
		`SELECT gpubudget.make_partitions($1::timestamptz::date - 1, 9) FROM (SELECT $2::timestamptz, $3::bigint) x`,
		`INSERT INTO gpubudget.job_run (cluster, job_id, started_at, account, user_name, nodes, gpus, allocated, seen_at, ended_at, end_state, end_seen_at)
		SELECT 'c', 1 + slot + 42 * 4 * n, $1::timestamptz + slot / 4 * interval '4 hours', 'a' || n % 20, 'u' || (n * 4 + slot) % 200, 'n' || n, 2, true, $2,
			$1::timestamptz + (slot / 4 + 1) * interval '4 hours', 'COMPLETED', $2
		FROM generate_series(0, $3::bigint - 1) n, generate_series(0, 42 * 4 - 1) slot`,
		`INSERT INTO gpubudget.gpu_bucket (cluster, starts_at, ends_at, gpu, job_id, restart, incarnation, seq, node, source, user_name, account,
			held_from, held_until, held_ms, ended, part_ms, busy_ms, busy_known_ms, memory_mib_ms, memory_known_ms, memory_max_mib,
			energy_mj, energy_known_ms, samples)
		SELECT 'c', h, h + interval '1 hour', format('GPU-%s-%s', r.nodes, (r.job_id - 1) % 4 * 2 + g), r.job_id, 0, '00000000-0000-0000-0000-000000000001', 9, r.nodes,
			'prolog', r.user_name, r.account, h, h + interval '1 hour', 3600000, h + interval '1 hour' = r.ended_at, 3600000, 1800000, 3600000,
			72000000000, 3600000, 20000, 1080000000, 3600000, 360
		FROM gpubudget.job_run r, generate_series(0, 1) g, generate_series(r.started_at, r.ended_at - interval '1 hour', interval '1 hour') h
		WHERE $1::timestamptz < $2::timestamptz AND $3::bigint > 0`,
	} {
		_, err := db.Exec(ctx, sql, w.From.Time(), w.Until.Time(), benchNodes)
		require.NoError(b, err)
	}
	_, err := db.Exec(ctx, "SELECT gpubudget.fold_meter()")
	require.NoError(b, err)
	_, err = db.Exec(ctx, "ANALYZE")
	require.NoError(b, err)
	return w
}

// What gshare asks for: a week of a tenth of a large cluster, by account and user.
func BenchmarkSums(b *testing.B) {
	db := pgtest.Pool(b)
	w := benchWeek(b, db)
	w.From, w.Until = w.From+20*minute, w.Until-100*minute // that cuts hours and days
	s := metered.NewStore(db)
	for b.Loop() {
		all, err := s.Sums(ctx, "c", w, metered.Filter{})
		require.NoError(b, err)
		var sum metered.Sum
		for i := range all {
			sum.Add(&all[i])
		}
		require.Equal(b, benchNodes*8*166*fairshare.GPUHour, sum.Used)
		require.Equal(b, sum.Used, sum.Covered)
	}
}

// What usage check asks for, of a day.
func BenchmarkRead(b *testing.B) {
	db := pgtest.Pool(b)
	w := benchWeek(b, db)
	w.From = w.Until - 24*hours
	s := metered.NewStore(db)
	for b.Loop() {
		r, err := s.Read(ctx, "c", w, metered.Filter{})
		require.NoError(b, err)
		require.Len(b, r.Runs, benchNodes*4*6)
	}
}
