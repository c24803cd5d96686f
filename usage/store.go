// SPDX-License-Identifier: GPL-2.0-or-later

// Package usage keeps what was used: every run of every job, the charged GPU
// time rolled up from them into buckets, the demand of each account, the
// cluster's capacity over time and the queue as the recorder last saw it.
//
// The recorder writes; reports and the plugin's refresher read. All writes are
// idempotent and may arrive late, twice or out of order: the rows that result
// are the same.
package usage

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DB is what *pgxpool.Pool, *pgx.Conn and pgx.Tx have in common.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Store reads and writes usage in Postgres. It keeps no state of its own and is
// as safe for concurrent use as the DB below it.
type Store struct {
	db DB
}

// NewStore is a store on db, whose schema must be migrated.
func NewStore(db DB) *Store { return &Store{db: db} }

// inTx runs do in a transaction, or in a savepoint if the store's DB is one.
func (s *Store) inTx(ctx context.Context, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s.db, do)
}

// lockWriters makes the writers of one cluster's records take turns until the
// end of the transaction, so that they can't deadlock over rows they share.
func lockWriters(ctx context.Context, tx pgx.Tx, cluster string) error {
	const lock = `SELECT pg_advisory_xact_lock(hashtextextended('gpubudget.usage:' || $1, 0))`
	if _, err := tx.Exec(ctx, lock, cluster); err != nil {
		return fmt.Errorf("take turns with other writers: %w", err)
	}
	return nil
}

// stored is t as Postgres keeps it here: UTC, whole milliseconds.
func stored(t time.Time) time.Time { return time.UnixMilli(t.UnixMilli()).UTC() }

// text is s as Postgres can store it. Names come from users and node names from
// Slurm: one bad byte must not hold up a whole batch.
func text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// DB is what the store works on: within Snapshot the transaction that sees one
// state of the database, for who reads other tables beside.
func (s *Store) DB() DB { return s.db }
