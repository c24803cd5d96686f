// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"gpubudget/conf"
	"gpubudget/fairshare"
	"gpubudget/report"
	"gpubudget/usage/metered"
)

// idleReport is what a cluster's GPUs are held for and do nothing.
type idleReport struct {
	*report.Report

	gpus   []metered.Idle
	agents int
	silent []string // nodes whose agents are: of their GPUs nobody knows
}

// actIdle lists the GPUs that do nothing.
func (p *program) actIdle(ctx context.Context, o options) error {
	var idle []*idleReport
	err := p.look(ctx, o, func(ctx context.Context, tx pgx.Tx, c conf.Conf) error {
		reports, err := p.build(ctx, tx, o, c)
		if err != nil {
			return err
		}
		if err := o.show.check(reports); err != nil {
			return err
		}
		for _, r := range reports {
			i, err := readIdle(ctx, tx, r, o)
			if err != nil {
				return err
			}
			idle = append(idle, i)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if o.layout == asJSON {
		return printIdleJSON(p.stdout, idle)
	}
	var b strings.Builder
	for n, i := range idle {
		if n > 0 {
			b.WriteString("\n")
		}
		if o.named {
			fmt.Fprintf(&b, "CLUSTER: %s\n", i.Cluster)
		}
		i.write(&b, o)
	}
	_, err = io.WriteString(p.stdout, b.String())
	return err
}

func readIdle(ctx context.Context, tx pgx.Tx, r *report.Report, o options) (*idleReport, error) {
	s := metered.NewStore(tx)
	all, err := s.Idle(ctx, r.Cluster, r.At, o.idleFor, o.idlePower)
	if err != nil {
		return nil, err
	}
	agents, err := s.Agents(ctx, r.Cluster)
	if err != nil {
		return nil, err
	}
	i := &idleReport{Report: r, agents: len(agents)}
	lineage := o.show.lineage(r)
	for n := range all {
		if o.show.showsIdle(&all[n], lineage) {
			i.gpus = append(i.gpus, all[n])
		}
	}
	for n := range agents {
		if agents[n].Silent(r.At) {
			i.silent = append(i.silent, agents[n].Node)
		}
	}
	return i, nil
}

// showsIdle tells whether a GPU is of somebody who was asked for: of a user by name,
// else of the accounts whose rows are shown.
func (s selection) showsIdle(i *metered.Idle, lineage map[string]bool) bool {
	return s.showsOwner(i.Account, i.User, lineage)
}

// showsOwner tells whether what a user runs in an account is of somebody who was
// asked for.
func (s selection) showsOwner(account, user string, lineage map[string]bool) bool {
	switch {
	case len(s.accounts) > 0 && !slices.Contains(s.accounts, account):
		return false
	case s.all:
		return true
	case s.own:
		return lineage == nil || lineage[account]
	}
	return slices.Contains(s.users, user)
}

// ofEntitled is what an idle GPU costs, as part of what its account was due in the
// window; false if that was nothing.
func (r *idleReport) ofEntitled(i *metered.Idle) (float64, bool) {
	row, ok := r.Account(i.Account)
	if !ok || row.Entitled <= 0 {
		return 0, false
	}
	return 100 * float64(i.Cost) / float64(row.Entitled), true
}

var idleColumns = []string{"Node", "GPU", "UUID", "Job", "User", "Account", "IdleFor", "HeldFor", "Watts", "CostH", "OfEntitled"}

// idleLeft is how many columns stand at the left, as names do.
const idleLeft = 6

func (r *idleReport) write(b *strings.Builder, o options) {
	lines := [][]string{}
	if !o.noHeader {
		lines = append(lines, idleColumns)
	}
	var total fairshare.GPUMillis
	for n := range r.gpus {
		i := &r.gpus[n]
		total += i.Cost
		lines = append(lines, r.idleFields(i))
	}
	if o.layout != wide {
		for _, fields := range lines {
			for n := range fields {
				fields[n] = strings.ReplaceAll(fields[n], "|", "/")
			}
			writeLine(b, fields, o.layout)
		}
		return
	}
	writeAligned(b, lines, !o.noHeader)
	if o.noHeader {
		return
	}
	gpus := "GPUs"
	if len(r.gpus) == 1 {
		gpus = "GPU"
	}
	fmt.Fprintf(b, "\nIdle:  %d %s, held for nothing for %.2f GPU-hours\n", len(r.gpus), gpus, total.Hours())
	switch {
	case r.agents == 0:
		b.WriteString("Meter: none: no agent has written for this cluster yet; is gpubudget-agent running on the nodes?\n")
	case len(r.silent) > 0:
		fmt.Fprintf(b, "Meter: %d of %d agents are silent, and of their GPUs nothing is known: %s\n", len(r.silent), r.agents, strings.Join(r.silent, ","))
	}
}

// writeAligned writes lines in columns as wide as they need to be.
func writeAligned(b *strings.Builder, lines [][]string, header bool) {
	widths := make([]int, len(idleColumns))
	for _, fields := range lines {
		for n, field := range fields {
			widths[n] = max(widths[n], utf8.RuneCountInString(field))
		}
	}
	for at, fields := range lines {
		out, dashes := make([]string, len(fields)), make([]string, len(fields))
		for n, field := range fields {
			dashes[n] = strings.Repeat("-", widths[n])
			out[n] = pad(field, widths[n])
			if n < idleLeft {
				out[n] = pad(field, -widths[n])
			}
		}
		writeLine(b, out, wide)
		if at == 0 && header {
			writeLine(b, dashes, wide)
		}
	}
}

func (r *idleReport) idleFields(i *metered.Idle) []string {
	index, watts, part := "-", "-", "-"
	if i.Index != nil {
		index = strconv.FormatInt(*i.Index, 10)
	}
	if i.Watts != nil {
		watts = strconv.FormatFloat(*i.Watts, 'f', 0, 64)
	}
	if percent, ok := r.ofEntitled(i); ok {
		part = strconv.FormatFloat(percent, 'f', 2, 64) + "%"
	}
	return []string{
		i.Node, index, i.GPU, strconv.FormatUint(uint64(i.JobID), 10), i.User, orNone(i.Account),
		age(i.For()), age(between(i.HeldFrom, i.Until)), watts, strconv.FormatFloat(i.Cost.Hours(), 'f', 2, 64), part,
	}
}

func between(a, b fairshare.Instant) time.Duration { return time.Duration(b-a) * time.Millisecond }

// The JSON of --idle.
type (
	idleOutput struct {
		Meta     jsonMeta      `json:"meta"`
		Clusters []idleCluster `json:"clusters"`
	}
	idleCluster struct {
		Cluster      string    `json:"cluster"`
		At           time.Time `json:"at"`
		SilentAgents []string  `json:"silent_agents"`
		Idle         []idleRow `json:"idle"`
	}
	idleRow struct {
		Node       string    `json:"node"`
		Index      *int64    `json:"index"`
		GPU        string    `json:"gpu"`
		Model      string    `json:"model"`
		JobID      uint32    `json:"job_id"`
		Restart    uint32    `json:"restart"`
		User       string    `json:"user"`
		Account    string    `json:"account"`
		HeldFrom   time.Time `json:"held_from"`
		IdleSince  time.Time `json:"idle_since"`
		Until      time.Time `json:"known_until"`
		Watts      *float64  `json:"watts"`
		Cost       int64     `json:"cost_gpu_ms"`
		CostHours  float64   `json:"cost_gpu_hours"`
		OfEntitled *float64  `json:"of_entitled_percent"`
	}
)

func printIdleJSON(w io.Writer, reports []*idleReport) error {
	out := idleOutput{Meta: jsonMeta{"gshare", buildVersion()}, Clusters: []idleCluster{}}
	for _, r := range reports {
		c := idleCluster{Cluster: r.Cluster, At: r.At, SilentAgents: append([]string{}, r.silent...), Idle: []idleRow{}}
		for n := range r.gpus {
			i := &r.gpus[n]
			percent, ok := r.ofEntitled(i)
			c.Idle = append(c.Idle, idleRow{
				Node: i.Node, Index: i.Index, GPU: i.GPU, Model: i.Model, JobID: i.JobID, Restart: i.Restart, User: i.User, Account: i.Account,
				HeldFrom: i.HeldFrom.Time(), IdleSince: i.Since.Time(), Until: i.Until.Time(), Watts: i.Watts,
				Cost: int64(i.Cost), CostHours: i.Cost.Hours(), OfEntitled: finiteIf(ok, percent),
			})
		}
		out.Clusters = append(out.Clusters, c)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(out); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}
