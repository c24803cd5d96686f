// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/report/reporttest"
	"gpubudget/usage"
)

// newRunning is the example with jobs of every kind that run: besides one of cyd
// whose minimum runtime is not known and one of zoe that nobody budgets for.
func newRunning(t *testing.T) example {
	t.Helper()
	e := newExample(t)
	pool, err := pgxpool.New(context.Background(), e.dsn)
	require.NoError(t, err)
	defer pool.Close()
	run := func(job uint32, account, user string, gpus int64, minRuntime, ago time.Duration, change func(*usage.Run)) usage.Run {
		r := usage.Run{
			Cluster: reporttest.Cluster, JobID: job, ArrayTaskID: usage.NoTask, Account: account, User: user, Partition: "gpu", QOS: "normal",
			Nodes: "n[1-2]", GPUs: gpus, Allocated: minRuntime > 0, MinRuntime: &minRuntime, StartedAt: reporttest.Now.Add(-ago), SeenAt: reporttest.Now,
		}
		if change != nil {
			change(&r)
		}
		return r
	}
	same := func(*usage.Run) {}
	require.NoError(t, usage.NewStore(pool).WriteRuns(context.Background(), []usage.Run{
		run(41, "vision", "ada", 8, 8*time.Hour, 6*time.Hour, same), // protected for two more hours
		run(42, "vision", "bob", 2, time.Hour, 90*time.Minute, func(r *usage.Run) { r.Restart = 3 }),
		run(43, "vision", "ada", 1, 2*time.Hour, 3*time.Hour, func(r *usage.Run) { // an hour of it suspended
			r.Suspended = time.Hour
		}),
		run(44, "vision", "ada", 1, time.Hour, 3*time.Hour, func(r *usage.Run) { // and still so
			r.SuspendedSince = new(reporttest.Now.Add(-2 * time.Hour))
		}),
		run(46, "nlp", "dora", 4, 0, 30*time.Hour, func(r *usage.Run) { r.ArrayJobID, r.ArrayTaskID = 45, 7 }), // unallocated
		// A component that is past its own minimum runtime, and one that is unallocated:
		// their sibling protects them.
		run(50, "nlp", "eve", 2, time.Hour, 30*time.Hour, func(r *usage.Run) { r.HetJobID = 50 }),
		run(51, "nlp", "eve", 4, 36*time.Hour, 30*time.Hour, func(r *usage.Run) { r.HetJobID = 50 }),
		run(52, "nlp", "eve", 1, 0, 30*time.Hour, func(r *usage.Run) { r.HetJobID = 50 }),
	}))
	return e
}

func TestJobs(t *testing.T) {
	version = "1.2.3"
	t.Cleanup(func() { version = "" })
	e := newRunning(t)
	later := e
	later.now = reporttest.Now.Add(3*time.Hour + 2*time.Minute)
	for _, tt := range []struct {
		name string
		as   example
		args []string
	}{
		{"jobs", e, []string{"-a", "--jobs"}},
		{"jobs_long", e, []string{"-la", "--jobs"}},
		{"jobs_own", e, []string{"--jobs"}},
		{"jobs_of_user", e, []string{"--jobs", "-u", "cyd", "-M", "titan,mini"}},
		{"jobs_of_account", e, []string{"-ap", "--jobs", "-A", "nlp,seg"}},
		{"jobs_format", e, []string{"-a", "--jobs", "-o", "job%10,ACC%-3,gpus,protected,charged"}},
		{"jobs_stale", later, []string{"-anP", "--jobs"}},
		{"jobs_stale_wide", later, []string{"--jobs", "-A", "seg"}},
		{"jobs_json", e, []string{"-a", "--jobs", "--json"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, stdout, stderr := tt.as.run(tt.args...)
			require.Equal(t, exitOK, code, stderr)
			golden(t, tt.name, "$ gshare "+strings.Join(tt.args, " ")+"\n"+stderr+stdout)
		})
	}
}

// What the jobs of an account are charged so far is part of what the account was.
func TestJobsAddUpToTheAccount(t *testing.T) {
	e := newRunning(t)
	code, stdout, stderr := e.run("-a", "--jobs", "--json")
	require.Equal(t, exitOK, code, stderr)
	var jobs struct {
		Clusters []struct {
			Jobs []struct {
				Account string              `json:"account"`
				Charged fairshare.GPUMillis `json:"charged_gpu_ms"`
			} `json:"jobs"`
		} `json:"clusters"`
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &jobs))
	sums := map[string]fairshare.GPUMillis{}
	for _, j := range jobs.Clusters[0].Jobs {
		sums[j.Account] += j.Charged
	}
	// 8 x 6 h, 2 x 1.5 h, 1 x 2 h, 1 x 1 h; 4 x 10 h; 6 x 30 h.
	require.Equal(t, map[string]fairshare.GPUMillis{
		"vision": 54 * fairshare.GPUHour, "seg": 40 * fairshare.GPUHour, "nlp": 180 * fairshare.GPUHour, "stray": 0,
	}, sums)
}

// A job on shards or MPS has a part of a GPU, not none.
func TestJobsHavePartsOfGPUs(t *testing.T) {
	e := newExample(t)
	pool, err := pgxpool.New(t.Context(), e.dsn)
	require.NoError(t, err)
	defer pool.Close()
	run := func(job uint32, user string, parts int64, allocated bool) usage.Run {
		return usage.Run{
			Cluster: reporttest.Cluster, JobID: job, ArrayTaskID: usage.NoTask, Account: "nlp", User: user, Partition: "gpu", QOS: "normal",
			Nodes: "n1", Parts: parts, Allocated: allocated, MinRuntime: new(time.Duration), StartedAt: reporttest.Now.Add(-time.Hour), SeenAt: reporttest.Now,
		}
	}
	require.NoError(t, usage.NewStore(pool).WriteRuns(t.Context(), []usage.Run{
		run(61, "dora", 250_000, true), run(62, "dora", 142_857, false), run(63, "eve", 1_500_000, true),
	}))
	code, stdout, stderr := e.run("-a", "--jobs", "-A", "nlp", "-o", "job%6,gpus%5,state")
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, ` JobID  GPUs State
------ ----- -----
    61  0.25 keeps
    62  0.14 keeps
    63  1.50 keeps

Jobs:     3, on 1.75 GPUs that are charged (0 of them protected) and 0.14 that are not (0.14 for want of a minimum runtime)
`, stdout)
	code, stdout, stderr = e.run("-a", "--jobs", "-A", "nlp", "--json")
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, `"gpu_parts": 0.25,`)
}
