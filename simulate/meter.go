// SPDX-License-Identifier: GPL-2.0-or-later

package simulate

import "math"

// gauge is how many GPUs something has, over time, with the GPU time up to any
// instant of a window that has moved on: what Slurm and gpubudget know of an
// owner's usage. Reading it costs the same however long the window is.
type gauge struct {
	gpus   int64
	at     int64 // when gpus changed last
	sum    int64 // GPU-seconds up to at
	past   []change
	behind int // past[behind] holds at the beginning of the window
}

// change is the state of a gauge from an instant on.
type change struct{ at, sum, gpus int64 }

func (g *gauge) add(now, gpus int64) {
	g.sum += g.gpus * (now - g.at)
	g.at = now
	g.gpus += gpus
	if n := len(g.past); n > 0 && g.past[n-1].at == now {
		g.past[n-1] = change{now, g.sum, g.gpus}
		return
	}
	g.past = append(g.past, change{now, g.sum, g.gpus})
}

// upTo is the GPU-seconds up to now.
func (g *gauge) upTo(now int64) int64 { return g.sum + g.gpus*(now-g.at) }

// within is the GPU-seconds of the window of a length that ends now. Windows
// must not move back.
func (g *gauge) within(now, length int64) int64 {
	from := now - length
	for g.behind+1 < len(g.past) && g.past[g.behind+1].at <= from {
		g.behind++
	}
	if g.behind > 1024 && g.behind > len(g.past)/2 {
		g.past = g.past[:copy(g.past, g.past[g.behind:])]
		g.behind = 0
	}
	var before int64
	if len(g.past) > 0 && g.past[g.behind].at <= from {
		c := &g.past[g.behind]
		before = c.sum + c.gpus*(from-c.at)
	}
	return g.upTo(now) - before
}

// decaying is usage as Slurm keeps it: what was used loses half its weight with
// every half-life.
type decaying struct {
	usage float64
	gpus  int64
	at    int64
}

func (d *decaying) advance(now int64, halfLife float64) {
	if now == d.at {
		return
	}
	left := math.Exp2(-float64(now-d.at) / halfLife)
	d.usage = d.usage*left + float64(d.gpus)*halfLife/math.Ln2*(1-left)
	d.at = now
}

// series is a number of GPUs over time, summed up by buckets.
type series struct {
	gpus int64
	at   int64
	sums []int64 // GPU-seconds, by bucket
}

// bucket is the length of a bucket in seconds: that over which gpubudget takes
// demand together.
const bucket = 3600

func (s *series) advance(now int64) {
	for s.at < now {
		b := int(s.at / bucket)
		for len(s.sums) <= b {
			s.sums = append(s.sums, 0)
		}
		if s.gpus == 0 {
			s.at = now
			return
		}
		until := min(now, int64(b+1)*bucket)
		s.sums[b] += s.gpus * (until - s.at)
		s.at = until
	}
}

func (s *series) add(now, gpus int64) {
	s.advance(now)
	s.gpus += gpus
}

func (s *series) total() int64 {
	var sum int64
	for _, x := range s.sums {
		sum += x
	}
	return sum
}
