// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"gpubudget/fairshare"
	"gpubudget/internal/nearest"
	"gpubudget/report"
	"gpubudget/usage"
)

// job is a running job as --jobs shows it.
type job struct {
	usage.Run

	at    time.Time        // it counts up to here
	whole usage.Protection // of the job with all its components
	// protected is until when it is; zero if it never was, or nobody knows.
	protected time.Time
}

func newJob(r *report.Report, run *usage.Run, whole usage.Protection) job {
	j := job{Run: *run, at: r.UsedUntil, whole: whole}
	if !whole.Unknown {
		j.protected = whole.Until
	}
	return j
}

// id is how squeue calls the job: 12, 12_3, 12+1.
func (j *job) id() string {
	id := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	switch {
	case j.ArrayJobID != 0 && j.ArrayTaskID != usage.NoTask:
		return id(j.ArrayJobID) + "_" + id(j.ArrayTaskID)
	case j.HetJobID != 0 && j.JobID >= j.HetJobID:
		return id(j.HetJobID) + "+" + id(j.JobID-j.HetJobID)
	}
	return id(j.JobID)
}

// state is what the contract says of the job now.
func (j *job) state() string {
	switch {
	case j.whole.GPUs == 0:
		return "keeps" // shards or MPS: nobody is preempted for those
	case j.whole.Unknown:
		return "unknown" // keeps its GPUs until the plugin knows
	case !j.whole.Allocated:
		return "unallocated" // yields to any allocated request
	case j.SuspendedSince != nil:
		return "suspended"
	case j.at.Before(j.protected):
		return "protected"
	}
	return "yields" // to who is further behind
}

// clock is a duration as Slurm prints it: D-HH:MM:SS.
func clock(d time.Duration) string {
	s := int64(max(0, d) / time.Second)
	days := ""
	if s >= 24*3600 {
		days = strconv.FormatInt(s/(24*3600), 10) + "-"
	}
	return fmt.Sprintf("%s%02d:%02d:%02d", days, s/3600%24, s/60%60, s%60)
}

// jobColumn is a field of --jobs. In wide tables it is as wide as it needs to be
// unless width is set.
type jobColumn struct {
	name  string
	left  bool
	width int
	value func(p *program, r *report.Report, j *job) string
}

var jobColumns = []jobColumn{
	{"JobID", false, 0, func(_ *program, _ *report.Report, j *job) string { return j.id() }},
	{"Account", true, 0, func(_ *program, _ *report.Report, j *job) string { return orNone(j.Account) }},
	{"ChargedH", false, 0, func(_ *program, _ *report.Report, j *job) string {
		if !j.Allocated {
			return "unallocated"
		}
		return fmt.Sprintf("%.2f", j.Charged(j.at).Hours())
	}},
	{"Cluster", true, 0, func(_ *program, r *report.Report, _ *job) string { return r.Cluster }},
	{"Elapsed", false, 0, func(_ *program, _ *report.Report, j *job) string { return clock(j.at.Sub(j.StartedAt)) }},
	{"GPUs", false, 0, func(_ *program, _ *report.Report, j *job) string { return gpusText(j.millionths()) }},
	{"MinRuntime", false, 0, func(_ *program, _ *report.Report, j *job) string {
		if j.MinRuntime == nil {
			return "-"
		}
		return clock(*j.MinRuntime)
	}},
	{"Nodes", true, 0, func(_ *program, _ *report.Report, j *job) string { return j.Nodes }},
	{"Partition", true, 0, func(_ *program, _ *report.Report, j *job) string { return j.Partition }},
	{"ProtectedUntil", true, 0, func(p *program, _ *report.Report, j *job) string {
		if j.protected.IsZero() {
			return "-"
		}
		return p.time(j.protected)
	}},
	{"QOS", true, 0, func(_ *program, _ *report.Report, j *job) string { return j.QOS }},
	{"Restarts", false, 0, func(_ *program, _ *report.Report, j *job) string { return strconv.FormatUint(uint64(j.Restart), 10) }},
	{"Start", true, 0, func(p *program, _ *report.Report, j *job) string { return p.time(j.StartedAt) }},
	{"State", true, 0, func(_ *program, _ *report.Report, j *job) string { return j.state() }},
	{"User", true, 0, func(_ *program, _ *report.Report, j *job) string { return j.User }},
	{"Why", true, 0, func(_ *program, _ *report.Report, j *job) string { return whyWords[j.Unallocated()] }},
}

// whyWords are why a run is not charged.
var whyWords = map[usage.Unallocated]string{usage.NoMinRuntime: "no minimum runtime", usage.NoBudget: "no budget left", usage.WhyUnknown: "-"}

// whyJSON are the same for programs.
var whyJSON = map[usage.Unallocated]*string{usage.NoMinRuntime: new("min_runtime"), usage.NoBudget: new("budget"), usage.WhyUnknown: new("unknown")}

var (
	usualJobColumns = []string{"JobID", "User", "Account", "GPUs", "Start", "MinRuntime", "ProtectedUntil", "ChargedH", "State"}
	longJobColumns  = []string{"Cluster", "JobID", "User", "Account", "Partition", "QOS", "Nodes", "GPUs", "Start", "Elapsed", "Restarts", "MinRuntime", "ProtectedUntil", "ChargedH", "State", "Why"}
)

// chooseJobColumns are the columns that --format asks for, else the usual ones or
// with long set all.
func chooseJobColumns(format []string, long bool) ([]jobColumn, error) {
	names := usualJobColumns
	if long {
		names = longJobColumns
	}
	if given := words(format); len(given) > 0 {
		names = given
	}
	var chosen []jobColumn
	for _, name := range names {
		c, err := findJobColumn(name)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, c)
	}
	return chosen, nil
}

// findJobColumn reads a field of --format: a name or its beginning, in any case,
// and maybe %WIDTH.
func findJobColumn(field string) (jobColumn, error) {
	name, width, err := splitWidth(field)
	if err != nil {
		return jobColumn{}, err
	}
	var begun []jobColumn
	var all, beginning []string
	for _, c := range jobColumns {
		all = append(all, c.name)
		switch {
		case strings.EqualFold(c.name, name):
			return c.widened(width), nil
		case strings.HasPrefix(strings.ToLower(c.name), strings.ToLower(name)):
			begun, beginning = append(begun, c), append(beginning, c.name)
		}
	}
	switch {
	case len(begun) == 1:
		return begun[0].widened(width), nil
	case len(begun) > 1:
		return jobColumn{}, usagef("field %q could be %s", name, strings.Join(beginning, ", "))
	}
	if near := nearest.Word(name, all); near != "" {
		return jobColumn{}, usagef("invalid field requested: %q: did you mean %s?", name, near)
	}
	return jobColumn{}, usagef("invalid field requested: %q: with --%s there are %s", name, optJobs, strings.Join(all, ", "))
}

func (c jobColumn) widened(width int) jobColumn {
	if width != 0 {
		c.left, c.width = width < 0, max(width, -width)
	}
	return c
}

// actJobs lists the jobs that run.
func (p *program) actJobs(ctx context.Context, o options) error {
	reports, err := p.read(ctx, o)
	if err != nil {
		return err
	}
	if err := o.show.check(reports); err != nil {
		return err
	}
	jobs := make([][]job, len(reports))
	for i, r := range reports {
		jobs[i] = o.show.jobs(r)
	}
	if o.layout == asJSON {
		return printJobsJSON(p.stdout, reports, jobs)
	}
	var b strings.Builder
	for i, r := range reports {
		if i > 0 {
			b.WriteString("\n")
		}
		if o.named {
			fmt.Fprintf(&b, "CLUSTER: %s\n", r.Cluster)
		}
		p.writeJobs(&b, r, jobs[i], o)
	}
	_, err = io.WriteString(p.stdout, b.String())
	return err
}

// jobs are the running jobs of who was asked for, those that have to yield first
// in front: unallocated ones, then by when their protection ends, at last those that
// keep their GPUs.
func (s selection) jobs(r *report.Report) []job {
	lineage := s.lineage(r)
	var jobs []job
	for _, components := range usage.Jobs(r.Open) {
		whole := usage.ProtectionOf(components, r.UsedUntil)
		for _, run := range components {
			if s.showsOwner(run.Account, run.User, lineage) {
				jobs = append(jobs, newJob(r, run, whole))
			}
		}
	}
	slices.SortStableFunc(jobs, func(x, y job) int {
		return cmp.Or(x.order()-y.order(), x.protected.Compare(y.protected), cmp.Compare(x.JobID, y.JobID))
	})
	return jobs
}

func (j *job) order() int {
	switch {
	case j.whole.GPUs == 0, j.whole.Unknown:
		return 2
	case j.whole.Allocated:
		return 1
	}
	return 0
}

func (p *program) writeJobs(b *strings.Builder, r *report.Report, jobs []job, o options) {
	var lines [][]string
	if !o.noHeader {
		var names []string
		for _, c := range o.jobColumns {
			names = append(names, c.name)
		}
		lines = append(lines, names)
	}
	for i := range jobs {
		fields := make([]string, len(o.jobColumns))
		for n, c := range o.jobColumns {
			fields[n] = c.value(p, r, &jobs[i])
			if o.layout != wide {
				fields[n] = strings.ReplaceAll(fields[n], "|", "/")
			}
		}
		lines = append(lines, fields)
	}
	if o.layout != wide {
		for _, fields := range lines {
			writeLine(b, fields, o.layout)
		}
		return
	}
	writeJobTable(b, o.jobColumns, lines, !o.noHeader)
	if !o.noHeader {
		p.writeJobFooter(b, r, jobs)
	}
}

func writeJobTable(b *strings.Builder, columns []jobColumn, lines [][]string, header bool) {
	widths := make([]int, len(columns))
	for n, c := range columns {
		widths[n] = c.width
		for _, fields := range lines {
			if c.width == 0 {
				widths[n] = max(widths[n], utf8.RuneCountInString(fields[n]))
			}
		}
	}
	for at, fields := range lines {
		out, dashes := make([]string, len(columns)), make([]string, len(columns))
		for n, c := range columns {
			width := widths[n]
			if c.left {
				width = -width
			}
			out[n], dashes[n] = pad(cut(fields[n], widths[n]), width), strings.Repeat("-", widths[n])
		}
		writeLine(b, out, wide)
		if at == 0 && header {
			writeLine(b, dashes, wide)
		}
	}
}

// millionths are the GPUs that a job has, parts of some included.
func (j *job) millionths() int64 { return j.GPUs*fairshare.Millionths + j.Parts }

// gpusText is a number of GPUs, with decimals if there are parts.
func gpusText(millionths int64) string {
	if millionths%fairshare.Millionths == 0 {
		return strconv.FormatInt(millionths/fairshare.Millionths, 10)
	}
	return strconv.FormatFloat(float64(millionths)/fairshare.Millionths, 'f', 2, 64)
}

func (p *program) writeJobFooter(b *strings.Builder, r *report.Report, jobs []job) {
	var allocated, unallocated, protected, byChoice int64
	for i := range jobs {
		switch j := &jobs[i]; {
		case !j.Allocated:
			unallocated += j.millionths()
			if j.Unallocated() == usage.NoMinRuntime {
				byChoice += j.millionths()
			}
		case j.at.Before(j.protected):
			protected += j.millionths()
			fallthrough
		default:
			allocated += j.millionths()
		}
	}
	fmt.Fprintf(b, "\nJobs:     %d, on %s GPUs that are charged (%s of them protected) and %s that are not (%s for want of a minimum runtime)\n",
		len(jobs), gpusText(allocated), gpusText(protected), gpusText(unallocated), gpusText(byChoice))
	if r.Stale {
		fmt.Fprintf(b, "Data:     OLD: recorder %s; jobs are those that ran then\n", p.lastSeen(r))
	}
}

func (p *program) lastSeen(r *report.Report) string {
	if r.SeenAt.IsZero() {
		return "never seen"
	}
	return "last seen " + age(r.At.Sub(r.SeenAt)) + " ago"
}

// The JSON of --jobs.
type (
	jobsOutput struct {
		Meta     jsonMeta      `json:"meta"`
		Clusters []jobsCluster `json:"clusters"`
	}
	jobsCluster struct {
		Cluster   string    `json:"cluster"`
		At        time.Time `json:"at"`
		SeenAt    time.Time `json:"recorder_seen_at"`
		Stale     bool      `json:"stale"`
		UsedUntil time.Time `json:"used_until"`
		Jobs      []jobRow  `json:"jobs"`
	}
	jobRow struct {
		ID             string              `json:"id"`
		JobID          uint32              `json:"job_id"`
		ArrayJobID     *uint32             `json:"array_job_id"`
		ArrayTaskID    *uint32             `json:"array_task_id"`
		HetJobID       *uint32             `json:"het_job_id"`
		Restart        uint32              `json:"restart"`
		User           string              `json:"user"`
		Account        string              `json:"account"`
		Partition      string              `json:"partition"`
		QOS            string              `json:"qos"`
		Nodes          string              `json:"nodes"`
		GPUs           int64               `json:"gpus"`
		Parts          float64             `json:"gpu_parts"` // of GPUs, beside whole ones: shards, MPS
		StartedAt      time.Time           `json:"started_at"`
		SuspendedSince *time.Time          `json:"suspended_since"`
		Allocated      bool                `json:"allocated"`
		Why            *string             `json:"unallocated_because"`
		MinRuntime     *float64            `json:"min_runtime_seconds"`
		ProtectedUntil *time.Time          `json:"protected_until"`
		Protected      bool                `json:"protected"`
		Used           fairshare.GPUMillis `json:"used_gpu_ms"`
		Charged        fairshare.GPUMillis `json:"charged_gpu_ms"`
		ChargedHours   float64             `json:"charged_gpu_hours"`
		State          string              `json:"state"`
	}
)

func printJobsJSON(w io.Writer, reports []*report.Report, jobs [][]job) error {
	out := jobsOutput{Meta: jsonMeta{"gshare", buildVersion()}, Clusters: []jobsCluster{}}
	for i, r := range reports {
		c := jobsCluster{Cluster: r.Cluster, At: r.At, SeenAt: r.SeenAt, Stale: r.Stale, UsedUntil: r.UsedUntil, Jobs: []jobRow{}}
		for n := range jobs[i] {
			c.Jobs = append(c.Jobs, jobs[i][n].row())
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

func (j *job) row() jobRow {
	row := jobRow{
		ID: j.id(), JobID: j.JobID, Restart: j.Restart, User: j.User, Account: j.Account, Partition: j.Partition, QOS: j.QOS,
		Nodes: j.Nodes, GPUs: j.GPUs, Parts: float64(j.Parts) / fairshare.Millionths, StartedAt: j.StartedAt, SuspendedSince: j.SuspendedSince, Allocated: j.Allocated, Why: whyJSON[j.Unallocated()],
		ArrayJobID: valueIf(j.ArrayJobID != 0, j.ArrayJobID), ArrayTaskID: valueIf(j.ArrayJobID != 0 && j.ArrayTaskID != usage.NoTask, j.ArrayTaskID),
		HetJobID:       valueIf(j.HetJobID != 0, j.HetJobID),
		ProtectedUntil: timeIf(j.protected), Protected: j.at.Before(j.protected), Used: j.Charged(j.at), State: j.state(),
	}
	if j.MinRuntime != nil {
		row.MinRuntime = new(j.MinRuntime.Seconds())
	}
	if j.Allocated {
		row.Charged = j.Charged(j.at)
		row.ChargedHours = row.Charged.Hours()
	}
	return row
}
