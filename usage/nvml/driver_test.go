// SPDX-License-Identifier: GPL-2.0-or-later

package nvml_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/simnvml"
	"gpubudget/usage/meter"
	"gpubudget/usage/nvml"
)

// library is the simulated one, with all functions. There is one a process:
// tests of others run in processes of their own (without_test.go).
var library string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if name := os.Getenv(childVariable); name != "" {
		library = os.Getenv(libraryVariable)
		runChild(name)
	}
	return simnvml.RunTests(&library, m.Run)
}

const libraryVariable = "GPUBUDGET_TEST_NVML"

// start is when the tests' clock begins: 2026-11-30 12:00 UTC.
const start = int64(1_796_040_000_000_000)

// node is a node with simulated GPUs, its meter and their clock.
type node struct {
	t     testing.TB
	path  string
	state simnvml.State
	clock *clock
	meter *meter.Meter
	log   *logLines
}

// clock is set by the test and read by the goroutine that waits for events.
type clock struct{ now, boot atomic.Int64 } // µs since 1970; ns since the boot, which run on when now is set

func (c *clock) Now() time.Time      { return time.UnixMicro(c.now.Load()).UTC() }
func (c *clock) Boot() time.Duration { return time.Duration(c.boot.Load()) }

func (c *clock) pass(d time.Duration) {
	c.now.Add(d.Microseconds())
	c.boot.Add(int64(d))
}

func newNode(t testing.TB, s simnvml.State) *node {
	t.Helper()
	n := &node{t: t, path: filepath.Join(t.TempDir(), "gpus"), state: s, clock: &clock{}, log: &logLines{}}
	n.clock.now.Store(start)
	n.clock.boot.Store(int64(time.Hour))
	t.Setenv(simnvml.Variable, n.path)
	n.change(nil)
	return n
}

// change changes the state of the simulated driver.
func (n *node) change(f func(*simnvml.State)) {
	n.t.Helper()
	if f != nil {
		f(&n.state)
	}
	n.state.Now = n.clock.now.Load()
	require.NoError(n.t, n.state.Write(n.path))
}

func (n *node) options() meter.Options {
	return meter.Options{
		Driver: nvml.New(library), Log: n.log.logger(), Clock: n.clock, Timeout: 20 * time.Second, XidWait: 10 * time.Millisecond,
		Alive: func(pid int) bool { return pid < 9000 },
	}
}

func (n *node) open() *node {
	n.t.Helper()
	m, err := meter.Open(n.options())
	require.NoError(n.t, err)
	n.meter = m
	n.t.Cleanup(func() {
		if err := m.Close(); err != nil {
			if _, hung := errors.AsType[*meter.HangError](err); !hung {
				n.t.Error(err)
			}
		}
	})
	return n
}

// after lets time pass and reads the GPUs.
func (n *node) after(d time.Duration) *meter.Round {
	n.t.Helper()
	n.clock.pass(d)
	n.change(nil)
	r, err := n.meter.Sample()
	require.NoError(n.t, err)
	return r
}

// a100 is a GPU of which everything is known.
func a100(i int) simnvml.GPU {
	return simnvml.GPU{
		UUID: uuid(i), PCI: fmt.Sprintf("0000:%02x:00", 0x10+i), Name: "NVIDIA A100-SXM4-80GB", Minor: new(i),
		Memory: 80 << 30, MemoryUsed: new(uint64(1 << 30)), MemoryReserved: 512 << 20, Power: new(int64(65_000 + i)),
		Load: simnvml.Steady(0), SamplePeriod: 250_000, ECC: &[4]uint64{1, 2, 3, 4}, MIG: new(false),
	}
}

func uuid(i int) string { return fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", i) }

func TestReadsTwoGPUs(t *testing.T) {
	first, second := a100(0), a100(1)
	first.Load = &simnvml.Load{Steps: []simnvml.Step{{At: 0, Percent: 0}, {At: start + 4_000_000, Percent: 100}}}
	first.Processes = []simnvml.Process{{PID: 4242, Memory: new(uint64(7 << 30))}, {PID: 4243}, {PID: 4242, Memory: new(uint64(6 << 30)), Kind: "mps"}}
	n := newNode(t, simnvml.State{Driver: "550.54.15", GPUs: []simnvml.GPU{second, first}}).open()
	require.Equal(t, "550.54.15", n.meter.Version())

	r := n.after(0)
	require.Zero(t, r.Elapsed)
	require.Len(t, r.GPUs, 2, "by PCI address")
	require.Equal(t, meter.GPU{
		UUID: uuid(0), PCI: "0000:10:00.0", Name: "NVIDIA A100-SXM4-80GB", Index: 1, Minor: new(0),
		MIG: new(false), Slices: new(7), Memory: new(uint64(80 << 30)),
	}, r.GPUs[0].GPU)
	require.Nil(t, r.GPUs[0].Busy, "nothing is known of the time before the first round")

	r = n.after(10 * time.Second)
	require.Equal(t, 10*time.Second, r.Elapsed)
	g := r.GPUs[0]
	require.NoError(t, g.Err)
	require.Equal(t, &meter.Busy{Busy: 6 * time.Second, Known: 10 * time.Second, Source: meter.FromSamples}, g.Busy)
	require.Equal(t, new(uint64(1<<30)), g.MemoryUsed)
	require.Equal(t, new(int64(65_000)), g.Power)
	require.Equal(t, &meter.ECC{ReadAt: time.Hour, Corrected: 1, Uncorrected: 2, LifetimeCorrected: 3, LifetimeUncorrected: 4}, g.ECC)
	require.Equal(t, []meter.Process{
		{PID: 4242, Memory: new(uint64(7 << 30)), Kind: meter.Compute | meter.MPS}, {PID: 4243, Kind: meter.Compute},
	}, g.Processes)
	require.Equal(t, &meter.Busy{Known: 10 * time.Second, Source: meter.FromSamples}, r.GPUs[1].Busy, "idle, and known to be")
	require.Equal(t, []meter.Process{}, r.GPUs[1].Processes, "none, and known to be")
	require.Empty(t, n.log.lines())
}
