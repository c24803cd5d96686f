// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpubudget/agent/holding"
	"gpubudget/agent/slurmnode"
	"gpubudget/usage/meter"
)

// device is a GPU or a MIG instance as it is known, with what names it here.
type device struct {
	GPU
	Index int  `json:"index"`        // the driver's number, of the GPU
	GI    *int `json:"gi,omitempty"` // of a MIG instance: its GPU instance and compute instance
	CI    *int `json:"ci,omitempty"`
}

const mib = 1 << 20

// devicesOf are the GPUs of a round, each followed by its instances, by PCI
// address and ids. GPUs that don't tell their UUID are left out.
func devicesOf(r *meter.Round) []device {
	var all []device
	for i := range r.GPUs {
		g := &r.GPUs[i]
		if g.UUID == "" {
			continue
		}
		all = append(all, device{
			GPU:   GPU{UUID: g.UUID, Model: g.Name, PCIBusID: g.PCI, Minor: g.Minor, MemoryMiB: inMiB(g.Memory), ComputeSlices: g.Slices},
			Index: g.Index,
		})
		for j := range g.Instances {
			m := &g.Instances[j]
			all = append(all, device{
				GPU: GPU{
					UUID: m.UUID, Model: g.Name, PCIBusID: g.PCI, MemoryMiB: inMiB(m.Memory), Parent: g.UUID,
					ComputeSlices: m.Slices, Profile: profile(&m.MIG),
				},
				Index: g.Index, GI: m.GPUInstance, CI: m.ComputeInstance,
			})
		}
	}
	return all
}

func inMiB(bytes *uint64) *int64 {
	if bytes == nil {
		return nil
	}
	v := int64(*bytes / mib) //nolint:gosec // of 64 bits 44 are left
	return &v
}

// profile names a MIG instance as nvidia-smi does, "3g.40gb"; "" if its shape is
// not known.
func profile(m *meter.MIG) string {
	if m.Slices == nil || m.Memory == nil {
		return ""
	}
	const gib = 1 << 30
	return fmt.Sprintf("%dg.%dgb", *m.Slices, (*m.Memory+gib-1)/gib)
}

// slotMap is what slurmd's numbers of GPUs mean.
type slotMap struct {
	uuids []string // by number; "" of one that is not there
}

// newSlotMap finds the device of each number: by the device file that gres.conf
// names, whatever the order of the lines. Where slurmd finds the GPUs by itself
// they are numbered by PCI address; where gres.conf names no files, nobody can
// tell, and the driver's order, by PCI address too, is taken.
func newSlotMap(g slurmnode.Gres, places map[int]slurmnode.Place, devices []device) slotMap {
	if len(g.Slots) == 0 {
		return slotMap{uuids: uuidsInOrder(devices, nil)}
	}
	uuids := make([]string, len(g.Slots))
	for i, slot := range g.Slots {
		uuids[i] = uuidOfSlot(slot, places, devices)
	}
	if g.AutoDetect {
		return slotMap{uuids: uuidsInOrder(devices, uuids)}
	}
	return slotMap{uuids: uuids}
}

// uuidsInOrder are the devices a job can be given, by PCI address: MIG instances
// in place of their GPU. If some are named, only those.
func uuidsInOrder(devices []device, only []string) (uuids []string) {
	hasInstances := map[string]bool{}
	for i := range devices {
		hasInstances[devices[i].Parent] = true
	}
	sorted := slices.Clone(devices)
	slices.SortStableFunc(sorted, func(a, b device) int { return cmp.Compare(a.PCIBusID, b.PCIBusID) })
	for i := range sorted {
		d := &sorted[i]
		if d.Parent == "" && hasInstances[d.UUID] {
			continue
		}
		if only == nil || slices.Contains(only, d.UUID) {
			uuids = append(uuids, d.UUID)
		}
	}
	return uuids
}

func uuidOfSlot(slot slurmnode.Slot, places map[int]slurmnode.Place, devices []device) string {
	for _, file := range slot.Files {
		n, ok := slurmnode.Minor(file)
		if !ok || !strings.HasPrefix(filepath.Base(file), "nvidia-cap") {
			continue
		}
		if place, ok := places[n]; ok {
			return uuidOfPlace(place, devices)
		}
	}
	if len(slot.Files) != 1 {
		return ""
	}
	n, ok := slurmnode.Minor(slot.Files[0])
	if !ok {
		return ""
	}
	return uuidOfMinor(n, devices)
}

func uuidOfMinor(minor int, devices []device) string {
	for i := range devices {
		if d := &devices[i]; d.Minor != nil && *d.Minor == minor {
			return d.UUID
		}
	}
	return ""
}

func uuidOfPlace(p slurmnode.Place, devices []device) string {
	parent := uuidOfMinor(p.Minor, devices)
	for i := range devices {
		d := &devices[i]
		if parent != "" && d.Parent == parent && d.GI != nil && *d.GI == p.GPUInstance && d.CI != nil && *d.CI == p.ComputeInstance {
			return d.UUID
		}
	}
	return ""
}

// number marks each device with the number slurmd calls it by.
func (m slotMap) number(devices []device) {
	for i := range devices {
		devices[i].GRESIndex = nil
		if n := slices.Index(m.uuids, devices[i].UUID); n >= 0 {
			devices[i].GRESIndex = &n
		}
	}
}

// unknownPrefix is how the name of a GPU begins whose UUID nobody knows: by
// slurmd's number.
const unknownPrefix = "gres:"

// resolve is what a job holds: one UUID for each GPU, in the order of
// SLURM_JOB_GPUS. Prolog names UUIDs itself where slurmd knows them, as of MIG
// instances. A GPU that is not known is called by its number.
func (m slotMap) resolve(r *holding.Record) []string {
	numbers := split(r.GPUs)
	named := split(r.Visible)
	uuids := make([]string, len(numbers))
	for i, text := range numbers {
		uuids[i] = unknownPrefix + text
		if len(named) == len(numbers) && isUUID(named[i]) {
			uuids[i] = named[i]
			continue
		}
		if n, err := strconv.Atoi(text); err == nil && n >= 0 && n < len(m.uuids) && m.uuids[n] != "" {
			uuids[i] = m.uuids[n]
		}
	}
	return uuids
}

func isUUID(name string) bool {
	return strings.HasPrefix(name, "GPU-") || strings.HasPrefix(name, "MIG-")
}

// split is a list of words, ranges of numbers ("0-3") written out.
func split(list string) (words []string) {
	for word := range strings.SplitSeq(list, ",") {
		word = strings.TrimSpace(word)
		low, high, ok := strings.Cut(word, "-")
		first, errLow := strconv.Atoi(low)
		last, errHigh := strconv.Atoi(high)
		if ok && errLow == nil && errHigh == nil && first <= last && last-first < 1024 {
			for n := first; n <= last; n++ {
				words = append(words, strconv.Itoa(n))
			}
		} else if word != "" && !slices.Contains(words, word) {
			words = append(words, word)
		}
	}
	return words
}
