// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"math"
	"math/big"
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
	GPUs                          int64  // whole ones allocated to this run
	Parts                         int64  // of GPUs, in millionths, beside whole ones: shards, MPS
	GPUType                       string // empty if untyped; of several types a list, see fairshare.Holding

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

	// Rates are what it counts for by the weights of the ledger, from its start on
	// and whenever that changes; nil if that is what it holds. The database says:
	// what a writer of runs says counts for nothing.
	Rates []fairshare.Rate
	// Metered is how much GPU time more it is charged than it held, or less if it is
	// negative, by what meters saw. The database says this too.
	Metered fairshare.GPUMillis

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

// Holding is what GPUs it has.
func (r Run) Holding() fairshare.Holding {
	return fairshare.Holding{Type: r.GPUType, GPUs: r.GPUs, Parts: r.Parts}
}

// GPUMillis is the GPU time the run has held up to until, whatever that counts
// for: GPUs, and parts of GPUs, times the time since its start that it was not
// suspended. For a run that has ended before until it is the whole of it. Within an
// ended run, suspended time counts as spread evenly over it, rounded down.
func (r Run) GPUMillis(until time.Time) fairshare.GPUMillis {
	whole := r.Period(until)
	held := r.busy(whole) * r.GPUs
	if r.Parts != 0 {
		held = int64(fairshare.Charged(r.Holding().Millionths(), r.busy(whole)))
	}
	c := fairshare.Charge{Period: whole, Amount: fairshare.GPUMillis(held)}
	return c.In(fairshare.Period{From: whole.From, Until: fairshare.At(until)})
}

// Charged is what the run is charged up to until: the GPU time that it has held,
// by what that counts for, and what meters saw. The buckets follow the same rule.
func (r Run) Charged(until time.Time) (sum fairshare.GPUMillis) {
	r.EachCharge(until, func(_ fairshare.Period, amount fairshare.GPUMillis) { sum += amount })
	return sum
}

// EachCharge tells what the run is charged up to until, one stretch of time after
// the other. In each the amount lies evenly, but for the rounding down.
func (r Run) EachCharge(until time.Time, tell func(fairshare.Period, fairshare.GPUMillis)) {
	at := fairshare.At(until)
	r.stretches(r.Period(until), func(p fairshare.Period, amount fairshare.GPUMillis) {
		if at >= p.Until {
			tell(p, amount)
			return
		}
		if at > p.From {
			c, part := fairshare.Charge{Period: p, Amount: amount}, fairshare.Period{From: p.From, Until: at}
			tell(part, c.In(part))
		}
	})
}

// stretches tells what the run is charged in all, between the changes of its rate:
// up to each of them it is rounded down.
func (r Run) stretches(whole fairshare.Period, tell func(fairshare.Period, fairshare.GPUMillis)) {
	held := r.Holding().Millionths()
	if held == 0 || whole.Empty() {
		return
	}
	if r.Metered != 0 || len(r.Rates) > 1 {
		r.uneven(whole, held, tell)
		return
	}
	if len(r.Rates) == 1 {
		held = r.Rates[0].Millionths
	}
	tell(whole, fairshare.Charged(held, r.busy(whole)))
}

// uneven is stretches of a run whose rate changes, or which meters saw to be charged
// more or less than it held.
func (r Run) uneven(whole fairshare.Period, held int64, tell func(fairshare.Period, fairshare.GPUMillis)) {
	// part is what is charged of all the time, in millionths of what is held.
	part := new(big.Int).Mul(big.NewInt(r.busy(whole)), big.NewInt(held))
	part.Add(part, new(big.Int).Mul(big.NewInt(int64(r.Metered)), big.NewInt(fairshare.Millionths)))
	if part.Sign() < 0 {
		part.SetInt64(0)
	}
	all := new(big.Int).Mul(big.NewInt(whole.Millis()), big.NewInt(held))
	all.Mul(all, big.NewInt(fairshare.Millionths))

	rates := r.Rates
	if len(rates) == 0 {
		rates = []fairshare.Rate{{Since: whole.From, Millionths: held}}
	}
	area, before := new(big.Int), fairshare.GPUMillis(0) // rate times time, and what that is charged
	for i, rate := range rates {
		p := fairshare.Period{From: max(rate.Since, whole.From), Until: whole.Until}
		if i == 0 {
			p.From = whole.From
		}
		if i+1 < len(rates) {
			p.Until = min(p.Until, rates[i+1].Since)
		}
		if p.Empty() {
			continue
		}
		area.Add(area, new(big.Int).Mul(big.NewInt(rate.Millionths), big.NewInt(p.Millis())))
		total := new(big.Int).Mul(area, part)
		sum := fairshare.GPUMillis(total.Quo(total, all).Int64())
		tell(p, sum-before)
		before = sum
	}
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
	for i := range runs {
		r := &runs[i]
		to := &unallocated
		if r.Allocated {
			to = &allocated
		}
		r.EachCharge(until, func(p fairshare.Period, amount fairshare.GPUMillis) {
			if amount != 0 {
				*to = append(*to, fairshare.Charge{Period: p, Account: r.Account, User: r.User, Amount: amount})
			}
		})
	}
	return allocated, unallocated
}

// ChargeAhead is what a job that counts for so many millionths of a GPU is charged
// in advance when it starts, for the level fair share only: a thousandth of the
// lookback window, but at least a second and at most ten minutes. So a burst of
// starts is felt at once and not only when it has been used.
func ChargeAhead(rate int64, lookback time.Duration) fairshare.GPUMillis {
	ahead := min(max(lookback/1000, time.Second), 10*time.Minute)
	return fairshare.Charged(rate, ahead.Milliseconds())
}

// RateAt is what the run counts for at an instant, in millionths of a GPU.
func (r Run) RateAt(at fairshare.Instant) int64 {
	if len(r.Rates) == 0 {
		return r.Holding().Millionths()
	}
	rate := r.Rates[0].Millionths
	for _, next := range r.Rates[1:] {
		if next.Since <= at {
			rate = next.Millionths
		}
	}
	return rate
}
