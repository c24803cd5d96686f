// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import "slices"

// levels gives each of the values seen a step of its own, in their order, and
// what lies between two of them the step between, if there are gaps, or else
// that of the lower one.
type levels struct {
	values []int64 // ascending
	gaps   bool
	steps  int64 // into which the full number is merged
}

// newLevels takes no more steps than limit.
func newLevels(values []int64, gaps bool, limit int64) levels {
	return levels{values: values, gaps: gaps, steps: min(fullSteps(values, gaps), limit)}
}

// fullSteps is how many steps the values need.
func fullSteps(values []int64, gaps bool) int64 {
	if gaps {
		return 2*int64(len(values)) + 1
	}
	return max(int64(len(values)), 1)
}

// step is the step of a value, from 0. It never falls as the value rises.
func (l *levels) step(value int64) int64 {
	i, seen := slices.BinarySearch(l.values, value)
	step := int64(i)
	switch {
	case l.gaps && seen:
		step = 2*step + 1
	case l.gaps:
		step *= 2
	case !seen:
		step = max(step-1, 0)
	}
	return merge(step, fullSteps(l.values, l.gaps), l.steps)
}

// merge maps the steps of a full number to fewer, or as many, in order.
func merge(step, full, steps int64) int64 {
	if steps >= full {
		return step
	}
	return step * steps / full
}
