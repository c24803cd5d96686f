// SPDX-License-Identifier: GPL-2.0-or-later

package simulate

import "slices"

// lane is the waiting jobs that are alike in all that decides who is next but
// when they came: of one owner, with one declared priority, of one size. The
// first in front is the next.
type lane struct {
	owner, account int32
	gpus           int32
	part           int16
	size           int16 // index in queue.sizes of the partition
	kind           int32 // lanes of one owner and one declared priority are of a kind
	qos            uint32
	free           bool // its jobs declared to be unallocated

	allocated  bool    // its jobs are charged
	key        float64 // priority of the first job
	seq        int64   // of that job
	head, tail int32   // jobs; -1 if there are none
	count      int32

	at     int32 // in the heap of its partition; -1 if it isn't there
	atSize int32 // in sized
	atBusy int32 // in busy
	failed int32 // its first job when that found nobody to evict
	retry  int64 // when that may look again
	wait   int64 // and for how long it waits then
	parked bool  // its account's quota is used up
	limit  int64 // the shortest time limit of those that a backfill pass tries; 0 if that has to be found out
}

type laneKey struct {
	owner, gpus int32
	part        int16
	qos         uint32
	free        bool
}

// course is how a job fares. What is asked about one job lies together: with a
// million of them, hardly any is in a cache when its turn comes.
type course struct {
	submitted  int64
	queued     int64 // when it came into the queue last
	waited     int64 // until its first start; -1 before it
	done       int64 // what it has saved
	seq        int64 // the order in which they were queued
	lane       int32
	next, prev int32 // in its lane
	record     int32 // of its evictions; -1 if there were none
}

// queue is all waiting jobs.
type queue struct {
	lanes  []lane
	number map[laneKey]int32
	jobs   []course
	last   int64 // the latest seq

	parts []queuePart
	owned [][]int32 // by account: its lanes
	busy  [][]int32 // by account: those with jobs
	kinds int       // of lanes
}

// queuePart is the queue of a partition.
type queuePart struct {
	heap  []int32   // lanes with jobs, the next in front
	sizes []int32   // sizes of jobs, ascending
	sized [][]int32 // by size: lanes with jobs
	jobs  []int     // by size: how many jobs wait
	asks  [][]int32 // by size and account: the same
}

func newQueue(w *Workload, parts int, accountOf []int32, accounts int) *queue {
	n := len(w.Jobs)
	q := &queue{
		number: make(map[laneKey]int32), jobs: make([]course, n), parts: make([]queuePart, parts), owned: make([][]int32, accounts), busy: make([][]int32, accounts),
	}
	for i := range w.Jobs {
		q.jobs[i] = course{lane: q.laneOf(&w.Jobs[i], accountOf), waited: -1, record: -1}
	}
	q.findSizes(accounts)
	return q
}

func (q *queue) laneOf(j *Job, accountOf []int32) int32 {
	key := laneKey{j.Owner, j.GPUs, j.Partition, j.QOS, j.MinRuntime == 0}
	n, known := q.number[key]
	if !known {
		n = int32(len(q.lanes))
		q.number[key] = n
		account := accountOf[j.Owner]
		q.lanes = append(q.lanes, lane{
			owner: j.Owner, account: account, gpus: j.GPUs, part: j.Partition, qos: j.QOS, free: key.free,
			allocated: true, head: -1, tail: -1, at: -1, atSize: -1, atBusy: -1, failed: -1,
		})
		q.owned[account] = append(q.owned[account], n)
	}
	return n
}

func (q *queue) findSizes(accounts int) {
	for p := range q.parts {
		part := &q.parts[p]
		for i := range q.lanes {
			if int(q.lanes[i].part) == p {
				part.sizes = append(part.sizes, q.lanes[i].gpus)
			}
		}
		slices.Sort(part.sizes)
		part.sizes = slices.Compact(part.sizes)
		part.sized = make([][]int32, len(part.sizes))
		part.jobs = make([]int, len(part.sizes))
		part.asks = make([][]int32, len(part.sizes))
		for size := range part.asks {
			part.asks[size] = make([]int32, accounts)
		}
	}
	type kind struct {
		owner int32
		qos   uint32
	}
	kinds := make(map[kind]int32)
	for i := range q.lanes {
		l := &q.lanes[i]
		k, known := kinds[kind{l.owner, l.qos}]
		if !known {
			k = int32(len(kinds))
			kinds[kind{l.owner, l.qos}] = k
		}
		l.kind = k
		size, _ := slices.BinarySearch(q.parts[l.part].sizes, l.gpus)
		l.size = int16(size)
	}
	q.kinds = len(kinds)
}

// push puts a job at the end of its lane; first tells that it is the first
// there now, and its key has to be set.
func (q *queue) push(job int32) (l *lane, first bool) {
	c := &q.jobs[job]
	l = &q.lanes[c.lane]
	q.last++
	c.seq, c.next, c.prev = q.last, -1, l.tail
	if l.tail >= 0 {
		q.jobs[l.tail].next = job
	} else {
		l.head, l.seq = job, c.seq
	}
	l.tail = job
	l.count++
	if l.count <= mostSkipped {
		l.limit = 0
	}
	q.count(l, 1)
	return l, l.count == 1
}

// remove takes a job out of its lane; first tells that it was the first there.
func (q *queue) remove(job int32) (l *lane, first bool) {
	c := &q.jobs[job]
	l = &q.lanes[c.lane]
	first = l.head == job
	switch {
	case c.prev >= 0:
		q.jobs[c.prev].next = c.next
	case c.next >= 0:
		l.head, l.seq = c.next, q.jobs[c.next].seq
	default:
		l.head = -1
	}
	if c.next >= 0 {
		q.jobs[c.next].prev = c.prev
	} else {
		l.tail = c.prev
	}
	l.count--
	l.limit = 0
	q.count(l, -1)
	return l, first
}

// count counts jobs that wait.
func (q *queue) count(l *lane, jobs int) {
	p := &q.parts[l.part]
	p.jobs[l.size] += jobs
	p.asks[l.size][l.account] += int32(jobs)
}

// enter puts a lane that has jobs and a key into the heap of its partition.
func (q *queue) enter(n int32) {
	l := &q.lanes[n]
	p := &q.parts[l.part]
	if l.atSize < 0 {
		l.atSize = int32(len(p.sized[l.size]))
		p.sized[l.size] = append(p.sized[l.size], n)
	}
	if l.atBusy < 0 {
		l.atBusy = int32(len(q.busy[l.account]))
		q.busy[l.account] = append(q.busy[l.account], n)
	}
	if l.parked {
		return
	}
	if l.at < 0 {
		l.at = int32(len(p.heap))
		p.heap = append(p.heap, n)
	}
	q.fix(p, l.at)
}

// leave takes a lane out of the heap; gone tells that it has no jobs any more.
func (q *queue) leave(n int32, gone bool) {
	l := &q.lanes[n]
	p := &q.parts[l.part]
	if gone && l.atSize >= 0 {
		list := p.sized[l.size]
		end := list[len(list)-1]
		list[l.atSize] = end
		q.lanes[end].atSize = l.atSize
		p.sized[l.size] = list[:len(list)-1]
		l.atSize = -1
		list = q.busy[l.account]
		end = list[len(list)-1]
		list[l.atBusy] = end
		q.lanes[end].atBusy = l.atBusy
		q.busy[l.account] = list[:len(list)-1]
		l.atBusy = -1
	}
	if l.at < 0 {
		return
	}
	at, end := l.at, int32(len(p.heap)-1)
	l.at = -1
	if at != end {
		p.heap[at] = p.heap[end]
		q.lanes[p.heap[at]].at = at
	}
	p.heap = p.heap[:end]
	if at < end {
		q.fix(p, at)
	}
}

// before tells whether lane a is to be served before lane b.
func (q *queue) before(a, b int32) bool {
	x, y := &q.lanes[a], &q.lanes[b]
	if x.key != y.key {
		return x.key > y.key
	}
	return x.seq < y.seq
}

// fix restores the heap where one lane's key has changed.
func (q *queue) fix(p *queuePart, at int32) {
	if at > 0 && q.before(p.heap[at], p.heap[(at-1)/2]) {
		q.up(p, at)
		return
	}
	q.down(p, at)
}

func (q *queue) up(p *queuePart, at int32) {
	n := p.heap[at]
	for at > 0 {
		above := (at - 1) / 2
		if !q.before(n, p.heap[above]) {
			break
		}
		p.heap[at] = p.heap[above]
		q.lanes[p.heap[at]].at = at
		at = above
	}
	p.heap[at] = n
	q.lanes[n].at = at
}

func (q *queue) down(p *queuePart, at int32) {
	n, size := p.heap[at], int32(len(p.heap))
	for {
		below := 2*at + 1
		if below >= size {
			break
		}
		if below+1 < size && q.before(p.heap[below+1], p.heap[below]) {
			below++
		}
		if !q.before(p.heap[below], n) {
			break
		}
		p.heap[at] = p.heap[below]
		q.lanes[p.heap[at]].at = at
		at = below
	}
	p.heap[at] = n
	q.lanes[n].at = at
}

// heapify orders a heap anew after all keys have changed.
func (q *queue) heapify(p *queuePart) {
	for at := int32(len(p.heap)/2) - 1; at >= 0; at-- {
		q.down(p, at)
	}
}

// sift makes a heap of lanes that is nobody's place in the queue.
func (q *queue) sift(lanes []int32) {
	for at := len(lanes)/2 - 1; at >= 0; at-- {
		q.siftDown(lanes, at)
	}
}

func (q *queue) siftDown(lanes []int32, at int) {
	n := lanes[at]
	for {
		below := 2*at + 1
		if below >= len(lanes) {
			break
		}
		if below+1 < len(lanes) && q.before(lanes[below+1], lanes[below]) {
			below++
		}
		if !q.before(lanes[below], n) {
			break
		}
		lanes[at] = lanes[below]
		at = below
	}
	lanes[at] = n
}
