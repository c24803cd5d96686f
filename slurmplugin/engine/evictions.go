// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"slices"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// evictionLast is the day in which R7 counts a job's preemptions.
const evictionLast = 24 * 60 * 60 * 1000

// evictions are the runs of jobs that had to give way in the last day: what R7
// counts. A restart of slurmctld doesn't make anybody fair game again, so they are
// in the snapshot's file, in the spool and in the database, and a run is counted
// once however many of these know it.
type evictions map[uint32][]eviction

// eviction is one of them. Its fields are exported for the snapshot's file.
type eviction struct {
	Start int64 // of the run, in Unix seconds
	At    fairshare.Instant
}

// note notes that a run of a job has to give way.
func (e evictions) note(job uint32, v eviction) {
	if !slices.ContainsFunc(e[job], func(known eviction) bool { return known.Start == v.Start }) {
		e[job] = append(e[job], v)
	}
}

// count is how often a job was evicted in the last day.
func (e evictions) count(job uint32, now fairshare.Instant) int {
	list := e[job]
	if len(list) == 0 {
		return 0
	}
	list = slices.DeleteFunc(list, func(v eviction) bool { return now-v.At >= evictionLast })
	if len(list) == 0 {
		delete(e, job)
		return 0
	}
	e[job] = list
	return len(list)
}

// lately is a copy of what is left of them.
func (e evictions) lately(now fairshare.Instant) evictions {
	left := make(evictions, len(e))
	for job := range e {
		if e.count(job, now) > 0 {
			left[job] = slices.Clone(e[job])
		}
	}
	return left
}

// evictedLately are the evictions that the engine knows.
func (e *Engine) evictedLately(now fairshare.Instant) evictions {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.contract.evictions.lately(now)
}

// remember counts what an earlier engine has left in the snapshot's file.
func (e *Engine) remember(known evictions) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for job, list := range known {
		for _, v := range list {
			e.contract.evictions.note(job, v)
		}
	}
}

// rememberSpooled counts what an earlier engine has left in the spool. Who left a
// node that was drained gave way to nobody. The caller holds Engine.mu.
func (e *Engine) rememberSpooled(recs []spoolRecord) {
	for _, rec := range recs {
		if p := rec.Preemption; p != nil && p.Request != nil {
			e.contract.evictions.note(p.Victim.JobID, eviction{p.StartedAt.Time().Unix(), p.At})
		}
	}
}

// rememberRecorded counts what the database has.
func (e *Engine) rememberRecorded(recorded []usage.Preemption) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range recorded {
		if p := &recorded[i]; p.For != nil {
			e.contract.evictions.note(p.Job.JobID, eviction{p.StartedAt.Unix(), fairshare.At(p.At)})
		}
	}
}
