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
	"gpubudget/internal/amount"
)

func (p *program) weightCommand() *cli.Command {
	return &cli.Command{
		Name:        "weight",
		Usage:       "set and list what a GPU of each type counts for",
		Subcommands: []*cli.Command{p.weightSetCommand(), p.weightListCommand(), p.weightHistoryCommand()},
	}
}

func (p *program) weightSetCommand() *cli.Command {
	return &cli.Command{
		Name:      "set",
		Usage:     "set what a GPU of a type counts for",
		ArgsUsage: "TYPE WEIGHT",
		Description: describe(`
A GPU of weight 2 is charged twice the GPU time of one of weight 1, and adds as
much to what the cluster has to share out. TYPE is the type of the GPUs in
Slurm's Gres (a100), also one with a MIG profile (a100_1g.10gb), a MIG profile
alone (1g.10gb), or * for all types that nothing else is said of. WEIGHT is a
number from 0 to 1000, or "default" to take back what was said.

Without any weight a GPU counts for 1, and a MIG instance for its part of what
its model counts for. The weight in force at an instant counts at it: a change
in the middle of a run charges either part by its own. With --from in the past,
runs that have ended are charged anew.`,
			"gpubudget weight set h100 2.5",
			"gpubudget weight set h100 2.5 --from 2026-07-01 --why 'prices of the third quarter'",
			"gpubudget weight set '*' 0.5",
			"gpubudget weight set 1g.10gb default"),
		Flags:  append(periodFlags(), newClusterFlag()),
		Action: p.weightSet,
	}
}

func (p *program) weightSet(c *cli.Context) error {
	if err := wantArguments(c, 2); err != nil {
		return err
	}
	weight, err := amount.ParseWeight(c.Args().Get(1))
	if err != nil {
		return err
	}
	n, err := p.note(c)
	if err != nil {
		return err
	}
	name := strings.ToLower(c.Args().First())
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
		said, err := db.weightsInForce(c.Context, cluster, at)
		if err != nil {
			return err
		}
		change := plan.Change{Op: plan.SetWeight, GPUType: name, OldWeight: fairshare.DefaultWeight, Weight: weight}
		if old, ok := said[name]; ok {
			change.OldWeight = old
		}
		return p.commit(c, db, planned(cluster, []plan.Change{change}, n, p.period(n)))
	})
}

func (p *program) weightListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list what a GPU of each type counts for",
		Description: describe(`
Lists the types that a weight was given and those that the cluster has GPUs of.
Weight is what was said of exactly this type; Counts what follows from it, from
what was said of its model, MIG profile or of all other types (*), or from
nothing.`,
			"gpubudget weight list", "gpubudget weight list --at 2026-01-01 --json"),
		Flags:  []cli.Flag{atFlag()},
		Action: p.weightList,
	}
}

// weightRow is what a GPU of a type counts for, as JSON.
type weightRow struct {
	Type   string   `json:"gpu_type"`
	GPUs   *int64   `json:"gpus"`   // that can be scheduled; null: not known, or of no type
	Weight *float64 `json:"weight"` // null: nothing was said
	Counts float64  `json:"counts"`

	said fairshare.Weight
}

func (p *program) weightList(c *cli.Context) error {
	if err := wantArguments(c, 0); err != nil {
		return err
	}
	return p.withTree(c, func(v view) error {
		rows, err := v.db.weights(c.Context, v.cluster, v.at)
		if err != nil {
			return err
		}
		table := output.Table{Columns: []output.Column{{Name: "Type"}, {Name: "GPUs", Right: true}, {Name: "Weight", Right: true}, {Name: "Counts", Right: true}}}
		for _, row := range rows {
			gpus := ""
			if row.GPUs != nil {
				gpus = strconv.FormatInt(*row.GPUs, 10)
			}
			table.Add(row.Type, gpus, amount.Weight(row.said), strconv.FormatFloat(row.Counts, 'f', -1, 64))
		}
		return p.print(c, &table, v.json("weights", rows))
	})
}

// weightsInForce is what was said of types, as far as it is in force.
func (db *database) weightsInForce(ctx context.Context, cluster string, at time.Time) (map[string]fairshare.Weight, error) {
	weights, err := db.weightsAt(ctx, cluster, fairshare.At(at))
	if err != nil {
		return nil, err
	}
	return saidNow(weights), nil
}

// weightsAt are the weights in force at an instant, those that take back what was
// said among them.
func (db *database) weightsAt(ctx context.Context, cluster string, at fairshare.Instant) (fairshare.GPUWeights, error) {
	return db.ledger.Weights(ctx, cluster, fairshare.Period{From: at, Until: at + 1})
}

// saidNow is what weights in force at an instant say of types.
func saidNow(weights fairshare.GPUWeights) map[string]fairshare.Weight {
	said := map[string]fairshare.Weight{}
	for name, steps := range weights {
		if w := steps[0].Value; w != fairshare.DefaultWeight {
			said[name] = w
		}
	}
	return said
}

// weights is what GPUs count for, by type: of those the cluster has and those that
// were given a weight. All others come last.
func (db *database) weights(ctx context.Context, cluster string, at time.Time) ([]weightRow, error) {
	now := fairshare.At(at)
	weights, err := db.weightsAt(ctx, cluster, now)
	if err != nil {
		return nil, err
	}
	said := saidNow(weights)
	gpus, _, err := db.usage.Schedulable(ctx, cluster, at)
	if err != nil {
		return nil, err
	}
	counted := map[string]int64{}
	for _, h := range gpus.Split() {
		counted[h.Type] += h.GPUs
	}
	names := []string{fairshare.OtherTypes}
	for name := range weights {
		names = append(names, name)
	}
	for name := range counted {
		if name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names) // * comes before all letters and digits
	names = slices.Compact(names)
	rows := make([]weightRow, 0, len(names))
	for _, name := range append(names[1:], names[0]) {
		row := weightRow{Type: name, said: fairshare.DefaultWeight, Counts: float64(weights.At(name, now)) / fairshare.Millionths}
		if w, ok := said[name]; ok {
			row.said = w
			number := weightNumber(row.said)
			row.Weight = &number
		}
		if n, ok := counted[name]; ok {
			row.GPUs = &n
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// weightNumber is a weight as JSON has it.
func weightNumber(w fairshare.Weight) float64 { return float64(w) / float64(fairshare.OneGPU) }

func (p *program) weightHistoryCommand() *cli.Command {
	return &cli.Command{
		Name:        "history",
		Usage:       "list all changes of weights",
		ArgsUsage:   "[TYPE]",
		Description: describe("Lists the entries in the order they were written.", "gpubudget weight history", "gpubudget weight history h100"),
		Action:      p.weightHistory,
	}
}

func (p *program) weightHistory(c *cli.Context) error {
	if err := wantArgumentsBetween(c, 0, 1); err != nil {
		return err
	}
	name := strings.ToLower(c.Args().First())
	return p.withDatabase(c, func(db *database) error {
		cluster, err := db.cluster(c)
		if err != nil {
			return err
		}
		entries, err := db.ledger.WeightHistory(c.Context, cluster)
		if err != nil {
			return err
		}
		entries = slices.DeleteFunc(entries, func(e budgets.Entry) bool { return name != "" && e.GPUType != name })
		table := output.Table{Columns: []output.Column{{Name: "Entry", Right: true}, {Name: "Type"}, {Name: "Weight", Right: true},
			{Name: "From"}, {Name: "Until"}, {Name: "Actor"}, {Name: "Why"}}}
		for _, e := range entries {
			table.Add(strconv.FormatInt(e.Seq, 10), e.GPUType, amount.Weight(*e.Weight), p.formatTime(e.From), p.formatEnd(e), e.Actor, e.Why)
		}
		return p.print(c, &table, entriesJSON(entries))
	})
}
