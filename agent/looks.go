// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"fmt"
	"maps"
	"slices"

	"gpubudget/agent/tally"
	"gpubudget/usage/meter"
)

// reach is for how many rounds what was seen is taken to have been so before:
// after a longer pause nobody knows.
const reach = 3

// jobOnGPU is a job whose processes are on a GPU.
type jobOnGPU struct {
	job uint32
	gpu string
}

func (a jobOnGPU) compare(b jobOnGPU) int {
	if a.job != b.job {
		return int(int64(a.job) - int64(b.job))
	}
	if a.gpu < b.gpu {
		return -1
	}
	return 1
}

// sighted is a job that no Prolog told of, from the first to the last look at
// its processes.
type sighted struct{ from, last int64 }

// looks are what was seen of each GPU and MIG instance. Jobs are told from their
// processes, by control groups; where there are none, processes of a GPU that
// one job holds are that job's.
func (a *Agent) looks(r *meter.Round, holdings []tally.Holding, now int64) map[string]tally.Look {
	looks := map[string]tally.Look{}
	if r == nil || r.Elapsed <= 0 {
		return looks
	}
	from := now - min(r.Elapsed.Milliseconds(), reach*a.o.Interval.Milliseconds())
	holders := map[string][]uint32{}
	for i := range holdings {
		if h := &holdings[i]; h.Until > now {
			holders[h.GPU] = append(holders[h.GPU], h.JobID)
		}
	}
	for i := range r.GPUs {
		g := &r.GPUs[i]
		if g.UUID == "" || g.Err != nil {
			continue
		}
		look := lookOf(&g.Usage, from)
		look.Power = g.Power
		look.Jobs = a.jobsOn(g.UUID, g.Processes, holders[g.UUID])
		looks[g.UUID] = look
		for j := range g.Instances {
			m := &g.Instances[j]
			look := lookOf(&m.Usage, from)
			look.Jobs = a.jobsOn(m.UUID, m.Processes, holders[m.UUID])
			looks[m.UUID] = look
		}
	}
	return looks
}

func lookOf(u *meter.Usage, from int64) tally.Look {
	look := tally.Look{From: from, Memory: inMiB(u.MemoryUsed)}
	if u.Busy != nil {
		look.Busy, look.BusyKnown = u.Busy.Busy.Microseconds(), u.Busy.Known.Microseconds()
	}
	return look
}

// jobsOn are the jobs with processes on a GPU; nil if that is not known.
func (a *Agent) jobsOn(uuid string, processes []meter.Process, holders []uint32) map[uint32]tally.JobLook {
	if processes == nil {
		return nil
	}
	jobs := map[uint32]tally.JobLook{}
	for i := range processes {
		job, ok, err := a.o.Cgroups.Job(processes[i].PID)
		if err != nil && a.told.first(err.Error()) {
			a.log.Warn("whose a process on a GPU is", "gpu", uuid, "err", err)
		}
		if !ok && !a.grouped {
			if len(holders) != 1 {
				return nil
			}
			job, ok = holders[0], true
		}
		if ok {
			add(jobs, job, processes[i].Memory)
		}
	}
	for _, job := range slices.Sorted(maps.Keys(jobs)) {
		a.sight(jobOnGPU{job, uuid}, slices.Contains(holders, job))
	}
	return jobs
}

// add adds a process's memory to its job's; once it is not known of one process
// it is not of the job.
func add(jobs map[uint32]tally.JobLook, job uint32, bytes *uint64) {
	old, was := jobs[job]
	mine := inMiB(bytes)
	if was && old.Memory != nil && mine != nil {
		*mine += *old.Memory
	} else if was {
		mine = nil
	}
	jobs[job] = tally.JobLook{Memory: mine}
}

// sight notes a job that is on a GPU which it does not hold.
func (a *Agent) sight(on jobOnGPU, holds bool) {
	switch s, ok := a.seen[on]; {
	case ok:
		s.last = a.now
	case !holds:
		a.seen[on] = &sighted{from: a.now, last: a.now}
	}
}

// sightedHoldings are the jobs that were seen on GPUs in this round or the one before
// and that no Prolog told of at all. Of a job that Prolog told of, Slurm's word
// holds: that it is on another GPU is a mistake that somebody should know of.
func (a *Agent) sightedHoldings(told map[uint32][]string) (all []tally.Holding) {
	for _, on := range slices.SortedFunc(maps.Keys(a.seen), jobOnGPU.compare) {
		s := a.seen[on]
		held, known := told[on.job]
		if known {
			if a.told.first(fmt.Sprint("stray ", on)) && !slices.Contains(held, on.gpu) {
				a.log.Warn("a job has processes on a GPU that Prolog did not name: unless it has GPUs of several types, compare gres.conf with the numbers of the device files",
					"job", on.job, "gpu", on.gpu, "holds", held)
			}
			delete(a.seen, on)
			continue
		}
		h := tally.Holding{ID: tally.ID{GPU: on.gpu, JobID: on.job, From: s.from}, Until: tally.Open, Source: tally.FromProcess}
		if s.last < a.now {
			h.Until = s.last
			delete(a.seen, on)
		} else if s.from == s.last && a.told.first(fmt.Sprint("sighted ", on)) {
			a.log.Warn("a job is on a GPU and Prolog did not tell of it: it is counted as long as its processes are seen",
				"job", on.job, "gpu", on.gpu)
		}
		all = append(all, h)
	}
	return all
}
