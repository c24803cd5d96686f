// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
)

// deadDSN leads to a port on which nobody listens.
const deadDSN = "host=127.0.0.1 port=1 user=nobody dbname=none connect_timeout=1"

// history is a random life of a cluster: jobs, passes, a database that comes
// and goes, and a slurmctld that is restarted or killed.
type history struct {
	*rapid.T
	*host
	slurm *slurm
	away  bool
	known bool // the engine has had a snapshot

	weights sayings // in the ledger
	read    sayings // those that the engine has read
}

const minJobAge = 300

func (x *history) tick() {
	d := rapid.Int64Range(1, 40).Draw(x.T, "seconds")
	x.slurm.now += d
	x.later(time.Duration(d) * time.Second)
}

// pick is a random job that fits; nil if none does.
func (x *history) pick(fits func(*simJob) bool) *simJob {
	var some []*simJob
	for _, j := range x.slurm.jobs {
		if fits(j) {
			some = append(some, j)
		}
	}
	if len(some) == 0 {
		return nil
	}
	return rapid.SampledFrom(some).Draw(x.T, "job")
}

func running(j *simJob) bool { return j.state == Running }

func (x *history) event() {
	s := x.slurm
	kind := rapid.SampledFrom([]string{"submit", "submit", "start", "start", "end", "requeue", "clean", "resize", "suspend", "resume"}).Draw(x.T, "event")
	switch kind {
	case "submit":
		who := rapid.SampledFrom([][2]string{{"physics", "alice"}, {"physics", "bob"}, {"bio", "carol"}, {"idle", "dora"}, {"nowhere", "eve"}}).Draw(x.T, "owner")
		assoc := uint32(0)
		if rapid.Bool().Draw(x.T, "slurmdbd") {
			assoc = uint32(len(who[0])*100 + int(who[1][0]))
		}
		j := s.submit(who[0], who[1], assoc, rapid.Uint64Range(0, 8).Draw(x.T, "gpus"))
		j.hardware = rapid.SampledFrom(allHardware).Draw(x.T, "hardware")
		j.asked = rapid.SampledFrom([]int64{-1, -1, 0, 600, 1 << 40}).Draw(x.T, "minimum runtime")
		j.limit = rapid.SampledFrom([]int64{0, 60, 86400}).Draw(x.T, "time limit")
	case "start":
		// Slurm holds a requeued job back for two minutes.
		if j := x.pick(func(j *simJob) bool { return j.state == Pending && !j.requeuing && (j.restart == 0 || !j.fresh) }); j != nil {
			s.start(j)
		}
	case "end":
		if j := x.pick(func(j *simJob) bool { return j.state == Running || j.state == Suspended }); j != nil {
			s.complete(j, rapid.SampledFrom([]JobState{Complete, Failed, Timeout, NodeFail, Cancelled}).Draw(x.T, "state"))
		}
	case "requeue":
		// Slurm forgets how long a job was suspended for: a pass must know.
		if j := x.pick(func(j *simJob) bool { return (j.state == Running || j.state == Suspended) && !j.fresh }); j != nil {
			s.requeue(j)
		}
	case "clean":
		if j := x.pick(func(j *simJob) bool { return j.requeuing }); j != nil {
			s.clean(j)
		}
	case "resize":
		if j := x.pick(func(j *simJob) bool { return running(j) && !j.fresh && j.gpus > 0 }); j != nil {
			s.setSize(j, rapid.Uint64Range(1, 8).Draw(x.T, "gpus"))
		}
	case "suspend":
		if j := x.pick(running); j != nil {
			s.suspend(j)
		}
	case "resume":
		if j := x.pick(func(j *simJob) bool { return j.state == Suspended }); j != nil {
			s.resume(j)
		}
	}
}

// look is a pass, and what the recorder does after it.
func (x *history) look() {
	x.pass(x.slurm.list()...)
	x.check()
	if rapid.IntRange(0, 9).Draw(x.T, "killed before the spool is written") == 0 {
		x.crash()
		return
	}
	x.engine.recorder.save(false)
	x.slurm.seen()
}

// allocated tells whether a run was to be charged to its account's budget.
func (r *simRun) allocated() bool {
	return (r.account == "physics" || r.account == "bio") && r.asked != 0
}

// weigh has the ledger say what GPUs count for: now, from a time in the past or in
// the future on, and sometimes for a while only.
func (x *history) weigh() {
	s := saying{
		gpuType: rapid.SampledFrom([]string{"*", "a100", "h100", "a100_3g.40gb", "v100"}).Draw(x.T, "weight of"),
		weight:  rapid.SampledFrom([]int64{-1, 0, 1, 500, 1000, 2500, 3333}).Draw(x.T, "weight"),
		from:    x.slurm.now*1000 + rapid.Int64Range(-900_000, 200_000).Draw(x.T, "weight from"),
	}
	n := budgets.Note{Actor: "test", From: time.UnixMilli(s.from).UTC()}
	if ms := rapid.Int64Range(-300_000, 600_000).Draw(x.T, "weight for"); ms > 0 {
		s.until = s.from + ms
		n.Until = new(time.UnixMilli(s.until).UTC())
	}
	_, err := budgets.NewStore(x.pool).SetWeight(context.Background(), x.cluster, s.gpuType, fairshare.Weight(s.weight), n)
	require.NoError(x.T, err)
	x.weights = append(x.weights, s)
}

// check compares the usage the pass ranked by with the truth: with what all runs
// counted for at each instant, by the weights that the engine could know.
func (x *history) check() {
	if !x.known {
		return
	}
	truth := x.slurm.total(func(r *simRun) string { return fmt.Sprint(r.account, r.allocated()) },
		func(r *simRun) int64 { return x.read.charged(r, x.slurm.now) })
	for _, account := range []string{"physics", "bio"} {
		standing, ok := x.engine.ranking.Account(account)
		require.True(x.T, ok)
		require.Equal(x.T, truth[fmt.Sprint(account, true)], int64(standing.Used), "usage of %s at %d", account, x.slurm.now)
	}
	for _, r := range x.slurm.runs {
		require.GreaterOrEqual(x.T, r.millis(x.slurm.now), int64(0))
	}
}

// meet lets the engine meet Postgres. Until the server has noticed that the
// connection of an earlier engine is gone, the engine may only read.
func (x *history) meet() {
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		err := x.meetOnce()
		if x.away {
			require.Error(x.T, err)
			return
		}
		require.NoError(x.T, err)
		x.known, x.read = true, x.weights
		if !x.engine.refresher.waiting {
			return
		}
		require.Less(x.T, time.Since(began), 30*time.Second, "the lock of the single writer")
	}
}

func (x *history) crash() {
	x.kill()
	x.start()
}

func (x *history) step() {
	x.tick()
	switch rapid.SampledFrom([]string{"event", "event", "event", "look", "look", "meet", "away", "restart", "crash", "purge", "weigh", "weigh"}).Draw(x.T, "step") {
	case "event":
		x.event()
	case "look":
		x.look()
	case "meet":
		x.meet()
	case "away":
		x.setAway(!x.away)
	case "restart":
		x.stop()
		x.start()
	case "crash":
		x.crash()
	case "purge":
		x.slurm.purge(minJobAge)
	case "weigh":
		x.weigh()
		if rapid.Bool().Draw(x.T, "read at once") {
			x.meet()
			x.tick()
			x.look()
		}
	}
}

func (x *history) setAway(away bool) {
	x.away = away
	dsn := x.dsn
	if away {
		dsn = deadDSN
	}
	x.configure(dsn)
	x.engine.refresher.reconfigure()
}

// finish lets all jobs end and the database hear of it.
func (x *history) finish() {
	for _, j := range x.slurm.jobs {
		if j.state == Running || j.state == Suspended {
			x.slurm.complete(j, Complete)
		}
	}
	x.tick()
	x.pass(x.slurm.list()...)
	x.setAway(false)
	x.meet()
	x.tick()
	x.pass(x.slurm.list()...)
	x.check()
}

// Whatever happens, the database ends up with every run that was, to the
// second, and passes rank by no more and no less than was used; both count it by the
// weights there were at each instant, also where these were said afterwards.
func TestEveryGPUSecondIsRecordedOnce(t *testing.T) {
	pool := pgtest.Pool(t)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		x := &history{T: rt, host: newHost(rt, pool, t.TempDir(), fmt.Sprintf("c%d", n)), slurm: newSlurm(begin)}
		x.plant()
		x.start()
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			x.step()
		}
		x.finish()
		x.stop()
		x.compare()
	})
}

// compare compares the database with the truth, run by run and summed up.
func (x *history) compare() {
	ctx := context.Background()
	w := fairshare.Lookback(fairshare.At(x.now), 365*24*time.Hour)
	runs, err := x.usage().Runs(ctx, x.cluster, w)
	require.NoError(x.T, err)
	got := make(map[string]int64)
	for _, r := range runs {
		require.False(x.T, r.Open(), "run %d", r.JobID)
		require.NotNil(x.T, r.MinRuntime)
		require.LessOrEqual(x.T, *r.MinRuntime, 8*time.Hour)
		got[fmt.Sprintf("%d %s %s %t", r.JobID, r.Account, r.User, r.Allocated)] += int64(r.GPUMillis(x.now))
	}
	key := func(r *simRun) string { return fmt.Sprintf("%d %s %s %t", r.job, r.account, r.user, r.allocated()) }
	want := x.slurm.total(key, x.slurm.held)
	for key, ms := range want {
		require.Equal(x.T, ms, got[key], "job, account, user, allocated: %s", key)
	}
	allocated, unallocated, err := x.usage().Charges(ctx, x.cluster, w)
	require.NoError(x.T, err)
	charged := make(map[string]int64)
	for _, c := range append(allocated, unallocated...) {
		charged[c.Account+" "+c.User] += int64(c.Amount)
	}
	owner := func(r *simRun) string { return r.account + " " + r.user }
	for key, ms := range x.slurm.total(owner, func(r *simRun) int64 { return x.weights.charged(r, x.now.Unix()) }) {
		require.Equal(x.T, ms, charged[key], "the buckets of %s", key)
		delete(charged, key)
	}
	require.Empty(x.T, charged)
}
