// SPDX-License-Identifier: GPL-2.0-or-later

package budgets

import (
	"cmp"
	"container/heap"
	"slices"

	"gpubudget/fairshare"
)

// dated is a value and when an entry puts it in force.
type dated[T any] struct {
	fairshare.Period
	seq   int64
	value T
}

func datedFrom[T any](r *loadedRow, value T) dated[T] {
	d := dated[T]{Period: fairshare.Period{From: fairshare.At(r.from), Until: fairshare.Never}, seq: r.seq, value: value}
	if r.until != nil {
		d.Until = fairshare.At(*r.until)
	}
	return d
}

// steps is what is in force over time: of the entries whose period holds an
// instant the one that begins last, and of those the one written last.
func steps[T comparable](entries []dated[T]) []fairshare.Step[T] {
	entries = slices.Clone(entries)
	slices.SortFunc(entries, dated[T].compare)
	points := make([]fairshare.Instant, 0, 2*len(entries))
	for _, e := range entries {
		points = append(points, e.From, e.Until)
	}
	slices.Sort(points)
	points = slices.Compact(points)

	var line []fairshare.Step[T]
	var running inForce[T] // the last one on top
	for i, point := range points[:max(len(points)-1, 0)] {
		for len(entries) > 0 && entries[0].From <= point {
			heap.Push(&running, entries[0])
			entries = entries[1:]
		}
		for len(running) > 0 && running[0].Until <= point {
			heap.Pop(&running)
		}
		if len(running) > 0 {
			line = extend(line, fairshare.Step[T]{
				Period: fairshare.Period{From: point, Until: points[i+1]}, Value: running[0].value,
			})
		}
	}
	return line
}

// extend adds a step to a timeline, as part of the last one if nothing changes.
func extend[T comparable](line []fairshare.Step[T], step fairshare.Step[T]) []fairshare.Step[T] {
	if last := len(line) - 1; last >= 0 && line[last].Until == step.From && line[last].Value == step.Value {
		line[last].Until = step.Until
		return line
	}
	return append(line, step)
}

// during is the periods in which a timeline has a value.
func during[T comparable](line []fairshare.Step[T], value T) []fairshare.Period {
	var periods []fairshare.Period
	for _, step := range line {
		if step.Value == value {
			periods = append(periods, step.Period)
		}
	}
	return periods
}

// within is a timeline in the given periods only; both ascend.
func within[T comparable](line []fairshare.Step[T], periods []fairshare.Period) []fairshare.Step[T] {
	var cut []fairshare.Step[T]
	for len(line) > 0 && len(periods) > 0 {
		if part := line[0].Intersect(periods[0]); part.Millis() > 0 {
			cut = append(cut, fairshare.Step[T]{Period: part, Value: line[0].Value})
		}
		if line[0].Until <= periods[0].Until {
			line = line[1:]
		} else {
			periods = periods[1:]
		}
	}
	return cut
}

func clip[T comparable](line []fairshare.Step[T], w fairshare.Period) []fairshare.Step[T] {
	return within(line, []fairshare.Period{w})
}

func (d dated[T]) compare(other dated[T]) int {
	return cmp.Or(cmp.Compare(d.From, other.From), cmp.Compare(d.seq, other.seq))
}

// inForce is a heap of entries with the one that prevails on top.
type inForce[T any] []dated[T]

func (h inForce[T]) Len() int           { return len(h) }
func (h inForce[T]) Less(i, j int) bool { return h[i].compare(h[j]) > 0 }
func (h inForce[T]) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *inForce[T]) Push(x any)        { *h = append(*h, x.(dated[T])) }
func (h *inForce[T]) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}
