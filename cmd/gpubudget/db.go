// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"gpubudget/budgets"
	"gpubudget/cmd/gpubudget/output"
	"gpubudget/conf"
	"gpubudget/migrations"
	"gpubudget/usage/metered"
)

func (p *program) dbCommand() *cli.Command {
	return &cli.Command{
		Name:  "db",
		Usage: "create or upgrade the database's schema, drop old records",
		Subcommands: []*cli.Command{
			{
				Name:  "migrate",
				Usage: "bring the schema up to what this program needs",
				Description: describe(`
Creates the schema gpubudget in the database, or applies what a newer release
added to it. A schema that is up to date is left as it is. Several runs at the
same time wait for each other.`,
					"createdb gpubudget",
					"gpubudget db migrate --dsn 'host=db.example dbname=gpubudget'"),
				Action: p.dbMigrate,
			},
			{
				Name:  "status",
				Usage: "list what has been applied; exit 1 if the schema is not up to date",
				Description: describe("Changes nothing.",
					"gpubudget db status",
					"gpubudget db status --json"),
				Action: p.dbStatus,
			},
			{
				Name:  "prune",
				Usage: "drop the meters' records that are older than the policy keeps them",
				Description: describe(`
Drops whole days of what the agents on the nodes have measured, once they are
older than the setting keep_meter says (35 days by default); where clusters share
a database, the longest of theirs. Budgets, runs and what was charged stay. It is
for the schema's owner, once a day from cron or a timer.`,
					"gpubudget db prune",
					"gpubudget policy set keep_meter 90d"),
				Action: p.dbPrune,
			},
		},
	}
}

// connConfig is how to connect, after one connection was made: its errors are
// better than those of the migrations.
func (p *program) connConfig(c *cli.Context) (*pgx.ConnConfig, error) {
	config, err := conf.Load(c.String(optConf))
	if err != nil {
		return nil, err
	}
	pool, err := conf.Connect(c.Context, c.String(optDSN), config)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	return pool.Config().ConnConfig, nil
}

func (p *program) dbMigrate(c *cli.Context) error {
	if err := wantArguments(c, 0); err != nil {
		return err
	}
	config, err := p.connConfig(c)
	if err != nil {
		return err
	}
	applied := 0
	err = migrations.Up(c.Context, config, func(m migrations.Migration) {
		applied++
		p.sayf(c, "applied %s in %s", m.Name, m.Took.Round(time.Millisecond))
	})
	if err != nil {
		return conf.ExplainAccess(err, config, conf.Migrate)
	}
	if applied == 0 {
		p.sayf(c, "the schema is up to date")
	}
	return nil
}

// pruneTimeout is how long readers and writers may keep a day from being dropped,
// and would have to wait behind it: the next run comes.
const pruneTimeout = 10 * time.Second

func (p *program) dbPrune(c *cli.Context) error {
	if err := wantArguments(c, 0); err != nil {
		return err
	}
	return p.withDatabase(c, func(db *database) error {
		now, err := db.now(c.Context)
		if err != nil {
			return err
		}
		keep, err := db.keepMeter(c.Context, now)
		if err != nil {
			return err
		}
		dropped, err := metered.NewStore(db.pool).Prune(c.Context, now.Add(-keep), pruneTimeout)
		if err != nil {
			return err
		}
		if len(dropped) == 0 {
			p.sayf(c, "nothing is older than %s", keepText(keep))
		}
		for _, day := range dropped {
			p.sayf(c, "dropped %s", day.Format(time.DateOnly))
		}
		return nil
	})
}

func keepText(d time.Duration) string {
	return budgets.Policy{KeepMeter: d}.Value(budgets.KeepMeter)
}

// keepMeter is how long the meters' records are kept: the longest that any cluster
// wants them.
func (db *database) keepMeter(ctx context.Context, now time.Time) (time.Duration, error) {
	clusters, err := db.ledger.Clusters(ctx)
	if err != nil {
		return 0, err
	}
	keep := time.Duration(0)
	for _, cluster := range clusters {
		policy, err := db.ledger.Policy(ctx, cluster, now)
		if err != nil {
			return 0, err
		}
		keep = max(keep, policy.KeepMeter)
	}
	if keep == 0 { // no ledger yet
		keep = budgets.DefaultPolicy.KeepMeter
	}
	return keep, nil
}

// migrationRow is a migration as it is printed.
type migrationRow struct {
	Version   int64      `json:"version"`
	Name      string     `json:"name"`
	AppliedAt *time.Time `json:"applied_at"` // null: pending
}

func (p *program) dbStatus(c *cli.Context) error {
	if err := wantArguments(c, 0); err != nil {
		return err
	}
	config, err := p.connConfig(c)
	if err != nil {
		return err
	}
	steps, statusErr := migrations.Status(c.Context, config)
	if statusErr != nil && len(steps) == 0 {
		return conf.ExplainAccess(statusErr, config, conf.Read)
	}
	rows := make([]migrationRow, len(steps))
	table := output.Table{Columns: []output.Column{{Name: "Version", Right: true}, {Name: "Name"}, {Name: "Applied"}}}
	pending := 0
	for i, m := range steps {
		rows[i] = migrationRow{Version: m.Version, Name: m.Name}
		when := "pending"
		if m.Pending() {
			pending++
		} else {
			rows[i].AppliedAt = &steps[i].AppliedAt
			when = p.formatTime(m.AppliedAt)
		}
		table.Add(strconv.FormatInt(m.Version, 10), m.Name, when)
	}
	err = p.print(c, &table, struct {
		Migrations []migrationRow `json:"migrations"`
	}{rows})
	if pending > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d migrations are pending: run: gpubudget db migrate", pending, len(steps)))
	}
	return errors.Join(err, statusErr)
}
