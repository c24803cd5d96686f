// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"gpubudget/budgets"
	"gpubudget/conf"
	"gpubudget/migrations"
)

// checkSchema makes sure that the database has the schema that this engine
// works on, no older and no newer. It is asked before every exchange: databases
// are migrated, and restored, while slurmctld runs.
func (db *database) checkSchema(ctx context.Context) error {
	err := conf.CheckSchemaOn(ctx, db.conn)
	if _, newer := errors.AsType[*migrations.NewerSchemaError](err); newer {
		return fmt.Errorf("this plugin is too old for the database, install both of its libraries anew and restart slurmctld: %w", err)
	}
	return err
}

// isSchema tells whether an error is that of a schema of another release.
func isSchema(err error) bool {
	_, older := errors.AsType[*conf.SchemaError](err)
	_, newer := errors.AsType[*migrations.NewerSchemaError](err)
	return older || newer
}

// emptyLedgerError is a database without any entry of a cluster whose ledger had
// some. Entries are never deleted: it is another database.
type emptyLedgerError struct {
	cluster, database string
	known             int64  // the last entry that there was
	snapshot          string // the file that has it
}

func (e *emptyLedgerError) Error() string {
	return fmt.Sprintf("database %q has no ledger of cluster %s, but there was one, with entries up to %d: "+
		"check DSN and Cluster; to begin anew, stop slurmctld and remove %s", e.database, e.cluster, e.known, e.snapshot)
}

// checkLedger makes sure that the database has the ledger of this cluster that
// there was before: neither must it be replaced by nothing, nor what is to be
// written go astray. One that is empty, but always was, is worth a word.
func (r *refresher) checkLedger(ctx context.Context) error {
	e := r.engine
	last, err := budgets.NewStore(r.db.conn).Version(ctx, e.cluster)
	if err != nil {
		return err
	}
	var known int64
	if s := e.current(); s != nil {
		known = s.Ledger
	}
	switch {
	case last == 0 && known > 0:
		return &emptyLedgerError{
			cluster: e.cluster, database: r.db.conn.Config().Database, known: known,
			snapshot: filepath.Join(e.host.StateDir, snapshotName),
		}
	case last == 0:
		return r.tellEmpty(ctx)
	case last < known && r.shorter.met(strconv.FormatInt(last, 10)):
		e.logf(LogError, "the ledger ends with entry %d, it had %d: it is an older copy, and its budgets are in force from now on", last, known)
	case last >= known:
		r.shorter.over()
	}
	if r.empty.over() {
		e.logf(LogInfo, "there is a ledger of cluster %s now", e.cluster)
	}
	return nil
}

// tellEmpty logs, once, that there is no ledger yet.
func (r *refresher) tellEmpty(ctx context.Context) error {
	if !r.empty.met("empty") {
		return nil
	}
	others, err := budgets.NewStore(r.db.conn).Clusters(ctx)
	if err != nil {
		return err
	}
	e, what := r.engine, fmt.Sprintf("there is no ledger of cluster %s yet", r.engine.cluster)
	if len(others) > 0 {
		what = fmt.Sprintf("there is no ledger of cluster %s, only of %s", e.cluster, strings.Join(others, ", "))
	}
	e.logf(LogInfo, "%s: no account is funded; check Cluster in %s, or begin one with: gpubudget import sacctmgr --new-cluster", what, e.conf.Load().Path)
	return nil
}
