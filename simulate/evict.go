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

// candidates is running jobs that would have to yield, for reuse.
type candidates struct {
	occupants []fairshare.Occupant
	slots     []int32
	rules     []fairshare.Rule
	gpus      int64
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
	if rules == nil || !s.allocates(l) {
		return false
	}
	job := l.head
	j := &s.jobs[job]
	request := fairshare.Request{
		Account: s.names[l.account], GPUs: int64(j.GPUs), Allocated: true,
		MinRuntime: time.Duration(s.minRuntime(j)) * time.Second, QOSPriority: j.QOS,
	}
	withHeld := s.mayUseHeld(h, l, job)
	c := &s.scratch.candidates
	if !s.gather(c, rules, l, &request, withHeld) {
		return false
	}
	gone := rules.Victims(s.standing.ranking, s.instant(s.now), &request, c.occupants, func(gone []int) bool {
		return s.nodes.whatIf(l.part, l.gpus, withHeld, func(yield func([]Piece)) {
			for _, i := range gone {
				yield(s.slots[c.slots[i]].pieces)
			}
		})
	})
	if len(gone) == 0 {
		return false
	}
	for _, i := range gone {
		s.evict(c.slots[i], c.rules[i])
	}
	return s.place(job, withHeld, true)
}

// gather collects whom a request may evict, in the order of R6 by account, until
// there is room with all of them gone. It is false if there is none.
func (s *sim) gather(c *candidates, rules *fairshare.Contract, l *lane, request *fairshare.Request, withHeld bool) bool {
	c.occupants, c.slots, c.rules, c.gpus = c.occupants[:0], c.slots[:0], c.rules[:0], 0
	for _, n := range s.free[l.part] {
		s.consider(c, rules, request, n)
	}
	if s.enough(c, l, withHeld) {
		return true
	}
	if s.p.Contract == nil {
		return false
	}
	st := &s.standing
	for i, a := range st.worst {
		if s.mayYield(rules, l.account, a) {
			for _, n := range s.accounts[a].guarded {
				if s.slots[n].protectedUntil > s.now {
					break
				}
				if s.slots[n].part == l.part {
					s.consider(c, rules, request, n)
				}
			}
		}
		last := i+1 == len(st.worst) || st.places[st.worst[i+1]] != st.places[a]
		if last && s.enough(c, l, withHeld) {
			return true
		}
	}
	return false
}

// mayYield tells whether any job of account b could yield to any of account a.
// The request that asks for least against the job for which nothing is counted
// in advance is the likeliest, so its answer holds for all until the next
// priority pass.
func (s *sim) mayYield(rules *fairshare.Contract, a, b int32) bool {
	if a == b {
		return rules.WithinAccount
	}
	known := &s.standing.yields[int(a)*len(s.names)+int(b)]
	if *known == 0 {
		request := fairshare.Request{Account: s.names[a], GPUs: 1, Allocated: true}
		occupant := fairshare.Occupant{Account: s.names[b], Allocated: true}
		*known = -1
		if rules.Decide(s.standing.ranking, s.instant(s.now), &request, &occupant).Yields {
			*known = 1
		}
	}
	return *known > 0
}

// consider adds a running job to the candidates if it would have to yield.
func (s *sim) consider(c *candidates, rules *fairshare.Contract, request *fairshare.Request, n int32) {
	sl := &s.slots[n]
	occupant := fairshare.Occupant{
		Account: s.names[sl.account], GPUs: int64(sl.gpus), Allocated: sl.allocated,
		ProtectedUntil: s.instant(sl.protectedUntil), QOSPriority: s.jobs[sl.job].QOS,
	}
	if sl.allocated {
		occupant.Ahead = s.standing.aheadOf(s, int64(sl.gpus))
		if e := s.record[sl.job]; e != nil {
			occupant.Preempted = e.today(s.now)
		}
	}
	decision := rules.Decide(s.standing.ranking, s.instant(s.now), request, &occupant)
	if !decision.Yields {
		return
	}
	c.occupants = append(c.occupants, occupant)
	c.slots = append(c.slots, n)
	c.rules = append(c.rules, decision.Rule)
	c.gpus += int64(sl.gpus)
}

// enough tells whether a lane's job could start with all candidates gone.
func (s *sim) enough(c *candidates, l *lane, withHeld bool) bool {
	if c.gpus+int64(s.nodes.parts[l.part].idle) < int64(l.gpus) || len(c.slots) == 0 {
		return false
	}
	return s.nodes.whatIf(l.part, l.gpus, withHeld, func(yield func([]Piece)) {
		for _, n := range c.slots {
			yield(s.slots[n].pieces)
		}
	})
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
		if !s.mayEvict(a, part) {
			continue
		}
		lanes := s.scratch.lanes[:0]
		for _, n := range s.queue.owned[a] {
			if l := &s.queue.lanes[n]; l.count > 0 && l.allocated && l.part == part {
				lanes = append(lanes, n)
			}
		}
		s.scratch.lanes = lanes
		s.queue.sift(lanes)
		s.evictForAccount(lanes, h)
	}
}

// mayEvict tells whether anybody could have to yield to an account.
func (s *sim) mayEvict(a int32, part int16) bool {
	if len(s.free[part]) > 0 {
		return true
	}
	for b := range s.names {
		guarded := s.accounts[b].guarded
		if len(guarded) > 0 && s.slots[guarded[0]].protectedUntil <= s.now && s.mayYield(s.p.Contract, a, int32(b)) {
			return true
		}
	}
	return false
}

// evictForAccount goes through a heap of an account's lanes. Where a job finds no
// victims, larger ones of no higher declared priority do not, either.
func (s *sim) evictForAccount(lanes []int32, h *reservation) {
	failed, failedQOS := int32(mostGPUs), uint32(0)
	for evicted := 0; len(lanes) > 0 && evicted < mostEvictions; {
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
			}
		}
		lanes[0] = lanes[len(lanes)-1]
		if lanes = lanes[:len(lanes)-1]; len(lanes) > 0 {
			s.queue.siftDown(lanes, 0)
		}
	}
}
