// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/testcluster"
)

const (
	window = 15 * time.Second // the protected window of most jobs here
	// usual is how much later than it could something happens, more often than not: two
	// scheduling cycles (bf_interval=1) and the time that an evicted job has to end
	// (KillWait=2), with a second for Slurm's commands.
	usual = (2*1 + 2 + 1) * time.Second
	// slack is how much later it may happen for once: this machine has other work.
	slack = 15 * time.Second
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

// prompt checks that of some waits the usual one is short, and none is long.
func (s *scenario) prompt(what string, waits []time.Duration) {
	s.t.Helper()
	slices.Sort(waits)
	s.t.Logf("%s after %v", what, waits)
	require.LessOrEqual(s.t, waits[len(waits)/2], usual, "the median")
	require.Less(s.t, waits[len(waits)-1], slack)
}

// onceMore is the work of a job that runs until it is evicted, and is done with as it
// runs anew.
const onceMore = "[ ${SLURM_RESTART_COUNT:-0} -gt 0 ] || sleep 600"

// evictable submits a job that does this.
func (s *scenario) evictable(user, account string, args ...string) uint32 {
	s.t.Helper()
	id, err := s.Sbatch(s.ctx, user, append(append([]string{"--account=" + account}, args...), "--wrap="+onceMore)...)
	require.NoError(s.t, err)
	return id
}

// waitAnew waits for something of a job that was requeued. The backfill scheduler looks
// at who may run again when anything has changed: on a cluster as quiet as this that can
// take a minute, so something does.
func (s *scenario) waitAnew(what string, done func() bool) {
	s.t.Helper()
	s.wait(what, func() bool {
		if done() {
			return true
		}
		s.exec("root", "scontrol", "update", "PartitionName=gpu", "State=UP")
		return false
	})
}

// ranAnew waits until a job was requeued once, ran again, and was done.
func (s *scenario) ranAnew(ids ...uint32) {
	s.t.Helper()
	for _, id := range ids {
		s.waitAnew(fmt.Sprintf("job %d to have run again", id), func() bool { return s.show(id, "JobState") == "COMPLETED" })
	}
	require.Equal(s.t, ids, s.restarted(ids...))
	for _, id := range ids {
		require.Equal(s.t, "1", s.show(id, "Restarts"))
	}
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
	sent := writable(t, "mail")
	s := contractCluster(t, func(o *testcluster.Options) { o.SlurmConf = append(o.SlurmConf, "MailProg="+mailProg(t, sent)) })
	t.Run("newcomers start as protected windows end, one after the other", func(t *testing.T) { s.on(t).newcomer() })
	t.Run("unallocated jobs vanish for funded work", func(t *testing.T) { s.on(t).filler() })
	t.Run("debug jobs start at once", func(t *testing.T) { s.on(t).debug() })
	t.Run("a higher declared priority of the same account", func(t *testing.T) { s.on(t).declared() })
	t.Run("of a mix the unallocated job makes way", func(t *testing.T) { s.on(t).mixed() })
	t.Run("a task of an array makes way", func(t *testing.T) { s.on(t).array() })
	t.Run("each task of an array may have one evicted", func(t *testing.T) { s.on(t).arrayRequest() })
	t.Run("het jobs make way as a whole", func(t *testing.T) { s.on(t).het() })
	t.Run("the longest protection of a het job counts", func(t *testing.T) { s.on(t).hetProtected() })
	t.Run("jobs of several nodes", func(t *testing.T) { s.on(t).nodes() })
	t.Run("suspended jobs", func(t *testing.T) { s.on(t).suspended() })
	t.Run("reservations", func(t *testing.T) { s.on(t).reservation() })
	t.Run("who can't be requeued is cancelled", func(t *testing.T) { s.on(t).cancelled() })
	t.Run("who asked for a mail gets one", func(t *testing.T) { s.on(t).mailed(sent) })
	t.Run("a day's limit holds after a restart", func(t *testing.T) { s.on(t).limited() })
}

// newcomer: the cluster is full of allocated jobs of an account that had more
// than it is due. Of five of them the windows end one after the other, and a newcomer
// starts at each end.
func (s *scenario) newcomer() {
	const newcomers, apart = 5, 2 * time.Second
	var victims, rest []uint32
	windows := make(map[uint32]time.Duration)
	for i := range newcomers {
		w := window + time.Duration(i)*apart
		id := s.evictable(bob, "over", "--gpus=1", minRuntime(w))
		victims, windows[id] = append(victims, id), w
	}
	for range 8 - newcomers {
		rest = append(rest, s.submit(bob, "over", 600, "--gpus=1", minRuntime(10*time.Minute)))
	}
	for _, id := range slices.Concat(victims, rest) {
		s.waitState(id, "R")
	}
	var ends []time.Time // of windows
	for _, id := range victims {
		ends = append(ends, s.start(id).Add(windows[id]))
	}
	var requests []uint32
	for range newcomers {
		requests = append(requests, s.submit(ann, "due", 600, "--gpus=1", minRuntime(window)))
	}
	var starts []time.Time
	for _, id := range requests {
		s.waitRuns(id)
		starts = append(starts, s.start(id))
	}
	slices.SortFunc(ends, time.Time.Compare)
	slices.SortFunc(starts, time.Time.Compare)
	var late []time.Duration
	for i, at := range starts {
		late = append(late, at.Sub(ends[i]))
		require.GreaterOrEqual(s.t, late[i], time.Duration(0), "protected")
	}
	s.prompt("newcomers ran", late)
	require.Equal(s.t, victims, s.restarted(slices.Concat(victims, rest)...))
	for _, id := range requests {
		s.exec("root", "scancel", number0(id))
	}
	s.ranAnew(victims...)
}

// filler: free jobs keep all GPUs busy, and are gone in seconds.
func (s *scenario) filler() {
	free := s.fill(cem, "none", 600, "--min-runtime=0")
	var waits []time.Duration
	for evicted := 2; evicted <= 6; evicted += 2 {
		began := time.Now()
		s.waitRuns(s.submit(ann, "due", 600, "--gpus=2", minRuntime(window)))
		waits = append(waits, time.Since(began).Round(100*time.Millisecond))
		require.Len(s.t, s.restarted(free...), evicted)
	}
	s.prompt("funded work ran", waits)
}

// running counts the tasks of an array that run.
func (s *scenario) running(id uint32) int {
	s.t.Helper()
	return len(s.rows("squeue", "--noheader", "--array", "--states=RUNNING", "--format=%A|%t", "--jobs="+number0(id)))
}

func (s *scenario) waitRuns(id uint32) {
	s.t.Helper()
	s.wait(fmt.Sprintf("job %d to run", id), func() bool { return !s.start(id).IsZero() })
}

// stays checks that nothing happens to a job for a while.
func (s *scenario) stays(id uint32, state string, d time.Duration) {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < d; time.Sleep(500 * time.Millisecond) {
		require.Equal(s.t, state, s.state(id))
	}
}

// debug: small jobs with short windows, one after the other, on a cluster full of
// jobs that had their windows.
func (s *scenario) debug() {
	const debugs = 10
	jobs := s.fill(bob, "over", 600, minRuntime(time.Second))
	for range debugs { // those that take over what a debug job leaves
		jobs = append(jobs, s.submit(bob, "over", 600, "--gpus=1", minRuntime(time.Second)))
	}
	time.Sleep(3 * time.Second)
	var waits []time.Duration
	for range debugs {
		s.wait("no GPU to be free", func() bool {
			return len(s.rows("squeue", "--noheader", "--states=RUNNING", "--account=over", "--format=%A")) == 8
		})
		began := time.Now()
		id := s.submit(ann, "due", 600, "--gpus=1", "--time=10", minRuntime(20*time.Second))
		s.waitRuns(id)
		waits = append(waits, time.Since(began).Round(100*time.Millisecond))
		s.exec("root", "scancel", number0(id))
	}
	evicted := 0
	for _, id := range jobs {
		evicted += int(number(s.t, s.show(id, "Restarts")))
	}
	require.Equal(s.t, debugs, evicted, "each had one job evicted")
	s.prompt("debug jobs ran", waits)
}

// declared: within an account a job makes way for a lower nice or a higher QOS, not
// for its equal (R4).
func (s *scenario) declared() {
	jobs := s.fill(bob, "over", 600, minRuntime(2*time.Second), "--nice=100")
	time.Sleep(3 * time.Second)
	equal := s.submit(bob, "over", 600, "--gpus=1", "--nice=100", minRuntime(window))
	s.stays(equal, "PD", 4*time.Second)
	require.Empty(s.t, s.restarted(jobs...))
	s.waitRuns(s.submit(bob, "over", 600, "--gpus=1", "--nice=50", minRuntime(window)))
	require.Len(s.t, s.restarted(jobs...), 1)
	s.waitRuns(s.submit(bob, "over", 600, "--gpus=1", "--nice=200", "--qos=high", minRuntime(window)))
	require.Len(s.t, s.restarted(jobs...), 2)
	require.Equal(s.t, "PD", s.state(equal))
}

// mixed: of jobs that all would make way the unallocated one does (R6).
func (s *scenario) mixed() {
	free := s.submit(cem, "none", 600, "--gpus=1", "--min-runtime=0")
	s.waitState(free, "R")
	var jobs []uint32
	for range 7 {
		jobs = append(jobs, s.submit(bob, "over", 600, "--gpus=1", minRuntime(time.Second)))
	}
	for _, id := range jobs {
		s.waitState(id, "R")
	}
	time.Sleep(3 * time.Second)
	s.waitRuns(s.submit(ann, "due", 600, "--gpus=1", minRuntime(5*time.Second)))
	require.Equal(s.t, "1", s.show(free, "Restarts"))
	require.Empty(s.t, s.restarted(jobs...))
	// They would have, had it not been there.
	s.waitRuns(s.submit(ann, "due", 600, "--gpus=1", minRuntime(5*time.Second)))
	require.Len(s.t, s.restarted(jobs...), 1)
}

// tasks are the jobs that the tasks of an array are.
func (s *scenario) tasks(array uint32) (ids []uint32) {
	s.t.Helper()
	for _, row := range s.rows("squeue", "--noheader", "--array", "--format=%A", "--jobs="+number0(array)) {
		ids = append(ids, uint32(number(s.t, row[0])))
	}
	return ids
}

// array: a task makes way alone, and runs again.
func (s *scenario) array() {
	id := s.evictable(cem, "none", "--gpus=1", "--array=1-8", "--min-runtime=0")
	s.wait("all tasks to run", func() bool { return s.running(id) == 8 })
	tasks := s.tasks(id)
	require.Len(s.t, tasks, 8)
	request := s.submit(ann, "due", 600, "--gpus=1", minRuntime(window))
	s.waitRuns(request)
	require.Equal(s.t, 7, s.running(id))
	gone := s.restartedTasks(tasks)
	require.Len(s.t, gone, 1)
	s.exec("root", "scancel", number0(request))
	s.waitAnew("the task to have run again", func() bool { return s.task(gone[0], "JobState") == "COMPLETED" })
	require.Equal(s.t, gone, s.restartedTasks(tasks))
	require.Equal(s.t, 7, s.running(id))
}

// arrayRequest: each task of an array may have others evicted, as many as R7 allows for it.
func (s *scenario) arrayRequest() {
	const tasks = 5
	jobs := s.fill(bob, "over", 600, minRuntime(time.Second))
	time.Sleep(3 * time.Second)
	id := s.submit(ann, "due", 600, "--gpus=1", fmt.Sprintf("--array=1-%d", tasks), minRuntime(window))
	s.wait("all tasks to run", func() bool { return s.running(id) == tasks })
	require.Len(s.t, s.restarted(jobs...), tasks)
	for _, job := range s.restarted(jobs...) {
		require.Equal(s.t, "1", s.show(job, "Restarts"))
	}
}

// task is a field of a task of an array by the number that it has as a job.
func (s *scenario) task(id uint32, field string) string {
	s.t.Helper()
	// That of one of the tasks is that of the array as well: then all are shown.
	for line := range strings.Lines(s.exec("root", "scontrol", "--oneliner", "show", "job", number0(id))) {
		words := strings.Fields(line)
		if !slices.Contains(words, "JobId="+number0(id)) {
			continue
		}
		for _, word := range words {
			if value, ok := strings.CutPrefix(word, field+"="); ok {
				return value
			}
		}
	}
	s.t.Fatalf("task %d has no %s", id, field)
	return ""
}

func (s *scenario) restartedTasks(ids []uint32) (found []uint32) {
	s.t.Helper()
	for _, id := range ids {
		if s.task(id, "Restarts") != "0" {
			found = append(found, id)
		}
	}
	return found
}

// hetComponent is a component of a het job, for the nodes and GPUs that args say.
type hetComponent struct {
	protected time.Duration
	args      []string
}

// hetJob submits one and waits until all its components run; they have the numbers
// from its own on.
func (s *scenario) hetJob(user, account string, components ...hetComponent) (ids []uint32) {
	s.t.Helper()
	var args []string
	for i, c := range components {
		if i > 0 {
			args = append(args, ":")
		}
		args = append(append(args, "--account="+account, minRuntime(c.protected)), c.args...)
	}
	id, err := s.Sbatch(s.ctx, user, append(args, "--wrap=sleep 600")...)
	require.NoError(s.t, err)
	for i := range components {
		ids = append(ids, id+uint32(i))
	}
	s.allRun(ids)
	return ids
}

func (s *scenario) allRun(ids []uint32) {
	s.t.Helper()
	for _, id := range ids {
		s.waitState(id, "R")
	}
}

// allRequeued checks that all components of a het job have been requeued, once and
// together, and are none the worse for it.
func (s *scenario) allRequeued(ids []uint32) {
	s.t.Helper()
	for _, id := range ids {
		s.wait(fmt.Sprintf("component %d to wait again", id), func() bool { return s.state(id) == "PD" })
		require.Equal(s.t, "1", s.show(id, "Restarts"))
	}
}

func onNode(node string, gpus int) []string {
	return []string{"--nodes=1", "--nodelist=" + node, fmt.Sprintf("--gpus-per-node=%d", gpus)}
}

// het: an unallocated het job makes way with all its components, whichever of them is
// in the way, and all run again.
func (s *scenario) het() {
	job := s.hetJob(cem, "none", hetComponent{args: onNode("n1", 1)}, hetComponent{args: onNode("n2", 4)})
	other := s.submit(bob, "over", 600, append(onNode("n1", 3), minRuntime(10*time.Minute))...)
	s.waitState(other, "R")
	for _, node := range []string{"n1", "n2"} {
		restarts := number(s.t, s.show(job[0], "Restarts"))
		request := s.submit(ann, "due", 600, append(onNode(node, 1), minRuntime(window))...)
		s.waitRuns(request)
		for _, id := range job {
			s.wait(fmt.Sprintf("component %d to wait again", id), func() bool { return s.state(id) == "PD" })
			require.Equal(s.t, restarts+1, number(s.t, s.show(id, "Restarts")))
		}
		s.exec("root", "scancel", number0(request))
		s.waitAnew("the het job to run again", func() bool { return s.state(job[0]) == "R" })
		s.allRun(job)
	}
	require.Equal(s.t, "R", s.state(other))
}

// hetProtected: of the components of an allocated het job the protection that lasts
// longest counts, on whichever node it is: the request is for GPUs of the other. The
// first job has it in its leader, the second in the other component.
func (s *scenario) hetProtected() {
	const short, long = time.Second, 12 * time.Second
	first := s.hetJob(bob, "over", hetComponent{long, onNode("n1", 1)}, hetComponent{short, onNode("n2", 2)})
	second := s.hetJob(bob, "over", hetComponent{short, onNode("n1", 2)}, hetComponent{long, onNode("n2", 1)})
	var others []uint32
	for _, node := range []string{"n1", "n2"} {
		others = append(others, s.submit(bob, "over", 600, append(onNode(node, 1), minRuntime(10*time.Minute))...))
	}
	s.allRun(others)
	ends := [][2]time.Time{{}, {}}
	for i, job := range [][]uint32{first, second} {
		ends[i] = [2]time.Time{s.start(job[i]).Add(long), s.start(job[i]).Add(long + slack)}
	}
	requests := []uint32{
		s.submit(ann, "due", 600, append(onNode("n2", 2), minRuntime(window))...),
		s.submit(ann, "due", 600, append(onNode("n1", 2), minRuntime(window))...),
	}
	for i, id := range requests {
		s.waitRuns(id)
		require.False(s.t, s.start(id).Before(ends[i][0]), "job %d began at %v, and the protection lasted until %v", id, s.start(id), ends[i][0])
		require.True(s.t, s.start(id).Before(ends[i][1]), "job %d began at %v", id, s.start(id))
	}
	s.allRequeued(slices.Concat(first, second))
	require.Empty(s.t, s.restarted(others...))
}

func (s *scenario) nodes() {
	wide := s.submit(bob, "over", 600, "--nodes=2", "--gpus-per-node=4", minRuntime(2*time.Second))
	s.waitState(wide, "R")
	small := s.submit(ann, "due", 600, "--gpus=1", "--nice=1000", minRuntime(window))
	s.stays(small, "PD", 6*time.Second) // R7: 8 GPUs for one
	require.Equal(s.t, "R", s.state(wide))
	large := s.submit(ann, "due", 600, "--nodes=2", "--gpus-per-node=3", minRuntime(window))
	s.waitRuns(large)
	require.NotEqual(s.t, "R", s.state(wide))
	s.waitRuns(small)
}

// suspended: while it is, the minimum runtime doesn't pass; after it, what was left of it does.
func (s *scenario) suspended() {
	const protected = 8 * time.Second
	id := s.submit(bob, "over", 600, "--nodes=2", "--gpus-per-node=4", minRuntime(protected))
	s.waitState(id, "R")
	s.exec("root", "scontrol", "suspend", number0(id))
	ran := time.Duration(number(s.t, s.show(id, "SecsPreSuspend"))) * time.Second
	require.Less(s.t, ran, protected-2*time.Second, "the machine is too slow for this test")
	request := s.submit(ann, "due", 600, "--nodes=2", "--gpus-per-node=4", minRuntime(window))
	s.stays(request, "PD", protected+2*time.Second)
	require.Equal(s.t, "S", s.state(id))
	resumed := time.Now().Truncate(time.Second) // as Slurm has it
	s.exec("root", "scontrol", "resume", number0(id))
	s.waitRuns(request)
	waited := s.start(request).Sub(resumed)
	s.t.Logf("it ran for %v before, and %v after it went on the request began", ran, waited)
	require.GreaterOrEqual(s.t, waited, protected-ran)
	require.Less(s.t, waited, protected-ran+slack)
	require.Equal(s.t, "1", s.show(id, "Restarts"))
}

// reservation: who runs in one makes way for requests of the same only.
func (s *scenario) reservation() {
	s.exec("root", "scontrol", "create", "reservation", "ReservationName=kept", "StartTime=now", "Duration=60", "Nodes=n1", "Users="+ann+","+cem)
	defer func() {
		require.NoError(s.t, s.CancelAll(s.ctx))
		s.exec("root", "scontrol", "delete", "ReservationName=kept")
	}()
	within := s.submit(cem, "none", 600, "--reservation=kept", "--gpus-per-node=4", "--nodes=1", "--min-runtime=0")
	without := s.submit(cem, "none", 600, "--gpus-per-node=4", "--nodes=1", "--min-runtime=0")
	s.waitState(within, "R")
	s.waitState(without, "R")
	s.waitRuns(s.submit(ann, "due", 600, "--nodes=1", "--gpus-per-node=4", minRuntime(window)))
	require.Equal(s.t, "R", s.state(within))
	require.NotEqual(s.t, "R", s.state(without))
	s.waitRuns(s.submit(ann, "due", 600, "--reservation=kept", "--nodes=1", "--gpus-per-node=2", minRuntime(window)))
	require.NotEqual(s.t, "R", s.state(within))
}

func (s *scenario) cancelled() {
	ids := s.fill(cem, "none", 600, "--no-requeue", "--min-runtime=0")
	s.waitRuns(s.submit(ann, "due", 600, "--gpus=1", minRuntime(window)))
	gone := 0
	for _, id := range ids {
		if s.show(id, "JobState") == "PREEMPTED" {
			gone++
		}
	}
	require.Equal(s.t, 1, gone)
}

// mailProg is a MailProg of Slurm that notes what it is told in a file.
func mailProg(t *testing.T, file string) string {
	t.Helper()
	script := file + ".sh"
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\necho \"$*\" >>"+file+"\n"), 0o755))
	require.NoError(t, os.Chmod(script, 0o755)) // whatever the umask
	return script
}

// mailed: of a preempted job its owner gets a mail by --mail-type=REQUEUE if it is
// requeued, and by FAIL if it is cancelled; not by another type.
func (s *scenario) mailed(file string) {
	var types []string
	jobs := make(map[string]uint32)
	for _, requeue := range []string{"--requeue", "--no-requeue"} {
		for _, kind := range []string{"END", "FAIL", "REQUEUE"} {
			name := kind + requeue
			types = append(types, name)
			jobs[name] = s.submit(cem, "none", 600, "--gpus=1", "--min-runtime=0", requeue, "--mail-type="+kind, "--mail-user="+cem, "--job-name="+name)
		}
	}
	for _, id := range jobs {
		s.waitState(id, "R")
	}
	s.waitRuns(s.submit(ann, "due", 600, "--gpus-per-node=4", "--nodes=2", minRuntime(window)))
	told := func(name string) bool {
		text, err := os.ReadFile(file)
		require.NoError(s.t, err)
		return slices.ContainsFunc(strings.Split(string(text), "\n"), func(line string) bool {
			return strings.Contains(line, "Job_id="+number0(jobs[name])+" ") && strings.HasSuffix(line, " "+cem)
		})
	}
	due := []string{"REQUEUE--requeue", "FAIL--no-requeue"}
	for _, name := range due {
		s.wait("the mail of "+name, func() bool { return told(name) })
	}
	time.Sleep(2 * time.Second) // for more
	for _, name := range types {
		require.Equal(s.t, slices.Contains(due, name), told(name), name)
	}
	text, err := os.ReadFile(file)
	require.NoError(s.t, err)
	s.t.Logf("mails:\n%s", text)
}

// limited: once a day is enough (R7), and a slurmctld that was restarted knows of it.
func (s *scenario) limited() {
	s.exec("root", "gpubudget", "-Q", "policy", "set", "preempt_per_day", "1")
	whole := func(user, account, node string, seconds int, protected time.Duration) uint32 {
		return s.submit(user, account, seconds, "--gpus-per-node=4", "--nodes=1", "--nodelist="+node, minRuntime(protected))
	}
	once, never := whole(bob, "over", "n1", 600, time.Second), whole(bob, "over", "n2", 600, time.Second)
	s.waitState(once, "R")
	s.waitState(never, "R")
	s.waitRuns(whole(ann, "due", "n1", 1, time.Second))
	s.waitAnew("the job to run again", func() bool { return s.show(once, "Restarts") == "1" && s.state(once) == "R" })
	again := s.start(once)
	require.NoError(s.t, s.RestartSlurmctld(s.ctx))
	time.Sleep(time.Until(again.Add(3 * time.Second))) // its minimum runtime is over

	waits := whole(ann, "due", "n1", 600, window)
	s.waitRuns(whole(ann, "due", "n2", 600, window))
	s.stays(waits, "PD", 4*time.Second)
	require.Equal(s.t, again, s.start(once), "its run goes on")
}

// slurmConf changes slurm.conf, each line that begins with a key of lines.
func (s *scenario) slurmConf(lines ...string) (restore func()) {
	s.t.Helper()
	before, err := os.ReadFile(s.SlurmConf())
	require.NoError(s.t, err)
	var text []string
	for line := range strings.Lines(string(before)) {
		for _, change := range lines {
			if key, _, _ := strings.Cut(change, "="); strings.HasPrefix(line, key+"=") {
				line = change + "\n"
			}
		}
		text = append(text, line)
	}
	require.NoError(s.t, os.WriteFile(s.SlurmConf(), []byte(strings.Join(text, "")), 0o600))
	return func() { require.NoError(s.t, os.WriteFile(s.SlurmConf(), before, 0o600)) }
}

func (s *scenario) says(from int, text string) {
	s.t.Helper()
	s.wait("slurmctld to say "+text, func() bool { return len(s.logLines(from, text)) > 0 })
}

// startWith starts slurmctld with other lines of slurm.conf. As the test ends it runs as
// before. The error says that it didn't start.
func (s *scenario) startWith(lines ...string) error {
	s.t.Helper()
	require.NoError(s.t, s.StopSlurmctld())
	restore := s.slurmConf(lines...)
	s.t.Cleanup(func() {
		restore()
		if s.SlurmctldPID() != 0 {
			require.NoError(s.t, s.StopSlurmctld())
		}
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		require.NoError(s.t, s.StartSlurmctld(ctx))
	})
	return s.StartSlurmctld(s.ctx)
}

// What can't work says so, and why.
func TestPreemptionWhereItCannotWork(t *testing.T) {
	s := contractCluster(t, nil)

	t.Run("PreemptMode=OFF", func(t *testing.T) {
		s := s.on(t)
		from := s.logLength()
		require.NoError(t, s.startWith("PreemptMode=OFF"))
		s.says(from, "error: gpubudget: PreemptType=preempt/gpubudget with PreemptMode=OFF: nobody is ever preempted")
		s.fill(cem, "none", 600, "--min-runtime=0")
		id := s.submit(ann, "due", 600, "--gpus=1", minRuntime(window))
		s.stays(id, "PD", 5*time.Second)
	})
	t.Run("PreemptMode=SUSPEND", func(t *testing.T) {
		s := s.on(t)
		from := s.logLength()
		require.NoError(t, s.startWith("PreemptMode=SUSPEND,GANG"))
		s.says(from, "error: gpubudget: PreemptType=preempt/gpubudget with PreemptMode=SUSPEND: suspended jobs keep their GPUs, so jobs are requeued instead")
		free := s.fill(cem, "none", 600, "--min-runtime=0")
		s.waitRuns(s.submit(ann, "due", 600, "--gpus=1", minRuntime(window)))
		require.Len(t, s.restarted(free...), 1)
	})
	t.Run("PreemptMode of a cluster that runs", func(t *testing.T) { s.on(t).modes() })
	t.Run("another priority plugin", func(t *testing.T) {
		s := s.on(t)
		from := s.logLength()
		require.ErrorContains(t, s.startWith("PriorityType=priority/multifactor"), "slurmctld ended while starting")
		s.says(from, "set PriorityType=priority/gpubudget, or another PreemptType")
	})
	t.Run("no Go library", func(t *testing.T) {
		s := s.on(t)
		library := filepath.Join(s.Dir(), "plugins", "libgpubudget.so")
		require.NoError(t, os.Rename(library, library+".away"))
		from := s.logLength()
		err := s.startWith("ClusterName=gpub") // as it is
		require.NoError(t, os.Rename(library+".away", library))
		require.ErrorContains(t, err, "slurmctld ended while starting")
		s.says(from, library+" cannot be read (No such file or directory): install libgpubudget.so beside preempt_gpubudget.so")
	})
}

// modes: what slurm.conf or a partition says anew counts at once, and OFF is told of
// though Slurm doesn't load the plugin again. With CANCEL nobody is requeued.
func (s *scenario) modes() {
	reread := func(mode string) {
		s.t.Helper()
		s.slurmConf("PreemptMode=" + mode)
		s.exec("root", "scontrol", "reconfigure")
	}
	free := s.fill(cem, "none", 600, "--min-runtime=0", "--requeue")
	restore := s.slurmConf()
	defer func() {
		restore()
		s.exec("root", "scontrol", "reconfigure")
	}()
	from := s.logLength()
	reread("OFF")
	first := s.submit(ann, "due", 600, "--gpus=1", minRuntime(window))
	s.says(from, "error: gpubudget: PreemptType=preempt/gpubudget with PreemptMode=OFF: nobody is ever preempted")
	s.stays(first, "PD", 3*time.Second)
	require.Len(s.t, s.logLines(from, "with PreemptMode=OFF"), 1, "once")
	reread("CANCEL")
	s.waitRuns(first)
	ended := func() (ids []uint32) {
		for _, id := range free {
			if s.show(id, "JobState") == "PREEMPTED" {
				ids = append(ids, id)
			}
		}
		return ids
	}
	require.Len(s.t, ended(), 1)
	require.Empty(s.t, s.restarted(free...))

	s.exec("root", "scontrol", "update", "PartitionName=gpu", "PreemptMode=OFF")
	second := s.submit(ann, "due", 600, "--gpus=1", minRuntime(window))
	s.stays(second, "PD", 3*time.Second)
	s.exec("root", "scontrol", "update", "PartitionName=gpu", "PreemptMode=REQUEUE")
	s.waitRuns(second)
	require.Len(s.t, ended(), 1)
	require.Len(s.t, s.restarted(free...), 1, "the partition's counts")
}
