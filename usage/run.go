// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"math"
	"math/bits"
	"time"

	"gpubudget/fairshare"
)

// NoTask is the ArrayTaskID of a job that belongs to no array.
const NoTask uint32 = math.MaxUint32

// Run is one stretch of a job on its GPUs, as one sighting saw it. It is keyed
// by (Cluster, JobID, StartedAt): a requeue or a resize ends one run and begins
// another. Times are kept in whole milliseconds, UTC.
type Run struct {
	Cluster     string
	JobID       uint32
	Restart     uint32 // restart count of the job, for reference
	ArrayJobID  uint32 // 0 if no array
	ArrayTaskID uint32 // NoTask if no array
	HetJobID    uint32 // 0 if no heterogeneous job

	Account, User, Partition, QOS string
	Nodes                         string // Slurm's node list, e.g. "n[1-4]"
	GPUs                          int64  // allocated to this run
	GPUType                       string // empty if untyped

	// Allocated tells whether the account was funded when the run started, and
	// its minimum runtime not 0. Only then its GPU time is charged.
	Allocated bool

	// MinRuntime is for how long the run was to be left alone when it began: the
	// job's minimum runtime, of which earlier runs count if a resize ended them.
	// It is 0 if the job was unallocated by what it asked for, nil if that isn't
	// known, as of a run that an older release recorded.
	MinRuntime *time.Duration

	StartedAt time.Time
	EndedAt   *time.Time // nil while it runs
	EndState  string     // Slurm's word, e.g. "COMPLETED"; empty while it runs

	// Suspended is the time it has been suspended for so far, not counting a
	// suspension that has not ended.
	Suspended time.Duration
	// SuspendedSince is when the present suspension began; nil if it isn't
	// suspended, or wasn't when it ended.
	SuspendedSince *time.Time

	// SeenAt is when the run was seen so, by the recorder's clock: of two
	// sightings of a run the later one is believed. See Store.WriteRuns.
	SeenAt time.Time
}

// Open tells whether the run has not ended.
func (r Run) Open() bool { return r.EndedAt == nil }

// Period is the run from its start to its end; an open run lasts to until. It is
// empty if it ended before it started.
func (r Run) Period(until time.Time) fairshare.Period {
	p := fairshare.Period{From: fairshare.At(r.StartedAt), Until: fairshare.At(until)}
	if r.EndedAt != nil {
		p.Until = fairshare.At(*r.EndedAt)
	}
	p.Until = max(p.Until, p.From)
	return p
}

// ProtectedUntil is when the run's minimum runtime will have passed, by what is
// known at an instant: time for which it is suspended does not count. ok is false
// if it never was protected, or that isn't known.
func (r Run) ProtectedUntil(now time.Time) (until time.Time, ok bool) {
	if !r.Allocated || r.MinRuntime == nil || *r.MinRuntime <= 0 {
		return time.Time{}, false
	}
	p := r.Period(now)
	suspended := time.Duration(p.Millis()-r.busy(p)) * time.Millisecond
	return r.StartedAt.Add(*r.MinRuntime + suspended), true
}

// GPUMillis is the GPU time the run has used up to until: GPUs times the time
// since its start that it was not suspended. For a run that has ended before
// until it is the whole of it. Within an ended run, suspended time counts as
// spread evenly over it, rounded down: the same rule the buckets follow.
func (r Run) GPUMillis(until time.Time) fairshare.GPUMillis {
	whole := r.Period(until)
	total := r.busy(whole) * r.GPUs
	if at := fairshare.At(until); at < whole.Until {
		part := fairshare.Period{From: whole.From, Until: at}
		return fairshare.GPUMillis(mulDiv(total, part.Millis(), whole.Millis()))
	}
	return fairshare.GPUMillis(total)
}

// Charge is the run's GPU time up to until, as fairshare takes it.
func (r Run) Charge(until time.Time) fairshare.Charge {
	p := r.Period(until)
	if at := fairshare.At(until); at < p.Until {
		p.Until = max(at, p.From)
	}
	return fairshare.Charge{Period: p, Account: r.Account, User: r.User, Amount: r.GPUMillis(until)}
}

// busy is how many milliseconds of p the run was not suspended.
func (r Run) busy(p fairshare.Period) int64 {
	suspended := r.Suspended.Milliseconds()
	if r.SuspendedSince != nil {
		still := fairshare.Period{From: max(fairshare.At(*r.SuspendedSince), p.From), Until: p.Until}
		suspended += still.Millis()
	}
	return max(0, p.Millis()-suspended)
}

// Charges are the charges of runs up to until, those of allocated runs and
// those of unallocated ones, in the order of runs. Runs without GPUs have none.
func Charges(runs []Run, until time.Time) (allocated, unallocated []fairshare.Charge) {
	for _, r := range runs {
		c := r.Charge(until)
		switch {
		case c.Amount == 0:
		case r.Allocated:
			allocated = append(allocated, c)
		default:
			unallocated = append(unallocated, c)
		}
	}
	return allocated, unallocated
}

// mulDiv is a*b/c rounded down, for a, b >= 0 and c > 0, without overflow of
// the product; the quotient must fit.
func mulDiv(a, b, c int64) int64 {
	if a == 0 || b <= 0 || c <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(a), uint64(b)) //nolint:gosec // neither is negative
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(q) //nolint:gosec // it fits
}

// ChargeAhead is what a job on gpus GPUs is charged in advance when it starts,
// for the level fair share only: a thousandth of the lookback window, but at
// least a second and at most ten minutes. So a burst of starts is felt at once
// and not only when it has been used.
func ChargeAhead(gpus int64, lookback time.Duration) fairshare.GPUMillis {
	ahead := min(max(lookback/1000, time.Second), 10*time.Minute)
	return fairshare.GPUMillis(gpus * ahead.Milliseconds())
}
