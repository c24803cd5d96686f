// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
)

// asked is the demand of an account so far: GPU-seconds pending and running.
func (l *lab) asked(account string) (pending, running int64) {
	for _, b := range l.demand.buckets {
		if a := b.amounts[account]; a != nil {
			pending += int64(a.Pending) / 1000
			running += int64(a.Running) / 1000
		}
	}
	return pending, running
}

func (l *lab) requireAsked(t *testing.T, pending, running int64) {
	t.Helper()
	p, r := l.asked("physics")
	require.Equal(t, []int64{pending, running}, []int64{p, r}, "GPU-seconds pending, running")
}

func TestDemandIsCountedFromSubmitToEnd(t *testing.T) {
	l := newLab()
	l.lookAll(0)
	l.slurm.now += 3
	j := l.slurm.submit("physics", "alice", 1, 4)
	l.lookAll(7)
	l.requireAsked(t, 4*7, 0)
	l.slurm.now += 2
	l.slurm.start(j)
	l.lookAll(8)
	l.requireAsked(t, 4*9, 4*8)
	l.slurm.now += 5
	l.slurm.complete(j, Complete)
	l.lookAll(60)
	l.requireAsked(t, 4*9, 4*13)
	l.lookAll(60)
	l.requireAsked(t, 4*9, 4*13)
}

func TestDemandOfAJobThatNoPassSawPendOrRun(t *testing.T) {
	l := newLab()
	l.lookAll(0)
	l.slurm.now += 3
	j := l.slurm.submit("physics", "alice", 1, 4)
	l.slurm.now += 2
	l.slurm.start(j)
	l.slurm.now++
	l.slurm.complete(j, Complete)
	l.lookAll(4)
	l.requireAsked(t, 4*2, 4*1)
}

func TestAHeldJobAsksForNothing(t *testing.T) {
	l := newLab()
	l.lookAll(0)
	j := l.slurm.submit("physics", "alice", 1, 4)
	held := l.slurm.show(j)
	held.Flags = Held
	l.look(10, held)
	l.requireAsked(t, 0, 0)
	l.lookAll(10) // released, at some time since the last pass
	l.requireAsked(t, 0, 0)
	l.lookAll(10)
	l.requireAsked(t, 4*10, 0)
}

func TestAnArrayAsksForTheTasksThatMayRun(t *testing.T) {
	l := newLab()
	l.lookAll(0)
	j := l.slurm.show(l.slurm.submit("physics", "alice", 1, 4))
	j.ArrayJobID, j.ArrayTasks, j.DemandTasks = j.JobID, 100, 3
	l.look(10, j)
	l.requireAsked(t, 4*3*10, 0)
	require.Equal(t, int64(100), l.owners.queue()[0].PendingJobs)
	require.Equal(t, int64(400), l.owners.queue()[0].PendingGPUs)
}

func TestSuspendedTimeIsNoDemand(t *testing.T) {
	l := newLab()
	j := l.startJob(4)
	l.lookAll(5)
	l.requireAsked(t, 4*0, 4*5)
	l.slurm.suspend(j)
	l.lookAll(50)
	l.requireAsked(t, 0, 4*5)
}

// What a run is charged it has asked for: the two can't drift apart.
func TestDemandIsSplitOverBuckets(t *testing.T) {
	l := newLab() // begins on the hour
	l.slurm.now += 3590
	j := l.startJob(4) // at the full hour
	l.lookAll(3600)
	l.slurm.now += 1800
	l.slurm.complete(j, Complete)
	l.lookAll(3600)
	got := map[fairshare.Instant]int64{}
	for _, rec := range l.demand.take("x") {
		if ms := rec.Demand.Accounts["physics"].Running; ms != 0 {
			got[rec.Demand.From-fairshare.At(begin)] = int64(ms) / 1000
		}
	}
	require.Equal(t, map[fairshare.Instant]int64{3_600_000: 4 * 3600, 7_200_000: 4 * 1800}, got)
}

func TestDemandSaysWhenItBegan(t *testing.T) {
	d := newDemand(30 * time.Minute)
	at := fairshare.At(begin)
	d.advance(0, at)
	d.pending(d.account("physics"), 1, at+50_000, at+60_000)
	d.running(d.account("physics"), 1, at+40_000, at+70_000)
	d.running(d.account("physics"), 1, at+70_000, at+1_900_000)
	d.running(d.account("chem"), 1, at+60_000, at+70_000)
	begun := map[string][]time.Time{}
	for _, rec := range d.take("x") {
		for _, row := range rec.Demand.buckets() {
			begun[row.Account] = append(begun[row.Account], row.BegunAt)
		}
	}
	require.Equal(t, map[string][]time.Time{
		"physics": {(at + 40_000).Time(), (at + 1_800_000).Time()}, "chem": {(at + 60_000).Time()},
	}, begun)

	older := spoolDemand{From: at, Until: at + 1_800_000, Accounts: map[string]demandAmounts{"physics": {Pending: 1}}}
	require.Zero(t, older.buckets()[0].BegunAt, "as an older release spooled it")
}

func TestBucketsOfAnotherLengthBeginWithTheNextPass(t *testing.T) {
	d := newDemand(time.Hour)
	at := fairshare.At(begin)
	d.advance(0, at)
	d.running(d.account("physics"), 1, at, at+1000)
	d.resize(time.Minute)
	d.advance(at+1000, at+2000)
	d.running(d.account("physics"), 1, at+1000, at+2000)
	recs := d.take("x")
	require.Len(t, recs, 2)
	require.Equal(t, at+60_000, recs[0].Demand.Until)
	require.Equal(t, at+3_600_000, recs[1].Demand.Until)
}

// However often passes look, running demand is the runs' GPU time, and pending
// demand the time from submit to start.
func TestDemandDoesNotDependOnWhenPassesLook(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLab()
		l.lookAll(0)
		var pending, running int64
		var open []*simJob
		submitted := map[*simJob]int64{}
		step := func() {
			d := rapid.Int64Range(1, 3000).Draw(t, "seconds")
			for d > 0 {
				n := min(d, rapid.Int64Range(1, 3000).Draw(t, "until the pass"))
				l.lookAll(n)
				d -= n
			}
		}
		for range rapid.IntRange(1, 20).Draw(t, "jobs") {
			step()
			j := l.slurm.submit("physics", "alice", 1, rapid.Uint64Range(1, 8).Draw(t, "gpus"))
			submitted[j] = l.slurm.now
			open = append(open, j)
			step()
			if rapid.Bool().Draw(t, "start") {
				j := open[0]
				open = open[1:]
				pending += int64(j.gpus) * (l.slurm.now - submitted[j])
				l.slurm.start(j)
				step()
				l.slurm.complete(j, Complete)
				running += int64(j.gpus) * (j.end - j.start)
			}
		}
		step()
		for _, j := range open {
			pending += int64(j.gpus) * (l.slurm.now - submitted[j])
		}
		gotPending, gotRunning := l.asked("physics")
		require.Equal(t, []int64{pending, running}, []int64{gotPending, gotRunning})
	})
}
