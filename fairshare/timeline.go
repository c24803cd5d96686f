// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import "slices"

// ValueAt is the value in force at an instant; ok is false where the timeline
// has none.
func ValueAt[T any](steps []Step[T], at Instant) (value T, ok bool) {
	for i := range steps {
		if steps[i].Contains(at) {
			return steps[i].Value, true
		}
	}
	return value, false
}

// latestValue is the value in force at an instant or, where the timeline has
// none, the last one before it.
func latestValue[T any](steps []Step[T], at Instant) (value T, ok bool) {
	for i := range steps {
		if steps[i].From > at {
			break
		}
		value, ok = steps[i].Value, true
	}
	return value, ok
}

// changes collects the instants strictly within a window at which something
// changes.
type changes struct {
	window Period
	points []Instant
}

func (c *changes) at(i Instant) {
	if i > c.window.From && i < c.window.Until {
		c.points = append(c.points, i)
	}
}

func (c *changes) period(p Period) {
	c.at(p.From)
	c.at(p.Until)
}

func addSteps[T any](c *changes, steps []Step[T]) {
	for i := range steps {
		c.period(steps[i].Period)
	}
}

// segments cuts the window at the changes: ascending periods, none empty, that
// together are the window.
func (c *changes) segments() []Period {
	if c.window.Empty() {
		return nil
	}
	slices.Sort(c.points)
	points := slices.Compact(c.points)
	segments := make([]Period, 0, len(points)+1)
	from := c.window.From
	for _, until := range append(points, c.window.Until) {
		segments = append(segments, Period{From: from, Until: until})
		from = until
	}
	return segments
}
