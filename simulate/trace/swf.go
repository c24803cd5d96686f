// SPDX-License-Identifier: GPL-2.0-or-later

package trace

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"

	"gpubudget/simulate"
)

// swfFields is how many fields a job has in the Standard Workload Format.
const swfFields = 18

// Fields of the format that are used, counted from 0.
const (
	swfJob       = 0
	swfSubmit    = 1
	swfRun       = 3
	swfAllocated = 4
	swfRequested = 7
	swfLimit     = 8
	swfUser      = 11
	swfGroup     = 12
	swfPartition = 15
)

var swfNames = []string{"job number", "submit time", "wait time", "run time", "allocated processors", "CPU time", "memory", "requested processors",
	"requested time", "requested memory", "status", "user", "group", "executable", "queue", "partition", "preceding job", "think time"}

// swf reads the Standard Workload Format. Its processors are taken for GPUs and
// its groups for accounts; -1 means that a field isn't known.
func (r *reader) swf(in io.Reader) error {
	r.Notes = append(r.Notes, "processors are taken for GPUs, groups for accounts")
	lines := newLines(in)
	start := int64(0)
	line := 1
	for ; lines.Scan(); line++ {
		text := lines.Text()
		s := strings.TrimSpace(text)
		if comment, ok := strings.CutPrefix(s, ";"); ok {
			if name, value, ok := strings.Cut(comment, ":"); ok && strings.TrimSpace(name) == "UnixStartTime" {
				start, _ = strconv.ParseInt(strings.TrimSpace(value), 10, 64) // a remark; 0 will do
			}
			continue
		}
		if s == "" {
			continue
		}
		x := r.swfRow(line, text)
		x.submit += max(start, 0)
		r.add(x)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read trace: line %d: %w", line, err)
	}
	return nil
}

// places are the columns of a line's fields.
func places(line string) []int {
	var at []int
	before := true // a space, or the beginning
	for i, letter := range line {
		space := unicode.IsSpace(letter)
		if before && !space {
			at = append(at, i+1)
		}
		before = space
	}
	return at
}

func (r *reader) swfRow(line int, s string) *row {
	x := &row{line: line, minRuntime: simulate.Undeclared}
	fields, at := strings.Fields(s), places(s)
	if len(fields) != swfFields {
		x.fail(RowError{Column: at[min(len(at)-1, swfFields)], Kind: "truncated or overlong row", Want: fmt.Sprintf("it has %d fields, the format %d", len(fields), swfFields)})
		return x
	}
	var v [swfFields]int64
	for _, i := range []int{swfJob, swfSubmit, swfRun, swfAllocated, swfRequested, swfLimit, swfUser, swfGroup, swfPartition} {
		value, wrong := swfNumber(i, fields[i])
		if wrong != "" {
			x.fail(RowError{Column: at[i], Field: swfNames[i], Value: fields[i], Kind: wrong, Want: fmt.Sprintf("expected a number from -1, which is unknown, to %d", int64(mostSeconds*2))})
			return x
		}
		v[i] = value
	}
	x.id = fields[swfJob]
	x.at[jobCell], x.at[runCell], x.at[gpusCell], x.at[accountCell] = int32(at[swfJob]), int32(at[swfRun]), int32(at[swfAllocated]), int32(at[swfGroup])
	x.submit, x.run, x.gpus = max(v[swfSubmit], 0), v[swfRun], v[swfAllocated]
	if v[swfRequested] > 0 {
		x.gpus, x.at[gpusCell] = v[swfRequested], int32(at[swfRequested])
	}
	if x.run < 0 || x.gpus <= 0 {
		x.run, x.gpus = max(x.run, 0), max(x.gpus, 0)
		x.drop = "never started"
	}
	x.limit = max(v[swfLimit], 0)
	x.account = "group" + fields[swfGroup]
	if v[swfUser] >= 0 {
		x.user = "user" + fields[swfUser]
	}
	if v[swfPartition] >= 0 {
		x.partition, x.at[partitionCell] = fields[swfPartition], int32(at[swfPartition])
	}
	return x
}

// swfNumber reads a field and tells what is wrong with it, "" if nothing is.
func swfNumber(field int, text string) (value int64, wrong string) {
	f, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || math.IsNaN(f):
		return 0, "not a number"
	case f < -1:
		return 0, "negative"
	case f > mostSeconds*2:
		return 0, "too large"
	case (field == swfAllocated || field == swfRequested) && f != math.Trunc(f):
		return 0, notWhole
	}
	return int64(f), ""
}
