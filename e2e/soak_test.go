// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/testcluster"
)

var (
	soakFor  = flag.Duration("soak.duration", 90*time.Second, "how long TestSoak keeps its cluster busy; make soak takes 15 minutes")
	soakSeed = flag.Uint64("soak.seed", 1, "what TestSoak draws its jobs by")
)

const (
	soakNodes, soakGPUs = 3, 4
	soakFree            = "free" // the account that is due nothing
	soakRoom            = 3      // jobs of each account that wait at any time, at least
)

// soak is a cluster on which five accounts want more than there is.
type soak struct {
	*scenario
	random *rand.Rand
	jobs   map[uint32]soakJob
}

// soakJob is what a job was submitted with.
type soakJob struct {
	account string
	gpus    int
	min     time.Duration
	nice    int
}

// allocated tells whether its run is charged and protected.
func (j soakJob) allocated() bool { return j.account != soakFree && j.min > 0 }

// TestSoak keeps a cluster busier than it can be, by random, and then reads in
// Slurm's accounting whether anybody's rights were broken.
func TestSoak(t *testing.T) {
	accounts := []testcluster.Account{
		{Name: "gold", Share: "40%", Users: []string{ann}},
		{Name: "silver", Share: "30%", Users: []string{bob}},
		{Name: "bronze", Share: "20%", Users: []string{cem}},
		{Name: "tin", Share: "10%", Users: []string{ann}},
		{Name: soakFree, Share: "0%", Users: []string{bob}},
	}
	s := &soak{
		scenario: contractCluster(t, func(o *testcluster.Options) {
			o.Nodes, o.GPUsPerNode, o.Accounts = soakNodes, soakGPUs, accounts
			o.SlurmConf = append(o.SlurmConf, "MinJobAge=600")
		}),
		random: rand.New(rand.NewPCG(*soakSeed, 5)), jobs: make(map[uint32]soakJob),
	}
	ctx, cancel := context.WithTimeout(context.Background(), *soakFor+testTimeout)
	defer cancel()
	s.ctx = ctx
	// Who is due nothing has it all, until somebody else comes.
	for range soakNodes * soakGPUs {
		s.one(accounts[len(accounts)-1])
	}
	for id := range s.jobs {
		s.waitState(id, "R")
	}
	began := time.Now()
	warm := began.Add(min(*soakFor/3, time.Minute))
	for time.Since(began) < *soakFor {
		s.topUp(accounts)
		time.Sleep(time.Second)
	}
	ended := time.Now()
	judge := soakJudge{shares: make(map[string]float64), until: time.Now()}
	for _, a := range accounts {
		judge.shares[a.Name] = float64(number(t, strings.TrimSuffix(a.Share, "%")))
	}
	judge.runs = s.accounted()
	runs := judge.runs
	require.NoError(t, s.CancelAll(ctx))

	occupancy := occupied(runs, warm, ended)
	gone := preempted(runs)
	t.Logf("%v: %d jobs, %d runs, %d of them preempted (%d allocated); occupancy %.2f%%",
		ended.Sub(began).Round(time.Second), len(s.jobs), len(runs), gone[true]+gone[false], gone[true], 100*occupancy)
	broken := judge.broken()
	if len(broken) > 0 {
		t.Logf("the runs:\n%s", judge.table())
	}
	require.Empty(t, broken)
	require.LessOrEqual(t, judge.elsewhere, 1+gone[true]/20, "GPUs that another took than who they were freed for")
	least := 0.9
	if *soakFor >= 10*time.Minute {
		least = 0.98
	}
	require.GreaterOrEqual(t, occupancy, least)
	require.Positive(t, gone[false], "unallocated jobs that made way")
	require.Positive(t, gone[true], "allocated jobs that made way")
}

// topUp submits what is missing for each account to want more than there is.
func (s *soak) topUp(accounts []testcluster.Account) {
	waiting := make(map[string]int)
	for _, row := range s.rows("squeue", "--noheader", "--states=PENDING", "--format=%a") {
		waiting[row[0]]++
	}
	for _, a := range accounts {
		for n := waiting[a.Name]; n < soakRoom; n++ {
			s.one(a)
		}
	}
}

// one submits a job: mostly of one GPU, some of two, some of two nodes.
func (s *soak) one(a testcluster.Account) {
	job := soakJob{account: a.Name, gpus: 1, min: time.Duration(5+s.random.IntN(20)) * time.Second}
	lasts := 20 + s.random.IntN(40)
	if *soakFor >= 10*time.Minute {
		job.min, lasts = 2*job.min, 3*lasts
	}
	place := []string{"--gpus=1"}
	switch s.random.IntN(20) {
	case 0:
		job.gpus, place = 2, []string{"--nodes=2", "--gpus-per-node=1"}
	case 1, 2:
		job.gpus, place = 2, []string{"--nodes=1", "--gpus-per-node=2"}
	case 3:
		job.min = 0
	}
	if a.Name == soakFree {
		job.gpus, job.min, lasts, place = 1, 0, 55, []string{"--gpus=1"}
	}
	if s.random.IntN(3) == 0 {
		job.nice = 100
	}
	args := append([]string{
		"--account=" + a.Name, fmt.Sprintf("--time=%d", lasts/60+1), minRuntime(job.min), fmt.Sprintf("--nice=%d", job.nice), fmt.Sprintf("--wrap=sleep %d", lasts),
	}, place...)
	id, err := s.Sbatch(s.ctx, a.Users[0], args...)
	require.NoError(s.t, err)
	s.jobs[id] = job
}

// accounted are all runs by sacct, the oldest first. It doesn't know what minimum
// runtime and nice a job has: that is what it was submitted with.
func (s *soak) accounted() []soakRun {
	s.t.Helper()
	rows, err := s.Rows(s.ctx, "root", "sacct", "--allusers", "--duplicates", "--allocations", "--noheader", "--parsable2",
		"--starttime=now-1days", "--format=JobIDRaw,State,Start,End,NodeList,Account,AllocTRES")
	require.NoError(s.t, err)
	var runs []soakRun
	hosts := make(map[string][]string)
	for _, row := range rows {
		id := uint32(number(s.t, row[0]))
		run := soakRun{soakJob: s.jobs[id], id: id, state: strings.Fields(row[1])[0]}
		if run.start, err = time.ParseInLocation("2006-01-02T15:04:05", row[2], time.Local); err != nil {
			continue // it never ran
		}
		if run.end, err = time.ParseInLocation("2006-01-02T15:04:05", row[3], time.Local); err != nil {
			run.end = time.Time{}
		}
		run.account, run.gpus = row[5], s.gpusOf(row[6])
		if _, known := hosts[row[4]]; !known {
			hosts[row[4]] = strings.Fields(s.exec("root", "scontrol", "show", "hostnames", row[4]))
		}
		run.nodes = hosts[row[4]]
		runs = append(runs, run)
	}
	slices.SortStableFunc(runs, func(x, y soakRun) int { return x.start.Compare(y.start) })
	return runs
}

// gpusOf are the GPUs of an AllocTRES.
func (s *soak) gpusOf(tres string) int {
	s.t.Helper()
	for each := range strings.SplitSeq(tres, ",") {
		if count, ok := strings.CutPrefix(each, "gres/gpu="); ok {
			return int(number(s.t, count))
		}
	}
	s.t.Fatalf("no GPUs in %q", tres)
	return 0
}

// occupied is the part of all GPU time of a stretch that runs had.
func occupied(runs []soakRun, from, until time.Time) float64 {
	var held time.Duration
	for _, r := range runs {
		start, end := r.start, r.end
		if end.IsZero() || end.After(until) {
			end = until
		}
		if start.Before(from) {
			start = from
		}
		if end.After(start) {
			held += time.Duration(r.gpus) * end.Sub(start)
		}
	}
	return held.Seconds() / (until.Sub(from).Seconds() * soakNodes * soakGPUs)
}

// preempted counts the runs that made way: those of allocated jobs under true.
func preempted(runs []soakRun) map[bool]int {
	count := make(map[bool]int)
	for i := range runs {
		if runs[i].evicted() {
			count[runs[i].allocated()]++
		}
	}
	return count
}
