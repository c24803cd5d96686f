// SPDX-License-Identifier: GPL-2.0-or-later

// Package page draws what came of simulated runs: one HTML page that needs
// nothing else, with no script, for light and dark themes.
package page

import (
	"fmt"
	"html/template"
	"io"
	"slices"

	"gpubudget/fairshare"
	"gpubudget/simulate"
)

// Page collects what is to be drawn. It is made before the runs, since it draws
// from each stint of a job as it ends.
type Page struct {
	Notes []string // below the title: what was made up and what was left out

	workload *simulate.Workload
	cluster  *simulate.Cluster
	span     int64
	names    []string // of accounts, in the order of the result
	account  []int    // by owner
	panels   []*Panel
	due      map[*fairshare.Budget][]float64 // GPUs by account and column
}

// Panel is one run.
type Panel struct {
	page  *Page
	label string

	stints  []simulate.Stint // as long as they are few
	many    bool
	cells   []float32 // GPU-seconds by row, column and account
	open    []float32 // those without protection, by row and column
	cut     []bool    // somebody was preempted, by row and column
	charged []float64 // GPU-seconds by account and column
	free    []float64 // those that were unallocated
	waits   []float64
	debug   []float64
	result  *simulate.Result
	due     []float64 // GPUs by account and column
}

const (
	columns   = 288
	mostRows  = 128
	fewStints = 1500
	fewGPUs   = 64
)

// New prepares a page for runs of a workload that last for so many seconds.
func New(w *simulate.Workload, c *simulate.Cluster, seconds int64) *Page {
	p := &Page{workload: w, cluster: c, span: max(seconds, 1), due: make(map[*fairshare.Budget][]float64)}
	for _, o := range w.Owners {
		if !slices.Contains(p.names, o.Account) {
			p.names = append(p.names, o.Account)
		}
	}
	slices.Sort(p.names)
	for _, o := range w.Owners {
		at, _ := slices.BinarySearch(p.names, o.Account)
		p.account = append(p.account, at)
	}
	return p
}

// Panel adds a run under a budget; its Record is for simulate.Config.
func (p *Page) Panel(label string, b *fairshare.Budget) *Panel {
	n := p.rows() * columns
	panel := &Panel{
		page: p, label: label, due: p.entitlements(b), cells: make([]float32, n*len(p.names)), open: make([]float32, n), cut: make([]bool, n),
		charged: make([]float64, len(p.names)*columns), free: make([]float64, len(p.names)*columns),
	}
	p.panels = append(p.panels, panel)
	return panel
}

// rows is how many rows of nodes are drawn.
func (p *Page) rows() int { return min(p.cluster.Nodes(), mostRows) }

func (p *Page) row(node int32) int { return int(node) * p.rows() / p.cluster.Nodes() }

func (p *Page) column(at int64) int {
	return min(int(at*columns/p.span), columns-1)
}

// Record takes a stint in.
func (n *Panel) Record(s simulate.Stint) {
	p := n.page
	j := &p.workload.Jobs[s.Job]
	if s.Waited >= 0 && j.MinRuntime != 0 {
		n.waits = append(n.waits, float64(s.Waited))
		if j.Debug {
			n.debug = append(n.debug, float64(s.Waited))
		}
	}
	if s.Start >= p.span || s.End <= s.Start {
		return
	}
	n.keep(s)
	account := p.account[j.Owner]
	for column := p.column(s.Start); column <= p.column(s.End-1); column++ {
		from, until := int64(column)*p.span/columns, int64(column+1)*p.span/columns
		within := float64(min(s.End, until) - max(s.Start, from))
		exposed := float64(min(s.End, until) - max(s.Start, from, s.ProtectedUntil))
		sum := &n.charged[account*columns+column]
		if !s.Allocated {
			sum = &n.free[account*columns+column]
		}
		*sum += max(within, 0) * float64(j.GPUs)
		for _, x := range s.Pieces {
			cell := p.row(x.Node)*columns + column
			n.cells[cell*len(p.names)+account] += float32(max(within, 0) * float64(x.GPUs))
			n.open[cell] += float32(max(exposed, 0) * float64(x.GPUs))
			if s.Ended == simulate.Preempted && s.End < until {
				n.cut[cell] = true
			}
		}
	}
}

// keep keeps stints for a drawing by GPU, if the cluster and they are few.
func (n *Panel) keep(s simulate.Stint) {
	if n.many || n.page.cluster.GPUs() > fewGPUs || len(n.stints) >= fewStints {
		n.many, n.stints = true, nil
		return
	}
	s.Pieces = slices.Clone(s.Pieces)
	n.stints = append(n.stints, s)
}

// entitlements are how many GPUs each account was due in each column: shares, grants
// and the capacity may change on the way. Most runs have the same budget.
func (p *Page) entitlements(b *fairshare.Budget) []float64 {
	if due, known := p.due[b]; known {
		return due
	}
	due := make([]float64, len(p.names)*columns)
	over := fairshare.Budget{Accounts: b.Accounts, Capacity: p.cluster.Capacity(p.workload.Begin)}
	instant := func(column int64) fairshare.Instant {
		return fairshare.At(p.workload.Begin) + fairshare.Instant(p.span*1000*column/columns)
	}
	for k := range columns {
		window := fairshare.Period{From: instant(int64(k)), Until: instant(int64(k) + 1)}
		e := over.Entitlements(window)
		for at, name := range p.names {
			due[at*columns+k] = float64(e.Account(name)) / float64(window.Millis())
		}
	}
	p.due[b] = due
	return due
}

// Finish takes the result in.
func (n *Panel) Finish(r *simulate.Result) { n.result = r }

// view is what the template shows.
type view struct {
	Title, Subtitle    string
	Notes              []string
	Legend             []legend
	Panels             []panelView
	Waits, Debug, Axis template.HTML
}

type legend struct {
	Name   string
	Colour template.CSS
}

type panelView struct {
	Label, Facts string
	Timeline     template.HTML
	Usage        []usageView
}

type usageView struct {
	Account, Facts string
	Chart          template.HTML
}

// mostCharts is how many accounts have a chart of their own: those with the
// largest shares.
const mostCharts = 24

// Write writes the page.
func (p *Page) Write(w io.Writer) error {
	v := view{
		Title: "gpubudget simulate: " + p.workload.Name,
		Subtitle: fmt.Sprintf("%d jobs on %d GPUs of %d nodes for %.1f days, from %s", len(p.workload.Jobs), p.cluster.GPUs(), p.cluster.Nodes(),
			float64(p.span)/86_400, p.workload.Begin.Format("2006-01-02")),
		Notes: p.Notes,
	}
	for i, name := range p.names {
		v.Legend = append(v.Legend, legend{name, template.CSS(css(i))}) //nolint:gosec // a colour made of numbers
	}
	for _, n := range p.panels {
		pv := panelView{Label: n.label, Facts: n.facts(), Timeline: n.timeline()}
		for _, a := range n.largest() {
			pv.Usage = append(pv.Usage, usageView{
				Account: a.Account, Facts: fmt.Sprintf("%.1f%% of the cluster, %.1f%% delivered", a.Share, a.Percent), Chart: n.usage(a.Account),
			})
		}
		v.Panels = append(v.Panels, pv)
	}
	v.Waits = waitsChart(p.panels, "all", func(n *Panel) []float64 { return n.waits })
	v.Axis = p.axis()
	v.Debug = waitsChart(p.panels, "debug", func(n *Panel) []float64 { return n.debug })
	if err := layout.Execute(w, v); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

func (n *Panel) facts() string {
	r := n.result
	return fmt.Sprintf("%.2f%% of what was owed delivered, worst account %.2f%%, occupancy %.2f%%, %d preemptions",
		r.DeliveredPercent, r.WorstPercent, r.Occupancy, r.Preemptions)
}

// largest are the accounts with the largest shares, by name.
func (n *Panel) largest() []simulate.AccountResult {
	accounts := slices.Clone(n.result.Accounts)
	slices.SortStableFunc(accounts, func(x, y simulate.AccountResult) int {
		switch {
		case x.Share > y.Share:
			return -1
		case x.Share < y.Share:
			return 1
		}
		return 0
	})
	accounts = accounts[:min(len(accounts), mostCharts)]
	slices.SortFunc(accounts, func(x, y simulate.AccountResult) int {
		if x.Account < y.Account {
			return -1
		}
		return 1
	})
	return accounts
}
