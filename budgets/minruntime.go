// SPDX-License-Identifier: GPL-2.0-or-later

package budgets

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"gpubudget/fairshare"
)

// Inherit is the minimum runtime of an account that has none of its own: that of
// the nearest account above it which has one, or else the cluster's.
const Inherit = "inherit"

// MinRuntimes are the minimum runtimes in force at an instant for jobs that name
// none, of the accounts that have one of their own; nil if none has. Each holds for
// the accounts below as well, as far as they have none.
func (s *Store) MinRuntimes(ctx context.Context, cluster string, at time.Time) (map[string]time.Duration, error) {
	const sql = `SELECT DISTINCT ON (account) account, value FROM gpubudget.ledger
		WHERE cluster = $1 AND kind = 'policy_set' AND account IS NOT NULL AND setting = 'min_runtime'
		  AND effective_from <= $2 AND (effective_until IS NULL OR effective_until > $2)
		ORDER BY account, effective_from DESC, seq DESC`
	rows, err := s.db.Query(ctx, sql, cluster, at)
	if err != nil {
		return nil, failed("read minimum runtimes", err)
	}
	var said map[string]time.Duration
	var account, value string
	_, err = pgx.ForEachRow(rows, []any{&account, &value}, func() error {
		if value == Inherit {
			return nil
		}
		d, err := time.ParseDuration(value)
		if err != nil {
			return fmt.Errorf("account %s: %w", account, err)
		}
		if said == nil {
			said = map[string]time.Duration{}
		}
		said[account] = d
		return nil
	})
	if err != nil {
		return nil, failed("read minimum runtimes", err)
	}
	return said, nil
}

// NormalMinRuntime is an account's minimum runtime in the form in which settings
// are shown: two values that mean the same have the same. The error is an
// *InvalidPolicyError.
func NormalMinRuntime(account, value string) (string, error) {
	stored, err := canonicalMinRuntime(account, value)
	if err != nil || stored == Inherit {
		return stored, err
	}
	_, normal, err := NormalPolicy(MinRuntime, stored)
	return normal, err
}

// FormatMinRuntime is a minimum runtime as settings are shown.
func FormatMinRuntime(d time.Duration) string { return formatDuration(d) }

// canonicalMinRuntime is an account's minimum runtime as the ledger stores it: in
// seconds, or Inherit.
func canonicalMinRuntime(account, value string) (string, error) {
	value = strings.ToLower(strings.TrimSpace(value))
	problem := &InvalidPolicyError{Setting: MinRuntime, Value: value}
	if strings.EqualFold(account, fairshare.RootAccount) {
		problem.Reason = "that of root is the cluster's: leave the account out"
		return "", problem
	}
	if value == Inherit {
		return value, nil
	}
	seconds, err := parseSeconds(value)
	if err != nil {
		problem.Reason = err.Error() + ", or " + Inherit
		return "", problem
	}
	switch {
	case seconds == 0:
		problem.Reason = "that of an account can't be 0: an account without a share has its jobs unallocated (share set " + account + " 0%), any other's ask for it (--min-runtime=0)"
		return "", problem
	case seconds < 0 || seconds > 366*day:
		problem.Reason = "that of an account must be from 1s to 366 days, or " + Inherit
		return "", problem
	}
	return strconv.FormatInt(seconds, 10) + "s", nil
}
