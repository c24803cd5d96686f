// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/cmd/gpubudget/output"
	"gpubudget/cmd/gpubudget/plan"
	"gpubudget/fairshare"
	"gpubudget/internal/amount"
)

const (
	optAccount = "account"
	optUser    = "user"
)

func (p *program) userCommand() *cli.Command {
	return &cli.Command{
		Name:        "user",
		Usage:       "add users to accounts, remove and list them",
		Subcommands: []*cli.Command{p.userAddCommand(), p.userRemoveCommand(), p.userListCommand()},
	}
}

func (p *program) userAddCommand() *cli.Command {
	return &cli.Command{
		Name:      "add",
		Usage:     "make users members of an account",
		ArgsUsage: "USER[,USER...] ACCOUNT",
		Description: describe(`
Without --share the users get equal parts of what the account's child accounts
and the users with a share of their own leave. A user can be in several
accounts.`,
			"gpubudget user add ann,bob detection",
			"gpubudget user add carol detection --share 40% --why 'thesis deadline' --until 2026-09-01"),
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: optShare, Value: "equal", Usage: "`PERCENT` of the account for each, or equal"},
		}, periodFlags()...),
		Action: p.userAdd,
	}
}

func (p *program) userAdd(c *cli.Context) error {
	share, err := amount.ParseUserShare(c.String(optShare))
	if err != nil {
		return fmt.Errorf("--%s: %w", optShare, err)
	}
	return p.changeUsers(c, plan.Change{Op: plan.AddUser, Share: share})
}

func (p *program) userRemoveCommand() *cli.Command {
	return &cli.Command{
		Name:        "remove",
		Usage:       "end memberships",
		ArgsUsage:   "USER[,USER...] ACCOUNT",
		Description: describe("What they were charged stays where it was charged.", "gpubudget user remove bob detection --from tomorrow"),
		Flags:       periodFlags(),
		Action:      func(c *cli.Context) error { return p.changeUsers(c, plan.Change{Op: plan.RemoveUser}) },
	}
}

// changeUsers makes the same change for each user named.
func (p *program) changeUsers(c *cli.Context, change plan.Change) error {
	if err := wantArguments(c, 2); err != nil {
		return err
	}
	users := strings.Split(c.Args().First(), ",")
	if len(users) > 1 && c.IsSet(optKey) {
		return misuse(c, "--%s is for one entry: name one user", optKey)
	}
	n, err := p.note(c)
	if err != nil {
		return err
	}
	change.Account = strings.ToLower(c.Args().Get(1))
	var changes []plan.Change
	for _, user := range users {
		change.User = user
		changes = append(changes, change)
	}
	return p.withDatabase(c, func(db *database) error {
		cluster, err := db.cluster(c)
		if err != nil {
			return err
		}
		return p.commit(c, db, planned(cluster, changes, n, p.period(n)))
	})
}

func (p *program) userListCommand() *cli.Command {
	return &cli.Command{
		Name:        "list",
		Usage:       "list memberships",
		ArgsUsage:   "[ACCOUNT]",
		Description: describe("Lists the members of an account, or of all, by account and name.", "gpubudget user list", "gpubudget user list detection --at yesterday", "gpubudget user list --user ann"),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: optUser, Aliases: []string{"u"}, Usage: "only the memberships of `USER`"},
			atFlag(),
		},
		Action: p.userList,
	}
}

// shareRow is an account's or a user's share as it is printed.
type shareRow struct {
	Account        string  `json:"account"`
	User           string  `json:"user,omitempty"`
	Parent         string  `json:"parent,omitempty"`
	Share          float64 `json:"share_percent"`
	EqualPart      bool    `json:"equal_part,omitempty"` // share_percent is what that comes to
	ShareOfCluster float64 `json:"share_of_cluster_percent"`
}

func userRow(n *fairshare.Node, u *fairshare.NodeUser) shareRow {
	return shareRow{Account: n.Name, User: u.Name, Share: percentOf(u.Share), EqualPart: u.EqualPart, ShareOfCluster: percentNumber(u.ShareOfCluster)}
}

func (p *program) userList(c *cli.Context) error {
	if err := wantArgumentsBetween(c, 0, 1); err != nil {
		return err
	}
	return p.withTree(c, func(v view) error {
		nodes, err := v.chosen(c, c.Args().First())
		if err != nil {
			return err
		}
		table := output.Table{Columns: []output.Column{{Name: "Account"}, {Name: "User"},
			{Name: "Share", Right: true}, {Name: "ShareOfCluster", Right: true}}}
		rows := []shareRow{}
		for _, n := range nodes {
			for i := range n.Users {
				u := &n.Users[i]
				if c.IsSet(optUser) && u.Name != c.String(optUser) {
					continue
				}
				table.Add(n.Name, u.Name, amount.Percent(memberShare(u)), percent(u.ShareOfCluster))
				rows = append(rows, userRow(n, u))
			}
		}
		return p.print(c, &table, v.json("users", rows))
	})
}

// chosen is the account of that name, or all by name.
func (v view) chosen(c *cli.Context, account string) ([]*fairshare.Node, error) {
	if account == "" {
		return v.nodesByName(), nil
	}
	n, err := v.db.node(c.Context, v.cluster, v.tree, account)
	return []*fairshare.Node{n}, err
}

// shareChange is a change of the share of a user in an account as it is at an
// instant.
func shareChange(n *fairshare.Node, parent, user string, share fairshare.Share, at time.Time) (plan.Change, error) {
	if user == "" {
		return plan.Change{Op: plan.SetShare, Account: n.Name, Parent: parent, OldShare: n.Share, Share: share}, nil
	}
	u, err := member(n, user, at)
	if err != nil {
		return plan.Change{}, err
	}
	return plan.Change{Op: plan.SetUserShare, Account: n.Name, User: user, OldShare: memberShare(u), Share: share}, nil
}
