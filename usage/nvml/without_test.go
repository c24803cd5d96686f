// SPDX-License-Identifier: GPL-2.0-or-later

package nvml_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/simnvml"
	"gpubudget/usage/meter"
	"gpubudget/usage/nvml"
)

// child runs a test of this binary in a process of its own, with a library of
// its own and a simulated driver that goes on when it ends.
func child(t *testing.T, test, library string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.v")
	// The race detector would wait for a second before it lets a process end.
	cmd.Env = append(os.Environ(), libraryVariable+"="+library, childVariable+"="+test, "GORACE=atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// children are the tests that run in a process of their own.
var children = map[string]func(*testing.T){
	"reads": childReads, "hangs": childHangs, "hangsLate": childHangsLate,
}

const childVariable = "GPUBUDGET_TEST_CHILD"

// runChild runs one of them and ends the process.
func runChild(name string) {
	all := func(string, string) (bool, error) { return true, nil }
	testing.Main(all, []testing.InternalTest{{Name: name, F: children[name]}}, nil, nil)
}

// TestWithoutFunction loads libraries that lack a function each. A call of it
// would end the process.
func TestWithoutFunction(t *testing.T) {
	t.Parallel()
	functions, required := nvml.Functions()
	for _, names := range functions {
		t.Run(names[0], func(t *testing.T) {
			t.Parallel()
			lib, err := simnvml.BuildWithout(t.Context(), filepath.Dir(library), names...)
			require.NoError(t, err)
			out, err := child(t, "reads", lib)
			if slices.Contains(required, names[0]) {
				require.Error(t, err)
				require.Contains(t, out, lib+" is too old or no NVIDIA driver: "+names[0]+": the driver does not have this function")
				return
			}
			require.NoError(t, err, out)
			require.Contains(t, out, "read 3 GPUs")
		})
	}
}

// TestWithoutAnything has the functions only that it can't do without.
func TestWithoutAnything(t *testing.T) {
	functions, required := nvml.Functions()
	var without []string
	for _, names := range functions {
		if !slices.Contains(required, names[0]) {
			without = append(without, names...)
		}
	}
	lib, err := simnvml.BuildWithout(t.Context(), filepath.Dir(library), without...)
	require.NoError(t, err)
	out, err := child(t, "reads", lib)
	require.NoError(t, err, out)
	require.Contains(t, out, "read 3 GPUs")
	require.Contains(t, out, `what=power err="nvmlDeviceGetPowerUsage: the driver does not have this function"`)
}

// TestOldVersions has the functions as they were first, and none of their later
// versions.
func TestOldVersions(t *testing.T) {
	var without []string
	functions, _ := nvml.Functions()
	for _, names := range functions {
		without = append(without, names[:len(names)-1]...)
	}
	lib, err := simnvml.BuildWithout(t.Context(), filepath.Dir(library), append(without, "nvmlDeviceGetMemoryInfo_v2")...)
	require.NoError(t, err)
	out, err := child(t, "reads", lib)
	require.NoError(t, err, out)
	require.Contains(t, out, "read 3 GPUs")
	require.Contains(t, out, "processes 2")
	require.NotContains(t, out, "not known")
}

// childReads reads everything there is to read, twice, and releases.
func childReads(t *testing.T) {
	t.Helper()
	busy := a100(0)
	busy.Processes = processes(10, 11)
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{busy, h100(1), a100(2)}}).open()
	n.after(time.Second)
	r := n.after(time.Second)
	t.Logf("read %d GPUs", len(r.GPUs))
	t.Logf("processes %d", len(r.GPUs[0].Processes))
	require.NoError(t, n.meter.Release())
	require.NoError(t, n.meter.Reopen())
	n.after(time.Second)
	t.Log(strings.Join(n.log.lines(), "\n"))
}

// TestHangingDriver stops answering: the call is named, and the process can end.
func TestHangingDriver(t *testing.T) {
	for name, want := range map[string]string{
		"hangs":     "nvmlDeviceGetPowerUsage has not returned for 2s (to read the GPUs)",
		"hangsLate": "nvmlEventSetWait_v2 has not returned for 2s (to release it)",
	} {
		began := time.Now()
		out, err := child(t, name, library)
		require.NoError(t, err, out)
		require.Contains(t, out, "the GPU driver hangs: "+want)
		require.Less(t, time.Since(began), 20*time.Second)
	}
}

// hanging is a meter after its first round, whose driver then does not return
// from a function.
func hanging(t *testing.T, function string) *meter.Meter {
	t.Helper()
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{a100(0)}})
	o := n.options()
	o.Timeout = 2 * time.Second
	m, err := meter.Open(o)
	require.NoError(t, err)
	_, err = m.Sample()
	require.NoError(t, err)
	n.change(func(s *simnvml.State) { s.Faults = []simnvml.Fault{{Function: function}} })
	return m
}

func childHangs(t *testing.T) {
	t.Helper()
	_, err := hanging(t, "nvmlDeviceGetPowerUsage").Sample()
	t.Log(err)
}

func childHangsLate(t *testing.T) {
	t.Helper()
	m := hanging(t, "nvmlEventSetWait_v2")
	time.Sleep(200 * time.Millisecond) // until it is waited for
	t.Log(m.Release())
}
