// SPDX-License-Identifier: GPL-2.0-or-later

package meter

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// gpu is what is kept of a GPU from round to round.
type gpu struct {
	GPU
	round      uint64 // in which it was last seen, lost or not
	lastSample int64  // newest sample of the ring that was read, by the driver's clock; 0: none yet
	began      bool   // the round before has read it, as a GPU that is not in MIG mode
	ecc        *ECC
	eccTried   time.Duration
	instances  map[string]*instance
}

// instance is what is kept of a MIG instance.
type instance struct {
	MIG
	round    uint64
	activity Activity
}

func (g *gpu) forget() error {
	var errs error
	for _, i := range g.instances {
		errs = errors.Join(errs, i.forget())
	}
	return errs
}

func (i *instance) forget() error {
	if i.activity == nil {
		return nil
	}
	err := i.activity.Close()
	i.activity = nil
	return err
}

// round reads all GPUs.
func (m *Meter) round() (*Round, error) {
	r := &Round{At: m.o.Clock.Now(), Boot: m.o.Clock.Boot()}
	if m.began {
		r.Elapsed = max(0, r.Boot-m.lastRound)
	}
	count, err := m.o.Driver.Count()
	if err != nil {
		return nil, fmt.Errorf("count the GPUs: %w", err)
	}
	if count == 0 {
		m.note("", "GPUs", errNoGPUs)
	} else {
		m.note("", "GPUs", nil)
	}
	m.rounds++
	m.resize(count)
	r.GPUs = make([]Reading, 0, count)
	devices, uuids := make([]Device, 0, count), make([]string, 0, count)
	for slot := range count {
		device, uuid, err := m.identify(slot)
		if err != nil {
			r.GPUs = append(r.GPUs, m.lost(slot, err))
			continue
		}
		if uuid == "" {
			continue
		}
		devices, uuids = append(devices, device), append(uuids, uuid)
		r.GPUs = append(r.GPUs, m.read(r, slot, device, uuid))
	}
	slices.SortFunc(r.GPUs, func(a, b Reading) int {
		return cmp.Or(cmp.Compare(a.PCI, b.PCI), cmp.Compare(a.UUID, b.UUID), cmp.Compare(a.Index, b.Index))
	})
	m.dropUnseen()
	m.rewatch(devices, uuids)
	r.Xids, r.XidsDropped = m.xids.take()
	m.lastRound, m.began = r.Boot, true
	return r, nil
}

var errNoGPUs = errors.New("the driver has no GPUs")

func (m *Meter) resize(count int) {
	for len(m.slots) < count {
		m.slots = append(m.slots, "")
	}
	m.slots = m.slots[:count]
}

// identify says which GPU is at a slot. The UUID is "" of one that was at
// another slot already.
func (m *Meter) identify(slot int) (Device, string, error) {
	device, err := m.o.Driver.Device(slot)
	if err != nil {
		return nil, "", err
	}
	uuid, err := device.UUID()
	if err != nil {
		return nil, "", err
	}
	if g := m.known[uuid]; g != nil && g.round == m.rounds {
		m.note(uuid, "identity", fmt.Errorf("two GPUs have the UUID %s", uuid))
		return nil, "", nil
	}
	return device, uuid, nil
}

// lost is the reading of a GPU that does not even tell its UUID. It is taken
// for the one that was at the slot before.
func (m *Meter) lost(slot int, err error) Reading {
	g := m.known[m.slots[slot]]
	if g == nil || g.round == m.rounds {
		m.note("", fmt.Sprintf("GPU number %d", slot), err)
		return Reading{GPU: GPU{Index: slot}, Err: err}
	}
	g.round = m.rounds
	return m.unreadable(g, err)
}

// unreadable is the reading of a GPU that is known, but of which nothing can be
// read. What is measured over time begins anew when it can be read again.
func (m *Meter) unreadable(g *gpu, err error) Reading {
	g.began, g.lastSample = false, 0
	m.note(g.UUID, "GPU", err)
	return Reading{GPU: g.GPU, Err: err}
}

// read reads a GPU.
func (m *Meter) read(r *Round, slot int, device Device, uuid string) Reading {
	g := m.gpu(slot, device, uuid)
	total, used, err := device.Memory()
	if errors.Is(err, ErrLost) || errors.Is(err, ErrResetRequired) {
		return m.unreadable(g, err)
	}
	m.note(uuid, "GPU", nil)
	m.note("", fmt.Sprintf("GPU number %d", slot), nil)
	var reading Reading
	if m.note(uuid, "memory", err) {
		g.Memory, reading.MemoryUsed = &total, &used
	}
	mig, err := device.MIG()
	g.MIG = nil
	if m.note(uuid, "MIG mode", err) {
		g.MIG = &mig
	}
	power, err := device.Power()
	if m.note(uuid, "power", err) {
		reading.Power = &power
	}
	reading.ECC = m.ecc(r, g, device)
	if mig {
		reading.Instances = m.instances(r, g, device)
		g.lastSample = 0
	} else {
		m.dropInstances(g)
		reading.Busy = m.busy(r, g, device)
		reading.Processes = m.processes(uuid, device)
	}
	g.began = !mig
	reading.GPU = g.GPU
	return reading
}

// gpu finds what is kept of a GPU, or begins to keep it.
func (m *Meter) gpu(slot int, device Device, uuid string) *gpu {
	g := m.known[uuid]
	if g == nil {
		g = &gpu{GPU: GPU{UUID: uuid}}
		m.known[uuid] = g
		m.introduce(g, device)
	}
	if was := m.slots[slot]; was != "" && was != uuid {
		m.o.Log.Warn("another GPU in this place", "index", slot, "pci", g.PCI, "gpu", uuid, "was", was)
	}
	m.slots[slot] = uuid
	g.Index, g.round = slot, m.rounds
	return g
}

// introduce reads what does not change.
func (m *Meter) introduce(g *gpu, device Device) {
	pci, err := device.PCI()
	if m.note(g.UUID, "PCI address", err) {
		g.PCI = pci
	}
	name, err := device.Name()
	if m.note(g.UUID, "name", err) {
		g.Name = name
	}
	minor, err := device.Minor()
	if m.note(g.UUID, "minor number", err) {
		g.Minor = &minor
	}
	n, err := device.Slices()
	if err == nil {
		g.Slices = &n
	} else if !errors.Is(err, ErrNotSupported) && !errors.Is(err, ErrNoFunction) {
		m.note(g.UUID, "slices", err)
	}
}

// ecc reads the memory errors if it is time to.
func (m *Meter) ecc(r *Round, g *gpu, device Device) *ECC {
	if g.eccTried != 0 && r.Boot-g.eccTried < m.o.ECCEvery {
		return g.ecc
	}
	g.eccTried = r.Boot
	ecc, err := device.ECC()
	if !m.note(g.UUID, "memory errors", err) {
		g.ecc = nil
		return nil
	}
	ecc.ReadAt = r.Boot
	g.ecc = &ecc
	return g.ecc
}

// dropUnseen forgets GPUs that were not seen in this round.
func (m *Meter) dropUnseen() {
	var gone []string
	for uuid, g := range m.known {
		if g.round != m.rounds {
			gone = append(gone, uuid)
		}
	}
	slices.Sort(gone)
	for _, uuid := range gone {
		g := m.known[uuid]
		m.o.Log.Warn("a GPU is gone", "gpu", uuid, "pci", g.PCI, "name", g.Name)
		m.note(uuid, "utilisation", g.forget())
		m.forgetProblems(uuid)
		delete(m.known, uuid)
	}
}

func (m *Meter) forgetProblems(uuid string) {
	for p := range m.problems {
		if p.uuid == uuid {
			delete(m.problems, p)
		}
	}
}
