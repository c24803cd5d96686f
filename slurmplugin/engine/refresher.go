// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

const (
	// stepTimeout bounds each step of an exchange with the database, so that a
	// server that hangs is noticed. After an outage there may be many steps.
	stepTimeout  = 30 * time.Second
	firstRetry   = 250 * time.Millisecond
	longestRetry = 15 * time.Second
	// idlePause is between two looks at whether there is a database by now; a
	// reconfigure ends it.
	idlePause = time.Hour
	// leastGap keeps a busy ledger from having it read without a pause.
	leastGap = 100 * time.Millisecond
)

// saveInterval is the time between two saved snapshots if the ledger has not
// changed: what ends in between is in the spool.
const saveInterval = 10 * time.Second

// refresher keeps the engine and the database of one mind: again and again it
// writes what the spool has, and then reads the snapshot. Written before read,
// so that a snapshot holds all that had ended when it was begun; what ends
// meanwhile the tracker holds until the next.
type refresher struct {
	engine  *Engine
	db      *database // nil while there is no connection
	adopted bool      // open runs of the database were taken over

	waiting bool // another engine holds the lock of the single writer
	foreign bool // the snapshot is of what that wrote: who finds it on disk couldn't tell

	away    trouble
	empty   trouble   // of a database that has no ledger of the cluster
	shorter trouble   // of one whose ledger is an older copy
	since   time.Time // when the database was lost
	failed  trouble   // of writing the spool anew
	unsaved trouble   // of saving the snapshot
	savedAt time.Time
	saved   *Snapshot // as it is on disk

	strangers strangers

	reloading atomic.Bool
	mu        sync.Mutex
	interrupt context.CancelFunc // ends the present pause
}

func newRefresher(e *Engine) *refresher { return &refresher{engine: e} }

// run exchanges with the database until ctx ends.
func (r *refresher) run(ctx context.Context) {
	defer r.disconnect()
	for retry := firstRetry; ctx.Err() == nil; {
		r.reload()
		if !r.engine.conf.Load().UsesDatabase() {
			r.disconnect()
			r.pause(ctx, idlePause)
			continue
		}
		err := r.cycle(ctx)
		switch {
		case ctx.Err() != nil:
		case err == nil:
			r.back()
			retry = firstRetry
			r.pause(ctx, r.interval())
		default:
			r.disconnect()
			r.lost(err)
			r.save(true)
			r.report(r.tidy())
			r.pause(ctx, retry)
			retry = min(2*retry, longestRetry, max(r.interval(), time.Second))
		}
	}
	r.save(true)
}

// interval is the time between two refreshes: the shorter of what the policy
// and the configuration file say; less as long as another engine writes.
func (r *refresher) interval() time.Duration {
	d := r.engine.conf.Load().RefreshInterval
	if r.waiting {
		d = min(d, lockRetry)
	}
	if s := r.engine.current(); s != nil && s.Policy.Refresh > 0 {
		d = min(d, s.Policy.Refresh)
	}
	return d
}

// step does a part of an exchange within its time.
func (r *refresher) step(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	return do(ctx)
}

// cycle writes and reads once.
func (r *refresher) cycle(ctx context.Context) error {
	var mine bool
	err := r.step(ctx, func(ctx context.Context) (err error) {
		mine, err = r.connect(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if err := r.step(ctx, r.check); err != nil {
		return err
	}
	if r.waiting = !mine || r.engine.recorder.isLocked(); r.waiting {
		// Only in the moment in which one slurmctld hands over to another, or until
		// Postgres has noticed that an earlier connection is gone.
		r.engine.logf(LogVerbose, "another slurmctld of cluster %s still writes: this one only reads for now", r.engine.cluster)
		return r.step(ctx, func(ctx context.Context) error { return r.read(ctx, nil) })
	}
	if err := r.step(ctx, r.takeOver); err != nil {
		return err
	}
	to := r.engine.recorder.cut()
	if err := r.write(ctx, to); err != nil {
		return err
	}
	if err := r.step(ctx, r.writeState); err != nil {
		return err
	}
	if err := r.step(ctx, r.chargeMetered); err != nil {
		return err
	}
	return r.step(ctx, func(ctx context.Context) error { return r.read(ctx, &to) })
}

// connect makes sure of the connection; mine tells whether this engine is the
// one that writes.
func (r *refresher) connect(ctx context.Context) (mine bool, err error) {
	if r.db == nil {
		if r.db, err = connect(ctx, *r.engine.conf.Load(), r.engine.cluster); err != nil {
			return false, err
		}
	}
	return r.db.lock(ctx)
}

// check makes sure that this is a database to write to and to read from.
func (r *refresher) check(ctx context.Context) error {
	if err := r.db.checkSchema(ctx); err != nil {
		return err
	}
	return r.checkLedger(ctx)
}

func (r *refresher) disconnect() {
	if r.db != nil {
		r.db.close()
		r.db = nil
	}
}

// takeOver does what must be done, mostly once, before anything is written.
func (r *refresher) takeOver(ctx context.Context) error {
	if err := r.adopt(ctx); err != nil {
		return err
	}
	return r.judge(ctx)
}

// write gives the database all there is in the spool up to a mark.
func (r *refresher) write(ctx context.Context, to mark) error {
	sp, by := r.engine.recorder.spool, r.engine.judge()
	putAside := func(rec spoolRecord, why error) { r.report(reject(sp.path+".rejected", rec, why)) }
	return sp.drain(to, writeBatch, func(recs []spoolRecord) error {
		return r.step(ctx, func(ctx context.Context) error { return r.db.write(ctx, recs, by, putAside) })
	})
}

// writeState gives the database what is of interest only now.
func (r *refresher) writeState(ctx context.Context) error {
	e := r.engine
	if queue, asking, at, ok := e.queue(); ok {
		if err := r.db.usage.WriteQueue(ctx, e.cluster, at.Time(), queue); err != nil {
			return err
		}
		if err := r.db.usage.WriteAsked(ctx, e.cluster, asking); err != nil {
			return err
		}
	}
	return r.db.usage.Heartbeat(ctx, usage.Recorder{
		Cluster: e.cluster, Incarnation: e.incarnation, Host: hostname(), Version: e.host.Version, SeenAt: e.host.Clock(),
	})
}

// chargeMetered has runs charged by what meters have told since, where the policy
// says so. Slurm's record and the meters' meet in the database only.
func (r *refresher) chargeMetered(ctx context.Context) error {
	_, err := r.db.usage.ChargeMetered(ctx, r.engine.cluster)
	return err
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}

// adopt takes over, once, the runs the database has as open: if the spool was
// lost nobody else knows of those that have ended since.
func (r *refresher) adopt(ctx context.Context) error {
	if r.adopted {
		return nil
	}
	runs, err := r.db.usage.OpenRuns(ctx, r.engine.cluster)
	if err != nil {
		return err
	}
	last, _, err := r.db.usage.LastSeen(ctx, r.engine.cluster)
	if err != nil {
		return err
	}
	if err := r.recall(ctx); err != nil {
		return err
	}
	r.engine.adopt(runs, fairshare.At(last.SeenAt))
	r.adopted = true
	return nil
}

// recall counts the preemptions of the last day that the database knows of.
func (r *refresher) recall(ctx context.Context) error {
	recorded, err := r.db.usage.Preemptions(ctx, r.engine.cluster, r.engine.host.Clock().Add(-evictionLast*time.Millisecond))
	if err != nil {
		return err
	}
	r.engine.rememberRecorded(recorded)
	return nil
}

// judge decides, before the first snapshot, the runs that wait for it.
func (r *refresher) judge(ctx context.Context) error {
	if r.engine.judge().knows() {
		return nil
	}
	s, err := r.db.read(ctx, fairshare.At(r.engine.host.Clock()))
	if err != nil {
		return err
	}
	_, roles := newWindow(s, nil)
	r.engine.judgeBy(newJudge(roles, termsOf(s)))
	return nil
}

// read makes a new snapshot, which holds what the database was given up to a
// mark. Without one, another engine writes.
func (r *refresher) read(ctx context.Context, to *mark) error {
	var err error
	if to == nil {
		err = r.readForeign(ctx)
	} else {
		err = r.readOwn(ctx, *to)
	}
	if err != nil {
		return err
	}
	r.engine.shadow()
	r.engine.tellStrangers(&r.strangers)
	r.save(false)
	r.report(r.tidy())
	if r.db.bulky {
		debug.FreeOSMemory() // slurmctld's memory is not ours to keep
	}
	return nil
}

func (r *refresher) readOwn(ctx context.Context, to mark) error {
	now := fairshare.At(r.engine.host.Clock())
	s, err := r.db.read(ctx, now)
	if err != nil {
		return err
	}
	s.Spooled, s.Evictions, r.foreign = to.seq, r.engine.evictedLately(now), false
	r.engine.install(s, true)
	return nil
}

// readForeign makes a snapshot of what another engine writes, which has no mark:
// so that nothing is charged twice, it is read together with which runs it holds,
// but for those that ended long ago; and of the next ones only the ledger counts.
func (r *refresher) readForeign(ctx context.Context) error {
	now := fairshare.At(r.engine.host.Clock())
	if err := r.recall(ctx); err != nil {
		return err
	}
	if old := r.engine.current(); old != nil {
		s, err := r.db.read(ctx, now)
		if err != nil {
			return err
		}
		held := *s // what is read next goes on from s
		held.History, held.Spooled = old.History, old.Spooled
		r.engine.install(&held, false)
		return nil
	}
	s, ended, err := r.db.readEnded(ctx, now, r.engine.lately())
	if err != nil {
		return err
	}
	r.foreign = true
	r.engine.installOf(s, ended)
	return nil
}

// save writes the snapshot to disk if that is due.
func (r *refresher) save(always bool) {
	s, now := r.engine.current(), r.engine.host.Clock()
	if s == nil || s == r.saved || r.foreign {
		return
	}
	changed := r.saved == nil || s.Ledger != r.saved.Ledger || s.Policy != r.saved.Policy
	if !changed && !always && now.Sub(r.savedAt).Abs() < saveInterval {
		return
	}
	if err := saveSnapshot(r.engine.host.StateDir, s); err != nil {
		if r.unsaved.met("unsaved") {
			r.engine.logf(LogError, "%v: a slurmctld that starts without Postgres will know an older one, or none", err)
		}
		return
	}
	if r.unsaved.over() {
		r.engine.logf(LogInfo, "the snapshot is saved again")
	}
	r.saved, r.savedAt = s, now
}

// tidy drops from the spool what is no longer needed.
func (r *refresher) tidy() error {
	sp := r.engine.recorder.spool
	if !sp.oversized() {
		return nil
	}
	var safe uint64
	if r.saved != nil {
		safe = r.saved.Spooled
	}
	listed := r.engine.listed()
	return sp.compact(safe, func(key runKey) bool { return listed[key] })
}

// report logs trouble with files, once.
func (r *refresher) report(err error) {
	if err != nil && r.failed.met(err.Error()) {
		r.engine.logf(LogError, "%v", err)
	}
}

// lost logs, once, that the database is away and how things go on.
func (r *refresher) lost(err error) {
	e := r.engine
	if r.since.IsZero() {
		r.since = e.host.Clock()
	}
	if !r.away.met(kindOf(err)) {
		e.logf(LogDebug, "Postgres: %v", err)
		return
	}
	with := "without any snapshot: no account is funded"
	if s := e.current(); s != nil {
		with = fmt.Sprintf("with the snapshot of %s, %s old", showTime(s.ReadAt), age(s.ReadAt, fairshare.At(e.host.Clock())))
	}
	e.logf(LogError, "Postgres: %v: scheduling goes on %s; what is to be written waits in %s", err, with, e.recorder.spool.path)
}

// back logs that the database is back.
func (r *refresher) back() {
	if r.away.over() {
		r.engine.logf(LogInfo, "Postgres is back after %s: all that waited is written, the snapshot is new",
			r.engine.host.Clock().Sub(r.since).Round(time.Second))
	}
	r.since = time.Time{}
}

// reconfigure has the configuration file read again, soon.
func (r *refresher) reconfigure() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reloading.Store(true)
	if r.interrupt != nil {
		r.interrupt()
	}
}

// reload reads the configuration file if that was asked for. One that can't be
// read changes nothing.
func (r *refresher) reload() {
	if !r.reloading.Swap(false) {
		return
	}
	e, old := r.engine, r.engine.conf.Load()
	c, err := e.host.loadConf()
	if err != nil {
		e.logf(LogError, "%v: the settings stay as they were", err)
		return
	}
	if c.Cluster != old.Cluster || c.SpoolDir != old.SpoolDir {
		e.logf(LogInfo, "Cluster and SpoolDir of %s take effect when slurmctld is started again", c.Path)
	}
	if c.DSN != old.DSN {
		r.disconnect()
	}
	e.conf.Store(&c)
	if c.Shares != old.Shares || c.FairTreeTies != old.FairTreeTies {
		e.wanted.Store(true)
	}
}

// pause waits for d, or until the ledger or the configuration changes.
func (r *refresher) pause(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	r.mu.Lock()
	r.interrupt = cancel
	r.mu.Unlock()
	if r.reloading.Load() {
		return
	}
	sleep(ctx, min(d, leastGap))
	if r.db == nil {
		<-ctx.Done()
		return
	}
	r.db.waitForLedger(ctx)
}
