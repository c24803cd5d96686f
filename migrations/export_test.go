// SPDX-License-Identifier: GPL-2.0-or-later

package migrations

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// UpTo applies the migrations up to a version, as an older release would have.
func UpTo(ctx context.Context, cfg *pgx.ConnConfig, version int64) error {
	db := open(cfg)
	defer db.Close()
	if _, err := db.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS gpubudget"); err != nil {
		return err
	}
	p, err := provider(db)
	if err != nil {
		return err
	}
	_, err = p.UpTo(ctx, version)
	return err
}
