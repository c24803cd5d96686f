// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"encoding/csv"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/urfave/cli/v2"

	"gpubudget/cmd/gpubudget/output"
	"gpubudget/simulate"
)

// printSimulation prints what came of the runs, beside each other.
func (p *program) printSimulation(c *cli.Context, s *scene, results []*simulate.Result) error {
	switch {
	case c.Bool(optJSON):
		return output.JSON(p.stdout, map[string]any{
			"workload": s.workload.Name, "begin": s.workload.Begin, "jobs": len(s.workload.Jobs), "gpus": s.cluster.GPUs(), "nodes": s.cluster.Nodes(),
			"load": s.workload.Load(s.cluster.GPUs()), "notes": s.workload.Notes, "skipped": s.skipped, "results": results,
		})
	case c.Bool(optCSV):
		p.noteAside(s)
		return p.simulationCSV(results)
	case c.Bool(optNoHeader):
		p.noteAside(s)
	default:
		fmt.Fprintf(p.stdout, "%s: %d jobs, load %.2f of %d GPUs on %d nodes; %s simulated\n",
			s.workload.Name, len(s.workload.Jobs), s.workload.Load(s.cluster.GPUs()), s.cluster.GPUs(), s.cluster.Nodes(), span(results[0].Seconds))
		for _, note := range s.notes() {
			fmt.Fprintf(p.stdout, "  %s\n", note)
		}
		fmt.Fprintln(p.stdout)
	}
	tables := []*output.Table{summaryTable(results), waitsTable(results), accountsTable(results)}
	for i, t := range tables {
		if i > 0 {
			fmt.Fprintln(p.stdout)
		}
		if err := t.Write(p.stdout, p.style(c), c.Bool(optNoHeader)); err != nil {
			return err
		}
	}
	return nil
}

// notes say what was made up and what was left out.
func (s *scene) notes() []string {
	notes := slices.Clone(s.workload.Notes)
	for _, n := range s.skipped {
		notes = append(notes, fmt.Sprintf("skipped: %d with %s", n.Rows, n.Kind))
	}
	return notes
}

// noteAside prints the notes where they are in nobody's way who reads the output
// with a program.
func (p *program) noteAside(s *scene) {
	for _, note := range s.notes() {
		fmt.Fprintf(p.stderr, "gpubudget: note: %s\n", note)
	}
}

func (p *program) style(c *cli.Context) output.Style {
	switch {
	case c.Bool(optParsable2):
		return output.Parsable2
	case c.Bool(optParsable):
		return output.Parsable
	}
	return output.Wide
}

func columns(names ...string) []output.Column {
	var columns []output.Column
	for i, name := range names {
		columns = append(columns, output.Column{Name: name, Right: i > 0})
	}
	return columns
}

func summaryTable(results []*simulate.Result) *output.Table {
	t := &output.Table{Columns: columns("Policy", "Deliv%", "Strict%", "Worst%", "ShareErr%", "Jain", "Occup%", "AllocH", "UnallocH", "StrandedH", "QuotaIdleH", "Demand", "Preempt", "LostH", "Started", "Waiting", "SlowMed", "SlowP99")}
	for _, r := range results {
		t.Add(r.Policy, f2(r.DeliveredPercent), f2(r.StrictPercent), f2(r.WorstPercent), f2(r.ShareError), fmt.Sprintf("%.4f", r.Jain), f2(r.Occupancy),
			f0(r.AllocatedHours), f0(r.UnallocHours), f0(r.StrandedHours), f0(r.QuotaIdleHours), f2(r.DemandHours/math.Max(r.CapacityHours, 1)),
			strconv.Itoa(r.Preemptions), f0(r.LostHours), strconv.Itoa(r.Started), strconv.Itoa(r.Waiting), f2(r.Slowdown.Median), f2(r.Slowdown.P99))
	}
	return t
}

func waitsTable(results []*simulate.Result) *output.Table {
	t := &output.Table{Columns: columns("Policy", "Waits", "Jobs", "NotStarted", "Median", "P90", "P99", "Mean")}
	t.Columns[1].Right = false
	for _, r := range results {
		for _, w := range r.Waits {
			t.Add(r.Policy, w.Class, strconv.Itoa(w.Jobs), strconv.Itoa(w.Waiting), wait(w.Median), wait(w.P90), wait(w.P99), wait(w.Mean))
		}
	}
	return t
}

// accountsTable is Delivered% by account and policy.
func accountsTable(results []*simulate.Result) *output.Table {
	t := &output.Table{Columns: columns("Policy", "Account", "Share%", "EntitledH", "DemandH", "OwedH", "DeliveredH", "Deliv%", "Strict%", "ShareErr%", "UnallocH")}
	t.Columns[1].Right = false
	for _, r := range results {
		for _, a := range r.Accounts {
			t.Add(r.Policy, a.Account, f2(a.Share), f0(a.EntitledHours), f0(a.DemandHours), f0(a.OwedHours), f0(a.Delivered), f2(a.Percent), f2(a.StrictPercent), f2(a.ShareError), f0(a.UnallocHours))
		}
	}
	return t
}

// simulationCSV is a row for each account and run, with the run's own figures in
// the rows of account "".
func (p *program) simulationCSV(results []*simulate.Result) error {
	w := csv.NewWriter(p.stdout)
	rows := [][]string{{"policy", "account", "share_percent", "entitled_gpu_hours", "demand_gpu_hours", "owed_gpu_hours", "delivered_gpu_hours",
		"delivered_percent", "delivered_strict_percent", "unallocated_gpu_hours", "occupancy_percent", "stranded_gpu_hours", "jain_index", "preemptions",
		"preemption_lost_gpu_hours", "wait_median", "wait_p90", "wait_p99", "debug_wait_p90",
		"share_error_percent", "worst_account", "worst_delivered_percent", "slowdown_median", "slowdown_p90", "slowdown_p99", "quota_idle_gpu_hours"}}
	for _, class := range simulate.WaitClasses()[1:] {
		name := "wait_" + strings.Join(strings.FieldsFunc(strings.ToLower(class), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }), "_")
		rows[0] = append(rows[0], name+"_median", name+"_p90", name+"_p99")
	}
	for _, r := range results {
		all, debug := r.Wait("all"), r.Wait("debug")
		row := []string{r.Policy, "", "100", f2(r.CapacityHours), f2(r.DemandHours), f2(r.OwedHours), f2(r.AllocatedHours),
			f2(r.DeliveredPercent), f2(r.StrictPercent), f2(r.UnallocHours), f2(r.Occupancy), f2(r.StrandedHours), fmt.Sprintf("%.6f", r.Jain), strconv.Itoa(r.Preemptions),
			f2(r.LostHours), f0(all.Median), f0(all.P90), f0(all.P99), f0(debug.P90),
			f2(r.ShareError), r.WorstAccount, f2(r.WorstPercent), f2(r.Slowdown.Median), f2(r.Slowdown.P90), f2(r.Slowdown.P99), f2(r.QuotaIdleHours)}
		for _, class := range simulate.WaitClasses()[1:] {
			if of := r.Wait(class); of.Jobs > 0 {
				row = append(row, f0(of.Median), f0(of.P90), f0(of.P99))
				continue
			}
			row = append(row, "", "", "")
		}
		rows = append(rows, row)
		for _, a := range r.Accounts {
			row := []string{r.Policy, a.Account, f2(a.Share), f2(a.EntitledHours), f2(a.DemandHours), f2(a.OwedHours), f2(a.Delivered),
				f2(a.Percent), f2(a.StrictPercent), f2(a.UnallocHours), "", "", "", "", "", "", "", "", "", f2(a.ShareError)}
			rows = append(rows, append(row, make([]string, len(rows[0])-len(row))...))
		}
	}
	if err := w.WriteAll(rows); err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	return nil
}

func f0(x float64) string { return strconv.FormatFloat(x, 'f', 0, 64) }
func f2(x float64) string { return strconv.FormatFloat(x, 'f', 2, 64) }

// wait is seconds as people say them.
func wait(seconds float64) string {
	switch s := math.Round(seconds); {
	case s < 120:
		return f0(s) + "s"
	case s < 7200:
		return f0(math.Round(s/60)) + "m"
	case s < 172_800:
		return strconv.FormatFloat(s/3600, 'f', 1, 64) + "h"
	default:
		return strconv.FormatFloat(s/86_400, 'f', 1, 64) + "d"
	}
}

func span(seconds int64) string {
	return strconv.FormatFloat(float64(seconds)/day.Seconds(), 'f', 1, 64) + " days"
}
