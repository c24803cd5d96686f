// SPDX-License-Identifier: GPL-2.0-or-later

package migrations_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/internal/pgtest"
	"gpubudget/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var ctx = context.Background()

func emptyDatabase(t *testing.T) *pgx.ConnConfig {
	t.Helper()
	cfg, err := pgx.ParseConfig(pgtest.EmptyDB(t))
	require.NoError(t, err)
	return cfg
}

func connect(t *testing.T, cfg *pgx.ConnConfig) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(ctx, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(ctx)) })
	return conn
}

func query[T any](t *testing.T, conn *pgx.Conn, sql string) []T {
	t.Helper()
	rows, err := conn.Query(ctx, sql)
	require.NoError(t, err)
	values, err := pgx.CollectRows(rows, pgx.RowTo[T])
	require.NoError(t, err)
	return values
}

// sqlFiles are the names of the migrations in this directory, in order.
func sqlFiles(t *testing.T) []string {
	t.Helper()
	names, err := fs.Glob(os.DirFS("."), "*.sql")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	return names
}

func TestUpOnAnEmptyDatabaseAndAgain(t *testing.T) {
	cfg := emptyDatabase(t)
	status, err := migrations.Status(ctx, cfg)
	require.NoError(t, err)
	require.Len(t, status, len(sqlFiles(t)))
	for _, m := range status {
		require.True(t, m.Pending(), m.Name)
	}
	conn := connect(t, cfg)
	const schemas = "SELECT count(*) FROM pg_namespace WHERE nspname = 'gpubudget'"
	require.Equal(t, []int64{0}, query[int64](t, conn, schemas), "asking changes nothing")

	var applied []string
	note := func(m migrations.Migration) { applied = append(applied, m.Name) }
	require.NoError(t, migrations.Up(ctx, cfg, note))
	require.Equal(t, sqlFiles(t), applied)
	status, err = migrations.Status(ctx, cfg)
	require.NoError(t, err)
	for i, m := range status {
		require.Equal(t, fmt.Sprintf("%04d", m.Version), applied[i][:4])
		require.Equal(t, applied[i], m.Name)
		require.WithinRange(t, m.AppliedAt, time.Now().Add(-time.Minute), time.Now().Add(time.Minute))
	}

	applied = nil
	require.NoError(t, migrations.Up(ctx, cfg, note))
	require.Empty(t, applied)
	again, err := migrations.Status(ctx, cfg)
	require.NoError(t, err)
	require.Equal(t, status, again)
}

// Everything lies in the schema gpubudget.
func TestNothingOutsideTheSchema(t *testing.T) {
	conn, err := pgx.Connect(ctx, pgtest.DB(t))
	require.NoError(t, err)
	defer conn.Close(ctx)
	require.Empty(t, query[string](t, conn, `SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast', 'gpubudget')`))
}

// A database that an older release filled is brought up to date and keeps what
// is in it.
func TestUpKeepsWhatIsThere(t *testing.T) {
	cfg := emptyDatabase(t)
	require.NoError(t, migrations.UpTo(ctx, cfg, 1))
	conn := connect(t, cfg)
	_, err := conn.Exec(ctx, `INSERT INTO gpubudget.ledger (cluster, kind, actor, account, parent, share) VALUES
		('c1', 'account_add', 'a', 'physics', 'root', 600000000),
		('c1', 'account_add', 'a', 'chem', 'root', 400000000)`)
	require.NoError(t, err)
	const all = "SELECT jsonb_strip_nulls(to_jsonb(l))::text FROM gpubudget.ledger l ORDER BY seq"
	before := query[string](t, conn, all)
	require.Len(t, before, 2)

	require.NoError(t, migrations.Up(ctx, cfg, nil))
	require.Equal(t, before, query[string](t, conn, all))
	status, err := migrations.Status(ctx, cfg)
	require.NoError(t, err)
	for _, m := range status {
		require.False(t, m.Pending(), m.Name)
	}
	_, err = conn.Exec(ctx, `INSERT INTO gpubudget.ledger (cluster, kind, actor, account, share) VALUES ('c1', 'share_set', 'a', 'chem', 400000001)`)
	require.ErrorContains(t, err, "would hold 100.0000001 % of it")
}

// Settings that the first release knew stay as they were, and more can be set.
func TestUpAddsSettings(t *testing.T) {
	cfg := emptyDatabase(t)
	require.NoError(t, migrations.UpTo(ctx, cfg, 3))
	conn := connect(t, cfg)
	const set = "INSERT INTO gpubudget.ledger (cluster, kind, actor, setting, value) VALUES ('c1', 'policy_set', 'a', $1, $2)"
	for setting, value := range map[string]string{"mode": "additive", "lookback": "60s", "bucket": "86400s", "refresh": "1s"} {
		_, err := conn.Exec(ctx, set, setting, value)
		require.NoError(t, err)
	}
	const all = "SELECT jsonb_strip_nulls(to_jsonb(l))::text FROM gpubudget.ledger l WHERE seq <= 4 ORDER BY seq"
	before := query[string](t, conn, all)
	require.Len(t, before, 4)
	_, err := conn.Exec(ctx, set, "min_runtime", "3600s")
	require.ErrorContains(t, err, "ledger_policy_valid")

	require.NoError(t, migrations.Up(ctx, cfg, nil))
	require.Equal(t, before, query[string](t, conn, all))
	for setting, value := range map[string]string{
		"preempt_margin": "0.25", "preempt_within_account": "no", "evicted_per_gpu": "1.5", "preempt_per_day": "4", "patient_gpus": "32",
	} {
		_, err = conn.Exec(ctx, set, setting, value)
		require.NoError(t, err)
		_, err = conn.Exec(ctx, set, setting, "0"+value)
		require.ErrorContains(t, err, "ledger_policy_valid")
	}
	for _, setting := range []string{"min_runtime", "min_runtime_cap", "patience"} {
		_, err = conn.Exec(ctx, set, setting, "3600s")
		require.NoError(t, err)
		_, err = conn.Exec(ctx, set, setting, "31622401s")
		require.ErrorContains(t, err, "ledger_policy_valid")
	}

	// An account may have a minimum runtime of its own.
	_, err = conn.Exec(ctx, `INSERT INTO gpubudget.ledger (cluster, kind, actor, account, parent, share) VALUES ('c1', 'account_add', 'a', 'chem', 'root', 1)`)
	require.NoError(t, err)
	const own = "INSERT INTO gpubudget.ledger (cluster, kind, actor, account, setting, value) VALUES ('c1', 'policy_set', 'a', 'chem', $1, '3600s')"
	_, err = conn.Exec(ctx, own, "min_runtime")
	require.NoError(t, err)
	_, err = conn.Exec(ctx, own, "lookback")
	require.ErrorContains(t, err, "ledger_policy_valid")
}

// A run that an older release recorded is kept; what it was promised is unknown.
func TestUpKeepsRuns(t *testing.T) {
	cfg := emptyDatabase(t)
	require.NoError(t, migrations.UpTo(ctx, cfg, 7))
	conn := connect(t, cfg)
	const older = `INSERT INTO gpubudget.job_run (cluster, job_id, account, user_name, gpus, allocated, started_at, ended_at, seen_at, end_seen_at)
		VALUES ('c1', $1, 'physics', 'ada', 4, true, '2026-10-05 11:00Z', '2026-10-05 12:30Z', '2026-10-05 12:31Z', '2026-10-05 12:31Z')`
	_, err := conn.Exec(ctx, older, 1)
	require.NoError(t, err)
	const runs = "SELECT job_id || ' ' || coalesce(min_runtime_ms::text, 'unknown') FROM gpubudget.job_run ORDER BY job_id"
	const buckets = "SELECT to_char(starts_at AT TIME ZONE 'UTC', 'HH24') || ' ' || gpu_ms FROM gpubudget.usage_bucket ORDER BY 1"
	before := query[string](t, conn, buckets)
	require.Len(t, before, 2)

	require.NoError(t, migrations.Up(ctx, cfg, nil))
	require.Equal(t, before, query[string](t, conn, buckets))
	_, err = conn.Exec(ctx, older, 2)
	require.NoError(t, err)
	require.Equal(t, []string{"1 unknown", "2 unknown"}, query[string](t, conn, runs))
	_, err = conn.Exec(ctx, "UPDATE gpubudget.job_run SET min_runtime_ms = -1")
	require.ErrorContains(t, err, "job_run_min_runtime_ms_check")
}

// Demand that an older release recorded, or goes on recording, is kept. Nobody
// knows when in its bucket it began.
func TestUpKeepsDemand(t *testing.T) {
	cfg := emptyDatabase(t)
	require.NoError(t, migrations.UpTo(ctx, cfg, 2))
	conn := connect(t, cfg)
	const older = `INSERT INTO gpubudget.demand_bucket
		(cluster, starts_at, ends_at, account, incarnation, pending_ms, running_ms, seen_at)
		VALUES ('c1', '2026-10-05 11:00Z', '2026-10-05 12:00Z', $1, '1', 5, 7, '2026-10-05 11:58Z')`
	_, err := conn.Exec(ctx, older, "physics")
	require.NoError(t, err)
	const all = "SELECT (to_jsonb(d) - 'begun_at')::text FROM gpubudget.demand_bucket d ORDER BY account"
	before := query[string](t, conn, all)

	require.NoError(t, migrations.Up(ctx, cfg, nil))
	require.Equal(t, before, query[string](t, conn, all))
	_, err = conn.Exec(ctx, older, "soil")
	require.NoError(t, err)
	require.Equal(t, []int64{2}, query[int64](t, conn, "SELECT count(*) FROM gpubudget.demand_bucket WHERE begun_at IS NULL"))
	_, err = conn.Exec(ctx, "UPDATE gpubudget.demand_bucket SET begun_at = ends_at + interval '1ms'")
	require.ErrorContains(t, err, "demand_bucket_begun_within")
}

func TestRunsAtTheSameTimeWaitForEachOther(t *testing.T) {
	cfg := emptyDatabase(t)
	var group sync.WaitGroup
	failures := make([]error, 4)
	applied := make([]int, len(failures))
	for i := range failures {
		group.Go(func() {
			failures[i] = migrations.Up(ctx, cfg, func(migrations.Migration) { applied[i]++ })
		})
	}
	group.Wait()
	total := 0
	for i, err := range failures {
		require.NoError(t, err)
		total += applied[i]
	}
	require.Equal(t, len(sqlFiles(t)), total, "each migration was applied by one of them")
}

func TestUpGivesUpWaitingWithItsContext(t *testing.T) {
	cfg := emptyDatabase(t)
	conn := connect(t, cfg)
	_, err := conn.Exec(ctx, "SELECT pg_advisory_lock(x'6770756275646765'::bigint)")
	require.NoError(t, err)
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	require.ErrorContains(t, migrations.Up(short, cfg, nil), "wait for another migration")
}

func TestNewerSchemaIsLeftAlone(t *testing.T) {
	cfg := emptyDatabase(t)
	require.NoError(t, migrations.Up(ctx, cfg, nil))
	conn := connect(t, cfg)
	_, err := conn.Exec(ctx, "INSERT INTO gpubudget.schema_version (version_id, is_applied) VALUES (999, true)")
	require.NoError(t, err)

	want := &migrations.NewerSchemaError{Database: 999, Known: migrations.Newest()}
	var newer *migrations.NewerSchemaError
	require.ErrorAs(t, migrations.Up(ctx, cfg, nil), &newer)
	require.Equal(t, want, newer)
	status, err := migrations.Status(ctx, cfg)
	require.ErrorAs(t, err, &newer)
	require.Equal(t, want, newer)
	require.Len(t, status, len(sqlFiles(t)))
	require.ErrorContains(t, err, "install the release that migrated it")
}

// The way is forward only.
func TestNoMigrationGoesBack(t *testing.T) {
	for _, name := range sqlFiles(t) {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NotContains(t, strings.ToLower(string(text)), "+goose down", name)
	}
}
