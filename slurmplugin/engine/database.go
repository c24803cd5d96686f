// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"gpubudget/budgets"
	"gpubudget/conf"
	"gpubudget/fairshare"
	"gpubudget/usage"
)

const (
	// writeBatch is how many records of the spool are written at once.
	writeBatch = 1000
	// ledgerChannel is where Postgres notifies of new entries of the ledger; the
	// payload is the cluster.
	ledgerChannel = "gpubudget_ledger"
)

// database is the engine's connection to Postgres. There is one, because the
// lock of the single writer belongs to it.
type database struct {
	conn    *pgx.Conn
	usage   *usage.Store
	cluster string
	locked  bool

	// last is the snapshot that was read last on this connection, and since is
	// when its budget begins: of the next one only what has changed is read.
	last  *Snapshot
	since fairshare.Instant
	// bulky tells that reading it took much memory, most of which is free now.
	bulky bool
}

// connect opens a connection that hears of changes of the ledger.
func connect(ctx context.Context, c conf.Conf, cluster string) (*database, error) {
	pool, err := conf.PoolConfig("", c)
	if err != nil {
		return nil, err
	}
	config := pool.ConnConfig
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, conf.NewConnectError(config, source(c), err)
	}
	db := &database{conn: conn, usage: usage.NewStore(conn), cluster: cluster}
	if _, err := conn.PgConn().Exec(ctx, setUp).ReadAll(); err != nil {
		db.close()
		return nil, fmt.Errorf("set up the connection: %w", err)
	}
	return db, nil
}

// setUp begins a connection. The server shall soon notice should this host
// vanish, and give the lock of the single writer to another; and it shall not
// compile what runs once.
const setUp = `SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3; SET jit = off; LISTEN ` + ledgerChannel

// source is where connection settings come from.
func source(c conf.Conf) string {
	if c.DSN != "" {
		return "DSN in " + c.Path
	}
	return "PG* environment variables"
}

func (db *database) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	// Its error would say that the connection is gone, as it is meant to be.
	_ = db.conn.Close(ctx)
}

// lock makes this connection the only one that writes what is seen of the
// cluster; it keeps the lock until it ends. mine is false if another has it.
func (db *database) lock(ctx context.Context) (mine bool, err error) {
	if db.locked {
		return true, nil
	}
	const lock = `SELECT pg_try_advisory_lock(hashtextextended('gpubudget.recorder:' || $1, 0))`
	if err := db.conn.QueryRow(ctx, lock, db.cluster).Scan(&db.locked); err != nil {
		return false, fmt.Errorf("lock for the single writer: %w", err)
	}
	return db.locked, nil
}

// read makes a snapshot of one state of the database. It shares with the one that
// was read before on this connection what has not changed since.
func (db *database) read(ctx context.Context, now fairshare.Instant) (*Snapshot, error) {
	return db.readWith(ctx, now, func(*usage.Store) error { return nil })
}

// readEnded is read, and which runs the snapshot holds that ended after an instant.
func (db *database) readEnded(ctx context.Context, now, since fairshare.Instant) (*Snapshot, map[runKey]bool, error) {
	ended := make(map[runKey]bool)
	s, err := db.readWith(ctx, now, func(used *usage.Store) error {
		runs, err := used.EndedSince(ctx, db.cluster, since.Time())
		for i := range runs {
			ended[runKey{runs[i].JobID, runs[i].StartedAt.Unix()}] = true
		}
		return err
	})
	return s, ended, err
}

func (db *database) readWith(ctx context.Context, now fairshare.Instant, also func(*usage.Store) error) (*Snapshot, error) {
	s := &Snapshot{Cluster: db.cluster, ReadAt: now}
	db.bulky = db.last == nil
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, db.conn, options, func(tx pgx.Tx) error {
		if err := db.fill(ctx, tx, s); err != nil {
			return err
		}
		return also(usage.NewStore(tx))
	})
	if err != nil {
		db.last = nil
		return nil, err
	}
	db.last = s
	return s, nil
}

func (db *database) fill(ctx context.Context, tx pgx.Tx, s *Snapshot) (err error) {
	ledger, used := budgets.NewStore(tx), usage.NewStore(tx)
	if s.Ledger, err = ledger.Version(ctx, s.Cluster); err != nil {
		return err
	}
	if s.Policy, err = ledger.Policy(ctx, s.Cluster, s.ReadAt.Time()); err != nil {
		return err
	}
	if s.MinRuntimes, err = ledger.MinRuntimes(ctx, s.Cluster, s.ReadAt.Time()); err != nil {
		return err
	}
	w := s.Lookback(s.ReadAt)
	if s.Budget, err = db.budget(ctx, ledger, s, w); err != nil {
		return err
	}
	if s.Weights, err = db.weights(ctx, ledger, s); err != nil {
		return err
	}
	if s.Budget.Capacity, err = used.Capacity(ctx, s.Cluster, w); err != nil {
		return err
	}
	var last *usage.History
	if db.last != nil {
		last = db.last.History
	}
	s.History, err = used.History(ctx, s.Cluster, w, s.Budget.Moves(), last)
	return err
}

// budget is the ledger from the beginning of a window on, without the capacity. The
// accounts are those of the last snapshot if the ledger is.
func (db *database) budget(ctx context.Context, ledger *budgets.Store, s *Snapshot, w fairshare.Period) (*fairshare.Budget, error) {
	if db.last != nil && db.last.Ledger == s.Ledger && db.since <= w.From {
		return &fairshare.Budget{Accounts: db.last.Budget.Accounts}, nil
	}
	db.since, db.bulky = w.From, true
	return ledger.Load(ctx, s.Cluster, fairshare.Period{From: w.From, Until: fairshare.Never})
}

// weights are what GPUs count for, now and by what is planned.
func (db *database) weights(ctx context.Context, ledger *budgets.Store, s *Snapshot) (fairshare.GPUWeights, error) {
	if db.last != nil && db.last.Ledger == s.Ledger {
		return db.last.Weights, nil
	}
	return ledger.Weights(ctx, s.Cluster, fairshare.Period{From: fairshare.Always, Until: fairshare.Never})
}

// write writes records of the spool. Runs that nobody could judge before are
// judged now. A record that the database will never take is given to
// reject: it must not hold up all others for ever.
func (db *database) write(ctx context.Context, recs []spoolRecord, by judge, reject func(spoolRecord, error)) error {
	err := db.writeAll(ctx, recs, by)
	if !isRefusal(err) {
		return err
	}
	for i := range recs {
		switch err := db.writeAll(ctx, recs[i:i+1], by); {
		case err == nil:
		case isRefusal(err):
			reject(recs[i], err)
		default:
			return err
		}
	}
	return nil
}

// isRefusal tells whether an error is about the data, and would come again.
func isRefusal(err error) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && (strings.HasPrefix(answer.Code, "22") || strings.HasPrefix(answer.Code, "23"))
}

func (db *database) writeAll(ctx context.Context, recs []spoolRecord, by judge) error {
	var runs []usage.Run
	for _, rec := range recs {
		if rec.Run == nil {
			continue
		}
		r := rec.Run.usageRun(db.cluster)
		if rec.Run.Allocated == nil {
			allocated, minRuntime := by.decide(r.Account, rec.Run.terms())
			r.Allocated, r.MinRuntime = allocated, &minRuntime
		}
		runs = append(runs, r)
	}
	if err := db.usage.WriteRuns(ctx, runs); err != nil {
		return err
	}
	var preemptions []usage.Preemption
	for _, rec := range recs {
		if rec.Preemption != nil {
			preemptions = append(preemptions, rec.Preemption.preemption(db.cluster))
		}
		if err := db.writeOther(ctx, rec); err != nil {
			return err
		}
	}
	if len(preemptions) == 0 {
		return nil
	}
	return db.usage.WritePreemptions(ctx, preemptions)
}

func (db *database) writeOther(ctx context.Context, rec spoolRecord) error {
	if d := rec.Demand; d != nil {
		return db.usage.WriteDemand(ctx, db.cluster, d.Incarnation, d.buckets())
	}
	if c := rec.Capacity; c != nil {
		return db.usage.WriteCapacity(ctx, db.cluster, c.At.Time(), c.holding())
	}
	return nil
}

// rejected is a record that the database would not take, and why.
type rejected struct {
	Why    string      `json:"why"`
	Record spoolRecord `json:"record"`
}

// reject puts a record aside, for somebody to look at. The error tells of it.
func reject(path string, rec spoolRecord, why error) error {
	line, err := json.Marshal(rejected{why.Error(), rec})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(append(line, '\n')); err != nil {
		return errors.Join(err, f.Close())
	}
	return errors.Join(fmt.Errorf("record put aside in %s: %w", path, why), f.Close())
}

// waitForLedger waits for a change of the cluster's ledger, or until ctx ends or
// the connection does.
func (db *database) waitForLedger(ctx context.Context) {
	for {
		n, err := db.conn.WaitForNotification(ctx)
		if err != nil || n.Payload == db.cluster || n.Payload == "" {
			return
		}
	}
}

// kindOf tells failures of the database apart that are worth a line each: that
// it is away, whatever the reason, from each kind of refusal.
func kindOf(err error) string {
	var answer *pgconn.PgError
	if isSchema(err) {
		return "schema"
	}
	if _, empty := errors.AsType[*emptyLedgerError](err); empty {
		return "empty"
	}
	if !errors.As(err, &answer) {
		return "away"
	}
	for _, class := range []string{"08", "53", "57"} { // connection, resources, operator intervention
		if strings.HasPrefix(answer.Code, class) {
			return "away"
		}
	}
	return answer.Code
}
