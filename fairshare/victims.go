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
	keys, places := make([]evictionKey, len(occupants)), make(map[string]int)
	for i := range occupants {
		o := &occupants[i]
		place, known := places[o.Account]
		if !known {
			place = r.place(o.Account)
			places[o.Account] = place
		}
		key := evictionKey{group: uint64(len(r.Accounts) + 1 - place), lost: uint64(progressLost(o, now)), gpus: o.GPUs, at: i}
		if o.Allocated {
			key.group |= 1 << 63
		}
		keys[i] = key
	}
	slices.SortFunc(keys, evictionKey.compare)
	order := make([]int, len(keys))
	for i := range keys {
		order[i] = keys[i].at
	}
	return order
}

// evictionKey is what R6 goes by. There may be ten thousand, so each has all that
// it is compared by.
type evictionKey struct {
	group uint64 // whether it is allocated, then how well its account stands
	lost  uint64
	gpus  int64
	at    int // among those given
}

func (x evictionKey) compare(y evictionKey) int {
	switch {
	case x.group != y.group:
		return cmp.Compare(x.group, y.group)
	case x.lost != y.lost:
		return cmp.Compare(x.lost, y.lost)
	case x.gpus != y.gpus:
		return cmp.Compare(x.gpus, y.gpus)
	}
	return cmp.Compare(x.at, y.at)
}

// place is the rank of an account; who isn't in the tree comes after all who
// are.
func (r *Ranking) place(account string) int {
	if standing, known := r.Account(account); known && standing.Rank > 0 {
		return standing.Rank
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
