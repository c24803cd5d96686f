// SPDX-License-Identifier: GPL-2.0-or-later

package budgets

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"gpubudget/fairshare"
)

// Filter chooses entries of a ledger. A zero field does not restrict.
type Filter struct {
	Cluster string
	Account string // the entry's account, parent or receiver
	User    string
	Actor   string
	Kinds   []Kind
	Since   time.Time // recorded at or after
	Until   time.Time // recorded before
	After   int64     // with a greater number
	Limit   int       // the last so many
}

// Ledger is the entries that the filter chooses, by cluster and then in the
// order they were written.
func (s *Store) Ledger(ctx context.Context, f Filter) ([]Entry, error) {
	where, args := f.conditions()
	sql := "SELECT " + entryColumns + " FROM gpubudget.ledger " + where + " ORDER BY cluster DESC, seq DESC"
	if f.Limit > 0 {
		args = append(args, f.Limit)
		sql += fmt.Sprintf(" LIMIT $%d", len(args))
	}
	rows, err := s.db.Query(ctx, sql, args...)
	if err != nil {
		return nil, failed("read the ledger", err)
	}
	entries, err := pgx.CollectRows(rows, scanEntry)
	if err != nil {
		return nil, failed("read the ledger", err)
	}
	slices.Reverse(entries)
	return entries, nil
}

// conditions are the filter as a WHERE clause.
func (f Filter) conditions() (string, []any) {
	var all []string
	var args []any
	restrict := func(condition string, value any) {
		args = append(args, value)
		all = append(all, strings.ReplaceAll(condition, "?", fmt.Sprintf("$%d", len(args))))
	}
	if f.Cluster != "" {
		restrict("cluster = ?", f.Cluster)
	}
	if f.Account != "" {
		restrict("(account = ? OR parent = ? OR receiver = ?)", strings.ToLower(f.Account))
	}
	if f.User != "" {
		restrict("user_name = ?", f.User)
	}
	if f.Actor != "" {
		restrict("actor = ?", f.Actor)
	}
	if len(f.Kinds) > 0 {
		restrict("kind = ANY (?)", f.Kinds)
	}
	if !f.Since.IsZero() {
		restrict("recorded_at >= ?", f.Since)
	}
	if !f.Until.IsZero() {
		restrict("recorded_at < ?", f.Until)
	}
	if f.After > 0 {
		restrict("seq > ?", f.After)
	}
	if len(all) == 0 {
		return "", nil
	}
	return "WHERE " + strings.Join(all, " AND "), args
}

// ShareHistory is the entries that set the share of an account or of users in
// it, in the order they were written.
func (s *Store) ShareHistory(ctx context.Context, cluster, account string) ([]Entry, error) {
	entries, err := s.Ledger(ctx, Filter{Cluster: cluster, Account: account,
		Kinds: []Kind{AccountAdd, AccountMove, ShareSet, UserAdd, UserShareSet}})
	if err != nil {
		return nil, err
	}
	account = strings.ToLower(account)
	return slices.DeleteFunc(entries, func(e Entry) bool { return e.Account != account || e.Share == nil }), nil
}

// Clusters is the names of all clusters that have a ledger, sorted.
func (s *Store) Clusters(ctx context.Context) ([]string, error) {
	names, err := s.names(ctx, "SELECT name FROM gpubudget.cluster ORDER BY name")
	if err != nil {
		return nil, failed("read clusters", err)
	}
	return names, nil
}

// Version is the number of the cluster's last entry, 0 if there is none. It
// changes with every entry.
func (s *Store) Version(ctx context.Context, cluster string) (int64, error) {
	var last int64
	err := s.db.QueryRow(ctx, "SELECT coalesce(max(seq), 0) FROM gpubudget.ledger WHERE cluster = $1", cluster).Scan(&last)
	if err != nil {
		return 0, failed("read the ledger's version", err)
	}
	return last, nil
}

// Account is an open account at an instant.
type Account struct {
	Name   string
	Parent string // empty for root
	Share  fairshare.Share
}

// Accounts is the accounts that are open at an instant, root among them, sorted
// by name.
func (s *Store) Accounts(ctx context.Context, cluster string, at time.Time) ([]Account, error) {
	now := fairshare.At(at)
	b, err := s.Load(ctx, cluster, fairshare.Period{From: now, Until: now})
	if err != nil {
		return nil, err
	}
	var list []Account
	for _, a := range b.Accounts {
		if a.Name == fairshare.RootAccount {
			list = append(list, Account{Name: a.Name, Share: fairshare.Whole})
			continue
		}
		parent, open := fairshare.ValueAt(a.Parent, now)
		if !open {
			continue
		}
		share, _ := fairshare.ValueAt(a.Share, now)
		list = append(list, Account{Name: a.Name, Parent: parent, Share: share})
	}
	return list, nil
}

// User is a member of an account at an instant.
type User struct {
	Account, Name string
	Share         fairshare.Share // of the account, or fairshare.EqualPart
}

// Users is the members of an account, or of all if account is empty, at an
// instant, sorted by account and name. The error is an *UnknownAccountError or
// a *ClosedAccountError if there is no such account then.
func (s *Store) Users(ctx context.Context, cluster, account string, at time.Time) ([]User, error) {
	account = strings.ToLower(account)
	now := fairshare.At(at)
	b, err := s.Load(ctx, cluster, fairshare.Period{From: now, Until: now})
	if err != nil {
		return nil, err
	}
	var list []User
	found := account == ""
	for _, a := range b.Accounts {
		if account != "" && a.Name != account {
			continue
		}
		if _, open := fairshare.ValueAt(a.Parent, now); open || a.Name == fairshare.RootAccount {
			found = true
		}
		for _, m := range a.Users {
			if share, in := fairshare.ValueAt(m.In, now); in {
				list = append(list, User{Account: a.Name, Name: m.User, Share: share})
			}
		}
	}
	if !found {
		return nil, s.requireOpen(ctx, cluster, account, at)
	}
	return list, nil
}

// requireOpen is the error of an account that isn't open at an instant, nil if
// it is.
func (s *Store) requireOpen(ctx context.Context, cluster, account string, at time.Time) error {
	err := s.guarded(ctx, func(db DB) error {
		_, err := db.Exec(ctx, "SELECT gpubudget.require_open($1, $2, $3)", cluster, account, at)
		return err
	})
	if err == nil {
		return nil
	}
	return s.explain(ctx, err, Entry{Cluster: cluster, Account: account})
}
