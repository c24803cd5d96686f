// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/budgets"
	"gpubudget/cmd/gpubudget/output"
	"gpubudget/cmd/gpubudget/plan"
	"gpubudget/fairshare"
)

func (p *program) policyCommand() *cli.Command {
	return &cli.Command{
		Name:        "policy",
		Usage:       "read and set a cluster's settings",
		Subcommands: []*cli.Command{p.policyGetCommand(), p.policySetCommand(), p.policyHistoryCommand()},
	}
}

const policyText = `
lookback         length of the sliding window in which usage is compared with
                 entitlement: 7d, 36h, 1d12h; 1 minute to 3660 days (default 7d)
mode             how a job's priority is made: strict (account rank before all
                 else) or additive (Slurm's weighted sum) (default strict)
bucket           what usage and demand are added up by: a part of a day
                 (default 1h)
refresh          how often the plugin reads the database: 1 second to 1 day
                 (default 30s)
min_runtime      minimum runtime of a job that names none: 0s to 366 days
                 (default 1h)
min_runtime_cap  the longest minimum runtime that a job can name: 0s to 366 days
                 (default 8h)
keep_meter       how long the meters' records are kept: 1 to 3660 days
                 (default 35d)
charge           what a run that has ended is charged for: occupancy (what it
                 held), utilisation (of that, what was at work where meters
                 know) or max (the greater of the two) (default occupancy)
unfunded         what becomes of a job whose account has nothing left, or no
                 budget: unallocated (it runs while nobody needs its GPUs) or
                 refuse (at submission, by JobSubmitPlugins=gpubudget)
                 (default unallocated)

Who yields to whom, with PreemptType=preempt/gpubudget:

preempt_margin   how much further behind what it is due the account of a request
                 must be than that of the job that is to yield: 0 to 10
                 (default 0.1, a tenth)
preempt_within_account
                 whether a higher declared priority preempts within an account:
                 yes or no (default yes)
evicted_per_gpu  how many GPUs of allocated jobs a request may evict for each it
                 asks for: 0 to 1000, 0 is no limit (default 2)
preempt_per_day  how often one job may be preempted in 24 hours: 0 to 1000, 0 is
                 no limit (default 4)
patient_gpus     from how many GPUs on a request that has waited for long evicts
                 smaller jobs: 0 to 1000000, 0 is none (default 32)
patience         for how long: 0s to 366 days (default 1h)

A job is not preempted until its minimum runtime has passed. One that asks for
none (--min-runtime=0) is unallocated: charged to no budget, and never protected.

With --account, min_runtime is that of the jobs of an account, and of all below
it that have none of their own: 1s to 366 days, or "inherit" to take it back. The
nearest account that has one counts, before the cluster. Where the cluster has
0s, jobs that name none are unallocated whatever an account has.`

func policyAccountFlag(usage string) cli.Flag {
	return &cli.StringFlag{Name: optAccount, Aliases: []string{"A"}, Usage: usage}
}

func (p *program) policyGetCommand() *cli.Command {
	return &cli.Command{
		Name:      "get",
		Usage:     "show the settings in force",
		ArgsUsage: "[SETTING]",
		Description: describe(strings.TrimPrefix(policyText, "\n"), "gpubudget policy get", "gpubudget policy get lookback -nP --at 2026-01-01",
			"gpubudget policy get min_runtime --account vision"),
		Flags:  []cli.Flag{atFlag(), policyAccountFlag("what holds for jobs of `ACCOUNT`")},
		Action: p.policyGet,
	}
}

// policyRow is a setting as JSON.
type policyRow struct {
	Setting string `json:"setting"`
	Value   string `json:"value"`
	Default string `json:"default"`
	Account string `json:"account,omitempty"` // that has it; none: the cluster
}

func (p *program) policyGet(c *cli.Context) error {
	if err := wantArgumentsBetween(c, 0, 1); err != nil {
		return err
	}
	settings, err := chosenSettings(c.Args().First())
	if err != nil {
		return err
	}
	return p.withTree(c, func(v view) error {
		policy, err := v.db.ledger.Policy(c.Context, v.cluster, v.at)
		if err != nil {
			return err
		}
		var rows []policyRow
		for _, s := range settings {
			row := policyRow{Setting: s, Value: policy.Value(s), Default: budgets.DefaultPolicy.Value(s)}
			if s != budgets.MinRuntime {
				rows = append(rows, row)
				continue
			}
			of, err := v.minRuntimes(c, row, policy)
			if err != nil {
				return err
			}
			rows = append(rows, of...)
		}
		return p.print(c, policyTable(rows), v.json("policy", rows))
	})
}

// policyTable has a column for accounts if there is anything to be in it.
func policyTable(rows []policyRow) *output.Table {
	table := output.Table{Columns: []output.Column{{Name: "Setting"}, {Name: "Value"}, {Name: "Default"}}}
	accounts := slices.ContainsFunc(rows, func(r policyRow) bool { return r.Account != "" })
	if accounts {
		table.Columns = append(table.Columns, output.Column{Name: "Account"})
	}
	for _, r := range rows {
		cells := []string{r.Setting, r.Value, r.Default}
		if accounts {
			cells = append(cells, r.Account)
		}
		table.Add(cells...)
	}
	return &table
}

// minRuntimes are the cluster's minimum runtime and those of accounts, or the one
// that holds for the account that is asked for.
func (v view) minRuntimes(c *cli.Context, row policyRow, policy budgets.Policy) ([]policyRow, error) {
	said, err := v.db.ledger.MinRuntimes(c.Context, v.cluster, v.at)
	if err != nil {
		return nil, err
	}
	own := func(n *fairshare.Node) policyRow {
		return policyRow{Setting: row.Setting, Value: budgets.FormatMinRuntime(said[n.Name]), Default: budgets.Inherit, Account: n.Name}
	}
	if !c.IsSet(optAccount) {
		rows := []policyRow{row}
		for i := range v.tree.Nodes {
			if _, has := said[v.tree.Nodes[i].Name]; has {
				rows = append(rows, own(&v.tree.Nodes[i]))
			}
		}
		return rows, nil
	}
	n, err := v.db.node(c.Context, v.cluster, v.tree, c.String(optAccount))
	if err != nil {
		return nil, err
	}
	for policy.MinRuntime != 0 {
		if _, has := said[n.Name]; has {
			return []policyRow{own(n)}, nil
		}
		if n.Parent < 0 {
			break
		}
		n = &v.tree.Nodes[n.Parent]
	}
	return []policyRow{row}, nil
}

// chosenSettings is the setting of that name, or all.
func chosenSettings(name string) ([]string, error) {
	if name == "" {
		return budgets.Settings, nil
	}
	name = strings.ToLower(name)
	if slices.Contains(budgets.Settings, name) {
		return []string{name}, nil
	}
	_, _, err := budgets.NormalPolicy(name, "") // knows how to say so
	return nil, err
}

func (p *program) policySetCommand() *cli.Command {
	return &cli.Command{
		Name:      "set",
		Usage:     "change a setting",
		ArgsUsage: "SETTING VALUE",
		Description: describe(strings.TrimPrefix(policyText, "\n"),
			"gpubudget policy set lookback 14d --why 'agreed in the steering group'",
			"gpubudget policy set mode additive --from 2026-07-01",
			"gpubudget policy set min_runtime 30m --account vision"),
		Flags:  append(periodFlags(), newClusterFlag(), policyAccountFlag("set min_runtime for jobs of `ACCOUNT`")),
		Action: p.policySet,
	}
}

func (p *program) policySet(c *cli.Context) error {
	if err := wantArguments(c, 2); err != nil {
		return err
	}
	change, err := policyChange(c)
	if err != nil {
		return err
	}
	n, err := p.note(c)
	if err != nil {
		return err
	}
	return p.withDatabase(c, func(db *database) error {
		cluster, err := db.newCluster(c, "")
		if err != nil {
			return err
		}
		at := n.From
		if at.IsZero() {
			if at, err = db.now(c.Context); err != nil {
				return err
			}
		}
		if change.OldValue, err = db.policyValue(c.Context, cluster, change, at); err != nil {
			return err
		}
		return p.commit(c, db, planned(cluster, []plan.Change{change}, n, p.period(n)))
	})
}

// policyChange is what the command line says is to be set.
func policyChange(c *cli.Context) (plan.Change, error) {
	change := plan.Change{Op: plan.SetPolicy, Account: strings.ToLower(c.String(optAccount))}
	if !c.IsSet(optAccount) {
		var err error
		change.Setting, change.Value, err = budgets.NormalPolicy(c.Args().First(), c.Args().Get(1))
		return change, err
	}
	change.Op = plan.SetMinRuntime
	settings, err := chosenSettings(c.Args().First())
	if err != nil {
		return change, err
	}
	if !slices.Equal(settings, []string{budgets.MinRuntime}) {
		return change, misuse(c, "an account can have a %s of its own, all else is the cluster's: leave out --%s", budgets.MinRuntime, optAccount)
	}
	change.Setting = budgets.MinRuntime
	change.Value, err = budgets.NormalMinRuntime(change.Account, c.Args().Get(1))
	return change, err
}

// policyValue is the value in force of what a change sets.
func (db *database) policyValue(ctx context.Context, cluster string, change plan.Change, at time.Time) (string, error) {
	if change.Op == plan.SetPolicy {
		policy, err := db.ledger.Policy(ctx, cluster, at)
		return policy.Value(change.Setting), err
	}
	said, err := db.ledger.MinRuntimes(ctx, cluster, at)
	if d, own := said[change.Account]; own {
		return budgets.FormatMinRuntime(d), err
	}
	return budgets.Inherit, err
}

func (p *program) policyHistoryCommand() *cli.Command {
	return &cli.Command{
		Name:      "history",
		Usage:     "list all changes of the settings",
		ArgsUsage: "[SETTING]",
		Description: describe("Lists the entries in the order they were written.", "gpubudget policy history", "gpubudget policy history lookback",
			"gpubudget policy history --account vision"),
		Flags:  []cli.Flag{policyAccountFlag("changes of `ACCOUNT` only")},
		Action: p.policyHistory,
	}
}

func (p *program) policyHistory(c *cli.Context) error {
	if err := wantArgumentsBetween(c, 0, 1); err != nil {
		return err
	}
	settings, err := chosenSettings(c.Args().First())
	if err != nil {
		return err
	}
	return p.withDatabase(c, func(db *database) error {
		cluster, err := db.cluster(c)
		if err != nil {
			return err
		}
		entries, err := db.ledger.PolicyHistory(c.Context, cluster)
		if err != nil {
			return err
		}
		entries = slices.DeleteFunc(entries, func(e budgets.Entry) bool {
			return c.Args().Present() && !slices.Contains(settings, e.Setting) ||
				c.IsSet(optAccount) && e.Account != strings.ToLower(c.String(optAccount))
		})
		return p.print(c, p.policyHistoryTable(entries), entriesJSON(entries))
	})
}

// policyHistoryTable has a column for accounts if there is anything to be in it.
func (p *program) policyHistoryTable(entries []budgets.Entry) *output.Table {
	table := output.Table{Columns: []output.Column{{Name: "Entry", Right: true}, {Name: "Setting"}, {Name: "Value"},
		{Name: "From"}, {Name: "Until"}, {Name: "Actor"}, {Name: "Why"}}}
	accounts := slices.ContainsFunc(entries, func(e budgets.Entry) bool { return e.Account != "" })
	if accounts {
		table.Columns = append(table.Columns, output.Column{Name: "Account"})
	}
	for _, e := range entries {
		cells := []string{strconv.FormatInt(e.Seq, 10), e.Setting, policyValue(e), p.formatTime(e.From), p.formatEnd(e), e.Actor, e.Why}
		if accounts {
			cells = append(cells, e.Account)
		}
		table.Add(cells...)
	}
	return &table
}
