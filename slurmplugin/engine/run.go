// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"time"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// run is one stretch of a job on its GPUs, as the tracker follows it. What is
// in usage.Run is what the database will say.
type run struct {
	usage.Run

	// origin is the start by Slurm's record, by which the run is recognised.
	// StartedAt is later where a run goes on that was given up for lost.
	origin int64
	// before is how many seconds the job was suspended in earlier runs that
	// Slurm counts in, as those before a resize.
	before int64

	configuring bool              // when last seen, its nodes were being made ready
	decided     bool              // Allocated is known
	terms       askedTerms        // what it is decided by
	dirty       bool              // the spool doesn't have its latest state
	queued      bool              // and is to have it; see tracker.changed
	counted     fairshare.Instant // its demand is counted up to here
	weighed     uint64            // tracker.weighing by which it has its Rates

	place place
}

// seconds is Slurm's time s as a time.
func seconds(s int64) time.Time { return time.Unix(s, 0).UTC() }

// runOf is the start of the run that the job's record shows, 0 if none. A
// resize starts a new one.
func runOf(j *Job) int64 {
	if j.Start <= 0 || j.State == Pending && !j.Has(Requeued) {
		return 0
	}
	return max(j.Start, j.Resize)
}

// hasEnded tells whether the run that the record shows is over.
func hasEnded(j *Job, now int64) bool {
	return j.State >= Complete || j.Has(Requeued) || j.Has(Completing) && j.End > 0 && j.End <= now
}

// newRun is the run that j shows, as it was when it started at start.
func newRun(cluster string, j *Job, o *owner, start int64) *run {
	return &run{
		Run: usage.Run{
			Cluster: cluster, JobID: j.JobID, Restart: j.Restart,
			ArrayJobID: j.ArrayJobID, ArrayTaskID: j.ArrayTaskID, HetJobID: j.HetJobID,
			Account: o.account, User: o.user,
			Partition: j.Partition.String(), QOS: j.QOS.String(), Nodes: j.Nodes.String(),
			GPUs: j.gpus(), Parts: j.parts(), GPUType: j.GPUType.String(),
			StartedAt: seconds(start),
		},
		origin: start,
		dirty:  true,
		terms:  askedTerms{asked: j.asked(), limit: j.limit(), served: servedBefore(j, start)},
	}
}

// askedTerms are the terms on which a run begins, as far as the job says them.
type askedTerms struct {
	asked  time.Duration // minimum runtime; fairshare.NotAsked
	limit  time.Duration // time limit; 0 if none
	served time.Duration // for how long the job ran before the run began, by a resize
}

// servedBefore is for how long the job had run, as Slurm counts, when a run of
// it began. Of suspensions all that Slurm tells of were before.
func servedBefore(j *Job, start int64) time.Duration {
	if j.Start <= 0 {
		return 0
	}
	return bounded(max(0, start-j.Start-max(0, j.Suspended)))
}

// promise is for how long such a run is left alone by the cluster's terms, from
// its beginning on.
func (a askedTerms) promise(by fairshare.Terms, allocated bool) time.Duration {
	whole := by.MinRuntime(a.asked, a.limit)
	if !allocated {
		return whole // which tells why it isn't
	}
	return max(0, whole-a.served)
}

// protectedUntil is when the run's minimum runtime will have passed, as
// usage.Run.ProtectedUntil has it; of a run that isn't protected, its start. It
// must be decided.
func (r *run) protectedUntil(now fairshare.Instant) fairshare.Instant {
	if !r.Allocated || r.MinRuntime == nil || *r.MinRuntime <= 0 {
		return fairshare.At(r.StartedAt)
	}
	if r.Suspended == 0 && r.SuspendedSince == nil {
		return fairshare.At(r.StartedAt.Add(*r.MinRuntime)) // most, and there are many
	}
	until, _ := r.ProtectedUntil(now.Time())
	return fairshare.At(until)
}

// rateAt is RateAt, which takes a copy of the run to answer.
func (r *run) rateAt(now fairshare.Instant) int64 {
	switch len(r.Rates) {
	case 0:
		return fairshare.Holding{Type: r.GPUType, GPUs: r.GPUs, Parts: r.Parts}.Millionths()
	case 1:
		return r.Rates[0].Millionths
	}
	return r.RateAt(now)
}

// byRequest tells whether the run is unallocated by what its job asked for, as
// far as anybody knows.
func (r *run) byRequest() bool {
	if !r.decided || r.MinRuntime == nil {
		return r.terms.asked == 0
	}
	return !r.Allocated && *r.MinRuntime == 0
}

// see takes over what j shows of the run while it lasts.
func (r *run) see(j *Job, now fairshare.Instant) {
	r.seen(now)
	r.configuring = j.Has(Configuring)
	suspended := j.Suspended
	var since *time.Time
	if j.State == Suspended && j.Suspend > 0 {
		suspended -= max(0, unix(now)-j.Suspend)
		t := seconds(max(j.Suspend, r.StartedAt.Unix()))
		since = &t
	}
	r.suspend(suspended-r.before, since)
}

// suspend notes how long the run was suspended for until now, and since when it
// is. Slurm forgets the former when it requeues a job: it never falls.
func (r *run) suspend(total int64, since *time.Time) {
	if d := time.Duration(total) * time.Second; d > r.Suspended {
		r.Suspended, r.dirty = d, true
	}
	if (since == nil) != (r.SuspendedSince == nil) || since != nil && !since.Equal(*r.SuspendedSince) {
		r.SuspendedSince, r.dirty = since, true
	}
}

// end ends the run, no earlier than it started.
func (r *run) end(at int64, state string, now fairshare.Instant) {
	t := seconds(max(at, r.StartedAt.Unix()))
	if r.SuspendedSince != nil && r.SuspendedSince.After(t) {
		r.SuspendedSince = nil
	}
	r.EndedAt, r.EndState, r.dirty = &t, state, true
	r.seen(now)
}

// seen notes when the run was seen last. Of two sightings the database believes
// the later one, so time goes on here should the clock have been set back.
func (r *run) seen(now fairshare.Instant) {
	t := now.Time()
	if t.Before(r.SeenAt) {
		t = r.SeenAt.Add(time.Millisecond)
	}
	r.SeenAt = t
}

// unix is i in Slurm's whole seconds.
func unix(i fairshare.Instant) int64 { return int64(i) / 1000 }
