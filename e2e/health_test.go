// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/simnvml"
	"gpubudget/internal/testcluster"
)

// checkScript is a HealthCheckProgram: slurmd gives it the node's name and nothing
// else, so that Slurm's and our configuration are named.
func checkScript(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpubudget-health-") //nolint:usetesting // of a folder of the test no other user may read
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return filepath.Join(dir, "check")
}

// An Xid that is injected into the simulated driver of a node drains it, with the
// reason, by slurmd's HealthCheckProgram; the other node goes on. Put back into
// service it is not drained for the same error again, but for the next, and for a
// GPU that is lost; and a reason that an operator gave is left alone.
func TestAnXidDrainsTheNode(t *testing.T) {
	check := checkScript(t)
	m := newMetered(t, testcluster.Options{
		Nodes: 2, GPUsPerNode: 2,
		SlurmConf: []string{"HealthCheckProgram=" + check, "HealthCheckInterval=1", "HealthCheckNodeState=ANY"},
	})
	script := fmt.Sprintf("#!/bin/sh\nexport SLURM_CONF=%s\nexec %[2]s/bin/gpubudget-agent --conf %[2]s/etc/agent.conf health\n", m.SlurmConf(), m.Dir())
	require.NoError(t, os.WriteFile(check, []byte(script), 0o755))
	m.until("both agents to look", func() bool {
		for _, node := range m.Nodes() {
			if _, err := os.Stat(filepath.Join(m.AgentSpool(node), "health")); err != nil {
				return false
			}
		}
		return true
	})
	state := func(node string) (state, reason string) {
		t.Helper()
		text := m.exec("root", "scontrol", "show", "node", node, "--oneliner")
		_, after, _ := strings.Cut(text, " State=")
		state, _, _ = strings.Cut(after, " ")
		_, reason, _ = strings.Cut(text, " Reason=")
		return state, reason
	}
	drained := func() bool { s, _ := state("n1"); return strings.Contains(s, "DRAIN") }
	gpus := m.IdleGPUs("n1")
	gpus.Xids = []simnvml.Xid{{Number: 1, GPU: "GPU-n1-1", Code: 31}}
	require.NoError(t, m.WriteGPUs("n1", gpus))
	time.Sleep(2 * time.Second)
	require.False(t, drained(), "a program's fault")
	gpus.Xids = append(gpus.Xids, simnvml.Xid{Number: 2, GPU: "GPU-n1-1", Code: 79})
	require.NoError(t, m.WriteGPUs("n1", gpus))
	m.until("slurmd's check to drain the node", drained)
	_, reason := state("n1")
	require.Contains(t, reason, "gpubudget: GPU 1 (0000:02:00")
	require.Contains(t, reason, "Xid 79 (fallen off the bus)")
	other, _ := state("n2")
	require.NotContains(t, other, "DRAIN")

	// From here on the test runs the check as slurmd does, which takes its time.
	run := func() (fit bool) {
		t.Helper()
		_, err := m.Exec(m.ctx, "root", "env", "-i", "SLURMD_NODENAME=n1", check)
		return err == nil
	}
	m.until("it to be noted", run)
	m.exec("root", "scontrol", "update", "nodename=n1", "state=resume")
	require.True(t, run())
	require.False(t, drained(), "not for the same error again")
	gpus.Xids = append(gpus.Xids, simnvml.Xid{Number: 3, GPU: "GPU-n1-0", Code: 48})
	require.NoError(t, m.WriteGPUs("n1", gpus))
	m.until("the node to be drained again", func() bool { run(); return drained() })

	m.exec("root", "scontrol", "update", "nodename=n1", "state=drain", "reason=mine")
	gpus.GPUs[0].Lost = true
	require.NoError(t, m.WriteGPUs("n1", gpus))
	m.until("the GPU to be lost", func() bool { return !run() })
	_, reason = state("n1")
	require.Contains(t, reason, "mine")
	m.exec("root", "scontrol", "update", "nodename=n1", "state=resume")
	m.until("the lost GPU to drain it", func() bool {
		run()
		_, reason := state("n1")
		return drained() && strings.Contains(reason, "lost since")
	})
}
