// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"cmp"
	"slices"

	"gpubudget/fairshare"
)

// edgePart is the part of the lookback window, next to its tail, in which
// charges are kept one by one because the edge will pass over them.
const edgePart = 24

// window sums up a snapshot's charges, so that a pass needn't look at each
// bucket of a week. It changes no sum: only charges that lie whole between the
// window's tail and the snapshot, and in a time in which no account moved, are
// put together.
type window struct {
	charges []fairshare.Charge
	moves   []fairshare.Instant // when accounts moved, ascending

	solid  fairshare.Instant  // all sums lie after this
	summed []fairshare.Charge // sums, and the charges that could not be summed up
}

func newWindow(s *Snapshot) *window {
	if s == nil {
		return &window{}
	}
	return &window{charges: s.Charges, moves: s.Budget.Moves()}
}

// in are charges with the same sums in w as the snapshot's.
func (n *window) in(w fairshare.Period) []fairshare.Charge {
	if n.summed == nil || w.From > n.solid {
		n.sumUp(w.From + fairshare.Instant(w.Millis()/edgePart))
	}
	return n.summed
}

type sumKey struct {
	account, user string
	epoch         int
}

func (n *window) sumUp(solid fairshare.Instant) {
	sums := make(map[sumKey]fairshare.Charge)
	summed := make([]fairshare.Charge, 0, len(n.charges)/edgePart)
	for _, c := range n.charges {
		epoch, whole := n.epoch(c.Period)
		if c.From < solid || !whole {
			summed = append(summed, c)
			continue
		}
		key := sumKey{c.Account, c.User, epoch}
		sum, ok := sums[key]
		if !ok {
			sums[key] = c
			continue
		}
		sum.From, sum.Until = min(sum.From, c.From), max(sum.Until, c.Until)
		sum.Amount += c.Amount
		sums[key] = sum
	}
	for _, sum := range sums {
		summed = append(summed, sum)
	}
	slices.SortFunc(summed, compareCharges)
	n.solid, n.summed = solid, summed
}

func compareCharges(x, y fairshare.Charge) int {
	return cmp.Or(cmp.Compare(x.Account, y.Account), cmp.Compare(x.User, y.User),
		cmp.Compare(x.From, y.From), cmp.Compare(x.Until, y.Until), cmp.Compare(x.Amount, y.Amount))
}

// epoch numbers the times between moves; whole tells whether p lies in one.
func (n *window) epoch(p fairshare.Period) (number int, whole bool) {
	number, found := slices.BinarySearch(n.moves, p.From)
	if found {
		number++
	}
	return number, number == len(n.moves) || p.Until <= n.moves[number]
}
