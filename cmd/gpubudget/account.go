// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/cmd/gpubudget/output"
	"gpubudget/cmd/gpubudget/plan"
	"gpubudget/fairshare"
	"gpubudget/internal/amount"
)

const (
	optParent = "parent"
	optShare  = "share"
)

func (p *program) accountCommand() *cli.Command {
	return &cli.Command{
		Name:  "account",
		Usage: "add, list, move and close accounts",
		Subcommands: []*cli.Command{
			p.accountAddCommand(), p.accountListCommand(), p.accountMoveCommand(), p.accountCloseCommand(),
		},
	}
}

func (p *program) accountAddCommand() *cli.Command {
	return &cli.Command{
		Name:      "add",
		Usage:     "open an account",
		ArgsUsage: "NAME",
		Description: describe(`
Opens an account below another, with a share of that one's GPU time. Names are
unique in a cluster and kept in lower case, as in Slurm. An account that was
closed is opened again; its history stays.`,
			"gpubudget account add vision --share 30%",
			"gpubudget account add detection --parent vision --share 70% --why 'split of the program'",
			"gpubudget account add summer --share 5% --from 2026-06-01 --until 2026-09-01"),
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: optParent, Value: fairshare.RootAccount, Usage: "the `ACCOUNT` above"},
			&cli.StringFlag{Name: optShare, Value: "0%", Usage: "`PERCENT` of the account above"},
			newClusterFlag(),
		}, periodFlags()...),
		Action: p.accountAdd,
	}
}

func (p *program) accountAdd(c *cli.Context) error {
	if err := wantArguments(c, 1); err != nil {
		return err
	}
	share, err := amount.ParsePercent(c.String(optShare))
	if err != nil {
		return fmt.Errorf("--%s: %w", optShare, err)
	}
	n, err := p.note(c)
	if err != nil {
		return err
	}
	change := plan.Change{Op: plan.AddAccount, Account: strings.ToLower(c.Args().First()),
		Parent: strings.ToLower(c.String(optParent)), Share: share}
	return p.withDatabase(c, func(db *database) error {
		cluster, err := db.newCluster(c, "")
		if err != nil {
			return err
		}
		return p.commit(c, db, planned(cluster, []plan.Change{change}, n, p.period(n)))
	})
}

func (p *program) accountMoveCommand() *cli.Command {
	return &cli.Command{
		Name:      "move",
		Usage:     "put an account and all below it under another",
		ArgsUsage: "NAME PARENT",
		Description: describe(`
From then on the account has a share of its new parent; what it was charged
before stays where it was charged. Without --share it keeps the percentage it
has.`,
			"gpubudget account move detection robotics --share 25%",
			"gpubudget account move detection root --from 2026-07-01"),
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: optShare, Usage: "`PERCENT` of the new parent (default: as before)"},
		}, periodFlags()...),
		Action: p.accountMove,
	}
}

func (p *program) accountMove(c *cli.Context) error {
	if err := wantArguments(c, 2); err != nil {
		return err
	}
	n, err := p.note(c)
	if err != nil {
		return err
	}
	return p.withNode(c, c.Args().First(), n.From, func(s site) error {
		change := plan.Change{Op: plan.MoveAccount, Account: s.node.Name, Parent: strings.ToLower(c.Args().Get(1)),
			Share: s.node.Share, OldParent: s.parent, OldShare: s.node.Share}
		if c.IsSet(optShare) {
			if change.Share, err = amount.ParsePercent(c.String(optShare)); err != nil {
				return fmt.Errorf("--%s: %w", optShare, err)
			}
		}
		return p.commit(c, s.db, planned(s.cluster, []plan.Change{change}, n, p.period(n)))
	})
}

func (p *program) accountCloseCommand() *cli.Command {
	return &cli.Command{
		Name:      "close",
		Usage:     "close an account",
		ArgsUsage: "NAME",
		Description: describe(`
A closed account has no share and no members, and what is left of its deposits
lapses; its history stays. Accounts below it must be closed or moved first.`,
			"gpubudget account close summer --from 2026-09-01 --why 'end of the project'"),
		Flags:  periodFlags(),
		Action: p.accountClose,
	}
}

func (p *program) accountClose(c *cli.Context) error {
	if err := wantArguments(c, 1); err != nil {
		return err
	}
	n, err := p.note(c)
	if err != nil {
		return err
	}
	return p.withNode(c, c.Args().First(), n.From, func(s site) error {
		change := plan.Change{Op: plan.CloseAccount, Account: s.node.Name, OldParent: s.parent}
		return p.commit(c, s.db, planned(s.cluster, []plan.Change{change}, n, p.period(n)))
	})
}

// site is an account of a cluster at an instant.
type site struct {
	db      *database
	cluster string
	node    *fairshare.Node
	parent  string
	at      time.Time
}

// withNode runs do with an account as it is at an instant, now if that is
// zero.
func (p *program) withNode(c *cli.Context, name string, at time.Time, do func(s site) error) error {
	return p.withDatabase(c, func(db *database) error {
		cluster, err := db.cluster(c)
		if err != nil {
			return err
		}
		if at.IsZero() {
			if at, err = db.now(c.Context); err != nil {
				return err
			}
		}
		tree, err := db.tree(c.Context, cluster, at)
		if err != nil {
			return err
		}
		node, err := db.node(c.Context, cluster, tree, name)
		if err != nil {
			return err
		}
		return do(site{db: db, cluster: cluster, node: node, parent: parentName(tree, node), at: at})
	})
}

func (p *program) accountListCommand() *cli.Command {
	return &cli.Command{
		Name:        "list",
		Usage:       "list the open accounts",
		Description: describe("Lists the accounts by name.", "gpubudget account list", "gpubudget account list -nP --at 2026-01-01"),
		Flags:       []cli.Flag{atFlag()},
		Action:      p.accountList,
	}
}

// accountRow is an account as it is printed.
type accountRow struct {
	Account        string  `json:"account"`
	Parent         string  `json:"parent"`
	Share          float64 `json:"share_percent"`
	ShareOfCluster float64 `json:"share_of_cluster_percent"`
	Users          int     `json:"users"`
}

func (p *program) accountList(c *cli.Context) error {
	if err := wantArguments(c, 0); err != nil {
		return err
	}
	return p.withTree(c, func(v view) error {
		table := output.Table{Columns: []output.Column{{Name: "Account"}, {Name: "Parent"},
			{Name: "Share", Right: true}, {Name: "ShareOfCluster", Right: true}, {Name: "Users", Right: true}}}
		rows := []accountRow{}
		for _, n := range v.nodesByName() {
			table.Add(n.Name, parentName(v.tree, n), amount.Percent(n.Share), percent(n.ShareOfCluster), strconv.Itoa(len(n.Users)))
			rows = append(rows, accountRow{n.Name, parentName(v.tree, n), percentOf(n.Share), percentNumber(n.ShareOfCluster), len(n.Users)})
		}
		return p.print(c, &table, v.json("accounts", rows))
	})
}
