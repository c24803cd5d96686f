// SPDX-License-Identifier: GPL-2.0-or-later

package simulate

import "slices"

// event is something that is due at a second.
type event struct {
	at   int64
	kind kind
	id   int32  // a slot, a job or an outage
	gen  uint32 // of the slot: the event is void if another job is there now
}

type kind uint8

// Kinds of events, in the order in which those of one second happen.
const (
	jobEnds kind = iota
	nodeBack
	nodeAway
	jobReturns // a requeued job is let go
)

func (e *event) before(f *event) bool {
	if e.at != f.at {
		return e.at < f.at
	}
	if e.kind != f.kind {
		return e.kind < f.kind
	}
	return e.id < f.id
}

// events is a heap of what is to come.
type events []event

func (h *events) push(e event) {
	s := append(*h, e)
	at := len(s) - 1
	for at > 0 && e.before(&s[(at-1)/2]) {
		s[at] = s[(at-1)/2]
		at = (at - 1) / 2
	}
	s[at] = e
	*h = s
}

func (h *events) pop() event {
	s := *h
	first, e := s[0], s[len(s)-1]
	s = s[:len(s)-1]
	at := 0
	for {
		below := 2*at + 1
		if below >= len(s) {
			break
		}
		if below+1 < len(s) && s[below+1].before(&s[below]) {
			below++
		}
		if !s[below].before(&e) {
			break
		}
		s[at] = s[below]
		at = below
	}
	if len(s) > 0 {
		s[at] = e
	}
	*h = s
	return first
}

// deadlines are slots in the order of an instant that each has. Both are one
// number, so that whoever looks for a place in the list looks nowhere else.
type deadlines []deadline

type deadline int64

const (
	slotBits     = 24 // more than a cluster can have GPUs
	lastDeadline = 1 << (62 - slotBits)
)

func newDeadline(at int64, slot int32) deadline {
	return deadline(min(at, lastDeadline)<<slotBits | int64(slot))
}

func (d deadline) at() int64   { return int64(d) >> slotBits }
func (d deadline) slot() int32 { return int32(d & (1<<slotBits - 1)) }

func (l *deadlines) add(at int64, slot int32) {
	d := newDeadline(at, slot)
	place, _ := slices.BinarySearch(*l, d)
	*l = slices.Insert(*l, place, d)
}

func (l *deadlines) remove(at int64, slot int32) {
	if place, found := slices.BinarySearch(*l, newDeadline(at, slot)); found {
		*l = slices.Delete(*l, place, place+1)
	}
}

func (l *deadlines) has(at int64, slot int32) bool {
	_, found := slices.BinarySearch(*l, newDeadline(at, slot))
	return found
}
