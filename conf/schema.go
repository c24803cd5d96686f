// SPDX-License-Identifier: GPL-2.0-or-later

package conf

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"gpubudget/migrations"
)

// SchemaError is a database that lacks the schema this program works on, or
// part of it.
type SchemaError struct {
	Target    string // names host, port, database and user
	Has, Need int64  // versions; Has is 0 if there is no schema at all
}

func (e *SchemaError) Error() string {
	if e.Has == 0 {
		return fmt.Sprintf("no gpubudget schema at %s: run: gpubudget db migrate", e.Target)
	}
	return fmt.Sprintf("the gpubudget schema at %s is version %d and this program needs %d: run: gpubudget db migrate",
		e.Target, e.Has, e.Need)
}

// CheckSchema makes sure that the database that config leads to has all of the
// schema that this program works on. If it lacks any the error is a
// *SchemaError; if it has more than this program knows, a
// *migrations.NewerSchemaError.
func CheckSchema(ctx context.Context, config *pgx.ConnConfig) error {
	steps, err := migrations.Status(ctx, config)
	if err != nil {
		return err
	}
	e := &SchemaError{Target: target(config)}
	for _, m := range steps {
		e.Need = m.Version
		if !m.Pending() {
			e.Has = m.Version
		}
	}
	for _, m := range steps {
		if m.Pending() {
			return e
		}
	}
	return nil
}

// CheckSchemaOn is CheckSchema through an open connection, in one question: for
// those who ask again and again. It can't tell one migration from another.
func CheckSchemaOn(ctx context.Context, conn *pgx.Conn) error {
	has, err := migrations.Applied(ctx, conn)
	if err != nil {
		return err
	}
	need := migrations.Newest()
	switch {
	case has > need:
		return &migrations.NewerSchemaError{Database: has, Known: need}
	case has < need:
		return &SchemaError{Target: target(conn.Config()), Has: has, Need: need}
	}
	return nil
}
