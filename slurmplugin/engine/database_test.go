// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/internal/pgserver"
	"gpubudget/migrations"
)

// recorded is what the database has of the last hour: a line for each run.
func (h *host) recorded() []string {
	h.t.Helper()
	runs, err := h.usage().Runs(context.Background(), h.cluster, fairshare.Lookback(fairshare.At(h.now), time.Hour))
	require.NoError(h.t, err)
	var lines []string
	for _, r := range runs {
		line := r.User + " " + r.EndState
		if r.Allocated {
			line += " allocated"
		}
		lines = append(lines, line)
	}
	return lines
}

// The first start may be before there is any Postgres. What starts then is
// judged as soon as there is one.
func TestRunsWaitToBeJudged(t *testing.T) {
	h := hostOn(t)
	h.configure(deadDSN)
	h.start()
	require.Equal(t, 1, h.logged("no snapshot yet"))
	s := newSlurm(h.now)
	a, b, c := s.submit("physics", "alice", 1, 4), s.submit("idle", "dora", 2, 4), s.submit("nowhere", "eve", 3, 4)
	for _, j := range []*simJob{a, b, c} {
		s.start(j)
	}
	h.tick(s, 10*time.Second)
	h.pass(s.list()...)
	h.engine.recorder.save(false)
	require.Error(t, h.exchange())
	h.tick(s, 10*time.Second)
	s.complete(a, Complete)
	h.pass(s.list()...)
	h.stop()

	h.start() // the judgement still waits
	h.tick(s, 10*time.Second)
	h.pass(s.list()...)
	h.configure(h.dsn)
	h.engine.refresher.reconfigure()
	require.NoError(t, h.exchange())
	require.Equal(t, []string{"alice COMPLETED allocated", "dora ", "eve "}, h.recorded())
	h.pass(s.list()...)
	physics, _ := h.engine.ranking.Account("physics")
	require.Equal(t, fairshare.GPUMillis(4*20*1000), physics.Used)
	h.stop()
}

// A decision that was made when a run started is kept, even by an engine that
// has lost its files.
func TestALostSpoolLosesNoRun(t *testing.T) {
	h := hostOn(t)
	h.start()
	s := newSlurm(h.now)
	h.pass()
	require.NoError(t, h.exchange())
	for _, user := range []string{"alice", "bob"} {
		s.start(s.submit("physics", user, 0, 4))
	}
	h.tick(s, 10*time.Second)
	h.pass(s.list()...)
	require.NoError(t, h.exchange())
	h.kill()

	require.NoError(t, os.Remove(filepath.Join(h.dir, spoolName+".titan")))
	require.NoError(t, os.Remove(filepath.Join(h.dir, snapshotName)))
	_, err := budgets.NewStore(h.pool).SetShare(context.Background(), "titan", "physics", 0, budgets.Note{Actor: "t", From: begin.AddDate(0, -1, 0)})
	require.NoError(t, err)
	h.start()
	s.jobs = s.jobs[:1] // and Slurm has lost the other job
	for range missedPasses {
		h.tick(s, 10*time.Second)
		h.pass(s.list()...)
		require.NoError(t, h.exchange())
	}
	h.tick(s, 10*time.Second)
	s.complete(s.jobs[0], Complete)
	h.tick(s, 10*time.Second)
	h.pass(s.list()...)
	require.NoError(t, h.exchange())
	require.Equal(t, []string{"alice COMPLETED allocated", "bob LOST allocated"}, h.recorded())
	h.stop()
}

func TestARecordThatPostgresRefusesHoldsUpNoOther(t *testing.T) {
	h := hostOn(t)
	h.start()
	s := newSlurm(h.now)
	a, b := s.submit("physics", "alice", 1, math.MaxInt64), s.submit("physics", "bob", 2, 4)
	s.start(a)
	s.start(b)
	h.tick(s, 10*time.Second)
	s.complete(a, Complete)
	s.complete(b, Complete)
	h.pass(s.list()...)
	require.NoError(t, h.exchange())
	require.Contains(t, h.recorded(), "bob COMPLETED allocated")
	require.Equal(t, 1, h.logged("put aside"))
	text, err := os.ReadFile(filepath.Join(h.dir, spoolName+".titan.rejected"))
	require.NoError(t, err)
	require.Contains(t, string(text), `"user":"alice"`)
	h.stop()
}

// Files are for bad days: an engine that can't write any works on.
func TestRunsReachTheDatabaseWithoutAnyFile(t *testing.T) {
	h := hostOn(t)
	h.configure(h.dsn, "SpoolDir=/proc/nowhere")
	h.start()
	s := newSlurm(h.now)
	s.start(s.submit("physics", "alice", 1, 4))
	for range 3 {
		h.tick(s, 10*time.Second)
		h.pass(s.list()...)
		require.NoError(t, h.exchange())
	}
	require.Equal(t, []string{"alice  allocated"}, h.recorded())
	require.Equal(t, 1, h.logged("what is to be written waits in memory"))
	h.engine.refresher.disconnect()
	require.ErrorContains(t, h.engine.Stop(), "could not be saved")
}

func TestASnapshotThatCannotBeSavedIsSaidOnce(t *testing.T) {
	h := hostOn(t)
	h.start()
	h.engine.host.StateDir = "/proc/nowhere"
	for range 3 {
		h.later(time.Hour)
		h.pass()
		require.NoError(t, h.exchange())
	}
	require.Equal(t, 1, h.logged("save snapshot"))
	h.engine.host.StateDir = h.dir
	h.later(time.Hour)
	require.NoError(t, h.exchange())
	require.Equal(t, 1, h.logged("the snapshot is saved again"))
	h.stop()
}

func TestOneEngineAtATimeWrites(t *testing.T) {
	a := hostOn(t)
	a.start()
	s := newSlurm(a.now)
	a.pass()
	require.NoError(t, a.exchange())

	b := newHost(t, a.pool, t.TempDir(), "titan")
	b.start()
	s.start(s.submit("physics", "alice", 1, 4))
	b.tick(s, 10*time.Second)
	b.pass(s.list()...)
	require.NoError(t, b.meetOnce())
	require.Empty(t, b.recorded())
	require.NotNil(t, b.engine.snapshot, "it reads")
	b.tick(s, 10*time.Second)
	b.pass(s.list()...)
	physics, _ := b.engine.ranking.Account("physics")
	require.Equal(t, fairshare.GPUMillis(4*20*1000), physics.Used, "and counts what it sees")

	a.stop()
	require.NoError(t, b.exchange())
	require.Len(t, b.recorded(), 1)
	b.stop()
}

// Postgres may take a while to notice that an earlier engine is gone, a loaded one
// above all. Until then the new engine may not write; what both the spool and the
// database have counts once all the same, and so does what ends meanwhile.
func TestAnEngineThatMayNotWriteYetCountsNothingTwice(t *testing.T) {
	ctx := context.Background()
	h := hostOn(t)
	h.start()
	s := newSlurm(h.now)
	h.pass()
	require.NoError(t, h.exchange()) // saved: the next ones come too soon for that
	a, b := s.submit("physics", "alice", 1, 4), s.submit("physics", "bob", 2, 1)
	s.start(a)
	s.start(b)
	h.tick(s, 5*time.Second)
	s.complete(a, Complete)
	h.pass(s.list()...)
	require.NoError(t, h.exchange())
	h.kill()

	conn, err := h.pool.Acquire(ctx)
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(ctx, `SELECT pg_advisory_lock(hashtextextended('gpubudget.recorder:titan', 0))`)
	require.NoError(t, err)
	_, err = budgets.NewStore(h.pool).SetShare(ctx, "titan", "bio", 100_000_000, budgets.Note{Actor: "t", From: begin})
	require.NoError(t, err)
	h.start()
	used := func(want int64) {
		t.Helper()
		h.pass(s.list()...)
		physics, _ := h.engine.ranking.Account("physics")
		require.Equal(t, fairshare.GPUMillis(want*1000), physics.Used)
	}
	require.NoError(t, h.meetOnce())
	require.True(t, h.engine.refresher.waiting)
	require.LessOrEqual(t, h.engine.refresher.interval(), lockRetry, "it soon tries again")
	used(4*5 + 5)
	bio, _ := h.engine.ranking.Account("bio")
	require.Equal(t, fairshare.Share(100_000_000), bio.Share, "the ledger is read")
	h.tick(s, 10*time.Second)
	s.complete(b, Complete)
	h.pass(s.list()...)
	require.NoError(t, h.meetOnce())
	used(4*5 + 15)

	_, err = conn.Exec(ctx, `SELECT pg_advisory_unlock_all()`)
	require.NoError(t, err)
	require.NoError(t, h.exchange())
	require.False(t, h.engine.refresher.waiting)
	used(4*5 + 15)
	require.Equal(t, []string{"alice COMPLETED allocated", "bob COMPLETED allocated"}, h.recorded())
	h.stop()
}

// An engine that finds neither snapshot nor spool while another still writes
// counts each run once: those that ended before it came, or while both were there,
// and that only one of the two has seen end.
func TestAHandoverWithoutFilesChargesNothingTwice(t *testing.T) {
	h := hostOn(t)
	h.start()
	s := newSlurm(h.now)
	h.pass()
	before, both, late, open := s.submit("physics", "alice", 1, 4), s.submit("physics", "bob", 2, 1), s.submit("physics", "alice", 3, 1), s.submit("physics", "bob", 4, 1)
	for _, j := range []*simJob{before, both, late, open} {
		s.start(j)
	}
	h.tick(s, 10*time.Second)
	s.complete(before, Complete)
	h.pass(s.list()...)
	require.NoError(t, h.exchange())

	next := newHost(t, h.pool, t.TempDir(), "titan")
	next.later(h.now.Sub(next.now))
	next.start()
	next.pass(s.list()...)
	tick := func(d time.Duration) {
		h.tick(s, d)
		next.later(d)
	}
	used := func(on *host, want int64) {
		t.Helper()
		on.pass(s.list()...)
		physics, _ := on.engine.ranking.Account("physics")
		require.Equal(t, fairshare.GPUMillis(want*1000), physics.Used)
	}
	tick(10 * time.Second)
	s.complete(both, Complete)
	h.pass(s.list()...)
	next.pass(s.list()...)
	tick(10 * time.Second)
	s.complete(late, Complete)
	h.pass(s.list()...)
	require.NoError(t, h.exchange()) // the other has not seen it end
	require.NoError(t, next.meetOnce())
	require.True(t, next.engine.refresher.waiting)
	used(next, 4*10+20+30+30)
	tick(10 * time.Second)
	used(next, 4*10+20+30+40)
	_, err := loadSnapshot(next.dir, "titan")
	require.ErrorIs(t, err, errNoSnapshot, "it would not tell what it holds")
	s.complete(open, Complete)
	require.NoError(t, next.meetOnce())
	used(next, 4*10+20+30+40)

	h.kill()
	require.NoError(t, next.exchange())
	used(next, 4*10+20+30+40)
	require.Empty(t, next.engine.tracker.tail)
	require.Empty(t, next.engine.tracker.held)
	require.NoError(t, next.meetOnce())
	used(next, 4*10+20+30+40)
	next.stop()
}

// ownServer is a Postgres that the test may stop, with the tests' ledger.
func ownServer(t *testing.T, dir string) *pgserver.Server {
	t.Helper()
	ctx := context.Background()
	server, err := pgserver.Start(ctx, dir)
	require.NoError(t, err)
	t.Cleanup(func() { _ = server.Stop() })
	return server
}

// The whole engine with its goroutines, on a server that is stopped and comes
// back.
func TestAnOutageIsSaidOnceAndCostsNothing(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755)) // the server has a user of its own
	server := ownServer(t, dir)
	config, err := pgx.ParseConfig(server.DSN("postgres"))
	require.NoError(t, err)
	require.NoError(t, migrations.Up(ctx, config, nil))
	pool, err := pgxpool.New(ctx, server.DSN("postgres"))
	require.NoError(t, err)
	defer pool.Close()

	h := newHost(t, pool, t.TempDir(), "titan")
	h.plant()
	h.configure(h.dsn, "RefreshInterval=0.1")
	e, err := Start(h.describe())
	require.NoError(t, err)
	h.engine = e
	eventually := func(what string, ok func() bool) {
		t.Helper()
		require.Eventually(t, ok, 20*time.Second, 10*time.Millisecond, what)
	}
	eventually("the first snapshot", func() bool { return e.current() != nil })
	s := newSlurm(h.now)
	a := s.submit("physics", "alice", 1, 4)
	s.start(a)
	b := s.submit("bio", "carol", 2, 1)
	c := s.submit("physics", "bob", 3, 1)
	h.tick(s, 10*time.Second)
	h.pass(s.list()...) // from here on there is capacity to share
	h.tick(s, 10*time.Second)
	before := h.pass(s.list()...)
	require.Greater(t, before[b.id], before[c.id], "physics has used something")

	require.NoError(t, server.Stop())
	eventually("the outage is noticed", func() bool { return h.logged("Postgres: ") > 0 })
	h.tick(s, 10*time.Second)
	s.complete(a, Complete)
	h.tick(s, 10*time.Second)
	after := h.pass(s.list()...)
	require.Greater(t, after[b.id], after[c.id])
	time.Sleep(time.Second) // several attempts
	require.Equal(t, 1, h.logged("Postgres: "))
	require.Equal(t, 1, h.logged("scheduling goes on with the snapshot of"))
	require.Zero(t, h.logged("Postgres is back"))

	ownServer(t, dir)
	eventually("Postgres is back", func() bool { return h.logged("Postgres is back") == 1 })
	eventually("all is written", func() bool { return len(h.recorded()) == 1 })
	require.Equal(t, []string{"alice COMPLETED allocated"}, h.recorded())
	require.Equal(t, 1, h.logged("Postgres: "))
	require.NoError(t, e.Stop())
}

// A change of the ledger is there at once, however long the interval.
func TestAChangeOfTheLedgerIsNotWaitedFor(t *testing.T) {
	h := hostOn(t)
	h.configure(h.dsn, "RefreshInterval=3600")
	e, err := Start(h.describe())
	require.NoError(t, err)
	h.engine = e
	require.Eventually(t, func() bool { return e.current() != nil && e.Wanted() }, 20*time.Second, 10*time.Millisecond)
	e.BeginPass(h.ms(), Cluster{})
	e.Observe([]Job{h.pending(1, "bio", "carol", nil)})
	require.NoError(t, e.EndPass())
	require.True(t, e.Wanted(), "that pass gave no priorities")
	h.pass(h.pending(1, "bio", "carol", nil))
	require.False(t, e.Wanted())
	version := e.current().Ledger
	_, err = budgets.NewStore(h.pool).SetShare(context.Background(), "titan", "bio", 500_000_000, budgets.Note{Actor: "t"})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return e.Wanted() }, 20*time.Second, 10*time.Millisecond)
	require.Greater(t, e.current().Ledger, version)
	require.NoError(t, e.Stop())
}

func TestTheConfigurationIsReadAgain(t *testing.T) {
	h := hostOn(t)
	h.configure(h.dsn, "CalcInterval=7")
	h.start()
	require.Equal(t, 7*time.Second, h.engine.CalcInterval())
	h.configure(h.dsn, "CalcInterval=9")
	require.NoError(t, h.exchange())
	require.Equal(t, 7*time.Second, h.engine.CalcInterval(), "nobody asked")
	h.engine.Configure(fairshare.Weights{}, 1)
	require.NoError(t, h.exchange())
	require.Equal(t, 9*time.Second, h.engine.CalcInterval())
	h.configure(h.dsn, "CalcInterval=rubbish")
	h.engine.Configure(fairshare.Weights{}, 1)
	require.NoError(t, h.exchange())
	require.Equal(t, 9*time.Second, h.engine.CalcInterval())
	require.Equal(t, 1, h.logged("the settings stay as they were"))
	h.stop()
}

func TestTheDatabaseLearnsOfDemandCapacityQueueAndLife(t *testing.T) {
	ctx := context.Background()
	h := hostOn(t)
	h.start()
	s := newSlurm(h.now)
	h.pass()
	a := s.submit("physics", "alice", 1, 4)
	s.submit("physics", "bob", 2, 2)
	h.tick(s, 10*time.Second)
	s.start(a)
	h.tick(s, 10*time.Second)
	h.pass(s.list()...)
	require.NoError(t, h.exchange())
	h.tick(s, 10*time.Second)
	w := fairshare.Lookback(fairshare.At(h.now), time.Hour)

	demand, err := h.usage().Demand(ctx, "titan", w)
	require.NoError(t, err)
	var asked fairshare.GPUMillis
	for _, d := range demand {
		asked += d.Amount
	}
	require.Equal(t, fairshare.GPUMillis(4*20+2*20)*1000, asked)

	steps, err := h.usage().Capacity(ctx, "titan", w)
	require.NoError(t, err)
	require.Len(t, steps, 1)
	require.Equal(t, 32*fairshare.GPU, steps[0].Value)

	queue, at, err := h.usage().Queue(ctx, "titan")
	require.NoError(t, err)
	require.Equal(t, h.now.Add(-10*time.Second), at)
	require.Len(t, queue, 2)
	require.Equal(t, int64(4), queue[0].RunningGPUs)
	require.Equal(t, int64(2), queue[1].PendingGPUs)

	alive, ok, err := h.usage().LastSeen(ctx, "titan")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, h.engine.incarnation, alive.Incarnation)
	h.stop()

	// A second incarnation goes on counting where the first has ended.
	h.start()
	h.tick(s, 10*time.Second)
	h.pass(s.list()...)
	require.NoError(t, h.exchange())
	demand, err = h.usage().Demand(ctx, "titan", fairshare.Lookback(fairshare.At(h.now), time.Hour))
	require.NoError(t, err)
	asked = 0
	for _, d := range demand {
		asked += d.Amount
	}
	require.Equal(t, fairshare.GPUMillis(4*40+2*40)*1000, asked)
	h.stop()
}
