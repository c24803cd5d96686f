// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/budgets"
	"gpubudget/cmd/gpubudget/output"
	"gpubudget/fairshare"
	"gpubudget/internal/amount"
)

const (
	optGPUs     = "gpus"
	optAccounts = "accounts-only"
)

func (p *program) treeCommand() *cli.Command {
	return &cli.Command{
		Name:      "tree",
		Usage:     "show the account tree: shares and entitlements",
		ArgsUsage: "[ACCOUNT]",
		Description: describe(`
Share is of the account above, ShareOfCluster of the whole; Unassigned is what an
account gives to nobody. GPUs is what the share comes to with the capacity at
that time. EntitledH is what was due in the lookback window that ends then, in
GPU-hours: shares as they were at each moment times the capacity there was, plus
deposits and transfers.`,
			"gpubudget tree",
			"gpubudget tree vision --accounts-only",
			"gpubudget tree --at 2026-07-01 --gpus 512"),
		Flags: []cli.Flag{
			atFlag(),
			&cli.Float64Flag{Name: optGPUs, Usage: "take the cluster to have had `N` GPUs all the time"},
			&cli.BoolFlag{Name: optAccounts, Usage: "leave out users"},
		},
		Action: p.tree,
	}
}

// treeRow is an account or a user of the tree as JSON.
type treeRow struct {
	Depth int `json:"depth"`
	shareRow
	Unassigned *float64             `json:"unassigned_percent,omitempty"` // of accounts
	GPUs       *float64             `json:"gpus"`                         // null: the capacity is not known
	Entitled   *float64             `json:"entitled_hours"`               // null: likewise
	Millis     *fairshare.GPUMillis `json:"entitled_gpu_milliseconds"`
}

func (p *program) tree(c *cli.Context) error {
	if err := wantArgumentsBetween(c, 0, 1); err != nil {
		return err
	}
	gpus, err := readGPUs(c)
	if err != nil {
		return err
	}
	return p.withTree(c, func(v view) error {
		b, err := v.bill(c, gpus)
		if err != nil {
			return err
		}
		first, last, err := v.subtree(c)
		if err != nil {
			return err
		}
		if !b.known {
			fmt.Fprintf(p.stderr, "gpubudget: no capacity of cluster %s is recorded in this window: give --%s N to see entitlements\n", v.cluster, optGPUs)
		}
		table, rows := b.table(v.tree.Nodes[first:last], v.tree, c.Bool(optAccounts))
		if err := p.print(c, table, b.json(v, rows)); err != nil {
			return err
		}
		if c.Bool(optNoHeader) || c.Bool(optParsable) || c.Bool(optParsable2) {
			return nil
		}
		p.sayf(c, "\n%s, window %s to %s (%s)%s", v.cluster, p.formatTime(b.window.From.Time()), p.formatTime(v.at),
			b.policy.Value(budgets.Lookback), b.capacityText())
		return nil
	})
}

// readGPUs is the capacity that --gpus sets, -1 for none.
func readGPUs(c *cli.Context) (fairshare.MilliGPUs, error) {
	if !c.IsSet(optGPUs) {
		return -1, nil
	}
	n := c.Float64(optGPUs)
	if !(n > 0 && n <= 1e9) {
		return 0, fmt.Errorf("--%s %v: must be more than 0 and at most 1000000000", optGPUs, n)
	}
	return fairshare.MilliGPUs(math.Round(n * float64(fairshare.GPU))), nil
}

// subtree is which nodes of the tree to show: those of the account that is
// named and all below it, else all.
func (v view) subtree(c *cli.Context) (first, last int, err error) {
	if !c.Args().Present() {
		return 0, len(v.tree.Nodes), nil
	}
	n, err := v.db.node(c.Context, v.cluster, v.tree, c.Args().First())
	if err != nil {
		return 0, 0, err
	}
	for v.tree.Nodes[first].Name != n.Name {
		first++
	}
	last = first + 1
	for last < len(v.tree.Nodes) && v.tree.Nodes[last].Depth > n.Depth {
		last++
	}
	return first, last, nil
}

// bill is what everybody is due in the window that ends with the view.
type bill struct {
	window   fairshare.Period
	policy   budgets.Policy
	known    bool                // there is a capacity
	capacity fairshare.MilliGPUs // at the window's end
	due      *fairshare.Entitlements
}

// bill integrates the shares over the window. gpus replaces the recorded
// capacity unless it is negative.
func (v view) bill(c *cli.Context, gpus fairshare.MilliGPUs) (*bill, error) {
	policy, err := v.db.ledger.Policy(c.Context, v.cluster, v.at)
	if err != nil {
		return nil, err
	}
	b := &bill{policy: policy, window: fairshare.Lookback(fairshare.At(v.at), policy.Lookback)}
	budget, err := v.db.ledger.Load(c.Context, v.cluster, b.window)
	if err != nil {
		return nil, err
	}
	if gpus >= 0 {
		budget.Capacity = []fairshare.Step[fairshare.MilliGPUs]{{Period: b.window, Value: gpus}}
	} else if budget.Capacity, err = v.db.usage.Capacity(c.Context, v.cluster, b.window); err != nil {
		return nil, err
	}
	if n := len(budget.Capacity); n > 0 {
		b.known, b.capacity = true, budget.Capacity[n-1].Value
	}
	b.due = budget.Entitlements(b.window)
	return b, nil
}

func (b *bill) capacityText() string {
	if !b.known {
		return ""
	}
	return fmt.Sprintf(", %s GPUs", decimals(float64(b.capacity)/float64(fairshare.GPU), 3))
}

func (b *bill) table(nodes []fairshare.Node, t *fairshare.Tree, accountsOnly bool) (*output.Table, []treeRow) {
	table := &output.Table{Columns: []output.Column{{Name: "Account"}, {Name: "User"}, {Name: "Share", Right: true},
		{Name: "ShareOfCluster", Right: true}, {Name: "Unassigned", Right: true}, {Name: "GPUs", Right: true}, {Name: "EntitledH", Right: true}}}
	rows := []treeRow{}
	for i := range nodes {
		n := &nodes[i]
		indent := strings.Repeat(" ", n.Depth)
		unassigned := percentOf(n.Unassigned)
		row := treeRow{Depth: n.Depth, Unassigned: &unassigned, shareRow: shareRow{Account: n.Name, Parent: parentName(t, n),
			Share: percentOf(n.Share), ShareOfCluster: percentNumber(n.ShareOfCluster)}}
		b.fill(&row, n.ShareOfCluster, b.due.Account(n.Name))
		table.Add(indent+n.Name, "", amount.Percent(n.Share), percent(n.ShareOfCluster), amount.Percent(n.Unassigned), gpuText(row.GPUs), hoursText(row.Entitled))
		rows = append(rows, row)
		for j := range n.Users {
			if accountsOnly {
				break
			}
			u := &n.Users[j]
			row := treeRow{Depth: n.Depth + 1, shareRow: userRow(n, u)}
			b.fill(&row, u.ShareOfCluster, b.due.User(n.Name, u.Name))
			table.Add(indent+" "+n.Name, u.Name, amount.Percent(memberShare(u)), percent(u.ShareOfCluster), "", gpuText(row.GPUs), hoursText(row.Entitled))
			rows = append(rows, row)
		}
	}
	return table, rows
}

// fill sets what depends on the capacity.
func (b *bill) fill(row *treeRow, ofCluster float64, due fairshare.GPUMillis) {
	if !b.known {
		return
	}
	gpus := ofCluster * float64(b.capacity) / float64(fairshare.GPU)
	hours := due.Hours()
	row.GPUs, row.Entitled, row.Millis = &gpus, &hours, &due
}

func gpuText(gpus *float64) string {
	if gpus == nil {
		return ""
	}
	return decimals(*gpus, 2)
}

func hoursText(hours *float64) string {
	if hours == nil {
		return ""
	}
	return fmt.Sprintf("%.2f", *hours)
}

func (b *bill) json(v view, rows []treeRow) any {
	out := v.json("tree", rows)
	out["window_from"] = b.window.From.Time()
	out["lookback_seconds"] = int64(b.policy.Lookback / time.Second)
	out["gpus"] = nil
	if b.known {
		out["gpus"] = float64(b.capacity) / float64(fairshare.GPU)
	}
	return out
}
