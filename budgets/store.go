// SPDX-License-Identifier: GPL-2.0-or-later

// Package budgets is the ledger of accounts, shares, deposits, transfers and
// policy in PostgreSQL: it writes entries and reads what they say about any
// instant.
//
// The ledger is append-only and its rules are PostgreSQL's to enforce (see
// package migrations and docs/ledger.md). This package turns what PostgreSQL
// refuses into errors that name the thing and the remedy.
package budgets

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"gpubudget/fairshare"
)

// Channel is the PostgreSQL notification channel that tells of new entries;
// the payload is the cluster's name.
const Channel = "gpubudget_ledger"

// DB is what a connection, a pool and a transaction of pgx have in common.
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Store reads and writes the ledgers of the clusters in one database. It is as
// safe for concurrent use as its DB is.
type Store struct {
	db DB
	tx pgx.Tx // db, if it is a transaction
}

// NewStore is the store in a database that has the current schema. On a
// transaction, what entries must fulfil together is checked when it commits.
func NewStore(db DB) *Store {
	tx, _ := db.(pgx.Tx)
	return &Store{db: db, tx: tx}
}

// InTx calls f with a store whose writes are kept together, if f returns nil,
// or not at all. Shares of several accounts can so be changed in any order:
// only their sum at the end counts. Errors are the same as those of a single
// write. An error of one write doesn't end the transaction by itself.
func (s *Store) InTx(ctx context.Context, f func(*Store) error) error {
	var inner error
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		inner = f(NewStore(tx))
		return inner
	})
	if err == nil || inner != nil {
		return err
	}
	return s.explain(ctx, err, Entry{})
}

// Check makes a transaction's entries so far prove themselves now instead of
// when it commits, for example before a rollback that only tried them out.
func (s *Store) Check(ctx context.Context) error {
	if _, err := s.db.Exec(ctx, "SET CONSTRAINTS ALL IMMEDIATE"); err != nil {
		return s.explain(ctx, err, Entry{})
	}
	if _, err := s.db.Exec(ctx, "SET CONSTRAINTS ALL DEFERRED"); err != nil {
		return failed("check entries", err)
	}
	return nil
}

// Note is what accompanies every entry.
type Note struct {
	Actor string     // who decides; required
	Why   string     // may be empty
	Key   string     // idempotency key, unique per cluster; may be empty
	From  time.Time  // in force from; zero: now. Past and future are fine. To the millisecond
	Until *time.Time // in force until; nil: until superseded
}

// KeepShare leaves an account the share it has.
const KeepShare fairshare.Share = -2

// AddAccount opens an account, new or closed before, under parent with a share
// of it from 0 to fairshare.Whole.
func (s *Store) AddAccount(ctx context.Context, cluster, name, parent string, share fairshare.Share, n Note) (Entry, error) {
	return s.write(ctx, n, Entry{Cluster: cluster, Kind: AccountAdd, Account: name, Parent: parent, Share: &share})
}

// MoveAccount puts an account, and all below it, under another parent, with a
// share of that. KeepShare keeps the number it has.
func (s *Store) MoveAccount(ctx context.Context, cluster, name, parent string, share fairshare.Share, n Note) (Entry, error) {
	e := Entry{Cluster: cluster, Kind: AccountMove, Account: name, Parent: parent}
	if share != KeepShare {
		e.Share = &share
	}
	return s.write(ctx, n, e)
}

// CloseAccount closes an account that has no open account under it. Its
// memberships end with it, and what is left of its grants lapses. The past
// stays; AddAccount opens it again.
func (s *Store) CloseAccount(ctx context.Context, cluster, name string, n Note) (Entry, error) {
	return s.write(ctx, n, Entry{Cluster: cluster, Kind: AccountClose, Account: name})
}

// AddUser makes a user a member of an account, with a share of it or with
// fairshare.EqualPart.
func (s *Store) AddUser(ctx context.Context, cluster, account, user string, share fairshare.Share, n Note) (Entry, error) {
	return s.write(ctx, n, Entry{Cluster: cluster, Kind: UserAdd, Account: account, User: user, Share: &share})
}

// RemoveUser ends a membership.
func (s *Store) RemoveUser(ctx context.Context, cluster, account, user string, n Note) (Entry, error) {
	return s.write(ctx, n, Entry{Cluster: cluster, Kind: UserRemove, Account: account, User: user})
}

// SetShare sets an account's share of its parent.
func (s *Store) SetShare(ctx context.Context, cluster, account string, share fairshare.Share, n Note) (Entry, error) {
	return s.write(ctx, n, Entry{Cluster: cluster, Kind: ShareSet, Account: account, Share: &share})
}

// SetUserShare sets a member's share of an account, or makes it
// fairshare.EqualPart.
func (s *Store) SetUserShare(ctx context.Context, cluster, account, user string, share fairshare.Share, n Note) (Entry, error) {
	return s.write(ctx, n, Entry{Cluster: cluster, Kind: UserShareSet, Account: account, User: user, Share: &share})
}

// Deposit gives an account GPU time, spread evenly from n.From to n.Until,
// which it needs.
func (s *Store) Deposit(ctx context.Context, cluster, account string, amount fairshare.GPUMillis, n Note) (Entry, error) {
	return s.write(ctx, n, Entry{Cluster: cluster, Kind: Deposit, Account: account, Amount: amount})
}

// Transfer takes GPU time from one account and gives it to another, spread
// evenly from n.From to n.Until, which it needs.
func (s *Store) Transfer(ctx context.Context, cluster, from, to string, amount fairshare.GPUMillis, n Note) (Entry, error) {
	return s.write(ctx, n, Entry{Cluster: cluster, Kind: Transfer, Account: from, Receiver: to, Amount: amount})
}

// Lost is a run of a job, or the end of one, that is lost and to be refunded.
type Lost struct {
	Job           uint32
	Start         time.Time // of the run
	Account, User string    // who was charged
	Amount        fairshare.GPUMillis
}

// Refund gives back what a run was charged from n.From to n.Until, which it
// needs: all of the run, or what followed its last checkpoint. A run is refunded
// once: without a key in n it has one of its own, so that the same refund given
// again changes nothing. What the record of the run doesn't bear out is a
// *RefundError.
func (s *Store) Refund(ctx context.Context, cluster string, lost Lost, n Note) (Entry, error) {
	own := n.Key == ""
	if own {
		n.Key = RefundKey(lost.Job, lost.Start)
	}
	e, err := s.write(ctx, n, Entry{
		Cluster: cluster, Kind: Refund, Account: lost.Account, User: lost.User, Amount: lost.Amount,
		Job: lost.Job, JobStart: lost.Start,
	})
	if known, other := errors.AsType[*KeyError](err); other && own {
		return e, &RefundError{Job: lost.Job, Start: lost.Start, Problem: RefundedAlready, Seq: known.Seq}
	}
	return e, err
}

// RefundKey is the idempotency key of the refund of a run.
func RefundKey(job uint32, start time.Time) string {
	return fmt.Sprintf("refund/%d/%s", job, start.UTC().Format(time.RFC3339Nano))
}

// SetPolicy sets one of a cluster's settings; see Policy for what there is.
func (s *Store) SetPolicy(ctx context.Context, cluster, setting, value string, n Note) (Entry, error) {
	setting, value, err := canonicalPolicy(setting, value)
	if err != nil {
		return Entry{}, err
	}
	return s.write(ctx, n, Entry{Cluster: cluster, Kind: PolicySet, Setting: setting, Value: value})
}

// SetMinRuntime sets the minimum runtime of an account's jobs that name none, and
// of those of the accounts below it which have none of their own: a duration from 1
// second to 366 days. Inherit takes back what was said. The error of a value is an
// *InvalidPolicyError.
func (s *Store) SetMinRuntime(ctx context.Context, cluster, account, value string, n Note) (Entry, error) {
	if err := validateName("account", account); err != nil {
		return Entry{}, err
	}
	value, err := canonicalMinRuntime(account, value)
	if err != nil {
		return Entry{}, err
	}
	return s.write(ctx, n, Entry{Cluster: cluster, Kind: PolicySet, Account: account, Setting: MinRuntime, Value: value})
}

// SetWeight sets what a GPU of a type counts for, from 0 to fairshare.MaxWeight;
// fairshare.DefaultWeight takes back what was said of it. The type is one of
// Slurm's, a MIG profile, or fairshare.OtherTypes. All runs that it concerns are
// charged by it, those that have ended too.
func (s *Store) SetWeight(ctx context.Context, cluster, gpuType string, weight fairshare.Weight, n Note) (Entry, error) {
	return s.write(ctx, n, Entry{Cluster: cluster, Kind: WeightSet, GPUType: gpuType, Weight: &weight})
}

// write adds an entry to the ledger, or finds the one its key has.
func (s *Store) write(ctx context.Context, n Note, e Entry) (Entry, error) {
	e.note(n)
	if err := e.validate(); err != nil {
		return Entry{}, err
	}
	var written Entry
	err := s.guarded(ctx, func(db DB) (err error) {
		written, err = insert(ctx, db, e)
		return err
	})
	if err != nil {
		return Entry{}, s.explain(ctx, err, e)
	}
	return written, nil
}

// guarded calls f; within a transaction it does so behind a savepoint, so that
// an error leaves the transaction usable.
func (s *Store) guarded(ctx context.Context, f func(DB) error) error {
	if s.tx == nil {
		return f(s.db)
	}
	return pgx.BeginFunc(ctx, s.tx, func(tx pgx.Tx) error { return f(tx) })
}

func insert(ctx context.Context, db DB, e Entry) (Entry, error) {
	const sql = `INSERT INTO gpubudget.ledger (cluster, kind, actor, why, key, effective_from, effective_until,
			account, parent, receiver, user_name, share, amount, setting, value, job_id, job_started_at, gpu_type, weight)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, nullif($19::bigint, -1))
		RETURNING ` + entryColumns
	rows, err := db.Query(ctx, sql, e.Cluster, e.Kind, e.Actor, e.Why, null(e.Key), null(e.From), e.Until,
		null(e.Account), null(e.Parent), null(e.Receiver), null(e.User), e.Share, null(e.Amount), null(e.Setting), null(e.Value),
		null(int64(e.Job)), null(e.JobStart), null(e.GPUType), e.Weight)
	if err != nil {
		return Entry{}, err
	}
	written, err := pgx.CollectExactlyOneRow(rows, scanEntry)
	if errors.Is(err, pgx.ErrNoRows) && e.Key != "" {
		return byKey(ctx, db, e.Cluster, e.Key)
	}
	return written, err
}

// byKey is the entry that was written with a key.
func byKey(ctx context.Context, db DB, cluster, key string) (Entry, error) {
	rows, err := db.Query(ctx, "SELECT "+entryColumns+" FROM gpubudget.ledger WHERE cluster = $1 AND key = $2", cluster, key)
	if err != nil {
		return Entry{}, err
	}
	e, err := pgx.CollectExactlyOneRow(rows, scanEntry)
	e.Repeated = err == nil
	return e, err
}

// null is v for a column, NULL if it is zero.
func null[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}
