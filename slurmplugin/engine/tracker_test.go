// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// lab is a tracker alone, with a cluster to look at.
type lab struct {
	*tracker
	slurm *slurm
	runs  map[runKey]spoolRun // the latest state handed over of each
}

func newLab() *lab {
	d := newDemand(time.Hour)
	return &lab{tracker: newTracker("titan", newOwners(d), d), slurm: newSlurm(begin), runs: make(map[runKey]spoolRun)}
}

func (l *lab) instant() fairshare.Instant { return fairshare.Instant(l.slurm.now * 1000) }

// look is a pass, d seconds after the one before.
func (l *lab) look(d int64, jobs ...Job) {
	l.slurm.now += d
	l.begin(l.instant(), fairshare.Holding{GPUs: 32})
	for i := range jobs {
		l.observe(&jobs[i])
	}
	l.end()
	l.collect()
}

// lookAll is a pass that sees all there is.
func (l *lab) lookAll(d int64) {
	l.slurm.now += d
	l.look(0, l.slurm.list()...)
}

func (l *lab) collect() {
	for _, rec := range l.take() {
		if rec.Run != nil {
			l.runs[rec.Run.key()] = *rec.Run
		}
	}
}

// told is what was handed over, a line for each run: job and restart, GPUs, from
// when to when in seconds since the lab's beginning, suspended seconds, state.
func (l *lab) told() []string {
	keys := slices.SortedFunc(maps.Keys(l.runs), func(x, y runKey) int {
		return cmp.Or(cmp.Compare(x.job, y.job), cmp.Compare(x.start, y.start))
	})
	var lines []string
	for _, key := range keys {
		r, end := l.runs[key], "open"
		if r.End != nil {
			end = strconv.FormatInt(*r.End-begin.Unix(), 10)
		}
		lines = append(lines, fmt.Sprintf("%d.%d %d GPUs %d-%s -%d %s",
			r.JobID, r.Restart, r.GPUs, r.Start-begin.Unix(), end, r.Suspended, r.EndState))
	}
	return lines
}

func (l *lab) startJob(gpus uint64) *simJob {
	j := l.slurm.submit("physics", "alice", 1, gpus)
	l.lookAll(10)
	l.slurm.start(j)
	return j
}

func TestARunIsFollowedFromStartToEnd(t *testing.T) {
	l := newLab()
	j := l.startJob(4)
	l.lookAll(5)
	require.Equal(t, []string{"100.0 4 GPUs 10-open -0 "}, l.told())
	l.slurm.now += 3
	l.slurm.complete(j, Timeout)
	l.lookAll(2)
	require.Equal(t, []string{"100.0 4 GPUs 10-18 -0 TIMEOUT"}, l.told())
	require.Empty(t, l.take(), "nothing is told twice")
}

func TestARunNobodySawRunIsFoundWhenItHasEnded(t *testing.T) {
	l := newLab()
	j := l.startJob(4)
	l.slurm.now += 3
	l.slurm.complete(j, Complete)
	l.lookAll(60)
	require.Equal(t, []string{"100.0 4 GPUs 10-13 -0 COMPLETED"}, l.told())
}

func TestAJobWithoutGPUsIsNoRun(t *testing.T) {
	l := newLab()
	l.startJob(0)
	l.lookAll(5)
	require.Empty(t, l.told())
	require.Equal(t, []usage.Queue{{Account: "physics", User: "alice", RunningJobs: 1}}, l.owners.queue())
}

func TestAJobCancelledWhileItPendsIsNoRun(t *testing.T) {
	l := newLab()
	j := l.slurm.submit("physics", "alice", 1, 4)
	l.lookAll(5)
	shown := l.slurm.show(j)
	shown.State, shown.Start, shown.End = Cancelled, 0, 0
	l.look(5, shown)
	require.Empty(t, l.told())
}

func TestARequeueEndsARun(t *testing.T) {
	for _, tc := range []struct {
		name string
		play func(*lab, *simJob)
		want string
	}{
		{"seen while its nodes are cleaned up", func(l *lab, j *simJob) {
			l.slurm.requeue(j)
			l.lookAll(1)
			l.slurm.clean(j)
			l.lookAll(1)
		}, "100.0 4 GPUs 10-20 -0 REQUEUED"},
		{"seen when it pends again", func(l *lab, j *simJob) {
			l.slurm.requeue(j)
			l.slurm.now += 7
			l.slurm.clean(j)
			l.lookAll(1)
		}, "100.0 4 GPUs 10-20 -0 REQUEUED"},
		{"when Slurm has forgotten: its new submit time", func(l *lab, j *simJob) {
			l.slurm.requeue(j)
			l.slurm.now += 2
			l.slurm.clean(j)
			j.lastEnd = 0
			l.lookAll(1)
		}, "100.0 4 GPUs 10-22 -0 REQUEUED"},
		{"seen when it runs again", func(l *lab, j *simJob) {
			l.slurm.requeue(j)
			l.slurm.now += 2
			l.slurm.clean(j)
			l.slurm.now += 100
			l.slurm.start(j)
			l.lookAll(1)
		}, "100.0 4 GPUs 10-22 -0 REQUEUED"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab()
			j := l.startJob(4)
			l.lookAll(5)
			l.slurm.now += 5
			tc.play(l, j)
			require.Equal(t, tc.want, l.told()[0])
			if j.state == Running {
				require.Equal(t, "100.1 4 GPUs 122-open -0 ", l.told()[1])
			}
		})
	}
}

func TestAResizeStartsANewRun(t *testing.T) {
	l := newLab()
	j := l.startJob(4)
	l.lookAll(5)
	l.slurm.now += 5
	l.slurm.setSize(j, 2)
	l.lookAll(1)
	l.slurm.now += 9
	l.slurm.complete(j, Complete)
	l.lookAll(1)
	require.Equal(t, []string{"100.0 4 GPUs 10-20 -0 RESIZING", "100.0 2 GPUs 20-30 -0 COMPLETED"}, l.told())
}

// Where limits are enforced Slurm tells as a job is about to change its size:
// then sizes are known that no pass has seen.
func TestEveryResizeIsSeenIfSlurmTells(t *testing.T) {
	l := newLab()
	j := l.startJob(8)
	for _, gpus := range []uint64{4, 2} {
		l.slurm.now += 5
		before := l.slurm.show(j)
		before.Flags |= Resizing
		before.Resize = l.slurm.now
		l.hint(&before, l.instant())
		l.slurm.setSize(j, gpus)
		after := l.slurm.show(j)
		l.hint(&after, l.instant())
	}
	l.lookAll(1)
	require.Equal(t, []string{
		"100.0 8 GPUs 10-15 -0 RESIZING", "100.0 4 GPUs 15-20 -0 RESIZING", "100.0 2 GPUs 20-open -0 ",
	}, l.told())
}

func TestSuspendedTimeIsTakenOff(t *testing.T) {
	l := newLab()
	j := l.startJob(4)
	l.slurm.now += 10
	l.slurm.suspend(j)
	l.lookAll(5)
	require.NotNil(t, l.runs[runKey{100, begin.Unix() + 10}].Since)
	l.slurm.now += 5
	l.slurm.resume(j)
	l.slurm.now += 10
	l.slurm.setSize(j, 2) // Slurm goes on to count what was suspended before
	l.lookAll(1)
	l.slurm.now += 9
	l.slurm.suspend(j)
	l.slurm.now += 100
	l.slurm.complete(j, Cancelled) // a job that is killed while suspended ended then
	l.lookAll(1)
	got := l.told()
	require.Equal(t, "100.0 4 GPUs 10-40 -0 RESIZING", got[0], "no pass has seen how long it was suspended for")
	require.Equal(t, "100.0 2 GPUs 40-50 -10 CANCELLED", got[1])
}

func TestARequeueDoesNotForgetWhatWasSuspended(t *testing.T) {
	l := newLab()
	j := l.startJob(4)
	l.slurm.now += 10
	l.slurm.suspend(j)
	l.slurm.now += 10
	l.slurm.resume(j)
	l.lookAll(5)
	l.slurm.now += 5
	l.slurm.requeue(j)
	l.lookAll(1)
	require.Equal(t, []string{"100.0 4 GPUs 10-40 -10 REQUEUED"}, l.told())
}

// The start is set anew when nodes have been powered up, and Slurm's record
// does not count the time it took.
func TestPoweringUpNodesIsNotCounted(t *testing.T) {
	l := newLab()
	j := l.startJob(4)
	l.slurm.now += 5
	shown := l.slurm.show(j)
	shown.Flags |= Configuring
	l.look(0, shown)
	l.slurm.now += 60
	j.start = l.slurm.now
	l.lookAll(5)
	require.Equal(t, []string{"100.0 4 GPUs 10-10 -0 CONFIGURING", "100.0 4 GPUs 75-open -0 "}, l.told())
}

func TestAJobThatVanishesEndsWhenItWasLastSeen(t *testing.T) {
	l := newLab()
	l.startJob(4)
	l.lookAll(5)
	for range missedPasses - 1 {
		l.look(10)
		require.Equal(t, []string{"100.0 4 GPUs 10-open -0 "}, l.told(), "one list may be incomplete")
	}
	l.look(10)
	require.Equal(t, []string{"100.0 4 GPUs 10-15 -0 LOST"}, l.told())
	require.Empty(t, l.jobs)
}

func TestARunThatWasGivenUpTooEarlyGoesOn(t *testing.T) {
	l := newLab()
	j := l.startJob(4)
	l.lookAll(5)
	rec := l.jobs[j.id]
	l.finish(rec.run, unix(rec.lastSeen), lost, l.instant())
	l.lookAll(10)
	l.slurm.now += 5
	l.slurm.complete(j, Complete)
	l.lookAll(1)
	require.Equal(t, []string{"100.0 4 GPUs 10-15 -0 LOST", "100.0 4 GPUs 15-30 -0 COMPLETED"}, l.told())
}

// A slurmctld that was killed may have forgotten that a job has ended. Until it
// finds out it counts on, and so does its record.
func TestARunThatSlurmRevivesCountsOn(t *testing.T) {
	l := newLab()
	j := l.startJob(4)
	l.slurm.now += 5
	l.slurm.complete(j, Complete)
	l.lookAll(1)
	j.state, j.end = Running, j.start+3600
	l.lookAll(30)
	l.slurm.now += 5
	l.slurm.complete(j, NodeFail)
	l.lookAll(1)
	require.Equal(t, []string{"100.0 4 GPUs 10-15 -0 COMPLETED", "100.0 4 GPUs 15-51 -0 NODE_FAIL"}, l.told())
}

// A pass that broke off has not missed the jobs that it did not come to.
func TestABrokenPassGivesNothingUp(t *testing.T) {
	l := newLab()
	l.startJob(4)
	l.lookAll(5)
	for range 2 * missedPasses {
		l.slurm.now++
		l.begin(l.instant(), fairshare.Holding{GPUs: 32})
		l.broken = true
		l.end()
	}
	l.collect()
	require.Equal(t, []string{"100.0 4 GPUs 10-open -0 "}, l.told())
}

func TestPassesOfTheSameOrderNeedNoLookup(t *testing.T) {
	l := newLab()
	for range 10 {
		l.slurm.submit("physics", "alice", 1, 1)
	}
	l.lookAll(1)
	l.lookAll(1)
	require.Equal(t, 10, l.at, "all were found in their places")
	l.slurm.jobs = append(l.slurm.jobs[:3], l.slurm.jobs[5:]...) // two are purged
	l.lookAll(1)
	require.Len(t, l.jobs, 8)
	require.Len(t, l.order, 8)
	for i, rec := range l.order {
		require.Equal(t, l.slurm.jobs[i].id, rec.id)
		require.EqualValues(t, i, rec.place)
	}
}

// However long the database is away, memory does not grow with each job.
func TestTheTailIsSummedUp(t *testing.T) {
	l := newLab()
	w := fairshare.Lookback(l.instant(), time.Hour)
	var want fairshare.GPUMillis
	for i := range fairshare.Instant(3 * mostTail) {
		from := w.From - 1_000_000 + i*100
		c := fairshare.Charge{
			Period:  fairshare.Period{From: from, Until: from + 50},
			Account: "physics", User: []string{"alice", "bob"}[i%2], Amount: fairshare.GPUMillis(i),
		}
		l.tail = append(l.tail, tailCharge{Charge: c, covered: i%3 == 0})
		if c.Until > w.From {
			want += c.Amount
		}
	}
	l.trim(w, time.Minute)
	var got fairshare.GPUMillis
	for _, c := range l.tail {
		got += c.Amount
	}
	require.Equal(t, want, got)
	require.Less(t, len(l.tail), 300)
}

// fund lets the lab know of the account physics and its user alice.
func (l *lab) fund() {
	s := someSnapshot()
	w := fairshare.Lookback(l.instant(), time.Hour)
	l.owners.judge = newJudge(nil, usualTerms)
	l.owners.standing = fairshare.Rank(fairshare.Input{Budget: s.Budget, Window: w})
}

// Who stands behind a uid may become known only when the run is under way, or
// over: then it is his, and his account's.
func TestARunIsItsUsersOnceTheNameIsKnown(t *testing.T) {
	for _, account := range []string{"", "physics"} {
		for _, ended := range []bool{false, true} {
			t.Run(fmt.Sprintf("account %q ended %t", account, ended), func(t *testing.T) {
				l := newLab()
				l.fund()
				shown := Job{
					JobID: 100, UserID: 61000, ArrayTaskID: NoTask, ArrayTasks: 1, State: Running, GPUs: 4,
					Submit: l.slurm.now, Start: l.slurm.now, Account: NewCString(account), User: CString{}, MinRuntime: -1,
				}
				l.look(5, shown)
				run := func() spoolRun { return l.runs[runKey{100, shown.Start}] }
				require.Equal(t, account, run().Account)
				require.Equal(t, "61000", run().User)
				require.Equal(t, account != "", *run().Allocated)
				if ended {
					shown.State, shown.End = Complete, l.slurm.now
					l.look(5, shown)
				}
				shown.User = NewCString("alice")
				l.look(5, shown)
				require.Equal(t, "physics", run().Account)
				require.Equal(t, "alice", run().User)
				require.True(t, *run().Allocated)
				require.Equal(t, l.instant(), run().Seen, "the database goes by what was seen last")
				if !ended {
					require.Empty(t, l.tail)
					shown.State, shown.End = Complete, l.slurm.now
				}

				shown.User = CString{} // it is forgotten again
				l.look(5, shown)
				require.Equal(t, "alice", run().User)
				require.Len(t, l.tail, 1, "it counts once")
				require.Equal(t, "physics", l.tail[0].Account)
				require.Equal(t, "alice", l.tail[0].User)
			})
		}
	}
}

// The spool was lost, and no directory answers: the database knows whose it is.
func TestARunOfAnUnknownUserIsAdopted(t *testing.T) {
	l := newLab()
	l.fund()
	shown := Job{
		JobID: 100, UserID: 61000, ArrayTaskID: NoTask, ArrayTasks: 1, State: Running, GPUs: 4,
		Submit: l.slurm.now, Start: l.slurm.now, MinRuntime: -1,
	}
	l.look(5, shown)
	l.adopt([]usage.Run{{
		Cluster: "titan", JobID: 100, Account: "physics", User: "alice", GPUs: 4, Allocated: true, StartedAt: seconds(shown.Start),
	}}, l.instant())
	l.look(5, shown)
	run := l.runs[runKey{100, shown.Start}]
	require.Equal(t, "physics/alice", run.Account+"/"+run.User)
	require.True(t, *run.Allocated)
}

func TestAClockThatIsSetBackBreaksNothing(t *testing.T) {
	l := newLab()
	j := l.startJob(4)
	l.lookAll(5)
	l.slurm.now -= 3600
	l.lookAll(1)
	l.begin(l.instant(), fairshare.Holding{GPUs: 16}) // the capacity changes as well
	l.look(0, l.slurm.list()...)
	for i := 1; i < len(l.capacity); i++ {
		require.Greater(t, l.capacity[i].at, l.capacity[i-1].at)
	}
	l.slurm.complete(j, Complete)
	l.lookAll(1)
	require.Equal(t, []string{"100.0 4 GPUs 10-10 -0 COMPLETED"}, l.told())
	pending, running := l.asked("physics")
	require.Equal(t, []int64{0, 4 * 5}, []int64{pending, running})
}
