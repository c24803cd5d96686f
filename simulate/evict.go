// SPDX-License-Identifier: GPL-2.0-or-later

package simulate

import (
	"slices"
	"time"

	"gpubudget/fairshare"
)

// evictions is when a job was preempted, the latest last.
type evictions []int64

// today is how many of them lie in the last 24 hours.
func (e evictions) today(now int64) int {
	n := 0
	for i := len(e) - 1; i >= 0 && e[i] > now-86_400; i-- {
		n++
	}
	return n
}

// records are the evictions of all jobs that have some and aren't done.
type records struct {
	all   []evictions
	spare []int32 // of all, those that are not in use
}

func (r *records) add(c *course, now int64) {
	if c.record < 0 {
		if len(r.spare) == 0 {
			r.spare = append(r.spare, int32(len(r.all)))
			r.all = append(r.all, nil)
		}
		last := len(r.spare) - 1
		c.record, r.spare = r.spare[last], r.spare[:last]
	}
	r.all[c.record] = append(r.all[c.record], now)
}

// forget drops those of a job that is done.
func (r *records) forget(c *course) {
	if n := c.record; n >= 0 {
		r.all[n] = r.all[n][:0]
		r.spare = append(r.spare, n)
		c.record = -1
	}
}

// candidates is running jobs that would have to yield, for reuse.
type candidates struct {
	slots     []int32
	rules     []fairshare.Rule
	occupants []fairshare.Occupant // the same, once all are known

	occupant fairshare.Occupant
	opponents
}

// opponents are how accounts stand to the one that asks, as of a priority pass.
type opponents struct {
	asks int32 // the account; -1 for none
	pass int
	of   []fairshare.Rivals // by account
	know []bool             // by account
}

// rules are the rules of preemption in force, nil if nobody is preempted.
func (s *sim) rules() *fairshare.Contract {
	switch {
	case s.p.Kind == Budgets:
		return s.p.Contract
	case s.p.Overflow:
		return &fairshare.Contract{} // of which only R1 can come into play
	}
	return nil
}

// evictFor makes room for a lane's first job, if the rules let it, and starts it.
func (s *sim) evictFor(l *lane, h *reservation) bool {
	rules := s.rules()
	if rules == nil || !s.allocates(l) || l.failed == l.head && s.now < l.retry {
		return false
	}
	job := l.head
	j := &s.jobs[job]
	request := fairshare.Request{
		Account: s.names[l.account], GPUs: int64(j.GPUs), Allocated: true,
		MinRuntime: time.Duration(s.minRuntime(j)) * time.Second, QOSPriority: j.QOS,
		Waited: time.Duration(s.now-s.courses[job].queued) * time.Second,
	}
	withHeld := s.mayUseHeld(h, l, job)
	gone := s.search(rules, l, &request, withHeld)
	if len(gone) == 0 {
		s.backOff(l)
		return false
	}
	c := &s.scratch.candidates
	for _, i := range gone {
		s.evict(c.slots[i], c.rules[i])
	}
	return s.place(job, withHeld, true)
}

// backOff lets a job that has found no victims wait the longer before it looks
// again the more often that happened, up to the time of a priority pass.
func (s *sim) backOff(l *lane) {
	if l.failed != l.head {
		l.failed, l.wait = l.head, s.every.backfill
	}
	l.retry = s.now + l.wait
	l.wait = min(2*l.wait, max(s.every.calc, l.wait))
}

// victims are whom a request evicts, as indices of the candidates.
func (s *sim) victims(rules *fairshare.Contract, l *lane, request *fairshare.Request, withHeld bool) []int {
	c := &s.scratch.candidates
	c.slots, c.rules = c.slots[:0], c.rules[:0]
	s.face(c, l.account)
	s.nodes.askLoosely(l.part, l.gpus, withHeld)
	found := true
	switch {
	case s.nodes.room():
		s.gatherLoose(c, rules, l, request, withHeld)
	case s.p.Contract != nil && s.gather(c, rules, l, request):
		s.sieve(c)
		for _, n := range s.free[l.part] {
			if slices.ContainsFunc(s.slots[n].pieces, s.nodes.helps) {
				s.consider(c, rules, request, n)
			}
		}
	default:
		found = false
	}
	s.nodes.forget()
	if !found {
		return nil
	}
	s.describe(c)
	return rules.Victims(s.standing.ranking, s.instant(s.now), request, c.occupants, func(gone []int) bool {
		s.nodes.ask(l.part, l.gpus, withHeld)
		for _, i := range gone {
			s.nodes.without(s.slots[c.slots[i]].pieces)
		}
		room := s.nodes.room()
		s.nodes.forget()
		return room
	})
}

// sieve drops candidates who stand only on nodes where there would not be enough
// room with all candidates gone. None of them could be a victim.
func (s *sim) sieve(c *candidates) {
	kept := 0
	for i, n := range c.slots {
		if !slices.ContainsFunc(s.slots[n].pieces, s.nodes.helps) {
			continue
		}
		c.slots[kept], c.rules[kept] = n, c.rules[i]
		kept++
	}
	c.slots, c.rules = c.slots[:kept], c.rules[:kept]
}

// loose is an unallocated job with what decides when its turn to yield comes.
type loose struct {
	place int32
	lost  int64 // GPU-seconds since its start
	gpus  int32
	slot  int32
	at    int32 // in the order of starts
}

func (x *loose) before(y *loose) bool {
	switch {
	case x.place != y.place:
		return x.place > y.place
	case x.lost != y.lost:
		return x.lost < y.lost
	case x.gpus != y.gpus:
		return x.gpus < y.gpus
	}
	return x.at < y.at
}

// gatherLoose collects unallocated jobs, where they are enough, in the order of
// R6 and no more than make room: Victims would choose the same of all of them.
func (s *sim) gatherLoose(c *candidates, rules *fairshare.Contract, l *lane, request *fairshare.Request, withHeld bool) {
	heap := s.scratch.loose[:0]
	for at, n := range s.free[l.part] {
		sl := &s.slots[n]
		if slices.ContainsFunc(sl.pieces, s.nodes.helps) {
			heap = append(heap, loose{s.standing.places[sl.account], int64(sl.gpus) * (s.now - sl.start), sl.gpus, n, int32(at)})
		}
	}
	s.scratch.loose = heap
	s.nodes.forget()
	s.nodes.ask(l.part, l.gpus, withHeld)
	for at := len(heap)/2 - 1; at >= 0; at-- {
		siftLoose(heap, at)
	}
	for len(heap) > 0 && !s.nodes.room() {
		if s.consider(c, rules, request, heap[0].slot) {
			s.nodes.without(s.slots[heap[0].slot].pieces)
		}
		last := len(heap) - 1
		heap[0] = heap[last]
		heap = heap[:last]
		if last > 0 {
			siftLoose(heap, 0)
		}
	}
}

func siftLoose(heap []loose, at int) {
	x := heap[at]
	for {
		below := 2*at + 1
		if below >= len(heap) {
			break
		}
		if below+1 < len(heap) && heap[below+1].before(&heap[below]) {
			below++
		}
		if !heap[below].before(&x) {
			break
		}
		heap[at] = heap[below]
		at = below
	}
	heap[at] = x
}

// gather collects whom of those that aren't unallocated a request may evict, in
// the order of R6 by account, until there is room with all of them gone. It is
// false if there is none.
func (s *sim) gather(c *candidates, rules *fairshare.Contract, l *lane, request *fairshare.Request) bool {
	st := &s.standing
	for i, a := range st.worst {
		if s.mayYield(rules, l.account, a, l.qos, s.patient(l)) {
			for _, d := range s.accounts[a].guarded {
				if d.at() > s.now {
					break
				}
				n := d.slot()
				if s.slots[n].part == l.part && s.consider(c, rules, request, n) {
					s.nodes.without(s.slots[n].pieces)
				}
			}
		}
		last := i+1 == len(st.worst) || st.places[st.worst[i+1]] != st.places[a]
		if last && len(c.slots) > 0 && s.nodes.room() {
			return true
		}
	}
	return false
}

// mayYield tells whether any job of account b could yield to any of account a.
// The request that asks for least against the job for which nothing is counted
// in advance is the likeliest, so its answer holds for all until the next
// priority pass.
func (s *sim) mayYield(rules *fairshare.Contract, a, b int32, qos uint32, patient bool) bool {
	if a == b {
		return rules.WithinAccount && qos > 0 // the lowest is higher than none
	}
	pair := int(a)*len(s.names) + int(b)
	if patient {
		pair += len(s.names) * len(s.names)
	}
	known := &s.standing.yields[pair]
	if *known == 0 {
		request, occupant := fairshare.Request{GPUs: 1, Allocated: true}, fairshare.Occupant{Allocated: true}
		if patient {
			request.GPUs, request.Waited = rules.PatientGPUs, rules.Patience
		}
		*known = -1
		v := s.standing.rivals(a, b)
		if rules.DecideBetween(&v, s.instant(s.now), &request, &occupant).Yields {
			*known = 1
		}
	}
	return *known > 0
}

// patient tells whether a lane's first job is large and has waited for long.
func (s *sim) patient(l *lane) bool {
	rules := s.p.Contract
	return rules != nil && rules.PatientGPUs > 0 && int64(l.gpus) >= rules.PatientGPUs &&
		s.now-s.courses[l.head].queued >= int64(rules.Patience/time.Second)
}

// consider adds a running job to the candidates if it would have to yield, and
// tells whether it would.
func (s *sim) consider(c *candidates, rules *fairshare.Contract, request *fairshare.Request, n int32) bool {
	s.occupant(&c.occupant, n)
	d := rules.DecideBetween(s.rivals(c, s.slots[n].account), s.instant(s.now), request, &c.occupant)
	if !d.Yields {
		return false
	}
	c.slots = append(c.slots, n)
	c.rules = append(c.rules, d.Rule)
	return true
}

// occupant is a running job as the rules see it, but for the name of its account.
func (s *sim) occupant(o *fairshare.Occupant, n int32) {
	sl := &s.slots[n]
	o.GPUs, o.Allocated, o.QOSPriority, o.Ahead = int64(sl.gpus), sl.allocated, sl.qos, sl.ahead
	o.ProtectedUntil = s.instant(sl.protectedUntil)
	o.Preempted = 0
	if sl.record >= 0 && sl.allocated {
		o.Preempted = s.records.all[sl.record].today(s.now)
	}
}

// describe makes occupants of the candidates.
func (s *sim) describe(c *candidates) {
	c.occupants = slices.Grow(c.occupants[:0], len(c.slots))[:len(c.slots)]
	for i, n := range c.slots {
		s.occupant(&c.occupants[i], n)
		c.occupants[i].Account = s.names[s.slots[n].account]
	}
}

// face begins to ask for an account.
func (s *sim) face(c *candidates, account int32) {
	if c.know == nil {
		c.know, c.of = make([]bool, len(s.names)), make([]fairshare.Rivals, len(s.names))
		c.asks = -1
	}
	if c.asks != account || c.pass != s.standing.passes {
		c.asks, c.pass = account, s.standing.passes
		clear(c.know)
	}
}

// rivals are how an account stands to the one that asks.
func (s *sim) rivals(c *candidates, account int32) *fairshare.Rivals {
	if !c.know[account] {
		c.know[account] = true
		c.of[account] = s.standing.rivals(c.asks, account)
	}
	return &c.of[account]
}

// evict preempts a job.
func (s *sim) evict(n int32, rule fairshare.Rule) {
	job, allocated := s.slots[n].job, s.slots[n].allocated
	s.counts.evicted++
	s.counts.evictedBy[rule]++
	if allocated {
		s.records.add(&s.courses[job], s.now)
	}
	s.counts.wasted += s.requeue(n, Preempted)
}

// mostEvictions is how many jobs of one account a full pass starts by evicting
// others. The ranking does not know of them before the next priority pass.
const mostEvictions = 8

// evictByAccount makes room for accounts whose turn in the queue hasn't come but
// to whom others have to yield.
func (s *sim) evictByAccount(part int16) {
	h := &s.hold[part]
	for _, a := range slices.Backward(s.standing.worst) {
		quiet := &s.accounts[a].quiet[part]
		if s.now < *quiet {
			continue
		}
		*quiet = s.standing.at + s.every.calc
		lanes, highest, patient := s.scratch.lanes[:0], uint32(0), false
		for _, n := range s.queue.busy[a] {
			if l := &s.queue.lanes[n]; l.allocated && l.part == part {
				lanes = append(lanes, n)
				highest = max(highest, l.qos)
				patient = patient || s.patient(l)
			}
		}
		s.scratch.lanes = lanes
		if len(lanes) == 0 || !s.mayEvict(a, part, highest, patient) {
			continue
		}
		s.queue.sift(lanes)
		*quiet = min(*quiet, s.evictForAccount(lanes, h))
	}
}

// mayEvict tells whether anybody could have to yield to an account's jobs, of
// which none has a higher declared priority.
func (s *sim) mayEvict(a int32, part int16, highest uint32, patient bool) bool {
	if len(s.free[part]) > 0 {
		return true
	}
	for _, b := range s.standing.worst { // who is likeliest to
		guarded := s.accounts[b].guarded
		if len(guarded) > 0 && guarded[0].at() <= s.now && s.mayYield(s.p.Contract, a, b, highest, patient) {
			return true
		}
	}
	return false
}

// evictForAccount goes through a heap of an account's lanes. Where a job finds no
// victims, larger ones of no higher declared priority do not, either. It returns
// when it is worth another try.
func (s *sim) evictForAccount(lanes []int32, h *reservation) (again int64) {
	failed, failedQOS := int32(mostGPUs), uint32(0)
	again = never
	for evicted := 0; len(lanes) > 0; {
		if evicted >= mostEvictions {
			return s.now
		}
		l := &s.queue.lanes[lanes[0]]
		if l.head != h.job && (l.gpus < failed || l.qos > failedQOS) {
			if s.place(l.head, s.mayUseHeld(h, l, l.head), true) || s.evictFor(l, h) {
				evicted++
				if l.count > 0 {
					s.queue.siftDown(lanes, 0)
					continue
				}
			} else {
				failed, failedQOS = l.gpus, l.qos
				again = min(again, l.retry)
			}
		}
		lanes[0] = lanes[len(lanes)-1]
		if lanes = lanes[:len(lanes)-1]; len(lanes) > 0 {
			s.queue.siftDown(lanes, 0)
		}
	}
	return again
}
