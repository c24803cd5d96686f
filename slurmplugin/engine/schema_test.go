// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"gpubudget/internal/pgtest"
	"gpubudget/migrations"
)

// A schema of another release, be it found at start or while slurmctld runs, is
// told of once. Until it is right the snapshot is used and nothing is written.
func TestSchemaOfAnotherRelease(t *testing.T) {
	h, ctx := hostOn(t), context.Background()
	h.start()
	s := newSlurm(h.now)
	s.start(s.submit("physics", "alice", 1, 4))
	h.meet(s)
	newest := migrations.Newest()
	for _, c := range []struct{ spoil, mend, says string }{
		{
			"INSERT INTO gpubudget.schema_version (version_id, is_applied) VALUES (9999, true)",
			"DELETE FROM gpubudget.schema_version WHERE version_id = 9999",
			"this plugin is too old for the database, install both of its libraries anew and restart slurmctld",
		},
		{
			"UPDATE gpubudget.schema_version SET version_id = -version_id WHERE version_id = (SELECT max(version_id) FROM gpubudget.schema_version)",
			"UPDATE gpubudget.schema_version SET version_id = -version_id WHERE version_id < 0",
			"run: gpubudget db migrate: scheduling goes on with the snapshot of",
		},
	} {
		_, err := h.pool.Exec(ctx, c.spoil)
		require.NoError(t, err)
		for range 3 {
			h.tick(s, time.Second)
			require.Error(t, h.exchange())
		}
		require.Equal(t, 1, h.logged(c.says), "%q", h.lines)
		require.NotNil(t, h.engine.current())
		_, err = h.pool.Exec(ctx, c.mend)
		require.NoError(t, err)
		h.meet(s)
		require.Equal(t, 1, h.logged(c.says))
	}
	require.Equal(t, 2, h.logged("Postgres is back"))
	require.Equal(t, newest, migrations.Newest())
	h.stop()
}

// A database without any schema is no database to begin on.
func TestNoSchema(t *testing.T) {
	pool, err := pgxpool.New(context.Background(), pgtest.EmptyDB(t))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	h := newHost(t, pool, t.TempDir(), "titan")
	h.start()
	s := newSlurm(h.now)
	s.start(s.submit("physics", "alice", 1, 4))
	h.pass(s.list()...)
	for range 2 {
		require.Error(t, h.exchange())
	}
	require.Equal(t, 1, h.logged("run: gpubudget db migrate: scheduling goes on without any snapshot"), "%q", h.lines)
	require.NoError(t, migrations.Up(context.Background(), pool.Config().ConnConfig, nil))
	h.meet(s)
	require.Equal(t, 1, h.logged("there is no ledger of cluster titan yet: no account is funded"))
	h.plant()
	h.meet(s)
	require.Equal(t, 1, h.logged("there is a ledger of cluster titan now"))
	require.Equal(t, []string{"alice "}, h.recorded(), "unallocated: nobody could be funded when it began")
	h.stop()
}

// A database that has lost the ledger, or is another one, takes neither its
// place nor what is to be recorded.
func TestALedgerThatIsGone(t *testing.T) {
	h := hostOn(t)
	h.start()
	s := newSlurm(h.now)
	s.submit("physics", "alice", 1, 4)
	h.meet(s)

	other := pgtest.Pool(t)
	h.configure(other.Config().ConnString())
	h.engine.refresher.reconfigure()
	s.start(s.submit("physics", "bob", 2, 4))
	good := h.pass(s.list()...)
	for range 3 {
		require.Error(t, h.exchange())
	}
	require.Equal(t, 1, h.logged("has no ledger of cluster titan, but there was one"), "%q", h.lines)
	require.Equal(t, good, h.pass(s.list()...))
	var written int
	require.NoError(t, other.QueryRow(context.Background(), "SELECT count(*) FROM gpubudget.job_run").Scan(&written))
	require.Zero(t, written)
	h.stop()
	h.start() // nor does it after a restart
	require.Error(t, h.exchange())

	h.configure(h.dsn)
	h.engine.refresher.reconfigure()
	h.meet(s)
	require.Equal(t, []string{"bob  allocated"}, h.recorded())
	h.stop()
}
