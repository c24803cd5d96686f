// SPDX-License-Identifier: GPL-2.0-or-later

package nvml_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/simnvml"
	"gpubudget/usage/meter"
)

// h100 is a GPU in MIG mode: a 3-slice and a 4-slice instance.
func h100(i int) simnvml.GPU {
	g := a100(i)
	g.Name, g.MIG, g.GPM = "NVIDIA H100 80GB HBM3", new(true), true
	g.Instances = []simnvml.Instance{
		{UUID: migUUID(i, 2), GI: 2, Slices: 4, Memory: 40 << 30, MemoryUsed: new(uint64(3 << 30)), Load: simnvml.Steady(25), Processes: processes(21)},
		{UUID: migUUID(i, 1), GI: 1, Slices: 3, Memory: 40 << 30, MemoryUsed: new(uint64(0)), Load: simnvml.Steady(0)},
	}
	return g
}

func migUUID(gpu, gi int) string { return fmt.Sprintf("MIG-%08d-0000-0000-0000-%012d", gpu, gi) }

func TestMIG(t *testing.T) {
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{h100(0)}}).open()
	r := n.after(0)
	require.Nil(t, r.GPUs[0].Instances[0].Busy)
	r = n.after(10 * time.Second)
	g := r.GPUs[0]
	require.Equal(t, new(true), g.MIG)
	require.Equal(t, new(7), g.Slices)
	require.Nil(t, g.Busy, "of a GPU in MIG mode the driver does not tell")
	require.Nil(t, g.Processes)
	require.NotNil(t, g.Power)
	require.Equal(t, []meter.InstanceReading{
		{
			MIG: meter.MIG{UUID: migUUID(0, 1), GPUInstance: new(1), ComputeInstance: new(0), Slices: new(3), Memory: new(uint64(40 << 30))},
			Usage: meter.Usage{
				Busy: &meter.Busy{Known: 10 * time.Second, Source: meter.FromActivity}, MemoryUsed: new(uint64(0)), Processes: []meter.Process{},
			},
		},
		{
			MIG: meter.MIG{UUID: migUUID(0, 2), GPUInstance: new(2), ComputeInstance: new(0), Slices: new(4), Memory: new(uint64(40 << 30))},
			Usage: meter.Usage{
				Busy:       &meter.Busy{Busy: 2500 * time.Millisecond, Known: 10 * time.Second, Source: meter.FromActivity},
				MemoryUsed: new(uint64(3 << 30)), Processes: []meter.Process{{PID: 21, Memory: new(uint64(1 << 30)), Kind: meter.Compute}},
			},
		},
	}, g.Instances)
	require.Empty(t, n.log.lines())
}

// TestMIGBeforeHopper has no GPM counters: utilisation is not known, the rest
// is.
func TestMIGBeforeHopper(t *testing.T) {
	g := h100(0)
	g.GPM = false
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{g}}).open()
	n.after(0)
	for _, i := range n.after(10 * time.Second).GPUs[0].Instances {
		require.Nil(t, i.Busy)
		require.NotNil(t, i.MemoryUsed)
		require.NotNil(t, i.Processes)
	}
	require.Equal(t, []string{
		`level=INFO msg="not known" gpu=` + migUUID(0, 2) + ` what=utilisation err="nvmlGpmQueryDeviceSupport: not supported"`,
		`level=INFO msg="not known" gpu=` + migUUID(0, 1) + ` what=utilisation err="nvmlGpmQueryDeviceSupport: not supported"`,
	}, n.log.lines())
}

// TestDividedGPUInstance has two compute instances in one GPU instance: which
// of them was at work, the counters don't tell.
func TestDividedGPUInstance(t *testing.T) {
	g := h100(0)
	second := g.Instances[0]
	g.Instances[0].ComputeSlices = 3
	second.UUID, second.CI, second.ComputeSlices, second.Load = migUUID(0, 9), 1, 1, simnvml.Steady(100)
	g.Instances = append(g.Instances, second)
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{g}}).open()
	n.after(0)
	instances := n.after(10 * time.Second).GPUs[0].Instances
	require.Len(t, instances, 3)
	require.NotNil(t, instances[0].Busy)
	for i, slices := range map[int]int{1: 3, 2: 1} {
		require.Nil(t, instances[i].Busy)
		require.Equal(t, &slices, instances[i].Slices)
	}
}

// TestMIGIsReconfigured takes instances away and makes others while the meter
// runs, reusing the ids.
func TestMIGIsReconfigured(t *testing.T) {
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{h100(0)}}).open()
	n.after(0)
	n.after(10 * time.Second)
	n.change(func(s *simnvml.State) {
		s.GPUs[0].Instances = s.GPUs[0].Instances[:1]
		s.GPUs[0].Instances[0] = simnvml.Instance{UUID: migUUID(0, 77), GI: 2, Slices: 1, Memory: 10 << 30, Load: simnvml.Steady(100)}
	})
	instances := n.after(10 * time.Second).GPUs[0].Instances
	require.Len(t, instances, 1)
	require.Equal(t, meter.MIG{
		UUID: migUUID(0, 77), GPUInstance: new(2), ComputeInstance: new(0), Slices: new(1), Memory: new(uint64(10 << 30)),
	}, instances[0].MIG)
	require.Nil(t, instances[0].Busy, "it is another instance: nothing is known of the time before")
	require.Equal(t, &meter.Busy{Busy: 10 * time.Second, Known: 10 * time.Second, Source: meter.FromActivity}, n.after(10 * time.Second).GPUs[0].Instances[0].Busy)
	require.ElementsMatch(t, []string{
		`level=INFO msg="a MIG instance is gone" gpu=` + uuid(0) + ` instance=` + migUUID(0, 1),
		`level=INFO msg="a MIG instance is gone" gpu=` + uuid(0) + ` instance=` + migUUID(0, 2),
		`level=INFO msg="not known" gpu=` + migUUID(0, 77) + ` what=memory err="nvmlDeviceGetMemoryInfo: not supported"`,
	}, n.log.lines())
}

// TestMIGModeIsChanged turns MIG mode off and on again.
func TestMIGModeIsChanged(t *testing.T) {
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{h100(0)}}).open()
	n.after(0)
	instances := n.state.GPUs[0].Instances
	n.change(func(s *simnvml.State) {
		s.GPUs[0].MIG, s.GPUs[0].Instances, s.GPUs[0].Load = new(false), nil, simnvml.Steady(100)
	})
	g := n.after(10 * time.Second).GPUs[0]
	require.Equal(t, new(false), g.MIG)
	require.Nil(t, g.Instances)
	require.Nil(t, g.Busy, "the ring reaches back to before")
	require.Equal(t, 10*time.Second, n.after(10 * time.Second).GPUs[0].Busy.Busy)
	n.change(func(s *simnvml.State) { s.GPUs[0].MIG, s.GPUs[0].Instances = new(true), instances })
	g = n.after(10 * time.Second).GPUs[0]
	require.Len(t, g.Instances, 2)
	require.Nil(t, g.Instances[0].Busy)
}

// TestMIGModeWithoutInstances is empty, but known.
func TestMIGModeWithoutInstances(t *testing.T) {
	g := h100(0)
	g.Instances = nil
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{g}}).open()
	require.Equal(t, []meter.InstanceReading{}, n.after(0).GPUs[0].Instances)
}

// TestWhatFailsOfInstancesIsUnknown lets a function fail: exactly what depends on
// it is unknown.
func TestWhatFailsOfInstancesIsUnknown(t *testing.T) {
	type known struct{ IDs, Shape, Busy, Memory, Processes bool }
	all := known{true, true, true, true, true}
	for _, test := range []struct {
		function string
		want     []known
	}{
		{"nvmlDeviceGetGpuInstanceId", []known{{Shape: true, Memory: true, Processes: true}, {Shape: true, Memory: true, Processes: true}}},
		{"nvmlDeviceGetComputeInstanceId", []known{{Shape: true, Memory: true, Processes: true}, {Shape: true, Memory: true, Processes: true}}},
		{"nvmlDeviceGetAttributes_v2", []known{{IDs: true, Busy: true, Memory: true, Processes: true}, {IDs: true, Busy: true, Memory: true, Processes: true}}},
		{"nvmlGpmQueryDeviceSupport", []known{{true, true, false, true, true}, {true, true, false, true, true}}},
		{"nvmlGpmSampleAlloc", []known{{true, true, false, true, true}, {true, true, false, true, true}}},
		{"nvmlGpmMigSampleGet", []known{{true, true, false, true, true}, {true, true, false, true, true}}},
		{"nvmlGpmMetricsGet", []known{{true, true, false, true, true}, {true, true, false, true, true}}},
		{"nvmlDeviceGetComputeRunningProcesses_v3", []known{{true, true, true, true, false}, {true, true, true, true, false}}},
		{"nvmlDeviceGetMigDeviceHandleByIndex", []known{}},
		{"nvmlDeviceGetMaxMigDeviceCount", nil},
		{"nvmlDeviceGetPowerUsage", []known{all, all}},
	} {
		t.Run(test.function, func(t *testing.T) {
			n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{h100(0)}, Faults: []simnvml.Fault{{Function: test.function, Code: 999}}}).open()
			n.after(time.Second)
			instances := n.after(time.Second).GPUs[0].Instances
			var got []known
			if instances != nil {
				got = []known{}
			}
			for _, i := range instances {
				got = append(got, known{
					i.GPUInstance != nil && i.ComputeInstance != nil, i.Slices != nil && i.Memory != nil, i.Busy != nil, i.MemoryUsed != nil, i.Processes != nil,
				})
			}
			require.Equal(t, test.want, got)
		})
	}
}

// TestManyInstances has 70 on ten GPUs, and 64 on one.
func TestManyInstances(t *testing.T) {
	divided := func(i, parts int) simnvml.GPU {
		g := h100(i)
		g.Instances = nil
		for part := range parts {
			g.Instances = append(g.Instances, simnvml.Instance{
				UUID: migUUID(i, part), GI: part, Slices: 1, Memory: 10 << 30, MemoryUsed: new(uint64(part)), Load: simnvml.Steady(float64(part)),
			})
		}
		return g
	}
	var gpus []simnvml.GPU
	for i := range 10 {
		gpus = append(gpus, divided(i, 7))
	}
	gpus = append(gpus, divided(10, 64))
	n := newNode(t, simnvml.State{GPUs: gpus}).open()
	n.after(0)
	r := n.after(10 * time.Second)
	require.Len(t, r.GPUs, 11)
	for i, g := range r.GPUs {
		require.Len(t, g.Instances, len(gpus[i].Instances))
		for part, instance := range g.Instances {
			require.Equal(t, migUUID(i, part), instance.UUID)
			require.Equal(t, time.Duration(part)*100*time.Millisecond, instance.Busy.Busy)
		}
	}
	require.Empty(t, n.log.lines())
}
