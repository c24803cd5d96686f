// SPDX-License-Identifier: GPL-2.0-or-later

package main

// #include "../bridge.h"
import "C"

import (
	"fmt"
	"unsafe"

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
		cp C.struct_gpub_job_part
		gp engine.JobPart
		cf C.struct_gpub_factors
		gf engine.Factors
		ca C.struct_gpub_assoc
		ga engine.Assoc
		cc C.struct_gpub_cluster
		gc engine.Cluster
	)
	return append(slurmAssocLayout(), []place{
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
		{"gpub_job.accrue", unsafe.Offsetof(cj.accrue), unsafe.Offsetof(gj.Accrue)},
		{"gpub_job.start", unsafe.Offsetof(cj.start), unsafe.Offsetof(gj.Start)},
		{"gpub_job.end", unsafe.Offsetof(cj.end), unsafe.Offsetof(gj.End)},
		{"gpub_job.resize", unsafe.Offsetof(cj.resize), unsafe.Offsetof(gj.Resize)},
		{"gpub_job.suspend", unsafe.Offsetof(cj.suspend), unsafe.Offsetof(gj.Suspend)},
		{"gpub_job.suspended", unsafe.Offsetof(cj.suspended), unsafe.Offsetof(gj.Suspended)},
		{"gpub_job.time_limit", unsafe.Offsetof(cj.time_limit), unsafe.Offsetof(gj.TimeLimit)},
		{"gpub_job.demand_tasks", unsafe.Offsetof(cj.demand_tasks), unsafe.Offsetof(gj.DemandTasks)},
		{"gpub_job.gpus", unsafe.Offsetof(cj.gpus), unsafe.Offsetof(gj.GPUs)},
		{"gpub_job.cpus", unsafe.Offsetof(cj.cpus), unsafe.Offsetof(gj.CPUs)},
		{"gpub_job.min_nodes", unsafe.Offsetof(cj.min_nodes), unsafe.Offsetof(gj.MinNodes)},
		{"gpub_job.current_priority", unsafe.Offsetof(cj.current_priority), unsafe.Offsetof(gj.CurrentPriority)},
		{"gpub_job.nice", unsafe.Offsetof(cj.nice), unsafe.Offsetof(gj.Nice)},
		{"gpub_job.site", unsafe.Offsetof(cj.site), unsafe.Offsetof(gj.Site)},
		{"gpub_job.assoc_factor", unsafe.Offsetof(cj.assoc_factor), unsafe.Offsetof(gj.AssocFactor)},
		{"gpub_job.part_factor", unsafe.Offsetof(cj.part_factor), unsafe.Offsetof(gj.PartFactor)},
		{"gpub_job.qos_factor", unsafe.Offsetof(cj.qos_factor), unsafe.Offsetof(gj.QOSFactor)},
		{"gpub_job.qos_priority", unsafe.Offsetof(cj.qos_priority), unsafe.Offsetof(gj.QOSPriority)},
		{"gpub_job.tres", unsafe.Offsetof(cj.tres), unsafe.Offsetof(gj.TRES)},
		{"gpub_job.parts", unsafe.Offsetof(cj.parts), unsafe.Offsetof(gj.Parts)},
		{"gpub_job.parts_count", unsafe.Offsetof(cj.parts_count), unsafe.Offsetof(gj.PartsCount)},

		{"sizeof gpub_job_part", unsafe.Sizeof(cp), unsafe.Sizeof(gp)},
		{"gpub_job_part.factor", unsafe.Offsetof(cp.factor), unsafe.Offsetof(gp.Factor)},
		{"gpub_job_part.tres", unsafe.Offsetof(cp.tres), unsafe.Offsetof(gp.TRES)},
		{"gpub_job_part.priority", unsafe.Offsetof(cp.priority), unsafe.Offsetof(gp.Priority)},

		{"sizeof gpub_factors", unsafe.Sizeof(cf), unsafe.Sizeof(gf)},
		{"gpub_factors.age", unsafe.Offsetof(cf.age), unsafe.Offsetof(gf.Age)},
		{"gpub_factors.assoc", unsafe.Offsetof(cf.assoc), unsafe.Offsetof(gf.Assoc)},
		{"gpub_factors.fairshare", unsafe.Offsetof(cf.fairshare), unsafe.Offsetof(gf.Fairshare)},
		{"gpub_factors.job_size", unsafe.Offsetof(cf.job_size), unsafe.Offsetof(gf.JobSize)},
		{"gpub_factors.partition", unsafe.Offsetof(cf.partition), unsafe.Offsetof(gf.Partition)},
		{"gpub_factors.qos", unsafe.Offsetof(cf.qos), unsafe.Offsetof(gf.QOS)},
		{"gpub_factors.site", unsafe.Offsetof(cf.site), unsafe.Offsetof(gf.Site)},
		{"gpub_factors.nice", unsafe.Offsetof(cf.nice), unsafe.Offsetof(gf.Nice)},
		{"gpub_factors.tres", unsafe.Offsetof(cf.tres), unsafe.Offsetof(gf.TRES)},
		{"gpub_factors.priority", unsafe.Offsetof(cf.priority), unsafe.Offsetof(gf.Priority)},

		{"sizeof gpub_assoc", unsafe.Sizeof(ca), unsafe.Sizeof(ga)},
		{"gpub_assoc.id", unsafe.Offsetof(ca.id), unsafe.Offsetof(ga.ID)},
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
