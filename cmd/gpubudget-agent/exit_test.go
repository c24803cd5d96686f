// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/simnvml"
)

// patienceVariable makes this test binary the program gpubudget-agent: its value is
// how long the driver may take, which otherwise is half a minute.
const patienceVariable = "GPUBUDGET_TEST_DRIVER_PATIENCE"

var library string

func TestMain(m *testing.M) {
	if text := os.Getenv(patienceVariable); text != "" {
		patience, err := time.ParseDuration(text)
		if err != nil {
			panic(err)
		}
		p := &program{stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, driverPatience: patience}
		os.Exit(p.run(context.Background(), os.Args))
	}
	os.Exit(simnvml.RunTests(&library, m.Run))
}

// daemon is an agent that runs, on a simulated driver.
type daemon struct {
	*exec.Cmd
	state string
	said  bytes.Buffer
	ended chan error
}

func startDaemon(t *testing.T) *daemon {
	t.Helper()
	dir := t.TempDir()
	d := &daemon{state: filepath.Join(dir, "gpus"), ended: make(chan error, 1)}
	d.write(t)
	conf := filepath.Join(dir, "gpubudget.conf")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, `Cluster=titan
DSN=host=%[1]s user=node
AgentNode=n1
AgentJobsDir=%[1]s/jobs
AgentSpoolDir=%[1]s/spool
AgentSocket=%[1]s/sock
AgentGresConf=%[1]s/gres.conf
AgentLibrary=%[2]s
AgentMetrics=no
AgentInterval=0.1
`, dir, library), 0o600))
	self, err := os.Executable()
	require.NoError(t, err)
	d.Cmd = exec.CommandContext(t.Context(), self, "--conf", conf)
	d.Env = []string{patienceVariable + "=2s", simnvml.Variable + "=" + d.state}
	d.Stdout, d.Stderr = &d.said, &d.said
	require.NoError(t, d.Start())
	go func() { d.ended <- d.Wait() }()
	t.Cleanup(func() { _ = d.Process.Kill() })
	// It has looked when its state is on disk.
	require.Eventually(t, func() bool { return fileExists(filepath.Join(dir, "spool", "state")) }, 20*time.Second, 20*time.Millisecond)
	return d
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (d *daemon) write(t *testing.T, faults ...simnvml.Fault) {
	t.Helper()
	g := simnvml.GPU{UUID: "GPU-1", PCI: "0000:3b:00", Minor: new(0), Load: simnvml.Steady(0), SamplePeriod: 5000, SampleCount: new(2000)}
	require.NoError(t, simnvml.State{GPUs: []simnvml.GPU{g}, Faults: faults}.Write(d.state))
}

// exitCode waits until it has ended by itself.
func (d *daemon) exitCode(t *testing.T, within time.Duration) int {
	t.Helper()
	select {
	case err := <-d.ended:
		exit, ok := errors.AsType[*exec.ExitError](err)
		require.True(t, ok, "%v: %s", err, d.said.String())
		return exit.ExitCode()
	case <-time.After(within):
		require.Fail(t, "it runs on")
		return -1
	}
}

// systemd starts an agent anew whose driver hangs: no call into it can be ended
// otherwise.
func TestAnAgentEndsWhoseDriverHangs(t *testing.T) {
	t.Parallel()
	d := startDaemon(t)
	d.write(t, simnvml.Fault{Function: "nvmlDeviceGetSamples"})
	require.Equal(t, exitHang, d.exitCode(t, 30*time.Second), d.said.String())
	require.Contains(t, d.said.String(), "this process ends, to be started anew")
	require.Contains(t, d.said.String(), "nvmlDeviceGetSamples")
}

// A library stays loaded as long as the process runs, so that one ends whose
// driver was exchanged; not before it has run for a minute.
func TestAnAgentEndsWhoseDriverWasExchanged(t *testing.T) {
	t.Parallel()
	began := time.Now()
	d := startDaemon(t)
	const otherVersion = 18
	d.write(t, simnvml.Fault{Function: "nvmlDeviceGetCount_v2", Code: otherVersion}, simnvml.Fault{Function: "nvmlInit_v2", Code: otherVersion})
	require.Equal(t, exitExchanged, d.exitCode(t, 2*time.Minute), d.said.String())
	require.GreaterOrEqual(t, time.Since(began), time.Minute)
	require.Equal(t, 1, strings.Count(d.said.String(), "the driver was exchanged, and its library stays loaded"))
}
