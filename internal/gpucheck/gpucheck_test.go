// SPDX-License-Identifier: GPL-2.0-or-later

package gpucheck_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/gpucheck"
	"gpubudget/internal/simnvml"
)

// loadVariable makes this test binary the program that puts a load on the
// simulated GPU: its value is what the GPU then shows.
const loadVariable = "GPUBUDGET_TEST_LOAD"

// library is the simulated driver's, program gpubudget-agent.
var library, program string

func TestMain(m *testing.M) {
	if shows := os.Getenv(loadVariable); shows != "" {
		load(shows, len(os.Args) == 4)
	}
	os.Exit(simnvml.RunTests(&library, func() int {
		program = filepath.Join(filepath.Dir(library), "gpubudget-agent")
		build := exec.CommandContext(context.Background(), "go", "build", "-buildvcs=false", "-o", program, "gpubudget/cmd/gpubudget-agent")
		if said, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the agent: %v: %s\n", err, said)
			return 1
		}
		return m.Run()
	}))
}

// load stands in for spin, until it is killed.
func load(shows string, half bool) {
	if shows == "all" {
		percent := 100.0
		if half {
			percent = 50
		}
		if err := state(percent, os.Getpid()).Write(os.Getenv(simnvml.Variable)); err != nil {
			panic(err)
		}
	}
	fmt.Println("ready")
	time.Sleep(time.Hour)
}

func state(percent float64, pids ...int) simnvml.State {
	g := simnvml.GPU{
		UUID: "GPU-1", PCI: "0000:3b:00", Name: "NVIDIA H200", Minor: new(0), Memory: 139 << 30, MemoryUsed: new(uint64(0)),
		Power: new(int64(76_100)), Load: simnvml.Steady(percent), SamplePeriod: 5000, SampleCount: new(2000), ECC: &[4]uint64{}, MIG: new(false),
	}
	for _, pid := range pids {
		g.Processes = append(g.Processes, simnvml.Process{PID: pid, Memory: new(uint64(300 << 20))})
	}
	return simnvml.State{GPUs: []simnvml.GPU{g}}
}

// try runs the check on a simulated GPU that shows a load or does not.
func try(t *testing.T, s simnvml.State, shows string, gpu ...string) (string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gpus")
	require.NoError(t, s.Write(path))
	t.Setenv(simnvml.Variable, path)
	t.Setenv(loadVariable, shows)
	self, err := os.Executable()
	require.NoError(t, err)
	var out bytes.Buffer
	err = gpucheck.Run(t.Context(), gpucheck.Options{Library: library, Agent: program, Spin: self, Phase: 300 * time.Millisecond, Out: &out, GPU: strings.Join(gpu, "")})
	return out.String(), err
}

func TestLoadIsSeen(t *testing.T) {
	out, err := try(t, state(0), "all")
	require.NoError(t, err, out)
	require.NotContains(t, out, "FAILED")
	require.Contains(t, out, "GPU GPU-1, NVIDIA H200, at 0000:3b:00.0, /dev/nvidia0, 139.00 GiB, MIG mode off of 7 slices\n"+
		"  power 76.1 W, memory used 0.00 GiB, processes none\n  memory errors 0 corrected, 0 not, over its life 0 and 0\n")
	require.Contains(t, out, "before the load: utilisation 0.0% of 0.3")
	require.Regexp(t, `ok      load all the time: utilisation 100\.0% of 0\.\d+ s \(samples\), expected 95% to 100%`, out)
	require.Regexp(t, `ok      load half of the time: utilisation 50\.0% of 0\.\d+ s \(samples\), expected 40% to 60%`, out)
	require.Regexp(t, `ok      load half of the time: process \d+ is listed: processes \d+ \(0\.29 GiB\)`, out)
	require.Contains(t, out, "ok      reopen: 1 GPUs\n")

	pid := regexp.MustCompile(`load all the time: process (\d+) is listed`).FindStringSubmatch(out)
	require.NotNil(t, pid)
	require.Regexp(t, `what gpubudget-agent --once --json prints, of job 4711, pretended to hold GPU-1:\n\{\n  "cluster": "gpu-check",\n  "node": "n1",`, out)
	require.Contains(t, out, "ok      agent: identity: NVIDIA H200, 0000:3b:00.0, number 0\n")
	require.Contains(t, out, "ok      agent: the GPU is held by jobs [4711]\n")
	require.Contains(t, out, "ok      agent: utilisation 100.0%, expected 95% to 100%\n")
	require.Contains(t, out, "ok      agent: process "+pid[1]+" is among the 1 it lists\n")
	require.Contains(t, out, "ok      agent: after its Epilog the job holds no GPU\n")
}

func TestLoadIsNotSeen(t *testing.T) {
	out, err := try(t, state(0), "nothing")
	require.ErrorIs(t, err, gpucheck.ErrFailed)
	require.Contains(t, out, "FAILED  load all the time: utilisation 0.0% of")
	require.Contains(t, out, "is listed: processes none")
	require.Contains(t, out, "ok      agent: the GPU is held by jobs [4711]\n")
	require.Contains(t, out, "FAILED  agent: utilisation 0.0%, expected 95% to 100%\n")
	require.Regexp(t, `FAILED  agent: process \d+ is among the 0 it lists\n`, out)
}

// The GPU at work is found among others, by its device file.
func TestTheAgentFindsTheGPUAtWork(t *testing.T) {
	s := state(0)
	other := s.GPUs[0]
	other.UUID, other.PCI, other.Minor = "GPU-0", "0000:1a:00", new(1)
	s.GPUs = []simnvml.GPU{other, s.GPUs[0]}
	out, err := try(t, s, "nothing", "GPU-1")
	require.ErrorIs(t, err, gpucheck.ErrFailed)
	require.Contains(t, out, "ok      agent: identity: NVIDIA H200, 0000:3b:00.0, number 1\n")
	require.Contains(t, out, "ok      agent: the GPU is held by jobs [4711]\n")
	require.Contains(t, out, "ok      agent: no other GPU is held\n")
}

func TestUnknownIsNotSeen(t *testing.T) {
	out, err := try(t, simnvml.State{GPUs: []simnvml.GPU{{UUID: "GPU-1"}}}, "nothing")
	require.ErrorIs(t, err, gpucheck.ErrFailed)
	require.Contains(t, out, "GPU GPU-1, unknown, at unknown, /dev/nvidiaunknown, unknown, MIG mode unknown of unknown slices\n")
	require.Contains(t, out, "FAILED  load all the time: utilisation unknown, expected 95% to 100%")
	require.Contains(t, out, "FAILED  agent: the device file of GPU-1 is not known\n")
}

func TestNoGPUsToLoad(t *testing.T) {
	out, err := try(t, simnvml.State{}, "nothing")
	require.ErrorIs(t, err, gpucheck.ErrFailed, "a driver without GPUs is not what one checks")
	require.Contains(t, out, "no GPU to put a load on")
}

func TestNoDriver(t *testing.T) {
	var out bytes.Buffer
	err := gpucheck.Run(t.Context(), gpucheck.Options{Library: "/nowhere/libnvidia-ml.so.1", Out: &out})
	require.ErrorIs(t, err, gpucheck.ErrNoDriver)
	require.Empty(t, out.String())
}

// TestSpin builds the load. Without a CUDA driver it says so.
func TestSpin(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "spin")
	out, err := exec.CommandContext(t.Context(), "cc", "-Wall", "-Wextra", "-Werror", "-o", binary, "spin/spin.c", "-ldl").CombinedOutput()
	require.NoError(t, err, "%s", out)
	said, err := exec.CommandContext(t.Context(), binary, "0.1").CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 77 {
		require.Contains(t, string(said), "spin: libcuda.so.1: cannot open shared object file")
		return
	}
	require.NoError(t, err, "%s", said)
	require.Equal(t, "ready\n", string(said))
}
