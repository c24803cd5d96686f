// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/internal/testcluster"
)

// weighed is a cluster whose nodes have GPUs of two types, and shards.
func weighed(t *testing.T) *scenario {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	c, err := testcluster.Start(ctx, testcluster.Options{
		Nodes: 2, GPUsPerNode: 4, NodeGres: "gpu:a100:2,gpu:h100:2,shard:16", Users: []string{ann, bob}, Slurmdbd: true,
		GresConf: []string{
			"NodeName=n[1-2] Name=gpu Type=a100 File=%s/gpu[0-1]",
			"NodeName=n[1-2] Name=gpu Type=h100 File=%s/gpu[2-3]",
			"NodeName=n[1-2] Name=shard Count=16",
		},
		Accounts: []testcluster.Account{
			{Name: "w", Share: "100%"},
			{Name: "w_a", Parent: "w", Share: "50%", Users: []string{ann}},
			{Name: "w_b", Parent: "w", Share: "50%", Users: []string{bob}},
			{Name: "w_c", Parent: "w", Share: "0%", Users: []string{ann}},
		},
		Priority: testcluster.Gpubudget,
		SlurmConf: []string{
			"GresTypes=gpu,shard", "MinJobAge=300",
			"AccountingStorageTRES=gres/gpu,gres/gpu:a100,gres/gpu:h100,gres/shard",
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	require.NoError(t, c.LoadBudgets(ctx, nil))
	return newScenario(t, c, "w")
}

// sacctRun is Slurm's record of a job that ran once.
type sacctRun struct {
	start   time.Time
	seconds int64
	tres    map[string]int64
}

func (s *scenario) sacct(id uint32) sacctRun {
	s.t.Helper()
	rows := s.rows("sacct", "-XnP", "-j", number0(id), "-o", "Start,ElapsedRaw,AllocTRES")
	require.Len(s.t, rows, 1)
	start, err := time.Parse("2006-01-02T15:04:05", rows[0][0])
	require.NoError(s.t, err)
	run := sacctRun{start: start, seconds: number(s.t, rows[0][1]), tres: map[string]int64{}}
	for item := range strings.SplitSeq(rows[0][2], ",") {
		name, value, _ := strings.Cut(item, "=")
		if n, err := strconv.ParseInt(value, 10, 64); err == nil {
			run.tres[name] = n
		}
	}
	return run
}

// charged is what the buckets say that an account was charged.
func (s *scenario) charged(account string) (sum fairshare.GPUMillis) {
	s.t.Helper()
	conn, err := pgx.Connect(s.ctx, s.DSN())
	require.NoError(s.t, err)
	defer conn.Close(s.ctx)
	require.NoError(s.t, conn.QueryRow(s.ctx,
		`SELECT coalesce(sum(gpu_ms), 0)::bigint FROM gpubudget.usage_bucket WHERE account = $1`, account).Scan(&sum))
	return sum
}

// waitLevel waits until sshare shows the level fair share that follows from what
// two accounts with equal shares were charged: the plugin counts as the database
// does.
func (s *scenario) waitLevel(account string, mine, other fairshare.GPUMillis) {
	s.t.Helper()
	want := 0.5 / (float64(mine) / float64(mine+other))
	var rows [][]string
	for range 100 {
		rows = s.rows("sshare", "-nP", "-a", "-A", account, "-o", "Account,User,LevelFS")
		for _, row := range rows {
			got, err := strconv.ParseFloat(row[2], 64)
			if strings.TrimSpace(row[0]) == account && row[1] == "" && err == nil && math.Abs(got-want) < 2e-6*want+1e-6 {
				return
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
	require.Fail(s.t, "sshare shows another level fair share", "want %v of %s, have %v", want, account, rows)
}

// held is what we recorded of a job: whole GPUs, parts, types.
func (s *scenario) held(id uint32) string {
	s.t.Helper()
	conn, err := pgx.Connect(s.ctx, s.DSN())
	require.NoError(s.t, err)
	defer conn.Close(s.ctx)
	var held string
	err = conn.QueryRow(s.ctx, `SELECT format('%s %s %s', gpus, parts, gpu_type) FROM gpubudget.job_run WHERE job_id = $1`, int64(id)).Scan(&held)
	require.NoError(s.t, err)
	return held
}

// Jobs on GPUs of two types, on whole ones and on shards, are charged what they
// held by what it counts for, to the millisecond; a weight that changes in the
// midst of runs cuts them there; and capacity, sshare and gshare go by the same.
func TestWhatGPUsCountForIsCharged(t *testing.T) {
	s := weighed(t)
	s.exec("root", "gpubudget", "-i", "weight", "set", "h100", "2.5")
	s.exec("root", "gpubudget", "-i", "weight", "set", "*", "0.5")

	type job struct {
		id   uint32
		held string
		rate func(h100 int64) int64 // millionths of a GPU
	}
	on := func(a100, h100 int64) func(int64) int64 {
		return func(weight int64) int64 { return a100*500_000 + h100*weight }
	}
	jobs := []job{
		{s.submit(ann, s.a, 3, "--gres=gpu:h100:2"), "2 0 h100", on(0, 2)},
		{s.submit(ann, s.a, 3, "--gres=gpu:a100:1"), "1 0 a100", on(1, 0)},
		{s.submit(ann, s.a, 3, "--gres=gpu:a100:1,gpu:h100:1"), "2 0 a100:1,h100:1", on(1, 1)},
		{s.submit(ann, s.a, 3, "--gres=gpu:4"), "4 0 a100:2,h100:2", on(2, 2)}, // of no type: all of a node
	}
	other := s.submit(bob, s.b, 4, "--gres=gpu:a100:2")
	require.NoError(t, s.WaitNoJobs(s.ctx))
	others := fairshare.Charged(1_000_000, s.sacct(other).seconds*1000)
	shards := s.submit(ann, s.a, 5, "--gres=shard:3")
	s.waitState(shards, "R")
	require.NoError(t, s.WaitNoJobs(s.ctx))

	var want fairshare.GPUMillis
	first := s.sacct(jobs[0].id)
	for _, j := range jobs {
		want += fairshare.Charged(j.rate(2_500_000), s.sacct(j.id).seconds*1000)
	}
	slurm := s.sacct(shards)
	require.EqualValues(t, 3, slurm.tres["gres/shard"], slurm.tres)
	s.wait("all to be recorded", func() bool { return s.charged(s.a) > want })
	for _, j := range jobs {
		require.Equal(t, j.held, s.held(j.id))
	}
	// Which GPU the shards are of is Slurm's to choose: three of its four.
	part := map[string]int64{"0 750000 a100": 375_000, "0 750000 h100": 1_875_000}[s.held(shards)]
	require.NotZero(t, part, s.held(shards))
	want += fairshare.Charged(part, slurm.seconds*1000)
	require.Equal(t, want, s.charged(s.a))
	require.Equal(t, want, s.used(s.a))

	r, err := s.Report(s.ctx)
	require.NoError(t, err)
	require.Equal(t, fairshare.MilliGPUs(2*(2*500+2*2500)), r.Capacity)
	s.waitLevel(s.a, want, others)

	// From a second after the start of the first job on, an h100 counts for 4:
	// the past is charged anew, cut at that instant.
	cut := first.start.Add(time.Second)
	s.exec("root", "gpubudget", "-i", "weight", "set", "h100", "4", "--from", cut.UTC().Format("2006-01-02T15:04:05Z"))
	want = 0
	for _, j := range jobs {
		run := s.sacct(j.id)
		before := min(max(cut.Sub(run.start), 0), time.Duration(run.seconds)*time.Second).Milliseconds()
		want += fairshare.Charged(j.rate(2_500_000), before) + fairshare.Charged(j.rate(4_000_000), run.seconds*1000-before)
	}
	if part == 1_875_000 {
		part = 3_000_000
	}
	want += fairshare.Charged(part, slurm.seconds*1000)
	require.Equal(t, want, s.charged(s.a), "in the same transaction")
	s.waitLevel(s.a, want, others)
	require.Contains(t, s.exec("root", "gpubudget", "weight", "list", "-nP"), fmt.Sprintf("h100|%d|4|4\n", 4))
}

// What waits counts by its type, and on shards by its part.
func TestDemandCountsByWhatIsAskedFor(t *testing.T) {
	s := weighed(t)
	s.exec("root", "gpubudget", "-i", "weight", "set", "h100", "2.5")
	hog := s.submit(bob, s.b, 60, "--nodes=2", "--gres=gpu:4")
	s.waitState(hog, "R")
	waits := s.submit(ann, s.a, 1, "--gres=gpu:h100:2")
	s.submit(ann, s.c, 1, "--gres=shard:2") // a sixteenth of what a node's GPUs have: half of one
	s.waitState(waits, "PD")
	conn, err := pgx.Connect(s.ctx, s.DSN())
	require.NoError(t, err)
	defer conn.Close(s.ctx)
	type asked struct{ pending, ms int64 }
	read := func(account string) (a asked) {
		err := conn.QueryRow(s.ctx, `SELECT coalesce(sum(pending_ms), 0)::bigint,
			coalesce(sum(gpubudget.unix_ms(seen_at) - gpubudget.unix_ms(begun_at)), 0)::bigint
			FROM gpubudget.demand_bucket WHERE account = $1`, account).Scan(&a.pending, &a.ms)
		require.NoError(t, err)
		return a
	}
	var first, last asked
	s.wait("demand to be recorded", func() bool { first = read(s.a); return first.pending > 0 })
	s.wait("more demand to be recorded", func() bool { last = read(s.a); return last.ms >= first.ms+3000 })
	require.Equal(t, 5*(last.ms-first.ms), last.pending-first.pending)

	// A request for shards is one for half of any GPU: of the mean.
	first = read(s.c)
	require.Positive(t, first.pending)
	s.wait("more demand for shards to be recorded", func() bool { last = read(s.c); return last.ms >= first.ms+3000 })
	require.InDelta(t, float64(last.ms-first.ms)*0.5*1.75, float64(last.pending-first.pending), 50)

	// So it counts for the contract: an hour's protection of two of a type, and of any.
	ofAny := s.submit(ann, s.a, 1, "--nodes=1", "--gres=gpu:2")
	for job, hours := range map[uint32]string{waits: "5.00", ofAny: "3.50"} {
		var told string
		s.wait("sprio to have the job", func() bool {
			told = s.exec("root", "gpubudget", "explain", number0(job))
			return strings.Contains(told, "The contract:")
		})
		require.Contains(t, told, "the "+hours+" GPU-hours for which it will be protected")
	}
}
