// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"github.com/urfave/cli/v2"

	"gpubudget/cmd/gpubudget/plan"
)

func (p *program) exportCommand() *cli.Command {
	return &cli.Command{
		Name:  "export",
		Usage: "write the tree as a file that apply reads",
		Description: describe(`
Writes accounts, shares, users, policy and weights as YAML to standard output. Deposits,
transfers and history are not in it: the ledger has them.`,
			"gpubudget export > tree.yaml",
			"gpubudget export --at 2026-01-01"),
		Flags:  []cli.Flag{atFlag()},
		Action: p.export,
	}
}

func (p *program) export(c *cli.Context) error {
	if err := wantArguments(c, 0); err != nil {
		return err
	}
	return p.withTree(c, func(v view) error {
		tree, err := v.db.current(c.Context, v.cluster, v.at)
		if err != nil {
			return err
		}
		return plan.WriteYAML(p.stdout, tree)
	})
}
