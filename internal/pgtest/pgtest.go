// SPDX-License-Identifier: GPL-2.0-or-later

// Package pgtest gives every test a PostgreSQL database of its own: migrated,
// empty, cloned from a template in a few hundredths of a second, and dropped
// when the test ends. A test binary starts one private server, at the first
// test that asks; it ends with the binary, however that ends.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"gpubudget/internal/pgserver"
	"gpubudget/migrations"
)

const template = "gpubudget_template"

var (
	start    = sync.OnceValues(startServer)
	started  atomic.Pointer[instance]
	sequence atomic.Int64
)

// instance is the test binary's server.
type instance struct {
	*pgserver.Server
	admin *pgxpool.Pool // creates and drops databases
}

// Main runs the tests of a package and then removes the server's files at
// once. A package that has no other use for TestMain should have
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
func Main(m *testing.M) {
	code := m.Run()
	if in := started.Load(); in != nil {
		if err := in.remove(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// DB makes a database with the current schema in it and returns how to connect
// to it. The database is dropped when the test ends.
func DB(t testing.TB) string {
	t.Helper()
	return create(t, template)
}

// EmptyDB makes a database without any schema of ours, to migrate.
func EmptyDB(t testing.TB) string {
	t.Helper()
	return create(t, "template0")
}

// Pool is DB with a pool of connections to it, closed when the test ends.
func Pool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), DB(t))
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// Server is the test binary's server, for a test that must stop or restart
// one; such a test should start a server of its own instead of this one.
func Server(t testing.TB) *pgserver.Server {
	t.Helper()
	return running(t).Server
}

func running(t testing.TB) *instance {
	t.Helper()
	in, err := start()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return in
}

func create(t testing.TB, from string) string {
	t.Helper()
	in := running(t)
	name := fmt.Sprintf("test_%d", sequence.Add(1))
	ctx := context.Background()
	if _, err := in.admin.Exec(ctx, fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", name, from)); err != nil {
		t.Fatalf("pgtest: create a database: %v", err)
	}
	t.Cleanup(func() {
		if _, err := in.admin.Exec(ctx, fmt.Sprintf("DROP DATABASE %s WITH (FORCE)", name)); err != nil {
			t.Errorf("pgtest: drop the test's database: %v", err)
		}
	})
	return in.DSN(name)
}

func startServer() (*instance, error) {
	dir, err := os.MkdirTemp(fastDir(), "gpubudget-pg-")
	if err != nil {
		return nil, err
	}
	// The server's user must get through; what is within guards itself.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	ctx := context.Background()
	server, err := pgserver.Start(ctx, dir, pgserver.Temporary())
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	in := &instance{Server: server}
	started.Store(in)
	if in.admin, err = pgxpool.New(ctx, server.DSN("postgres")); err != nil {
		return nil, err
	}
	if _, err := in.admin.Exec(ctx, "CREATE DATABASE "+template+" TEMPLATE template0"); err != nil {
		return nil, fmt.Errorf("create the template: %w", err)
	}
	cfg, err := pgx.ParseConfig(server.DSN(template))
	if err != nil {
		return nil, err
	}
	if err := migrations.Up(ctx, cfg, nil); err != nil {
		return nil, err
	}
	return in, nil
}

// fastDir is where files are in memory, if there is room, else "" for the usual
// place. Databases come and go several times faster there.
func fastDir() string {
	const dir, room = "/dev/shm", 1 << 30
	var fs syscall.Statfs_t
	if os.Getenv("TMPDIR") != "" || syscall.Statfs(dir, &fs) != nil || fs.Bavail*uint64(fs.Bsize) < room { //nolint:gosec // a block has a size
		return ""
	}
	return dir
}

func (in *instance) remove() error {
	if in.admin != nil {
		in.admin.Close()
	}
	return errors.Join(in.Stop(), os.RemoveAll(in.Dir()))
}
