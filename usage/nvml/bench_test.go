// SPDX-License-Identifier: GPL-2.0-or-later

package nvml_test

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/simnvml"
	"gpubudget/usage/meter"
	"gpubudget/usage/nvml"
)

// eight is a node with eight GPUs at work, two processes on each. However soon
// a round follows another, the ring has sixty new samples, as it has after ten
// seconds of a real GPU.
func eight() simnvml.State {
	var s simnvml.State
	for i := range 8 {
		g := a100(i)
		g.Load, g.SamplePeriod, g.SampleCount = simnvml.Steady(73), 1, new(60)
		g.Processes = processes(os.Getpid(), os.Getppid())
		s.GPUs = append(s.GPUs, g)
	}
	return s
}

func divided() simnvml.State {
	var s simnvml.State
	for i := range 8 {
		g := h100(i)
		g.Instances = nil
		for part := range 7 {
			g.Instances = append(g.Instances, simnvml.Instance{
				UUID: migUUID(i, part), GI: part, Slices: 1, Memory: 10 << 30, MemoryUsed: new(uint64(1)), Load: simnvml.Steady(50),
				Processes: processes(os.Getpid()),
			})
		}
		s.GPUs = append(s.GPUs, g)
	}
	return s
}

// realTime is the machine's wall clock, with a clock since the boot that moves
// on by ten seconds at each look: so memory errors are read each sixth round.
type realTime struct{ boot time.Duration }

func (*realTime) Now() time.Time { return time.Now() }

func (r *realTime) Boot() time.Duration {
	r.boot += 10 * time.Second
	return r.boot
}

// running is a meter of such a node, with the clocks and the look-up of
// processes that the agent has.
func running(tb testing.TB, s simnvml.State) *meter.Meter {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "gpus")
	tb.Setenv(simnvml.Variable, path)
	require.NoError(tb, s.Write(path))
	m, err := meter.Open(meter.Options{Driver: nvml.New(library), Clock: &realTime{}})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, m.Close()) })
	return m
}

// BenchmarkSample is one round as the agent makes it every ten seconds. The
// simulated driver's own work is in it, mostly a look at its state file at each
// call.
func BenchmarkSample(b *testing.B) {
	for _, node := range []struct {
		name  string
		state simnvml.State
	}{{"8GPUs", eight()}, {"56instances", divided()}} {
		b.Run(node.name, func(b *testing.B) {
			m := running(b, node.state)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := m.Sample(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestTenThousandRounds must leave nothing behind: no memory, no goroutine, no
// thread. A day at ten seconds is 8,640.
func TestTenThousandRounds(t *testing.T) {
	m := running(t, eight())
	rounds := func(count int) {
		for range count {
			r, err := m.Sample()
			require.NoError(t, err)
			require.Len(t, r.GPUs, 8)
			require.Len(t, r.GPUs[0].Processes, 2)
		}
	}
	r, err := m.Sample()
	require.NoError(t, err)
	require.Nil(t, r.GPUs[7].Busy)
	r, err = m.Sample()
	require.NoError(t, err)
	require.Equal(t, meter.FromSamples, r.GPUs[7].Busy.Source)
	rounds(1000)
	before := measure(t)
	if race {
		rounds(2000) // it is slow, and looks for other things
	} else {
		rounds(9000)
	}
	after := measure(t)
	t.Logf("before %+v, after %+v", before, after)
	require.LessOrEqual(t, after.heap, before.heap+64<<10)
	require.LessOrEqual(t, after.goroutines, before.goroutines)
	require.LessOrEqual(t, after.threads, before.threads+4)
	if !race {
		require.LessOrEqual(t, after.resident, before.resident+4<<20)
	}
}

type footprint struct {
	heap                uint64
	resident            int
	goroutines, threads int
}

func measure(t *testing.T) footprint {
	t.Helper()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return footprint{
		heap: m.HeapAlloc, goroutines: runtime.NumGoroutine(),
		resident: status(t, "VmRSS:") << 10, threads: status(t, "Threads:"),
	}
}

// status is a number in /proc/self/status.
func status(t *testing.T, key string) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, rest, ok := bytes.Cut(text, []byte(key))
	require.True(t, ok)
	v, err := strconv.Atoi(string(bytes.Fields(rest)[0]))
	require.NoError(t, err)
	return v
}
