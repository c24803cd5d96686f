// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"fmt"
	"math/big"
	"slices"
)

// hardware is which GPUs a job of the simulated Slurm asks for, and gets.
type hardware int

const (
	anyGPU hardware = iota
	ofA100
	ofH100
	ofInstance  // 3g of an A100
	ofInstances // 3g and 4g, by turns
	ofShards    // each a quarter of an A100
	ofBoth      // an H100, the others A100
)

var allHardware = []hardware{anyGPU, ofA100, ofH100, ofInstance, ofInstances, ofShards, ofBoth}

// show is what the shim shows of so many of them.
func (w hardware) show(j *Job, gpus uint64) {
	j.GPUs = gpus
	if gpus == 0 {
		return
	}
	switch w {
	case anyGPU:
	case ofA100:
		j.GPUType = NewCString("a100")
	case ofH100:
		j.GPUType = NewCString("H100")
	case ofInstance:
		j.GPUType = NewCString("a100_3g.40gb")
	case ofInstances:
		j.GPUType = NewCString(fmt.Sprintf("a100_3g.40gb:%d,a100_4g.40gb:%d", gpus-gpus/2, gpus/2))
	case ofShards:
		j.GPUs, j.GPUParts, j.GPUType = 0, gpus*250_000, NewCString("a100")
	case ofBoth:
		j.GPUType = NewCString(fmt.Sprintf("h100:1,a100:%d", gpus-1))
	}
}

// counts is what so many of them count for, by what a weight is said to be of types.
func (w hardware) counts(gpus uint64, said func(string) *big.Rat) *big.Rat {
	of := func(gpus uint64, types ...string) *big.Rat {
		counts := new(big.Rat).SetUint64(gpus)
		for _, name := range append(types, "*") {
			if w := said(name); w != nil {
				return counts.Mul(counts, w)
			}
		}
		return counts
	}
	switch n, rest := gpus-gpus/2, gpus/2; w {
	case ofA100:
		return of(gpus, "a100")
	case ofH100:
		return of(gpus, "h100")
	case ofInstance:
		if said("a100_3g.40gb") != nil {
			return of(gpus, "a100_3g.40gb")
		}
		return times(of(gpus, "a100"), 1, 2)
	case ofInstances:
		if said("a100_3g.40gb") != nil {
			return of(n, "a100_3g.40gb").Add(of(n, "a100_3g.40gb"), times(of(rest, "a100"), 4, 7))
		}
		whole := of(1, "a100")
		slices, memory := times(whole, int64(3*n+4*rest), 7), times(whole, int64(gpus), 2)
		if slices.Cmp(memory) < 0 {
			return memory
		}
		return slices
	case ofShards:
		return times(of(gpus, "a100"), 1, 4)
	case ofBoth:
		return of(1, "h100").Add(of(1, "h100"), of(gpus-1, "a100"))
	case anyGPU:
	}
	return of(gpus)
}

func times(r *big.Rat, by, of int64) *big.Rat { return new(big.Rat).Mul(r, big.NewRat(by, of)) }

// held is how much of GPUs they are, whatever they count for.
func (w hardware) held(gpus uint64) *big.Rat {
	if w == ofShards {
		return big.NewRat(int64(gpus), 4)
	}
	return big.NewRat(int64(gpus), 1)
}

// saying is an entry of the ledger that gives a type a weight, in thousandths, or
// takes back what was said if that is below 0.
type saying struct {
	gpuType     string
	weight      int64
	from, until int64 // milliseconds; until is 0 if it lasts
}

func (s *saying) holds(at int64) bool { return s.from <= at && (s.until == 0 || at < s.until) }

// sayings are in the order in which they were written.
type sayings []saying

// at is what is said of a type at an instant: by what began last, and of that by
// what was written last; nil if nothing is.
func (all sayings) at(gpuType string, at int64) *big.Rat {
	var last *saying
	for i := range all {
		if s := &all[i]; s.gpuType == gpuType && s.holds(at) && (last == nil || s.from >= last.from) {
			last = s
		}
	}
	if last == nil || last.weight < 0 {
		return nil
	}
	return big.NewRat(last.weight, 1000)
}

// charged is what a run is charged up to now: the sum over time of what it counts
// for, with its suspended time spread evenly.
func (all sayings) charged(r *simRun, now int64) int64 {
	from, until := r.start*1000, now*1000
	if r.end != 0 {
		until = r.end * 1000
	}
	if until <= from {
		return 0
	}
	edges := []int64{from, until}
	for _, s := range all {
		for _, at := range []int64{s.from, s.until} {
			if at > from && at < until {
				edges = append(edges, at)
			}
		}
	}
	slices.Sort(edges)
	sum := new(big.Rat)
	for i := range len(edges) - 1 {
		rate := r.hardware.counts(r.gpus, func(gpuType string) *big.Rat { return all.at(gpuType, edges[i]) })
		sum.Add(sum, times(down(rate), edges[i+1]-edges[i], 1))
	}
	sum = times(sum, r.busy(now)*1000, until-from)
	return new(big.Int).Quo(sum.Num(), sum.Denom()).Int64()
}

// down rounds to millionths, downwards.
func down(r *big.Rat) *big.Rat {
	r = times(r, 1_000_000, 1)
	return times(new(big.Rat).SetInt(new(big.Int).Quo(r.Num(), r.Denom())), 1, 1_000_000)
}
