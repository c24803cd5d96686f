// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/agent/holding"
	"gpubudget/agent/slurmnode"
)

// aDevice is the GPU with a minor number, at a PCI address.
func aDevice(minor int, pci string) device {
	return device{GPU: GPU{UUID: fmt.Sprintf("GPU-of-minor-%d", minor), Minor: &minor, PCIBusID: pci}}
}

func slotsOf(files ...string) (g slurmnode.Gres) {
	for _, f := range files {
		g.Slots = append(g.Slots, slurmnode.Slot{Files: strings.Split(f, "+")})
	}
	return g
}

// Whatever the order of gres.conf, of the driver and of PCI addresses, a number
// means the GPU whose device file is the number-th in gres.conf.
func TestNumbersMeanDeviceFilesInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 16).Draw(t, "GPUs")
		order := func(label string) []int {
			all := make([]int, n)
			for i := range all {
				all[i] = i
			}
			return rapid.Permutation(all).Draw(t, label)
		}
		var devices []device
		pci := order("PCI addresses")
		for _, minor := range order("driver") {
			devices = append(devices, aDevice(minor, fmt.Sprintf("0000:%02x:00.0", pci[minor])))
		}
		var files []string
		gres := order("gres.conf")
		for _, minor := range gres {
			files = append(files, fmt.Sprintf("/dev/nvidia%d", minor))
		}
		g := slotsOf(files...)
		m := newSlotMap(g, nil, devices)
		number := rapid.IntRange(0, n-1).Draw(t, "number")
		require.Equal(t, []string{fmt.Sprintf("GPU-of-minor-%d", gres[number])}, m.resolve(&holding.Record{GPUs: strconv.Itoa(number), Visible: strconv.Itoa(number)}))

		g.AutoDetect = true
		m = newSlotMap(g, nil, devices)
		require.Equal(t, []string{fmt.Sprintf("GPU-of-minor-%d", slices.Index(pci, number))}, m.resolve(&holding.Record{GPUs: strconv.Itoa(number)}))
		require.Equal(t, m, newSlotMap(slurmnode.Gres{AutoDetect: true}, nil, devices))
	})
}

func TestGPUsThatAreNotKnownAreCalledByTheirNumbers(t *testing.T) {
	devices := []device{aDevice(0, "a"), aDevice(2, "b")}
	m := newSlotMap(slotsOf("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/odd"), nil, devices)
	for gpus, want := range map[string][]string{
		"0,2":   {"GPU-of-minor-0", "GPU-of-minor-2"},
		"1":     {"gres:1"}, // the driver does not have it
		"3,7":   {"gres:3", "gres:7"},
		"x,-1":  {"gres:x", "gres:-1"},
		"0-2":   {"GPU-of-minor-0", "gres:1", "GPU-of-minor-2"},
		"2,2,0": {"GPU-of-minor-2", "GPU-of-minor-0"},
	} {
		require.Equal(t, want, m.resolve(&holding.Record{GPUs: gpus}), gpus)
	}
	require.Equal(t, []string{"gres:0"}, newSlotMap(slotsOf("/dev/nvidia0"), nil, nil).resolve(&holding.Record{GPUs: "0"}), "no driver")
}

func TestPrologNamesUUIDsItself(t *testing.T) {
	m := newSlotMap(slotsOf("/dev/nvidia0", "/dev/nvidia1"), nil, []device{aDevice(0, "a"), aDevice(1, "b")})
	require.Equal(t, []string{"MIG-x", "GPU-y"}, m.resolve(&holding.Record{GPUs: "0,1", Visible: "MIG-x,GPU-y"}))
	require.Equal(t, []string{"GPU-of-minor-0", "GPU-of-minor-1"}, m.resolve(&holding.Record{GPUs: "0,1", Visible: "MIG-x"}), "not one for each")
}

func migDevices(instances int) []device {
	parent := aDevice(3, "0000:3b:00.0")
	devices := []device{parent}
	for gi := range instances {
		devices = append(devices, device{GPU: GPU{UUID: fmt.Sprintf("MIG-%d", gi), Parent: parent.UUID, PCIBusID: parent.PCIBusID}, GI: &gi, CI: new(int)})
	}
	return devices
}

func TestMIGInstancesByTheirCapabilities(t *testing.T) {
	places := map[int]slurmnode.Place{21: {Minor: 3, GPUInstance: 1}, 30: {Minor: 3, GPUInstance: 0}, 40: {Minor: 3, GPUInstance: 9}}
	m := newSlotMap(slotsOf(
		"/dev/nvidia3+/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia3+/dev/nvidia-caps/nvidia-cap29+/dev/nvidia-caps/nvidia-cap30",
		"/dev/nvidia3+/dev/nvidia-caps/nvidia-cap40", "/dev/nvidia3+/dev/nvidia-caps/nvidia-cap50",
	), places, migDevices(2))
	require.Equal(t, []string{"MIG-1", "MIG-0", "gres:2", "gres:3"}, m.resolve(&holding.Record{GPUs: "0,1,2,3"}))
}

func TestSixtyFourInstances(t *testing.T) {
	devices := migDevices(64)
	m := newSlotMap(slurmnode.Gres{AutoDetect: true}, nil, devices)
	require.Equal(t, []string{"MIG-0", "MIG-63"}, m.resolve(&holding.Record{GPUs: "0,63"}))
	m.number(devices)
	require.Nil(t, devices[0].GRESIndex, "the GPU itself is nobody's while it is cut up")
	require.Equal(t, 63, *devices[64].GRESIndex)
}
