// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"slices"
	"time"
)

// slurm is a model of slurmctld's job list: it keeps records as slurmctld does,
// shows them as the shim does, and remembers what truly happened.
type slurm struct {
	now  int64
	next uint32
	jobs []*simJob // in slurmctld's order
	runs []*simRun // the truth
}

// simJob is a record of slurmctld's list.
type simJob struct {
	id            uint32
	account, user string
	assoc         uint32
	gpus          uint64
	hardware      hardware
	state         JobState
	submit        int64
	restart       uint32
	asked, limit  int64 // minimum runtime (-1: nothing said) and time limit, in seconds
	start, end    int64
	resize        int64
	suspendAt     int64 // last suspend or resume
	ran           int64 // seconds run up to suspendAt; Slurm's pre_sus_time
	lastEnd       int64 // when the last run ended, while it pends again
	requeuing     bool  // the run has ended, its nodes are being cleaned up
	run           *simRun
	fresh         bool // something happened that no saved pass has seen
}

// simRun is a run as it truly was.
type simRun struct {
	job           uint32
	account, user string
	gpus          uint64
	hardware      hardware
	start, end    int64 // end is 0 while it lasts
	asked         int64 // as in simJob
	suspended     int64
	suspendedAt   int64 // 0 if it isn't
}

// busy is for how many seconds the run has run up to now.
func (r *simRun) busy(now int64) int64 {
	end, suspended := r.end, r.suspended
	if end == 0 {
		end = now
		if r.suspendedAt != 0 {
			suspended += now - r.suspendedAt
		}
	}
	return end - r.start - suspended
}

// millis is the GPU time that the run has held up to now.
func (r *simRun) millis(now int64) int64 {
	held := times(r.hardware.held(r.gpus), r.busy(now)*1000, 1)
	return held.Num().Int64() / held.Denom().Int64()
}

func newSlurm(at time.Time) *slurm { return &slurm{now: at.Unix(), next: 100} }

func (s *slurm) submit(account, user string, assoc uint32, gpus uint64) *simJob {
	j := &simJob{id: s.next, account: account, user: user, assoc: assoc, gpus: gpus, state: Pending, submit: s.now, asked: -1, fresh: true}
	s.next++
	s.jobs = append(s.jobs, j)
	return j
}

func (s *slurm) start(j *simJob) {
	*j = simJob{
		id: j.id, account: j.account, user: j.user, assoc: j.assoc, gpus: j.gpus, hardware: j.hardware, submit: j.submit,
		asked: j.asked, limit: j.limit, restart: j.restart, resize: j.resize, state: Running, start: s.now, end: s.now + 3600, fresh: true,
	}
	s.begin(j)
}

func (s *slurm) begin(j *simJob) {
	if j.gpus == 0 {
		j.run = nil
		return
	}
	j.run = &simRun{job: j.id, account: j.account, user: j.user, gpus: j.gpus, hardware: j.hardware, start: s.now, asked: j.asked}
	s.runs = append(s.runs, j.run)
}

// finish ends the run. Slurm ends a suspended job when it was suspended.
func (s *slurm) finish(j *simJob) {
	at := s.now
	if j.state == Suspended {
		at = j.suspendAt
	}
	j.end, j.fresh = at, true
	if j.run != nil {
		j.run.end = at
	}
}

func (s *slurm) complete(j *simJob, state JobState) {
	s.finish(j)
	j.state = state
}

// requeue ends the run; until cleaned the record still shows it.
func (s *slurm) requeue(j *simJob) {
	s.finish(j)
	j.state, j.requeuing, j.lastEnd = Pending, true, j.end
	j.suspendAt, j.ran = 0, 0
}

// clean makes a requeued job pend again.
func (s *slurm) clean(j *simJob) {
	j.requeuing, j.start, j.end, j.run = false, 0, 0, nil
	j.restart++
	j.submit = s.now
}

func (s *slurm) suspend(j *simJob) {
	since := j.start
	if j.suspendAt != 0 {
		since = j.suspendAt
	}
	j.ran += s.now - since
	j.suspendAt, j.state, j.fresh = s.now, Suspended, true
	if j.run != nil {
		j.run.suspendedAt = s.now
	}
}

func (s *slurm) resume(j *simJob) {
	if j.run != nil {
		j.run.suspended += s.now - j.run.suspendedAt
		j.run.suspendedAt = 0
	}
	j.suspendAt, j.state, j.fresh = s.now, Running, true
}

func (s *slurm) setSize(j *simJob, gpus uint64) {
	if j.run != nil {
		j.run.end = s.now
	}
	j.resize, j.gpus, j.fresh = s.now, gpus, true
	s.begin(j)
}

// show is a record as the shim shows it; see flatten.c.
func (s *slurm) show(j *simJob) Job {
	out := Job{
		JobID: j.id, ArrayTaskID: NoTask, ArrayTasks: 1, DemandTasks: 1, Restart: j.restart, AssocID: j.assoc,
		State: j.state, Account: NewCString(j.account), User: NewCString(j.user),
		Submit: j.submit, Begin: j.submit, MinRuntime: j.asked, TimeLimit: j.limit,
	}
	j.hardware.show(&out, j.gpus)
	if j.state == Pending && !j.requeuing {
		out.Flags |= Demands
		out.End = j.lastEnd
		return out
	}
	if j.requeuing {
		out.Flags |= Requeued | Completing
	}
	out.Partition, out.Nodes = NewCString("gpu"), NewCString("n1")
	out.Start, out.End, out.Resize = j.start, j.end, j.resize
	if j.suspendAt != 0 {
		out.Suspend = j.suspendAt
		out.Suspended = j.suspendAt - j.start - j.ran
		if j.state == Suspended {
			out.Suspended += s.now - j.suspendAt
		}
	}
	return out
}

func (s *slurm) list() []Job {
	out := make([]Job, len(s.jobs))
	for i, j := range s.jobs {
		out[i] = s.show(j)
	}
	return out
}

// seen notes that a pass has seen all records and that it is on disk.
func (s *slurm) seen() {
	for _, j := range s.jobs {
		j.fresh = false
	}
}

// purge drops records of jobs that ended long ago.
func (s *slurm) purge(minJobAge int64) {
	s.jobs = slices.DeleteFunc(s.jobs, func(j *simJob) bool {
		return j.state >= Complete && !j.fresh && s.now-j.end >= minJobAge
	})
}

// total adds up an amount of all runs, by what key says of them.
func (s *slurm) total(key func(*simRun) string, amount func(*simRun) int64) map[string]int64 {
	sums := make(map[string]int64)
	for _, r := range s.runs {
		sums[key(r)] += amount(r)
	}
	return sums
}

// held is the GPU time that a run has held up to now.
func (s *slurm) held(r *simRun) int64 { return r.millis(s.now) }
