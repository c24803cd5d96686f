// SPDX-License-Identifier: GPL-2.0-or-later

package budgets_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
)

// requireCode is that PostgreSQL refused with a SQLSTATE.
func requireCode(t *testing.T, code string, err error) *pgconn.PgError {
	t.Helper()
	var pgErr *pgconn.PgError
	require.ErrorAs(t, err, &pgErr)
	require.Equal(t, code, pgErr.Code, "%v", err)
	return pgErr
}

// PostgreSQL itself keeps what was written, whoever asks: even the superuser
// who owns the tables, also in a replica's session.
func TestPostgresRefusesChanges(t *testing.T) {
	conn, err := pgx.Connect(ctx, pgtest.DB(t))
	require.NoError(t, err)
	defer conn.Close(ctx)
	s := budgets.NewStore(conn)
	ok(t)(s.AddAccount(ctx, cluster, "chem", "root", percent, by(day(0))))
	before, err := s.Ledger(ctx, budgets.Filter{})
	require.NoError(t, err)

	for _, role := range []string{"origin", "replica", "local"} {
		_, err := conn.Exec(ctx, "SET session_replication_role = "+role)
		require.NoError(t, err)
		for _, sql := range []string{
			"UPDATE gpubudget.ledger SET share = 2",
			"UPDATE gpubudget.ledger SET why = 'x' WHERE false",
			"DELETE FROM gpubudget.ledger",
			"DELETE FROM gpubudget.ledger WHERE seq = 1",
			"TRUNCATE gpubudget.ledger",
			"TRUNCATE gpubudget.ledger, gpubudget.account, gpubudget.cluster",
			"TRUNCATE gpubudget.cluster CASCADE",
			"UPDATE gpubudget.account SET name = 'biology'",
			"DELETE FROM gpubudget.account",
			"TRUNCATE gpubudget.account CASCADE",
			"INSERT INTO gpubudget.account (cluster, name) VALUES ('c1', 'biology')",
			"UPDATE gpubudget.cluster SET base = 0",
			"UPDATE gpubudget.cluster SET name = 'c2'",
			"DELETE FROM gpubudget.cluster",
			"INSERT INTO gpubudget.cluster (name) VALUES ('c2')",
			`INSERT INTO gpubudget.ledger (cluster, seq, recorded_at, kind, actor, db_role, effective_from, account, share)
				VALUES ('c1', 1, now(), 'share_set', 'a', 'a', now(), 'chem', 1)
				ON CONFLICT (cluster, seq) DO UPDATE SET share = 2`,
			`MERGE INTO gpubudget.ledger l USING (VALUES (1)) v (seq) ON l.seq = v.seq WHEN MATCHED THEN DELETE`,
		} {
			_, err := conn.Exec(ctx, sql)
			refusal := requireCode(t, "GB001", err)
			require.NotEmpty(t, refusal.Hint, sql)
			require.Contains(t, refusal.Message, "is refused", sql)
		}
	}
	after, err := s.Ledger(ctx, budgets.Filter{})
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// A role with INSERT on the ledger and SELECT can write entries, and nothing
// else. What Postgres gives itself can't be forged.
func TestWriterNeedsInsertOnly(t *testing.T) {
	conn, err := pgx.Connect(ctx, pgtest.DB(t))
	require.NoError(t, err)
	defer conn.Close(ctx)
	for _, sql := range []string{
		"DROP ROLE IF EXISTS gpub_test_writer",
		"CREATE ROLE gpub_test_writer",
		"GRANT USAGE ON SCHEMA gpubudget TO gpub_test_writer",
		"GRANT SELECT ON gpubudget.ledger, gpubudget.account, gpubudget.cluster TO gpub_test_writer",
		"GRANT INSERT ON gpubudget.ledger TO gpub_test_writer",
		"SET SESSION AUTHORIZATION gpub_test_writer",
	} {
		_, err := conn.Exec(ctx, sql)
		require.NoError(t, err)
	}
	s := budgets.NewStore(conn)
	e := ok(t)(s.AddAccount(ctx, cluster, "chem", "root", percent, by(day(0))))
	require.Equal(t, "gpub_test_writer", e.Role)
	_, err = s.SetShare(ctx, cluster, "chem", 2*fairshare.Whole/2+1, by(day(0)))
	require.Error(t, err)

	var seq int64
	var role string
	require.NoError(t, conn.QueryRow(ctx, `INSERT INTO gpubudget.ledger
			(cluster, seq, recorded_at, kind, actor, db_role, effective_from, account, share)
		VALUES ('c1', 77, '2001-01-01Z', 'share_set', 'a', 'postgres', now(), 'chem', 1)
		RETURNING seq, db_role`).Scan(&seq, &role))
	require.Equal(t, int64(2), seq)
	require.Equal(t, "gpub_test_writer", role)

	for _, sql := range []string{
		"UPDATE gpubudget.ledger SET share = 2", "DELETE FROM gpubudget.account", "UPDATE gpubudget.cluster SET base = 0",
		"ALTER TABLE gpubudget.ledger DISABLE TRIGGER ALL", "SET session_replication_role = replica",
	} {
		_, err := conn.Exec(ctx, sql)
		_ = requireCode(t, "42501", err)
	}
	for _, sql := range []string{
		"RESET SESSION AUTHORIZATION", "DROP OWNED BY gpub_test_writer", "DROP ROLE gpub_test_writer",
	} {
		_, err := conn.Exec(ctx, sql)
		require.NoError(t, err)
	}
}

// The rules hold for entries that are written in plain SQL, several in one
// statement too.
func TestPostgresChecksPlainSQL(t *testing.T) {
	pool := pgtest.Pool(t)
	_, err := pool.Exec(ctx, `INSERT INTO gpubudget.ledger (cluster, kind, actor, account, parent, share) VALUES
		('c1', 'account_add', 'a', 'Physics', 'root', 600000000),
		('c1', 'account_add', 'a', 'optics', 'physics', 1000000000),
		('c1', 'account_add', 'a', 'chem', 'root', 400000000)`)
	require.NoError(t, err)

	for _, test := range []struct{ code, columns, values string }{
		{"GB006", "account, parent, share", "('c1', 'account_add', 'a', 'x', 'root', 1), ('c1', 'account_add', 'a', 'y', 'root', 1)"},
		{"GB006", "account, user_name, share", "('c1', 'user_add', 'a', 'optics', 'u', 900000000), ('c1', 'user_add', 'a', 'optics', 'v', 100000001)"},
		{"GB007", "account, parent, share", "('c1', 'account_move', 'a', 'physics', 'optics', NULL)"},
		{"GB008", "account", "('c1', 'account_close', 'a', 'physics')"},
		{"GB002", "account, share", "('c1', 'share_set', 'a', 'nowhere', 1)"},
		{"GB002", "account, user_name, share", "('c1', 'user_add', 'a', 'nowhere', 'u', 1)"},
		{"GB005", "account, user_name", "('c1', 'user_remove', 'a', 'chem', 'u')"},
		{"GB009", "account", "('c1', 'account_close', 'a', 'root')"},
		{"23514", "account, share", "('c1', 'share_set', 'a', 'chem', -1)"},
		{"23514", "account, share", "('c1', 'share_set', 'a', 'chem', 1000000001)"},
		{"23514", "account, share", "('c1', 'share_set', '', 'chem', 1)"},
		{"23514", "account, share", "('c1', 'loan', 'a', 'chem', 1)"},
		{"23514", "account, share, why", "('c1', 'share_set', 'a', 'chem', 1, repeat('x', 4097))"},
		{"23514", "account, share, amount", "('c1', 'share_set', 'a', 'chem', 1, 1)"},
		{"23514", "account, amount, effective_until", "('c1', 'deposit', 'a', 'chem', 0, '2100-01-01')"},
		{"23514", "account, amount, effective_until", "('c1', 'deposit', 'a', 'chem', -5, '2100-01-01')"},
		{"23514", "account, amount, effective_until", "('c1', 'deposit', 'a', 'chem', 3600000000000001, '2100-01-01')"},
		{"23514", "account, amount, effective_until", "('c1', 'deposit', 'a', 'chem', 5, NULL)"},
		{"23514", "account, amount, effective_until", "('c1', 'deposit', 'a', 'chem', 5, 'infinity')"},
		{"23514", "account, amount, effective_from, effective_until", "('c1', 'deposit', 'a', 'chem', 5, '2100-01-02', '2100-01-02 00:00:00.0001')"},
		{"GB003", "account, share, effective_from", "('c1', 'share_set', 'a', 'chem', 5, '-infinity')"},
		{"23514", "account, share, effective_from", "('c1', 'share_set', 'a', 'chem', 5, 'infinity')"},
		{"23514", "account, receiver, amount, effective_until", "('c1', 'transfer', 'a', 'chem', 'chem', 1, '2100-01-01')"},
		{"23514", "account, parent, share", "('c1', 'account_add', 'a', 'two words', 'root', 0)"},
		{"23514", "account, user_name, share", "('c1', 'user_add', 'a', 'chem', 'a|b', 0)"},
		{"23502", "account, share", "(NULL, 'share_set', 'a', 'chem', 1)"},
	} {
		_, err := pool.Exec(ctx, "INSERT INTO gpubudget.ledger (cluster, kind, actor, "+test.columns+") VALUES "+test.values)
		_ = requireCode(t, test.code, err)
	}
	version, err := budgets.NewStore(pool).Version(ctx, cluster)
	require.NoError(t, err)
	require.Equal(t, int64(3), version)
}

// An entry whose savepoint is rolled back is as if it had not been.
func TestSavepoints(t *testing.T) {
	pool := pgtest.Pool(t)
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	s := budgets.NewStore(tx)
	inner, err := tx.Begin(ctx)
	require.NoError(t, err)
	ok(t)(budgets.NewStore(inner).AddAccount(ctx, cluster, "x", "root", 100*percent, by(day(0))))
	require.NoError(t, inner.Rollback(ctx))
	ok(t)(s.AddAccount(ctx, cluster, "y", "root", 50*percent, by(day(0))))
	inner, err = tx.Begin(ctx)
	require.NoError(t, err)
	ok(t)(budgets.NewStore(inner).AddAccount(ctx, cluster, "x", "root", 50*percent, by(day(0))))
	ok(t)(budgets.NewStore(inner).AddAccount(ctx, cluster, "z", "root", 50*percent, by(day(0))))
	require.NoError(t, inner.Rollback(ctx))
	ok(t)(s.AddAccount(ctx, cluster, "z", "root", 50*percent, by(day(0))))
	require.NoError(t, tx.Commit(ctx))

	require.Equal(t, []budgets.Account{
		{Name: "root", Share: fairshare.Whole},
		{Name: "y", Parent: "root", Share: 50 * percent}, {Name: "z", Parent: "root", Share: 50 * percent},
	}, treeAt(t, budgets.NewStore(pool), day(1)))
}

// A transaction that rolled back its first entries by a savepoint is checked
// for all that stayed.
func TestSavepointsDoNotHideEntriesFromTheCheck(t *testing.T) {
	pool := pgtest.Pool(t)
	s := budgets.NewStore(pool)
	ok(t)(s.AddAccount(ctx, cluster, "x", "root", 60*percent, by(day(0))))
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	ok(t)(budgets.NewStore(tx).AddAccount(ctx, cluster, "y", "root", 60*percent, by(day(0))))
	inner, err := tx.Begin(ctx)
	require.NoError(t, err)
	ok(t)(budgets.NewStore(inner).SetShare(ctx, cluster, "y", 0, by(day(0))))
	require.NoError(t, inner.Rollback(ctx))
	ok(t)(budgets.NewStore(tx).SetPolicy(ctx, cluster, budgets.Mode, budgets.Strict, by(day(0))))
	_ = requireCode(t, "GB006", tx.Commit(ctx))
}
