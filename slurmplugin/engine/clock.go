// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"slices"
	"time"

	"gpubudget/fairshare"
)

// leastJump is the least difference between how far the clock went and how much
// time has passed that counts as the clock having been set. Between two passes
// a clock that is only slewed doesn't go as far wrong.
const leastJump = 10 * time.Second

// holdBuckets is for how long the totals of all buckets of demand are kept when
// the clock was set. By then whoever set it wrongly has put it right.
const holdBuckets = 24 * time.Hour

// steadyClock compares the clock that passes go by, which somebody may set, with
// one that nobody can.
type steadyClock struct {
	passed func() time.Duration

	now    fairshare.Instant // when it was looked at last, 0 if never
	at     time.Duration     // when that was, by passed
	jumped time.Duration     // by how much it was set since that was told of
}

func newSteadyClock(h Host) steadyClock {
	if h.Passed != nil {
		return steadyClock{passed: h.Passed}
	}
	began := time.Now()
	return steadyClock{passed: func() time.Duration { return time.Since(began) }}
}

// look returns by how much the clock, which says now, was set since it was
// looked at last: negative if back, 0 if by less than leastJump.
func (s *steadyClock) look(now fairshare.Instant) time.Duration {
	before, since := s.now, s.at
	if s.passed == nil {
		return 0
	}
	s.now, s.at = now, s.passed()
	if before == 0 {
		return 0
	}
	jump := time.Duration(now-before)*time.Millisecond - (s.at - since)
	if jump.Abs() < leastJump {
		return 0
	}
	s.jumped += jump
	return jump
}

// tellJump logs that the clock was set, if it was.
func (e *Engine) tellJump() {
	e.mu.Lock()
	now, clock := e.tracker.now, &e.tracker.clock
	if !e.watching {
		clock.look(now) // the tracker has not
	}
	jump := clock.jumped
	clock.jumped = 0
	e.mu.Unlock()
	if jump == 0 {
		return
	}
	way := "ahead"
	if jump < 0 {
		way = "back"
	}
	e.logf(LogError, "the clock was set %s by %s, to %s: the lookback window and ages go by the new time, and demand by the time that has passed",
		way, jump.Abs().Round(time.Second), showTime(now))
}

// shift moves what was noted by the clock that was set on to how it goes now, so
// that the time to the next pass is what has really passed.
func (t *tracker) shift(by time.Duration) {
	if t.now == 0 || by == 0 {
		return
	}
	d := fairshare.Instant(by.Milliseconds())
	t.now += d
	for _, rec := range t.jobs {
		if rec.lastSeen != 0 {
			rec.lastSeen += d
		}
	}
	for _, r := range t.openRuns() {
		r.counted += d
	}
	t.shiftCapacity()
	t.demand.held = t.now + fairshare.Instant(holdBuckets.Milliseconds())
}

// shiftCapacity has the latest capacity in force by now, should it have become
// known in what is the future again.
func (t *tracker) shiftCapacity() {
	n := len(t.capacity)
	if n == 0 || t.capacity[n-1].at <= t.now {
		return
	}
	last := capacityStep{t.now, t.capacity[n-1].gpus}
	t.capacity = append(slices.DeleteFunc(t.capacity, func(c capacityStep) bool { return c.at >= t.now }), last)
	t.coveredCapacity = min(t.coveredCapacity, len(t.capacity)-1)
	t.unsaved = append(t.unsaved, last)
}
