// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/conf"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/usage"
)

// BenchmarkRefresh reads a week of what all users have used and installs it, as
// the refresher does. In one case every user ran two jobs of two hours a day, in
// the other everybody ran all the time.
func BenchmarkRefresh(b *testing.B) {
	for _, c := range []struct {
		name        string
		runs, hours int // of each user
	}{{"part-time", 14, 2}, {"always", 8, 24}} {
		b.Run(fmt.Sprintf("users=%d/%s", benchAccounts*benchUsers, c.name), func(b *testing.B) {
			benchRefresh(b, c.runs, c.hours)
		})
	}
}

func benchRefresh(b *testing.B, runs, hours int) {
	b.Helper()
	pool := pgtest.Pool(b)
	for _, sql := range []string{
		fmt.Sprintf(`INSERT INTO gpubudget.ledger (cluster, kind, actor, account, parent, share, effective_from)
		SELECT 'bench', 'account_add', 'bench', 'account' || i, 'root', %d, now() - interval '30 days'
		FROM generate_series(0, %d) i`, fairshare.Whole/benchAccounts, benchAccounts-1),
		fmt.Sprintf(`INSERT INTO gpubudget.ledger (cluster, kind, actor, account, user_name, share, effective_from)
		SELECT 'bench', 'user_add', 'bench', 'account' || i / %d, 'user' || i, -1, now() - interval '30 days'
		FROM generate_series(0, %d) i`, benchUsers, benchAccounts*benchUsers-1),
		fmt.Sprintf(`INSERT INTO gpubudget.job_run (cluster, job_id, account, user_name, gpus, allocated, started_at, ended_at, seen_at, end_seen_at)
		SELECT 'bench', i * %[3]d + n, 'account' || i / %[1]d, 'user' || i, 1 + i %% 8, true, t, t + interval '%[4]d hours', t, t
		FROM generate_series(0, %[2]d) i, generate_series(1, %[3]d) n,
			LATERAL (VALUES (date_trunc('second', now() - (n - 1) * interval '7 days' / %[3]d - interval '%[4]d hours' - i %% 90 * interval '1 minute'))) v (t)`,
			benchUsers, benchAccounts*benchUsers-1, runs, hours),
		`INSERT INTO gpubudget.capacity (cluster, since, milli_gpus) VALUES ('bench', now() - interval '30 days', 1000000)`,
		`VACUUM ANALYZE`,
	} {
		_, err := pool.Exec(b.Context(), sql)
		require.NoError(b, err)
	}
	e := newEngine(Host{Cluster: "bench", StateDir: b.TempDir(), Log: func(Level, string) {}, Clock: time.Now}, conf.Defaults())
	conn, err := pool.Acquire(b.Context())
	require.NoError(b, err)
	defer conn.Release()
	_, err = conn.Conn().PgConn().Exec(b.Context(), setUp).ReadAll()
	require.NoError(b, err)
	db := &database{conn: conn.Conn(), usage: usage.NewStore(conn.Conn()), cluster: "bench"}
	b.Run("cold", func(b *testing.B) { // the first after a connection is made
		b.ReportAllocs()
		began := busyMS(b, db)
		for b.Loop() {
			db.last, e.window = nil, nil
			refresh(b, e, db)
		}
		b.ReportMetric((busyMS(b, db)-began)/float64(b.N), "cpu-ms/op")
		b.ReportMetric(float64(e.snapshot.History.Len()), "rows")
		b.ReportMetric(heldMiB(), "MiB-held")
		b.ReportMetric(liveMiB(), "MiB-live")
		debug.FreeOSMemory()
		b.ReportMetric(heldMiB(), "MiB-held-freed")
	})
	// Each user in a hundred has ended a run of two hours since the last.
	b.Run("steady", func(b *testing.B) {
		refresh(b, e, db)
		b.ReportAllocs()
		busy := 0.0
		for n := 0; b.Loop(); n++ {
			b.StopTimer()
			_, err := pool.Exec(b.Context(), `INSERT INTO gpubudget.job_run
				(cluster, job_id, account, user_name, gpus, allocated, started_at, ended_at, seen_at, end_seen_at)
				SELECT 'bench', 1000000 + $1 * 100 + i, 'account' || i * 10, 'user' || i * 100, 2, true, t - interval '2 hours', t, t, t
				FROM generate_series(0, 49) i, LATERAL (VALUES (date_trunc('second', now()))) v (t)`, n)
			require.NoError(b, err)
			began := busyMS(b, db)
			b.StartTimer()
			refresh(b, e, db)
			busy += busyMS(b, db) - began
		}
		b.ReportMetric(busy/float64(b.N), "cpu-ms/op")
		b.ReportMetric(liveMiB(), "MiB-live")
	})
}

func refresh(b *testing.B, e *Engine, db *database) {
	b.Helper()
	s, err := db.read(b.Context(), fairshare.At(time.Now()))
	require.NoError(b, err)
	e.install(s, true)
}

// busyMS is how long this process and the server's for its connection have kept a
// core busy, in milliseconds: unlike the time that passes it does not depend on
// what else runs.
func busyMS(b *testing.B, db *database) float64 {
	b.Helper()
	var own syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &own))
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", db.conn.PgConn().PID()))
	require.NoError(b, err)
	var server float64 // nanoseconds
	_, err = fmt.Sscan(string(stat), &server)
	require.NoError(b, err)
	return server/1e6 + float64(own.Utime.Nano()+own.Stime.Nano())/1e6
}

// heldMiB is how much memory is taken from the system for the heap.
func heldMiB() float64 {
	var held runtime.MemStats
	runtime.ReadMemStats(&held)
	return float64(held.HeapSys-held.HeapReleased) / (1 << 20)
}

// liveMiB is how much memory is in use.
func liveMiB() float64 {
	var held runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&held)
	return float64(held.HeapAlloc) / (1 << 20)
}

// BenchmarkRank is the part of a pass that doesn't depend on the number of jobs:
// 5,000 users of 500 accounts are ranked by a week's usage, while 5,000 jobs run.
func BenchmarkRank(b *testing.B) {
	e, jobs := benchEngine(b), benchJobs(100_000)
	now := begin.UnixMilli()
	benchLook(b, e, jobs, now)
	b.ReportAllocs()
	for b.Loop() {
		now += 1000
		e.mu.Lock()
		e.rank(fairshare.Instant(now))
		e.mu.Unlock()
	}
	b.ReportMetric(float64(len(e.tracker.open)), "open")
}
