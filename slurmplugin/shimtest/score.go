// SPDX-License-Identifier: GPL-2.0-or-later

// Package shimtest compiles the part of the shim that knows no Slurm, so that
// tests can hold it beside the Go code whose numbers it works with. Nothing
// but tests imports it.
package shimtest

/*
#cgo CFLAGS: -std=c11 -O2 -Wall -Wextra -Werror
#include "../shim/score.c"
*/
import "C"

import (
	"runtime"
	"unsafe"

	"gpubudget/fairshare"
)

// Score has C work out what t says of a job whose owner stands at row, into f
// and the job's Parts, as the Priority of what t was made of does.
func Score(t *fairshare.Table, row fairshare.Row, job *fairshare.Job, f *fairshare.Factors) {
	var pins runtime.Pinner
	defer pins.Unpin()
	w := &t.Weights
	table := C.struct_gpub_table{
		weights: C.struct_gpub_weights{
			age: C.uint32_t(w.Age), assoc: C.uint32_t(w.Assoc), fairshare: C.uint32_t(w.Fairshare),
			job_size: C.uint32_t(w.JobSize), partition: C.uint32_t(w.Partition), qos: C.uint32_t(w.QOS),
			max_age: C.uint32_t(w.MaxAge), flags: C.uint32_t(w.Flags), favor_small: truth(w.FavorSmall),
			tres_count: C.uint32_t(len(w.TRES)), tres: array(&pins, w.TRES),
		},
		nodes: C.uint32_t(t.Size.Nodes), cpus: C.uint32_t(t.Size.CPUs), packed: truth(t.Packed),
		qos_count: C.uint32_t(len(t.QOS)), nice_count: C.uint32_t(len(t.Nice)), slot_count: C.uint32_t(len(t.Slots)),
		unallocated: C.GPUB_UNALLOCATED_ZERO,
		rest_steps:  C.int64_t(t.RestSteps), rest_scale: C.double(t.RestScale), site_low: C.int64_t(t.SiteLow), band: C.double(t.Band),
		unknown: place(t.Unknown), qos: rises(&pins, t.QOS), nice: rises(&pins, t.Nice),
	}
	slots := make([]C.struct_gpub_slot, 0, len(t.Slots))
	for _, s := range t.Slots {
		slots = append(slots, C.struct_gpub_slot{
			qos_unit: C.int64_t(s.QOSUnit), nice_first: C.uint32_t(s.NiceFirst), nice_count: C.uint32_t(s.NiceCount),
			unallocated: C.uint32_t(s.Unallocated), unallocated_base: C.int64_t(s.UnallocatedBase)})
	}
	if len(slots) > 0 {
		pins.Pin(&slots[0])
		table.slots = &slots[0]
	}
	parts := make([]C.struct_score_part, 0, len(job.Parts))
	for i := range job.Parts {
		parts = append(parts, C.struct_score_part{factor: C.double(job.Parts[i].Factor), tres: array(&pins, fit(job.Parts[i].TRES, len(w.TRES)))})
	}
	in := C.struct_score_job{
		age: C.int64_t(job.Age), nice: C.int64_t(job.Nice), site: C.int64_t(job.Site),
		assoc: C.double(job.AssocFactor), qos: C.double(job.QOSFactor), partition: C.double(job.PartitionFactor),
		qos_priority: C.uint32_t(job.QOSPriority), cpus: C.uint32_t(job.CPUs), min_nodes: C.uint32_t(job.MinNodes),
		time_limit: C.uint32_t(job.TimeLimit), tres: array(&pins, fit(job.TRES, len(w.TRES))), parts_count: C.uint32_t(len(parts)),
	}
	if !job.Unallocated {
		in.min_runtime = -1
	}
	if len(parts) > 0 {
		pins.Pin(&parts[0])
		in.parts = &parts[0]
	}
	*f = fairshare.Factors{}
	if len(w.TRES) > 0 {
		f.TRES = make([]float64, len(w.TRES))
	}
	var out C.struct_score
	out.tres = array(&pins, f.TRES)
	at := place(row)
	owner := C.score_owner(&table, &at)
	C.score_job(&table, &owner, &in, &out)

	f.Age, f.Assoc, f.Fairshare = float64(out.age), float64(out.assoc), float64(out.fairshare)
	f.JobSize, f.Partition, f.QOS = float64(out.job_size), float64(out.partition), float64(out.qos)
	f.Site, f.Nice, f.Priority = int64(out.site), int64(out.nice), uint32(out.priority)
	for i := range parts {
		job.Parts[i].Priority = uint32(parts[i].priority)
	}
}

func truth(b bool) C.uint32_t {
	if b {
		return 1
	}
	return 0
}

func place(r fairshare.Row) C.struct_gpub_place {
	return C.struct_gpub_place{fairshare: C.double(r.Fairshare), slot: C.uint32_t(r.Slot)}
}

// Unallocated has C tell whether a job is unallocated that asks for so many seconds
// of minimum runtime, by bits of enum gpub_unallocated.
func Unallocated(bits uint32, minRuntime int64) bool {
	table := C.struct_gpub_table{unallocated: C.uint32_t(bits)}
	return bool(C.score_unallocated(&table, C.int64_t(minRuntime)))
}

// fit is x in the length that C takes it to have; nil stays nil.
func fit(x []float64, n int) []float64 {
	if x == nil {
		return nil
	}
	return append(x[:min(len(x), n):min(len(x), n)], make([]float64, max(n-len(x), 0))...)
}

func array(pins *runtime.Pinner, x []float64) *C.double {
	if len(x) == 0 {
		return nil
	}
	pins.Pin(&x[0])
	return (*C.double)(unsafe.Pointer(&x[0]))
}

func rises(pins *runtime.Pinner, x []fairshare.Rise) *C.struct_gpub_rise {
	if len(x) == 0 {
		return nil
	}
	out := make([]C.struct_gpub_rise, 0, len(x))
	for _, r := range x {
		out = append(out, C.struct_gpub_rise{from: C.int64_t(r.From), amount: C.int64_t(r.Amount)})
	}
	pins.Pin(&out[0])
	return &out[0]
}
