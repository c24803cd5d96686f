// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/internal/testcluster"
	"gpubudget/usage"
)

// contract is a cluster with budgets whose clients know --min-runtime: account
// told_a (ann) has three fifths of it, told_b (bob) the rest, told_c (cem)
// nothing at all.
type contract struct {
	*scenario
	dir string // readable by everybody
}

func startContract(t *testing.T, change func(*testcluster.Options)) *contract {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpubudget-told-") //nolint:usetesting // of a folder of the test no other user may read
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	s := &contract{dir: dir}
	stack := s.plugstack(t, "plugstack.conf", "4:00:00")
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	options := testcluster.Options{
		Users: []string{ann, bob, cem}, Priority: testcluster.Gpubudget, CPUsPerNode: 64,
		Accounts: []testcluster.Account{
			{Name: "told_a", Share: "60%", Users: []string{ann}},
			{Name: "told_b", Share: "40%", Users: []string{bob}},
			{Name: "told_c", Share: "0%", Users: []string{cem}},
		},
		SlurmConf: []string{"PlugStackConfig=" + stack, "MinJobAge=300"},
	}
	if change != nil {
		change(&options)
	}
	c, err := testcluster.Start(ctx, options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	require.NoError(t, c.LoadBudgets(ctx, map[string]string{"min_runtime": "30m", "min_runtime_cap": "4h"}))
	s.scenario = newScenario(t, c, "told")
	return s
}

// plugstack is a plugstack.conf by which clients know --min-runtime up to a cap.
func (s *contract) plugstack(t *testing.T, name, longest string) string {
	t.Helper()
	plugin, err := filepath.Abs("../build/plugins/spank_gpubudget.so")
	require.NoError(t, err)
	return s.file(t, name, "required "+plugin+" cap="+longest+"\n")
}

// file is a file that all users can read.
func (s *contract) file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(s.dir, name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	require.NoError(t, os.Chmod(path, 0o644))
	return path
}

// bypass is the environment of a client that allows more than the cluster does.
func (s *contract) bypass(t *testing.T) string {
	t.Helper()
	return s.client(t, "own", s.plugstack(t, "own.plugstack.conf", "30-0"))
}

// junk is that of a client that sends what GPUBTEST_JUNK says.
func (s *contract) junk(t *testing.T) string {
	t.Helper()
	plugin := filepath.Join(s.dir, "spank_junk.so")
	out, err := exec.CommandContext(t.Context(), "gcc", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-std=gnu11",
		"-isystem", "../build/slurm/obj", "-isystem", "../build/slurm/src", "-o", plugin, "testdata/spank_junk.c").CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, os.Chmod(plugin, 0o755))
	return s.client(t, "junk", s.file(t, "junk.plugstack.conf", "required "+plugin+"\n"))
}

// client is the environment of a client with a plugstack.conf of its own.
func (s *contract) client(t *testing.T, name, plugstack string) string {
	t.Helper()
	text, err := os.ReadFile(s.SlurmConf())
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(text), "PlugStackConfig=")
	require.True(t, found)
	_, after, _ := strings.Cut(rest, "\n")
	return "SLURM_CONF=" + s.file(t, name+".slurm.conf", before+"PlugStackConfig="+plugstack+"\n"+after)
}

// sbatchWith submits a job with variables in the environment.
func (s *contract) sbatchWith(user string, env []string, args ...string) uint32 {
	s.t.Helper()
	args = append([]string{"sbatch", "--parsable", "--output=/dev/null"}, args...)
	return uint32(number(s.t, strings.TrimSpace(s.exec(user, "env", append(env, args...)...))))
}

// runs are all runs of a job that the database has.
func (s *contract) runs(id uint32) (found []usage.Run) {
	s.t.Helper()
	conn, err := pgx.Connect(s.ctx, s.DSN())
	require.NoError(s.t, err)
	defer conn.Close(s.ctx)
	now := time.Now()
	runs, err := usage.NewStore(conn).Runs(s.ctx, s.Name(), fairshare.Period{From: fairshare.At(now.Add(-time.Hour)), Until: fairshare.At(now.Add(time.Hour))})
	require.NoError(s.t, err)
	for _, r := range runs {
		if r.JobID == id {
			found = append(found, r)
		}
	}
	return found
}

// run is the only run of a job, as soon as the database has it.
func (s *contract) run(id uint32) usage.Run {
	s.t.Helper()
	s.wait("the run of job "+number0(id)+" to be recorded", func() bool { return len(s.runs(id)) > 0 })
	runs := s.runs(id)
	require.Len(s.t, runs, 1)
	return runs[0]
}

// What a job asks for, cut by policy and time limit, is what its run is recorded
// with, and decides whether it is charged.
func TestMinRuntimeOfRuns(t *testing.T) {
	s := startContract(t, nil)
	own, junk := s.bypass(t), s.junk(t)
	for _, tt := range []struct {
		name      string
		user      string
		env, args []string
		allocated bool
		want      time.Duration
	}{
		{"says nothing", ann, nil, nil, true, 30 * time.Minute},
		{"says nothing, with a short time limit", ann, nil, []string{"--time=5"}, true, 5 * time.Minute},
		{"asks for a time", ann, nil, []string{"--min-runtime=2h"}, true, 2 * time.Hour},
		{"asks for more than its time limit", ann, nil, []string{"--min-runtime=2h", "--time=10"}, true, 10 * time.Minute},
		{"asks for none", ann, nil, []string{"--min-runtime=0"}, false, 0},
		{"asks for none in the environment", ann, []string{"GPUBUDGET_MIN_RUNTIME=0"}, nil, false, 0},
		{"asks for more than there is, round the option", ann, []string{own}, []string{"--min-runtime=20-0"}, true, 4 * time.Hour},
		{"a negative time, round the option", ann, []string{junk, "GPUBTEST_JUNK=-1"}, nil, true, 30 * time.Minute},
		{"no time, round the option", ann, []string{junk, "GPUBTEST_JUNK=2h"}, nil, true, 30 * time.Minute},
		{"more than a number holds, round the option", ann, []string{junk, "GPUBTEST_JUNK=99999999999999999999999"}, nil, true, 4 * time.Hour},
		{"asks for a time, without a budget", cem, nil, []string{"--min-runtime=2h"}, false, 2 * time.Hour},
	} {
		t.Run(tt.name, func(t *testing.T) {
			account := map[string]string{ann: "told_a", cem: "told_c"}[tt.user]
			id := s.sbatchWith(tt.user, tt.env, append([]string{"--account=" + account, "--gpus=1", "--wrap=sleep 300"}, tt.args...)...)
			run := s.run(id)
			require.Equal(t, tt.allocated, run.Allocated)
			require.NotNil(t, run.MinRuntime)
			require.Equal(t, tt.want, *run.MinRuntime)
			s.exec("root", "scancel", number0(id))
		})
	}
	require.Len(t, s.logLines(0, "asks for a minimum runtime of 480h0m0s: it gets 4h0m0s"), 1)
	require.Len(t, s.logLines(0, "GPUBUDGET_MIN_RUNTIME=-1, which is no number of seconds: it counts as if nothing was said"), 1)
	require.Len(t, s.logLines(0, "which is no number of seconds"), 1, "once a minute")
}

// What asks for no minimum runtime comes after all that is allocated, in either
// mode and from its submission on; sprio's columns add up, and explain says why.
func TestUnallocatedJobsWaitBehindAllocatedOnes(t *testing.T) {
	s := startContract(t, func(o *testcluster.Options) {
		o.SlurmConf = append(o.SlurmConf, "PartitionName=short Nodes=ALL PriorityJobFactor=100 State=UP", "PriorityWeightPartition=1000")
	})
	release := s.submit(bob, "told_b", 1000, "--gpus=8") // from now on told_a is ahead
	s.waitState(release, "R")
	nobody := s.submit(cem, "told_c", 1, "--gpus=1")
	free := s.submit(ann, "told_a", 1, "--gpus=1", "--min-runtime=0")
	first := s.submit(ann, "told_a", 1, "--gpus=1", "--min-runtime=2h")
	last := s.submit(bob, "told_b", 1, "--gpus=1", "--nice=100")
	again := s.submit(ann, "told_a", 1, "--gpus=1", "--min-runtime=0")
	s.waitOrder(first, last, free, again, nobody)
	s.requireSum(0)
	require.Equal(t, "0", s.rows("sprio", "--noheader", "--jobs="+number0(free), "--format=%F")[0][0])

	fresh := s.submit(ann, "told_a", 1, "--gpus=1", "--min-runtime=0") // its place is known
	require.Equal(t, []uint32{first, last, free, again, fresh, nobody}, s.order())

	text := s.exec(ann, "gpubudget", "explain", number0(free))
	require.Contains(t, text, "It is unallocated: it asks for no minimum runtime (--min-runtime=0)")
	require.Contains(t, text, "it is charged to a budget")
	require.NotContains(t, s.exec(ann, "gpubudget", "explain", number0(first)), "unallocated")

	s.exec("root", "gpubudget", "-i", "policy", "set", "mode", "additive")
	s.wait("the additive mode", func() bool {
		order := s.order()
		return order[0] == first && order[1] == last && number(t, s.priorities(first)[0]) < 2_000_000
	})
	s.requireSum(sprioColumns)
	require.Contains(t, s.exec(ann, "gpubudget", "explain", number0(free)), "It is unallocated")
	require.Contains(t, s.exec(cem, "gpubudget", "explain", number0(nobody)), "told_c has none")
	s.exec("root", "scancel", number0(again), number0(fresh))

	// Whatever they have: the best of those that are unallocated meet the worst that
	// are charged, in each partition.
	parts := s.submit(ann, "told_a", 1, "--gpus=1", "--min-runtime=0", "--partition=gpu,short")
	for _, id := range []uint32{free, nobody, parts} {
		s.exec("root", "scontrol", "update", "job", number0(id), "nice=-2000000000")
		s.exec("root", "scontrol", "update", "job", number0(id), "sitefactor=2000000000")
	}
	s.exec("root", "scontrol", "update", "job", number0(last), "nice=2000000000")
	const band = 1_000_000
	s.wait("the edges of both kinds", func() bool {
		for _, id := range []uint32{free, nobody, parts} {
			if number(t, s.priorities(id)[0]) != band {
				return false
			}
		}
		return number(t, s.priorities(last)[0]) == band+1
	})
	require.Equal(t, []uint32{first, last}, s.order()[:2])
	s.requireSum(sprioColumns)
	rows := s.rows("sprio", "--noheader", "--jobs="+number0(parts), "--format=%r|%Y|%F")
	require.Len(t, rows, 2)
	for _, row := range rows {
		require.Equal(t, []string{number0(band), "0"}, row[1:], row[0])
	}
	text = s.exec(ann, "gpubudget", "explain", number0(free))
	require.Contains(t, text, "it is charged to a budget")
	require.NotContains(t, text, "more points", "no number of them would do")
}

// Unallocated time is charged to nobody and changes nobody's rank; it is reported
// apart, whoever's it is.
func TestUnallocatedTimeIsReportedApart(t *testing.T) {
	s := startContract(t, nil)
	ids := []uint32{
		s.submit(ann, "told_a", 3, "--gpus=2", "--min-runtime=0"),
		s.submit(bob, "told_b", 3, "--gpus=1"),
		s.submit(cem, "told_c", 3, "--gpus=1"),
	}
	s.waitGone(ids...)
	var used, unallocated []int64
	s.wait("all to be recorded", func() bool {
		r, err := s.Report(s.ctx)
		require.NoError(t, err)
		used, unallocated = nil, nil
		for _, account := range []string{"told_a", "told_b", "told_c"} {
			row, ok := r.Account(account)
			require.True(t, ok)
			used, unallocated = append(used, int64(row.Used/1000)), append(unallocated, int64(row.Unallocated/1000))
		}
		return used[1] >= 3 && unallocated[0] >= 6 && unallocated[2] >= 3
	})
	require.Zero(t, used[0])
	require.Zero(t, used[2])
	require.Zero(t, unallocated[1])
}

// With unfunded=refuse, jobs of accounts that have nothing left are refused when
// they are submitted, with what helps; those that ask to be unallocated are not,
// nor those without GPUs. What asks for more than there is gets what there is, and
// its user is told.
func TestUnfundedJobsAreRefused(t *testing.T) {
	t.Parallel() // it mostly waits
	s := startContract(t, func(o *testcluster.Options) { o.Submit, o.Slurmdbd = true, true })
	own := s.bypass(t)
	submit := func(user, account string, args ...string) error {
		_, err := s.Exec(s.ctx, user, "sbatch", append([]string{"--account=" + account, "--gpus=1", "--wrap=sleep 300", "--output=/dev/null"}, args...)...)
		return err
	}
	s.wait("the ledger to be known", func() bool { return len(s.rows("sshare", "--noheader", "--parsable2", "--all", "--users="+ann)) > 0 })
	require.NoError(t, submit(cem, "told_c", "--hold"), "by default they run unallocated")

	s.exec("root", "gpubudget", "-i", "policy", "set", "unfunded", "refuse")
	var refused error
	s.wait("the policy to be known", func() bool { refused = submit(cem, "told_c", "--hold"); return refused != nil })
	require.ErrorContains(t, refused, "account told_c has no budget: submit it to another account")
	require.ErrorContains(t, refused, "--min-runtime=0")
	require.NoError(t, submit(cem, "told_c", "--hold", "--min-runtime=0"))
	require.NoError(t, submit(ann, "told_a", "--hold"))
	_, err := s.Exec(s.ctx, cem, "sbatch", "--account=told_c", "--wrap=true", "--output=/dev/null")
	require.NoError(t, err, "without GPUs")
	require.Error(t, submit(cem, "told_c", "--hold", "--array=1-3"))
	_, err = s.Exec(s.ctx, cem, "srun", "--account=told_c", "--gpus=1", "true")
	require.ErrorContains(t, err, "account told_c has no budget")
	_, err = s.Exec(s.ctx, cem, "salloc", "--account=told_c", "--gpus-per-node=1", "true")
	require.ErrorContains(t, err, "account told_c has no budget")
	_, err = s.Exec(s.ctx, cem, "sbatch", "--gres=gpu:1", "--wrap=true", "--output=/dev/null") // told_c is his default
	require.ErrorContains(t, err, "account told_c has no budget")

	// A deposit, and it is used up.
	s.exec("root", "gpubudget", "-i", "deposit", "told_c", "10s", "--until", time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	s.wait("the deposit to be known", func() bool { return submit(cem, "told_c", "--hold") == nil })
	id := s.submit(cem, "told_c", 300, "--gpus=8")
	require.True(t, s.run(id).Allocated)
	s.wait("the deposit to be used up", func() bool { refused = submit(cem, "told_c", "--hold"); return refused != nil })
	require.ErrorContains(t, refused, "account told_c has nothing left of its budget")
	s.exec("root", "scancel", number0(id))

	// More than there is.
	said := func(env string, args ...string) string {
		args = append([]string{env, "sbatch", "--account=told_a", "--gpus=1", "--wrap=sleep 300", "--output=/dev/null"}, args...)
		cmd, err := s.Command(s.ctx, ann, "env", args...)
		require.NoError(t, err)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		require.NoError(t, s.Run(cmd), out.String())
		return out.String()
	}
	require.Contains(t, said(own, "--min-runtime=20-0"), "the longest minimum runtime is 04:00:00 here: the job gets that, not 20-00:00:00")
	require.Contains(t, said("A=b", "--min-runtime=2h", "--time=10"), "more than the time limit: the job is protected for 00:10:00")
	require.NotContains(t, said("A=b", "--min-runtime=2h"), "gpubudget")
	junk := s.junk(t)
	for _, text := range []string{"-1", "2h", ""} {
		_, err := s.Exec(s.ctx, ann, "env", junk, "GPUBTEST_JUNK="+text, "sbatch", "--account=told_a", "--gpus=1", "--wrap=true", "--output=/dev/null")
		require.ErrorContains(t, err, "GPUBUDGET_MIN_RUNTIME of the SPANK environment is no number of seconds", text)
	}
	require.Empty(t, s.logLines(0, "asks for a minimum runtime of"), "slurmctld has cut it")
}

// A user can't take a job to an account that has nothing left either, but an
// operator can.
func TestUnfundedJobsAreRefusedWhenTheyChangeHands(t *testing.T) {
	t.Parallel() // it mostly waits
	s := startContract(t, func(o *testcluster.Options) {
		o.Submit, o.Slurmdbd = true, true
		o.Accounts[2].Users = []string{cem, ann}
	})
	s.exec("root", "gpubudget", "-i", "policy", "set", "unfunded", "refuse")
	s.wait("the policy to be known", func() bool {
		_, err := s.Exec(s.ctx, ann, "sbatch", "--account=told_c", "--gpus=1", "--hold", "--wrap=true", "--output=/dev/null")
		return err != nil
	})
	id := s.submit(ann, "told_a", 1, "--gpus=1", "--hold")
	_, err := s.Exec(s.ctx, ann, "scontrol", "update", "JobId="+number0(id), "Account=told_c")
	require.Error(t, err)
	require.Len(t, s.logLines(0, "account told_c has no budget"), 1)
	s.exec("root", "scontrol", "update", "JobId="+number0(id), "Account=told_c")
}

// Each run of a job that is requeued has its whole minimum runtime, from its own
// start on.
func TestARequeuedJobIsProtectedAnew(t *testing.T) {
	t.Parallel() // it mostly waits
	s := startContract(t, nil)
	id := s.submit(ann, "told_a", 300, "--gpus=1", "--min-runtime=2h", "--requeue")
	first := s.run(id)
	time.Sleep(2 * time.Second)
	s.exec("root", "scontrol", "requeue", number0(id))
	s.wait("the second run", func() bool { return len(s.runs(id)) == 2 })
	second := s.runs(id)[1]
	require.NotNil(t, s.runs(id)[0].EndedAt)
	now := time.Now()
	until, protected := second.ProtectedUntil(now)
	require.True(t, protected)
	require.Equal(t, 2*time.Hour, until.Sub(second.StartedAt))
	before, _ := first.ProtectedUntil(now)
	require.Equal(t, second.StartedAt.Sub(first.StartedAt), until.Sub(before))
	require.Positive(t, until.Sub(before))
}
