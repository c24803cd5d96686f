// SPDX-License-Identifier: GPL-2.0-or-later

package nvml_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/simnvml"
	"gpubudget/usage/meter"
)

// loaded is a node whose only GPU has a load, after its first round.
func loaded(t *testing.T, load *simnvml.Load, change func(*simnvml.GPU)) *node {
	t.Helper()
	g := a100(0)
	g.Load = load
	if change != nil {
		change(&g)
	}
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{g}}).open()
	require.Nil(t, n.after(0).GPUs[0].Busy, "nothing is known of the time before the first round")
	return n
}

func steps(at ...simnvml.Step) *simnvml.Load {
	for i := range at {
		at[i].At = start + at[i].At*1_000_000
	}
	return &simnvml.Load{Steps: at}
}

// TestShortBurstsAreSeen polls seldom: bursts far shorter than the interval
// count as long as they were.
func TestShortBurstsAreSeen(t *testing.T) {
	n := loaded(t, steps(simnvml.Step{}, simnvml.Step{At: 3, Percent: 100}, simnvml.Step{At: 4}, simnvml.Step{At: 22, Percent: 60}, simnvml.Step{At: 24}), nil)
	require.Equal(t, &meter.Busy{Busy: 2200 * time.Millisecond, Known: 30 * time.Second, Source: meter.FromSamples}, n.after(30 * time.Second).GPUs[0].Busy)
}

func TestRamp(t *testing.T) {
	load := steps(simnvml.Step{}, simnvml.Step{At: 10, Percent: 100})
	load.Ramp = true
	n := loaded(t, load, nil)
	b := n.after(10 * time.Second).GPUs[0].Busy
	require.Equal(t, 10*time.Second, b.Known)
	require.InDelta(t, 5, b.Busy.Seconds(), 0.05, "the driver rounds each sample to percents")
}

// TestOverflownRing polls so seldom that the ring has lost part of the time:
// that part is not known, it is not idle.
func TestOverflownRing(t *testing.T) {
	n := loaded(t, simnvml.Steady(50), func(g *simnvml.GPU) { g.SampleCount = new(40) })
	b := n.after(time.Minute).GPUs[0].Busy
	require.Equal(t, &meter.Busy{Busy: 10_750 * time.Millisecond / 2, Known: 10_750 * time.Millisecond, Source: meter.FromSamples}, b,
		"40 samples are 10 s, less the first that may be about a second")
}

func TestWithoutRing(t *testing.T) {
	for name, change := range map[string]func(*simnvml.GPU){
		"not supported": func(g *simnvml.GPU) { g.SampleCount = new(0) },
		"empty":         func(g *simnvml.GPU) { g.Faults = []simnvml.Fault{{Function: "nvmlDeviceGetSamples", Code: 6}} },
		"failing":       func(g *simnvml.GPU) { g.Faults = []simnvml.Fault{{Function: "nvmlDeviceGetSamples", Code: 999}} },
	} {
		t.Run(name, func(t *testing.T) {
			n := loaded(t, steps(simnvml.Step{Percent: 100}, simnvml.Step{At: 9, Percent: 30}), change)
			require.Equal(t, &meter.Busy{Busy: 300 * time.Millisecond, Known: time.Second, Source: meter.FromRate}, n.after(10 * time.Second).GPUs[0].Busy,
				"one look is about a second, not about ten")
			n.change(func(s *simnvml.State) {
				s.GPUs[0].Faults = append(s.GPUs[0].Faults, simnvml.Fault{Function: "nvmlDeviceGetUtilizationRates", Code: 999})
			})
			require.Nil(t, n.after(10 * time.Second).GPUs[0].Busy)
		})
	}
}

// TestRingComesBack must not count a second twice that the fallback has told
// of.
func TestRingComesBack(t *testing.T) {
	n := loaded(t, simnvml.Steady(100), func(g *simnvml.GPU) { g.Faults = []simnvml.Fault{{Function: "nvmlDeviceGetSamples", Code: 6}} })
	require.Equal(t, meter.FromRate, n.after(10 * time.Second).GPUs[0].Busy.Source)
	n.change(func(s *simnvml.State) { s.GPUs[0].Faults = nil })
	require.Equal(t, &meter.Busy{Busy: 5 * time.Second, Known: 5 * time.Second, Source: meter.FromSamples}, n.after(5 * time.Second).GPUs[0].Busy)
}

// TestDryRing is a driver that does not look at a GPU that does nothing: what it
// has in its ring is old.
func TestDryRing(t *testing.T) {
	n := loaded(t, steps(simnvml.Step{}, simnvml.Step{At: 25, Percent: 100}), nil)
	n.after(10 * time.Second)
	n.change(func(s *simnvml.State) { s.GPUs[0].SampledUntil = start + 10_000_000 })
	require.Equal(t, &meter.Busy{Known: time.Second, Source: meter.FromRate}, n.after(10 * time.Second).GPUs[0].Busy)
	n.change(func(s *simnvml.State) { s.GPUs[0].SampledUntil = 0 })
	require.Equal(t, &meter.Busy{Busy: 5 * time.Second, Known: 10 * time.Second, Source: meter.FromSamples}, n.after(10 * time.Second).GPUs[0].Busy)
}

// TestRotatedRing begins somewhere else than at its oldest sample.
func TestRotatedRing(t *testing.T) {
	n := loaded(t, steps(simnvml.Step{}, simnvml.Step{At: 3, Percent: 100}, simnvml.Step{At: 4}), func(g *simnvml.GPU) { g.SampleStart = 70 })
	require.Equal(t, &meter.Busy{Busy: time.Second, Known: 10 * time.Second, Source: meter.FromSamples}, n.after(10 * time.Second).GPUs[0].Busy)
}

// TestOtherClock stamps samples with the time since the boot, as some drivers
// do.
func TestOtherClock(t *testing.T) {
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{a100(0)}})
	n.state.GPUs[0].Load = simnvml.Steady(100)
	n.clock.now.Store(3_600_000_000)
	n.open()
	n.after(0)
	require.Equal(t, 10*time.Second, n.after(10 * time.Second).GPUs[0].Busy.Busy)
}

// TestClockIsSet sets the wall clock, by which the ring's samples are stamped.
func TestClockIsSet(t *testing.T) {
	t.Run("forward", func(t *testing.T) {
		n := loaded(t, simnvml.Steady(100), nil)
		n.after(10 * time.Second)
		n.clock.now.Add(time.Hour.Microseconds())
		r := n.after(10 * time.Second)
		require.Equal(t, 10*time.Second, r.Elapsed, "durations are by the clock since the boot")
		require.Equal(t, 10*time.Second, r.GPUs[0].Busy.Known, "nothing is made of the hour in between")
		require.Equal(t, 10*time.Second, n.after(10 * time.Second).GPUs[0].Busy.Known)
	})
	t.Run("back", func(t *testing.T) {
		n := loaded(t, simnvml.Steady(100), nil)
		n.after(10 * time.Second)
		n.clock.now.Add(-time.Hour.Microseconds())
		r := n.after(10 * time.Second)
		require.Equal(t, 10*time.Second, r.Elapsed)
		require.Nil(t, r.GPUs[0].Busy, "not known for this round")
		require.Equal(t, 10*time.Second, n.after(10 * time.Second).GPUs[0].Busy.Known, "and known again from the next on")
	})
}
