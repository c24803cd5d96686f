// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"strconv"

	"github.com/urfave/cli/v2"

	"gpubudget/budgets"
	"gpubudget/cmd/gpubudget/output"
	"gpubudget/cmd/gpubudget/plan"
	"gpubudget/fairshare"
	"gpubudget/internal/amount"
)

func (p *program) shareCommand() *cli.Command {
	return &cli.Command{
		Name:        "share",
		Usage:       "set and list shares",
		Subcommands: []*cli.Command{p.shareSetCommand(), p.shareListCommand()},
	}
}

func (p *program) shareSetCommand() *cli.Command {
	return &cli.Command{
		Name:      "set",
		Usage:     "set the share of an account, or of a user in it",
		ArgsUsage: "ACCOUNT PERCENT",
		Description: describe(`
An account's share is a percentage of the account above; a user's is one of his
account, or "equal" for an equal part of what the others leave. What stands
below an account can never hold more than 100% of it, at any instant: lower one
share before raising another, or use gpubudget apply to change several at once.

A share may begin in the past or the future and may end: after --until the share
that was set before is in force again.`,
			"gpubudget share set vision 40%",
			"gpubudget share set vision 40% --from 2026-07-01 --why 'plan for the third quarter'",
			"gpubudget share set vision 60% --from now --until now+3days --why 'conference deadline'",
			"gpubudget share set detection 25% --user carol",
			"gpubudget share set detection equal --user carol"),
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: optUser, Aliases: []string{"u"}, Usage: "set the share of `USER` in the account"},
		}, periodFlags()...),
		Action: p.shareSet,
	}
}

func (p *program) shareSet(c *cli.Context) error {
	if err := wantArguments(c, 2); err != nil {
		return err
	}
	parse := amount.ParsePercent
	if c.IsSet(optUser) {
		parse = amount.ParseUserShare
	}
	share, err := parse(c.Args().Get(1))
	if err != nil {
		return err
	}
	n, err := p.note(c)
	if err != nil {
		return err
	}
	return p.withNode(c, c.Args().First(), n.From, func(s site) error {
		change, err := shareChange(s.node, s.parent, c.String(optUser), share, s.at)
		if err != nil {
			return err
		}
		return p.commit(c, s.db, planned(s.cluster, []plan.Change{change}, n, p.period(n)))
	})
}

func (p *program) shareListCommand() *cli.Command {
	return &cli.Command{
		Name:      "list",
		Usage:     "list all shares, or the history of one account's",
		ArgsUsage: "[ACCOUNT]",
		Description: describe(`
Without an account: the shares in force, of accounts and of users with their
account. With one: every entry that set its share or that of a user in it, past
and future, in the order they were written; the one that begins last wins, and
among those that begin together the one written last.`,
			"gpubudget share list",
			"gpubudget share list --at 2026-07-01",
			"gpubudget share list vision"),
		Flags:  []cli.Flag{atFlag()},
		Action: p.shareList,
	}
}

func (p *program) shareList(c *cli.Context) error {
	if err := wantArgumentsBetween(c, 0, 1); err != nil {
		return err
	}
	if c.Args().Present() {
		if c.IsSet(optAt) {
			return misuse(c, "--%s has no meaning for a history", optAt)
		}
		return p.shareHistory(c, c.Args().First())
	}
	return p.withTree(c, func(v view) error {
		table := output.Table{Columns: []output.Column{{Name: "Account"}, {Name: "User"}, {Name: "Of"},
			{Name: "Share", Right: true}, {Name: "ShareOfCluster", Right: true}}}
		rows := []shareRow{}
		for i := range v.tree.Nodes {
			n := &v.tree.Nodes[i]
			parent := parentName(v.tree, n)
			table.Add(n.Name, "", parent, amount.Percent(n.Share), percent(n.ShareOfCluster))
			rows = append(rows, shareRow{Account: n.Name, Parent: parent, Share: percentOf(n.Share), ShareOfCluster: percentNumber(n.ShareOfCluster)})
			for j := range n.Users {
				u := &n.Users[j]
				table.Add(n.Name, u.Name, n.Name, amount.Percent(memberShare(u)), percent(u.ShareOfCluster))
				rows = append(rows, userRow(n, u))
			}
		}
		return p.print(c, &table, v.json("shares", rows))
	})
}

// shareHistory lists the entries that set the share of an account or of its
// users.
func (p *program) shareHistory(c *cli.Context, account string) error {
	return p.withDatabase(c, func(db *database) error {
		cluster, err := db.cluster(c)
		if err != nil {
			return err
		}
		entries, err := db.ledger.ShareHistory(c.Context, cluster, account)
		if err != nil {
			return err
		}
		if len(entries) == 0 && account != fairshare.RootAccount { // never there? then say so
			now, err := db.now(c.Context)
			if err != nil {
				return err
			}
			if _, err := db.ledger.Users(c.Context, cluster, account, now); err != nil {
				return err
			}
		}
		table := output.Table{Columns: []output.Column{{Name: "Entry", Right: true}, {Name: "User"}, {Name: "Share", Right: true},
			{Name: "From"}, {Name: "Until"}, {Name: "Actor"}, {Name: "Why"}}}
		for _, e := range entries {
			table.Add(strconv.FormatInt(e.Seq, 10), e.User, amount.Percent(*e.Share),
				p.formatTime(e.From), p.formatEnd(e), e.Actor, e.Why)
		}
		return p.print(c, &table, entriesJSON(entries))
	})
}

// formatEnd is when an entry ends, "" if it doesn't.
func (p *program) formatEnd(e budgets.Entry) string {
	if e.Until == nil {
		return ""
	}
	return p.formatTime(*e.Until)
}
