// SPDX-License-Identifier: GPL-2.0-or-later

package simulate

import (
	"slices"
	"time"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// evictions is when a job was preempted, the latest last.
type evictions []int64

// today is how many of them lie in the last 24 hours.
func (e evictions) today(now int64) int32 {
	n := int32(0)
	for i := len(e) - 1; i >= 0 && e[i] > now-86_400; i-- {
		n++
	}
	return n
}

// candidates is running jobs that would have to yield, for reuse.
type candidates struct {
	occupants []fairshare.Occupant
	slots     []int32
	rules     []fairshare.Rule

	latest   likeness
	occupant fairshare.Occupant
	decision fairshare.Decision
}

// likeness is what a decision on one request depends on, where the job that runs
// is no longer protected: those that are alike in it are decided alike.
type likeness struct {
	account, gpus, preempted int32
	qos                      uint32
	allocated                bool
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
		Waited: time.Duration(s.now-s.queued[job]) * time.Second,
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
		l.failed, l.wait = l.head, max(int64(s.p.BackfillInterval.Seconds()), 1)
	}
	l.retry = s.now + l.wait
	l.wait = min(2*l.wait, max(int64(s.p.CalcInterval.Seconds()), l.wait))
}

// victims are whom a request evicts, as indices of the candidates.
func (s *sim) victims(rules *fairshare.Contract, l *lane, request *fairshare.Request, withHeld bool) []int {
	c := &s.scratch.candidates
	c.occupants, c.slots, c.rules, c.latest = c.occupants[:0], c.slots[:0], c.rules[:0], likeness{account: -1}
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
		c.occupants[kept], c.slots[kept], c.rules[kept] = c.occupants[i], n, c.rules[i]
		kept++
	}
	c.occupants, c.slots, c.rules = c.occupants[:kept], c.slots[:kept], c.rules[:kept]
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
			for _, n := range s.accounts[a].guarded {
				if s.slots[n].protectedUntil > s.now {
					break
				}
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
		return rules.WithinAccount && (qos > 0 || patient) // the lowest is higher than none
	}
	pair := int(a)*len(s.names) + int(b)
	request := fairshare.Request{Account: s.names[a], GPUs: 1, Allocated: true}
	if patient {
		pair += len(s.names) * len(s.names)
		request.GPUs, request.Waited = rules.PatientGPUs, rules.Patience
	}
	known := &s.standing.yields[pair]
	if *known == 0 {
		occupant := fairshare.Occupant{Account: s.names[b], Allocated: true}
		*known = -1
		if rules.Decide(s.standing.ranking, s.instant(s.now), &request, &occupant).Yields {
			*known = 1
		}
	}
	return *known > 0
}

// patient tells whether a lane's first job is large and has waited for long.
func (s *sim) patient(l *lane) bool {
	rules := s.p.Contract
	return rules != nil && rules.PatientGPUs > 0 && int64(l.gpus) >= rules.PatientGPUs &&
		s.now-s.queued[l.head] >= int64(rules.Patience.Seconds())
}

// consider adds a running job to the candidates if it would have to yield, and
// tells whether it would.
func (s *sim) consider(c *candidates, rules *fairshare.Contract, request *fairshare.Request, n int32) bool {
	sl := &s.slots[n]
	alike := likeness{account: sl.account, gpus: sl.gpus, qos: sl.qos, allocated: sl.allocated}
	if sl.record != nil && sl.allocated {
		alike.preempted = sl.record.today(s.now)
	}
	if alike != c.latest {
		c.latest = alike
		c.occupant = fairshare.Occupant{
			Account: s.names[sl.account], GPUs: int64(sl.gpus), Allocated: sl.allocated,
			ProtectedUntil: s.instant(sl.protectedUntil), QOSPriority: alike.qos, Preempted: int(alike.preempted),
		}
		if sl.allocated {
			c.occupant.Ahead = usage.ChargeAhead(int64(sl.gpus)*fairshare.Millionths, s.p.Lookback)
		}
		c.decision = rules.Decide(s.standing.ranking, s.instant(s.now), request, &c.occupant)
	}
	if !c.decision.Yields {
		return false
	}
	occupant := c.occupant
	occupant.ProtectedUntil = s.instant(sl.protectedUntil)
	c.occupants = append(c.occupants, occupant)
	c.slots = append(c.slots, n)
	c.rules = append(c.rules, c.decision.Rule)
	return true
}

// evict preempts a job.
func (s *sim) evict(n int32, rule fairshare.Rule) {
	job, allocated := s.slots[n].job, s.slots[n].allocated
	s.counts.evicted++
	s.counts.evictedBy[rule]++
	if allocated {
		e := s.record[job]
		if e == nil {
			e = &evictions{}
			s.record[job] = e
		}
		*e = append(*e, s.now)
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
		*quiet = s.standing.at + max(int64(s.p.CalcInterval.Seconds()), 1)
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
	for b := range s.names {
		guarded := s.accounts[b].guarded
		if len(guarded) > 0 && s.slots[guarded[0]].protectedUntil <= s.now && s.mayYield(s.p.Contract, a, int32(b), highest, patient) {
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
