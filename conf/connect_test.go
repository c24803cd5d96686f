// SPDX-License-Identifier: GPL-2.0-or-later

package conf

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"gpubudget/internal/pgtest"
	"gpubudget/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// server is where the test's database is.
func server(t *testing.T) *pgx.ConnConfig {
	t.Helper()
	config, err := pgx.ParseConfig(pgtest.DB(t))
	require.NoError(t, err)
	return config
}

// clean takes every variable of libpq and the user's own files away.
func clean(t *testing.T) string {
	t.Helper()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "PG") {
			t.Setenv(name, "")
			require.NoError(t, os.Unsetenv(name))
		}
	}
	home := t.TempDir()
	t.Setenv("HOME", home)
	return home
}

func databaseOf(t *testing.T, dsnFlag string, c Conf) string {
	t.Helper()
	pool, err := Connect(context.Background(), dsnFlag, c)
	require.NoError(t, err)
	defer pool.Close()
	var name, application string
	err = pool.QueryRow(context.Background(), "SELECT current_database(), current_setting('application_name')").Scan(&name, &application)
	require.NoError(t, err)
	require.Equal(t, "gpubudget", application)
	return name
}

func TestConnectPrefersTheFlagThenTheFileThenTheEnvironment(t *testing.T) {
	clean(t)
	byFlag, byFile, byEnv := pgtest.DB(t), pgtest.DB(t), server(t)
	config, err := pgx.ParseConfig(byFlag)
	require.NoError(t, err)
	t.Setenv("PGHOST", byEnv.Host)
	t.Setenv("PGPORT", strconv.FormatUint(uint64(byEnv.Port), 10))
	t.Setenv("PGUSER", byEnv.User)
	t.Setenv("PGDATABASE", byEnv.Database)

	require.Equal(t, config.Database, databaseOf(t, byFlag, Conf{DSN: byFile}))
	config, err = pgx.ParseConfig(byFile)
	require.NoError(t, err)
	require.Equal(t, config.Database, databaseOf(t, "", Conf{DSN: byFile}))
	require.Equal(t, byEnv.Database, databaseOf(t, "", Conf{}))
	require.Equal(t, config.Database, databaseOf(t, "dbname="+config.Database, Conf{}), "the environment completes the flag")
}

func TestConnectReadsServiceAndPasswordFiles(t *testing.T) {
	home := clean(t)
	s := server(t)
	require.NoError(t, os.WriteFile(filepath.Join(home, ".pg_service.conf"), []byte(fmt.Sprintf(
		"[ledger]\nhost=%s\nport=%d\nuser=%s\ndbname=%s\n", s.Host, s.Port, s.User, s.Database)), 0o600))
	require.Equal(t, s.Database, databaseOf(t, "service=ledger", Conf{}))

	t.Setenv("PGSERVICE", "ledger")
	require.Equal(t, s.Database, databaseOf(t, "", Conf{}))

	pass := filepath.Join(home, "pass")
	require.NoError(t, os.WriteFile(pass, []byte("db.example:*:*:ann:secret\n"), 0o600))
	t.Setenv("PGPASSFILE", pass)
	config, err := PoolConfig("host=db.example user=ann", Conf{})
	require.NoError(t, err)
	require.Equal(t, "secret", config.ConnConfig.Password)
}

func TestConnectErrorsAreOneLineWithTheRemedy(t *testing.T) {
	clean(t)
	s := server(t)
	closed := closedPort(t)
	dir := t.TempDir()
	for _, tc := range []struct {
		name, dsn string
		want      string
	}{
		{
			"nobody listens",
			fmt.Sprintf("host=127.0.0.1 port=%d user=ann dbname=ledger password=hush", closed),
			fmt.Sprintf(`cannot connect to PostgreSQL at 127.0.0.1:%d, database "ledger", user "ann" (from --dsn): connection refused: check that the server runs and listens there (host=, port=, PGHOST, PGPORT)`, closed),
		},
		{
			"no socket",
			fmt.Sprintf("host=%s user=ann", dir),
			fmt.Sprintf(`cannot connect to PostgreSQL at %s/.s.PGSQL.5432, database "ann", user "ann" (from --dsn): no such socket: check that the server runs, or name its host (host=, port=, PGHOST, PGPORT)`, dir),
		},
		{
			"no such database",
			fmt.Sprintf("host=%s port=%d user=%s dbname=nothing", s.Host, s.Port, s.User),
			fmt.Sprintf(`cannot connect to PostgreSQL at %s, database "nothing", user %q (from --dsn): database "nothing" does not exist: create it with: createdb nothing, or name another with dbname= or PGDATABASE`, address(s.Host, s.Port), s.User),
		},
		{
			"two hosts",
			fmt.Sprintf("postgres://ann:hush@127.0.0.1:%d,127.0.0.2:%d/ledger", closed, closed),
			fmt.Sprintf(`cannot connect to PostgreSQL at 127.0.0.1:%d or 127.0.0.2:%d, database "ledger", user "ann" (from --dsn): connection refused: check that the server runs and listens there (host=, port=, PGHOST, PGPORT)`, closed, closed),
		},
		{
			"unknown host",
			"host=no-such-host.invalid user=ann dbname=ledger",
			`cannot connect to PostgreSQL at no-such-host.invalid:5432, database "ledger", user "ann" (from --dsn): host "no-such-host.invalid" is not known: check host= or PGHOST`,
		},
		{
			"bad URL with a password in it",
			"postgres://ann:hush%zz@db/ledger",
			"connection settings of --dsn: neither key=value pairs nor a URL postgres://USER@HOST:PORT/DATABASE (in a URL, write special characters of a password as %XX, or leave it to the password file)",
		},
		{
			"bad words with a password in them",
			"host=db password='hush",
			"connection settings of --dsn: neither key=value pairs nor a URL postgres://USER@HOST:PORT/DATABASE (in a URL, write special characters of a password as %XX, or leave it to the password file)",
		},
		{
			"bad port",
			"host=db port=99999 password=hush",
			"connection settings of --dsn: invalid port",
		},
		{
			"unknown service",
			"service=nothing password=hush",
			fmt.Sprintf("connection settings of --dsn: failed to read service (failed to read service file: %s/.pg_service.conf)", os.Getenv("HOME")),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			pool, err := Connect(context.Background(), tc.dsn, Conf{})
			require.Nil(t, pool)
			require.EqualError(t, err, tc.want)
			require.NotContains(t, err.Error(), "hush")
		})
	}
}

func TestConnectSaysThatNothingIsConfigured(t *testing.T) {
	clean(t)
	const remedy = "nothing says where the database is: name it with --dsn, DSN= in /etc/gpubudget/gpubudget.conf or PG* environment variables"
	config, err := PoolConfig("", Conf{})
	require.NoError(t, err)
	_, from := source("", Conf{})
	err = NewConnectError(config.ConnConfig, from, fs.ErrNotExist)
	require.ErrorContains(t, err, "(from libpq's defaults): no such socket: "+remedy)

	t.Setenv("PGHOST", t.TempDir())
	_, err = Connect(context.Background(), "", Conf{})
	require.ErrorContains(t, err, "(from PG* environment variables): no such socket: check that the server runs")
	require.NotContains(t, err.Error(), remedy)
}

// Whoever may not do something is told what helps.
func TestExplainAccess(t *testing.T) {
	clean(t)
	ctx := context.Background()
	config, err := pgx.ParseConfig(pgtest.EmptyDB(t))
	require.NoError(t, err)
	owner, err := pgx.ConnectConfig(ctx, config)
	require.NoError(t, err)
	defer owner.Close(ctx)
	do := func(sql string) {
		t.Helper()
		_, err := owner.Exec(ctx, sql)
		require.NoError(t, err)
	}
	do(`CREATE ROLE "Guest" LOGIN`)
	defer do(`DROP OWNED BY "Guest"; DROP ROLE "Guest"`)
	guest := config.Copy()
	guest.User = "Guest"
	explained := func(err error, wanted Access) string {
		t.Helper()
		require.Error(t, err)
		text := ExplainAccess(err, guest, wanted).Error()
		require.NotContains(t, text, "SQLSTATE")
		require.NotContains(t, text, "\n")
		return text
	}

	text := explained(migrations.Up(ctx, guest, nil), Migrate)
	require.Contains(t, text, "permission denied for database")
	_, remedy, found := strings.Cut(text, "as the database's owner run first: ")
	require.True(t, found, text)
	do(remedy)
	require.NoError(t, migrations.Up(ctx, guest, nil))

	do(`ALTER ROLE "Guest" SET default_transaction_read_only = on`)
	do(`DROP SCHEMA gpubudget CASCADE`)
	text = explained(migrations.Up(ctx, guest, nil), Migrate)
	require.Contains(t, text, "cannot execute CREATE SCHEMA in a read-only transaction: connect to the primary server")

	require.NoError(t, migrations.Up(ctx, config, nil))
	text = explained(CheckSchema(ctx, guest), Read)
	require.NotContains(t, text, "INSERT")
	_, remedy, found = strings.Cut(text, "as the schema's owner run: ")
	require.True(t, found, text)
	do(remedy)
	require.NoError(t, CheckSchema(ctx, guest))

	other := fmt.Errorf("another: %w", &pgconn.PgError{Code: "GB006"})
	require.Equal(t, other, ExplainAccess(other, guest, Write))
	require.NoError(t, ExplainAccess(nil, guest, Write))
}

func TestConnectNamesTheFile(t *testing.T) {
	clean(t)
	_, err := Connect(context.Background(), "", Conf{Path: "/etc/gpubudget/gpubudget.conf", DSN: fmt.Sprintf("host=127.0.0.1 port=%d", closedPort(t))})
	require.ErrorContains(t, err, "(from DSN in /etc/gpubudget/gpubudget.conf)")
	var refused *ConnectError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "connection refused", refused.Reason)
}

// A server that accepts and says nothing is left after the time the
// connection string allows.
func TestConnectDoesNotWaitForASilentServer(t *testing.T) {
	clean(t)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	began := time.Now()
	_, err = Connect(context.Background(), fmt.Sprintf("host=127.0.0.1 port=%d user=ann connect_timeout=2 sslmode=disable", l.Addr().(*net.TCPAddr).Port), Conf{})
	require.ErrorContains(t, err, "no answer in time: check host and port and any firewall between, or raise connect_timeout")
	require.Less(t, time.Since(began), 5*time.Second)
}

func TestPoolConfigLimitsTheTimeToConnect(t *testing.T) {
	clean(t)
	config, err := PoolConfig("host=db", Conf{})
	require.NoError(t, err)
	require.Equal(t, connectTimeout, config.ConnConfig.ConnectTimeout)
	config, err = PoolConfig("host=db connect_timeout=3", Conf{})
	require.NoError(t, err)
	require.Equal(t, 3*time.Second, config.ConnConfig.ConnectTimeout)
}

func closedPort(t *testing.T) int {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func TestCheckSchema(t *testing.T) {
	clean(t)
	ctx := context.Background()
	config, err := pgx.ParseConfig(pgtest.EmptyDB(t))
	require.NoError(t, err)

	err = CheckSchema(ctx, config)
	require.EqualError(t, err, fmt.Sprintf("no gpubudget schema at %s: run: gpubudget db migrate", target(config)))

	require.NoError(t, migrations.Up(ctx, config, nil))
	require.NoError(t, CheckSchema(ctx, config))

	conn, err := pgx.ConnectConfig(ctx, config)
	require.NoError(t, err)
	defer conn.Close(ctx)
	var newest int64
	require.NoError(t, conn.QueryRow(ctx, "SELECT max(version_id) FROM gpubudget.schema_version").Scan(&newest))
	_, err = conn.Exec(ctx, "DELETE FROM gpubudget.schema_version WHERE version_id = $1", newest)
	require.NoError(t, err)
	err = CheckSchema(ctx, config)
	require.EqualError(t, err, fmt.Sprintf("the gpubudget schema at %s is version %d and this program needs %d: run: gpubudget db migrate", target(config), newest-1, newest))

	_, err = conn.Exec(ctx, "INSERT INTO gpubudget.schema_version (version_id, is_applied) VALUES ($1, true), (9999, true)", newest)
	require.NoError(t, err)
	var newer *migrations.NewerSchemaError
	require.ErrorAs(t, CheckSchema(ctx, config), &newer)
}
