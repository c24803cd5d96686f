// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/cmd/gpubudget/queue"
	"gpubudget/explain"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/internal/slurmtime"
	"gpubudget/usage"
)

// contractSession is a cluster of 64 GPUs in use by: job 1 of over that is
// protected for an hour more, 2 of over that no longer is, 3 unallocated, 4 to 6 of
// due itself, of which 5 has a lower priority than most and 6 is in another QOS; of
// due wait 9, which asks for half an hour, 11 which asks for nothing, 12 which asks
// for too much, 13 for more than its time limit and is large, 14 for nothing at all, 15
// for eight hours on GPUs of a type. Of over run besides a het job, 30, whose second
// component protects the others for five hours more, 40, which an older release
// recorded, 41, which was resized when nothing protected it, and 42 on part of a GPU.
// For 16 others have made way twice in vain, for 17 once. Job 1 was preempted yesterday, for job 8, and 7, which is protected, four times
// today.
func contractSession(t *testing.T) *session {
	t.Helper()
	s := newSession(t, pgtest.DB(t))
	now := time.Now().UTC().Truncate(time.Second)
	for _, line := range []string{
		"account add due --share 60% -M titan --from 2025-01-01", "account add over --share 20% --from 2025-01-01",
		"account add none --share 0% --from 2025-01-01", "user add ann due --from 2025-01-01", "user add bob over --from 2025-01-01",
	} {
		s.must(append([]string{"-Q"}, strings.Fields(line)...)...)
	}
	run := func(job uint32, account, user string, gpus int64, promised, ago time.Duration) usage.Run {
		return usage.Run{
			Cluster: "titan", JobID: job, ArrayTaskID: usage.NoTask, Account: account, User: user, GPUs: gpus, Allocated: promised > 0,
			MinRuntime: &promised, StartedAt: now.Add(-ago), SeenAt: now,
		}
	}
	changed := func(r usage.Run, change func(*usage.Run)) usage.Run {
		change(&r)
		return r
	}
	s.used(func(ctx context.Context, u *usage.Store) error {
		if err := u.WriteCapacity(ctx, "titan", now.Add(-48*time.Hour), fairshare.Holding{GPUs: 64}); err != nil {
			return err
		}
		if err := u.Heartbeat(ctx, usage.Recorder{Cluster: "titan", Incarnation: "1", SeenAt: now}); err != nil {
			return err
		}
		return u.WriteRuns(ctx, []usage.Run{
			run(1, "over", "bob", 4, 4*time.Hour, 3*time.Hour), run(2, "over", "bob", 2, time.Hour, 3*time.Hour),
			run(3, "none", "cem", 4, 0, time.Hour), run(4, "due", "ann", 1, time.Hour, 2*time.Hour),
			run(5, "due", "ann", 1, time.Hour, 2*time.Hour), run(6, "due", "ann", 1, time.Hour, 2*time.Hour),
			run(7, "over", "bob", 1, time.Hour, 2*time.Hour),
			changed(run(30, "over", "bob", 1, time.Hour, 2*time.Hour), func(r *usage.Run) { r.HetJobID = 30 }),
			changed(run(31, "over", "bob", 1, 7*time.Hour, 2*time.Hour), func(r *usage.Run) { r.HetJobID = 30 }),
			changed(run(32, "over", "bob", 1, 0, 2*time.Hour), func(r *usage.Run) { r.HetJobID = 30 }),
			changed(run(40, "over", "bob", 1, time.Hour, 2*time.Hour), func(r *usage.Run) { r.MinRuntime = nil }),
			changed(run(41, "over", "bob", 70, 0, time.Second), func(r *usage.Run) { r.Allocated = true }),
			changed(run(42, "over", "bob", 0, time.Hour, 2*time.Hour), func(r *usage.Run) { r.Parts = 250_000 }),
		})
	})
	s.used(func(ctx context.Context, u *usage.Store) error {
		start := now.Add(-30 * time.Hour)
		if err := u.WriteAsked(ctx, "titan", []usage.Asked{{JobID: 9, MinRuntime: 30 * time.Minute}, {JobID: 12, MinRuntime: 9 * time.Hour}, {JobID: 13, MinRuntime: 2 * time.Hour}, {JobID: 14, MinRuntime: 0}, {JobID: 15, MinRuntime: 8 * time.Hour}}); err != nil {
			return err
		}
		for i := range 4 {
			at := now.Add(-time.Duration(3+i) * time.Hour)
			p := usage.Preemption{Cluster: "titan", At: at, Rule: "R1", StartedAt: at.Add(-time.Minute),
				Job: usage.Party{JobID: 7, Account: "over", User: "bob", GPUs: 1}, For: &usage.Party{JobID: 20, Account: "due", User: "ann", GPUs: 1, Allocated: true}}
			if err := u.WritePreemptions(ctx, []usage.Preemption{p}); err != nil {
				return err
			}
		}
		for i, request := range []uint32{16, 17, 16} {
			at := now.Add(-5*time.Minute + time.Duration(i)*2*time.Minute)
			p := usage.Preemption{Cluster: "titan", At: at, Rule: "R1", StartedAt: at.Add(-time.Hour),
				Job: usage.Party{JobID: 50, Account: "over", User: "bob", GPUs: 1}, For: &usage.Party{JobID: request, Account: "due", User: "ann", GPUs: 1, Allocated: true}}
			if err := u.WritePreemptions(ctx, []usage.Preemption{p}); err != nil {
				return err
			}
		}
		return u.WritePreemptions(ctx, []usage.Preemption{
			{
				Cluster: "titan", At: now.Add(-28 * time.Hour), Rule: "R3", StartedAt: start, ProtectedUntil: new(start.Add(time.Hour)),
				Job: usage.Party{JobID: 1, Account: "over", User: "bob", GPUs: 4, Allocated: true, Ratio: new(0.5), Rank: 2},
				For: &usage.Party{JobID: 8, Account: "due", User: "ann", GPUs: 4, Allocated: true, Ratio: new(math.Inf(1)), Rank: 1},
			},
			{Cluster: "titan", At: now, Rule: "R1", StartedAt: now.Add(-time.Hour), Job: usage.Party{JobID: 21, Account: "over", User: "bob", GPUs: 1},
				For: &usage.Party{JobID: 20, Account: "due", User: "ann", GPUs: 1, Allocated: true}},
			{Cluster: "titan", At: now.Add(-20 * time.Hour), Rule: usage.Drain, Node: "n7", StartedAt: now.Add(-21 * time.Hour),
				Job: usage.Party{JobID: 1, Account: "over", User: "bob", GPUs: 4}},
		})
	})
	s.slurm = queue.Command(func(_ context.Context, name string, _ ...string) ([]byte, error) {
		if name == "sprio" {
			var out strings.Builder
			for _, id := range []int{9, 11, 12, 13, 14, 15, 16, 17} {
				fmt.Fprintf(&out, "%d|gpu|1000|0|0|0|1000|0|0|0|0|(null)\n", id)
			}
			return []byte(out.String() + "10|gpu|1|0|0|0|1|0|0|0|0|(null)\n"), nil
		}
		var out strings.Builder
		job := func(id int, state, account, user string, gpus int, qos string, nice int, limit string, waited time.Duration) {
			fmt.Fprintf(&out, "%d|%d|N/A|titan|%s|%s|%s|gpu|%s|%d|1|1|cpu=1,gres/gpu=%d|N/A|N/A|N/A|N/A|%s|%s|Priority\n", id, id, state, account, user,
				qos, nice, gpus, limit, now.Add(-waited).In(s.zone).Format(slurmtime.Layout))
		}
		fmt.Fprintln(&out, "21|21|N/A|titan|PENDING|over|bob|gpu|normal|0|1|1|cpu=1,gres/gpu=1|N/A|N/A|N/A|N/A|UNLIMITED|2026-11-30T18:00:00|BeginTime")
		fmt.Fprintln(&out, "22|22|N/A|titan|PENDING|over|bob|gpu|normal|0|1|1|cpu=1,gres/gpu=1|N/A|N/A|N/A|N/A|UNLIMITED|2026-11-30T18:00:00|BeginTime")
		fmt.Fprintf(&out, "15|15|N/A|titan|PENDING|due|ann|gpu|normal|200|1|1|cpu=1,gres/gpu=4|gres:gpu:h100:4|N/A|N/A|N/A|UNLIMITED|N/A|Priority\n")
		for i := range 4 { // the last has no GPU
			fmt.Fprintf(&out, "30+%d|%d|30|titan|RUNNING|over|bob|gpu|normal|0|1|1|cpu=1|N/A|N/A|N/A|N/A|UNLIMITED|N/A|None\n", i, 30+i)
		}
		for _, id := range []int{40, 41, 42} {
			job(id, "RUNNING", "over", "bob", 1, "normal", 0, "UNLIMITED", 0)
		}
		job(1, "RUNNING", "over", "bob", 4, "normal", 0, "UNLIMITED", 0)
		job(2, "RUNNING", "over", "bob", 2, "normal", 0, "UNLIMITED", 0)
		job(3, "RUNNING", "none", "cem", 4, "normal", 0, "UNLIMITED", 0)
		job(4, "RUNNING", "due", "ann", 1, "normal", 0, "UNLIMITED", 0)
		job(5, "RUNNING", "due", "ann", 1, "normal", 100, "UNLIMITED", 0)
		job(6, "RUNNING", "due", "ann", 1, "high", 100, "UNLIMITED", 0)
		job(7, "RUNNING", "over", "bob", 1, "normal", 0, "UNLIMITED", 0)
		job(9, "PENDING", "due", "ann", 4, "normal", 0, "1-00:00:00", time.Minute)
		job(10, "PENDING", "none", "cem", 4, "normal", 0, "UNLIMITED", 0)
		job(11, "PENDING", "due", "ann", 4, "normal", 200, "30:00", 0)
		job(12, "PENDING", "due", "ann", 32, "normal", 200, "UNLIMITED", 30*time.Minute)
		job(13, "PENDING", "due", "ann", 33, "normal", 200, "01:30:00", 2*time.Hour)
		job(16, "PENDING", "due", "ann", 1, "normal", 200, "UNLIMITED", time.Hour)
		job(17, "PENDING", "due", "ann", 1, "normal", 200, "UNLIMITED", time.Hour)
		job(14, "PENDING", "due", "ann", 1, "normal", 0, "UNLIMITED", 0)
		return []byte(out.String()), nil
	})
	return s
}

func TestExplainSaysWhatTheContractDoes(t *testing.T) {
	s := contractSession(t)
	for job, want := range map[string][]string{
		"1": {"it runs since ", ", and is protected until ",
			"; then it yields to jobs of accounts that are further behind than over by more than 10%, to larger ones for 32 GPUs or more that have waited for 01:00:00 also where it is by less (R3), and to those of over itself with a higher declared priority (R4)\n",
			"it was preempted for job 8 of ann in due (R3: the account that asked was further behind than that of the job that made way); due was charged nothing, rank 1, over was due 0.50 times what it was charged, rank 2; that run was protected until ",
			"it was requeued from node n7, which was drained: that run was unallocated and never protected"},
		"2":  {"and was protected until ", "now it yields to jobs of accounts that are further behind than over"},
		"3":  {"unallocated, as it has no minimum runtime: it is charged to nobody, and yields to any allocated job at once (R1)\n"},
		"7":  {"declared priority (R4); but not before ", ", as it was preempted 4 times within a day (R7)\n"},
		"40": {"for how long it is protected isn't known, as an older release has recorded its beginning: it keeps its GPUs until that is known\n"},
		"41": {", resized after its minimum runtime had passed: now it yields to "},
		"42": {", on parts of GPUs: it is preempted for nobody\n"},
		"9": {"once it runs it is protected for 00:30:00 (R2): as it asks\n",
			"3 running jobs on 7 GPUs would yield to it now: 1 unallocated (R1), 1 of accounts that are ahead of due (R3), 1 of due itself (R4)\n",
			"the next protection to end of a job that will yield to it is that of job 1 of bob in over, at ",
			"only where due is further behind by more than 10%, the 2.00 GPU-hours for which it will be protected counted in (R3)\n",
			"of due itself, it preempts only jobs of a lower declared priority, by QOS and then by nice (R4); 1 job of another QOS would yield if that is the lower\n"},
		"10": {"it preempts nobody: it is unallocated (R5)"},
		"11": {"protected for 00:30:00 (R2): its time limit; it asks for none, and would have 01:00:00 by the policy\n",
			"2 running jobs on 6 GPUs would yield to it now: 1 unallocated (R1), 1 of accounts that are ahead of due (R3)\n"},
		"12": {"protected for 08:00:00 (R2): it asks for 09:00:00, and that is the longest there is\n", "256.00 GPU-hours", "if it still waits at ", ", which is long for a request for 32 GPUs or more, "},
		"13": {"protected for 01:30:00 (R2): it asks for 02:00:00, and that is its time limit\n", "it waits since ",
			"1 of accounts that are ahead of due (R3)\n", "jobs of other accounts that are smaller than it yield to it without that margin (R3: patience)\n"},
		"14": {"it preempts nobody: it is unallocated (R5)"},
		"16": {"others made way for it 2 times, the last time at ", ", and it could not start: before ", " nobody else has to\n"},
	} {
		out := s.must("explain", job)
		_, said, found := strings.Cut(out, "The contract:\n")
		require.True(t, found, out)
		for _, text := range want {
			require.Contains(t, said, text, "job %s", job)
		}
		records := s.must("explain", job, "-nP")
		require.Equal(t, strings.Count(strings.SplitN(said, "\n\n", 2)[0], "- "), strings.Count(records, "contract|"), records)
	}
	// Who waited was served at the expense of another; it no longer is in the queue.
	_, stderr, code := s.run("", false, "explain", "8")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "unknown job 8")
	require.Contains(t, stderr, "job 1 of bob in over made way for it (R3")

	var out struct {
		Contract struct {
			Allocated   *bool      `json:"allocated"`
			Protected   *bool      `json:"protected"`
			Until       *time.Time `json:"protected_until"`
			Yielding    []uint32   `json:"yielding_jobs"`
			Next        uint32     `json:"next_job"`
			MinRuntime  *float64   `json:"min_runtime_seconds"`
			Asked       *float64   `json:"asked_seconds"`
			Margin      *float64   `json:"margin"`
			Patient     *time.Time `json:"patient_from"`
			Preemptions []struct {
				Rule string `json:"rule"`
				For  *struct {
					Job      uint32   `json:"job_id"`
					Ratio    *float64 `json:"ratio"`
					Infinite bool     `json:"ratio_infinite"`
				} `json:"for"`
			} `json:"preemptions"`
		} `json:"contract"`
	}
	require.NoError(t, json.Unmarshal([]byte(s.must("explain", "1", "--json")), &out))
	c := out.Contract
	require.True(t, *c.Allocated && *c.Protected)
	require.WithinDuration(t, time.Now().Add(time.Hour), *c.Until, time.Minute)
	require.Equal(t, []string{"R3", "drain"}, []string{c.Preemptions[0].Rule, c.Preemptions[1].Rule})
	require.True(t, c.Preemptions[0].For.Infinite)
	require.Nil(t, c.Preemptions[0].For.Ratio)
	require.NoError(t, json.Unmarshal([]byte(s.must("explain", "9", "--json")), &out))
	require.Equal(t, []uint32{3, 2, 5}, out.Contract.Yielding)
	require.Equal(t, uint32(1), out.Contract.Next)
	require.Equal(t, []float64{1800, 1800, 0.1}, []float64{*out.Contract.MinRuntime, *out.Contract.Asked, *out.Contract.Margin})
	require.Nil(t, out.Contract.Patient)
	require.NoError(t, json.Unmarshal([]byte(s.must("explain", "12", "--json")), &out))
	require.WithinDuration(t, time.Now().Add(30*time.Minute), *out.Contract.Patient, time.Minute)

	var paused struct {
		Contract struct {
			Until *time.Time `json:"paused_until"`
		} `json:"contract"`
	}
	require.NoError(t, json.Unmarshal([]byte(s.must("explain", "16", "--json")), &paused))
	require.WithinDuration(t, time.Now().Add(time.Minute), *paused.Contract.Until, 30*time.Second)
	require.NotContains(t, s.must("explain", "17"), "nobody else has to", "that was once only")

	require.Contains(t, s.must("explain", "21"), "it was requeued, and Slurm holds it back until the credential of its last run has expired")
	require.Contains(t, s.must("explain", "22"), "it was submitted for later, or was requeued lately (BeginTime).")

	s.must("-Q", "policy", "set", "preempt_within_account", "no")
	require.Contains(t, s.must("explain", "9"), "jobs of due itself keep their GPUs: so says the policy preempt_within_account (R4)\n")
}

// All components of a het job yield or none does, so each is told of the protection
// that lasts longest, also one without a GPU.
func TestExplainTellsOfTheProtectionOfAHetJob(t *testing.T) {
	s := contractSession(t)
	for _, name := range []string{"30", "30+0", "30+1", "30+2", "30+3"} {
		var out struct {
			Contract struct {
				Allocated bool      `json:"allocated"`
				Protected bool      `json:"protected"`
				Until     time.Time `json:"protected_until"`
				Text      []string  `json:"text"`
			} `json:"contract"`
		}
		require.NoError(t, json.Unmarshal([]byte(s.must("explain", name, "--json")), &out))
		c := &out.Contract
		require.True(t, c.Protected, name)
		require.WithinDuration(t, time.Now().Add(5*time.Hour), c.Until, time.Minute)
		require.Equal(t, name != "30+2", c.Allocated)
		require.Len(t, c.Text, 1)
		require.Contains(t, c.Text[0], ", and is protected until ")
	}
}

// Where GPUs count for other than 1, so does what a request will be protected for:
// without that explain's R3 is not the plugin's.
func TestExplainWeighsTheRequestAsThePluginDoes(t *testing.T) {
	s := contractSession(t)
	out := s.must("explain", "15")
	require.Contains(t, out, "the 32.00 GPU-hours for which it will be protected")
	require.Contains(t, out, "1 of accounts that are ahead of due (R3)\n")

	s.must("-Q", "weight", "set", "h100", "5")
	out = s.must("explain", "15")
	require.Contains(t, out, "the 160.00 GPU-hours for which it will be protected")
	require.Contains(t, out, "0 of accounts that are ahead of due (R3)\n")
}

func TestWhyNoRunningJobYields(t *testing.T) {
	request := fairshare.Request{Account: "due"}
	require.Empty(t, offerLine(&explain.Offer{Request: request}), "nothing runs")
	require.Equal(t, "none of the running jobs (2) would yield to it now: 2 protected (R2)", offerLine(&explain.Offer{Request: request, Protected: 2}))
	require.Equal(t,
		"none of the running jobs (11) would yield to it now: 1 of accounts that due is not far enough behind (R3), 2 of due itself (R4), "+
			"3 preempted too often or too large for it (R7), 5 of unknown minimum runtime",
		offerLine(&explain.Offer{Request: request, Ahead: 1, Same: 2, Spared: 3, Unknown: 5}))
}
