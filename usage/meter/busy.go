// SPDX-License-Identifier: GPL-2.0-or-later

package meter

import "time"

// sampleReach is the longest time that a sample of the driver's ring can be
// about: NVML has one each sixth of a second to each second.
const sampleReach = time.Second

// clockSlack is how far the newest sample may lie ahead of the wall clock
// before that clock counts as having been set back.
const clockSlack = 2 * time.Second

// integrate adds up samples newer than since, oldest first. A sample speaks for
// the time since the one before it, and for a second at most: where the ring has
// overflowed or the clock was set, the rest is not known. Samples that make no
// sense are taken for time that is not known. last is the newest sample's time.
func integrate(samples []Sample, since int64) (b Busy, last int64) {
	last = since
	for _, s := range samples {
		if s.At <= last {
			continue
		}
		took := min(time.Duration(s.At-last)*time.Microsecond, sampleReach)
		if s.At-last > int64(sampleReach/time.Microsecond) {
			took = sampleReach // the difference may have overflowed
		}
		last = s.At
		if !isPercent(s.Percent) {
			continue
		}
		b.Known += took
		b.Busy += part(took, s.Percent)
	}
	b.Source = FromSamples
	return b, last
}

func part(of time.Duration, percent float64) time.Duration {
	return min(of, time.Duration(float64(of)*percent/100))
}

// isPercent is false of NaN, too.
func isPercent(v float64) bool { return v >= 0 && v <= 100 }
