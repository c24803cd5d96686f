// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/fairshare"
)

// view is a cluster's tree as a listing shows it.
type view struct {
	db      *database
	cluster string
	at      time.Time
	tree    *fairshare.Tree
}

// withTree runs do with the tree of the cluster as of --at.
func (p *program) withTree(c *cli.Context, do func(v view) error) error {
	return p.withDatabase(c, func(db *database) error {
		cluster, err := db.cluster(c)
		if err != nil {
			return err
		}
		at, err := p.at(c, db)
		if err != nil {
			return err
		}
		tree, err := db.tree(c.Context, cluster, at)
		if err != nil {
			return err
		}
		return do(view{db: db, cluster: cluster, at: at, tree: tree})
	})
}

// nodesByName is the accounts of the tree sorted by name.
func (v view) nodesByName() []*fairshare.Node {
	nodes := make([]*fairshare.Node, len(v.tree.Nodes))
	for i := range v.tree.Nodes {
		nodes[i] = &v.tree.Nodes[i]
	}
	slices.SortFunc(nodes, func(a, b *fairshare.Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes
}

// json is rows under a name, beside what they are about.
func (v view) json(name string, rows any) map[string]any {
	return map[string]any{"cluster": v.cluster, "at": v.at.UTC().Truncate(time.Millisecond), name: rows}
}

// percentNumber is a fraction in percent, without the noise of binary floating
// point.
func percentNumber(fraction float64) float64 { return math.Round(fraction*1e11) / 1e9 }

// percentOf is a share in percent.
func percentOf(s fairshare.Share) float64 { return float64(s) / float64(fairshare.Whole/100) }

// percent is a fraction in percent with four decimals at most.
func percent(fraction float64) string {
	return decimals(fraction*100, 4) + "%"
}

// decimals is x with at most n decimals, without zeros at its end.
func decimals(x float64, n int) string {
	text := strconv.FormatFloat(x, 'f', n, 64)
	if !strings.Contains(text, ".") {
		return text
	}
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}
