// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// missedPasses is how many complete passes in a row must miss a job before it
// counts as gone: slurmctld's list may be incomplete while it starts.
const missedPasses = 3

// mostGPUs is more than any cluster has, and keeps what is not believable from
// overflowing.
const mostGPUs = 1 << 31

// tracker derives runs and demand from what is seen of jobs, pass after pass.
// It knows nothing else, so that whatever was missed (or lost in a crash)
// is derived anew from Slurm's own list, under the same keys.
//
// It is not safe for concurrent use.
type tracker struct {
	cluster string
	owners  *owners
	demand  *demand
	clock   steadyClock

	jobs  map[uint32]*job
	order []*job // as the last pass met them
	next  []*job // as this pass meets them
	at    int    // where in order this pass is

	now, previous fairshare.Instant // of this pass, and of the one before; 0 if none
	pass          uint32            // their number, counted round
	seen          int               // jobs seen in this pass
	passing       bool              // between begin and end
	broken        bool              // this pass did not see all jobs

	known     map[runKey]bool // all runs so far; nil once runs were adopted
	open      []*run          // runs that have not ended, and some that have
	changed   []*run          // runs that are dirty
	undecided []*run          // runs of which nobody knows yet whether they are allocated
	capped    cappedJobs
	asking    []usage.Asked // of this pass: jobs that wait and ask for a minimum runtime
	tail      []tailCharge
	// held are ended runs that the snapshot holds, though nobody has marked them:
	// another engine told the database.
	held map[runKey]bool

	weights  fairshare.GPUWeights
	weighing uint64           // counts the weights there were, from 1 on
	prices   fairshare.Prices // what requests count for in this pass

	capacity        []capacityStep // since the last snapshot, and the one before
	coveredCapacity int            // how many of them the next snapshot holds
	unsaved         []capacityStep // not in the spool yet
}

// job is a job of Slurm's list. There may be a hundred thousand: it is as small
// as it can be.
type job struct {
	owner     *owner
	run       *run // the latest; nil if it never ran
	lastSeen  fairshare.Instant
	id        uint32
	uid       uint32
	assoc     uint32
	pass      uint32 // the last that saw it; passes are counted round
	place     int32  // in tracker.order
	missed    uint8  // passes since
	demanding bool   // when last seen in a pass
	capped    bool   // it was told of that it asks for too much
	forgotten bool   // it isn't in tracker.jobs any more
}

// tailCharge is the charge of a run that ended after the snapshot was read.
type tailCharge struct {
	fairshare.Charge
	of      runKey
	run     *run // until it is decided whether it counts
	covered bool // the next snapshot holds it
}

type capacityStep struct {
	at   fairshare.Instant
	gpus fairshare.Holding
}

func newTracker(cluster string, o *owners, d *demand) *tracker {
	t := &tracker{
		cluster: cluster, owners: o, demand: d, jobs: make(map[uint32]*job), known: make(map[runKey]bool), weighing: 1,
	}
	t.prices.Set(nil, fairshare.Holding{}, 0)
	return t
}

// begin begins a pass.
func (t *tracker) begin(now fairshare.Instant, gpus fairshare.Holding) {
	t.shift(t.clock.look(now))
	t.owners.waited(t.previous, t.now) // should the last one have broken off
	if t.now != 0 {
		t.previous = t.now
	}
	t.now = now
	t.pass++
	t.seen, t.at, t.passing, t.broken = 0, 0, true, false
	t.next, t.asking = t.next[:0], t.asking[:0]
	t.demand.advance(t.previous, now)
	t.owners.begin(t.pass)
	t.measure(now, gpus)
	t.prices.Set(t.weights, gpus, t.now)
}

// measure notes how many GPUs there are now.
func (t *tracker) measure(now fairshare.Instant, gpus fairshare.Holding) {
	step := capacityStep{now, gpus}
	if n := len(t.capacity); n > 0 {
		last := t.capacity[n-1]
		if last.gpus == gpus {
			return
		}
		step.at = max(step.at, last.at+1) // should the clock have been set back
	}
	t.capacity = append(t.capacity, step)
	t.unsaved = append(t.unsaved, step)
}

// observe is one job's turn in a pass; it returns whose job it is.
func (t *tracker) observe(j *Job) *owner {
	rec := t.record(j.JobID)
	if rec.pass != t.pass {
		rec.pass, rec.missed, rec.place = t.pass, 0, int32(len(t.next)) //nolint:gosec // job ids have 26 bits
		t.next = append(t.next, rec)
		t.seen++
	}
	known := rec.lastSeen != 0
	t.sight(rec, j, t.now)
	t.count(rec, j, known)
	return rec.owner
}

// record is the record of a job. Slurm's list hardly changes from pass to pass:
// mostly the job is the next one.
func (t *tracker) record(id uint32) *job {
	if t.at < len(t.order) && t.order[t.at].id == id {
		t.at++
		return t.order[t.at-1]
	}
	rec := t.jobs[id]
	if rec == nil {
		rec = &job{id: id, place: -1}
		t.jobs[id] = rec
		return rec
	}
	if at := int(rec.place); at >= 0 && at < len(t.order) && t.order[at] == rec {
		t.at = at + 1
	}
	return rec
}

// components are the runs of a het job that are going on.
func (t *tracker) components(het uint32) (runs []*run) {
	for _, r := range t.openRuns() {
		if r.HetJobID == het {
			runs = append(runs, r)
		}
	}
	return runs
}

// hint is a look at one job between passes.
func (t *tracker) hint(j *Job, now fairshare.Instant) {
	rec := t.jobs[j.JobID]
	if rec == nil {
		rec = &job{id: j.JobID, place: -1, pass: t.pass}
		t.jobs[j.JobID] = rec
	}
	t.sight(rec, j, now)
}

// sight follows the job's runs.
func (t *tracker) sight(rec *job, j *Job, now fairshare.Instant) {
	t.own(rec, j)
	t.rename(rec, now)
	t.cap(rec, j)
	start := runOf(j)
	switch {
	case start == 0:
		t.endedUnseen(rec, j, now)
	case j.Has(Resizing):
		t.resizing(rec, j, now)
	default:
		t.running(rec, j, start, now)
	}
	rec.lastSeen = now
}

// own finds out whose job it is. An association never changes hands, so names
// are compared only where there is none.
func (t *tracker) own(rec *job, j *Job) {
	rec.uid = j.UserID
	if rec.owner != nil && j.AssocID != 0 && rec.assoc == j.AssocID {
		return
	}
	rec.owner, rec.assoc = t.owners.of(j), j.AssocID
}

// rename gives the job's run the name of its user, if it was first seen when
// only the uid was known: who that is may take a directory a while to answer.
// Then comes the account too if it follows from the name, and with it whether
// the run is allocated.
func (t *tracker) rename(rec *job, now fairshare.Instant) {
	r := rec.run
	if r == nil || !isUID(r.User, rec.uid) || isUID(rec.owner.user, rec.uid) {
		return
	}
	nameless, wasIn := r.User, !r.decided || r.Allocated // in the tail, or the snapshot, if it has ended
	r.User, r.dirty = rec.owner.user, true
	r.seen(now)
	if r.Account == "" && rec.owner.account != "" {
		r.Account = rec.owner.account
		r.decide(t.owners.judge)
	}
	t.touched(r)
	for i := range t.tail {
		if c := &t.tail[i]; c.run == r {
			c.Account, c.User = r.Account, r.User
		} else if c.User == nameless {
			c.User = r.User
		}
	}
	if !r.Open() && !wasIn {
		t.charge(r)
	}
}

// isUID tells whether a user goes by the uid, for want of a name.
func isUID(user string, uid uint32) bool {
	if user == "" || user[0] > '9' {
		return false
	}
	var digits [10]byte
	return user == string(strconv.AppendUint(digits[:0], uint64(uid), 10))
}

// running is a record that shows a run, be it over or not.
func (t *tracker) running(rec *job, j *Job, start int64, now fairshare.Instant) {
	ended := hasEnded(j, unix(now))
	r := rec.run
	if r != nil && r.origin == start {
		if r.Open() {
			t.continued(r, j, ended, now)
			return
		}
		if !ended || j.End > r.EndedAt.Unix() {
			t.revived(rec, j, ended, now)
		}
		return
	}
	before := int64(0)
	if r != nil && r.Open() {
		before = t.superseded(rec, j, start, now)
	}
	if !j.hasGPUs() {
		return
	}
	r = t.start(rec, j, start, now)
	r.before = before
	t.continued(r, j, ended, now)
}

// revived goes on with a run that had ended by what was known, and yet runs or
// ended later: it was given up for lost too early, or slurmctld died before it
// had saved the end and now takes the job for running. In the database an ended
// run stays so: the rest is a run of its own, and the sum is Slurm's.
func (t *tracker) revived(rec *job, j *Job, ended bool, now fairshare.Instant) {
	given := rec.run
	start := max(given.EndedAt.Unix(), given.StartedAt.Unix()+1)
	r := t.start(rec, j, start, now)
	r.origin = given.origin
	r.before = given.before + int64(given.Suspended.Seconds())
	t.continued(r, j, ended, now)
}

// continued is another look at an open run.
func (t *tracker) continued(r *run, j *Job, ended bool, now fairshare.Instant) {
	t.promise(r, j)
	if !ended {
		r.see(j, now)
		t.touched(r)
		return
	}
	at := j.End
	if at == 0 {
		at = unix(now)
	}
	if j.Suspend != 0 || r.SuspendedSince == nil { // else Slurm has forgotten
		r.suspend(j.Suspended-r.before, nil)
	}
	t.finish(r, at, endState(j), now)
}

// promise notes for how long the run is left alone, if it was recorded by a
// release that didn't. Whether it is allocated was decided then.
func (t *tracker) promise(r *run, j *Job) {
	if r.MinRuntime != nil || !r.decided || !t.owners.knows() {
		return
	}
	on := askedTerms{asked: j.asked(), limit: j.limit(), served: servedBefore(j, r.StartedAt.Unix())}
	d := on.promise(t.owners.termsOf(r.Account), r.Allocated)
	r.MinRuntime, r.dirty = &d, true
}

// endState is Slurm's word for how the run that j shows has ended.
func endState(j *Job) string {
	if j.State == Pending {
		return "REQUEUED"
	}
	return j.State.String()
}

// lost is the end state of a run whose job vanished.
const lost = "LOST"

// endedUnseen is a record that shows no run: one that was open has ended since.
func (t *tracker) endedUnseen(rec *job, j *Job, now fairshare.Instant) {
	r := rec.run
	if r == nil || !r.Open() {
		return
	}
	at := j.End
	if at < r.StartedAt.Unix() || at > unix(now) {
		at = betweenSightings(rec, j.Submit, unix(now))
	}
	t.finish(r, at, endState(j), now)
}

// betweenSightings is the best guess at when a run ended that nobody saw end:
// guess if it lies since the last sighting, else that.
func betweenSightings(rec *job, guess, now int64) int64 {
	last := unix(rec.lastSeen)
	if guess > last && guess <= now {
		return guess
	}
	return min(last, now)
}

// resizing is a record in the middle of a change of size: Resize is set
// already, the GPUs are still those of before.
func (t *tracker) resizing(rec *job, j *Job, now fairshare.Instant) {
	if r := rec.run; (r == nil || !r.Open() && r.origin < j.Start) && j.hasGPUs() {
		t.start(rec, j, j.Start, now)
	}
	if r := rec.run; r != nil && r.Open() && j.Resize > r.origin {
		r.see(j, now)
		t.finish(r, j.Resize, "RESIZING", now)
	}
}

// superseded ends the open run of a job whose record shows a later one. It
// returns the seconds suspended that the record goes on to count.
func (t *tracker) superseded(rec *job, j *Job, start int64, now fairshare.Instant) int64 {
	r := rec.run
	switch {
	case start == j.Resize:
		suspended := r.before + int64(r.Suspended.Seconds())
		t.finish(r, start, "RESIZING", now)
		return suspended
	case r.configuring && j.Restart == r.Restart:
		// Slurm sets the start anew when the nodes are ready, and does not
		// count the time they took.
		t.finish(r, r.StartedAt.Unix(), "CONFIGURING", now)
	case j.Restart == r.Restart:
		t.finish(r, betweenSightings(rec, 0, start), lost, now)
	default:
		t.finish(r, betweenSightings(rec, j.Submit, start), "REQUEUED", now)
	}
	return 0
}

// start begins a run.
func (t *tracker) start(rec *job, j *Job, start int64, now fairshare.Instant) *run {
	r := newRun(t.cluster, j, rec.owner, start)
	r.SeenAt = now.Time()
	r.counted = fairshare.At(r.StartedAt)
	if r.decide(t.owners.judge); !r.decided {
		t.undecided = append(t.undecided, r)
	}
	rec.run = r
	t.open = append(t.open, r)
	t.remember(r)
	t.touched(r)
	return r
}

// finish ends a run.
func (t *tracker) finish(r *run, at int64, state string, now fairshare.Instant) {
	r.end(at, state, now)
	t.touched(r)
	t.charge(r)
}

// charge adds an ended run to what the snapshot does not know yet.
func (t *tracker) charge(r *run) {
	if r.decided && !r.Allocated || t.holds(r) {
		return
	}
	t.rate(r)
	r.EachCharge(*r.EndedAt, func(p fairshare.Period, amount fairshare.GPUMillis) {
		c := tailCharge{Charge: fairshare.Charge{Period: p, Account: r.Account, User: r.User, Amount: amount}, of: r.key()}
		if !r.decided {
			c.run = r
		}
		if c.Amount != 0 {
			t.tail = append(t.tail, c)
		}
	})
}

// touched puts a run on the list of those the spool must hear of.
func (t *tracker) touched(r *run) {
	if r.dirty && !r.queued {
		r.queued = true
		t.changed = append(t.changed, r)
	}
}

// end ends a pass.
func (t *tracker) end() {
	t.passing = false
	t.owners.waited(t.previous, t.now)
	if t.broken {
		return
	}
	t.demand.passed(t.now)
	t.order, t.next = t.next, t.order
	if t.seen < len(t.jobs) {
		t.sweep()
	}
}

// sweep forgets the jobs that are no longer in Slurm's list. If one still ran
// when it was last seen, that is the end we know of.
func (t *tracker) sweep() {
	var gone []*job
	for _, rec := range t.jobs {
		if rec.pass == t.pass {
			continue
		}
		if rec.missed++; rec.missed >= missedPasses || rec.run == nil {
			gone = append(gone, rec)
		}
	}
	slices.SortFunc(gone, func(x, y *job) int { return cmp.Compare(x.id, y.id) })
	for _, rec := range gone {
		if r := rec.run; r != nil && r.Open() {
			t.finish(r, unix(rec.lastSeen), lost, t.now)
		}
		delete(t.jobs, rec.id)
		rec.forgotten = true
	}
}

// count adds the job to the demand and the queue of its owner.
func (t *tracker) count(rec *job, j *Job, known bool) {
	pending := j.State == Pending && !j.Has(Requeued)
	if pending {
		t.owners.pend(rec.owner, j)
		if j.MinRuntime >= 0 && j.hasGPUs() {
			t.asking = append(t.asking, usage.Asked{JobID: j.JobID, MinRuntime: j.asked()})
		}
	} else if runOf(j) != 0 && !hasEnded(j, unix(t.now)) {
		t.owners.run(rec.owner, j.gpus())
	}
	t.countPending(rec, j, known)
	t.countRunning(rec, j)
	rec.demanding = pending && j.Has(Demands)
}

// countPending counts the time since the last pass for which the job waited.
func (t *tracker) countPending(rec *job, j *Job, known bool) {
	from := t.previous
	demands := j.State == Pending && j.Has(Demands)
	switch {
	case t.previous == 0 || !j.hasGPUs() || t.owners.unallocated.Include(j.MinRuntime):
		return // what is unallocated is owed nothing
	case rec.demanding && demands: // by far the most
		t.owners.count(rec.owner)
		rec.owner.waited += t.wanted(j) * int64(j.DemandTasks)
		return
	case rec.demanding:
		// It waited then: from the last pass on.
	case known:
		return // held back then, and who knows since when no longer
	default:
		from = max(from, fairshare.Instant(max(j.Begin, j.Submit))*1000)
	}
	until := t.now
	tasks := j.DemandTasks
	if !demands {
		if rec.run == nil || runOf(j) == 0 {
			return
		}
		until = fairshare.At(rec.run.StartedAt)
		tasks = 1
	}
	t.demand.pending(rec.owner.demand, t.wanted(j)*int64(tasks), from, until)
}

// countRunning counts the time since it was counted last for which the job ran.
func (t *tracker) countRunning(rec *job, j *Job) {
	r := rec.run
	if r == nil {
		return
	}
	until := t.now
	if !r.Open() {
		until = fairshare.At(*r.EndedAt)
	}
	if j.State != Suspended && until > r.counted && !r.byRequest() {
		t.rate(r)
		t.demand.running(rec.owner.demand, r.RateAt(until), r.counted, until)
	}
	r.counted = max(r.counted, until)
}

// openRuns are the runs that have not ended, in the order in which they were
// first seen.
func (t *tracker) openRuns() []*run {
	t.open = slices.DeleteFunc(t.open, func(r *run) bool { return !r.Open() })
	return t.open
}

// listed are the ended runs of jobs that Slurm still shows.
func (t *tracker) listed() map[runKey]bool {
	listed := make(map[runKey]bool)
	for _, rec := range t.jobs {
		if rec.run != nil && !rec.run.Open() {
			listed[rec.run.key()] = true
		}
	}
	return listed
}

// settle decides the runs of which nobody knew whether they are allocated.
func (t *tracker) settle(by judge) {
	for _, r := range t.undecided {
		if r.decided {
			continue
		}
		r.decide(by)
		t.touched(r)
	}
	t.undecided = nil
	t.tail = slices.DeleteFunc(t.tail, func(c tailCharge) bool { return c.run != nil && !c.run.Allocated })
	for i := range t.tail {
		t.tail[i].run = nil
	}
}

// restore goes on with what an earlier tracker had handed over; a snapshot holds
// the charges of all up to covered.
func (t *tracker) restore(recs []spoolRecord, covered uint64) {
	latest := make(map[runKey]spoolRecord)
	for _, rec := range recs {
		switch {
		case rec.Run != nil:
			latest[rec.Run.key()] = rec
		case rec.Demand != nil:
			t.now = max(t.now, rec.Demand.Seen)
		case rec.Capacity != nil:
			t.capacity = append(t.capacity, capacityStep{rec.Capacity.At, rec.Capacity.holding()})
		}
	}
	runs := slices.SortedFunc(maps.Values(latest), func(x, y spoolRecord) int {
		return cmp.Or(cmp.Compare(x.Run.JobID, y.Run.JobID), cmp.Compare(x.Run.Start, y.Run.Start))
	})
	for _, rec := range runs {
		t.resume(rec.Run.restored(t.cluster), rec.Seq > covered)
	}
}

// resume goes on with a run. With fresh its charge is not in the snapshot.
func (t *tracker) resume(r *run, fresh bool) {
	rec := t.jobs[r.JobID]
	if t.known[r.key()] {
		t.confirm(rec, r)
		return
	}
	t.remember(r)
	if rec == nil {
		rec = &job{id: r.JobID, place: -1, owner: t.owners.named(r.Account, r.User)}
		t.jobs[r.JobID] = rec
	}
	// Whatever was open, passes saw it until demand was counted last.
	rec.lastSeen = max(rec.lastSeen, fairshare.At(r.SeenAt), t.now)
	r.counted = max(fairshare.At(r.StartedAt), t.now)
	if !r.decided {
		t.undecided = append(t.undecided, r)
	}
	switch {
	case r.Open():
		t.open = append(t.open, r)
	case fresh:
		t.charge(r)
	}
	if rec.run == nil || rec.run.StartedAt.Before(r.StartedAt) {
		rec.run, r = r, rec.run
	}
	if r != nil && r != rec.run && r.Open() {
		t.finish(r, unix(rec.lastSeen), lost, rec.lastSeen)
	}
}

func (t *tracker) remember(r *run) {
	if t.known != nil {
		t.known[r.key()] = true
	}
}

// adopt goes on, once, with runs that the database has as open, last seen by
// another engine. Should the spool have been lost, they are the record.
func (t *tracker) adopt(runs []usage.Run, lastSeen fairshare.Instant) {
	for _, u := range runs {
		r := &run{Run: u, origin: u.StartedAt.Unix(), decided: true, terms: askedTerms{asked: fairshare.NotAsked}}
		if u.MinRuntime != nil {
			r.terms.asked = *u.MinRuntime
		}
		r.SeenAt = max(fairshare.At(r.SeenAt), lastSeen).Time()
		t.resume(r, true)
	}
	t.known = nil
}

// confirm keeps to what was decided when a run began, if an earlier engine did.
func (t *tracker) confirm(rec *job, earlier *run) {
	if rec == nil || rec.run == nil || rec.run.key() != earlier.key() || !rec.run.Open() {
		return
	}
	if r := rec.run; isUID(r.User, rec.uid) && !isUID(earlier.User, rec.uid) {
		r.User, r.Account, r.dirty = earlier.User, earlier.Account, true
		t.touched(r)
	}
	if !earlier.decided {
		return
	}
	r := rec.run
	if earlier.MinRuntime != nil {
		r.MinRuntime, r.dirty = earlier.MinRuntime, true
	}
	if !r.decided || r.Allocated != earlier.Allocated {
		r.Allocated, r.decided, r.dirty = earlier.Allocated, true, true
	}
	t.touched(r)
}

// take hands over what the spool has to hear.
func (t *tracker) take() []spoolRecord {
	var out []spoolRecord
	for _, r := range t.changed {
		out = append(out, spoolRecord{Run: spooledRun(r)})
		r.dirty, r.queued = false, false
	}
	t.changed = t.changed[:0]
	for _, step := range t.unsaved {
		out = append(out, spoolRecord{Capacity: &spoolCapacity{
			At: step.at, GPUs: fairshare.MilliGPUs(step.gpus.GPUs) * fairshare.GPU, Types: step.gpus.Type,
		}})
	}
	t.unsaved = t.unsaved[:0]
	return out
}

// mostTail is how many charges the tail holds before it is summed up.
const mostTail = 10_000

// trim keeps the tail small while the database is away for long: what the
// window has left behind is dropped, and charges of one user within one bucket
// are put together, as the database would.
func (t *tracker) trim(w fairshare.Period, bucket time.Duration) {
	if len(t.tail) <= mostTail {
		return
	}
	type key struct {
		account, user string
		bucket        fairshare.Instant
		covered       bool
	}
	places := make(map[key]int)
	kept := t.tail[:0]
	for _, c := range t.tail {
		if c.run == nil && c.Until <= w.From {
			continue
		}
		b := usage.Bucket(c.From, bucket)
		if c.run != nil || c.Until > b.Until {
			kept = append(kept, c)
			continue
		}
		k := key{c.Account, c.User, b.From, c.covered}
		at, ok := places[k]
		if !ok {
			places[k] = len(kept)
			kept = append(kept, c)
			continue
		}
		sum := &kept[at]
		sum.From, sum.Until = min(sum.From, c.From), max(sum.Until, c.Until)
		sum.Amount += c.Amount
	}
	clear(t.tail[len(kept):])
	t.tail = kept
}

// cut marks what a snapshot will hold that is read once all that take has
// handed over is written.
func (t *tracker) cut() {
	for i := range t.tail {
		t.tail[i].covered = true
	}
	t.coveredCapacity = len(t.capacity)
}

// hold takes note of the ended runs that a snapshot holds which another engine has
// told the database of. Those that t has seen, and will see, count in it.
func (t *tracker) hold(ended map[runKey]bool) {
	t.held = ended
	t.tail = slices.DeleteFunc(t.tail, func(c tailCharge) bool { return ended[c.of] })
}

// holds tells whether all that the run was charged is in the snapshot.
func (t *tracker) holds(r *run) bool { return len(t.held) > 0 && t.held[r.key()] }

// covers drops what the last cut marked: there is a snapshot that holds it, and
// holds as well what another engine knew had ended when t did not.
func (t *tracker) covers() {
	open := make(map[runKey]bool)
	for _, r := range t.openRuns() {
		if t.holds(r) {
			open[r.key()] = true
		}
	}
	t.held = open
	t.tail = slices.DeleteFunc(t.tail, func(c tailCharge) bool { return c.covered })
	if t.coveredCapacity > 1 {
		t.capacity = slices.Delete(t.capacity, 0, t.coveredCapacity-1)
	}
	t.coveredCapacity = 0
}
