// SPDX-License-Identifier: GPL-2.0-or-later

package nvml_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/simnvml"
	"gpubudget/usage/meter"
)

func processes(pids ...int) []simnvml.Process {
	var list []simnvml.Process
	for _, pid := range pids {
		list = append(list, simnvml.Process{PID: pid, Memory: new(uint64(1 << 30))})
	}
	return list
}

func TestManyProcesses(t *testing.T) {
	g := a100(0)
	for pid := 100; pid < 400; pid++ {
		g.Processes = append(g.Processes, processes(pid)...)
	}
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{g}}).open()
	got := n.after(time.Second).GPUs[0].Processes
	require.Len(t, got, 300)
	require.Equal(t, meter.Process{PID: 399, Memory: new(uint64(1 << 30)), Kind: meter.Compute}, got[299])
}

// TestEndedProcessIsLeftOut has a process that ended while the list was read.
func TestEndedProcessIsLeftOut(t *testing.T) {
	g := a100(0)
	g.Processes = processes(10, 9999)
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{g}}).open()
	got := n.after(time.Second).GPUs[0].Processes
	require.Len(t, got, 1)
	require.Equal(t, 10, got[0].PID)
}

// TestGarbageList has lists as drivers 535.43 to 535.86 wrote them: one row
// that looks right is no reason to believe the others.
func TestGarbageList(t *testing.T) {
	g := a100(0)
	g.GarbagePIDs = true
	g.Processes = processes(10, 11, 12)
	n := newNode(t, simnvml.State{Driver: "999.1", GPUs: []simnvml.GPU{g}}).open()
	require.Nil(t, n.after(time.Second).GPUs[0].Processes)
	require.Contains(t, n.log.lines(), `level=WARN msg="not known" gpu=`+uuid(0)+` what=processes err="the driver lists a process 0"`)

	n.change(func(s *simnvml.State) { s.GPUs[0].Processes = processes(10) })
	require.Len(t, n.after(time.Second).GPUs[0].Processes, 1, "the first row is right")
	n.change(func(s *simnvml.State) { s.GPUs[0].Processes = processes(4_294_967_295) })
	require.Nil(t, n.after(time.Second).GPUs[0].Processes)
}

// TestBadDriver believes no list of several processes of a driver that is
// known to write them wrong, even if it looks right.
func TestBadDriver(t *testing.T) {
	g := a100(0)
	g.Processes = processes(10, 11)
	n := newNode(t, simnvml.State{Driver: "535.54.03", GPUs: []simnvml.GPU{g}}).open()
	require.Equal(t, []string{
		`level=WARN msg="processes are known only of GPUs with one process: drivers 535.43 to 535.86 write wrong lists of several processes" driver=535.54.03`,
	}, n.log.lines())
	require.Nil(t, n.after(time.Second).GPUs[0].Processes)
	n.change(func(s *simnvml.State) { s.GPUs[0].Processes = processes(11) })
	require.Len(t, n.after(time.Second).GPUs[0].Processes, 1)
}

// TestListsBesideCompute fails to read the other lists: not supporting them is
// usual, any other failure leaves it open who is there.
func TestListsBesideCompute(t *testing.T) {
	g := a100(0)
	g.Processes = append(processes(10), simnvml.Process{PID: 11, Kind: "graphics"})
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{g}}).open()
	require.Equal(t, []meter.Process{
		{PID: 10, Memory: new(uint64(1 << 30)), Kind: meter.Compute}, {PID: 11, Kind: meter.Graphics},
	}, n.after(time.Second).GPUs[0].Processes)
	fail := func(code int) {
		n.change(func(s *simnvml.State) {
			s.GPUs[0].Faults = []simnvml.Fault{{Function: "nvmlDeviceGetGraphicsRunningProcesses_v3", Code: code}}
		})
	}
	fail(3)
	require.Len(t, n.after(time.Second).GPUs[0].Processes, 1)
	fail(4)
	require.Nil(t, n.after(time.Second).GPUs[0].Processes)
}
