// SPDX-License-Identifier: GPL-2.0-or-later

package meter

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// instances reads the MIG instances of a GPU.
func (m *Meter) instances(r *Round, g *gpu, device Device) []InstanceReading {
	places, err := device.Places()
	if !m.note(g.UUID, "MIG instances", err) {
		return nil
	}
	readings := make([]InstanceReading, 0, places)
	for place := range places {
		d, err := device.Instance(place)
		if errors.Is(err, ErrNotFound) {
			continue // an empty place
		}
		if err != nil {
			m.note(g.UUID, "MIG instances", err)
			continue
		}
		if reading, ok := m.instance(g, d); ok {
			readings = append(readings, reading)
		}
	}
	m.activities(r, g, device, readings)
	m.dropInstances(g)
	slices.SortFunc(readings, func(a, b InstanceReading) int {
		return cmp.Or(compare(a.GPUInstance, b.GPUInstance), compare(a.ComputeInstance, b.ComputeInstance), cmp.Compare(a.UUID, b.UUID))
	})
	return readings
}

// compare puts what is not known first.
func compare(a, b *int) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return -1
	case b == nil:
		return 1
	}
	return cmp.Compare(*a, *b)
}

// instance reads a MIG instance, but for how busy it is.
func (m *Meter) instance(g *gpu, d Instance) (InstanceReading, bool) {
	uuid, err := d.UUID()
	if !m.note(g.UUID, "MIG instances", err) {
		return InstanceReading{}, false
	}
	i := g.instances[uuid]
	if i == nil {
		i = &instance{MIG: MIG{UUID: uuid}}
		if g.instances == nil {
			g.instances = map[string]*instance{}
		}
		g.instances[uuid] = i
		m.introduceInstance(i, d)
	}
	if i.round == m.rounds {
		return InstanceReading{}, false // the same at two places
	}
	i.round = m.rounds
	reading := InstanceReading{MIG: i.MIG}
	_, used, err := d.Memory()
	if m.note(uuid, "memory", err) {
		reading.MemoryUsed = &used
	}
	reading.Processes = m.processes(uuid, d)
	return reading, true
}

func (m *Meter) introduceInstance(i *instance, d Instance) {
	gi, ci, err := d.IDs()
	if m.note(i.UUID, "instance ids", err) {
		i.GPUInstance, i.ComputeInstance = &gi, &ci
	}
	n, memory, err := d.Shape()
	if m.note(i.UUID, "slices", err) {
		i.Slices, i.Memory = &n, &memory
	}
}

// activities finds out how busy the instances are. The counters are those of
// GPU instances: of one that is divided into several compute instances, it is
// not known which of them was at work.
func (m *Meter) activities(r *Round, g *gpu, device Device, readings []InstanceReading) {
	for n := range readings {
		reading := &readings[n]
		if reading.GPUInstance == nil || shared(readings, n) {
			continue
		}
		i := g.instances[reading.UUID]
		if i.activity == nil {
			activity, err := device.Activity(*reading.GPUInstance)
			if !m.note(reading.UUID, "utilisation", err) {
				continue
			}
			i.activity = activity
		}
		percent, ok, err := i.activity.Mean()
		if err == nil && ok && !isPercent(percent) {
			err = fmt.Errorf("utilisation of %g percent", percent)
		}
		if m.note(reading.UUID, "utilisation", err) && ok && r.Elapsed > 0 {
			reading.Busy = &Busy{Busy: part(r.Elapsed, percent), Known: r.Elapsed, Source: FromActivity}
		}
	}
}

func shared(readings []InstanceReading, n int) bool {
	for i := range readings {
		if i != n && readings[i].GPUInstance != nil && *readings[i].GPUInstance == *readings[n].GPUInstance {
			return true
		}
	}
	return false
}

// dropInstances forgets the instances that are no more.
func (m *Meter) dropInstances(g *gpu) {
	var gone []string
	for uuid, i := range g.instances {
		if i.round != m.rounds {
			gone = append(gone, uuid)
		}
	}
	slices.Sort(gone)
	for _, uuid := range gone {
		m.o.Log.Info("a MIG instance is gone", "gpu", g.UUID, "instance", uuid)
		m.note(uuid, "utilisation", g.instances[uuid].forget())
		m.forgetProblems(uuid)
		delete(g.instances, uuid)
	}
}
