// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/cmd/gpubudget/output"
	"gpubudget/fairshare"
	"gpubudget/usage"
	"gpubudget/usage/metered"
)

func (p *program) usageJobCommand() *cli.Command {
	return &cli.Command{
		Name:      "job",
		Usage:     "show what the GPUs of a job did over time",
		ArgsUsage: "JOB",
		Description: describe(`
A row for each GPU of each run of the job: for how long it was held, how busy it
was, the most memory in use, the energy, and for how long it has been idle at the
end. Over time shows the utilisation from left to right, a block for each hour or
for several; _ is an hour without any work, ? one of which nothing is known.
What is not known is -, never 0.

JOB is 12, or a task of an array (12_3).`,
			"gpubudget usage job 4711",
			"gpubudget usage job 4711_3",
			"gpubudget usage job 4711 --json"),
		Action: p.usageJob,
	}
}

func (p *program) usageJob(c *cli.Context) error {
	if err := wantArguments(c, 1); err != nil {
		return err
	}
	word := c.Args().First()
	if !isJobWord(word) {
		return notAJob(c, word)
	}
	return p.withDatabase(c, func(db *database) error {
		cluster, err := db.cluster(c)
		if err != nil {
			return err
		}
		number, err := db.jobID(c, cluster, word)
		if err != nil {
			return err
		}
		view, err := db.jobView(c, cluster, number)
		if err != nil {
			return err
		}
		if len(view.Runs) == 0 && len(view.Outside) == 0 {
			return fmt.Errorf("nothing is recorded of job %s on GPUs of %s: sacct -j %s shows what Slurm knows of it", word, cluster, word)
		}
		return p.printJob(c, view)
	})
}

// notAJob is what is said of a word that names no job.
func notAJob(c *cli.Context, word string) error {
	return misuse(c, "%q is no job: give a number, or a task of an array as in 12_3", word)
}

// isJobWord tells whether a word looks like a job.
func isJobWord(word string) bool {
	id, _, _ := strings.Cut(word, "_")
	job, err := strconv.ParseUint(id, 10, 32)
	return err == nil && job != 0
}

// jobID is the id of the job that a word names: a number, or a task of an array.
func (db *database) jobID(c *cli.Context, cluster, word string) (uint32, error) {
	if !isJobWord(word) {
		return 0, notAJob(c, word)
	}
	id, task, isTask := strings.Cut(word, "_")
	job, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return 0, notAJob(c, word)
	}
	number := uint32(job)
	if !isTask {
		return number, nil
	}
	return db.task(c, cluster, number, task, word)
}

// task is the job id of a task of an array.
func (db *database) task(c *cli.Context, cluster string, array uint32, task, word string) (uint32, error) {
	n, err := strconv.ParseUint(task, 10, 32)
	if err != nil {
		return 0, misuse(c, "%q is no task of an array: write it as in 12_3", word)
	}
	job, ok, err := db.usage.ArrayTask(c.Context, cluster, array, uint32(n))
	if err == nil && !ok {
		err = fmt.Errorf("nothing is recorded of job %s on GPUs of %s: sacct -j %s shows what Slurm knows of it", word, cluster, word)
	}
	return job, err
}

// jobView is all that is known of a job on its GPUs.
type jobView struct {
	*metered.Reading

	job     uint32
	buckets []metered.Bucket
	devices []metered.Device
}

// meterKept is how far back the meters' records of a job without a run are looked
// for: agents can't write anything older.
const meterKept = 36 * 24 * time.Hour

func (db *database) jobView(c *cli.Context, cluster string, job uint32) (*jobView, error) {
	now, err := db.now(c.Context)
	if err != nil {
		return nil, err
	}
	v := &jobView{job: job}
	err = usage.NewStore(db.pool).Snapshot(c.Context, func(u *usage.Store) error {
		s := metered.NewStore(u.DB())
		runs, err := u.JobRuns(c.Context, cluster, job)
		if err != nil {
			return err
		}
		w := fairshare.Period{From: fairshare.At(now.Add(-meterKept)), Until: fairshare.At(now)}
		if len(runs) > 0 {
			w.From = min(w.From, fairshare.At(runs[0].StartedAt))
		}
		f, err := metered.OpenRunsUntil(c.Context, u, cluster, now)
		if err != nil {
			return err
		}
		f.JobID = job
		if v.Reading, err = s.Read(c.Context, cluster, w, f); err != nil {
			return err
		}
		if v.buckets, err = s.Buckets(c.Context, cluster, w, job); err != nil {
			return err
		}
		v.devices, err = s.Devices(c.Context, cluster)
		return err
	})
	return v, err
}

// device is a GPU's number on its node, as Slurm has it; - if it is not known.
func (v *jobView) device(node, uuid string) string {
	for i := range v.devices {
		if d := &v.devices[i]; d.Node == node && d.UUID == uuid && d.Index != nil {
			return strconv.FormatInt(*d.Index, 10)
		}
	}
	return "-"
}

func (p *program) printJob(c *cli.Context, v *jobView) error {
	if c.Bool(optJSON) {
		return output.JSON(p.stdout, v.json())
	}
	plain := c.Bool(optParsable) || c.Bool(optParsable2)
	table := &output.Table{Columns: []output.Column{
		{Name: "Restart", Right: true}, {Name: "Node"}, {Name: "GPU", Right: true}, {Name: "UUID"}, {Name: "From"}, {Name: "Held", Right: true},
		{Name: "Meter%", Right: true}, {Name: "Busy%", Right: true}, {Name: "MemMax", Right: true}, {Name: "Watts", Right: true}, {Name: "kWh", Right: true},
		{Name: "Idle", Right: true}, {Name: "Over time"},
	}}
	for i := range v.Runs {
		r := &v.Runs[i]
		if len(r.GPUs) == 0 {
			table.Add(strconv.FormatUint(uint64(r.Restart), 10), r.Nodes, "-", "-", p.formatTime(r.Within.From.Time()), "-", "0.00", "-", "-", "-", "-", "-", "")
		}
		for j := range r.GPUs {
			g := &r.GPUs[j]
			percent := percentOr(fairshare.GPUMillis(g.HeldMillis()), fairshare.GPUMillis(r.Within.Millis()))
			table.Add(strconv.FormatUint(uint64(r.Restart), 10), g.Node, v.device(g.Node, g.UUID), g.UUID, p.formatTime(g.Held[0].From.Time()),
				spanOf(g.HeldMillis()), percent, utilisation(&g.Amounts), memory(&g.Amounts), watts(&g.Amounts), energy(&g.Amounts), idle(g), v.plot(r, g))
		}
	}
	if err := p.print(c, table, nil); err != nil {
		return err
	}
	if plain || c.Bool(optNoHeader) {
		return nil
	}
	for i := range v.Runs {
		r := &v.Runs[i]
		p.sayf(c, "\n%s, job %d of %s/%s, %s on %s, %s to %s: %s GPU-hours, %s%% metered%s", v.Cluster, v.job, r.Account, r.User,
			held(r.Holding()), r.Nodes, p.formatTime(r.Within.From.Time()), p.formatTime(r.Within.Until.Time()), hours(r.Used), percentOr(r.Covered, r.Used),
			chargedApart(r))
	}
	var outside int64
	for i := range v.Outside {
		outside += v.Outside[i].Millis()
	}
	if outside >= 1000 {
		p.sayf(c, "Metered outside of its runs, and not charged: %s", spanOf(outside))
	}
	return nil
}

// spanOf is a time as Slurm prints it: D-HH:MM:SS.
func spanOf(ms int64) string {
	s := ms / 1000
	text := fmt.Sprintf("%02d:%02d:%02d", s/3600%24, s/60%60, s%60)
	if days := s / 86400; days > 0 {
		text = fmt.Sprintf("%d-%s", days, text)
	}
	return text
}

func utilisation(a *metered.Amounts) string {
	u, known := a.Utilisation()
	return numberOr(known, 100*u, 1)
}

func memory(a *metered.Amounts) string {
	if a.MemoryMax == nil {
		return "-"
	}
	return strconv.FormatFloat(float64(*a.MemoryMax)/1024, 'f', 1, 64) + "GiB"
}

func watts(a *metered.Amounts) string {
	w, known := a.Watts()
	return numberOr(known, w, 0)
}

func energy(a *metered.Amounts) string {
	if a.Energy == nil {
		return "-"
	}
	return numberOr(true, float64(*a.Energy)/3.6e9, 3)
}

func numberOr(known bool, x float64, decimals int) string {
	if !known {
		return "-"
	}
	return strconv.FormatFloat(x, 'f', decimals, 64)
}

// idle is for how long a GPU has been idle at the end of what is known of it.
func idle(g *metered.GPU) string {
	if g.IdleSince == nil {
		return "-"
	}
	return spanOf(g.Idle())
}

// plotWidth is how many blocks a plot has at most.
const plotWidth = 48

// plot is the utilisation of a GPU in a run over time: a block for each bucket, or
// for as many of them as make it fit.
func (v *jobView) plot(r *metered.Run, g *metered.GPU) string {
	var mine []*metered.Bucket
	first, last := fairshare.Instant(0), fairshare.Instant(0)
	for i := range v.buckets {
		b := &v.buckets[i]
		if b.Node != g.Node || b.GPU != g.UUID || b.Held.Intersect(r.Within).Empty() || b.Restart != r.Restart && b.Source == "prolog" {
			continue
		}
		if len(mine) == 0 || b.From < first {
			first = b.From
		}
		last = max(last, b.Until)
		mine = append(mine, b)
	}
	if len(mine) == 0 {
		return ""
	}
	step := mine[0].Millis()
	for _, b := range mine {
		step = min(step, b.Millis())
	}
	for (int64(last-first)+step-1)/step > plotWidth {
		step *= 2
	}
	blocks := make([]metered.Amounts, (int64(last-first)+step-1)/step)
	for _, b := range mine {
		blocks[int64(b.From-first)/step].Add(&b.Amounts)
	}
	var text strings.Builder
	for i := range blocks {
		text.WriteRune(block(&blocks[i]))
	}
	return text.String()
}

// block is an eighth for each eighth of utilisation.
func block(a *metered.Amounts) rune {
	u, known := a.Utilisation()
	switch {
	case !known:
		return '?'
	case u <= 0:
		return '_'
	}
	return []rune("▁▂▃▄▅▆▇█")[min(7, int(u*8))]
}

// The JSON of usage job. What is not known is null.
type (
	jobOutput struct {
		Cluster string       `json:"cluster"`
		Job     uint32       `json:"job_id"`
		Runs    []runOutput  `json:"runs"`
		Outside []outsideOut `json:"outside"`
	}
	runOutput struct {
		Restart uint32      `json:"restart"`
		Account string      `json:"account"`
		User    string      `json:"user"`
		Nodes   string      `json:"nodes"`
		GPUs    int64       `json:"gpus"`
		Parts   float64     `json:"gpu_parts"` // of GPUs, beside whole ones: shards, MPS
		Type    string      `json:"gpu_type"`
		From    time.Time   `json:"from"`
		Until   time.Time   `json:"until"` // so far, if it runs
		Used    int64       `json:"used_gpu_milliseconds"`
		Charged int64       `json:"charged_gpu_milliseconds"` // what that counts for, and what the policy makes of it
		Covered int64       `json:"metered_gpu_milliseconds"`
		Percent *float64    `json:"metered_percent"`
		Metered []gpuOutput `json:"metered"`
	}
	gpuOutput struct {
		Node      string         `json:"node"`
		UUID      string         `json:"gpu"`
		Index     *int64         `json:"index"`
		Held      int64          `json:"held_milliseconds"`
		IdleSince *time.Time     `json:"idle_since"`
		LastBusy  *time.Time     `json:"last_busy_at"`
		Until     time.Time      `json:"held_until"`
		Buckets   []bucketOutput `json:"buckets"`
		amountsOutput
	}
	amountsOutput struct {
		Utilisation *float64 `json:"utilisation"` // 0 to 1
		BusyKnown   int64    `json:"busy_known_milliseconds"`
		MemoryMax   *int64   `json:"memory_max_mib"`
		Energy      *int64   `json:"energy_millijoules"`
		EnergyKnown int64    `json:"energy_known_milliseconds"`
	}
	bucketOutput struct {
		From  time.Time `json:"held_from"`
		Until time.Time `json:"held_until"`
		amountsOutput
	}
	outsideOut struct {
		Restart uint32    `json:"restart"`
		Node    string    `json:"node"`
		GPU     string    `json:"gpu"`
		From    time.Time `json:"from"`
		Until   time.Time `json:"until"`
	}
)

func (v *jobView) json() jobOutput {
	out := jobOutput{Cluster: v.Cluster, Job: v.job, Runs: []runOutput{}, Outside: []outsideOut{}}
	for i := range v.Runs {
		r := &v.Runs[i]
		row := runOutput{
			Restart: r.Restart, Account: r.Account, User: r.User, Nodes: r.Nodes, GPUs: r.Run.GPUs,
			Parts: float64(r.Parts) / fairshare.Millionths, Type: r.GPUType, Charged: int64(chargedOf(r)),
			From: r.Within.From.Time(), Until: r.Within.Until.Time(), Used: int64(r.Used), Covered: int64(r.Covered),
			Percent: percentJSON(r.Covered, r.Used), Metered: []gpuOutput{},
		}
		for j := range r.GPUs {
			row.Metered = append(row.Metered, v.gpuJSON(r, &r.GPUs[j]))
		}
		out.Runs = append(out.Runs, row)
	}
	for i := range v.Outside {
		o := &v.Outside[i]
		out.Outside = append(out.Outside, outsideOut{o.Restart, o.Node, o.GPU, o.From.Time(), o.Until.Time()})
	}
	return out
}

func (v *jobView) gpuJSON(r *metered.Run, g *metered.GPU) gpuOutput {
	out := gpuOutput{
		Node: g.Node, UUID: g.UUID, Held: g.HeldMillis(), IdleSince: instantJSON(g.IdleSince), LastBusy: instantJSON(g.LastBusy),
		Until: g.Until().Time(), Buckets: []bucketOutput{}, amountsOutput: amountsJSON(&g.Amounts),
	}
	if i := slices.IndexFunc(v.devices, func(d metered.Device) bool { return d.Node == g.Node && d.UUID == g.UUID }); i >= 0 {
		out.Index = v.devices[i].Index
	}
	for i := range v.buckets {
		b := &v.buckets[i]
		if b.Node == g.Node && b.GPU == g.UUID && b.Restart == r.Restart && !b.Held.Intersect(r.Within).Empty() {
			out.Buckets = append(out.Buckets, bucketOutput{b.Held.From.Time(), b.Held.Until.Time(), amountsJSON(&b.Amounts)})
		}
	}
	return out
}

func amountsJSON(a *metered.Amounts) amountsOutput {
	out := amountsOutput{BusyKnown: a.BusyKnown, MemoryMax: a.MemoryMax, Energy: a.Energy, EnergyKnown: a.EnergyKnown}
	if u, known := a.Utilisation(); known {
		out.Utilisation = &u
	}
	return out
}

func instantJSON(i *fairshare.Instant) *time.Time {
	if i == nil {
		return nil
	}
	return new(i.Time())
}

// held is what GPUs a run has, in words.
func held(h fairshare.Holding) string {
	parts := strconv.FormatFloat(float64(h.Parts)/fairshare.Millionths, 'f', -1, 64)
	switch {
	case h.Parts == 0:
		return plural(int(h.GPUs), "GPU")
	case h.Parts >= fairshare.Millionths && h.GPUs == 0:
		return "parts of GPUs that make " + parts
	case h.Parts >= fairshare.Millionths:
		return plural(int(h.GPUs), "GPU") + " and parts that make " + parts
	case h.GPUs == 0:
		return parts + " of a GPU"
	}
	return plural(int(h.GPUs), "GPU") + " and " + parts + " of one"
}

// chargedOf is what a run is charged for what it did in the period, if it is.
func chargedOf(r *metered.Run) fairshare.GPUMillis {
	return r.Charged(r.Within.Until.Time()) - r.Charged(r.Within.From.Time())
}

// chargedApart tells what a run is charged where that is not what it held.
func chargedApart(r *metered.Run) string {
	if c := chargedOf(r); r.Allocated && c != r.Used {
		return ", charged " + hours(c)
	}
	return ""
}
