// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"gpubudget/cmd/gpubudget/output"
)

// print writes a listing: as JSON if asked, else as a table.
func (p *program) print(c *cli.Context, table *output.Table, asJSON any) error {
	if c.Bool(optJSON) {
		return output.JSON(p.stdout, asJSON)
	}
	style := output.Wide
	switch {
	case c.Bool(optParsable2):
		style = output.Parsable2
	case c.Bool(optParsable):
		style = output.Parsable
	}
	return table.Write(p.stdout, style, c.Bool(optNoHeader))
}

// sayf tells what was done, unless --quiet or --json ask for silence. A write
// that fails is noticed by the listings and changes nothing here.
func (p *program) sayf(c *cli.Context, format string, args ...any) {
	if c.Bool(optQuiet) || c.Bool(optJSON) {
		return
	}
	fmt.Fprintf(p.stdout, format+"\n", args...)
}

// wantArguments makes sure that a command got n arguments.
func wantArguments(c *cli.Context, n int) error { return wantArgumentsBetween(c, n, n) }

// wantArgumentsBetween makes sure that a command got at least low and at most
// high arguments; it names the first that is missing or too much.
func wantArgumentsBetween(c *cli.Context, low, high int) error {
	switch n := c.Args().Len(); {
	case n < low:
		return misuse(c, "%s needs %s", commandPath(c), c.Command.ArgsUsage)
	case n > high && high == 0:
		return misuse(c, "%s takes no arguments: %q is one too many", commandPath(c), c.Args().Get(0))
	case n > high:
		return misuse(c, "%s takes %s: %q is one too many", commandPath(c), c.Command.ArgsUsage, c.Args().Get(high))
	}
	return nil
}
