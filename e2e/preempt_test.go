// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/testcluster"
)

// window is the protected window of most jobs here, and slack how much later
// something may happen on a busy machine than it could.
const (
	window = 15 * time.Second
	slack  = 15 * time.Second
)

// contractCluster is a cluster that preempts: accounts "due", which has most of
// it and has used nothing, and "over", which has little and has used much.
func contractCluster(t *testing.T, change func(*testcluster.Options)) *scenario {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	opts := testcluster.Options{
		Nodes: 2, GPUsPerNode: 4, CPUsPerNode: 64, Users: []string{ann, bob, cem}, Slurmdbd: true,
		Accounts: []testcluster.Account{
			{Name: "due", Share: "80%", Users: []string{ann}},
			{Name: "over", Share: "10%", Users: []string{bob}},
			{Name: "none", Share: "0%", Users: []string{cem}},
		},
		QOS:      map[string]int{"high": 100},
		Priority: testcluster.Gpubudget, Preempt: true,
		SlurmConf: []string{"MinJobAge=300"},
	}
	if change != nil {
		change(&opts)
	}
	c, err := testcluster.Start(ctx, opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			c.KeepFiles()
			t.Logf("the cluster's files stay in %s%s", c.Dir(), c.LogTails())
		}
		require.NoError(t, c.Stop())
	})
	require.NoError(t, c.LoadBudgets(ctx, nil))
	s := newScenario(t, c, "contract")
	return s
}

// on is a view of the same cluster for a subtest, with nothing in the queue.
func (s *scenario) on(t *testing.T) *scenario {
	t.Helper()
	return newScenario(t, s.Cluster, "contract")
}

// start is when the run of a job began; the zero time if it pends.
func (s *scenario) start(id uint32) time.Time {
	s.t.Helper()
	return s.times(id, "StartTime")
}

func (s *scenario) times(id uint32, field string) time.Time {
	s.t.Helper()
	if s.show(id, "JobState") == "PENDING" {
		return time.Time{}
	}
	at, err := time.ParseInLocation("2006-01-02T15:04:05", s.show(id, field), time.Local)
	require.NoError(s.t, err)
	return at
}

// show is a field of scontrol show job.
func (s *scenario) show(id uint32, field string) string {
	s.t.Helper()
	for word := range strings.FieldsSeq(s.exec("root", "scontrol", "show", "job", number0(id))) {
		if value, ok := strings.CutPrefix(word, field+"="); ok {
			return value
		}
	}
	s.t.Fatalf("job %d has no %s", id, field)
	return ""
}

// fill takes every GPU by jobs of one GPU each.
func (s *scenario) fill(user, account string, seconds int, args ...string) []uint32 {
	s.t.Helper()
	var ids []uint32
	for range 8 {
		ids = append(ids, s.submit(user, account, seconds, append([]string{"--gpus=1"}, args...)...))
	}
	for _, id := range ids {
		s.waitState(id, "R")
	}
	return ids
}

// restarted are the jobs that were requeued.
func (s *scenario) restarted(ids ...uint32) []uint32 {
	s.t.Helper()
	var found []uint32
	for _, id := range ids {
		if s.show(id, "Restarts") != "0" {
			found = append(found, id)
		}
	}
	return found
}

func minRuntime(d time.Duration) string {
	return fmt.Sprintf("--min-runtime=%ds", int(d.Seconds()))
}

func TestPreemption(t *testing.T) {
	s := contractCluster(t, nil)
	t.Run("a newcomer starts as the first protected window ends", func(t *testing.T) { s.on(t).newcomer() })
	t.Run("unallocated jobs vanish for funded work", func(t *testing.T) { s.on(t).filler() })
}

// newcomer: the cluster is full of allocated jobs of an account that had more
// than it is due.
func (s *scenario) newcomer() {
	// Who has to start anew is done at once then.
	var victims []uint32
	for range 8 {
		id, err := s.Sbatch(s.ctx, bob, "--account=over", "--gpus=1", minRuntime(window), "--wrap=[ ${SLURM_RESTART_COUNT:-0} -gt 0 ] || sleep 600")
		require.NoError(s.t, err)
		victims = append(victims, id)
	}
	for _, id := range victims {
		s.waitState(id, "R")
	}
	first := s.start(victims[0])
	newcomer := s.submit(ann, "due", 5, "--gpus=1", minRuntime(5*time.Second))
	s.wait("the newcomer to run", func() bool { return !s.start(newcomer).IsZero() })
	for _, id := range victims {
		if at := s.start(id); !at.IsZero() && at.Before(first) {
			first = at
		}
	}
	waited := s.start(newcomer).Sub(first)
	require.GreaterOrEqual(s.t, waited, window, "protected")
	require.Less(s.t, waited, window+slack)
	gone := s.restarted(victims...)
	require.Len(s.t, gone, 1, "one GPU is needed")
	s.wait("the victim to have run again", func() bool { return s.show(gone[0], "JobState") == "COMPLETED" })
	require.Equal(s.t, "1", s.show(gone[0], "Restarts"))
}

// filler: free jobs keep all GPUs busy, and are gone in seconds.
func (s *scenario) filler() {
	free := s.fill(cem, "none", 600, "--min-runtime=0")
	began := time.Now()
	id := s.submit(ann, "due", 1, "--gpus=4", minRuntime(window))
	s.wait("funded work to run", func() bool { return !s.start(id).IsZero() })
	require.Less(s.t, time.Since(began), slack)
	require.Len(s.t, s.restarted(free...), 4)
}
