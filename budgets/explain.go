// SPDX-License-Identifier: GPL-2.0-or-later

package budgets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"gpubudget/fairshare"
	"gpubudget/internal/nearest"
)

// SQLSTATEs of the ledger's own refusals; docs/ledger.md lists them.
const (
	codeUnknownAccount = "GB002"
	codeClosedAccount  = "GB003"
	codeDuplicate      = "GB004"
	codeUnknownUser    = "GB005"
	codeShare          = "GB006"
	codeCycle          = "GB007"
	codeOpenChildren   = "GB008"
	codeRoot           = "GB009"
	codeKey            = "GB010"
	codeRefund         = "GB011"

	codeCheckViolation  = "23514"
	codeUndefinedTable  = "42P01"
	codeUndefinedSchema = "3F000"
	codeUndefinedColumn = "42703"
)

// refusal is the DETAIL that comes with the codes above; each fills its own
// part of it.
type refusal struct {
	Account string          `json:"account"`
	User    string          `json:"user"`
	Child   string          `json:"child"`
	Parent  string          `json:"parent"`
	Kind    Kind            `json:"kind"`
	At      time.Time       `json:"at"`
	Since   *time.Time      `json:"since"`
	Opens   *time.Time      `json:"opens"`
	Path    []string        `json:"path"`
	Total   fairshare.Share `json:"total"`
	Holders []Holding       `json:"holders"`
	Key     string          `json:"key"`
	Seq     int64           `json:"seq"`
	Job     uint32          `json:"job"`
	Problem string          `json:"problem"`
	Charged int64           `json:"charged"`
}

// explain is an error of PostgreSQL as one of this package's, if it is one of
// the ledger's refusals. e is the entry that was to be written; zero if there
// were several.
func (s *Store) explain(ctx context.Context, err error, e Entry) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return failed("write to the ledger", err)
	}
	if pgErr.Code == codeCheckViolation {
		return explainCheck(err, pgErr.ConstraintName, e)
	}
	var r refusal
	if len(pgErr.Code) != 5 || pgErr.Code[:2] != "GB" || json.Unmarshal([]byte(pgErr.Detail), &r) != nil {
		return failed("write to the ledger", err)
	}
	switch pgErr.Code {
	case codeUnknownAccount:
		return s.unknownAccount(ctx, e.Cluster, r.Account)
	case codeUnknownUser:
		return s.unknownUser(ctx, e.Cluster, r)
	}
	if known := r.err(pgErr.Code, e); known != nil {
		return known
	}
	return failed("write to the ledger", err)
}

// err is the error that a code stands for; nil if it is not known here.
func (r *refusal) err(code string, e Entry) error {
	utc(&r.At, r.Since, r.Opens)
	switch code {
	case codeClosedAccount:
		return &ClosedAccountError{Account: r.Account, At: r.At, Since: r.Since, Opens: r.Opens, Child: r.Child}
	case codeDuplicate:
		return &DuplicateError{Account: r.Account, User: r.User, Since: r.Since}
	case codeShare:
		return &ShareError{Account: e.Account, User: e.User, Parent: r.Parent, At: r.At,
			Total: r.Total, Over: r.Total - fairshare.Whole, Holders: r.Holders}
	case codeCycle:
		return &CycleError{Path: r.Path, At: r.At}
	case codeOpenChildren:
		return &OpenChildrenError{Account: r.Account, Child: r.Child, At: r.At}
	case codeRoot:
		return &RootError{Kind: r.Kind}
	case codeKey:
		return &KeyError{Key: r.Key, Seq: r.Seq}
	case codeRefund:
		return r.refundError(e)
	}
	return nil
}

func (r *refusal) refundError(e Entry) error {
	err := &RefundError{Job: r.Job, Start: r.At, Problem: r.Problem, Seq: r.Seq}
	if r.Problem == RefundTooMuch {
		err.Amount, err.Charged = e.Amount, fairshare.GPUMillis(r.Charged)
	}
	return err
}

// explainCheck is the violation of a CHECK that validate can't foresee: it
// needs PostgreSQL's clock or the other entries.
func explainCheck(err error, constraint string, e Entry) error {
	switch constraint {
	case "ledger_period_valid":
		return &PeriodError{From: e.From, Until: e.Until, Reason: "the end must come after the beginning"}
	case "cluster_granted_valid":
		return &InvalidAmountError{Amount: e.Amount, Total: true}
	}
	return failed("write to the ledger", err)
}

// failed is an error that is not about what was asked, with what was being done
// and, where the database lacks the current schema, what to do.
func failed(doing string, err error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch pgErr.Code {
		case codeUndefinedTable, codeUndefinedSchema, codeUndefinedColumn:
			return fmt.Errorf("%s: %w: bring the database's schema up to date with `gpubudget db migrate`", doing, err)
		}
	}
	return fmt.Errorf("%s: %w", doing, err)
}

func (s *Store) unknownAccount(ctx context.Context, cluster, name string) error {
	clusters, err := s.Clusters(ctx)
	if err != nil {
		return fmt.Errorf("unknown account %q: %w", name, err)
	}
	if unknown := unknownCluster(cluster, clusters); unknown != nil && len(clusters) > 0 {
		return unknown
	}
	names, err := s.names(ctx, "SELECT name FROM gpubudget.account WHERE cluster = $1", cluster)
	if err != nil {
		return fmt.Errorf("unknown account %q: %w", name, err)
	}
	return &UnknownAccountError{Cluster: cluster, Name: name, Nearest: nearest.Word(name, names)}
}

// unknownCluster is an error unless the cluster is among those known.
func unknownCluster(cluster string, known []string) error {
	if slices.Contains(known, cluster) {
		return nil
	}
	return &UnknownClusterError{Name: cluster, Nearest: nearest.Word(cluster, known), Known: known}
}

func (s *Store) unknownUser(ctx context.Context, cluster string, r refusal) error {
	names, err := s.names(ctx, `SELECT DISTINCT user_name FROM gpubudget.ledger
		WHERE cluster = $1 AND account = $2 AND kind = 'user_add'`, cluster, r.Account)
	if err != nil {
		return fmt.Errorf("user %q is no member of account %q: %w", r.User, r.Account, err)
	}
	near := nearest.Word(r.User, names)
	if near == r.User {
		near = "" // he was a member once
	}
	utc(&r.At)
	return &UnknownUserError{Account: r.Account, User: r.User, At: r.At, Nearest: near}
}

func (s *Store) names(ctx context.Context, sql string, args ...any) ([]string, error) {
	rows, err := s.db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// utc moves times into UTC where there are any.
func utc(times ...*time.Time) {
	for _, t := range times {
		if t != nil {
			*t = t.UTC()
		}
	}
}
