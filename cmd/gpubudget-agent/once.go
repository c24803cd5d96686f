// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/agent"
)

// between is how long is waited between the two looks of --once, which a
// utilisation takes.
const between = time.Second

// once looks and prints what it sees.
func (p *program) once(c *cli.Context) error {
	config, err := p.config(c)
	if err != nil {
		return err
	}
	options, err := p.options(config)
	if err != nil {
		return err
	}
	options.Log = slog.New(slog.DiscardHandler) // what is not known is a dash
	view, err := agent.Look(options, between)
	if err != nil {
		return err
	}
	if c.Bool(optJSON) {
		text, err := json.MarshalIndent(view, "", "  ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(p.stdout, string(text))
		return err
	}
	return p.printView(view)
}

// printView prints a line for each GPU. What is not known is a dash.
func (p *program) printView(v *agent.View) error {
	w := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NUMBER\tMINOR\tPCI\tMODEL\tUTIL%\tMEMORY_MIB\tWATT\tJOBS\tUUID")
	for i := range v.GPUs {
		g := &v.GPUs[i]
		watt := "-"
		if g.PowerMW != nil {
			watt = strconv.FormatInt(*g.PowerMW/1000, 10)
		}
		util := "-"
		if g.Percent != nil {
			util = fmt.Sprintf("%.0f", *g.Percent)
		}
		jobs := "-"
		if len(g.Jobs) > 0 {
			jobs = fmt.Sprint(g.Jobs)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", orDash(g.GRESIndex), orDash(g.Minor), g.PCIBusID, g.Model, util,
			orDash(g.UsedMiB), watt, jobs, g.UUID)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, problem := range v.Problems {
		fmt.Fprintf(p.stderr, "gpubudget-agent: %s\n", problem)
	}
	return nil
}

func orDash[T any](v *T) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprint(*v)
}
