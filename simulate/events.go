// SPDX-License-Identifier: GPL-2.0-or-later

package simulate

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
