// SPDX-License-Identifier: GPL-2.0-or-later

package tally

import (
	"math/bits"
	"slices"

	"gpubudget/fairshare"
)

// stretch is a time in which the same jobs held a GPU.
type stretch struct {
	from, until int64 // milliseconds since the boot
	now         int64 // of the round
	look        Look
	held        []*count // whose time it is to be counted now
	counted     []*count // who held it too, as was counted before
}

func (s *stretch) length() int64 { return s.until - s.from }

// parts divides the stretch among those who held the GPU. What was given before
// to others is theirs: a holding that is found late gets of what is left, so
// that all together never have more than there is.
func (s *stretch) parts() []int64 {
	all := slices.Concat(s.counted, s.held)
	parts := split(s.length(), all)[len(s.counted):]
	left := s.length() - s.given()
	for i := range parts {
		parts[i] = min(parts[i], left)
		left -= parts[i]
	}
	return parts
}

// given is the most that was given before of the stretch. Those who have it may
// have been found one after the other, and the time was cut otherwise then: what
// was lost by rounding then must not be given again now.
func (s *stretch) given() int64 {
	var percent int64
	for _, c := range s.counted {
		if c.MPSPercent == 0 {
			return s.length()
		}
		percent += int64(c.MPSPercent)
	}
	return (s.length()*min(percent, 100) + 99) / 100
}

// split divides a length among holders: by their MPS percentages if all have
// one, else evenly. Percentages of more than 100 together are scaled down. What
// is lost by rounding goes to the first ones.
func split(length int64, holders []*count) []int64 {
	n := int64(len(holders))
	parts := make([]int64, n)
	var percent int64
	for _, c := range holders {
		if c.MPSPercent == 0 {
			return evenly(length, parts)
		}
		percent += int64(c.MPSPercent)
	}
	for i, c := range holders {
		parts[i] = length * int64(c.MPSPercent) / max(percent, 100)
	}
	return parts
}

func evenly(length int64, parts []int64) []int64 {
	n := int64(len(parts))
	for i := range parts {
		parts[i] = length / n
		if int64(i) < length%n {
			parts[i]++
		}
	}
	return parts
}

// share is the part of an amount, spread evenly over the look's time, that falls
// into the stretch. Over all stretches of the look it adds up to the amount.
func (s *stretch) share(amount int64) int64 {
	upTo := func(at int64) int64 { return mulDiv(amount, at-s.look.From, s.now-s.look.From) }
	return upTo(s.until) - upTo(s.from)
}

// measure adds what was seen to a holding's bucket.
func (s *stretch) measure(c *count, part int64, wall func(int64) fairshare.Instant) {
	b := c.bucket
	if s.from < s.look.From { // nobody looked
		c.idle(nil)
		b.IdleSince = nil
		return
	}
	if s.until == s.now {
		b.Samples++
	}
	alone := len(s.held)+len(s.counted) == 1
	s.measureBusy(c, alone, wall)
	s.measureMemory(c, alone)
	if s.look.Power != nil {
		if alone {
			part = s.length()
		}
		c.energy += *s.look.Power * part
		b.EnergyKnown += s.length()
		b.Energy = new(c.energy / 1000)
	}
	if s.look.Jobs != nil {
		ran := int64(0)
		if _, ok := s.look.Jobs[c.JobID]; ok {
			ran = s.length()
		}
		b.Process = new(value(b.Process) + ran)
		b.ProcessKnown += s.length()
	}
}

// measureBusy adds the utilisation. Where several jobs hold a GPU nobody knows
// whose it is: it is kept apart, all of it at each of them.
func (s *stretch) measureBusy(c *count, alone bool, wall func(int64) fairshare.Instant) {
	b := c.bucket
	if !alone || s.look.BusyKnown <= 0 {
		c.idle(nil)
		b.IdleSince = nil
	}
	if s.look.BusyKnown <= 0 {
		return
	}
	busy, known := s.busy()
	if !alone {
		c.sharedBusy += busy
		c.sharedBusyKnown += known
		b.SharedBusyKnown = min(c.sharedBusyKnown/1000, b.Shared)
		if b.SharedBusyKnown > 0 {
			b.SharedBusy = new(min(c.sharedBusy/1000, b.SharedBusyKnown))
		}
		return
	}
	if busy > 0 {
		at := wall(s.until)
		c.lastBusy = &at
		c.idle(nil)
	} else if c.idleSince == nil {
		at := wall(s.from)
		c.idle(&at)
	}
	b.LastBusy, b.IdleSince = c.lastBusy, c.idleSince
	c.busy += busy
	c.busyKnown += known
	b.BusyKnown = min(c.busyKnown/1000, b.Held()-b.Shared)
	if b.BusyKnown > 0 {
		b.Busy = new(min(c.busy/1000, b.BusyKnown))
	}
}

// busy is for how long in the stretch the GPU was at work, and for how much of it
// that is known, in microseconds.
func (s *stretch) busy() (busy, known int64) {
	// What is known of more time than there was, as of a sample that began
	// before, counts as spread evenly over it.
	knownFor, span := s.look.BusyKnown, (s.now-s.look.From)*1000
	busyFor := min(s.look.Busy, knownFor)
	if knownFor > span {
		busyFor, knownFor = mulDiv(busyFor, span, knownFor), span
	}
	return s.share(busyFor), s.share(knownFor)
}

// measureMemory adds memory: all that is in use on the GPU, or, where several
// jobs hold it, what the job's own processes have.
func (s *stretch) measureMemory(c *count, alone bool) {
	b := c.bucket
	used := s.look.Memory
	if !alone {
		used = nil
		if job, ok := s.look.Jobs[c.JobID]; ok {
			used = job.Memory
		} else if s.look.Jobs != nil {
			used = new(int64)
		}
	}
	if used == nil {
		return
	}
	b.Memory = new(value(b.Memory) + *used*s.length())
	b.MemoryMax = new(max(value(b.MemoryMax), *used))
	b.MemoryKnown += s.length()
}

func (c *count) idle(since *fairshare.Instant) { c.idleSince = since }

func value(v *int64) int64 {
	if v == nil {
		return 0
	}
	return *v
}

// mulDiv is a*b/c rounded down, for a, b >= 0 and c >= b; 0 if c is 0. The
// product may exceed 64 bits.
func mulDiv(a, b, c int64) int64 {
	if a <= 0 || b <= 0 || c <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(q) //nolint:gosec // at most a
}
