// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"slices"
	"strings"

	"gpubudget/internal/nearest"
	"gpubudget/report"
)

// selection is which rows are shown.
type selection struct {
	all       bool
	users     []string // unless all
	own       bool     // users is the caller, who wasn't named
	accounts  []string // empty: all
	usersOnly bool
}

// rows are the report's rows that are selected, in its order.
func (s selection) rows(r *report.Report) []report.Row {
	lineage := s.lineage(r)
	var rows []report.Row
	for _, row := range r.Rows {
		if s.shows(&row, lineage) {
			rows = append(rows, row)
		}
	}
	return rows
}

// check makes sure that what was named is there: in one of the clusters at least.
func (s selection) check(reports []*report.Report) error {
	var accounts, users, clusters []string
	for _, r := range reports {
		clusters = append(clusters, r.Cluster)
		for _, row := range r.Rows {
			if row.IsUser() {
				users = append(users, row.User)
			} else {
				accounts = append(accounts, row.Account)
			}
		}
	}
	where := strings.Join(clusters, " or ")
	for _, name := range s.accounts {
		if !slices.Contains(accounts, name) {
			return fmt.Errorf("cluster %s has no account %q%s", where, name, hint(name, accounts, "list them with: gshare -a"))
		}
	}
	for _, name := range s.users {
		if !s.own && !slices.Contains(users, name) {
			return fmt.Errorf("user %q is in no account of cluster %s%s", name, where, hint(name, users, "list all with: gshare -aU"))
		}
	}
	return nil
}

// hint is what may help against a name that isn't known.
func hint(name string, known []string, otherwise string) string {
	if near := nearest.Word(name, known); near != "" {
		return fmt.Sprintf(": did you mean %s?", near)
	}
	return ": " + otherwise
}

// lineage is the accounts that the selected users are in, and those above them.
// It is nil, and stands for all, if the caller is in none and named nobody.
func (s selection) lineage(r *report.Report) map[string]bool {
	parents := map[string]string{}
	for _, row := range r.Rows {
		if !row.IsUser() {
			parents[row.Account] = row.Parent
		}
	}
	var lineage map[string]bool
	if !s.own && len(s.users) > 0 {
		lineage = map[string]bool{}
	}
	for _, row := range r.Rows {
		if !slices.Contains(s.users, row.User) {
			continue
		}
		if lineage == nil {
			lineage = map[string]bool{}
		}
		for name, ok := row.Account, true; ok && !lineage[name]; _, ok = parents[name] {
			lineage[name] = true
			name = parents[name]
		}
	}
	return lineage
}

func (s selection) shows(row *report.Row, lineage map[string]bool) bool {
	if len(s.accounts) > 0 && !slices.Contains(s.accounts, row.Account) {
		return false
	}
	if row.IsUser() {
		return s.all || slices.Contains(s.users, row.User)
	}
	if s.usersOnly {
		return false
	}
	return s.all || len(s.accounts) > 0 || lineage == nil || lineage[row.Account]
}
