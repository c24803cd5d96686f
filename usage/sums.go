// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"slices"

	"gpubudget/fairshare"
)

// Sums sums up a History for a window that moves on: what lies well within the
// window it sums up once, and what an edge passes over it counts each time. It
// is not safe for concurrent use.
type Sums struct {
	history *History
	moves   []fairshare.Instant // ascending

	whole fairshare.Period  // all that is summed up lies in it
	from  fairshare.Instant // windows that begin before have more in them
	sums  []epochSum
	edges []int // spans that are not in sums
	ready bool
}

// epochSum is what was charged between two moves, by number of the owner.
type epochSum struct {
	fairshare.Period

	epoch   int
	amounts []fairshare.GPUMillis
}

// NewSums sums up a history. No amount that it tells of lies on both sides of a
// move.
func NewSums(h *History, moves []fairshare.Instant) *Sums {
	if !slices.IsSorted(moves) {
		moves = slices.Sorted(slices.Values(moves))
	}
	return &Sums{history: h, moves: moves}
}

// In tells what was charged in a window that begins no earlier than the history:
// owners by number, when, and how much.
func (s *Sums) In(w fairshare.Period, tell func(owner uint32, p fairshare.Period, amount fairshare.GPUMillis)) {
	if !s.fits(w) {
		s.sumUp(w)
	}
	for i := range s.sums {
		sum := &s.sums[i]
		for owner, amount := range sum.amounts {
			if amount != 0 {
				tell(uint32(owner), sum.Period, amount)
			}
		}
	}
	for _, i := range s.edges {
		s.part(&s.history.spans[i], w, tell)
	}
}

// fits tells whether what is summed up is so in w.
func (s *Sums) fits(w fairshare.Period) bool {
	return s.ready && w.From >= s.from && w.From <= s.whole.From && w.Until >= s.whole.Until
}

// sumUp sums up what lies in w.
func (s *Sums) sumUp(w fairshare.Period) {
	s.from, s.whole = w.From, fairshare.Period{From: fairshare.Never, Until: fairshare.Always}
	s.sums, s.edges, s.ready = s.sums[:0], s.edges[:0], true
	for i := range s.history.spans {
		b := &s.history.spans[i]
		p := b.known(s.history.at)
		switch {
		case p.Until <= w.From:
		case p.From < w.From || p.Until > w.Until || !b.cut && s.epoch(p.From) != s.epoch(p.Until-1):
			s.edges = append(s.edges, i)
		default:
			s.whole.From, s.whole.Until = min(s.whole.From, p.From), max(s.whole.Until, p.Until)
			s.add(b, p)
		}
	}
}

// add adds a bucket to the sums.
func (s *Sums) add(b *span, p fairshare.Period) {
	if !b.cut {
		sum := s.sumOf(p)
		for i, owner := range b.owners {
			sum.amounts[owner] += b.amounts[i]
		}
		return
	}
	for _, part := range s.parts(p) {
		sum := s.sumOf(part)
		for i := range b.pieces {
			sum.amounts[b.pieces[i].owner] += b.pieces[i].in(part)
		}
	}
}

// sumOf is the sum that p belongs to.
func (s *Sums) sumOf(p fairshare.Period) *epochSum {
	epoch := s.epoch(p.From)
	for i := range s.sums {
		if sum := &s.sums[i]; sum.epoch == epoch {
			sum.From, sum.Until = min(sum.From, p.From), max(sum.Until, p.Until)
			return sum
		}
	}
	n := len(s.sums)
	s.sums = slices.Grow(s.sums, 1)[:n+1]
	sum := &s.sums[n]
	sum.Period, sum.epoch = p, epoch
	sum.amounts = slices.Grow(sum.amounts[:0], len(s.history.owners))[:len(s.history.owners)]
	clear(sum.amounts)
	return sum
}

// epoch numbers the times between moves.
func (s *Sums) epoch(at fairshare.Instant) int {
	number, found := slices.BinarySearch(s.moves, at)
	if found {
		number++
	}
	return number
}

// parts is p cut at the moves.
func (s *Sums) parts(p fairshare.Period) []fairshare.Period {
	var parts []fairshare.Period
	for i := s.epoch(p.From); i < len(s.moves) && s.moves[i] < p.Until; i++ {
		parts = append(parts, fairshare.Period{From: p.From, Until: s.moves[i]})
		p.From = s.moves[i]
	}
	return append(parts, p)
}

// part tells what was charged in a bucket, as far as that lies in w. Where the
// runs are not known, they are taken to lie evenly in the bucket.
func (s *Sums) part(b *span, w fairshare.Period, tell func(uint32, fairshare.Period, fairshare.GPUMillis)) {
	p := b.known(s.history.at)
	within := p.Intersect(w)
	if within.Empty() {
		return
	}
	for _, part := range s.parts(within) {
		if b.cut {
			for i := range b.pieces {
				if amount := b.pieces[i].in(part); amount != 0 {
					tell(b.pieces[i].owner, part, amount)
				}
			}
			continue
		}
		for i, owner := range b.owners {
			c := fairshare.Charge{Period: p, Amount: b.amounts[i]}
			if amount := c.In(part); amount != 0 {
				tell(owner, part, amount)
			}
		}
	}
}

// in is what the piece has in a part of its bucket.
func (p *piece) in(part fairshare.Period) fairshare.GPUMillis {
	if part.From <= p.run.From && part.Until >= p.run.Until {
		return p.amount
	}
	c := fairshare.Charge{Period: p.run, Amount: p.amount}
	return c.In(part)
}
