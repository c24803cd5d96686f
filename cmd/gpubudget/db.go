// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"gpubudget/cmd/gpubudget/output"
	"gpubudget/conf"
	"gpubudget/migrations"
)

func (p *program) dbCommand() *cli.Command {
	return &cli.Command{
		Name:  "db",
		Usage: "create or upgrade the database's schema",
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
