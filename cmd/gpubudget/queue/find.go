// SPDX-License-Identifier: GPL-2.0-or-later

package queue

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// jobName is how Slurm's commands name a job, a task or a component.
var jobName = regexp.MustCompile(`^[0-9]+([_+][0-9]+)?$`)

// IsJob tells whether a word names a job: 12, 12_3 or 12+1.
func IsJob(word string) bool { return jobName.MatchString(word) }

// Find is what a name means: that job, or all tasks of an array, or all
// components of a het job, in the order of squeue but those that wait first, then
// those that run. Components are in their own order.
func (q *Queue) Find(name string) []*Job {
	var found []*Job
	id, err := strconv.ParseUint(name, 10, 32)
	for i := range q.Jobs {
		j := &q.Jobs[i]
		base, _, _ := strings.Cut(j.ID, "_")
		if j.ID == name || err == nil && (base == name || uint64(j.JobID) == id || uint64(j.HetJobID) == id) {
			found = append(found, j)
		}
	}
	slices.SortStableFunc(found, func(x, y *Job) int { return cmp.Or(turn(x)-turn(y), component(x)-component(y)) })
	return found
}

// component is which component of a het job it is, 0 for other jobs.
func component(j *Job) int {
	if j.HetJobID == 0 {
		return 0
	}
	return int(j.JobID) - int(j.HetJobID)
}

// turn is which jobs are of most interest.
func turn(j *Job) int {
	switch j.State {
	case "PENDING":
		return 0
	case "RUNNING", "SUSPENDED", "CONFIGURING", "COMPLETING":
		return 1
	}
	return 2
}

// FactorsOf is what the priority of a job is made of, in each of the partitions
// it names; nothing if it couldn't start whatever its priority.
func (q *Queue) FactorsOf(j *Job) []Factors {
	if !j.Pending() {
		return nil
	}
	var rows []Factors
	for _, f := range q.Factors {
		if f.JobID == j.JobID {
			rows = append(rows, f)
		}
	}
	return rows
}
