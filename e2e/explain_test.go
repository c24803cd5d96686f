// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/internal/testcluster"
	"gpubudget/usage"
)

// explanation is what gpubudget explain --json says, as far as it is looked at.
type explanation struct {
	Account string `json:"account"`
	User    string `json:"user"`
	Job     struct {
		ID     string `json:"id"`
		JobID  uint32 `json:"job_id"`
		State  string `json:"state"`
		Reason string `json:"reason"`
		GPUs   int64  `json:"gpus"`
	} `json:"job"`
	Path []struct {
		Account string   `json:"account"`
		User    string   `json:"user"`
		LevelFS *float64 `json:"level_fs"`
		Used    int64    `json:"used_gpu_milliseconds"`
		Rank    *int     `json:"rank"`
		Factor  *float64 `json:"fairshare"`
	} `json:"path"`
	Factors []struct {
		Partition string             `json:"partition"`
		Priority  int64              `json:"priority"`
		Site      int64              `json:"site"`
		Age       int64              `json:"age"`
		Assoc     int64              `json:"assoc"`
		FairShare int64              `json:"fairshare"`
		JobSize   int64              `json:"job_size"`
		Part      int64              `json:"partition_factor"`
		QOS       int64              `json:"qos"`
		Nice      int64              `json:"nice"`
		TRES      map[string]float64 `json:"tres"`
	} `json:"factors"`
	Ahead []struct {
		Account string `json:"account"`
		Rank    int    `json:"rank"`
		Jobs    int64  `json:"jobs"`
		GPUs    int64  `json:"gpus"`
		Cause   string `json:"cause"`
		Parting *struct {
			Mine struct {
				LevelFS *float64 `json:"level_fs"`
			} `json:"mine"`
			Theirs struct {
				LevelFS  *float64 `json:"level_fs"`
				Infinite bool     `json:"level_fs_infinite"`
			} `json:"theirs"`
		} `json:"parting"`
		Text string `json:"text"`
	} `json:"ahead"`
	Changes []struct {
		Kind     string     `json:"kind"`
		Rival    string     `json:"rival_account"`
		PassesAt *time.Time `json:"passes_at"`
	} `json:"changes"`
}

// explained is a cluster of its own, with two levels of accounts, whose records
// begin an hour before it does.
type explained struct {
	*scenario
	runs uint32
}

func startExplained(t *testing.T) *explained {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	accounts := []testcluster.Account{
		{Name: "hog", Share: "10%", Users: []string{cem}},
		{Name: "prog", Share: "40%"},
		{Name: "prog_a", Parent: "prog", Share: "50%", Users: []string{ann, bob}},
		{Name: "prog_b", Parent: "prog", Share: "50%", Users: []string{bob}},
		{Name: "wait_a", Share: "20%", Users: []string{ann}},
		{Name: "wait_b", Share: "20%", Users: []string{bob}},
	}
	c, err := testcluster.Start(ctx, testcluster.Options{
		Users: []string{ann, bob, cem}, Slurmdbd: true, Priority: testcluster.Gpubudget, QOS: map[string]int{"high": 100}, Accounts: accounts,
		SlurmConf: []string{
			"MessageTimeout=5", // as long commands try to reach slurmctld
			"PartitionName=short Nodes=ALL MaxTime=10 PriorityJobFactor=10 State=UP",
			"PriorityWeightJobSize=1000", "PriorityWeightPartition=1000", "PriorityWeightTRES=gres/gpu=1000",
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.LogTails())
		}
		require.NoError(t, c.Stop())
	})
	s := &explained{scenario: newScenario(t, c, "wait")}
	for _, a := range accounts {
		args := []string{"-Q", "-M", c.Name(), "account", "add", a.Name, "--share", a.Share, "--from", "now-1hour"}
		if a.Parent != "" {
			args = append(args, "--parent", a.Parent)
		}
		s.exec("root", "gpubudget", args...)
		if len(a.Users) > 0 {
			s.exec("root", "gpubudget", "-Q", "user", "add", strings.Join(a.Users, ","), a.Name, "--from", "now-1hour")
		}
	}
	s.exec("root", "gpubudget", "-Q", "policy", "set", "lookback", "10m", "--from", "now-1hour")
	return s
}

// recorded records a run as if it had ended a while ago.
func (s *explained) recorded(user, account string, gpus int64, began, ended time.Duration) {
	s.t.Helper()
	now := time.Now().Truncate(time.Second)
	end := now.Add(-ended)
	s.runs++
	conn, err := pgx.Connect(s.ctx, s.DSN())
	require.NoError(s.t, err)
	defer conn.Close(s.ctx)
	require.NoError(s.t, usage.NewStore(conn).WriteRuns(s.ctx, []usage.Run{{
		Cluster: s.Name(), JobID: 900_000 + s.runs, ArrayTaskID: usage.NoTask, Account: account, User: user, GPUs: gpus,
		Allocated: true, StartedAt: now.Add(-began), EndedAt: &end, EndState: "COMPLETED", SeenAt: end,
	}}))
}

// explain is what gpubudget explains to a user, whose environment asks Slurm's
// commands for something else than they are asked for here.
func (s *explained) explain(user, what string) (e explanation) {
	s.t.Helper()
	out := s.exec(user, "env", "SQUEUE_FORMAT=%i", "SQUEUE_STATES=RUNNING", "SQUEUE_USERS=nobody", "SPRIO_FORMAT=%i", "SLURM_BITSTR_LEN=1",
		"gpubudget", "explain", what, "--json")
	require.NoError(s.t, json.Unmarshal([]byte(out), &e), out)
	return e
}

// sprioRow is a line of sprio.
type sprioRow struct {
	id        uint32
	partition string
	priority  int64
	columns   string // as printed
}

func (s *explained) sprio() []sprioRow {
	s.t.Helper()
	var all []sprioRow
	for _, f := range s.rows("sprio", "--noheader", "--format=%i|%r|%Y|%S|%A|%B|%F|%J|%P|%Q|%N|%T") {
		all = append(all, sprioRow{uint32(number(s.t, f[0])), f[1], number(s.t, f[2]), strings.Join(f[3:], " ")})
	}
	return all
}

// waitingJob is what a test knows of a job it has submitted.
type waitingJob struct {
	account, user string
	tasks, gpus   int64
}

// ahead counts, by account, the tasks and GPUs of jobs that sprio has before one
// in a partition of both.
func ahead(rows []sprioRow, jobs map[uint32]waitingJob, id uint32) map[string][2]int64 {
	first := map[uint32]bool{}
	for _, mine := range rows {
		for _, theirs := range rows {
			if mine.id == id && theirs.id != id && theirs.partition == mine.partition &&
				(theirs.priority > mine.priority || theirs.priority == mine.priority && theirs.id < id) {
				first[theirs.id] = true
			}
		}
	}
	sums := map[string][2]int64{}
	for id := range first {
		job := jobs[id]
		sum := sums[job.account]
		sums[job.account] = [2]int64{sum[0] + job.tasks, sum[1] + job.tasks*job.gpus}
	}
	return sums
}

// What gpubudget explains of a job is what sprio shows: the same factors, and
// ahead of it the jobs that sprio has before it, of accounts that stand before
// its own.
func TestExplainAgreesWithSprio(t *testing.T) {
	s := startExplained(t)
	s.recorded(ann, "prog_a", 3, 300*time.Second, 200*time.Second)
	s.recorded(bob, "prog_a", 1, 300*time.Second, 200*time.Second)
	s.recorded(bob, "prog_b", 1, 300*time.Second, 200*time.Second)
	s.recorded(bob, "wait_b", 1, 300*time.Second, 200*time.Second)
	s.hog()

	jobs := map[uint32]waitingJob{}
	add := func(user, account string, tasks, gpus int64, args ...string) {
		id := s.submit(user, account, 1, append([]string{fmt.Sprint("--gpus=", gpus)}, args...)...)
		jobs[id] = waitingJob{account, user, tasks, gpus}
	}
	add(ann, "prog_a", 1, 2)
	add(ann, "prog_a", 1, 1, "--nice=100")
	add(ann, "prog_a", 1, 3, "--qos=high")
	add(bob, "prog_a", 1, 1)
	add(bob, "prog_b", 5, 1, "--array=1-5")
	add(bob, "prog_b", 1, 1, "--partition=gpu,short")
	add(bob, "wait_b", 1, 4, "--partition=short")
	add(ann, "wait_a", 1, 4)
	held := s.submit(ann, "prog_a", 1, "--gpus=1", "--hold")
	later := s.submit(ann, "prog_a", 1, "--gpus=1", "--begin=now+1hour")
	s.wait("every job to be in sprio", func() bool { return len(s.sprio()) == len(jobs)+1 })
	s.wait("accounts to be told apart", func() bool { return s.explain(ann, "prog_a").Path[2].Used == 400_000 })
	time.Sleep(2 * time.Second) // a refresh, and a pass

	for _, id := range slices.Sorted(maps.Keys(jobs)) {
		e := s.compare(id, jobs)
		s.requireCauses(e)
		s.requirePlace(e)
	}
	s.exec("root", "gpubudget", "-Q", "policy", "set", "mode", "additive")
	s.wait("the additive mode", func() bool {
		return !slices.ContainsFunc(s.sprio(), func(r sprioRow) bool { return r.priority > 2_000_000 })
	})
	for _, id := range slices.Sorted(maps.Keys(jobs)) {
		for _, r := range s.compare(id, jobs).Ahead {
			require.Contains(t, []string{"column", "earlier"}, r.Cause, r.Text)
		}
	}
	s.notWaiting(held, later)
	s.withoutSlurm(held)
}

// compare compares an explanation with sprio. Ages grow between two passes: what
// sprio says is asked before and after, until it is the same.
func (s *explained) compare(id uint32, jobs map[uint32]waitingJob) (e explanation) {
	s.t.Helper()
	var before, after []sprioRow
	job := jobs[id]
	for range 20 {
		before, e, after = s.sprio(), s.explain(job.user, number0(id)), s.sprio()
		if slices.Equal(before, after) {
			break
		}
	}
	require.Equal(s.t, before, after, "sprio does not keep still")
	require.Equal(s.t, []any{job.account, job.user, id, "PENDING", job.gpus}, []any{e.Account, e.User, e.Job.JobID, e.Job.State, e.Job.GPUs})

	var got, want []sprioRow
	for _, f := range e.Factors {
		tres := int64(f.TRES["gres/gpu"])
		require.InDelta(s.t, f.Priority, f.Site+f.Age+f.Assoc+f.FairShare+f.JobSize+f.Part+f.QOS-f.Nice+tres, sprioColumns)
		columns := fmt.Sprint(f.Site, " ", f.Age, " ", f.Assoc, " ", f.FairShare, " ", f.JobSize, " ", f.Part, " ", f.QOS, " ", f.Nice)
		got = append(got, sprioRow{id, f.Partition, f.Priority, fmt.Sprint(columns, " gres/gpu=", tres)})
	}
	for _, row := range before {
		if row.id == id {
			row.columns = strings.TrimSpace(strings.TrimPrefix(row.columns, "cpu=0,"))
			want = append(want, row)
		}
	}
	require.Equal(s.t, want, got)

	sums := map[string][2]int64{}
	for _, r := range e.Ahead {
		sum := sums[r.Account]
		sums[r.Account] = [2]int64{sum[0] + r.Jobs, sum[1] + r.GPUs}
	}
	require.Equal(s.t, ahead(before, jobs, id), sums, "job %d of %s", id, job.account)
	return e
}

// requireCauses checks why jobs are ahead, in strict mode.
func (s *explained) requireCauses(e explanation) {
	s.t.Helper()
	place := e.Path[len(e.Path)-2] // the account above the user
	require.Equal(s.t, e.Account, place.Account)
	last := 0
	for _, r := range e.Ahead {
		require.GreaterOrEqual(s.t, r.Rank, last, "by priority, accounts come in the order of their ranks")
		last = r.Rank
		if r.Rank == *place.Rank {
			require.Equal(s.t, e.Account, r.Account, r.Text)
			require.Contains(s.t, []string{"qos", "nice", "user", "column", "earlier"}, r.Cause, r.Text)
			continue
		}
		require.Equal(s.t, "tree", r.Cause, r.Text)
		require.Less(s.t, r.Rank, *place.Rank, r.Text)
		require.True(s.t, r.Parting.Theirs.Infinite || *r.Parting.Theirs.LevelFS > *r.Parting.Mine.LevelFS, r.Text)
	}
}

// requirePlace checks that the user stands where sshare shows him, and so does
// his account if its siblings, too, have nothing that runs: a level fair share in
// which something runs moves on between two looks.
func (s *explained) requirePlace(e explanation) {
	s.t.Helper()
	shown := map[[2]string][]string{} // LevelFS and FairShare, by account and user
	for _, row := range s.rows("sshare", "--noheader", "--all", "--long", "--parsable2", "--format=Account,User,LevelFS,FairShare") {
		shown[[2]string{strings.TrimSpace(row[0]), row[1]}] = row[2:]
	}
	levelFS := func(of *float64) string {
		if of == nil {
			return "inf"
		}
		return fmt.Sprintf("%.6f", *of)
	}
	user, account := e.Path[len(e.Path)-1], e.Path[len(e.Path)-2]
	want := shown[[2]string{e.Account, e.User}]
	require.Equal(s.t, want, []string{levelFS(user.LevelFS), fmt.Sprintf("%.6f", *user.Factor)})
	if len(e.Path) > 3 {
		want = shown[[2]string{e.Account, ""}][:1]
		require.Equal(s.t, want, []string{levelFS(account.LevelFS)})
	}
}

// notWaiting explains jobs that have no place among those that wait, and what
// can't be explained.
func (s *explained) notWaiting(held, later uint32) {
	s.t.Helper()
	e := s.explain(ann, number0(held))
	require.Equal(s.t, "JobHeldUser", e.Job.Reason)
	require.Empty(s.t, e.Factors)
	require.Contains(s.t, s.exec(ann, "gpubudget", "explain", number0(held)), "scontrol release "+number0(held))
	require.Contains(s.t, s.exec(ann, "gpubudget", "explain", number0(later)), "(BeginTime)")
	for what, want := range map[string]string{
		"99999":         "unknown job 99999: squeue does not list it",
		"porg_a":        `did you mean "prog_a"?`,
		"prog_b/" + ann: fmt.Sprintf("user %q is no member of account %q", ann, "prog_b"),
	} {
		s.refuses(what, want)
	}
}

// refuses checks that something can't be explained, and what is said then.
func (s *explained) refuses(what, want string) {
	s.t.Helper()
	_, err := s.Exec(s.ctx, ann, "gpubudget", "explain", what)
	exit := &exec.ExitError{}
	require.ErrorAs(s.t, err, &exit)
	require.Equal(s.t, 1, exit.ExitCode())
	require.ErrorContains(s.t, err, want)
}

// withoutSlurm has slurmctld away: a job can't be explained, an account can.
func (s *explained) withoutSlurm(job uint32) {
	s.t.Helper()
	require.NoError(s.t, s.KillSlurmctld())
	s.refuses(number0(job), "try where squeue works, or explain its account: gpubudget explain ACCOUNT")
	e := s.explain(ann, "prog_a")
	require.Equal(s.t, int64(400_000), e.Path[2].Used)
	require.NotEmpty(s.t, e.Ahead, "the queue as it was last seen")
	require.NoError(s.t, s.StartSlurmctld(s.ctx))
}

// When gpubudget explains that an account will pass another, it does so then.
func TestExplainedWaitComesTrue(t *testing.T) {
	s := startExplained(t)
	s.exec("root", "gpubudget", "-Q", "policy", "set", "lookback", "1m")
	s.hog()
	// From 10 seconds on 10 of a's 200 GPU-seconds leave the window each second:
	// 5 seconds later b's 150 are as many.
	s.recorded(ann, s.a, 10, 50*time.Second, 30*time.Second)
	s.recorded(bob, s.b, 15, 25*time.Second, 15*time.Second)
	ofA := s.submit(ann, s.a, 1, "--gpus=1")
	ofB := s.submit(bob, s.b, 1, "--gpus=1")
	var e explanation
	s.wait("b to be ahead", func() bool {
		e = s.explain(ann, number0(ofA))
		return len(e.Ahead) == 1 && e.Ahead[0].Account == s.b
	})
	require.Equal(t, []uint32{ofB, ofA}, s.order())
	var passes time.Time
	for _, c := range e.Changes {
		if c.PassesAt != nil {
			passes = *c.PassesAt
		}
	}
	require.WithinDuration(t, time.Now().Add(10*time.Second), passes, 10*time.Second, "%+v", e.Changes)

	for slices.Equal(s.order(), []uint32{ofB, ofA}) {
		require.Less(t, time.Since(passes), soon, "it should have passed at %v", passes)
		time.Sleep(50 * time.Millisecond)
	}
	late := time.Since(passes)
	t.Logf("it passed %v after the time that was explained", late.Round(time.Millisecond))
	require.Greater(t, late, -time.Second)
	s.waitOrder(ofA, ofB)
}
