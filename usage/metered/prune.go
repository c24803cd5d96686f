// SPDX-License-Identifier: GPL-2.0-or-later

package metered

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
)

// Prune drops the days, by UTC, that have ended before an instant, of all clusters,
// and tells which. It gives up if others hold the table for longer than patience:
// as long as it waits, they wait behind it.
func (s *Store) Prune(ctx context.Context, before time.Time, patience time.Duration) (days []time.Time, err error) {
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		limit := strconv.FormatInt(patience.Milliseconds(), 10) + "ms"
		if _, err := tx.Exec(ctx, `SELECT set_config('lock_timeout', $1, true)`, limit); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT dropped FROM gpubudget.drop_partitions($1)`, before.UTC().Truncate(24*time.Hour))
		if err != nil {
			return err
		}
		days, err = pgx.CollectRows(rows, pgx.RowTo[time.Time])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("drop what was metered before %s: %w", before.UTC().Format(time.DateOnly), err)
	}
	return days, nil
}
