// SPDX-License-Identifier: GPL-2.0-or-later

// Package migrations holds the database schema of gpubudget as numbered SQL
// files and brings a database up to it. Everything lies in the schema
// gpubudget, goose's own record of what has been applied
// (gpubudget.schema_version) too. The way is forward only.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

//go:embed *.sql
var files embed.FS

const (
	versionTable = "gpubudget.schema_version"
	// lockID is the advisory lock that one run holds against others: the bytes
	// of "gpubudge".
	lockID int64 = 0x6770756275646765
)

// Migration is one step of the schema.
type Migration struct {
	Version   int64
	Name      string        // the file's name
	AppliedAt time.Time     // when this database got it; zero: it has not
	Took      time.Duration // set by Up only
}

// Pending tells whether the database lacks the migration.
func (m Migration) Pending() bool { return m.AppliedAt.IsZero() }

// NewerSchemaError is the refusal to work on a database that a newer release
// has migrated.
type NewerSchemaError struct {
	Database, Known int64 // versions: the database's, and the newest known here
}

func (e *NewerSchemaError) Error() string {
	return fmt.Sprintf("the database's schema is at version %d and this release knows versions up to %d only: "+
		"install the release that migrated it, or a later one", e.Database, e.Known)
}

// Up applies the migrations the database lacks, in order, and calls progress
// after each unless it is nil. Runs at the same time wait for each other; a run
// on a current database changes nothing. If a migration fails, the ones before
// it stay.
func Up(ctx context.Context, cfg *pgx.ConnConfig, progress func(Migration)) error {
	db := open(cfg)
	defer db.Close()
	unlock, err := lock(ctx, db)
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	err = up(ctx, db, progress)
	if err = errors.Join(err, unlock()); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return nil
}

func up(ctx context.Context, db *sql.DB, progress func(Migration)) error {
	if _, err := db.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS gpubudget"); err != nil {
		return fmt.Errorf("create schema gpubudget: %w", err)
	}
	p, err := provider(db)
	if err != nil {
		return err
	}
	current, known, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read %s: %w", versionTable, err)
	}
	if current > known {
		return &NewerSchemaError{Database: current, Known: known}
	}
	for {
		result, err := p.UpByOne(ctx)
		if errors.Is(err, goose.ErrNoNextVersion) {
			return nil
		}
		if err != nil {
			return err
		}
		if progress != nil {
			progress(Migration{
				Version: result.Source.Version, Name: path.Base(result.Source.Path),
				AppliedAt: time.Now().UTC(), Took: result.Duration,
			})
		}
	}
}

// Status is every migration known here, in order, and whether the database has
// it. It changes nothing. The error is a *NewerSchemaError, beside the list, if
// the database has migrations that are not known here.
func Status(ctx context.Context, cfg *pgx.ConnConfig) ([]Migration, error) {
	db := open(cfg)
	defer db.Close()
	p, err := provider(db)
	if err != nil {
		return nil, fmt.Errorf("schema status: %w", err)
	}
	applied, err := applied(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("schema status: %w", err)
	}
	var known int64
	var list []Migration
	for _, s := range p.ListSources() {
		known = max(known, s.Version)
		list = append(list, Migration{Version: s.Version, Name: path.Base(s.Path), AppliedAt: applied[s.Version]})
	}
	if len(applied) == 0 {
		return list, nil
	}
	if newest := slices.Max(slices.Collect(maps.Keys(applied))); newest > known {
		return list, &NewerSchemaError{Database: newest, Known: known}
	}
	return list, nil
}

// Newest is the version of the newest migration known here.
func Newest() int64 {
	names, err := files.ReadDir(".")
	if err != nil {
		panic(err) // they are part of this program
	}
	var newest int64
	for _, name := range names {
		version, err := goose.NumericComponent(name.Name())
		if err != nil {
			panic(err)
		}
		newest = max(newest, version)
	}
	return newest
}

// Querier is what asks a database for a row: a pgx.Conn, a pool of them, or a
// transaction.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Applied is the version of the newest migration that a database has, 0 if it
// has none. In a transaction that has none the transaction is then of no more
// use.
func Applied(ctx context.Context, db Querier) (int64, error) {
	var version int64
	err := db.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM "+versionTable+" WHERE is_applied").Scan(&version)
	if missing, ok := errors.AsType[*pgconn.PgError](err); ok && (missing.Code == undefinedTable || missing.Code == noSuchSchema) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", versionTable, err)
	}
	return version, nil
}

// SQLSTATE of what a database without our schema answers.
const (
	undefinedTable = "42P01"
	noSuchSchema   = "3F000"
)

// applied is when each migration was applied, by version. Goose would create
// its table to find out; a status must not.
func applied(ctx context.Context, db *sql.DB) (map[int64]time.Time, error) {
	var exists bool
	if err := db.QueryRowContext(ctx, "SELECT to_regclass($1) IS NOT NULL", versionTable).Scan(&exists); err != nil {
		return nil, err
	}
	at := map[int64]time.Time{}
	if !exists {
		return at, nil
	}
	rows, err := db.QueryContext(ctx, "SELECT version_id, tstamp FROM "+versionTable+" WHERE is_applied AND version_id > 0")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var version int64
		var stamp time.Time
		if err := rows.Scan(&version, &stamp); err != nil {
			return nil, err
		}
		at[version] = stamp.UTC()
	}
	return at, rows.Err()
}

// open connects with UTC as the session's time zone: goose's table stores times
// without one.
func open(cfg *pgx.ConnConfig) *sql.DB {
	cfg = cfg.Copy()
	if cfg.RuntimeParams == nil {
		cfg.RuntimeParams = map[string]string{}
	}
	cfg.RuntimeParams["timezone"] = "UTC"
	return stdlib.OpenDB(*cfg)
}

func provider(db *sql.DB) (*goose.Provider, error) {
	return goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithTableName(versionTable), goose.WithDisableGlobalRegistry(true))
}

// lock keeps other runs out until the function it returns is called. A session
// that dies lets go by itself.
func lock(ctx context.Context, db *sql.DB) (unlock func() error, err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock($1)", lockID); err != nil {
		return nil, errors.Join(fmt.Errorf("wait for another migration: %w", err), conn.Close())
	}
	return func() error {
		// The caller's context may have ended; the lock must go all the same.
		_, err := conn.ExecContext(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock($1)", lockID)
		return errors.Join(err, conn.Close())
	}, nil
}
