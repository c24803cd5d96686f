// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/cmd/gpubudget/output"
	"gpubudget/fairshare"
	"gpubudget/usage/metered"
)

const (
	optNode      = "node"
	optTolerance = "tolerance"
)

func (p *program) usageCommand() *cli.Command {
	return &cli.Command{
		Name:  "usage",
		Usage: "look at what the meters on the nodes saw",
		Subcommands: []*cli.Command{
			{
				Name:  "check",
				Usage: "compare the meters with Slurm's record; exit 1 if they disagree",
				Description: describe(`
Prints for each node how much of the GPU time that runs have used on it was
metered, and what is known of its agent; then every disagreement: runs without a
meter, stretches of runs that none covered, GPUs that were metered beyond those of
the run, or in no run of their job, agents that are silent or can't measure, and
GPUs that no agent knows. What no meter covered is charged from Slurm's record,
what was metered outside of all runs is not charged: no charge depends on any of
this. Without --from it is about the last 24 hours.`,
					"gpubudget usage check",
					"gpubudget usage check --from now-7days --node gpu07",
					"gpubudget usage check -nP | grep '^disagreement|silent'",
					"gpubudget usage check --json"),
				Flags: []cli.Flag{
					&cli.StringFlag{Name: optFrom, Usage: "from `TIME` on (default: 24 hours before the end)"},
					&cli.StringFlag{Name: optUntil, Usage: "until `TIME` (default: now)"},
					&cli.StringFlag{Name: optNode, Usage: "only the node `NAME`"},
					&cli.DurationFlag{Name: optTolerance, Value: metered.DefaultTolerance, Usage: "leave out what differs for no longer than a `DURATION` at a stretch"},
				},
				Action: p.usageCheck,
			},
			p.usageJobCommand(),
		},
	}
}

// lookedAt is the period that --from and --until name.
func (p *program) lookedAt(c *cli.Context, now time.Time) (fairshare.Period, error) {
	until, err := p.readTime(c, optUntil, true)
	if err != nil {
		return fairshare.Period{}, err
	}
	if until.IsZero() || until.After(now) {
		until = now
	}
	from, err := p.readTime(c, optFrom, true)
	if err != nil {
		return fairshare.Period{}, err
	}
	if from.IsZero() {
		from = until.Add(-24 * time.Hour)
	}
	w := fairshare.Period{From: fairshare.At(from), Until: fairshare.At(until)}
	if w.Empty() {
		return w, fmt.Errorf("--%s %s is not before --%s %s", optFrom, p.formatTime(from), optUntil, p.formatTime(until))
	}
	return w, nil
}

func (p *program) usageCheck(c *cli.Context) error {
	if err := wantArguments(c, 0); err != nil {
		return err
	}
	if c.Duration(optTolerance) < 0 {
		return misuse(c, "--%s %s: must not be negative", optTolerance, c.Duration(optTolerance))
	}
	return p.withDatabase(c, func(db *database) error {
		cluster, err := db.cluster(c)
		if err != nil {
			return err
		}
		now, err := db.now(c.Context)
		if err != nil {
			return err
		}
		w, err := p.lookedAt(c, now)
		if err != nil {
			return err
		}
		audit, err := metered.NewStore(db.pool).Audit(c.Context, cluster, w, now, c.Duration(optTolerance), c.String(optNode))
		if err != nil {
			return err
		}
		if len(audit.Nodes) == 0 && c.IsSet(optNode) {
			return fmt.Errorf("nothing is known of a node %q from %s to %s: list all with gpubudget usage check", c.String(optNode), p.formatTime(w.From.Time()), p.formatTime(w.Until.Time()))
		}
		if err := p.printAudit(c, audit, now); err != nil {
			return err
		}
		if n := len(audit.Disagreements); n > 0 {
			return fmt.Errorf("the meters and Slurm's record disagree in %s: docs/usage.md says what each means", plural(n, "place"))
		}
		return nil
	})
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (p *program) printAudit(c *cli.Context, a *metered.Audit, now time.Time) error {
	if c.Bool(optJSON) {
		return output.JSON(p.stdout, auditJSON(a, now))
	}
	marked := c.Bool(optParsable) || c.Bool(optParsable2) // all lines in one: each begins with what it is
	nodes := p.nodesTable(a, now)
	if marked {
		mark(nodes, "node")
	}
	if err := p.print(c, nodes, nil); err != nil {
		return err
	}
	if len(a.Disagreements) > 0 {
		if !marked {
			p.sayf(c, "")
		}
		table := p.disagreementsTable(a)
		if marked {
			mark(table, "disagreement")
		}
		if err := p.print(c, table, nil); err != nil {
			return err
		}
	}
	if !marked && !c.Bool(optNoHeader) {
		p.sayf(c, "\n%s, %s to %s: %s of %s GPU-hours metered (%s)", a.Reading.Cluster, p.formatTime(a.Reading.Period.From.Time()),
			p.formatTime(a.Reading.Period.Until.Time()), hours(a.Covered), hours(a.Used), percentOr(a.Covered, a.Used))
	}
	return nil
}

// mark puts a first column that says what a row is.
func mark(t *output.Table, what string) {
	t.Columns = append([]output.Column{{Name: "Record"}}, t.Columns...)
	for i := range t.Rows {
		t.Rows[i] = append([]string{what}, t.Rows[i]...)
	}
}

func (p *program) nodesTable(a *metered.Audit, now time.Time) *output.Table {
	t := &output.Table{Columns: []output.Column{
		{Name: "Node"}, {Name: "GPUs", Right: true}, {Name: "UsedH", Right: true}, {Name: "MeteredH", Right: true}, {Name: "UncoveredH", Right: true},
		{Name: "Meter%", Right: true}, {Name: "Agent"}, {Name: "Seen"}, {Name: "Skew", Right: true}, {Name: "Spool", Right: true},
	}}
	for i := range a.Nodes {
		n := &a.Nodes[i]
		gpus, state, seen, skew, spool := "-", "none", "-", "-", "-"
		if g := n.Agent; g != nil {
			gpus, state, seen = strconv.FormatInt(g.GPUs, 10), agentState(g, now), p.formatTime(g.SeenAt)
			skew, spool = g.Skew.Truncate(100*time.Millisecond).String(), strconv.FormatInt(g.Spooled, 10)
		}
		name := n.Name
		if name == "" { // of runs whose nodes the recorder never saw
			name = "-"
		}
		t.Add(name, gpus, hours(n.Used), hours(n.Covered), hours(n.Used-n.Covered), percentOr(n.Covered, n.Used), state, seen, skew, spool)
	}
	return t
}

// agentState is a word for how an agent does.
func agentState(a *metered.Agent, now time.Time) string {
	switch {
	case a.Silent(now):
		return "silent"
	case a.State != "ok":
		return "unmeasured"
	}
	return "ok"
}

func (p *program) disagreementsTable(a *metered.Audit) *output.Table {
	t := &output.Table{Columns: []output.Column{
		{Name: "Disagreement"}, {Name: "Job"}, {Name: "User"}, {Name: "Node"}, {Name: "GPU"}, {Name: "From"}, {Name: "Until"},
		{Name: "GPU-hours", Right: true}, {Name: "Why"},
	}}
	for i := range a.Disagreements {
		d := &a.Disagreements[i]
		job, from, until, amount := "", "", "", ""
		if d.JobID != 0 {
			job = strconv.FormatUint(uint64(d.JobID), 10)
		}
		if !d.Empty() {
			from, until = p.formatTime(d.From.Time()), p.formatTime(d.Until.Time())
		}
		if d.Amount != 0 {
			amount = hours(d.Amount)
		}
		t.Add(string(d.Kind), job, d.User, d.Nodes, d.GPU, from, until, amount, d.Why)
	}
	return t
}

// hours is GPU time in hours, for tables.
func hours(g fairshare.GPUMillis) string { return strconv.FormatFloat(g.Hours(), 'f', 2, 64) }

// percentOr is a part in percent, - where there is nothing to be a part of.
func percentOr(part, whole fairshare.GPUMillis) string {
	if whole <= 0 {
		return "-"
	}
	return strconv.FormatFloat(100*float64(part)/float64(whole), 'f', 2, 64)
}

// The JSON of usage check.
type (
	auditOutput struct {
		Cluster       string           `json:"cluster"`
		From          time.Time        `json:"from"`
		Until         time.Time        `json:"until"`
		Used          int64            `json:"used_gpu_milliseconds"`
		Covered       int64            `json:"metered_gpu_milliseconds"`
		Percent       *float64         `json:"metered_percent"` // null: nothing was used
		Nodes         []nodeOutput     `json:"nodes"`
		Disagreements []disagreeOutput `json:"disagreements"`
	}
	nodeOutput struct {
		Node    string       `json:"node"`
		Used    int64        `json:"used_gpu_milliseconds"`
		Covered int64        `json:"metered_gpu_milliseconds"`
		Percent *float64     `json:"metered_percent"`
		Agent   *agentOutput `json:"agent"` // null: none has ever written
	}
	agentOutput struct {
		State     string     `json:"state"` // ok, silent, or why nothing is measured
		Silent    bool       `json:"silent"`
		SeenAt    time.Time  `json:"seen_at"`
		SampledAt *time.Time `json:"sampled_at"`
		Skew      int64      `json:"skew_milliseconds"`
		Spooled   int64      `json:"spooled"`
		GPUs      int64      `json:"gpus"`
		Version   string     `json:"version"`
	}
	disagreeOutput struct {
		Kind    string     `json:"kind"`
		Job     *uint32    `json:"job_id"`
		Restart *uint32    `json:"restart"`
		User    string     `json:"user"`
		Nodes   string     `json:"nodes"`
		GPU     string     `json:"gpu"`
		From    *time.Time `json:"from"` // null: it is about now
		Until   *time.Time `json:"until"`
		Amount  int64      `json:"gpu_milliseconds"`
		Why     string     `json:"why"`
	}
)

func auditJSON(a *metered.Audit, now time.Time) auditOutput {
	out := auditOutput{
		Cluster: a.Reading.Cluster, From: a.Reading.Period.From.Time(), Until: a.Reading.Period.Until.Time(),
		Used: int64(a.Used), Covered: int64(a.Covered), Percent: percentJSON(a.Covered, a.Used), Nodes: []nodeOutput{}, Disagreements: []disagreeOutput{},
	}
	for i := range a.Nodes {
		n := &a.Nodes[i]
		row := nodeOutput{Node: n.Name, Used: int64(n.Used), Covered: int64(n.Covered), Percent: percentJSON(n.Covered, n.Used)}
		if g := n.Agent; g != nil {
			row.Agent = &agentOutput{
				State: g.State, Silent: g.Silent(now), SeenAt: g.SeenAt.UTC().Truncate(time.Millisecond), SampledAt: g.SampledAt,
				Skew: g.Skew.Milliseconds(), Spooled: g.Spooled, GPUs: g.GPUs, Version: g.Version,
			}
		}
		out.Nodes = append(out.Nodes, row)
	}
	for i := range a.Disagreements {
		d := &a.Disagreements[i]
		row := disagreeOutput{Kind: string(d.Kind), User: d.User, Nodes: d.Nodes, GPU: d.GPU, Amount: int64(d.Amount), Why: d.Why}
		if d.JobID != 0 {
			row.Job, row.Restart = &d.JobID, &d.Restart
		}
		if !d.Empty() {
			row.From, row.Until = new(d.From.Time()), new(d.Until.Time())
		}
		out.Disagreements = append(out.Disagreements, row)
	}
	return out
}

// percentJSON is a part in percent; nil where there is nothing to be a part of.
func percentJSON(part, whole fairshare.GPUMillis) *float64 {
	if whole <= 0 {
		return nil
	}
	return new(percentNumber(float64(part) / float64(whole)))
}
