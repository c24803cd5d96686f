// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// mulDiv is a*b/c and its remainder, exact through a 128-bit product. A
// quotient beyond 64 bits, and a division by zero, saturate.
func mulDiv(a, b, c uint64) (quotient, remainder uint64) {
	hi, lo := bits.Mul64(a, b)
	if hi >= c {
		return math.MaxUint64, 0
	}
	return bits.Div64(hi, lo, c)
}

// add is a+b; it stops at the ends of the range instead of wrapping around.
func add(a, b GPUMillis) GPUMillis {
	sum := a + b
	if a > 0 && b > 0 && sum < 0 {
		return math.MaxInt64
	}
	if a < 0 && b < 0 && sum >= 0 {
		return math.MinInt64
	}
	return sum
}

// scale is amount*part/whole, rounded towards zero, for part <= whole.
func scale(amount GPUMillis, part, whole uint64) GPUMillis {
	if amount < 0 {
		q, _ := mulDiv(-uint64(amount), part, whole)
		return GPUMillis(-q)
	}
	q, _ := mulDiv(uint64(amount), part, whole)
	return GPUMillis(q)
}

// portion is the part of an amount, spread evenly over a period, that lies in
// the window. It is the difference of two roundings of the amount gathered
// since the period began, so the portions in windows that follow each other
// add up exactly to the portion in the window they make up. An amount with an
// empty period falls on the instant it begins.
func portion(amount GPUMillis, spread, window Period) GPUMillis {
	if spread.Empty() {
		if window.Contains(spread.From) {
			return amount
		}
		return 0
	}
	if window.From <= spread.From && window.Until >= spread.Until {
		return amount
	}
	cut := spread.Intersect(window)
	if cut.Empty() {
		return 0
	}
	whole := distance(spread.From, spread.Until)
	return scale(amount, distance(spread.From, cut.Until), whole) -
		scale(amount, distance(spread.From, cut.From), whole)
}

// distance is until-from in milliseconds, for from <= until. Unlike their
// difference it cannot overflow.
func distance(from, until Instant) uint64 { return uint64(until) - uint64(from) }

// apportionment distributes whole GPU-milliseconds in proportion to weights by
// the method of largest remainders (Hamilton): everyone gets his quota rounded
// down, and what is left goes, one each, to the largest remainders, in equal
// cases to the first. It keeps its memory between calls.
type apportionment struct {
	weights []uint64
	parts   []GPUMillis
	left    []leftover
}

type leftover struct {
	remainder uint64
	index     int
}

// distribute splits the pool, which is not negative, over a.weights, whose sum
// is total. The parts add up to the pool.
func (a *apportionment) distribute(pool GPUMillis, total uint64) []GPUMillis {
	a.parts, a.left = a.parts[:0], a.left[:0]
	spare := uint64(pool)
	for i, weight := range a.weights {
		q, r := mulDiv(uint64(pool), weight, total)
		spare -= q
		a.parts = append(a.parts, GPUMillis(q))
		if r > 0 {
			a.left = append(a.left, leftover{r, i})
		}
	}
	if spare == 0 {
		return a.parts
	}
	byRemainder := func(x, y leftover) int {
		return cmp.Or(cmp.Compare(y.remainder, x.remainder), cmp.Compare(x.index, y.index))
	}
	if !slices.IsSortedFunc(a.left, byRemainder) { // equal parts are
		slices.SortFunc(a.left, byRemainder)
	}
	for _, l := range a.left[:min(spare, uint64(len(a.left)))] {
		a.parts[l.index]++
	}
	return a.parts
}
