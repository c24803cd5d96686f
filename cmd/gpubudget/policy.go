// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"gpubudget/budgets"
	"gpubudget/cmd/gpubudget/output"
	"gpubudget/cmd/gpubudget/plan"
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
none (--min-runtime=0) is unallocated: charged to no budget, and never protected.`

func (p *program) policyGetCommand() *cli.Command {
	return &cli.Command{
		Name:        "get",
		Usage:       "show the settings in force",
		ArgsUsage:   "[SETTING]",
		Description: describe(strings.TrimPrefix(policyText, "\n"), "gpubudget policy get", "gpubudget policy get lookback -nP --at 2026-01-01"),
		Flags:       []cli.Flag{atFlag()},
		Action:      p.policyGet,
	}
}

// policyRow is a setting as JSON.
type policyRow struct {
	Setting string `json:"setting"`
	Value   string `json:"value"`
	Default string `json:"default"`
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
		table := output.Table{Columns: []output.Column{{Name: "Setting"}, {Name: "Value"}, {Name: "Default"}}}
		var rows []policyRow
		for _, s := range settings {
			row := policyRow{s, policy.Value(s), budgets.DefaultPolicy.Value(s)}
			table.Add(row.Setting, row.Value, row.Default)
			rows = append(rows, row)
		}
		return p.print(c, &table, v.json("policy", rows))
	})
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
			"gpubudget policy set mode additive --from 2026-07-01"),
		Flags:  append(periodFlags(), newClusterFlag()),
		Action: p.policySet,
	}
}

func (p *program) policySet(c *cli.Context) error {
	if err := wantArguments(c, 2); err != nil {
		return err
	}
	setting, value, err := budgets.NormalPolicy(c.Args().First(), c.Args().Get(1))
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
		policy, err := db.ledger.Policy(c.Context, cluster, at)
		if err != nil {
			return err
		}
		change := plan.Change{Op: plan.SetPolicy, Setting: setting, OldValue: policy.Value(setting), Value: value}
		return p.commit(c, db, planned(cluster, []plan.Change{change}, n, p.period(n)))
	})
}

func (p *program) policyHistoryCommand() *cli.Command {
	return &cli.Command{
		Name:        "history",
		Usage:       "list all changes of the settings",
		ArgsUsage:   "[SETTING]",
		Description: describe("Lists the entries in the order they were written.", "gpubudget policy history", "gpubudget policy history lookback"),
		Action:      p.policyHistory,
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
			return c.Args().Present() && !slices.Contains(settings, e.Setting)
		})
		table := output.Table{Columns: []output.Column{{Name: "Entry", Right: true}, {Name: "Setting"}, {Name: "Value"},
			{Name: "From"}, {Name: "Until"}, {Name: "Actor"}, {Name: "Why"}}}
		for _, e := range entries {
			table.Add(strconv.FormatInt(e.Seq, 10), e.Setting, policyValue(e), p.formatTime(e.From), p.formatEnd(e), e.Actor, e.Why)
		}
		return p.print(c, &table, entriesJSON(entries))
	})
}
