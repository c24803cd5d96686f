// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"cmp"
	"slices"
	"sort"
)

// Victims chooses whom a request evicts (R6, R7): indices of occupants, those
// that go first in front. All occupants must be such that Decide says they
// yield. Room tells whether the request could start with the given ones gone;
// with more of them gone it must not say no where it said yes with fewer.
//
// Nobody is evicted for nothing: if the request can't start even with all of
// them gone, or only by evicting more than R7 allows, there are no victims; and
// each victim is needed, since without it there is no room.
func (c *Contract) Victims(r *Ranking, now Instant, q *Request, occupants []Occupant, room func(gone []int) bool) []int {
	gone := enough(evictionOrder(r, now, occupants), room)
	gone = needed(gone, room)
	var gpus int64
	for _, i := range gone {
		if occupants[i].Allocated {
			gpus += occupants[i].GPUs
		}
	}
	if !c.mayEvict(q, gpus) {
		return nil
	}
	return gone
}

// evictionOrder is R6: unallocated jobs first, then those of the most
// over-served account, then those that lose least of what they have done since
// their protection ended, then the smallest. What is equal in all of that goes
// in the order it was given in.
func evictionOrder(r *Ranking, now Instant, occupants []Occupant) []int {
	return new(evictions).order(r, now, occupants)
}

// evictions puts jobs into the order of R6, and uses its memory again. There may be
// ten thousand jobs, so each has a key with all that it is compared by, and
// accounts, whose order is known, aren't compared at all.
type evictions struct {
	keys, sorted []evictionKey
	ends         []int // of each group
	places       []int
}

type evictionKey struct {
	group int // unallocated before allocated, then how well its account stands
	lost  GPUMillis
	gpus  int64
	at    int // among those given
}

// order is valid until the next one.
func (e *evictions) order(r *Ranking, now Instant, occupants []Occupant) []int {
	e.group(r, now, occupants)
	begin := 0
	for _, end := range e.ends {
		slices.SortFunc(e.sorted[begin:end], evictionKey.compare)
		begin = end
	}
	e.places = sized(e.places, len(e.sorted))
	for i := range e.sorted {
		e.places[i] = e.sorted[i].at
	}
	return e.places
}

// group puts the keys of each group together, one group after the other.
func (e *evictions) group(r *Ranking, now Instant, occupants []Occupant) {
	accounts := len(r.Accounts) + 2 // one without a rank among them
	e.keys, e.sorted, e.ends = sized(e.keys, len(occupants)), sized(e.sorted, len(occupants)), sized(e.ends, 2*accounts)
	clear(e.ends)
	for i := range occupants {
		o := &occupants[i]
		group := len(r.Accounts) + 1 - r.place(o.Account)
		if o.Allocated {
			group += accounts
		}
		e.keys[i] = evictionKey{group: group, lost: progressLost(o, now), gpus: o.GPUs, at: i}
		e.ends[group]++
	}
	begin := 0
	for group, n := range e.ends {
		e.ends[group] = begin
		begin += n
	}
	for i := range e.keys {
		end := &e.ends[e.keys[i].group]
		e.sorted[*end] = e.keys[i]
		*end++
	}
}

// compare is for keys of one group.
func (x evictionKey) compare(y evictionKey) int {
	switch {
	case x.lost != y.lost:
		return cmp.Compare(x.lost, y.lost)
	case x.gpus != y.gpus:
		return cmp.Compare(x.gpus, y.gpus)
	}
	return cmp.Compare(x.at, y.at)
}

// sized is room for n, of which nobody knows what is in it.
func sized[T any](room []T, n int) []T {
	if room == nil || cap(room) < n {
		return make([]T, n, n+n/4)
	}
	return room[:n]
}

// place is the rank of an account; who isn't in the tree comes after all who
// are.
func (r *Ranking) place(account string) int {
	if i, known := r.accounts[account]; known && r.Accounts[i].Rank > 0 {
		return r.Accounts[i].Rank
	}
	return len(r.Accounts) + 1
}

// progressLost is the GPU time that a job has had since its protection ended:
// what it did before, it was promised to be able to save.
func progressLost(o *Occupant, now Instant) GPUMillis {
	if now <= o.ProtectedUntil {
		return 0
	}
	over, _ := mulDiv(uint64(max(o.GPUs, 0)), distance(o.ProtectedUntil, now), 1)
	return GPUMillis(min(over, uint64(Never)))
}

// enough is the shortest beginning of the order that makes room, none if all
// of it doesn't.
func enough(order []int, room func(gone []int) bool) []int {
	n := sort.Search(len(order)+1, func(n int) bool { return room(order[:n]) })
	if n > len(order) {
		return nil
	}
	return order[:n:n]
}

// needed leaves out whom the request doesn't need gone, beginning with those
// who would be evicted last.
func needed(gone []int, room func(gone []int) bool) []int {
	for i := len(gone) - 2; i >= 0; i-- {
		without := slices.Delete(slices.Clone(gone), i, i+1)
		if room(without) {
			gone = without
		}
	}
	return gone
}
