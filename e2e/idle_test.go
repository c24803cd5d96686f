// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/internal/simnvml"
	"gpubudget/internal/testcluster"
)

// A job that holds two GPUs and works on one: gshare --idle shows the other, with
// what it costs. Its node's agent is killed, and usage check tells what no meter
// covered; the run is charged to the millisecond all the same. Slurm and the agent
// are real, the GPUs are simulated.
func TestIdleGPUsAndWhatNoMeterCovered(t *testing.T) {
	t.Parallel() // it mostly waits
	m := newMetered(t, testcluster.Options{
		GPUsPerNode: 2, Priority: testcluster.Gpubudget, Slurmdbd: true,
		Accounts: []testcluster.Account{{Name: "vision", Share: "50%", Users: []string{ann}}},
	})
	require.NoError(t, m.LoadBudgets(m.ctx, nil))
	gpus := m.IdleGPUs("n1")
	gpus.GPUs[0].Load = simnvml.Steady(60)
	require.NoError(t, m.WriteGPUs("n1", gpus))

	job := m.sbatch("--account=vision", "--gres=gpu:2", "--wrap", "sleep 170")
	type idle struct {
		Node    string              `json:"node"`
		Index   int                 `json:"index"`
		GPU     string              `json:"gpu"`
		Job     uint32              `json:"job_id"`
		User    string              `json:"user"`
		Account string              `json:"account"`
		Cost    fairshare.GPUMillis `json:"cost_gpu_ms"`
	}
	var found []idle
	m.until("an idle GPU", func() bool {
		var out struct {
			Clusters []struct {
				Idle []idle `json:"idle"`
			} `json:"clusters"`
		}
		require.NoError(t, json.Unmarshal([]byte(m.exec(ann, "gshare", "--idle", "--idle-for=3s", "--json")), &out))
		require.Len(t, out.Clusters, 1)
		found = out.Clusters[0].Idle
		return len(found) > 0
	})
	require.Len(t, found, 1, "the other GPU works")
	require.GreaterOrEqual(t, found[0].Cost, fairshare.GPUMillis(3000))
	found[0].Cost = 0
	require.Equal(t, idle{Node: "n1", Index: 1, GPU: "GPU-n1-1", Job: job, User: ann, Account: "vision"}, found[0])
	text := m.exec(ann, "gpubudget", "usage", "job", number0(job), "-nP")
	require.Len(t, strings.Split(strings.TrimSpace(text), "\n"), 2)

	require.NoError(t, m.KillAgent("n1"))
	time.Sleep(3 * time.Second) // which no agent sees
	m.exec("root", "scancel", number0(job))
	require.NoError(t, m.WaitNoJobs(m.ctx))
	var run []string
	m.until("the record of the run", func() bool {
		run = m.rows("SELECT (gpus * gpubudget.unix_ms(ended_at) - gpus * gpubudget.unix_ms(started_at))::text FROM gpubudget.job_run WHERE job_id = $1 AND ended_at IS NOT NULL", job)
		return len(run) == 1
	})
	// The agent is dead: exit status 1, and a gap.
	out, err := m.Exec(m.ctx, "root", "gpubudget", "usage", "check", "--tolerance", "1s", "--json")
	require.Error(t, err)
	used, covered, kinds := checked(t, out)
	require.Equal(t, run[0], strconv.FormatInt(used, 10))
	require.Positive(t, covered)
	require.Less(t, covered, used)
	require.Equal(t, []string{"gap"}, kinds)
	require.Equal(t, fairshare.GPUMillis(used), m.used("vision"))

	// What Prolog and Epilog wrote waits for an agent: then all of it is metered.
	require.NoError(t, m.StartAgent("n1"))
	m.until("the agent to count the rest", func() bool {
		out, err := m.Exec(m.ctx, "root", "gpubudget", "usage", "check", "--tolerance", "5s", "--json")
		return err == nil && len(out) > 0
	})
	require.Equal(t, fairshare.GPUMillis(used), m.used("vision"), "and nothing is charged twice")
}

// checked is what usage check --json printed.
func checked(t *testing.T, out string) (used, covered int64, kinds []string) {
	t.Helper()
	var audit struct {
		Used          int64 `json:"used_gpu_milliseconds"`
		Covered       int64 `json:"metered_gpu_milliseconds"`
		Disagreements []struct {
			Kind string `json:"kind"`
		} `json:"disagreements"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &audit))
	for _, d := range audit.Disagreements {
		kinds = append(kinds, d.Kind)
	}
	return audit.Used, audit.Covered, kinds
}
