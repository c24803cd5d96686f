// SPDX-License-Identifier: GPL-2.0-or-later

package migrations_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/migrations"
)

// Entries and runs of an older release stay as they were, and a run among them
// can be refunded.
func TestUpAddsRefunds(t *testing.T) {
	cfg := emptyDatabase(t)
	require.NoError(t, migrations.UpTo(ctx, cfg, 7))
	conn := connect(t, cfg)
	exec := func(sql string) {
		t.Helper()
		_, err := conn.Exec(ctx, sql)
		require.NoError(t, err)
	}
	exec(`INSERT INTO gpubudget.ledger (cluster, kind, actor, account, parent, share, user_name, amount, effective_from, effective_until, setting, value) VALUES
		('c1', 'account_add', 'a', 'physics', 'root', 600000000, NULL, NULL, '2026-03-01Z', NULL, NULL, NULL),
		('c1', 'user_add', 'a', 'physics', NULL, 100000000, 'alice', NULL, '2026-03-01Z', NULL, NULL, NULL),
		('c1', 'deposit', 'a', 'physics', NULL, NULL, NULL, 5, '2026-03-01Z', '2026-03-02Z', NULL, NULL),
		('c1', 'policy_set', 'a', NULL, NULL, NULL, NULL, NULL, '2026-03-01Z', NULL, 'mode', 'strict')`)
	exec(`INSERT INTO gpubudget.job_run (cluster, job_id, started_at, account, user_name, gpus, allocated, seen_at, ended_at, end_state, end_seen_at)
		VALUES ('c1', 7, '2026-03-02Z', 'physics', 'alice', 2, true, '2026-03-03Z', '2026-03-03Z', 'NODE_FAIL', '2026-03-03Z')`)
	const ledger = "SELECT (to_jsonb(l) - 'job_id' - 'job_started_at' - 'gpu_type' - 'weight' - 'amount_parts')::text FROM gpubudget.ledger l WHERE kind <> 'refund' ORDER BY seq"
	before := query[string](t, conn, ledger)
	require.Len(t, before, 4)

	require.NoError(t, migrations.Up(ctx, cfg, nil))
	require.Equal(t, before, query[string](t, conn, ledger))
	const refund = `INSERT INTO gpubudget.ledger (cluster, kind, actor, account, user_name, amount, job_id, job_started_at, effective_from, effective_until)
		VALUES ('c1', 'refund', 'a', 'Physics', 'alice', 2 * 86400000, 7, '2026-03-02Z', '2026-03-02Z', '2026-03-03Z')`
	exec(refund)
	_, err := conn.Exec(ctx, refund)
	require.ErrorContains(t, err, "is refused: refunded")
	_, err = conn.Exec(ctx, "UPDATE gpubudget.ledger SET amount = 1 WHERE kind = 'refund'")
	require.ErrorContains(t, err, "append-only")
	_, err = conn.Exec(ctx, `INSERT INTO gpubudget.ledger (cluster, kind, actor, account, amount, effective_until, job_id)
		VALUES ('c1', 'deposit', 'a', 'physics', 5, now() + interval '1 day', 7)`)
	require.ErrorContains(t, err, "ledger_kind_valid")
}

// The setting drain comes beside all others, which are checked as before.
func TestUpAddsDrain(t *testing.T) {
	cfg := emptyDatabase(t)
	require.NoError(t, migrations.UpTo(ctx, cfg, 11))
	conn := connect(t, cfg)
	const set = "INSERT INTO gpubudget.ledger (cluster, kind, actor, setting, value) VALUES ('c1', 'policy_set', 'a', $1, $2)"
	_, err := conn.Exec(ctx, set, "drain", "requeue")
	require.ErrorContains(t, err, "ledger_policy_valid")

	require.NoError(t, migrations.Up(ctx, cfg, nil))
	for _, ok := range [][2]string{{"drain", "requeue"}, {"drain", "wait"}, {"mode", "strict"}, {"min_runtime", "0s"}, {"charge", "max"}} {
		_, err = conn.Exec(ctx, set, ok[0], ok[1])
		require.NoError(t, err, ok)
	}
	for _, wrong := range [][2]string{{"drain", "flush"}, {"mode", "requeue"}, {"bucket", "7s"}, {"whim", "wait"}} {
		_, err = conn.Exec(ctx, set, wrong[0], wrong[1])
		require.ErrorContains(t, err, "ledger_policy_valid", wrong)
	}
	_, err = conn.Exec(ctx, "INSERT INTO gpubudget.ledger (cluster, kind, actor, account, parent, share) VALUES ('c1', 'account_add', 'a', 'x', 'root', 1)")
	require.NoError(t, err, "entries without a setting")
}

// A refund of an older release goes on lying evenly over all its time; one that is
// written now lies where the run was charged.
func TestUpKeepsRefunds(t *testing.T) {
	cfg := emptyDatabase(t)
	require.NoError(t, migrations.UpTo(ctx, cfg, 17))
	conn := connect(t, cfg)
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := conn.Exec(ctx, sql, args...)
		require.NoError(t, err)
	}
	exec(`INSERT INTO gpubudget.ledger (cluster, kind, actor, account, parent, share, effective_from)
		VALUES ('c1', 'account_add', 'a', 'physics', 'root', 600000000, '2026-03-01Z')`)
	for _, w := range []struct {
		at     string
		weight int
	}{{"2026-03-01Z", 1000}, {"2026-03-02 06:00Z", 3000}, {"2026-03-02 12:00Z", 0}} {
		exec(`INSERT INTO gpubudget.ledger (cluster, kind, actor, gpu_type, weight, effective_from) VALUES ('c1', 'weight_set', 'a', 'a100', $1, $2::text::timestamptz)`, w.weight, w.at)
	}
	for job := 7; job <= 8; job++ {
		exec(`INSERT INTO gpubudget.job_run (cluster, job_id, started_at, account, user_name, gpus, gpu_type, allocated, seen_at, ended_at, end_state, end_seen_at)
			VALUES ('c1', $1, '2026-03-02Z', 'physics', 'alice', 1, 'a100', true, '2026-03-03Z', '2026-03-03Z', 'NODE_FAIL', '2026-03-03Z')`, job)
	}
	refund := func(job int) {
		t.Helper()
		exec(`INSERT INTO gpubudget.ledger (cluster, kind, actor, account, user_name, amount, job_id, job_started_at, effective_from, effective_until)
			VALUES ('c1', 'refund', 'a', 'physics', 'alice', 24 * 3600000, $1, '2026-03-02Z', '2026-03-02Z', '2026-03-03Z')`, job)
	}
	refund(7)
	require.NoError(t, migrations.Up(ctx, cfg, nil))
	refund(8)
	const pieces = `SELECT l.job_id || ' ' || to_char(p.starts_at AT TIME ZONE 'UTC', 'DD HH24') || ' ' || to_char(p.ends_at AT TIME ZONE 'UTC', 'DD HH24') || ' ' || p.gpu_ms / 3600000
		FROM gpubudget.ledger l, gpubudget.refund_pieces(l.effective_from, l.effective_until, l.amount, l.amount_parts) p
		WHERE l.kind = 'refund' ORDER BY l.job_id, p.starts_at`
	require.Equal(t, []string{"7 02 00 03 00 24", "8 02 00 02 06 6", "8 02 06 02 12 18", "8 02 12 03 00 0"}, query[string](t, conn, pieces))
	_, err := conn.Exec(ctx, `INSERT INTO gpubudget.ledger (cluster, kind, actor, account, share, amount_parts) VALUES ('c1', 'share_set', 'a', 'physics', 5, '{1,2}')`)
	require.ErrorContains(t, err, "ledger_parts_valid")
}
