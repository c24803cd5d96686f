// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"gpubudget/budgets"
	"gpubudget/cmd/gpubudget/output"
	"gpubudget/cmd/gpubudget/plan"
)

// reconcileFlags are the options of the commands that bring a whole tree into
// the ledger.
func reconcileFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: optDryRun, Usage: "show what would change and change nothing"},
		&cli.BoolFlag{Name: optPrune, Usage: "close accounts and remove users that are not in it"},
		&cli.StringFlag{Name: optFrom, Usage: "in force from `TIME` (default: now)"},
		&cli.StringFlag{Name: optWhy, Usage: "record the `REASON`"},
		newClusterFlag(),
	}
}

// reconcile brings a cluster's tree in line with want, in one transaction, and
// shows the difference.
func (p *program) reconcile(c *cli.Context, db *database, want plan.Tree) error {
	if err := normalizePolicy(want.Policy); err != nil {
		return err
	}
	n, err := p.note(c)
	if err != nil {
		return err
	}
	if wanted := db.wantedCluster(c); wanted != "" && want.Cluster != "" && wanted != want.Cluster {
		return fmt.Errorf("the file is about cluster %q and --%s or gpubudget.conf names %q: change one of them", want.Cluster, optCluster, wanted)
	}
	cluster, err := db.newCluster(c, want.Cluster)
	if err != nil {
		return err
	}
	at := n.From
	if at.IsZero() {
		if at, err = db.now(c.Context); err != nil {
			return err
		}
	}
	current, err := db.current(c.Context, cluster, at)
	if err != nil {
		return err
	}
	difference := plan.Diff(current, want)
	changes := difference.Changes
	if c.Bool(optPrune) {
		changes = append(changes, difference.Surplus...)
	} else if len(difference.Surplus) > 0 {
		p.sayf(c, "Note: %s; left alone without --%s.", surplusText(difference.Surplus), optPrune)
	}
	if len(changes) == 0 {
		return p.unchanged(c, cluster)
	}
	w := planned(cluster, changes, n, p.period(n))
	if c.Bool(optDryRun) {
		return p.dryRun(c, db, w)
	}
	return p.commit(c, db, w)
}

func (p *program) unchanged(c *cli.Context, cluster string) error {
	p.sayf(c, "The ledger of %s agrees: nothing to change.", cluster)
	if c.Bool(optJSON) && !c.Bool(optQuiet) {
		return output.JSON(p.stdout, entriesJSON(nil))
	}
	return nil
}

// surplusText tells of what is there beyond the tree that is wanted.
func surplusText(changes []plan.Change) string {
	const few = 5
	var names []string
	for _, c := range changes {
		name := "account " + c.Account
		if c.User != "" {
			name = fmt.Sprintf("user %s in %s", c.User, c.Account)
		}
		names = append(names, name)
	}
	more := ""
	if len(names) > few {
		more = fmt.Sprintf(" and %d more", len(names)-few)
		names = names[:few]
	}
	return "not in it: " + strings.Join(names, ", ") + more
}

// normalizePolicy gives every setting its normal form, so that the same value
// is no difference however it is written.
func normalizePolicy(policy map[string]string) error {
	for setting, value := range policy {
		name, normal, err := budgets.NormalPolicy(setting, value)
		if err != nil {
			return err
		}
		delete(policy, setting)
		policy[name] = normal
	}
	return nil
}
