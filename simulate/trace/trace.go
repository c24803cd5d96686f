// SPDX-License-Identifier: GPL-2.0-or-later

// Package trace reads records of jobs that really ran, as workloads to simulate.
//
// Whatever a format does not say is made up by a seeded generator, and the
// workload's notes say what that was. A row that cannot be a job is a RowError
// with its line and column.
package trace

import (
	"bufio"
	"cmp"
	"fmt"
	"hash/maphash"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"gpubudget/simulate"
)

// Format is how a trace is written.
type Format string

// The formats.
const (
	Sacct   Format = "sacct"   // sacct -P, see SacctFields
	Philly  Format = "philly"  // CSV: timestamp, duration, num_gpus, cluster
	Chronus Format = "chronus" // CSV: job_id, user, num_gpu, submit_time, duration; minutes
	SWF     Format = "swf"     // Standard Workload Format
)

// Formats are all of them.
func Formats() []Format { return []Format{Sacct, Philly, Chronus, SWF} }

// Options are how to read a trace.
type Options struct {
	Seed  uint64 // of what is made up
	Users int    // how many users to draw in each account where the trace has none; 0 is 20
	Zone  *time.Location
	// Checkpoint is how often jobs are taken to save what they have done; 0 is never. It
	// tells how much work a job was that was requeued: of each run that ended so what
	// had been saved, and all of the last.
	Checkpoint time.Duration
}

// RowError is a row that cannot be a job.
type RowError struct {
	Line, Column int // from 1; Column 0 is the whole row
	Field        string
	Kind         string // what is wrong with it, the same for rows that are alike
	Value        string
	Want         string
}

func (p *RowError) Error() string {
	at := fmt.Sprintf("line %d", p.Line)
	if p.Column > 0 {
		at += fmt.Sprintf(", column %d", p.Column)
	}
	if p.Field == "" {
		return fmt.Sprintf("%s: %s: %s", at, p.Kind, p.Want)
	}
	return fmt.Sprintf("%s: %s is %q: %s: %s", at, p.Field, p.Value, p.Kind, p.Want)
}

// Trace is what was read.
type Trace struct {
	*simulate.Workload

	Partitions []string // of the jobs; their Partition is an index in it
	Problems   []*RowError
	Dropped    []Count // rows that are fine, but not jobs that use GPUs
}

// Count is how many rows there were of a kind.
type Count struct {
	Kind string `json:"kind"`
	Rows int    `json:"rows"`
}

// Counts are the problems by kind, the most frequent first.
func Counts(problems []*RowError) []Count {
	n := make(map[string]int)
	for _, p := range problems {
		n[p.Kind]++
	}
	return counted(n)
}

// Misfits are jobs that cannot run by kind, the most frequent first.
func Misfits(misfits []*simulate.MisfitError) []Count {
	n := make(map[string]int)
	for _, m := range misfits {
		n[m.Kind]++
	}
	return counted(n)
}

func counted(n map[string]int) []Count {
	var counts []Count
	for kind, rows := range n {
		counts = append(counts, Count{kind, rows})
	}
	slices.SortFunc(counts, func(x, y Count) int { return cmp.Or(cmp.Compare(y.Rows, x.Rows), cmp.Compare(x.Kind, y.Kind)) })
	return counts
}

// Detect tells the format of a trace by its beginning; "" if it is none that is
// known.
func Detect(head string) Format {
	line, _, _ := strings.Cut(strings.TrimPrefix(head, "\ufeff"), "\n")
	line = strings.TrimSpace(line)
	lower := strings.ToLower(line)
	switch {
	case strings.Contains(lower, "jobid") && strings.Contains(line, "|"):
		return Sacct
	case strings.HasPrefix(lower, "timestamp,"):
		return Philly
	case strings.HasPrefix(lower, "job_id,user,num_gpu,"):
		return Chronus
	case strings.HasPrefix(line, ";"), len(strings.Fields(line)) == swfFields:
		return SWF
	}
	return ""
}

// Read reads a trace. An empty format is found out.
func Read(in io.Reader, format Format, o Options) (*Trace, error) {
	buffered := bufio.NewReaderSize(in, 1<<16)
	if format == "" {
		head, err := buffered.Peek(4096)
		if err != nil && len(head) == 0 {
			return nil, fmt.Errorf("read trace: it is empty: %w", err)
		}
		if format = Detect(string(head)); format == "" {
			return nil, fmt.Errorf("it is not clear which format this is: name it, one of %v", Formats())
		}
	}
	r := newReader(o, string(format))
	var err error
	switch format {
	case Sacct:
		err = r.table(buffered, '|', sacctColumns(r))
	case Philly:
		err = r.table(buffered, ',', phillyColumns(r))
	case Chronus:
		err = r.table(buffered, ',', chronusColumns(r))
	case SWF:
		err = r.swf(buffered)
	default:
		err = fmt.Errorf("unknown format %q: known are %v", format, Formats())
	}
	if err != nil {
		return nil, err
	}
	return r.finish(), nil
}

// reader puts a trace together.
type reader struct {
	Trace

	options    Options
	rng        *rand.Rand
	seen       map[string]int // jobs by their id: the line
	dropped    map[string]int
	owners     map[simulate.Owner]int32
	partitions map[string]int16
	zipf       []float64 // cumulated, of users that are drawn

	byJob map[string][]int32 // jobs by row.job
	held  []row              // runs after which the job may have been started again

	lines map[uint64]bool // hashes of lines in which nothing tells jobs apart
	twins int             // rows that say what another said before

	late, firstLate int   // rows that come after one that was submitted later; the line of the first
	latest          int64 // when the row before was submitted

	drewUsers, drewLimits bool
	times                 []int64 // by job: Unix seconds of its submission
}

func newReader(o Options, name string) *reader {
	if o.Users <= 0 {
		o.Users = 20
	}
	if o.Zone == nil {
		o.Zone = time.UTC
	}
	return &reader{
		Trace: Trace{Workload: &simulate.Workload{Name: name}}, options: o,
		rng: rand.New(rand.NewPCG(o.Seed, 0x7472_6163)), seen: make(map[string]int), dropped: make(map[string]int),
		lines: make(map[uint64]bool), owners: make(map[simulate.Owner]int32), partitions: make(map[string]int16),
	}
}

// row is one job as it is read.
type row struct {
	line          int
	text          string // the line; "" if it isn't one
	id            string
	job           string // the id without that, where a job can come again with another submission
	requeued      bool   // the run ended in a way after which Slurm starts a job again
	account, user string
	partition     string
	submit        int64 // Unix seconds
	run, limit    int64 // seconds; limit 0 is not known
	gpus          int64
	minRuntime    int64
	qos           string
	queued        bool
	drop          string // why the row is left out though there is nothing wrong with it
	problem       *RowError

	column int          // of the field that is being read
	at     [cells]int32 // columns of fields that are looked at together; 0 if not known
}

// cell is a field of a row that can be wrong beside what else is known.
type cell uint8

const (
	noCell cell = iota
	jobCell
	accountCell
	gpusCell
	runCell
	partitionCell
	cells
)

func (r *row) fail(p RowError) {
	if r.problem == nil {
		p.Line = r.line
		r.problem = &p
	}
}

// most of what is believable.
const (
	mostSeconds = 100 * 366 * 86_400
	mostGPUs    = 1 << 20
)

// add takes a row in. Slurm writes the names of accounts in small letters, and so
// they are in a budget.
func (r *reader) add(x *row) {
	x.account = strings.ToLower(x.account)
	r.judge(x)
	switch {
	case x.problem != nil:
		r.Problems = append(r.Problems, x.problem)
		return
	case x.drop != "":
		r.dropped[x.drop]++
		return
	}
	if len(r.Jobs)+len(r.held) > 0 && x.submit < r.latest {
		if r.late++; r.late == 1 {
			r.firstLate = x.line
		}
	}
	r.latest = x.submit
	r.noteTwin(x)
	if x.requeued {
		r.held = append(r.held, *x)
		return
	}
	r.take(x)
}

// noteTwin counts a row that says what another said, where that may be two jobs that
// are alike or one that is there twice: nobody can tell.
func (r *reader) noteTwin(x *row) {
	if x.id != "" || x.text == "" {
		return
	}
	line := maphash.String(hashSeed, x.text)
	if r.lines[line] {
		r.twins++
	}
	r.lines[line] = true
}

var hashSeed = maphash.MakeSeed()

// take makes a job of a row.
func (r *reader) take(x *row) {
	if x.user == "" {
		x.user = r.drawUser(x.account)
	}
	limit := x.limit
	if limit == 0 {
		limit = r.drawLimit(x.run)
	}
	j := simulate.Job{
		Run: x.run, Limit: max(limit, 1), MinRuntime: x.minRuntime, Line: int32(x.line),
		Owner: r.owner(x.account, x.user), GPUs: int32(x.gpus), Partition: r.partition(x.partition), Queued: x.queued,
		GPUsColumn: x.at[gpusCell], AccountColumn: x.at[accountCell],
		PartitionColumn: x.at[partitionCell],
	}
	if strings.Contains(strings.ToLower(x.qos), "debug") {
		j.Debug, j.QOS = true, 100
	}
	if x.job != "" {
		if r.byJob == nil {
			r.byJob = make(map[string][]int32)
		}
		r.byJob[x.job] = append(r.byJob[x.job], int32(len(r.Jobs)))
	}
	r.times = append(r.times, x.submit)
	r.Jobs = append(r.Jobs, j)
}

// join puts the runs of jobs that were requeued together: such a job was submitted
// when its first run was, and is the work that its runs have saved and that of
// the last. A run that no other follows is a job like any other.
func (r *reader) join() {
	joined := 0
	slices.SortStableFunc(r.held, func(x, y row) int { return cmp.Compare(y.submit, x.submit) })
	for i := range r.held {
		x := &r.held[i]
		next := int32(-1)
		for _, job := range r.byJob[x.job] {
			same := r.Owners[r.Jobs[job].Owner].Account == x.account // ids come again after some months
			if same && r.times[job] > x.submit && (next < 0 || r.times[job] < r.times[next]) {
				next = job
			}
		}
		if next < 0 {
			r.take(x)
			continue
		}
		joined++
		r.times[next] = x.submit
		if every := int64(r.options.Checkpoint / time.Second); every > 0 {
			j := &r.Jobs[next]
			j.Run = min(j.Run+x.run/every*every, mostSeconds)
			j.Limit = max(j.Limit, j.Run)
		}
	}
	if joined > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d runs that ended in a requeue were taken together with what came after them", joined))
	}
}

// judge finds what is wrong with a row beyond its single fields.
func (r *reader) judge(x *row) {
	if x.problem != nil {
		return
	}
	switch {
	case x.run < 0 || x.run > mostSeconds:
		x.fail(RowError{Column: int(x.at[runCell]), Kind: "impossible run time", Want: fmt.Sprintf("%d s must be between 0 and a hundred years", x.run)})
	case x.gpus < 0 || x.gpus > mostGPUs:
		x.fail(RowError{Column: int(x.at[gpusCell]), Kind: "impossible number of GPUs", Want: fmt.Sprintf("%d must be between 0 and %d", x.gpus, mostGPUs)})
	case x.account == "":
		x.fail(RowError{Column: int(x.at[accountCell]), Kind: "no account", Want: "somebody must be charged"})
	case x.id != "":
		if x.job != "" {
			x.id = fmt.Sprintf("%s submitted at %d", x.id, x.submit)
		}
		if before, twice := r.seen[x.id]; twice {
			x.fail(RowError{Column: int(x.at[jobCell]), Kind: "the same job twice", Want: fmt.Sprintf("job %s is in line %d already", x.id, before)})
			return
		}
		r.seen[x.id] = x.line
	}
	if x.problem == nil && x.drop == "" && x.gpus == 0 {
		x.drop = "without GPUs"
	}
}

func (r *reader) owner(account, user string) int32 {
	o := simulate.Owner{Account: account, User: user}
	n, known := r.owners[o]
	if !known {
		n = int32(len(r.Owners))
		r.owners[o] = n
		r.Owners = append(r.Owners, o)
	}
	return n
}

func (r *reader) partition(name string) int16 {
	n, known := r.partitions[name]
	if !known {
		n = int16(len(r.Partitions))
		r.partitions[name] = n
		r.Partitions = append(r.Partitions, name)
	}
	return n
}

// drawUser draws one of an account's users, the first of them the most often.
func (r *reader) drawUser(account string) string {
	r.drewUsers = true
	if r.zipf == nil {
		sum := 0.0
		for i := range r.options.Users {
			sum += math.Pow(float64(i+1), -1.2)
			r.zipf = append(r.zipf, sum)
		}
	}
	x := r.rng.Float64() * r.zipf[len(r.zipf)-1]
	i, _ := slices.BinarySearch(r.zipf, x)
	return fmt.Sprintf("%s-u%02d", account, min(i, len(r.zipf)-1)+1)
}

func (r *reader) drawLimit(run int64) int64 {
	r.drewLimits = true
	return simulate.InventLimit(r.rng, run)
}

// noteOrder says how many rows stand after one that was submitted later.
func (r *reader) noteOrder() {
	if r.late == 0 {
		return
	}
	note := fmt.Sprintf("the rows were not in the order of submission and were sorted: %d came right after one that was submitted later", r.late)
	if r.firstLate > 0 {
		note += fmt.Sprintf(", the first in line %d", r.firstLate)
	}
	r.Notes = append(r.Notes, note)
}

// finish puts the jobs in order and counts their times from the first.
func (r *reader) finish() *Trace {
	r.join()
	if len(r.times) > 0 {
		begin := slices.Min(r.times)
		r.Begin = time.Unix(begin, 0).UTC()
		for i := range r.Jobs {
			r.Jobs[i].Submit = r.times[i] - begin
		}
		r.noteOrder()
		r.Sort()
	}
	if r.twins > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d rows are identical to another before them; each is taken for a job of its own", r.twins))
	}
	if r.drewUsers {
		r.Notes = append(r.Notes, fmt.Sprintf("users: drawn, %d in each account by Zipf's law with exponent 1.2 (seed %d)", r.options.Users, r.options.Seed))
	}
	if r.drewLimits {
		r.Notes = append(r.Notes, fmt.Sprintf("time limits: drawn, 1.1 to 4 times the run time, rounded up to what people ask for (seed %d)", r.options.Seed))
	}
	r.Dropped = counted(r.dropped)
	for _, c := range r.Dropped {
		r.Notes = append(r.Notes, fmt.Sprintf("%d rows left out: %s", c.Rows, c.Kind))
	}
	return &r.Trace
}
