// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
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
	soakNodes, soakGPUs = 4, 4
	soakFree            = "free" // the account that is due nothing
	soakRoom            = 3      // jobs of each account that wait at any time, at least
	soakKept            = "kept" // the reservation of the last node, for ann and bob
	soakPause           = 4 * time.Second
)

// soak is a cluster on which five accounts want more than there is.
type soak struct {
	*scenario
	random *rand.Rand
	jobs   map[uint32]soakJob // by what sbatch gave; of het jobs each component

	suspended uint32 // the job that is, or 0
	since     time.Time
}

// soakJob is what a job was submitted with.
type soakJob struct {
	account string
	gpus    int
	min     time.Duration
	nice    int
	paused  bool // it was suspended once
}

// allocated tells whether its run is charged and protected.
func (j soakJob) allocated() bool { return j.account != soakFree && j.min > 0 }

// TestSoak keeps a cluster busier than it can be, by random, and then reads in
// Slurm's accounting whether anybody's rights were broken.
func TestSoak(t *testing.T) {
	t.Parallel() // it mostly waits
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
	s.exec("root", "scontrol", "create", "reservation", "ReservationName="+soakKept, "StartTime=now", "Duration=120",
		fmt.Sprintf("Nodes=n%d", soakNodes), "Users="+ann+","+bob)
	s.first(accounts[len(accounts)-2], accounts[len(accounts)-1])
	for id := range s.jobs {
		s.waitState(id, "R")
	}
	began := time.Now()
	warm := began.Add(min(*soakFor/3, time.Minute))
	for time.Since(began) < *soakFor {
		s.topUp(accounts)
		if time.Now().After(warm) {
			s.suspendSome()
		}
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
	kinds := kindsOf(runs)
	t.Logf("among the runs are %v", kinds)
	t.Logf("%v: %d jobs, %d runs, %d of them preempted (%d allocated); occupancy %.2f%%",
		ended.Sub(began).Round(time.Second), len(s.jobs), len(runs), gone[true]+gone[false], gone[true], 100*occupancy)
	broken := judge.broken()
	for _, gpu := range judge.elsewhere {
		t.Logf("who may have asked began elsewhere: %s", gpu)
	}
	if len(broken)+len(judge.elsewhere) > 0 {
		t.Logf("the runs:\n%s", judge.table())
	}
	require.Empty(t, broken)
	require.LessOrEqual(t, len(judge.elsewhere), 2+gone[true]/20, "GPUs that another took than who they were freed for")
	least := 0.9
	if *soakFor >= 10*time.Minute {
		least = 0.98
	}
	require.GreaterOrEqual(t, occupancy, least)
	require.Positive(t, gone[false], "unallocated jobs that made way")
	require.Positive(t, gone[true], "allocated jobs that made way")
	for _, kind := range []string{"components that made way", "tasks that made way", "reserved that made way", "suspended"} {
		require.Positive(t, kinds[kind], kind)
	}
}

// topUp submits what is missing for each account to want more than there is, of the
// reserved node as well if it may.
func (s *soak) topUp(accounts []testcluster.Account) {
	type queue struct {
		account  string
		reserved bool
	}
	waiting, ready := make(map[queue]int), make(map[string]bool)
	for _, row := range s.rows("squeue", "--noheader", "--states=PENDING", "--format=%a|%v|%i|%r") {
		reserved := row[1] == soakKept
		waiting[queue{row[0], reserved}]++
		id, err := strconv.ParseUint(row[2], 10, 32) // not of arrays and het jobs
		if err == nil && !reserved && s.jobs[uint32(id)].gpus == 1 && row[3] != "BeginTime" {
			ready[row[0]] = true
		}
	}
	for _, a := range accounts {
		// Or all that wait may need two GPUs at once, or be held back after a requeue, and
		// nobody there is who could use one that is free.
		if !ready[a.Name] {
			s.submitOne(a, soakShape{})
		}
		for n := waiting[queue{a.Name, false}]; n < soakRoom; n++ {
			s.one(a)
		}
		if a.Users[0] == cem {
			continue
		}
		for n := waiting[queue{a.Name, true}]; n < soakRoom; n++ {
			s.submitOne(a, soakShape{reserved: true})
		}
	}
}

// soakShape is what kind of job one is; of a GPU if it says nothing.
type soakShape struct {
	gpus     int
	place    []string
	free     bool // asks for a minimum runtime of 0
	array    bool
	het      bool
	reserved bool
}

// one submits a job: mostly of one GPU, some of two, some of two nodes, some arrays; of
// the unallocated ones some are het jobs.
func (s *soak) one(a testcluster.Account) {
	var shape soakShape
	switch s.random.IntN(20) {
	case 0:
		shape = soakShape{gpus: 2, place: []string{"--nodes=2", "--gpus-per-node=1"}}
	case 1, 2:
		shape = soakShape{gpus: 2, place: []string{"--nodes=1", "--gpus-per-node=2"}}
	case 3:
		shape.free = true
	case 4, 5:
		shape.array = true
	case 6, 7, 8:
		shape.het, shape.free = true, true
	}
	if a.Name == soakFree {
		shape = soakShape{array: shape.array, het: shape.het}
	}
	s.submitOne(a, shape)
}

// submitOne submits a job of such a shape, for a random time.
func (s *soak) submitOne(a testcluster.Account, shape soakShape) {
	job := soakJob{account: a.Name, gpus: max(shape.gpus, 1), min: time.Duration(5+s.random.IntN(20)) * time.Second}
	lasts := 20 + s.random.IntN(40)
	if *soakFor >= 10*time.Minute {
		job.min, lasts = 2*job.min, 3*lasts
	}
	if a.Name == soakFree {
		lasts = 55
	}
	if a.Name == soakFree || shape.free {
		job.min = 0
	}
	if s.random.IntN(3) == 0 {
		job.nice = 100
	}
	if shape.het {
		s.submitHet(a, [2]soakJob{job, job}, lasts)
		return
	}
	place := shape.place
	if place == nil {
		place = []string{"--gpus=1"}
	}
	args := slices.Concat(commonArgs(a, job, lasts), place)
	if shape.reserved {
		args = append(args, "--reservation="+soakKept)
	}
	if shape.array {
		args = append(args, "--array=1-2")
	}
	args = append(args, fmt.Sprintf("--wrap=sleep %d", lasts))
	id, err := s.Sbatch(s.ctx, a.Users[0], args...)
	require.NoError(s.t, err)
	s.jobs[id] = job
}

// commonArgs are what sbatch is told of each job and component.
func commonArgs(a testcluster.Account, job soakJob, lasts int) []string {
	return []string{
		"--account=" + a.Name, fmt.Sprintf("--time=%d", lasts/60+1), minRuntime(job.min), fmt.Sprintf("--nice=%d", job.nice),
	}
}

// submitHet submits a het job of two components of a GPU.
func (s *soak) submitHet(a testcluster.Account, jobs [2]soakJob, lasts int, args ...string) {
	one := slices.Concat(commonArgs(a, jobs[0], lasts), []string{"--gpus=1"}, args)
	other := slices.Concat(commonArgs(a, jobs[1], lasts), []string{"--gpus=1"}, args)
	id, err := s.Sbatch(s.ctx, a.Users[0], slices.Concat(one, []string{":"}, other, []string{fmt.Sprintf("--wrap=sleep %d", lasts)})...)
	require.NoError(s.t, err)
	s.jobs[id], s.jobs[id+1] = jobs[0], jobs[1]
}

// first fills the cluster: a little by who is due little, and by who is due nothing all
// else, until somebody else comes.
func (s *soak) first(little, nothing testcluster.Account) {
	s.firstHet(little)
	left := (soakNodes-1)*soakGPUs - 2
	for _, shape := range []soakShape{{het: true}, {het: true}, {array: true}, {array: true}} {
		s.submitOne(nothing, shape)
		left -= 2
	}
	for range left {
		s.submitOne(nothing, soakShape{})
	}
	for range soakGPUs {
		s.submitOne(nothing, soakShape{reserved: true})
	}
}

// firstHet submits a het job with an unallocated component, and one that protects both.
// It can't be requeued: it is one to be evicted, and no request.
func (s *soak) firstHet(a testcluster.Account) {
	free := soakJob{account: a.Name, gpus: 1}
	protected := free
	protected.min = 25 * time.Second
	s.submitHet(a, [2]soakJob{free, protected}, 300, "--no-requeue")
}

// suspendSome suspends a job for a while, and then another: allocated ones that were
// suspended never, and are protected for longer than that.
func (s *soak) suspendSome() {
	if s.suspended != 0 {
		if time.Since(s.since) < soakPause {
			return
		}
		if s.state(s.suspended) == "S" { // else it was evicted, which is judged
			s.exec("root", "scontrol", "resume", number0(s.suspended))
		}
		s.suspended = 0
		return
	}
	for _, row := range s.rows("squeue", "--noheader", "--states=RUNNING", "--format=%A|%i|%M") {
		id := uint32(number(s.t, row[0]))
		job, known := s.jobs[id]
		if !known || row[0] != row[1] || !job.allocated() || job.min < 10*time.Second || job.paused || len(row[2]) != len("0:00") || row[2] > "0:02" {
			continue // or an array or a het job, or it runs for long
		}
		s.exec("root", "scontrol", "suspend", row[0])
		job.paused = true
		s.jobs[id] = job
		s.suspended, s.since = id, time.Now()
		return
	}
}

// accounted are all runs by sacct, the oldest first. It doesn't know what minimum
// runtime and nice a job has: that is what it was submitted with.
func (s *soak) accounted() []soakRun {
	s.t.Helper()
	rows, err := s.Rows(s.ctx, "root", "sacct", "--allusers", "--duplicates", "--allocations", "--noheader", "--parsable2",
		"--starttime=now-1days", "--format=JobIDRaw,State,Start,End,NodeList,Account,AllocTRES,JobID,Reservation,Suspended")
	require.NoError(s.t, err)
	var runs []soakRun
	hosts := make(map[string][]string)
	for _, row := range rows {
		id := uint32(number(s.t, row[0]))
		run := soakRun{id: id, state: strings.Fields(row[1])[0], reservation: row[8]}
		if run.start, err = time.ParseInLocation("2006-01-02T15:04:05", row[2], time.Local); err != nil {
			continue // it never ran
		}
		if run.end, err = time.ParseInLocation("2006-01-02T15:04:05", row[3], time.Local); err != nil {
			run.end = time.Time{}
		}
		of := id
		if array, _, ok := strings.Cut(row[7], "_"); ok {
			of, run.array = uint32(number(s.t, array)), true
		}
		if het, _, ok := strings.Cut(row[7], "+"); ok {
			run.het = uint32(number(s.t, het))
		}
		run.soakJob = s.jobs[of]
		run.account, run.gpus = row[5], s.gpusOf(row[6])
		suspended, err := time.Parse("15:04:05", row[9])
		require.NoError(s.t, err)
		run.suspended = suspended.Sub(suspended.Truncate(24 * time.Hour))
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

// occupied is the part of all GPU time of a stretch that runs had. What suspended jobs
// hold nobody can use, and so it is no part of either; nobody is suspended before it.
func occupied(runs []soakRun, from, until time.Time) float64 {
	var held, suspended time.Duration
	for _, r := range runs {
		start, end := r.start, r.end
		if end.IsZero() || end.After(until) {
			end = until
		}
		if start.Before(from) {
			start = from
		}
		if end.After(start) {
			held += time.Duration(r.gpus) * (end.Sub(start) - r.suspended)
			suspended += time.Duration(r.gpus) * r.suspended
		}
	}
	return held.Seconds() / (until.Sub(from).Seconds()*soakNodes*soakGPUs - suspended.Seconds())
}

// kindsOf counts the runs of arrays, het jobs and the reservation, and those that were suspended.
func kindsOf(runs []soakRun) map[string]int {
	count := make(map[string]int)
	for i := range runs {
		r := &runs[i]
		gone := ""
		if r.evicted() {
			gone = " that made way"
		}
		switch {
		case r.het != 0:
			count["components"+gone]++
		case r.array:
			count["tasks"+gone]++
		case r.reservation != "":
			count["reserved"+gone]++
		}
		if r.suspended > 0 {
			count["suspended"+gone]++
		}
	}
	return count
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
