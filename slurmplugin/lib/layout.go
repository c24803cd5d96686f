// SPDX-License-Identifier: GPL-2.0-or-later

package main

// #include "../bridge.h"
import "C"

import (
	"fmt"
	"slices"
	"unsafe"

	"gpubudget/fairshare"
	"gpubudget/slurmplugin/engine"
)

// A place is where a field lies in a struct of bridge.h and in the engine's
// struct that is laid over it.
type place struct {
	name      string
	inC, inGo uintptr
}

// layouts are sizes and offsets of all structs that the library casts.
func layouts() []place {
	var (
		cj C.struct_gpub_job
		gj engine.Job
		ca C.struct_gpub_assoc
		ga engine.Assoc
		cc C.struct_gpub_cluster
		gc engine.Cluster
	)
	return append(slices.Concat(slurmAssocLayout(), submissionLayout(), tableLayout(), placingLayout()), []place{
		{"sizeof gpub_job", unsafe.Sizeof(cj), unsafe.Sizeof(gj)},
		{"gpub_job.job_id", unsafe.Offsetof(cj.job_id), unsafe.Offsetof(gj.JobID)},
		{"gpub_job.array_job_id", unsafe.Offsetof(cj.array_job_id), unsafe.Offsetof(gj.ArrayJobID)},
		{"gpub_job.array_task_id", unsafe.Offsetof(cj.array_task_id), unsafe.Offsetof(gj.ArrayTaskID)},
		{"gpub_job.array_tasks", unsafe.Offsetof(cj.array_tasks), unsafe.Offsetof(gj.ArrayTasks)},
		{"gpub_job.het_job_id", unsafe.Offsetof(cj.het_job_id), unsafe.Offsetof(gj.HetJobID)},
		{"gpub_job.restart", unsafe.Offsetof(cj.restart), unsafe.Offsetof(gj.Restart)},
		{"gpub_job.user_id", unsafe.Offsetof(cj.user_id), unsafe.Offsetof(gj.UserID)},
		{"gpub_job.assoc_id", unsafe.Offsetof(cj.assoc_id), unsafe.Offsetof(gj.AssocID)},
		{"gpub_job.state", unsafe.Offsetof(cj.state), unsafe.Offsetof(gj.State)},
		{"gpub_job.flags", unsafe.Offsetof(cj.flags), unsafe.Offsetof(gj.Flags)},
		{"gpub_job.user", unsafe.Offsetof(cj.user), unsafe.Offsetof(gj.User)},
		{"gpub_job.account", unsafe.Offsetof(cj.account), unsafe.Offsetof(gj.Account)},
		{"gpub_job.partition", unsafe.Offsetof(cj.partition), unsafe.Offsetof(gj.Partition)},
		{"gpub_job.qos", unsafe.Offsetof(cj.qos), unsafe.Offsetof(gj.QOS)},
		{"gpub_job.nodes", unsafe.Offsetof(cj.nodes), unsafe.Offsetof(gj.Nodes)},
		{"gpub_job.gpu_type", unsafe.Offsetof(cj.gpu_type), unsafe.Offsetof(gj.GPUType)},
		{"gpub_job.submit", unsafe.Offsetof(cj.submit), unsafe.Offsetof(gj.Submit)},
		{"gpub_job.begin", unsafe.Offsetof(cj.begin), unsafe.Offsetof(gj.Begin)},
		{"gpub_job.start", unsafe.Offsetof(cj.start), unsafe.Offsetof(gj.Start)},
		{"gpub_job.end", unsafe.Offsetof(cj.end), unsafe.Offsetof(gj.End)},
		{"gpub_job.resize", unsafe.Offsetof(cj.resize), unsafe.Offsetof(gj.Resize)},
		{"gpub_job.suspend", unsafe.Offsetof(cj.suspend), unsafe.Offsetof(gj.Suspend)},
		{"gpub_job.suspended", unsafe.Offsetof(cj.suspended), unsafe.Offsetof(gj.Suspended)},
		{"gpub_job.demand_tasks", unsafe.Offsetof(cj.demand_tasks), unsafe.Offsetof(gj.DemandTasks)},
		{"gpub_job.gpus", unsafe.Offsetof(cj.gpus), unsafe.Offsetof(gj.GPUs)},
		{"gpub_job.gpu_parts", unsafe.Offsetof(cj.gpu_parts), unsafe.Offsetof(gj.GPUParts)},
		{"gpub_job.nice", unsafe.Offsetof(cj.nice), unsafe.Offsetof(gj.Nice)},
		{"gpub_job.qos_priority", unsafe.Offsetof(cj.qos_priority), unsafe.Offsetof(gj.QOSPriority)},
		{"gpub_job.min_runtime", unsafe.Offsetof(cj.min_runtime), unsafe.Offsetof(gj.MinRuntime)},
		{"gpub_job.time_limit", unsafe.Offsetof(cj.time_limit), unsafe.Offsetof(gj.TimeLimit)},

		{"sizeof gpub_assoc", unsafe.Sizeof(ca), unsafe.Sizeof(ga)},
		{"gpub_assoc.id", unsafe.Offsetof(ca.id), unsafe.Offsetof(ga.ID)},
		{"gpub_assoc.user_id", unsafe.Offsetof(ca.user_id), unsafe.Offsetof(ga.UserID)},
		{"gpub_assoc.place", unsafe.Offsetof(ca.place), unsafe.Offsetof(ga.Place)},
		{"gpub_assoc.account", unsafe.Offsetof(ca.account), unsafe.Offsetof(ga.Account)},
		{"gpub_assoc.user", unsafe.Offsetof(ca.user), unsafe.Offsetof(ga.User)},
		{"gpub_assoc.known", unsafe.Offsetof(ca.known), unsafe.Offsetof(ga.Known)},
		{"gpub_assoc.level_fs", unsafe.Offsetof(ca.level_fs), unsafe.Offsetof(ga.LevelFS)},
		{"gpub_assoc.factor", unsafe.Offsetof(ca.factor), unsafe.Offsetof(ga.Factor)},
		{"gpub_assoc.shares_norm", unsafe.Offsetof(ca.shares_norm), unsafe.Offsetof(ga.SharesNorm)},
		{"gpub_assoc.usage_norm", unsafe.Offsetof(ca.usage_norm), unsafe.Offsetof(ga.UsageNorm)},
		{"gpub_assoc.usage_seconds", unsafe.Offsetof(ca.usage_seconds), unsafe.Offsetof(ga.UsageSeconds)},

		{"sizeof gpub_cluster", unsafe.Sizeof(cc), unsafe.Sizeof(gc)},
		{"gpub_cluster.nodes", unsafe.Offsetof(cc.nodes), unsafe.Offsetof(gc.Nodes)},
		{"gpub_cluster.cpus", unsafe.Offsetof(cc.cpus), unsafe.Offsetof(gc.CPUs)},
		{"gpub_cluster.gpus", unsafe.Offsetof(cc.gpus), unsafe.Offsetof(gc.GPUs)},
		{"gpub_cluster.gpus_configured", unsafe.Offsetof(cc.gpus_configured), unsafe.Offsetof(gc.GPUsConfigured)},
		{"gpub_cluster.qos_priority_max", unsafe.Offsetof(cc.qos_priority_max), unsafe.Offsetof(gc.QOSPriorityMax)},
		{"gpub_cluster.gpu_types", unsafe.Offsetof(cc.gpu_types), unsafe.Offsetof(gc.GPUTypes)},
	}...)
}

func slurmAssocLayout() []place {
	var (
		cs C.struct_gpub_slurm_assoc
		gs engine.SlurmAssoc
	)
	return []place{
		{"sizeof gpub_slurm_assoc", unsafe.Sizeof(cs), unsafe.Sizeof(gs)},
		{"gpub_slurm_assoc.id", unsafe.Offsetof(cs.id), unsafe.Offsetof(gs.ID)},
		{"gpub_slurm_assoc.parent", unsafe.Offsetof(cs.parent), unsafe.Offsetof(gs.Parent)},
		{"gpub_slurm_assoc.shares", unsafe.Offsetof(cs.shares), unsafe.Offsetof(gs.Shares)},
		{"gpub_slurm_assoc.flags", unsafe.Offsetof(cs.flags), unsafe.Offsetof(gs.Flags)},
		{"gpub_slurm_assoc.usage", unsafe.Offsetof(cs.usage), unsafe.Offsetof(gs.Usage)},
		{"gpub_slurm_assoc.usage_rest", unsafe.Offsetof(cs.usage_rest), unsafe.Offsetof(gs.UsageRest)},
		{"gpub_slurm_assoc.shares_norm", unsafe.Offsetof(cs.shares_norm), unsafe.Offsetof(gs.SharesNorm)},
		{"gpub_slurm_assoc.usage_norm", unsafe.Offsetof(cs.usage_norm), unsafe.Offsetof(gs.UsageNorm)},
		{"gpub_slurm_assoc.usage_efctv", unsafe.Offsetof(cs.usage_efctv), unsafe.Offsetof(gs.UsageEffective)},
		{"gpub_slurm_assoc.level_fs", unsafe.Offsetof(cs.level_fs), unsafe.Offsetof(gs.LevelFS)},
		{"gpub_slurm_assoc.fs_factor", unsafe.Offsetof(cs.fs_factor), unsafe.Offsetof(gs.Factor)},
	}
}

// checkLayout is an error if one field lies in C where it doesn't in Go.
func checkLayout() error {
	for _, p := range layouts() {
		if p.inC != p.inGo {
			return fmt.Errorf("%s is %d in bridge.h and %d in Go", p.name, p.inC, p.inGo)
		}
	}
	return nil
}

// tableLayout is that of the table and what belongs to it.
func tableLayout() []place {
	var (
		cx C.struct_gpub_extremes
		gx engine.Extremes
		cr C.struct_gpub_rise
		gr engine.Rise
		cs C.struct_gpub_slot
		gs engine.Slot
		cp C.struct_gpub_place
		gp engine.Place
		cw C.struct_gpub_weights
		gw engine.Weights
		ct C.struct_gpub_table
		gt engine.Table
	)
	return []place{
		{"sizeof gpub_extremes", unsafe.Sizeof(cx), unsafe.Sizeof(gx)},
		{"gpub_extremes.any", unsafe.Offsetof(cx.any), unsafe.Offsetof(gx.Any)},
		{"gpub_extremes.tres_count", unsafe.Offsetof(cx.tres_count), unsafe.Offsetof(gx.TRESCount)},
		{"gpub_extremes.site_low", unsafe.Offsetof(cx.site_low), unsafe.Offsetof(gx.SiteLow)},
		{"gpub_extremes.site_high", unsafe.Offsetof(cx.site_high), unsafe.Offsetof(gx.SiteHigh)},
		{"gpub_extremes.assoc", unsafe.Offsetof(cx.assoc), unsafe.Offsetof(gx.Assoc)},
		{"gpub_extremes.partition", unsafe.Offsetof(cx.partition), unsafe.Offsetof(gx.Partition)},
		{"gpub_extremes.tres", unsafe.Offsetof(cx.tres), unsafe.Offsetof(gx.TRES)},

		{"sizeof gpub_rise", unsafe.Sizeof(cr), unsafe.Sizeof(gr)},
		{"gpub_rise.from", unsafe.Offsetof(cr.from), unsafe.Offsetof(gr.From)},
		{"gpub_rise.amount", unsafe.Offsetof(cr.amount), unsafe.Offsetof(gr.Amount)},

		{"sizeof gpub_slot", unsafe.Sizeof(cs), unsafe.Sizeof(gs)},
		{"gpub_slot.qos_unit", unsafe.Offsetof(cs.qos_unit), unsafe.Offsetof(gs.QOSUnit)},
		{"gpub_slot.nice_first", unsafe.Offsetof(cs.nice_first), unsafe.Offsetof(gs.NiceFirst)},
		{"gpub_slot.nice_count", unsafe.Offsetof(cs.nice_count), unsafe.Offsetof(gs.NiceCount)},
		{"gpub_slot.unallocated_base", unsafe.Offsetof(cs.unallocated_base), unsafe.Offsetof(gs.UnallocatedBase)},
		{"gpub_slot.unallocated", unsafe.Offsetof(cs.unallocated), unsafe.Offsetof(gs.Unallocated)},

		{"sizeof gpub_place", unsafe.Sizeof(cp), unsafe.Sizeof(gp)},
		{"gpub_place.fairshare", unsafe.Offsetof(cp.fairshare), unsafe.Offsetof(gp.Fairshare)},
		{"gpub_place.slot", unsafe.Offsetof(cp.slot), unsafe.Offsetof(gp.Slot)},

		{"sizeof gpub_weights", unsafe.Sizeof(cw), unsafe.Sizeof(gw)},
		{"gpub_weights.generation", unsafe.Offsetof(cw.generation), unsafe.Offsetof(gw.Generation)},
		{"gpub_weights.age", unsafe.Offsetof(cw.age), unsafe.Offsetof(gw.Age)},
		{"gpub_weights.assoc", unsafe.Offsetof(cw.assoc), unsafe.Offsetof(gw.Assoc)},
		{"gpub_weights.fairshare", unsafe.Offsetof(cw.fairshare), unsafe.Offsetof(gw.Fairshare)},
		{"gpub_weights.job_size", unsafe.Offsetof(cw.job_size), unsafe.Offsetof(gw.JobSize)},
		{"gpub_weights.partition", unsafe.Offsetof(cw.partition), unsafe.Offsetof(gw.Partition)},
		{"gpub_weights.qos", unsafe.Offsetof(cw.qos), unsafe.Offsetof(gw.QOS)},
		{"gpub_weights.max_age", unsafe.Offsetof(cw.max_age), unsafe.Offsetof(gw.MaxAge)},
		{"gpub_weights.flags", unsafe.Offsetof(cw.flags), unsafe.Offsetof(gw.Flags)},
		{"gpub_weights.favor_small", unsafe.Offsetof(cw.favor_small), unsafe.Offsetof(gw.FavorSmall)},
		{"gpub_weights.damp_factor", unsafe.Offsetof(cw.damp_factor), unsafe.Offsetof(gw.Damping)},
		{"gpub_weights.tres_count", unsafe.Offsetof(cw.tres_count), unsafe.Offsetof(gw.TRESCount)},
		{"gpub_weights.tres", unsafe.Offsetof(cw.tres), unsafe.Offsetof(gw.TRES)},

		{"sizeof gpub_table", unsafe.Sizeof(ct), unsafe.Sizeof(gt)},
		{"gpub_table.weights", unsafe.Offsetof(ct.weights), unsafe.Offsetof(gt.Weights)},
		{"gpub_table.nodes", unsafe.Offsetof(ct.nodes), unsafe.Offsetof(gt.Nodes)},
		{"gpub_table.cpus", unsafe.Offsetof(ct.cpus), unsafe.Offsetof(gt.CPUs)},
		{"gpub_table.packed", unsafe.Offsetof(ct.packed), unsafe.Offsetof(gt.Packed)},
		{"gpub_table.unallocated", unsafe.Offsetof(ct.unallocated), unsafe.Offsetof(gt.Unallocated)},
		{"gpub_table.qos_count", unsafe.Offsetof(ct.qos_count), unsafe.Offsetof(gt.QOSCount)},
		{"gpub_table.nice_count", unsafe.Offsetof(ct.nice_count), unsafe.Offsetof(gt.NiceCount)},
		{"gpub_table.slot_count", unsafe.Offsetof(ct.slot_count), unsafe.Offsetof(gt.SlotCount)},
		{"gpub_table.rest_steps", unsafe.Offsetof(ct.rest_steps), unsafe.Offsetof(gt.RestSteps)},
		{"gpub_table.rest_scale", unsafe.Offsetof(ct.rest_scale), unsafe.Offsetof(gt.RestScale)},
		{"gpub_table.site_low", unsafe.Offsetof(ct.site_low), unsafe.Offsetof(gt.SiteLow)},
		{"gpub_table.band", unsafe.Offsetof(ct.band), unsafe.Offsetof(gt.Band)},
		{"gpub_table.unknown", unsafe.Offsetof(ct.unknown), unsafe.Offsetof(gt.Unknown)},
		{"gpub_table.qos", unsafe.Offsetof(ct.qos), unsafe.Offsetof(gt.QOS)},
		{"gpub_table.nice", unsafe.Offsetof(ct.nice), unsafe.Offsetof(gt.Nice)},
		{"gpub_table.slots", unsafe.Offsetof(ct.slots), unsafe.Offsetof(gt.Slots)},
	}
}

// placingLayout is that of what preemption is decided by.
func placingLayout() []place {
	var (
		cr  C.struct_gpub_request
		gr  engine.Request
		cm  C.struct_gpub_room
		gm  fairshare.Room
		co  C.struct_gpub_occupant
		occ engine.Occupant
		cp  C.struct_gpub_piece
		gp  engine.Piece
		cl  C.struct_gpub_placing
		gl  engine.Placing
	)
	return []place{
		{"sizeof gpub_room", unsafe.Sizeof(cm), unsafe.Sizeof(gm)},
		{"gpub_room.gpus", unsafe.Offsetof(cm.gpus), fairshare.RoomGPUs * unsafe.Sizeof(gm[0])},
		{"gpub_room.cpus", unsafe.Offsetof(cm.cpus), fairshare.RoomCPUs * unsafe.Sizeof(gm[0])},
		{"gpub_room.memory", unsafe.Offsetof(cm.memory), fairshare.RoomMemory * unsafe.Sizeof(gm[0])},

		{"sizeof gpub_request", unsafe.Sizeof(cr), unsafe.Sizeof(gr)},
		{"gpub_request.job", unsafe.Offsetof(cr.job), unsafe.Offsetof(gr.Job)},
		{"gpub_request.nodes", unsafe.Offsetof(cr.nodes), unsafe.Offsetof(gr.Nodes)},
		{"gpub_request.max_nodes", unsafe.Offsetof(cr.max_nodes), unsafe.Offsetof(gr.MaxNodes)},
		{"gpub_request.per_node", unsafe.Offsetof(cr.per_node), unsafe.Offsetof(gr.PerNode)},

		{"sizeof gpub_occupant", unsafe.Sizeof(co), unsafe.Sizeof(occ)},
		{"gpub_occupant.job_id", unsafe.Offsetof(co.job_id), unsafe.Offsetof(occ.JobID)},
		{"gpub_occupant.het_job_id", unsafe.Offsetof(co.het_job_id), unsafe.Offsetof(occ.HetJobID)},
		{"gpub_occupant.start", unsafe.Offsetof(co.start), unsafe.Offsetof(occ.Start)},
		{"gpub_occupant.nice", unsafe.Offsetof(co.nice), unsafe.Offsetof(occ.Nice)},
		{"gpub_occupant.gpus", unsafe.Offsetof(co.gpus), unsafe.Offsetof(occ.GPUs)},
		{"gpub_occupant.qos_priority", unsafe.Offsetof(co.qos_priority), unsafe.Offsetof(occ.QOSPriority)},
		{"gpub_occupant.order", unsafe.Offsetof(co.order), unsafe.Offsetof(occ.Order)},

		{"sizeof gpub_piece", unsafe.Sizeof(cp), unsafe.Sizeof(gp)},
		{"gpub_piece.occupant", unsafe.Offsetof(cp.occupant), unsafe.Offsetof(gp.Occupant)},
		{"gpub_piece.node", unsafe.Offsetof(cp.node), unsafe.Offsetof(gp.Node)},
		{"gpub_piece.held", unsafe.Offsetof(cp.held), unsafe.Offsetof(gp.Held)},

		{"sizeof gpub_placing", unsafe.Sizeof(cl), unsafe.Sizeof(gl)},
		{"gpub_placing.request", unsafe.Offsetof(cl.request), unsafe.Offsetof(gl.Request)},
		{"gpub_placing.free", unsafe.Offsetof(cl.free), unsafe.Offsetof(gl.Free)},
		{"gpub_placing.pieces", unsafe.Offsetof(cl.pieces), unsafe.Offsetof(gl.Pieces)},
		{"gpub_placing.occupants", unsafe.Offsetof(cl.occupants), unsafe.Offsetof(gl.Occupants)},
		{"gpub_placing.node_count", unsafe.Offsetof(cl.node_count), unsafe.Offsetof(gl.NodeCount)},
		{"gpub_placing.piece_count", unsafe.Offsetof(cl.piece_count), unsafe.Offsetof(gl.PieceCount)},
		{"gpub_placing.occupant_count", unsafe.Offsetof(cl.occupant_count), unsafe.Offsetof(gl.OccupantCount)},
	}
}

func submissionLayout() []place {
	var (
		cs C.struct_gpub_submission
		gs engine.Submission
	)
	return []place{
		{"sizeof gpub_submission", unsafe.Sizeof(cs), unsafe.Sizeof(gs)},
		{"gpub_submission.account", unsafe.Offsetof(cs.account), unsafe.Offsetof(gs.Account)},
		{"gpub_submission.user", unsafe.Offsetof(cs.user), unsafe.Offsetof(gs.User)},
		{"gpub_submission.user_id", unsafe.Offsetof(cs.user_id), unsafe.Offsetof(gs.UserID)},
		{"gpub_submission.gpus", unsafe.Offsetof(cs.gpus), unsafe.Offsetof(gs.GPUs)},
		{"gpub_submission.min_runtime", unsafe.Offsetof(cs.min_runtime), unsafe.Offsetof(gs.MinRuntime)},
		{"gpub_submission.time_limit", unsafe.Offsetof(cs.time_limit), unsafe.Offsetof(gs.TimeLimit)},
		{"gpub_submission.verdict", unsafe.Offsetof(cs.verdict), unsafe.Offsetof(gs.Verdict)},
		{"gpub_submission.granted", unsafe.Offsetof(cs.granted), unsafe.Offsetof(gs.Granted)},
		{"gpub_submission.message", unsafe.Offsetof(cs.message), unsafe.Offsetof(gs.Message)},
	}
}
