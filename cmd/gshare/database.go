// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"gpubudget/budgets"
	"gpubudget/conf"
	"gpubudget/internal/nearest"
	"gpubudget/report"
	"gpubudget/usage"
)

// readTimeout bounds the whole conversation with the database: gshare is typed
// at a prompt.
const readTimeout = time.Minute

// read makes the reports of the clusters asked for, all from one state of the
// database.
func (p *program) read(ctx context.Context, o options) ([]*report.Report, error) {
	var reports []*report.Report
	err := p.look(ctx, o, func(ctx context.Context, tx pgx.Tx, c conf.Conf) (err error) {
		reports, err = p.build(ctx, tx, o, c)
		return err
	})
	return reports, err
}

// look has read look at one state of the database.
func (p *program) look(ctx context.Context, o options, read func(context.Context, pgx.Tx, conf.Conf) error) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	c, err := conf.Load(o.conf)
	if err != nil {
		return err
	}
	pool, err := conf.Connect(ctx, o.dsn, c)
	if err != nil {
		return err
	}
	defer pool.Close()
	config := pool.Config().ConnConfig
	if err := conf.CheckSchema(ctx, config); err != nil {
		return conf.ExplainAccess(err, config, conf.Read)
	}
	view := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, pool, view, func(tx pgx.Tx) error { return read(ctx, tx, c) })
	return conf.ExplainAccess(err, config, conf.Read)
}

func (p *program) build(ctx context.Context, tx pgx.Tx, o options, c conf.Conf) ([]*report.Report, error) {
	ledger, used := budgets.NewStore(tx), usage.NewStore(tx)
	known, err := ledger.Clusters(ctx)
	if err != nil {
		return nil, err
	}
	clusters, err := chooseClusters(o.clusters, c.Cluster, known)
	if err != nil {
		return nil, err
	}
	now := p.now()
	var reports []*report.Report
	for _, cluster := range clusters {
		r, err := report.Build(ctx, ledger, used, cluster, now, report.Options{Metered: o.metered, Unallocated: o.why})
		if err != nil {
			return nil, err
		}
		reports = append(reports, r)
	}
	return reports, nil
}

// allClusters stands for every cluster there is, as in sshare.
const allClusters = "all"

// chooseClusters are the clusters to report on: those named, each once, else the
// one of the configuration file, else the only one there is.
func chooseClusters(named []string, configured string, known []string) ([]string, error) {
	if len(named) == 0 && configured != "" {
		named = []string{configured}
	}
	all := len(named) == 1 && named[0] == allClusters
	var chosen []string
	for _, cluster := range named {
		if !all && !slices.Contains(known, cluster) {
			return nil, unknownCluster(cluster, known)
		}
		if !slices.Contains(chosen, cluster) {
			chosen = append(chosen, cluster)
		}
	}
	switch {
	case len(chosen) > 0 && !all:
		return chosen, nil
	case len(known) == 1, len(known) > 0 && all:
		return known, nil
	case len(known) == 0:
		return nil, errors.New("the ledger is empty: begin with: gpubudget account add")
	}
	return nil, fmt.Errorf("the database has several clusters: name one with -M: %s", strings.Join(known, ", "))
}

func unknownCluster(name string, known []string) error {
	if near := nearest.Word(name, known); near != "" {
		return fmt.Errorf("the ledger has no cluster %q: did you mean %s?", name, near)
	}
	if len(known) == 0 {
		return fmt.Errorf("the ledger has no cluster %q: begin with: gpubudget account add", name)
	}
	return fmt.Errorf("the ledger has no cluster %q, only %s: name it with -M or Cluster= of the configuration file",
		name, strings.Join(known, ", "))
}
