// SPDX-License-Identifier: GPL-2.0-or-later

package nvml_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/simnvml"
	"gpubudget/usage/meter"
)

func uuids(r *meter.Round) []string {
	var list []string
	for _, g := range r.GPUs {
		list = append(list, g.UUID)
	}
	return list
}

func TestNoGPUs(t *testing.T) {
	n := newNode(t, simnvml.State{}).open()
	require.Empty(t, n.after(time.Second).GPUs)
	require.Empty(t, n.after(time.Second).GPUs)
	require.Equal(t, []string{`level=WARN msg="not known" gpu="" what=GPUs err="the driver has no GPUs"`}, n.log.lines(), "once")

	n.change(func(s *simnvml.State) { s.GPUs = []simnvml.GPU{a100(0)} })
	require.Equal(t, []string{uuid(0)}, uuids(n.after(time.Second)), "one was plugged in")
	require.Equal(t, []string{`level=INFO msg="known again" gpu="" what=GPUs`}, n.log.lines())
}

// TestUUIDChanges puts another GPU in the place of one.
func TestUUIDChanges(t *testing.T) {
	first, second := a100(0), a100(1)
	first.Load, second.Load = simnvml.Steady(100), simnvml.Steady(100)
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{first, second}}).open()
	n.after(time.Second)
	n.change(func(s *simnvml.State) { s.GPUs[1].UUID, s.GPUs[1].Name = uuid(42), "NVIDIA A100-PCIE-40GB" })
	r := n.after(time.Second)
	require.Equal(t, []string{uuid(0), uuid(42)}, uuids(r))
	require.Equal(t, "NVIDIA A100-PCIE-40GB", r.GPUs[1].Name)
	require.NotNil(t, r.GPUs[0].Busy)
	require.Nil(t, r.GPUs[1].Busy, "nothing is known of what the new one did before")
	require.Equal(t, []string{
		`level=WARN msg="another GPU in this place" index=1 pci=0000:11:00.0 gpu=` + uuid(42) + ` was=` + uuid(1),
		`level=WARN msg="a GPU is gone" gpu=` + uuid(1) + ` pci=0000:11:00.0 name="NVIDIA A100-SXM4-80GB"`,
	}, n.log.lines())
	require.NotNil(t, n.after(time.Second).GPUs[1].Busy)
}

// TestOrderChanges must not mix up two GPUs whose places the driver has
// changed: they are known by UUID.
func TestOrderChanges(t *testing.T) {
	busy, idle := a100(0), a100(1)
	busy.Load = simnvml.Steady(100)
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{busy, idle}}).open()
	n.after(time.Second)
	n.change(func(s *simnvml.State) { s.GPUs[0], s.GPUs[1] = s.GPUs[1], s.GPUs[0] })
	r := n.after(time.Second)
	require.Equal(t, []string{uuid(0), uuid(1)}, uuids(r), "in the order of their addresses, as before")
	require.Equal(t, time.Second, r.GPUs[0].Busy.Busy)
	require.Zero(t, r.GPUs[1].Busy.Busy)
	require.Equal(t, 1, r.GPUs[0].Index)
}

func TestTwoGPUsWithOneUUID(t *testing.T) {
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{a100(0), a100(0)}}).open()
	require.Equal(t, []string{uuid(0)}, uuids(n.after(time.Second)))
	require.Equal(t, []string{
		`level=WARN msg="not known" gpu=` + uuid(0) + ` what=identity err="two GPUs have the UUID ` + uuid(0) + `"`,
	}, n.log.lines())
}

// TestLostGPU falls off the bus and comes back.
func TestLostGPU(t *testing.T) {
	for name, lose := range map[string]func(*simnvml.GPU, bool){
		"at its handle": func(g *simnvml.GPU, lost bool) { g.Lost = lost },
		"at its first reading": func(g *simnvml.GPU, lost bool) {
			g.Faults = nil
			if lost {
				g.Faults = []simnvml.Fault{{Function: "nvmlDeviceGetMemoryInfo_v2", Code: 15}, {Function: "nvmlDeviceGetMemoryInfo", Code: 15}}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			first, second := a100(0), a100(1)
			first.Load, second.Load = simnvml.Steady(100), simnvml.Steady(100)
			n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{first, second}}).open()
			before := n.after(time.Second)
			n.change(func(s *simnvml.State) { lose(&s.GPUs[0], true) })
			for range 2 {
				r := n.after(time.Second)
				require.Equal(t, []string{uuid(0), uuid(1)}, uuids(r))
				require.ErrorIs(t, r.GPUs[0].Err, meter.ErrLost)
				require.Equal(t, before.GPUs[0].GPU, r.GPUs[0].GPU, "what it is is still known")
				require.Equal(t, meter.Usage{}, r.GPUs[0].Usage, "what it does is not")
				require.Nil(t, r.GPUs[0].Power)
				require.Equal(t, time.Second, r.GPUs[1].Busy.Busy, "the other goes on")
			}
			require.Len(t, n.log.lines(), 1, "said once")
			n.change(func(s *simnvml.State) { lose(&s.GPUs[0], false) })
			r := n.after(time.Second)
			require.NoError(t, r.GPUs[0].Err)
			require.NotNil(t, r.GPUs[0].Power)
			require.Nil(t, r.GPUs[0].Busy, "what it did meanwhile is not known")
			require.Equal(t, []string{`level=INFO msg="known again" gpu=` + uuid(0) + ` what=GPU`}, n.log.lines())
			require.Equal(t, time.Second, n.after(time.Second).GPUs[0].Busy.Busy)
		})
	}
}

// TestLostFromTheStart is a GPU whose name was never learnt.
func TestLostFromTheStart(t *testing.T) {
	g := a100(0)
	g.Lost = true
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{g, a100(1)}}).open()
	r := n.after(time.Second)
	require.Equal(t, []string{"", uuid(1)}, uuids(r))
	require.ErrorIs(t, r.GPUs[0].Err, meter.ErrLost)
	require.Equal(t, []string{
		`level=WARN msg="not known" gpu="" what="GPU number 0" err="nvmlDeviceGetHandleByIndex_v2: the GPU is lost"`,
	}, n.log.lines())
	n.change(func(s *simnvml.State) { s.GPUs[0].Lost = false })
	require.Equal(t, []string{uuid(0), uuid(1)}, uuids(n.after(time.Second)))
	require.Equal(t, []string{`level=INFO msg="known again" gpu="" what="GPU number 0"`}, n.log.lines())
}

func TestGPUMustBeReset(t *testing.T) {
	g := a100(0)
	g.Faults = []simnvml.Fault{{Function: "nvmlDeviceGetMemoryInfo_v2", Code: 16}, {Function: "nvmlDeviceGetMemoryInfo", Code: 16}}
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{g}}).open()
	require.ErrorIs(t, n.after(time.Second).GPUs[0].Err, meter.ErrResetRequired)
}

// TestCountFails is no round at all, but the meter goes on.
func TestCountFails(t *testing.T) {
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{a100(0)}}).open()
	n.after(time.Second)
	n.change(func(s *simnvml.State) { s.Faults = []simnvml.Fault{{Function: "nvmlDeviceGetCount_v2", Code: 999}} })
	_, err := n.meter.Sample()
	require.EqualError(t, err, "count the GPUs: nvmlDeviceGetCount_v2: unknown error of the driver")
	n.change(func(s *simnvml.State) { s.Faults = nil })
	r := n.after(5 * time.Second)
	require.Equal(t, 5*time.Second, r.Elapsed)
	require.Equal(t, 5*time.Second, r.GPUs[0].Busy.Known)
}

// TestRelease frees the driver for a reset or a change of MIG mode, and takes
// it again.
func TestRelease(t *testing.T) {
	inUse := func(n *node) bool {
		used, err := simnvml.InUse(n.path)
		require.NoError(t, err)
		return used
	}
	n := newNode(t, simnvml.State{Driver: "550.54.15", GPUs: []simnvml.GPU{a100(0)}}).open()
	require.True(t, inUse(n))
	n.after(time.Second)
	require.NoError(t, n.meter.Release())
	require.False(t, inUse(n))
	require.NoError(t, n.meter.Release(), "it is released already")
	_, err := n.meter.Sample()
	require.ErrorIs(t, err, meter.ErrReleased)

	n.change(func(s *simnvml.State) { s.Driver, s.GPUs[0] = "570.1", h100(0) })
	require.NoError(t, n.meter.Reopen())
	require.NoError(t, n.meter.Reopen())
	require.True(t, inUse(n))
	require.Equal(t, "570.1", n.meter.Version())
	r := n.after(time.Minute)
	require.Zero(t, r.Elapsed, "nothing is known of the time between")
	require.Len(t, r.GPUs[0].Instances, 2)
	require.NoError(t, n.meter.Close())
	require.False(t, inUse(n))
}

// TestReopenFails as long as the driver is not there, and may be tried again.
func TestReopenFails(t *testing.T) {
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{a100(0)}}).open()
	require.NoError(t, n.meter.Release())
	n.change(func(s *simnvml.State) { s.Faults = []simnvml.Fault{{Function: "nvmlInit_v2", Code: 9}} })
	require.ErrorIs(t, n.meter.Reopen(), meter.ErrDriverNotLoaded)
	_, err := n.meter.Sample()
	require.ErrorIs(t, err, meter.ErrReleased)
	n.change(func(s *simnvml.State) { s.Faults = nil })
	require.NoError(t, n.meter.Reopen())
	require.Len(t, n.after(time.Second).GPUs, 1)
}

// TestDriverRefusesToClose is released when it is asked again.
func TestDriverRefusesToClose(t *testing.T) {
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{h100(0)}}).open()
	n.after(time.Second)
	n.change(func(s *simnvml.State) { s.Faults = []simnvml.Fault{{Function: "nvmlShutdown", Code: 999}} })
	require.EqualError(t, n.meter.Release(), "close the NVIDIA driver: nvmlShutdown: unknown error of the driver")
	require.Len(t, n.after(time.Second).GPUs[0].Instances, 2, "it goes on as long as it is not")
	n.change(func(s *simnvml.State) { s.Faults = nil })
	require.NoError(t, n.meter.Release())
}

// TestRepeatedRelease must not lose anything each time.
func TestRepeatedRelease(t *testing.T) {
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{h100(0)}}).open()
	for range 20 {
		require.Len(t, n.after(time.Second).GPUs[0].Instances, 2)
		require.NoError(t, n.meter.Release())
		require.NoError(t, n.meter.Reopen())
	}
}
