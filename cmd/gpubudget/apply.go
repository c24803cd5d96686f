// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"gpubudget/cmd/gpubudget/plan"
)

const optFile = "file"

func (p *program) applyCommand() *cli.Command {
	return &cli.Command{
		Name:  "apply",
		Usage: "bring the tree in line with a file",
		Description: describe(`
Reads a tree from a YAML file, shows how the ledger differs from it (+ new, ~
other, - gone) and writes what it takes, all of it or nothing. What is not in
the file is left as it is, unless --prune is given. Applied twice it changes
nothing. gpubudget export writes such a file:

   cluster: titan
   policy: {lookback: 7d, mode: strict}
   users: [operator]           # members of root
   accounts:
     vision:
       share: 60%              # of the account above
       min_runtime: 30m        # of jobs that name none; inherit takes it back
       users: [ann, bob]       # equal parts of what the accounts below leave
       accounts:
         detection:
           share: 70%
           users: {carol: 80%, dave: equal}`,
			"gpubudget apply -f tree.yaml --dry-run",
			"gpubudget apply -f tree.yaml --prune --why 'plan for 2027' --from 2027-01-01",
			"gpubudget export | sed 's/30%/40%/' | gpubudget apply -f -"),
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: optFile, Aliases: []string{"f"}, Usage: "read the tree from `FILE`, - for standard input"},
		}, reconcileFlags()...),
		Action: p.apply,
	}
}

func (p *program) apply(c *cli.Context) error {
	if err := wantArguments(c, 0); err != nil {
		return err
	}
	if c.String(optFile) == "" {
		return misuse(c, "apply needs a file: -f FILE, or -f - for standard input")
	}
	in, name, err := p.openInput(c.String(optFile))
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // it was only read
	tree, err := plan.ReadYAML(in, name)
	if err != nil {
		return err
	}
	return p.withDatabase(c, func(db *database) error { return p.reconcile(c, db, tree) })
}

// openInput opens a file, or standard input for "-", whose terminal can then
// not be asked.
func (p *program) openInput(name string) (io.ReadCloser, string, error) {
	if name == "-" {
		p.terminal = false
		return io.NopCloser(p.stdin), "standard input", nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, "", fmt.Errorf("open input: %w", err)
	}
	return f, name, nil
}
