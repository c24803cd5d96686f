// SPDX-License-Identifier: GPL-2.0-or-later

package trace

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubudget/internal/nearest"
	"gpubudget/simulate"
)

// column is a column of a table with a header: its name, and what it says of a
// job.
type column struct {
	name     string
	of       cell
	optional bool
	ignored  bool // known, and of no use here
	read     func(x *row, value string) *RowError
}

// table reads a table with a header, whose columns may come in any order.
func (r *reader) table(in io.Reader, comma rune, columns []column) error {
	lines, line := newLines(in), 0
	var order []column
	var c cut
	for lines.Scan() {
		line++
		text := lines.Text()
		if text == "" {
			continue
		}
		wrong, malformed := errors.AsType[*csv.ParseError](c.line(text, comma))
		switch {
		case order == nil && malformed:
			return fmt.Errorf("line %d, column %d: the header: %w", line, wrong.Column, wrong.Err)
		case order == nil:
			var err error
			if order, err = arrange(line, &c, columns); err != nil {
				return err
			}
		case malformed:
			r.Problems = append(r.Problems, &RowError{Line: line, Column: wrong.Column, Kind: "malformed row", Want: wrong.Err.Error()})
		default:
			x := tableRow(line, &c, order)
			x.text = text
			r.add(x)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read trace: line %d: %w", line+1, err)
	}
	if order == nil {
		return errors.New("read the header: there is none")
	}
	return nil
}

// tableRow reads the fields of a line that are in an order.
func tableRow(line int, c *cut, order []column) *row {
	x := &row{line: line, minRuntime: simulate.Undeclared}
	n := len(c.fields)
	if n < len(order) || n > len(order)+1 || n > len(order) && c.fields[len(order)] != "" {
		at := c.at[min(n-1, len(order))] // the last there is, or the first too many
		x.fail(RowError{Column: at, Kind: "truncated or overlong row", Want: fmt.Sprintf("it has %d fields, the header %d", n, len(order))})
	}
	for i := 0; i < len(order) && x.problem == nil; i++ {
		if order[i].ignored {
			continue
		}
		x.column = c.at[i]
		x.at[order[i].of] = int32(x.column)
		if p := order[i].read(x, strings.TrimSpace(c.fields[i])); p != nil {
			p.Column = x.column
			p.Field, p.Value = order[i].name, strings.Clone(c.fields[i])
			x.fail(*p)
		}
	}
	return x
}

// arrange finds the columns of a header.
func arrange(line int, header *cut, columns []column) ([]column, error) {
	names := make([]string, len(columns))
	for i := range columns {
		names[i] = columns[i].name
	}
	order := make([]column, 0, len(header.fields))
	found := make([]bool, len(columns))
	for at, name := range header.fields {
		name = strings.TrimSpace(strings.TrimPrefix(name, "\ufeff"))
		if name == "" && at == len(header.fields)-1 {
			break // sacct -p ends rows with a bar
		}
		i := slices.IndexFunc(columns, func(c column) bool { return strings.EqualFold(c.name, name) })
		position := header.at[at]
		if i < 0 {
			return nil, unknownColumn(line, position, name, names)
		}
		if found[i] {
			return nil, fmt.Errorf("line %d, column %d: the column %s is there twice", line, position, name)
		}
		found[i] = true
		order = append(order, columns[i])
	}
	for i := range columns {
		if !found[i] && !columns[i].optional {
			position := header.at[len(header.at)-1]
			return nil, fmt.Errorf("line %d, column %d: the column %s is missing: expected are %s", line, position, columns[i].name, strings.Join(names, ", "))
		}
	}
	return order, nil
}

func unknownColumn(line, position int, name string, names []string) error {
	if near := nearest.Word(name, names); near != "" {
		return fmt.Errorf("line %d, column %d: unknown column %q: did you mean %s?", line, position, name, near)
	}
	return fmt.Errorf("line %d, column %d: unknown column %q: expected are %s", line, position, name, strings.Join(names, ", "))
}

func ignored(name string) column { return column{name: name, optional: true, ignored: true} }

// ---- fields ----

func text(to func(x *row) *string) func(*row, string) *RowError {
	return func(x *row, value string) *RowError {
		*to(x) = strings.Clone(value)
		return nil
	}
}

// number reads a number of a unit that is so many seconds, or of things if unit
// is 1; what is less than a second is left off.
func number(unit float64, what string, to func(x *row) *int64) func(*row, string) *RowError {
	return func(x *row, value string) *RowError {
		n, err := strconv.ParseInt(value, 10, 64)
		f := float64(n)
		if err != nil {
			f, err = strconv.ParseFloat(value, 64)
		}
		f *= unit
		switch {
		case err != nil || math.IsNaN(f):
			return &RowError{Kind: "not a number", Want: "expected " + what}
		case f < 0:
			return &RowError{Kind: "negative", Want: "expected " + what}
		case f > mostSeconds*2:
			return &RowError{Kind: "too large", Want: "expected " + what}
		}
		*to(x) = int64(f)
		return nil
	}
}

// count reads a number of things that nobody can have a part of.
func count(what string, to func(x *row) *int64) func(*row, string) *RowError {
	read := number(1, what, to)
	return func(x *row, value string) *RowError {
		if p := read(x, value); p != nil {
			return p
		}
		if f, err := strconv.ParseFloat(value, 64); err != nil || f != math.Trunc(f) {
			return &RowError{Kind: notWhole, Want: "expected " + what}
		}
		return nil
	}
}

const notWhole = "not a whole number"

func dateTime(layouts []string, zone *time.Location, to func(x *row) *int64) func(*row, string) *RowError {
	return func(x *row, value string) *RowError {
		for _, layout := range layouts {
			t, err := time.ParseInLocation(layout, value, zone)
			if err == nil && t.Year() >= 1970 && t.Year() <= 2200 {
				*to(x) = t.Unix()
				return nil
			}
		}
		return &RowError{Kind: "not a time", Want: "expected " + layouts[0] + ", 1970 to 2200"}
	}
}

// ---- Philly ----

func phillyColumns(r *reader) []column {
	return []column{
		{name: "timestamp", read: dateTime([]string{"2006-01-02 15:04:05"}, r.options.Zone, func(x *row) *int64 { return &x.submit })},
		{name: "duration", of: runCell, read: number(1, "seconds", func(x *row) *int64 { return &x.run })},
		{name: "num_gpus", of: gpusCell, read: count("a whole number of GPUs", func(x *row) *int64 { return &x.gpus })},
		{name: "cluster", of: accountCell, read: text(func(x *row) *string { return &x.account })},
		{name: "user", optional: true, read: text(func(x *row) *string { return &x.user })},
		ignored("gpu_time"),
	}
}

// ---- Chronus ----

func chronusColumns(r *reader) []column {
	r.Notes = append(r.Notes, "times: taken for minutes; the virtual cluster, in the column user, is taken for the account")
	return []column{
		{name: "job_id", of: jobCell, read: text(func(x *row) *string { return &x.id })},
		{name: "user", of: accountCell, read: text(func(x *row) *string { return &x.account })},
		{name: "num_gpu", of: gpusCell, read: count("a whole number of GPUs", func(x *row) *int64 { return &x.gpus })},
		{name: "submit_time", read: number(60, "minutes", func(x *row) *int64 { return &x.submit })},
		{name: "duration", of: runCell, read: number(60, "minutes", func(x *row) *int64 { return &x.run })},
		ignored("iterations"), ignored("model_name"), ignored("interval"), ignored("expect_time_list"),
		ignored("expect_value_list"), ignored("best_effort"), ignored("job_type"),
	}
}

// ---- sacct ----

// SacctCommand writes what Sacct reads.
const SacctCommand = "sacct -aPXD -S now-30days -E now -o " + SacctFields

// SacctFields are the fields it reads. Timelimit, QOS and Partition may be left
// out, and others may be there.
const SacctFields = "JobID,Account,User,Partition,QOS,Submit,Start,End,ElapsedRaw,Timelimit,AllocTRES,ReqTRES,State"

func sacctColumns(r *reader) []column {
	none := func(*row, string) *RowError { return nil }
	columns := []column{
		{name: "JobID", of: jobCell, read: sacctID},
		{name: "Account", of: accountCell, read: text(func(x *row) *string { return &x.account })},
		{name: "User", read: text(func(x *row) *string { return &x.user })},
		{name: "Partition", of: partitionCell, optional: true, read: text(func(x *row) *string { return &x.partition })},
		{name: "QOS", optional: true, read: text(func(x *row) *string { return &x.qos })},
		{name: "Submit", read: dateTime([]string{"2006-01-02T15:04:05"}, r.options.Zone, func(x *row) *int64 { return &x.submit })},
		{name: "ElapsedRaw", of: runCell, read: number(1, "seconds", func(x *row) *int64 { return &x.run })},
		{name: "Timelimit", optional: true, read: timeLimit},
		{name: "AllocTRES", read: tres},
		{name: "ReqTRES", optional: true, read: tres},
		{name: "State", optional: true, read: sacctState},
		{name: "Start", optional: true, read: none},
		{name: "End", optional: true, read: none},
	}
	for _, name := range []string{"JobIDRaw", "JobName", "Elapsed", "NNodes", "NCPUS", "AllocCPUS", "ReqCPUS", "ReqMem", "NodeList", "ExitCode", "Cluster", "Group", "UID", "Eligible", "Restarts", "Priority", "Reason", "AllocNodes", "TimelimitRaw", "QOSRAW"} {
		columns = append(columns, ignored(name))
	}
	return columns
}

// sacctID leaves steps out: their time is the job's. With -D the runs of a job
// that was requeued have one id and were submitted at different times; so have
// jobs that got the id again after Slurm had run through all of them.
func sacctID(x *row, value string) *RowError {
	if value == "" {
		return &RowError{Kind: "no job", Want: "expected a job id"}
	}
	x.id = strings.Clone(value)
	x.job = x.id
	if strings.Contains(value, ".") {
		x.drop = "steps"
	}
	return nil
}

func sacctState(x *row, value string) *RowError {
	if x.drop == "" && (strings.HasPrefix(value, "PENDING") || strings.HasPrefix(value, "CANCELLED") && x.run == 0) {
		x.drop = "never started"
	}
	x.requeued = strings.HasPrefix(value, "REQUEUED") || strings.HasPrefix(value, "PREEMPTED") || strings.HasPrefix(value, "NODE_FAIL")
	return nil
}

// tres reads the GPUs of a list as in "billing=8,cpu=8,gres/gpu=2,gres/gpu:a100=2".
func tres(x *row, value string) *RowError {
	var typed int64
	for part := range strings.SplitSeq(value, ",") {
		name, amount, _ := strings.Cut(part, "=")
		if name != "gres/gpu" && !strings.HasPrefix(name, "gres/gpu:") {
			continue
		}
		n, err := strconv.ParseInt(amount, 10, 64)
		switch {
		case err != nil || n < 0:
			return &RowError{Kind: "not a list of TRES", Want: "expected as in cpu=8,gres/gpu=2"}
		case n > mostGPUs:
			return &RowError{Kind: "too large", Want: fmt.Sprintf("expected up to %d GPUs", mostGPUs)}
		case name == "gres/gpu":
			x.asksFor(n)
		default:
			typed += n
		}
	}
	x.asksFor(typed)
	return nil
}

// asksFor is one of the places that say how many GPUs a job has.
func (r *row) asksFor(gpus int64) {
	if gpus > r.gpus {
		r.gpus, r.at[gpusCell] = gpus, int32(r.column)
	}
}

// timeLimit reads [days-]hours:minutes:seconds and shorter forms.
func timeLimit(x *row, value string) *RowError {
	switch strings.ToUpper(value) {
	case "", "PARTITION_LIMIT", "INVALID":
		return nil
	case "UNLIMITED":
		x.limit = 365 * 86_400
		return nil
	}
	wrong := &RowError{Kind: "not a time limit", Want: "expected [days-]hours:minutes:seconds, UNLIMITED or Partition_Limit"}
	days, clock, hasDays := strings.Cut(value, "-")
	if !hasDays {
		days, clock = "0", value
	}
	d, err := strconv.ParseInt(days, 10, 32)
	seconds, ok := clockSeconds(clock, hasDays)
	if err != nil || d < 0 || !ok {
		return wrong
	}
	if x.limit = d*86_400 + seconds; x.limit > mostSeconds {
		return &RowError{Kind: "too large", Want: "expected at most a hundred years"}
	}
	return nil
}

// clockSeconds reads hours:minutes:seconds, of which the last may be missing if
// there are days before them, and the first if not.
func clockSeconds(clock string, hasDays bool) (seconds int64, ok bool) {
	parts := strings.Split(clock, ":")
	if len(parts) > 3 {
		return 0, false
	}
	for _, part := range parts {
		n, err := strconv.ParseInt(part, 10, 32)
		if err != nil || n < 0 {
			return 0, false
		}
		seconds = seconds*60 + n
	}
	for range 3 - len(parts) {
		if hasDays || len(parts) == 1 {
			seconds *= 60
		}
	}
	if !hasDays && len(parts) == 1 {
		seconds /= 60 // minutes
	}
	return seconds, true
}
