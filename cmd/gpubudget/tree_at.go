// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/budgets"
	"gpubudget/cmd/gpubudget/plan"
	"gpubudget/fairshare"
	"gpubudget/internal/nearest"
)

const optAt = "at"

func atFlag() cli.Flag {
	return &cli.StringFlag{Name: optAt, Usage: "as of `TIME` (default: now)"}
}

// at is the instant that --at names, else now. It is the database's now: what
// was just written must be in force whatever this machine's clock says.
func (p *program) at(c *cli.Context, db *database) (time.Time, error) {
	t, err := p.readTime(c, optAt, false)
	if err != nil || !t.IsZero() {
		return t, err
	}
	return db.now(c.Context)
}

func (db *database) now(ctx context.Context) (time.Time, error) {
	var t time.Time
	if err := db.pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&t); err != nil {
		return t, fmt.Errorf("read the database's clock: %w", err)
	}
	return t, nil
}

// tree is the account tree of a cluster at an instant.
func (db *database) tree(ctx context.Context, cluster string, at time.Time) (*fairshare.Tree, error) {
	i := fairshare.At(at)
	b, err := db.ledger.Load(ctx, cluster, fairshare.Period{From: i, Until: i})
	if err != nil {
		return nil, err
	}
	return b.Tree(i), nil
}

// current is the tree and the policy of a cluster at an instant.
func (db *database) current(ctx context.Context, cluster string, at time.Time) (plan.Tree, error) {
	t, err := db.tree(ctx, cluster, at)
	if err != nil {
		return plan.Tree{}, err
	}
	policy, err := db.ledger.Policy(ctx, cluster, at)
	if err != nil {
		return plan.Tree{}, err
	}
	out := plan.Current(t)
	out.Cluster = cluster
	out.Policy = map[string]string{}
	for _, setting := range budgets.Settings {
		out.Policy[setting] = policy.Value(setting)
	}
	said, err := db.ledger.MinRuntimes(ctx, cluster, at)
	if err != nil {
		return plan.Tree{}, err
	}
	out.Root.Walk(func(_, a *plan.Account) {
		if d, own := said[a.Name]; own {
			a.MinRuntime = budgets.FormatMinRuntime(d)
		}
	})
	out.Weights, err = db.weightsInForce(ctx, cluster, at)
	return out, err
}

// node is an account in a tree. The error is that of the ledger, which knows
// whether the account was ever there.
func (db *database) node(ctx context.Context, cluster string, t *fairshare.Tree, name string) (*fairshare.Node, error) {
	name = strings.ToLower(name)
	for i := range t.Nodes {
		if t.Nodes[i].Name == name {
			return &t.Nodes[i], nil
		}
	}
	if _, err := db.ledger.Users(ctx, cluster, name, t.At.Time()); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("account %q does not stand below root at %s", name, t.At.Time().Format(time.RFC3339))
}

// member is a user in an account of a tree.
func member(n *fairshare.Node, user string, at time.Time) (*fairshare.NodeUser, error) {
	names := make([]string, len(n.Users))
	for i := range n.Users {
		if n.Users[i].Name == user {
			return &n.Users[i], nil
		}
		names[i] = n.Users[i].Name
	}
	return nil, &budgets.UnknownUserError{Account: n.Name, User: user, At: at, Nearest: nearest.Word(user, names)}
}

// parentName is the account above, "" for root.
func parentName(t *fairshare.Tree, n *fairshare.Node) string {
	if n.Parent < 0 {
		return ""
	}
	return t.Nodes[n.Parent].Name
}

// memberShare is a user's share as the ledger has it.
func memberShare(u *fairshare.NodeUser) fairshare.Share {
	if u.EqualPart {
		return fairshare.EqualPart
	}
	return u.Share
}
