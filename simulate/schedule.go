// SPDX-License-Identifier: GPL-2.0-or-later

package simulate

// reservation is nodes held for a job that has to wait.
type reservation struct {
	job    int32 // -1 if there is none
	at     int64 // when it was made
	shadow int64 // when the job can start at the latest
	nodes  []int32
}

// scratch is memory for reuse.
type scratch struct {
	heap  []int32
	free  []int16
	lanes []int32
	loose []loose

	candidates candidates
}

// schedule starts what can be started. In order until a job has to wait; in a
// full pass, for which it is time every now and then, the whole queue.
func (s *sim) schedule() {
	full := s.now >= s.nextFull
	if s.waiting() {
		if s.p.Contract != nil || s.anythingFits() {
			s.standing.refresh(s)
		}
		for p := range s.queue.parts {
			s.scheduleIn(int16(p), full)
		}
	}
	if full {
		s.nextFull = s.now + s.every.backfill
		s.dirty = false
	}
	s.counts.strandedNow, s.counts.byQuotaNow = s.stranded()
}

func (s *sim) scheduleIn(part int16, full bool) {
	q, h := &s.queue.parts[part], &s.hold[part]
	if len(q.heap) == 0 && h.job < 0 && !s.p.Overflow {
		return
	}
	s.startHolder(h)
	for len(q.heap) > 0 {
		l := &s.queue.lanes[q.heap[0]]
		if s.park(l, q.heap[0]) {
			continue
		}
		if h.job >= 0 && h.job != l.head && !s.keeps(h) {
			s.release(h)
		}
		if !s.place(l.head, s.mayUseHeld(h, l, l.head), s.allocates(l)) && !s.evictFor(l, h) {
			break
		}
	}
	if !full {
		return
	}
	if len(q.heap) > 0 {
		s.holdFor(part, s.queue.lanes[q.heap[0]].head)
	}
	if s.p.Contract != nil {
		s.evictByAccount(part)
	}
	s.backfill(part)
	if s.p.Overflow {
		s.overflow(part)
	}
}

// anythingFits tells whether any waiting job could be placed. If not, and if
// nobody can be evicted, it is all the same who is next.
func (s *sim) anythingFits() bool {
	for i := range s.queue.parts {
		q := &s.queue.parts[i]
		for size, gpus := range q.sizes {
			if q.jobs[size] > 0 && s.nodes.fits(int16(i), gpus, true) {
				return true
			}
		}
	}
	return false
}

// allocates tells whether a lane's jobs are charged when they start in order.
func (s *sim) allocates(l *lane) bool { return s.p.Kind != Budgets || l.allocated }

// place starts a job if it fits.
func (s *sim) place(job int32, withHeld, allocated bool) bool {
	j := &s.jobs[job]
	if !s.nodes.fits(j.Partition, j.GPUs, withHeld) {
		return false
	}
	s.pieces = s.nodes.place(j.Partition, j.GPUs, withHeld, s.pieces[:0])
	s.start(job, s.pieces, allocated)
	return true
}

// ---- quotas ----

// park takes a lane out of the order whose account has no quota left for its
// first job.
func (s *sim) park(l *lane, n int32) bool {
	if s.p.Kind != Quota {
		return false
	}
	if !s.accounts[l.account].full(l.gpus) {
		return false
	}
	l.parked = true
	s.queue.leave(n, false)
	return true
}

// unpark puts an account's lanes back.
func (s *sim) unpark(account int32) {
	if s.p.Kind != Quota {
		return
	}
	for _, n := range s.queue.owned[account] {
		if l := &s.queue.lanes[n]; l.parked {
			l.parked = false
			s.enter(l)
		}
	}
}

// overflow starts jobs beyond the quota on what is idle, in the order in which
// they came.
func (s *sim) overflow(part int16) {
	parked := func(l *lane) bool { return l.parked }
	hopeless := func(l *lane) bool { return !s.nodes.fits(part, l.gpus, true) }
	s.eachFitting(part, parked, hopeless, func(_ *lane, job int32) bool {
		return s.place(job, true, false)
	})
}

// ---- backfill ----

// keeps tells whether the nodes held for a job are kept though it is not the
// first in the queue any more.
func (s *sim) keeps(h *reservation) bool {
	return s.p.LargeJob > 0 && int(s.jobs[h.job].GPUs) >= s.p.LargeJob
}

// mayUseHeld tells whether a job may run on nodes that are held: if they are
// held for it, or it is gone by then, or it gives way at once.
func (s *sim) mayUseHeld(h *reservation, l *lane, job int32) bool {
	return h.job < 0 || h.job == job || s.now+s.jobs[job].Limit <= h.shadow ||
		s.p.Contract != nil && !l.allocated
}

// someMayUseHeld tells whether any job that a backfill pass tries of a lane may
// run on nodes that are held.
func (s *sim) someMayUseHeld(h *reservation, l *lane) bool {
	if h.job < 0 || s.p.Contract != nil && !l.allocated {
		return true
	}
	if l.limit == 0 {
		l.limit = never
		job := l.head
		for range min(l.count, mostSkipped) {
			l.limit = min(l.limit, s.jobs[job].Limit)
			job = s.courses[job].next
		}
	}
	return s.now+l.limit <= h.shadow
}

// startHolder starts the job for which nodes are held, if it may keep them.
func (s *sim) startHolder(h *reservation) {
	if h.job < 0 || !s.keeps(h) {
		return
	}
	if l := &s.queue.lanes[s.courses[h.job].lane]; !l.parked {
		s.place(h.job, true, s.allocates(l))
	}
}

func (s *sim) release(h *reservation) {
	for _, node := range h.nodes {
		if s.nodes.class[node] == held {
			s.nodes.move(node, open)
		}
	}
	h.nodes, h.job = h.nodes[:0], -1
}

// holdFor finds the nodes that will be free first, by the time limits of what
// runs there, and holds them for a job.
func (s *sim) holdFor(part int16, job int32) {
	h := &s.hold[part]
	if h.job >= 0 {
		fresh := s.now < h.shadow && s.now < h.at+s.every.calc
		if fresh {
			return
		}
		if h.job != job && s.keeps(h) {
			job = h.job
		}
		s.release(h)
	}
	p := &s.nodes.parts[part]
	whole, rest := p.split(s.jobs[job].GPUs)
	h.job, h.at, h.shadow = job, s.now, never
	if whole > 0 {
		if rest > 0 {
			whole++
		}
		s.holdWhole(h, part, int(whole))
		return
	}
	free := s.copyFree(part)
	for _, d := range s.byEnd[part] {
		n := d.slot()
		for _, x := range s.slots[n].pieces {
			at := x.Node - p.first
			free[at] += x.GPUs
			if free[at] >= rest && s.nodes.class[x.Node] == open {
				h.shadow = s.slots[n].limitEnd
				s.holdNode(h, x.Node)
				return
			}
		}
	}
}

// holdWhole holds whole nodes.
func (s *sim) holdWhole(h *reservation, part int16, whole int) {
	p := &s.nodes.parts[part]
	for node := p.lists[open][p.per].head; node >= 0 && len(h.nodes) < whole; {
		next := s.nodes.next[node]
		s.holdNode(h, node)
		node = next
	}
	if len(h.nodes) == whole {
		h.shadow = s.now
		return
	}
	free := s.copyFree(part)
	for _, d := range s.byEnd[part] {
		n := d.slot()
		for _, x := range s.slots[n].pieces {
			at := x.Node - p.first
			free[at] += x.GPUs
			if free[at] < p.per || s.nodes.class[x.Node] != open {
				continue
			}
			s.holdNode(h, x.Node)
			if len(h.nodes) == whole {
				h.shadow = s.slots[n].limitEnd
				return
			}
		}
	}
}

func (s *sim) holdNode(h *reservation, node int32) {
	h.nodes = append(h.nodes, node)
	s.nodes.move(node, held)
}

func (s *sim) copyFree(part int16) []int16 {
	p := &s.nodes.parts[part]
	s.scratch.free = append(s.scratch.free[:0], s.nodes.free[p.first:p.last]...)
	return s.scratch.free
}

// backfill starts jobs that do not delay the one for which nodes are held.
func (s *sim) backfill(part int16) {
	h := &s.hold[part]
	tested := 0
	wanted := func(l *lane) bool { return !l.parked && !s.overQuota(l) }
	hopeless := func(l *lane) bool {
		switch {
		case s.overQuota(l):
			return true
		case s.straight:
			return false
		case tested < s.p.BackfillDepth && (s.nodes.fits(part, l.gpus, false) || s.nodes.fits(part, l.gpus, true) && s.someMayUseHeld(h, l)):
			return false
		}
		tested += int(min(l.count, mostSkipped))
		if h.job >= 0 && l.head == h.job {
			tested--
		}
		return true
	}
	s.eachFitting(part, wanted, hopeless, func(l *lane, job int32) bool {
		if job == h.job || tested >= s.p.BackfillDepth || s.overQuota(l) {
			return false
		}
		tested++
		return s.place(job, s.mayUseHeld(h, l, job), s.allocates(l))
	})
}

func (s *sim) overQuota(l *lane) bool {
	return s.p.Kind == Quota && s.accounts[l.account].full(l.gpus)
}

// mostSkipped is how many jobs of one lane a pass tries in vain.
const mostSkipped = 8

// eachFitting tries to start waiting jobs for which there would be room if all
// nodes could be used, in order; none of a lane that is hopeless when its turn
// comes.
func (s *sim) eachFitting(part int16, wanted, hopeless func(*lane) bool, try func(l *lane, job int32) bool) {
	q, heap := &s.queue.parts[part], s.scratch.heap[:0]
	for size, gpus := range q.sizes {
		if q.jobs[size] == 0 || !s.nodes.fits(part, gpus, true) {
			continue
		}
		for _, n := range q.sized[size] {
			if wanted(&s.queue.lanes[n]) {
				heap = append(heap, n)
			}
		}
	}
	s.scratch.heap = heap
	s.queue.sift(heap)
	for len(heap) > 0 {
		n := heap[0]
		l := &s.queue.lanes[n]
		started := !hopeless(l) && s.tryLane(l, try)
		if started && l.count > 0 && s.nodes.fits(part, l.gpus, true) && wanted(l) {
			s.queue.siftDown(heap, 0)
			continue
		}
		last := len(heap) - 1
		heap[0] = heap[last]
		heap = heap[:last]
		if last > 0 {
			s.queue.siftDown(heap, 0)
		}
		if s.nodes.parts[part].idle == 0 {
			return
		}
	}
}

// tryLane starts the first job of a lane that can be started.
func (s *sim) tryLane(l *lane, try func(l *lane, job int32) bool) bool {
	job := l.head
	for range mostSkipped {
		if job < 0 {
			return false
		}
		next := s.courses[job].next
		if try(l, job) {
			return true
		}
		job = next
	}
	return false
}

// stranded is how many GPUs are idle while a job waits that would fit if they
// were in one place, and how many are while only such jobs wait whose quota is used
// up: nothing but the quota keeps these idle.
func (s *sim) stranded() (gpus, byQuota int64) {
	for i := range s.queue.parts {
		q, idle := &s.queue.parts[i], s.nodes.parts[i].idle
		waits, may := false, false
		for size, fits := range q.sizes {
			if int(fits) > idle || may {
				break
			}
			if q.jobs[size] > 0 {
				waits, may = true, s.quotaLeaves(q.asks[size], fits)
			}
		}
		switch {
		case may:
			gpus += int64(idle)
		case waits:
			byQuota += int64(idle)
		}
	}
	return gpus, byQuota
}

// quotaLeaves tells whether a job of so many GPUs may start, of accounts of which
// some have one waiting.
func (s *sim) quotaLeaves(waiting []int32, gpus int32) bool {
	if s.p.Kind != Quota || s.p.Overflow {
		return true
	}
	for a, jobs := range waiting {
		if jobs > 0 && !s.accounts[a].full(gpus) {
			return true
		}
	}
	return false
}

// full tells whether a job of so many GPUs would be beyond the account's quota. Who asks for
// more than the quota gets it when nothing else of the account runs.
func (a *account) full(gpus int32) bool {
	return a.running+int64(gpus) > a.quota && a.running > 0
}
