// SPDX-License-Identifier: GPL-2.0-or-later

package simulate

import (
	"math"
	"slices"
	"time"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// sim is a run in progress. Whatever is looked at often is numbered and lies in
// slices; names are used only to talk to fairshare.
type sim struct {
	cfg   *Config
	p     *Policy
	every intervals
	jobs  []Job
	now   int64
	until int64

	names     []string // of accounts
	accountOf []int32  // by owner
	accounts  []account
	owners    []owner

	nodes  *nodes
	queue  *queue
	events events
	slots  []slot
	spare  []int32     // slots that are not in use
	byEnd  []deadlines // by partition: slots by their time limits
	free   [][]int32   // by partition: slots of unallocated jobs, the oldest first

	courses []course // by job; the queue's
	drawer  [][]int32
	records records
	hold    []reservation // by partition

	standing standing
	nextFull int64
	dirty    bool // something has changed since the last full pass
	counts   counts
	pieces   []Piece // for reuse
	scratch  scratch

	// search is victims. Tests have their own, and are straight about the rest,
	// too: without any short cut the result is the same.
	search   func(rules *fairshare.Contract, l *lane, request *fairshare.Request, withHeld bool) []int
	straight bool
}

// intervals are those of the policy in seconds.
type intervals struct{ calc, backfill, lookback, cap, hold int64 }

func (p *Policy) intervals() intervals {
	whole := func(d time.Duration) int64 { return int64(d / time.Second) }
	return intervals{
		max(whole(p.CalcInterval), 1), max(whole(p.BackfillInterval), 1), whole(p.Lookback), whole(p.MinRuntimeCap), whole(p.RequeueHold),
	}
}

// account is what an account has now, and what is counted of it.
type account struct {
	running    int64     // GPUs charged
	quota      int64     // GPUs at once, of Quota
	guarded    deadlines // slots of allocated jobs, by the end of their protection
	minRuntime int64     // of jobs that declare none, in seconds
	quiet      []int64   // by partition: until when it needs no try to evict others
	asked      series    // pending and running, of jobs that mean to be charged
	charged    series
	unpaid     series
}

// owner is what a user of an account uses.
type owner struct {
	gauge       gauge
	decaying    decaying
	outstanding int64 // GPUs pending and running
}

// slot is a running job.
type slot struct {
	job, owner, account int32
	gpus                int32
	qos                 uint32
	part                int16
	allocated           bool
	start               int64
	limitEnd            int64 // when it ends at the latest
	protectedUntil      int64
	gen                 uint32
	pieces              []Piece
	waited              int64               // until this start; -1 if it isn't the first
	record              int32               // of the job; -1 if it was never preempted
	ahead               fairshare.GPUMillis // that it is charged ahead
}

// counts are the sums that are no account's.
type counts struct {
	started, finished int
	evicted, lost     int    // preemptions, and runs lost with their nodes
	evictedBy         [8]int // by rule
	wasted            int64  // GPU-seconds lost to preemption
	broken            int64  // GPU-seconds lost to nodes
	capacity, used    int64  // GPU-seconds
	stranded          int64  // GPU-seconds idle while a job waits that would fit by count
	byQuota           int64  // the same where only its quota keeps it waiting
	strandedNow       int64  // GPUs
	byQuotaNow        int64
	slowdowns         []float64
}

// never is later than any run.
const never = math.MaxInt64 / 4

func newSim(cfg *Config) *sim {
	w := cfg.Workload
	s := &sim{
		cfg: cfg, p: &cfg.Policy, jobs: w.Jobs, until: cfg.Until,
		accountOf: make([]int32, len(w.Owners)), owners: make([]owner, len(w.Owners)),
		nodes: newNodes(&cfg.Cluster),
		byEnd: make([]deadlines, len(cfg.Cluster.Partitions)), free: make([][]int32, len(cfg.Cluster.Partitions)),
		drawer: make([][]int32, len(w.Owners)),
		hold:   make([]reservation, len(cfg.Cluster.Partitions)),
	}
	s.every = s.p.intervals()
	if s.until == 0 {
		s.until = never
	}
	number := make(map[string]int32)
	for i, o := range w.Owners {
		n, known := number[o.Account]
		if !known {
			n = int32(len(s.names))
			number[o.Account] = n
			s.names = append(s.names, o.Account)
		}
		s.accountOf[i] = n
	}
	s.accounts = make([]account, len(s.names))
	for a := range s.accounts {
		s.accounts[a].quiet = make([]int64, len(cfg.Cluster.Partitions))
		d, own := s.p.MinRuntimes[s.names[a]]
		if !own {
			d = s.p.MinRuntime
		}
		s.accounts[a].minRuntime = int64(d / time.Second)
	}
	s.queue = newQueue(w, len(cfg.Cluster.Partitions), s.accountOf, len(s.names))
	s.courses = s.queue.jobs
	for i := range s.hold {
		s.hold[i].job = -1
	}
	for i, o := range cfg.Cluster.Outages {
		s.events.push(event{at: o.From, kind: nodeAway, id: int32(i)})
		s.events.push(event{at: o.Until, kind: nodeBack, id: int32(i)})
	}
	s.search = s.victims
	s.standing.prepare(s)
	return s
}

// run lets time go by, from one instant at which something happens to the next.
func (s *sim) run() {
	submitted := 0
	if s.cfg.Progress != nil {
		s.cfg.Progress(0, len(s.jobs))
	}
	for {
		at := s.nextInstant(submitted)
		if at >= s.until || at == never {
			break
		}
		s.passTime(at)
		for len(s.events) > 0 && s.events[0].at == at {
			s.happen(s.events.pop())
		}
		for submitted < len(s.jobs) && s.jobs[submitted].Submit <= at {
			s.submit(int32(submitted))
			submitted++
			if s.cfg.Progress != nil && submitted%4096 == 0 {
				s.cfg.Progress(submitted, len(s.jobs))
			}
		}
		s.schedule()
	}
	if s.until == never {
		s.until = s.now
	}
	s.passTime(s.until)
	if s.cfg.Progress != nil {
		s.cfg.Progress(len(s.jobs), len(s.jobs))
	}
}

// nextInstant is when something happens next.
func (s *sim) nextInstant(submitted int) int64 {
	at := int64(never)
	if submitted < len(s.jobs) {
		at = s.jobs[submitted].Submit
	}
	if len(s.events) > 0 {
		at = min(at, s.events[0].at)
	}
	if s.waiting() && (s.dirty || s.p.Contract != nil) && (at < never || s.busy()) {
		at = min(at, s.nextFull)
	}
	return max(at, s.now)
}

// waiting tells whether any job waits.
func (s *sim) waiting() bool {
	for i := range s.queue.parts {
		for _, n := range s.queue.parts[i].jobs {
			if n > 0 {
				return true
			}
		}
	}
	return false
}

// busy tells whether any job runs.
func (s *sim) busy() bool { return len(s.slots) > len(s.spare) }

// passTime adds up what holds until an instant and goes there.
func (s *sim) passTime(at int64) {
	c := &s.counts
	span := at - s.now
	for i := range s.nodes.parts {
		p := &s.nodes.parts[i]
		c.capacity += span * int64(p.up+p.ends)
	}
	c.stranded += span * c.strandedNow
	c.byQuota += span * c.byQuotaNow
	s.now = at
}

// happen lets an event happen.
func (s *sim) happen(e event) {
	s.dirty = true
	switch e.kind {
	case jobEnds:
		if sl := &s.slots[e.id]; sl.gen == e.gen {
			s.finish(e.id)
		}
	case jobReturns:
		s.enqueue(e.id)
	case nodeAway:
		s.takeNodeAway(&s.cfg.Cluster.Outages[e.id])
	case nodeBack:
		s.bringNodeBack(&s.cfg.Cluster.Outages[e.id])
	}
}

// submit is a job's arrival. Who has as much outstanding as he means to have
// keeps it in his drawer.
func (s *sim) submit(job int32) {
	j := &s.jobs[job]
	if s.limited(j) {
		if len(s.drawer[j.Owner]) > 0 || !s.room(j) {
			s.drawer[j.Owner] = append(s.drawer[j.Owner], job)
			return
		}
	}
	s.arrive(job)
}

// limited tells whether a job counts in what its owner means to have outstanding.
func (s *sim) limited(j *Job) bool {
	return s.cfg.Workload.Outstanding != nil && !j.Debug && j.MinRuntime != 0
}

func (s *sim) room(j *Job) bool {
	limit, out := int64(s.cfg.Workload.Outstanding[j.Owner]), s.owners[j.Owner].outstanding
	return limit == 0 || out == 0 || out+int64(j.GPUs) <= limit
}

func (s *sim) arrive(job int32) {
	j := &s.jobs[job]
	if s.limited(j) {
		s.owners[j.Owner].outstanding += int64(j.GPUs)
	}
	s.courses[job].submitted = s.now
	s.enqueue(job)
}

// enqueue puts a job into the queue.
func (s *sim) enqueue(job int32) {
	s.dirty = true
	s.courses[job].queued = s.now
	l, first := s.queue.push(job)
	if s.asks(l) {
		s.accounts[l.account].asked.add(s.now, int64(l.gpus))
	}
	if first {
		s.enter(l)
	}
}

// asks tells whether a lane's jobs mean to be charged.
func (s *sim) asks(l *lane) bool { return !l.free || s.p.Contract == nil }

// enter puts a lane with a new first job in its place.
func (s *sim) enter(l *lane) {
	s.accounts[l.account].quiet[l.part] = 0
	s.standing.key(s, l)
	s.queue.enter(s.courses[l.head].lane)
}

// dequeue takes a job out of the queue.
func (s *sim) dequeue(job int32) {
	n := s.courses[job].lane
	l, first := s.queue.remove(job)
	switch {
	case l.count == 0:
		s.queue.leave(n, true)
		l.parked = false
	case first:
		s.enter(l)
	}
}

// start starts a waiting job on pieces of nodes.
func (s *sim) start(job int32, pieces []Piece, allocated bool) {
	j, l := &s.jobs[job], &s.queue.lanes[s.courses[job].lane]
	if h := &s.hold[j.Partition]; h.job == job {
		s.release(h)
	}
	s.dequeue(job)
	s.nodes.takeAll(pieces)
	if !allocated {
		s.nodes.loosen(pieces, 1)
	}
	n := s.newSlot()
	sl := &s.slots[n]
	*sl = slot{
		job: job, owner: j.Owner, account: l.account, gpus: j.GPUs, qos: j.QOS, part: j.Partition, allocated: allocated,
		start: s.now, limitEnd: s.now + j.Limit, protectedUntil: s.now,
		gen: sl.gen + 1, pieces: append(sl.pieces[:0], pieces...), record: s.courses[job].record, waited: -1,
	}
	switch {
	case s.rules() == nil || allocated && s.p.Contract == nil:
		sl.protectedUntil = sl.limitEnd // nobody takes its GPUs away
	case allocated:
		sl.protectedUntil += s.minRuntime(j)
	}
	if allocated {
		sl.ahead = usage.ChargeAhead(int64(j.GPUs)*fairshare.Millionths, s.p.Lookback)
	}
	s.account(sl, int64(j.GPUs))
	s.file(n)
	left := max(j.Run-s.courses[job].done, 1)
	s.events.push(event{s.now + min(left, j.Limit), jobEnds, n, sl.gen})
	s.counts.started++
	if s.courses[job].waited < 0 {
		sl.waited = s.now - s.courses[job].submitted
		s.courses[job].waited = sl.waited
	}
}

// minRuntime is for how long a job is protected.
func (s *sim) minRuntime(j *Job) int64 {
	declared := j.MinRuntime
	if declared < 0 {
		declared = s.accounts[s.accountOf[j.Owner]].minRuntime
	}
	return min(declared, s.every.cap, j.Limit)
}

func (s *sim) newSlot() int32 {
	if n := len(s.spare); n > 0 {
		slot := s.spare[n-1]
		s.spare = s.spare[:n-1]
		return slot
	}
	s.slots = append(s.slots, slot{})
	return int32(len(s.slots) - 1)
}

// account counts GPUs that a slot begins to use, or ceases to if there are fewer
// than none.
func (s *sim) account(sl *slot, gpus int64) {
	a, o := &s.accounts[sl.account], &s.owners[sl.owner]
	switch {
	case sl.allocated:
		a.running += gpus
		a.charged.add(s.now, gpus)
	default:
		a.unpaid.add(s.now, gpus)
	}
	switch s.p.Kind {
	case Budgets:
		if sl.allocated {
			o.gauge.add(s.now, gpus)
		}
	case Multifactor:
		o.decaying.advance(s.now, s.p.HalfLife.Seconds())
		o.decaying.gpus += gpus
	case FIFO, Quota:
	}
}

// file puts a running job on the lists it is looked for in.
func (s *sim) file(n int32) {
	sl := &s.slots[n]
	s.byEnd[sl.part].add(sl.limitEnd, n)
	switch {
	case !sl.allocated:
		s.free[sl.part] = append(s.free[sl.part], n)
	case s.p.Contract != nil:
		s.accounts[sl.account].guarded.add(sl.protectedUntil, n)
	}
}

func (s *sim) unfile(n int32) {
	sl := &s.slots[n]
	s.byEnd[sl.part].remove(sl.limitEnd, n)
	switch {
	case !sl.allocated:
		at := slices.Index(s.free[sl.part], n)
		s.free[sl.part] = slices.Delete(s.free[sl.part], at, at+1)
	case s.p.Contract != nil:
		s.accounts[sl.account].guarded.remove(sl.protectedUntil, n)
	}
}

// tell lets the recorder know of a stint.
func (s *sim) tell(sl *slot, how Ending) {
	if s.cfg.Record != nil {
		s.cfg.Record(Stint{int(sl.job), sl.start, s.now, sl.protectedUntil, sl.waited, sl.allocated, how, sl.pieces})
	}
}

// stop takes a job off its nodes.
func (s *sim) stop(n int32, how Ending) {
	sl := &s.slots[n]
	s.tell(sl, how)
	s.unfile(n)
	if !sl.allocated {
		s.nodes.loosen(sl.pieces, -1)
	}
	s.nodes.giveBack(sl.pieces)
	s.account(sl, -int64(sl.gpus))
	l := &s.queue.lanes[s.courses[sl.job].lane]
	if s.asks(l) {
		s.accounts[sl.account].asked.add(s.now, -int64(sl.gpus))
	}
	s.counts.used += int64(sl.gpus) * (s.now - sl.start)
	sl.gen++
	s.spare = append(s.spare, n)
	s.unpark(sl.account)
}

// finish is the end of a job that is done, or whose time limit has come.
func (s *sim) finish(n int32) {
	sl := &s.slots[n]
	job := sl.job
	s.stop(n, Done)
	s.counts.finished++
	s.records.forget(&s.courses[job])
	j := &s.jobs[job]
	s.counts.slowdowns = append(s.counts.slowdowns, slowdown(s.now-s.courses[job].submitted, min(j.Run, j.Limit)))
	if s.limited(j) {
		s.owners[j.Owner].outstanding -= int64(j.GPUs)
		s.openDrawer(j.Owner)
	}
}

// slowdown is how many times longer than it runs a job takes, where all that
// runs for less than 10 seconds counts as 10.
func slowdown(taken, run int64) float64 {
	return max(float64(taken)/float64(max(run, 10)), 1)
}

func (s *sim) openDrawer(owner int32) {
	kept := s.drawer[owner]
	n := 0
	for n < len(kept) && s.room(&s.jobs[kept[n]]) {
		s.arrive(kept[n])
		n++
	}
	s.drawer[owner] = kept[n:]
}

// requeue stops a job that has to run again. It goes on from where it saved
// last; what it lost is returned in GPU-seconds.
func (s *sim) requeue(n int32, how Ending) (lost int64) {
	sl := &s.slots[n]
	job, ran := sl.job, s.now-sl.start
	saved := int64(0)
	if every := int64(s.p.Checkpoint / time.Second); every > 0 {
		saved = ran / every * every
	}
	s.courses[job].done += saved
	lost = int64(sl.gpus) * (ran - saved)
	s.stop(n, how)
	s.events.push(event{s.now + s.every.hold, jobReturns, job, 0})
	return lost
}

func (s *sim) takeNodeAway(o *Outage) {
	node := int32(o.Node)
	if s.nodes.class[node] == held {
		s.release(&s.hold[s.nodes.part[node]])
	}
	s.nodes.move(node, away)
	if o.Drain {
		return
	}
	var victims []int32
	for _, d := range s.byEnd[s.nodes.part[node]] {
		n := d.slot()
		for _, p := range s.slots[n].pieces {
			if p.Node == node {
				victims = append(victims, n)
			}
		}
	}
	for _, n := range victims {
		s.counts.lost++
		s.counts.broken += s.requeue(n, NodeLost)
	}
}

func (s *sim) bringNodeBack(o *Outage) {
	for i := range s.cfg.Cluster.Outages {
		other := &s.cfg.Cluster.Outages[i]
		if other.Node == o.Node && other != o && other.From <= s.now && other.Until > s.now {
			return
		}
	}
	if s.nodes.class[o.Node] == away {
		s.nodes.move(int32(o.Node), open)
	}
}

// instant is a second as fairshare counts time.
func (s *sim) instant(second int64) fairshare.Instant {
	return fairshare.At(s.cfg.Workload.Begin) + fairshare.Instant(second*1000)
}
