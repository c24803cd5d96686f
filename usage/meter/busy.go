// SPDX-License-Identifier: GPL-2.0-or-later

package meter

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// sampleReach is the longest time that a sample of the driver's ring can be
// about: NVML has one each sixth of a second to each second.
const sampleReach = time.Second

// busy is how long the GPU was at work since the round before.
func (m *Meter) busy(r *Round, g *gpu, device Device) *Busy {
	var err error
	m.samples, err = device.Samples(m.samples[:0])
	// The ring may begin anywhere.
	slices.SortFunc(m.samples, func(a, b Sample) int { return cmp.Compare(a.At, b.At) })
	newest := int64(0)
	if n := len(m.samples); n > 0 {
		newest = m.samples[n-1].At
	}
	last := g.lastSample
	switch {
	case newest == last || newest == 0: // nothing new: some drivers don't look at a GPU that does nothing
		return m.rate(r, g, device, cmp.Or(err, error(ErrNotFound)))
	case newest < last:
		g.lastSample = newest // the clock was set back; what is new can't be told from what is old
		return nil
	}
	g.lastSample = newest
	m.note(g.UUID, "utilisation", nil)
	if !g.began || r.Elapsed == 0 {
		return nil // the ring reaches back before our time
	}
	b := integrate(m.samples, begin(newest, last, r.Elapsed))
	if b.Known == 0 {
		return nil
	}
	return &b
}

// begin is from when on samples are of this round: from the last one of the
// round before, if that is about where this round began; else from there. The
// driver's clock need not be ours, so only differences are used.
func begin(newest, last int64, elapsed time.Duration) int64 {
	from := newest - elapsed.Microseconds()
	if last > from-sampleReach.Microseconds() {
		return last
	}
	return from
}

// integrate adds up samples after from, oldest first. A sample speaks for the time
// since the one before it, and for a second at most: where the ring has
// overflowed or the clock was set, the rest is not known. Samples that make no
// sense are taken for time that is not known.
func integrate(samples []Sample, from int64) Busy {
	b := Busy{Source: FromSamples}
	for _, s := range samples {
		if s.At <= from {
			continue
		}
		took := sampleReach
		if s.At-from < sampleReach.Microseconds() {
			took = time.Duration(s.At-from) * time.Microsecond
		}
		from = s.At
		if !isPercent(s.Percent) {
			continue
		}
		b.Known += took
		b.Busy += part(took, s.Percent)
	}
	return b
}

// rate is the utilisation of the last second, where the ring tells nothing.
func (m *Meter) rate(r *Round, g *gpu, device Device, ring error) *Busy {
	percent, err := device.Rate()
	if err == nil && !isPercent(percent) {
		err = fmt.Errorf("utilisation of %g percent", percent)
	}
	if err != nil {
		err = errors.Join(ring, err)
	}
	known := min(r.Elapsed, sampleReach)
	if !m.note(g.UUID, "utilisation", err) || !g.began || known == 0 {
		return nil
	}
	return &Busy{Busy: part(known, percent), Known: known, Source: FromRate}
}

func part(of time.Duration, percent float64) time.Duration {
	return min(of, time.Duration(float64(of)*percent/100))
}

// isPercent is false of NaN, too.
func isPercent(v float64) bool { return v >= 0 && v <= 100 }
