// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/urfave/cli/v2"

	"gpubudget/budgets"
	"gpubudget/conf"
	"gpubudget/internal/nearest"
	"gpubudget/usage"
)

// database is an open database with the schema this program needs.
type database struct {
	pool   *pgxpool.Pool
	ledger *budgets.Store
	usage  *usage.Store
	conf   conf.Conf
}

// withDatabase runs do with the database that the options lead to.
func (p *program) withDatabase(c *cli.Context, do func(db *database) error) error {
	config, err := conf.Load(c.String(optConf))
	if err != nil {
		return err
	}
	pool, err := conf.Connect(c.Context, c.String(optDSN), config)
	if err != nil {
		return err
	}
	defer pool.Close()
	connection := pool.Config().ConnConfig
	if err := conf.CheckSchema(c.Context, connection); err != nil {
		return conf.ExplainAccess(err, connection, conf.Write)
	}
	db := &database{pool: pool, ledger: budgets.NewStore(pool), usage: usage.NewStore(pool), conf: config}
	return conf.ExplainAccess(do(db), connection, conf.Write)
}

// wantedCluster is the cluster that the options or the configuration name, ""
// for none.
func (db *database) wantedCluster(c *cli.Context) string {
	if c.IsSet(optCluster) {
		return strings.ToLower(c.String(optCluster))
	}
	return db.conf.Cluster
}

// cluster is the cluster to work on: the one that is named, which must be
// known, else the only one there is.
func (db *database) cluster(c *cli.Context) (string, error) {
	known, err := db.ledger.Clusters(c.Context)
	if err != nil {
		return "", err
	}
	wanted := db.wantedCluster(c)
	switch {
	case wanted == "" && len(known) == 1:
		return known[0], nil
	case len(known) == 0:
		return "", errors.New("the ledger is empty: begin with gpubudget account add, import or apply")
	case wanted == "":
		return "", fmt.Errorf("there are several clusters: name one with --cluster: %s", strings.Join(known, ", "))
	}
	return wanted, checkKnown(wanted, known)
}

// newCluster is the cluster to write to, which may be a new one if the ledger
// is empty or the option for it is given; a slip of the pen must not begin a
// second ledger.
func (db *database) newCluster(c *cli.Context, fallback string) (string, error) {
	known, err := db.ledger.Clusters(c.Context)
	if err != nil {
		return "", err
	}
	wanted := db.wantedCluster(c)
	if wanted == "" {
		wanted = fallback
	}
	switch {
	case wanted == "" && len(known) == 1:
		return known[0], nil
	case wanted == "" && len(known) == 0:
		return "", errors.New("the ledger is empty and no cluster is named: give --cluster, as ClusterName in slurm.conf, or set Cluster in gpubudget.conf")
	case wanted == "":
		return "", fmt.Errorf("there are several clusters: name one with --cluster: %s", strings.Join(known, ", "))
	case len(known) == 0 || c.Bool(optNewCluster):
		return wanted, nil
	}
	if err := checkKnown(wanted, known); err != nil {
		return "", fmt.Errorf("%w; to begin its ledger add --new-cluster", err)
	}
	return wanted, nil
}

func checkKnown(wanted string, known []string) error {
	if slices.Contains(known, wanted) {
		return nil
	}
	if near := nearest.Word(wanted, known); near != "" {
		return fmt.Errorf("unknown cluster %q: did you mean %s?", wanted, near)
	}
	return fmt.Errorf("unknown cluster %q: known are %s", wanted, strings.Join(known, ", "))
}

const optNewCluster = "new-cluster"

func newClusterFlag() cli.Flag {
	return &cli.BoolFlag{Name: optNewCluster, Usage: "let --cluster name a cluster that the ledger does not know yet"}
}
