// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

func number0(id uint32) string { return strconv.Itoa(int(id)) }

// However a job asks for its GPUs, all of them count, and the sums equal
// Slurm's own record to the second.
func TestEveryWayToAskForGPUsCounts(t *testing.T) {
	s := begin(t, "forms")
	script := filepath.Join(s.Dir(), "home", ann, "het.sh")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\nsleep 2\n"), 0o755))
	het, err := s.Sbatch(s.ctx, ann, "--account="+s.a, "--gpus=1", ":", "--account="+s.a, "--gres=gpu:2", script)
	require.NoError(t, err)
	want := map[uint32][]int64{
		s.submit(ann, s.a, 2, "--gres=gpu:2"):                        {2},
		s.submit(ann, s.a, 2, "--gpus=3"):                            {3},
		s.submit(ann, s.a, 2, "--nodes=2", "--gpus-per-node=2"):      {4},
		s.submit(ann, s.a, 2, "--ntasks=3", "--gpus-per-task=1"):     {3},
		s.submit(ann, s.a, 2, "--nodes=2", "--gpus=2", "--ntasks=2"): {2},
		s.submit(ann, s.a, 2, "--exclusive", "--gres=gpu:1"):         {8}, // it holds the whole node
		s.submit(ann, s.a, 2, "--array=1-3", "--gres=gpu:1"):         {1, 1, 1},
		het: {1, 2},
	}
	require.NoError(t, s.WaitNoJobs(s.ctx))
	s.agree()
	for id, gpus := range want {
		require.Equal(t, gpus, s.recordedGPUs(id), "job %d: %s", id, s.exec("root", "sacct", "-XP", "-j", number0(id), "-o", "JobID,SubmitLine,AllocTRES"))
	}
}

// recordedGPUs is how many GPUs we recorded for each run of a job of the test, of
// its array tasks or of its components. (A slurmctld that was killed may give a
// job's number to another one afterwards: that of another test is not meant.)
func (s *scenario) recordedGPUs(id uint32) []int64 {
	s.t.Helper()
	conn, err := pgx.Connect(s.ctx, s.DSN())
	require.NoError(s.t, err)
	defer conn.Close(s.ctx)
	rows, err := conn.Query(s.ctx, `SELECT gpus FROM gpubudget.job_run
		WHERE (job_id = $1 OR array_job_id = $1 OR het_job_id = $1) AND account IN ($2, $3)
		ORDER BY job_id`, int64(id), s.a, s.b)
	require.NoError(s.t, err)
	gpus, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	require.NoError(s.t, err)
	return gpus
}

// Each run of a requeued job counts, and the time a job was suspended does not.
func TestRequeuedAndSuspendedJobs(t *testing.T) {
	s := begin(t, "runs")
	requeued := s.submit(ann, s.a, 3, "--gpus=2", "--requeue")
	suspended := s.submit(bob, s.b, 4, "--gpus=3")
	s.waitState(requeued, "R")
	s.waitState(suspended, "R")
	time.Sleep(2 * time.Second)
	s.exec("root", "scontrol", "requeue", number0(requeued))
	s.exec("root", "scontrol", "suspend", number0(suspended))
	time.Sleep(3 * time.Second)
	s.exec("root", "scontrol", "resume", number0(suspended))
	require.NoError(t, s.WaitNoJobs(s.ctx))
	s.agree()
	require.Equal(t, []int64{2, 2}, s.recordedGPUs(requeued), "two runs")
}

// What an account used shortly after it was opened counts in its standing, long
// before the hour is over that usage is added up by.
func TestUsageOfAFreshAccountCounts(t *testing.T) {
	s := begin(t, "fresh")
	s.use(ann, s.a, 4, 2)
	s.agree()
	var want fairshare.GPUMillis
	runs, err := s.SlurmRuns(s.ctx)
	require.NoError(t, err)
	for _, run := range runs {
		if run.Account == s.a {
			want += run.GPUMillis()
		}
	}
	require.Equal(t, want, s.used(s.a))

	// gshare, run by the user herself, says the same, and nothing of others.
	var output struct {
		Clusters []struct {
			Rows []struct {
				Account string              `json:"account"`
				User    string              `json:"user"`
				Used    fairshare.GPUMillis `json:"used_gpu_ms"`
			} `json:"rows"`
		} `json:"clusters"`
	}
	require.NoError(t, json.Unmarshal([]byte(s.exec(ann, "gshare", "--json")), &output))
	require.Len(t, output.Clusters, 1)
	found := false
	for _, row := range output.Clusters[0].Rows {
		require.NotEqual(t, bob, row.User)
		if row.Account == s.a && row.User == ann {
			found = true
			require.Equal(t, want, row.Used)
		}
	}
	require.True(t, found)
}
