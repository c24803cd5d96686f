// SPDX-License-Identifier: GPL-2.0-or-later

// Package queue reads Slurm's queue as its own commands print it: the jobs from
// squeue, and what the priority of those that wait is made of from sprio.
package queue

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubudget/fairshare"
)

// Command runs one of Slurm's commands and returns its standard output.
type Command func(ctx context.Context, name string, args ...string) ([]byte, error)

// Queue is all jobs that Slurm knows of, and the factors of those that wait and
// could start if they had the priority.
type Queue struct {
	Cluster string // as Slurm calls itself; "" if there is no job
	Jobs    []Job
	Factors []Factors
}

// Job is a job, a task of an array, or a component of a het job.
type Job struct {
	ID        string // as squeue shows it: 12, 12_3, 12+1
	JobID     uint32 // Slurm's own; pending tasks of an array share one
	HetJobID  uint32 // 0 if it is no component
	State     string // PENDING, RUNNING, ...
	Reason    string // why it waits
	Account   string // in lower case; "" if it has none
	User      string
	Partition string // several, with commas, while it waits for any of them
	QOS       string
	Nice      int64
	GPUs      int64         // that it has or asks for
	GPUType   string        // that it asks for: "" is any, of several a list, as fairshare.Holding has it
	TimeLimit time.Duration // 0 if it has none
	Eligible  string        // since when it could start, as Slurm prints times; "" if that is not known
}

// Pending tells whether the job waits.
func (j *Job) Pending() bool { return j.State == "PENDING" }

// Factors is a line of sprio: a job that waits in a partition.
type Factors struct {
	JobID uint32
	In    string // the partition
	fairshare.Factors
	TRESNames []string // of the values in TRES, e.g. gres/gpu
}

// jobFields is what squeue is asked for. What it can't show is N/A. The reason
// may hold anything, so it is last.
var jobFields = []string{
	"JobArrayID", "JobID", "HetJobID", "Cluster", "State", "Account", "UserName", "Partition", "QOS", "Nice", "NumNodes", "NumTasks",
	"tres-alloc", "tres-per-job", "tres-per-node", "tres-per-socket", "tres-per-task", "TimeLimit", "EligibleTime", "Reason",
}

// factorFields is what sprio is asked for: job, partition, priority and the
// columns that make it up.
const factorFields = "%i|%r|%Y|%S|%A|%B|%F|%J|%P|%Q|%N|%T"

// Read asks squeue and sprio.
func Read(ctx context.Context, run Command) (*Queue, error) {
	// A width of 0 is as wide as it takes, with | behind each field.
	jobs, err := run(ctx, "squeue", "--all", "--array", "--noheader", "--states=all", "--Format="+strings.Join(jobFields, ":0|,")+":0")
	if err != nil {
		return nil, err
	}
	factors, err := run(ctx, "sprio", "--noheader", "--format="+factorFields)
	if err != nil {
		return nil, err
	}
	q := &Queue{}
	for _, line := range lines(jobs) {
		if err := q.addJob(line); err != nil {
			return nil, fmt.Errorf("squeue printed %q: %w", line, err)
		}
	}
	for _, line := range lines(factors) {
		if err := q.addFactors(line); err != nil {
			return nil, fmt.Errorf("sprio printed %q: %w", line, err)
		}
	}
	return q, nil
}

func lines(text []byte) []string {
	return slices.DeleteFunc(strings.Split(string(text), "\n"), func(line string) bool { return strings.TrimSpace(line) == "" })
}

func (q *Queue) addJob(line string) error {
	f := strings.SplitN(line, "|", len(jobFields))
	if len(f) < len(jobFields) {
		return fmt.Errorf("these are %d fields, not %d", len(f), len(jobFields))
	}
	for i := range f {
		f[i] = known(f[i])
	}
	n := numbers{}
	job := Job{
		ID: f[0], JobID: uint32(n.parse(f[1], 32)), HetJobID: uint32(n.parse(or(f[2], "0"), 32)), //nolint:gosec // parsed as 32 bits
		State: f[4], Account: strings.ToLower(f[5]), User: f[6], Partition: f[7], QOS: f[8], Nice: n.parse(or(f[9], "0"), 64),
		TimeLimit: n.clock(f[17]), Eligible: f[18], Reason: f[19],
	}
	nodes, tasks := n.parse(or(lowest(f[10]), "1"), 64), n.parse(or(lowest(f[11]), "1"), 64)
	asked := least([]request{{f[13], 1}, {f[14], nodes}, {f[15], nodes}, {f[16], tasks}})
	job.GPUs = gpus(f[12], asked)
	if job.GPUs == asked.count() {
		job.GPUType = asked.types()
	}
	q.Jobs, q.Cluster = append(q.Jobs, job), or(q.Cluster, f[3])
	return n.err
}

// known is a field without what Slurm's commands print for nothing.
func known(field string) string {
	switch field = strings.TrimSpace(field); field {
	case "N/A", "(null)", "n/a":
		return ""
	}
	return field
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// lowest is the beginning of a range, as of the nodes a pending job asks for.
func lowest(text string) string {
	first, _, _ := strings.Cut(text, "-")
	return first
}

func (q *Queue) addFactors(line string) error {
	const fields = 12
	f := strings.SplitN(line, "|", fields)
	if len(f) < fields {
		return fmt.Errorf("these are %d fields, not %d", len(f), fields)
	}
	n := numbers{}
	row := Factors{JobID: uint32(n.parse(f[0], 32)), In: strings.TrimSpace(f[1])} //nolint:gosec // parsed as 32 bits
	row.Priority = uint32(n.parse(f[2], 32))                                      //nolint:gosec // likewise
	row.Site, row.Nice = n.parse(f[3], 64), n.parse(f[10], 64)
	for i, column := range []*float64{&row.Age, &row.Assoc, &row.Fairshare, &row.JobSize, &row.Partition, &row.QOS} {
		*column = float64(n.parse(f[4+i], 64))
	}
	for field := range strings.SplitSeq(strings.TrimSpace(f[11]), ",") {
		if name, value, ok := strings.Cut(field, "="); ok {
			row.TRESNames, row.TRES = append(row.TRESNames, name), append(row.TRES, float64(n.parse(value, 64)))
		}
	}
	q.Factors = append(q.Factors, row)
	return n.err
}

// numbers parses whole numbers and keeps the first error.
type numbers struct{ err error }

func (n *numbers) parse(text string, bits int) int64 {
	text = strings.TrimSpace(text)
	if bits == 32 { //nolint:mnd // Slurm's ids and priorities have no sign
		value, err := strconv.ParseUint(text, 10, bits)
		n.note(text, err)
		return int64(value) //nolint:gosec // 32 bits
	}
	value, err := strconv.ParseInt(text, 10, bits)
	n.note(text, err)
	return value
}

func (n *numbers) note(text string, err error) {
	if err != nil && n.err == nil {
		n.err = fmt.Errorf("%q is no number", text)
	}
}

// clock parses a time limit, [D-]HH:MM:SS or MM:SS; 0 of a word that stands for none.
func (n *numbers) clock(text string) time.Duration {
	if text == "" || text[0] < '0' || text[0] > '9' {
		return 0
	}
	days, rest, found := strings.Cut(text, "-")
	if !found {
		days, rest = "0", text
	}
	seconds := int64(0)
	for part := range strings.SplitSeq(rest, ":") {
		seconds = 60*seconds + n.parse(part, 64)
	}
	return time.Duration(24*3600*n.parse(days, 64)+seconds) * time.Second
}

// request is a way to ask for GPUs, and how many times that is meant.
type request struct {
	tres  string
	times int64
}

// typed is GPUs of a type, "" for any.
type typed struct {
	name string
	gpus int64
}

type gpuList []typed

func (l gpuList) count() (sum int64) {
	for _, t := range l {
		sum += t.gpus
	}
	return sum
}

// types are those of the list, with how many of each if there are several.
func (l gpuList) types() string {
	if len(l) == 1 {
		return l[0].name
	}
	items := make([]string, len(l))
	for i, t := range l {
		items[i] = t.name + ":" + strconv.FormatInt(t.gpus, 10)
	}
	return strings.Join(items, ",")
}

// least is the least that requests can be granted with: of each type the most that
// one of them comes to.
func least(requests []request) (all gpuList) {
	for _, r := range requests {
		for _, t := range gpusIn(r.tres) {
			t.gpus *= max(r.times, 1)
			i := slices.IndexFunc(all, func(known typed) bool { return known.name == t.name })
			switch {
			case t.gpus == 0:
			case i < 0:
				all = append(all, t)
			default:
				all[i].gpus = max(all[i].gpus, t.gpus)
			}
		}
	}
	return all
}

// gpus is how many GPUs a job has or asks for: what Slurm has added up itself,
// or where it doesn't account for GPUs the least that the requests come to.
func gpus(added string, asked gpuList) int64 {
	items := gpusIn(added)
	if i := slices.IndexFunc(items, func(t typed) bool { return t.name == "" }); i >= 0 {
		return items[i].gpus // a total stands beside its types
	}
	if len(items) > 0 {
		return items.count()
	}
	return asked.count()
}

// gpusIn is the GPUs of a TRES list: gres/gpu=4 or gres:gpu:4, with or without a
// type.
func gpusIn(tres string) (list gpuList) {
	for item := range strings.SplitSeq(tres, ",") {
		rest, isGPU := strings.CutPrefix(strings.Replace(strings.TrimSpace(item), "gres:", "gres/", 1), "gres/gpu")
		if !isGPU || rest != "" && rest[0] != ':' && rest[0] != '=' {
			continue
		}
		name, count := "", rest
		if at := strings.LastIndexAny(rest, ":="); at >= 0 {
			name, count = rest[:at], rest[at+1:]
		}
		n, err := strconv.ParseInt(count, 10, 64)
		if err != nil { // gres:gpu, or gres:gpu:a100
			n, name = 1, rest
		}
		list = append(list, typed{strings.ToLower(strings.TrimPrefix(name, ":")), n})
	}
	return list
}
