// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"cmp"
	"slices"

	"gpubudget/fairshare"
)

// History is what ended runs were charged since some instant: by bucket, account
// and user, and run by run in the buckets that an edge cuts. It is read by
// Store.History, and the next one from it, by what has changed.
//
// A History is not changed after it was made, and shares with the one before
// all that is alike.
type History struct {
	since  fairshare.Instant // windows begin no earlier
	at     fairshare.Instant // when it was read: what ended by then is in it
	owners []Owner           // by the numbers that spans have
	spans  []span            // ascending
	roster roster
	seen   mark
}

// Owner is a user in an account.
type Owner struct{ Account, User string }

// span is a bucket.
type span struct {
	fairshare.Period
	owners  []uint32 // ascending
	amounts []fairshare.GPUMillis
	// cut tells that the runs themselves are known: within the bucket, any
	// stretch of time can be counted to the millisecond.
	cut    bool
	pieces []piece
}

// piece is a run, as far as it lies in the bucket; or runs of one owner that
// lie in the same stretch of it.
type piece struct {
	owner  uint32
	run    fairshare.Period // may stick out of the bucket
	amount fairshare.GPUMillis
}

func (p *piece) compare(q *piece) int {
	return cmp.Or(cmp.Compare(p.owner, q.owner), cmp.Compare(p.run.From, q.run.From), cmp.Compare(p.run.Until, q.run.Until),
		cmp.Compare(p.amount, q.amount))
}

// roster finds the number of an owner. It belongs to the latest History of a row
// of them.
type roster map[string]uint32

// NewHistory is a history of charges, as it was at an instant. Where a window
// cuts a charge, its part counts.
func NewHistory(since, at fairshare.Instant, charges []fairshare.Charge) *History {
	h := &History{since: since, at: at, roster: make(roster)}
	g := newGathering(h)
	var name []byte
	for _, c := range charges {
		name = append(append(append(name[:0], c.Account...), 0), c.User...)
		g.add(c.Period, h.number(name, len(c.Account)), c.Amount)
	}
	g.settle()
	return h
}

// Since is where windows may begin.
func (h *History) Since() fairshare.Instant { return h.since }

// At is when it was read.
func (h *History) At() fairshare.Instant { return h.at }

// Owners are all who were charged something. It must not be changed.
func (h *History) Owners() []Owner { return h.owners }

// Len is how many amounts are in it.
func (h *History) Len() int {
	n := 0
	for i := range h.spans {
		n += len(h.spans[i].owners)
	}
	return n
}

// number is the number of an owner: account, a zero byte, user.
func (h *History) number(name []byte, account int) uint32 {
	if known, ok := h.roster[string(name)]; ok {
		return known
	}
	text := string(name)
	number := uint32(len(h.owners)) //nolint:gosec // there are not that many
	h.owners = append(h.owners, Owner{text[:account], text[account+1:]})
	h.roster[text] = number
	return number
}

// find is the place of a bucket; found is false if it would have to be put there.
func (h *History) find(p fairshare.Period) (at int, found bool) {
	return slices.BinarySearchFunc(h.spans, p, func(s span, p fairshare.Period) int { return comparePeriods(s.Period, p) })
}

func comparePeriods(p, q fairshare.Period) int {
	return cmp.Or(cmp.Compare(p.From, q.From), cmp.Compare(p.Until, q.Until))
}

// drop forgets the buckets that end before an instant.
func (h *History) drop(before fairshare.Instant) {
	h.since = before
	h.spans = slices.DeleteFunc(h.spans, func(s span) bool { return s.Until <= before })
}

// set changes an amount of a bucket whose memory is h's own.
func (s *span) set(owner uint32, amount fairshare.GPUMillis) {
	at, found := slices.BinarySearch(s.owners, owner)
	if !found {
		s.owners = slices.Insert(s.owners, at, owner)
		s.amounts = slices.Insert(s.amounts, at, amount)
		return
	}
	s.amounts[at] = amount
}

// known is the stretch of time that is counted in the bucket. Where no run is
// known that lies beyond at, that is as far as the amounts go.
func (s *span) known(at fairshare.Instant) fairshare.Period {
	if s.cut || s.Until <= at || at <= s.From {
		return s.Period
	}
	return fairshare.Period{From: s.From, Until: at}
}

// gathering puts amounts in any order into buckets.
type gathering struct {
	history *History
	places  map[fairshare.Period]int
	last    int
}

func newGathering(h *History) *gathering {
	return &gathering{history: h, places: make(map[fairshare.Period]int), last: -1}
}

func (g *gathering) add(p fairshare.Period, owner uint32, amount fairshare.GPUMillis) {
	h := g.history
	if g.last < 0 || h.spans[g.last].Period != p {
		place, known := g.places[p]
		if !known {
			place = len(h.spans)
			g.places[p] = place
			h.spans = append(h.spans, span{Period: p})
		}
		g.last = place
	}
	s := &h.spans[g.last]
	s.owners = append(s.owners, owner)
	s.amounts = append(s.amounts, amount)
}

// settle sorts what was gathered, and sums up what was told of one owner in
// several parts.
func (g *gathering) settle() {
	h := g.history
	slices.SortFunc(h.spans, func(x, y span) int { return comparePeriods(x.Period, y.Period) })
	sums := make([]fairshare.GPUMillis, len(h.owners))
	met := make([]bool, len(h.owners))
	for i := range h.spans {
		h.spans[i].sort(sums, met)
	}
}

// sort sorts a bucket by way of arrays that have a place for each owner, all zero.
func (s *span) sort(sums []fairshare.GPUMillis, met []bool) {
	n := 0
	for i, owner := range s.owners {
		if !met[owner] {
			met[owner] = true
			n++
		}
		sums[owner] += s.amounts[i]
	}
	owners, amounts := make([]uint32, 0, n), make([]fairshare.GPUMillis, 0, n)
	for owner := range met {
		if met[owner] {
			owners, amounts = append(owners, uint32(owner)), append(amounts, sums[owner])
			met[owner], sums[owner] = false, 0
		}
	}
	s.owners, s.amounts = owners, amounts
}

// Charges are the charges in w, which begins no earlier than the history, in the
// order of Store.Charges. None lies on both sides of a cut.
func (h *History) Charges(w fairshare.Period, cuts ...fairshare.Instant) []fairshare.Charge {
	sums := NewSums(h, cuts)
	var charges []fairshare.Charge
	for i := range h.spans {
		sums.part(&h.spans[i], w, func(owner uint32, p fairshare.Period, amount fairshare.GPUMillis) {
			o := h.owners[owner]
			charges = append(charges, fairshare.Charge{Period: p, Account: o.Account, User: o.User, Amount: amount})
		})
	}
	slices.SortFunc(charges, func(x, y fairshare.Charge) int {
		return cmp.Or(comparePeriods(x.Period, y.Period), cmp.Compare(x.Account, y.Account), cmp.Compare(x.User, y.User))
	})
	return charges
}
