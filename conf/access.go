// SPDX-License-Identifier: GPL-2.0-or-later

package conf

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Access is what a program wants to do in the database.
type Access int

// Each includes the ones before it.
const (
	Read    Access = iota
	Write          // to the ledger
	Migrate        // the schema
)

// ExplainAccess makes of an error about a role or a session that may not do what
// was wanted one that says what helps. Any other error is returned as it is.
func ExplainAccess(err error, config *pgx.ConnConfig, wanted Access) error {
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return err
	}
	switch refusal.Code {
	case "42501": // insufficient_privilege
		return fmt.Errorf("%s: %s", oneLine(refusal.Message), grants(config, wanted))
	case "25006": // read_only_sql_transaction
		return fmt.Errorf("%s: connect to the primary server, as a standby can't be written to, and as a role without default_transaction_read_only",
			oneLine(refusal.Message))
	}
	return err
}

// grants is what gives a role the rights it lacks.
func grants(config *pgx.ConnConfig, wanted Access) string {
	role := pgx.Identifier{config.User}.Sanitize()
	if wanted == Migrate {
		return fmt.Sprintf("do this as the role that owns the schema gpubudget; if there is none yet, as the database's owner run first: GRANT CREATE ON DATABASE %s TO %s",
			pgx.Identifier{database(config)}.Sanitize(), role)
	}
	text := fmt.Sprintf("as the schema's owner run: GRANT USAGE ON SCHEMA gpubudget TO %[1]s; GRANT SELECT ON ALL TABLES IN SCHEMA gpubudget TO %[1]s", role)
	if wanted == Write {
		text += "; and to write: GRANT INSERT ON gpubudget.ledger TO " + role
	}
	return text
}
