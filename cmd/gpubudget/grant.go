// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"gpubudget/budgets"
	"gpubudget/internal/amount"
)

// grantFlags are the options of deposits and transfers.
func grantFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: optFrom, Usage: "spread from `TIME` (default: now)"},
		&cli.StringFlag{Name: optUntil, Usage: "spread until `TIME` (default: the length of the lookback window later)"},
	}, noteFlags()...)
}

func (p *program) depositCommand() *cli.Command {
	return &cli.Command{
		Name:      "deposit",
		Usage:     "give an account GPU time besides its share",
		ArgsUsage: "ACCOUNT HOURS",
		Description: describe(`
The GPU-hours are spread evenly over the period. They are given on top of all
shares: entitlements then exceed the cluster, and everybody else waits longer.
A deposit can't be negative; transfer takes GPU time from an account.`,
			"gpubudget deposit vision 500 --why 'lost to the outage of 3 March'",
			"gpubudget deposit vision 1000 --from 2026-07-01 --until 2026-08-01 --key vision-2026-07"),
		Flags:  grantFlags(),
		Action: p.deposit,
	}
}

func (p *program) deposit(c *cli.Context) error {
	if err := wantArguments(c, 2); err != nil {
		return err
	}
	hours, err := amount.ParseHours(c.Args().Get(1))
	if err != nil {
		return err
	}
	account := strings.ToLower(c.Args().First())
	return p.grant(c, fmt.Sprintf("+ %s GPU-hours for %s", amount.Hours(hours), account),
		func(ctx context.Context, ledger *budgets.Store, cluster string, n budgets.Note) (budgets.Entry, error) {
			return ledger.Deposit(ctx, cluster, account, hours, n)
		})
}

func (p *program) transferCommand() *cli.Command {
	return &cli.Command{
		Name:      "transfer",
		Usage:     "move GPU time from one account to another",
		ArgsUsage: "FROM TO HOURS",
		Description: describe(`
The GPU-hours are taken from one account and given to the other, evenly over the
period.`,
			"gpubudget transfer speech vision 200 --why 'lent for the deadline'",
			"gpubudget transfer vision speech 200 --from 2026-08-01 --until 2026-08-08 --why 'given back'"),
		Flags:  grantFlags(),
		Action: p.transfer,
	}
}

func (p *program) transfer(c *cli.Context) error {
	if err := wantArguments(c, 3); err != nil {
		return err
	}
	hours, err := amount.ParseHours(c.Args().Get(2))
	if err != nil {
		return err
	}
	from, to := strings.ToLower(c.Args().First()), strings.ToLower(c.Args().Get(1))
	if from == to {
		return fmt.Errorf("account %q can't transfer to itself: name two accounts", from)
	}
	return p.grant(c, fmt.Sprintf("~ %s GPU-hours from %s to %s", amount.Hours(hours), from, to),
		func(ctx context.Context, ledger *budgets.Store, cluster string, n budgets.Note) (budgets.Entry, error) {
			return ledger.Transfer(ctx, cluster, from, to, hours, n)
		})
}

// grant writes a deposit or transfer, described by line. Without an end it
// lasts as long as the lookback window in force at its beginning.
func (p *program) grant(c *cli.Context, line string,
	write func(context.Context, *budgets.Store, string, budgets.Note) (budgets.Entry, error),
) error {
	n, err := p.note(c)
	if err != nil {
		return err
	}
	return p.withDatabase(c, func(db *database) error {
		cluster, err := db.cluster(c)
		if err != nil {
			return err
		}
		if err := db.completePeriod(c, cluster, &n); err != nil {
			return err
		}
		return p.commit(c, db, work{
			cluster: cluster, entries: 1, lines: []string{line + p.period(n)},
			write: func(ctx context.Context, ledger *budgets.Store, _ func()) ([]budgets.Entry, error) {
				e, err := write(ctx, ledger, cluster, n)
				return []budgets.Entry{e}, err
			},
		})
	})
}

// completePeriod fills in the beginning and the end of a grant's period. With
// a key that is known it takes them from that entry: the same command given
// again means the same entry.
func (db *database) completePeriod(c *cli.Context, cluster string, n *budgets.Note) error {
	if n.Until != nil {
		return nil
	}
	if n.Key != "" {
		if e, ok, err := db.byKey(c.Context, cluster, n.Key); err != nil || ok {
			n.Until = e.Until
			return err
		}
	}
	from := n.From
	if from.IsZero() {
		now, err := db.now(c.Context)
		if err != nil {
			return err
		}
		from = now
	}
	policy, err := db.ledger.Policy(c.Context, cluster, from)
	if err != nil {
		return err
	}
	until := from.Add(policy.Lookback)
	n.From, n.Until = from, &until
	return nil
}

// byKey is the entry that was written with a key.
func (db *database) byKey(ctx context.Context, cluster, key string) (budgets.Entry, bool, error) {
	entries, err := db.ledger.Ledger(ctx, budgets.Filter{Cluster: cluster, Kinds: []budgets.Kind{budgets.Deposit, budgets.Transfer}})
	if err != nil {
		return budgets.Entry{}, false, err
	}
	for _, e := range entries {
		if e.Key == key {
			return e, true, nil
		}
	}
	return budgets.Entry{}, false, nil
}
