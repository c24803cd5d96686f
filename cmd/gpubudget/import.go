// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"gpubudget/cmd/gpubudget/assoc"
	"gpubudget/fairshare"
	"gpubudget/internal/nearest"
)

const optFlat = "flat"

func (p *program) importCommand() *cli.Command {
	return &cli.Command{
		Name:        "import",
		Usage:       "take a tree over from elsewhere",
		Subcommands: []*cli.Command{p.importSacctmgrCommand()},
	}
}

func (p *program) importSacctmgrCommand() *cli.Command {
	return &cli.Command{
		Name:      "sacctmgr",
		Usage:     "take the tree over from Slurm's associations",
		ArgsUsage: "[FILE|-]",
		Description: describe(`
Reads the output of "sacctmgr -nP show assoc" (or with -p, without -n, with tree
or a format of your own) or a file that "sacctmgr dump" wrote, from FILE or, for
-, standard input. Without FILE it runs sacctmgr itself.

Slurm's raw shares become percentages of their siblings' sum, rounded so that
they make up 100% exactly. Users of an account who all have the same raw share
get equal parts. Fairshare=parent makes an account weigh as much as all that is
below it, and a user 1. Slurm's own user root is left out. Run twice it changes
nothing; accounts and users that Slurm does not have are left as they are, unless
--prune is given.

Slurm's default format does not say which account stands below which. If the
input lacks it, sacctmgr is asked for it; where that can't be run, take
"sacctmgr dump", or --flat to put all accounts directly below root.`,
			"gpubudget import sacctmgr --dry-run",
			"sacctmgr -nP show assoc tree | gpubudget import sacctmgr -",
			"sacctmgr dump titan file=titan.cfg && gpubudget import sacctmgr titan.cfg"),
		Flags: append([]cli.Flag{
			&cli.BoolFlag{Name: optFlat, Usage: "put accounts whose parent is not known directly below root"},
		}, reconcileFlags()...),
		Action: p.importSacctmgr,
	}
}

func (p *program) importSacctmgr(c *cli.Context) error {
	if err := wantArgumentsBetween(c, 0, 1); err != nil {
		return err
	}
	listing, err := p.readAssociations(c)
	if err != nil {
		return err
	}
	return p.withDatabase(c, func(db *database) error {
		if listing, err = chooseCluster(listing, db.wantedCluster(c)); err != nil {
			return err
		}
		if err := p.completeParents(c, listing); err != nil {
			return err
		}
		tree, notes, err := listing.Tree()
		if err != nil {
			return err
		}
		for _, note := range notes {
			p.sayf(c, "Note: %s.", note)
		}
		return p.reconcile(c, db, tree)
	})
}

// readAssociations reads the file that is named, else what sacctmgr says.
func (p *program) readAssociations(c *cli.Context) (*assoc.Listing, error) {
	if !c.Args().Present() {
		return p.askSacctmgr(c, "")
	}
	in, name, err := p.openInput(c.Args().First())
	if err != nil {
		return nil, err
	}
	defer in.Close() //nolint:errcheck // it was only read
	return readListing(in, name)
}

func readListing(in io.Reader, name string) (*assoc.Listing, error) {
	listing, err := assoc.Read(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return listing, nil
}

// askSacctmgr is what Slurm knows now, of one cluster if it is named.
func (p *program) askSacctmgr(c *cli.Context, cluster string) (*assoc.Listing, error) {
	args := strings.Fields(assoc.Command)[1:]
	if cluster != "" {
		args = append(args, "where", "cluster="+cluster)
	}
	out, err := p.slurm(c.Context, "sacctmgr", args...)
	if err != nil {
		return nil, err
	}
	return readListing(bytes.NewReader(out), "sacctmgr")
}

// chooseCluster is the part of a listing that is about the cluster that is
// wanted, else about the only one in it.
func chooseCluster(l *assoc.Listing, wanted string) (*assoc.Listing, error) {
	names := l.Clusters()
	switch {
	case wanted == "" && len(names) == 1:
		return l, nil
	case wanted == "":
		return nil, fmt.Errorf("the input is about several clusters: name one with --%s: %s", optCluster, strings.Join(names, ", "))
	}
	if part := l.Of(wanted); len(part.Associations) > 0 {
		return part, nil
	}
	if len(names) == 1 && names[0] == "" {
		return l, nil // a listing without a column for it
	}
	if near := nearest.Word(wanted, names); near != "" {
		return nil, fmt.Errorf("the input has no cluster %q: did you mean %s?", wanted, near)
	}
	return nil, fmt.Errorf("the input has no cluster %q: it is about %s", wanted, strings.Join(names, ", "))
}

// completeParents finds the parents that a listing in Slurm's default format
// lacks.
func (p *program) completeParents(c *cli.Context, l *assoc.Listing) error {
	switch {
	case l.HasParents:
		return nil
	case c.Bool(optFlat):
		l.Flatten()
		return nil
	}
	known, err := p.askSacctmgr(c, l.Associations[0].Cluster)
	if err != nil {
		return fmt.Errorf("the input does not say which account stands below which, and sacctmgr can't be asked (%w):"+
			" take the output of %q or a file of \"sacctmgr dump\", or give --%s to put all directly below %s",
			err, assoc.Command, optFlat, fairshare.RootAccount)
	}
	if err := l.TakeParents(known); err != nil {
		return err
	}
	p.sayf(c, "Note: the input does not say which account stands below which: taken from Slurm as it is now.")
	return nil
}
