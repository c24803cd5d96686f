// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"gpubudget/agent/holding"
	"gpubudget/agent/slurmnode"
	"gpubudget/usage/meter"
)

// View is what an agent of this node would see.
type View struct {
	Cluster  string            `json:"cluster"`
	Node     string            `json:"node"`
	At       time.Time         `json:"at"`
	GPUs     []GPUView         `json:"gpus"`
	Holdings []*holding.Record `json:"holdings"`           // what Prolog and Epilog wrote
	Problems []string          `json:"problems,omitempty"` // what could not be seen, and why
}

// GPUView is a GPU or a MIG instance as it is. What is not known is nil.
type GPUView struct {
	GPU
	Index     int           `json:"index"`
	Percent   *float64      `json:"utilisation_percent,omitempty"`
	UsedMiB   *int64        `json:"memory_used_mib,omitempty"`
	PowerMW   *int64        `json:"power_mw,omitempty"`
	Jobs      []uint32      `json:"jobs,omitempty"`      // that hold it, by Prolog
	Processes []ProcessView `json:"processes,omitempty"` // on it
	Error     string        `json:"error,omitempty"`
}

// ProcessView is a process on a GPU.
type ProcessView struct {
	PID       int    `json:"pid"`
	JobID     uint32 `json:"job_id,omitempty"` // 0: of no job
	MemoryMiB *int64 `json:"memory_mib,omitempty"`
}

// Look looks twice, so that it sees how busy GPUs are in between. It changes
// nothing and needs no agent that runs.
func Look(o Options, between time.Duration) (*View, error) {
	v := &View{Cluster: o.Cluster, Node: o.Node, GPUs: []GPUView{}, Holdings: []*holding.Record{}}
	problem := func(err error) {
		if err != nil {
			v.Problems = append(v.Problems, err.Error())
		}
	}
	var records []*holding.Record
	records, errs := holding.NewFolder(o.JobsDir).List()
	problem(errors.Join(errs...))
	for _, r := range records {
		if r.BootID == o.BootID {
			v.Holdings = append(v.Holdings, r)
		}
	}
	round, err := lookTwice(o, between)
	problem(err)
	v.At = o.Clock.Now().UTC()
	if round == nil {
		return v, nil
	}
	gres, err := slurmnode.ReadGres(o.GresConf, o.Node)
	problem(err)
	places, err := slurmnode.MIGPlaces(o.MIGMinors)
	problem(err)
	devices := devicesOf(round)
	slots := newSlotMap(gres, places, devices)
	slots.number(devices)
	usages := usagesOf(round)
	for i := range devices {
		d := &devices[i]
		g := GPUView{GPU: d.GPU, Index: d.Index}
		for _, r := range v.Holdings {
			if r.Until == nil && slices.Contains(slots.resolve(r), d.UUID) {
				g.Jobs = append(g.Jobs, r.JobID)
			}
		}
		problem(g.fill(o.Cgroups, usages[d.UUID]))
		v.GPUs = append(v.GPUs, g)
	}
	return v, nil
}

func lookTwice(o Options, between time.Duration) (*meter.Round, error) {
	s, err := o.Open()
	if err != nil {
		return nil, err
	}
	if _, err := s.Sample(); err != nil {
		return nil, err
	}
	time.Sleep(between)
	round, err := s.Sample()
	if err != nil {
		return nil, err
	}
	return round, s.Close()
}

// usageOf is how one device is used.
type usageOf struct {
	meter.Usage
	power *int64
	err   error
}

func usagesOf(r *meter.Round) map[string]usageOf {
	usages := map[string]usageOf{}
	for i := range r.GPUs {
		g := &r.GPUs[i]
		usages[g.UUID] = usageOf{g.Usage, g.Power, g.Err}
		for j := range g.Instances {
			usages[g.Instances[j].UUID] = usageOf{Usage: g.Instances[j].Usage}
		}
	}
	return usages
}

func (g *GPUView) fill(cgroups *slurmnode.Cgroups, u usageOf) error {
	if u.err != nil {
		g.Error = u.err.Error()
		return fmt.Errorf("%s: %w", g.UUID, u.err)
	}
	g.UsedMiB, g.PowerMW = inMiB(u.MemoryUsed), u.power
	if u.Busy != nil && u.Busy.Known > 0 {
		percent := 100 * u.Busy.Busy.Seconds() / u.Busy.Known.Seconds()
		g.Percent = &percent
	}
	var errs []error
	for _, p := range u.Processes {
		job, _, err := cgroups.Job(p.PID)
		errs = append(errs, err)
		g.Processes = append(g.Processes, ProcessView{PID: p.PID, JobID: job, MemoryMiB: inMiB(p.Memory)})
	}
	return errors.Join(errs...)
}
