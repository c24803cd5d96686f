// SPDX-License-Identifier: GPL-2.0-or-later

package plan

import (
	"context"
	"fmt"
	"slices"

	"gpubudget/budgets"
)

// Run writes changes into a cluster's ledger, in an order in which each can be
// written, and calls progress after each unless it is nil. If there are
// several, ledger should be a transaction's, so that only their sum counts.
//
// Without note.From all are in force from the moment that the first is
// written, by the database's clock: so nothing is ever half done.
func Run(ctx context.Context, ledger *budgets.Store, cluster string, changes []Change, note budgets.Note, progress func()) ([]budgets.Entry, error) {
	entries := make([]budgets.Entry, 0, len(changes))
	for _, c := range inOrder(changes) {
		e, err := c.write(ctx, ledger, cluster, note)
		if err != nil {
			return nil, err
		}
		note.From = e.From
		entries = append(entries, e)
		if progress != nil {
			progress()
		}
	}
	return entries, nil
}

// inOrder sorts changes by operation. Accounts are closed from below.
func inOrder(changes []Change) []Change {
	sorted := slices.Clone(changes)
	slices.SortStableFunc(sorted, func(a, b Change) int { return int(a.Op) - int(b.Op) })
	firstClosing := slices.IndexFunc(sorted, func(c Change) bool { return c.Op == CloseAccount })
	if firstClosing >= 0 {
		slices.Reverse(sorted[firstClosing:])
	}
	return sorted
}

func (c Change) write(ctx context.Context, s *budgets.Store, cluster string, n budgets.Note) (budgets.Entry, error) {
	switch c.Op {
	case SetPolicy:
		return s.SetPolicy(ctx, cluster, c.Setting, c.Value, n)
	case SetWeight:
		return s.SetWeight(ctx, cluster, c.GPUType, c.Weight, n)
	case AddAccount:
		return s.AddAccount(ctx, cluster, c.Account, c.Parent, c.Share, n)
	case MoveAccount:
		return s.MoveAccount(ctx, cluster, c.Account, c.Parent, c.Share, n)
	case SetShare:
		return s.SetShare(ctx, cluster, c.Account, c.Share, n)
	case SetMinRuntime:
		return s.SetMinRuntime(ctx, cluster, c.Account, c.Value, n)
	case AddUser:
		return s.AddUser(ctx, cluster, c.Account, c.User, c.Share, n)
	case SetUserShare:
		return s.SetUserShare(ctx, cluster, c.Account, c.User, c.Share, n)
	case RemoveUser:
		return s.RemoveUser(ctx, cluster, c.Account, c.User, n)
	case CloseAccount:
		return s.CloseAccount(ctx, cluster, c.Account, n)
	}
	return budgets.Entry{}, fmt.Errorf("unknown operation %d", c.Op)
}
