// SPDX-License-Identifier: GPL-2.0-or-later

package nvml_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/internal/simnvml"
	"gpubudget/usage/meter"
)

// readBy are the functions of which each reading needs one at least to work:
// if all of them fail, it is not known.
var readBy = map[string][]string{
	"PCI":        {"nvmlDeviceGetPciInfo_v3"},
	"Name":       {"nvmlDeviceGetName"},
	"Minor":      {"nvmlDeviceGetMinorNumber"},
	"MIG":        {"nvmlDeviceGetMigMode"},
	"Slices":     {"nvmlDeviceGetGpuInstanceProfileInfo"},
	"Memory":     {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"},
	"MemoryUsed": {"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"},
	"Power":      {"nvmlDeviceGetPowerUsage"},
	"Busy":       {"nvmlDeviceGetSamples", "nvmlDeviceGetUtilizationRates"},
	"Processes":  {"nvmlDeviceGetComputeRunningProcesses_v3"},
	"ECC":        {"nvmlDeviceGetTotalEccErrors"},
}

// fields are the readings of a GPU by name, those that are known.
func fields(r meter.Reading) []string {
	var known []string
	for name := range readBy {
		if !reflect.ValueOf(r).FieldByName(name).IsZero() {
			known = append(known, name)
		}
	}
	slices.Sort(known)
	return known
}

func expected(failing map[string]bool) []string {
	var known []string
	for name, functions := range readBy {
		if slices.ContainsFunc(functions, func(f string) bool { return !failing[f] }) {
			known = append(known, name)
		}
	}
	slices.Sort(known)
	return known
}

// TestWhatFailsIsUnknown lets any set of functions fail in any way: exactly
// what depends on them is unknown, of this GPU only, and nothing is zero
// instead.
func TestWhatFailsIsUnknown(t *testing.T) {
	var functions []string
	for _, f := range readBy {
		functions = append(functions, f...)
	}
	slices.Sort(functions)
	functions = slices.Compact(functions)
	codes := []int{1, 2, 3, 4, 6, 7, 13, 17, 27, 999}
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{a100(0), a100(1)}})
	for i := range n.state.GPUs {
		n.state.GPUs[i].Load = simnvml.Steady(50)
		n.state.GPUs[i].Processes = []simnvml.Process{{PID: 1}}
	}
	rapid.Check(t, func(rt *rapid.T) {
		failing := map[string]bool{}
		n.state.GPUs[0].Faults = nil
		for _, f := range functions {
			code := rapid.SampledFrom(codes).Draw(rt, f)
			if !rapid.Bool().Draw(rt, f+" fails") {
				continue
			}
			if f == "nvmlDeviceGetComputeRunningProcesses_v3" && code == 7 {
				code = 3 // this one asks go-nvml to try again for ever
			}
			failing[f] = true
			n.state.GPUs[0].Faults = append(n.state.GPUs[0].Faults, simnvml.Fault{Function: f, Code: code})
		}
		n.change(nil)
		m, err := meter.Open(n.options())
		require.NoError(rt, err)
		n.meter = m
		defer func() { require.NoError(rt, m.Close()) }()
		n.after(time.Second)
		r := n.after(time.Second)
		for _, g := range r.GPUs {
			require.NoError(rt, g.Err)
			if g.UUID == uuid(0) {
				require.Equal(rt, expected(failing), fields(g))
			} else {
				require.Equal(rt, expected(nil), fields(g))
			}
		}
		require.Len(rt, r.GPUs, 2)
	})
}

// TestBareGPU is one that supports nothing: known by its UUID only. What it
// does not support is said once, not each round.
func TestBareGPU(t *testing.T) {
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{{UUID: uuid(7), NoEvents: true}}}).open()
	n.after(time.Second)
	lines := n.log.lines()
	require.ElementsMatch(t, []string{
		`level=INFO msg="not known" gpu=` + uuid(7) + ` what="MIG mode" err="nvmlDeviceGetMigMode: not supported"`,
		`level=INFO msg="not known" gpu=` + uuid(7) + ` what="PCI address" err="nvmlDeviceGetPciInfo_v3: not supported"`,
		`level=INFO msg="not known" gpu=` + uuid(7) + ` what="memory errors" err="nvmlDeviceGetTotalEccErrors: not supported"`,
		`level=INFO msg="not known" gpu=` + uuid(7) + ` what="minor number" err="nvmlDeviceGetMinorNumber: not supported"`,
		`level=INFO msg="not known" gpu=` + uuid(7) + ` what=memory err="nvmlDeviceGetMemoryInfo: not supported"`,
		`level=INFO msg="not known" gpu=` + uuid(7) + ` what=power err="nvmlDeviceGetPowerUsage: not supported"`,
		`level=INFO msg="not known" gpu=` + uuid(7) + ` what=utilisation err="nvmlDeviceGetSamples: not supported\nnvmlDeviceGetUtilizationRates: not supported"`,
		`level=INFO msg="not known" gpu="" what="Xid errors" err="nvmlDeviceGetSupportedEventTypes: not supported"`,
	}, lines)
	r := n.after(time.Second)
	require.Equal(t, []meter.Reading{{GPU: meter.GPU{UUID: uuid(7)}, Usage: meter.Usage{Processes: []meter.Process{}}}}, r.GPUs)
	require.Empty(t, n.log.lines())
}

func TestKnownAgainIsLogged(t *testing.T) {
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{a100(0)}}).open()
	n.after(time.Second)
	n.change(func(s *simnvml.State) {
		s.GPUs[0].Faults = []simnvml.Fault{{Function: "nvmlDeviceGetPowerUsage", Code: 999}}
	})
	require.Nil(t, n.after(time.Second).GPUs[0].Power)
	require.Nil(t, n.after(time.Second).GPUs[0].Power)
	n.change(func(s *simnvml.State) { s.GPUs[0].Faults = nil })
	require.NotNil(t, n.after(time.Second).GPUs[0].Power)
	require.Equal(t, []string{
		`level=WARN msg="not known" gpu=` + uuid(0) + ` what=power err="nvmlDeviceGetPowerUsage: unknown error of the driver"`,
		`level=INFO msg="known again" gpu=` + uuid(0) + ` what=power`,
	}, n.log.lines())
}

func TestMemoryErrorsAreReadNowAndThen(t *testing.T) {
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{a100(0)}}).open()
	first := n.after(10 * time.Second).GPUs[0].ECC
	n.change(func(s *simnvml.State) { s.GPUs[0].ECC[1] = 77 })
	require.Equal(t, first, n.after(30 * time.Second).GPUs[0].ECC)
	again := n.after(30 * time.Second).GPUs[0].ECC
	require.Equal(t, uint64(77), again.Uncorrected)
	require.Equal(t, time.Hour+70*time.Second, again.ReadAt)
	n.change(func(s *simnvml.State) { s.GPUs[0].ECC = nil }) // ECC was turned off
	require.Nil(t, n.after(time.Minute).GPUs[0].ECC)
}

// TestMemoryOfOldDrivers has only the first version of the call, which counts
// what the driver keeps.
func TestMemoryOfOldDrivers(t *testing.T) {
	n := newNode(t, simnvml.State{
		Faults: []simnvml.Fault{{Function: "nvmlDeviceGetMemoryInfo_v2", Code: 25}}, GPUs: []simnvml.GPU{a100(0)},
	}).open()
	require.Equal(t, new(uint64(1<<30+512<<20)), n.after(time.Second).GPUs[0].MemoryUsed)
}
