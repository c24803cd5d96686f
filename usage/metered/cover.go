// SPDX-License-Identifier: GPL-2.0-or-later

package metered

import (
	"cmp"
	"math/bits"
	"slices"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// union is the time that lies in any of some periods: ascending, apart from each
// other.
func union(periods []fairshare.Period) []fairshare.Period {
	sorted := slices.Clone(periods)
	slices.SortFunc(sorted, func(a, b fairshare.Period) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.Until, b.Until))
	})
	out := sorted[:0]
	for _, p := range sorted {
		switch n := len(out); {
		case p.Empty():
		case n > 0 && p.From <= out[n-1].Until:
			out[n-1].Until = max(out[n-1].Until, p.Until)
		default:
			out = append(out, p)
		}
	}
	return out
}

// without is what of a period lies in none of some others, which are a union.
func without(p fairshare.Period, others []fairshare.Period) []fairshare.Period {
	var out []fairshare.Period
	for _, o := range others {
		if o.Intersect(p).Empty() {
			continue
		}
		if o.From > p.From {
			out = append(out, fairshare.Period{From: p.From, Until: o.From})
		}
		p.From = max(p.From, o.Until)
	}
	if !p.Empty() {
		out = append(out, p)
	}
	return out
}

func length(periods []fairshare.Period) int64 {
	var ms int64
	for _, p := range periods {
		ms += p.Millis()
	}
	return ms
}

// cover is what of a run meters covered.
type cover struct {
	covered, uncovered fairshare.GPUMillis // together what the run has used
	gaps               []Gap               // not all of its GPUs were metered
	extra              []Gap               // more GPUs were metered than the run has
}

// Gap is a stretch of a run in which fewer GPUs were metered than it has, or more.
type Gap struct {
	fairshare.Period

	Amount fairshare.GPUMillis // what was used there and not metered, or metered and not used
}

// coverOf holds the time in which each GPU of a run was metered, a union each,
// against the run, which has an end, in a period. At every instant it counts how
// many of the run's GPUs were metered. Suspended time lies evenly in a run, as in
// all that is charged: what is covered and what is not add up to the run to the
// millisecond.
func coverOf(r *usage.Run, p fairshare.Period, gpus [][]fairshare.Period) cover {
	var c cover
	at, metered, has := p.From, int64(0), gpuCount(r)
	step := func(until fairshare.Instant) {
		s := fairshare.Period{From: at, Until: min(until, p.Until)}
		if s.Empty() {
			return
		}
		at = s.Until
		used := r.GPUMillis(s.Until.Time()) - r.GPUMillis(s.From.Time())
		covered := used
		if metered < has {
			covered = fairshare.GPUMillis(mulDiv(int64(used), metered, has))
			c.gaps = extended(c.gaps, Gap{s, used - covered})
		}
		if metered > has {
			c.extra = extended(c.extra, Gap{s, fairshare.GPUMillis((metered - has) * s.Millis())})
		}
		c.covered += covered
		c.uncovered += used - covered
	}
	for _, e := range edges(gpus) {
		step(e.at)
		metered += e.change
	}
	step(p.Until)
	return c
}

// extended adds a gap, which may go on the one before.
func extended(gaps []Gap, g Gap) []Gap {
	if n := len(gaps); n > 0 && gaps[n-1].Until == g.From {
		gaps[n-1].Until = g.Until
		gaps[n-1].Amount += g.Amount
		return gaps
	}
	return append(gaps, g)
}

// edge is an instant at which the number of metered GPUs changes.
type edge struct {
	at     fairshare.Instant
	change int64
}

func edges(gpus [][]fairshare.Period) []edge {
	var all []edge
	for _, periods := range gpus {
		for _, p := range periods {
			all = append(all, edge{p.From, 1}, edge{p.Until, -1})
		}
	}
	slices.SortFunc(all, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(b.change, a.change)) })
	return all
}

// mulDiv is a*b/c rounded down, for a, b >= 0 and c > 0; the quotient must fit.
func mulDiv(a, b, c int64) int64 {
	if a <= 0 || b <= 0 || c <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(q) //nolint:gosec // it fits
}
