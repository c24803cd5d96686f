// SPDX-License-Identifier: GPL-2.0-or-later

// Package fairshare holds the mathematics of gpubudget: how an account tree,
// its budgets and its usage in a sliding window become a rank, a fair-share
// factor and a job priority.
//
// It does no I/O, reads no clock and depends on no map's order: the same input
// gives the same bytes. Whoever schedules, reports or explains calls the same
// functions of it.
//
// From a Budget and charges, Rank makes a Ranking. From that, NewStrict or
// NewAdditive make job priorities. Deliver compares what was due and asked for
// with what was charged. docs/algorithm.md has the formulas, where they come
// from, and an example.
package fairshare

import (
	"math"
	"time"
)

// GPUMillis is GPU time in GPU-milliseconds: one GPU for one millisecond.
// Sums of it are exact.
type GPUMillis int64

// GPUHour is one GPU for one hour.
const GPUHour GPUMillis = 3_600_000

// Hours is g in GPU-hours, for display only.
func (g GPUMillis) Hours() float64 { return float64(g) / float64(GPUHour) }

// MilliGPUs is a number of GPUs in thousandths, so that a weighted GPU or a
// part of one can be counted.
type MilliGPUs int64

// GPU is one whole GPU of weight 1.
const GPU MilliGPUs = 1000

// Instant is a point in time in Unix milliseconds, UTC.
type Instant int64

// Bounds for a period that has no beginning or no end.
const (
	Always Instant = -1 << 62
	Never  Instant = 1 << 62
)

// At is the instant of t.
func At(t time.Time) Instant { return Instant(t.UnixMilli()) }

// Time is i as a time in UTC.
func (i Instant) Time() time.Time { return time.UnixMilli(int64(i)).UTC() }

// Period is the half-open stretch of time [From, Until).
type Period struct {
	From, Until Instant
}

// Lookback is the window of length d that ends now.
func Lookback(now Instant, d time.Duration) Period {
	return Period{From: now - Instant(d.Milliseconds()), Until: now}
}

// Millis is the period's length in milliseconds, 0 if it is empty. A length
// that does not fit is cut to the longest that does.
func (p Period) Millis() int64 {
	if p.Empty() {
		return 0
	}
	return int64(min(distance(p.From, p.Until), math.MaxInt64))
}

// Empty tells whether no instant lies in p.
func (p Period) Empty() bool { return p.Until <= p.From }

// Intersect is the part of p that lies in q; it is empty if they do not meet.
func (p Period) Intersect(q Period) Period {
	if q.From > p.From {
		p.From = q.From
	}
	if q.Until < p.Until {
		p.Until = q.Until
	}
	if p.Until < p.From {
		p.Until = p.From
	}
	return p
}

// Contains tells whether i lies in p.
func (p Period) Contains(i Instant) bool { return i >= p.From && i < p.Until }
