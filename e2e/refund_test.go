// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/internal/testcluster"
)

// own starts a cluster for one test. Its accounts are lab_a (ann) and lab_b (bob),
// half of it each.
func own(t *testing.T, opts testcluster.Options) *scenario {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout+2*testTimeout)
	t.Cleanup(cancel)
	opts.Users, opts.Priority = []string{ann, bob}, testcluster.Gpubudget
	opts.Accounts = []testcluster.Account{
		{Name: "lab_a", Share: "50%", Users: []string{ann}}, {Name: "lab_b", Share: "50%", Users: []string{bob}},
	}
	c, err := testcluster.Start(ctx, opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.LogTails())
		}
		require.NoError(t, c.Stop())
	})
	require.NoError(t, c.LoadBudgets(ctx, nil))
	return &scenario{Cluster: c, t: t, ctx: ctx, a: "lab_a", b: "lab_b"}
}

// A node fails under three jobs: one that ends with it, one that Slurm queues
// again, and one that is on another node as well. What they were charged is given
// back once, and they stand as if it had never been; also in slurmctld, whose
// sshare shows it.
func TestNodeFailuresAreRefunded(t *testing.T) {
	t.Parallel() // it mostly waits
	s := own(t, testcluster.Options{
		Nodes: 2, Slurmdbd: true,
		// Without limits nobody tells the plugin why a job is queued again.
		SlurmConf: []string{"AccountingStorageEnforce=associations", "MinJobAge=300"},
	})
	ends := s.submit(ann, s.a, 300, "--gpus=2", "--no-requeue", "--nodelist=n1")
	again := s.submit(ann, s.a, 300, "--gpus=3", "--requeue", "--nodelist=n1")
	spread := s.submit(ann, s.a, 300, "--nodes=2", "--gpus-per-node=1", "--no-requeue")
	other := s.submit(bob, s.b, 5, "--gpus=2", "--nodelist=n2")
	for _, id := range []uint32{ends, again, spread, other} {
		s.waitState(id, "R")
	}
	s.waitState(other, "")
	s.exec("root", "scontrol", "update", "nodename=n1", "state=down", "reason=power")
	s.waitState(ends, "")
	s.waitState(again, "PD")
	s.waitState(spread, "")
	s.exec("root", "scancel", number0(again))
	s.agree()
	require.Positive(t, s.used(s.a))
	ofB := s.used(s.b)
	require.Positive(t, ofB)

	refund := func(args ...string) (back map[uint32]fairshare.GPUMillis) {
		t.Helper()
		var out struct {
			Entries []struct {
				Job    uint32              `json:"job"`
				Amount fairshare.GPUMillis `json:"gpu_milliseconds"`
				Why    string              `json:"why"`
			} `json:"entries"`
		}
		text := s.exec("root", "gpubudget", append([]string{"refund", "--json"}, args...)...)
		require.NoError(t, json.Unmarshal([]byte(text), &out))
		back = map[uint32]fairshare.GPUMillis{}
		for _, e := range out.Entries {
			back[e.Job] = e.Amount
			require.True(t, strings.HasPrefix(e.Why, "NODE_FAIL on n"), e.Why)
		}
		return back
	}
	back := refund("--node-failures")
	require.Len(t, back, 3)
	require.Positive(t, back[ends])
	require.Equal(t, s.used(s.a), fairshare.GPUMillis(0), "as if nothing had run")
	require.Equal(t, ofB, s.used(s.b))
	require.Empty(t, refund("--node-failures"), "once")
	_, err := s.Exec(s.ctx, "root", "gpubudget", "refund", number0(ends), "--lost", "1s")
	require.ErrorContains(t, err, "was refunded already")

	// The plugin takes it over with the ledger: ann, who has used nothing now, goes first.
	s.wait("sshare to show it", func() bool {
		for _, row := range s.rows("sshare", "-anPU", "--format=User,RawUsage,LevelFS") {
			if row[0] == ann {
				return row[1] == "0" && row[2] == "inf"
			}
		}
		return false
	})
}
