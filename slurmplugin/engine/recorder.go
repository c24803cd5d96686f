// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// lockRetry is how often the spool's lock is tried for while another process
// has it.
const lockRetry = time.Second

// recorder writes what the tracker derived into the spool, as soon as a pass
// has ended. What a crash catches between the two is derived anew, under the
// same keys: Slurm still lists the jobs.
type recorder struct {
	engine *Engine
	spool  *spool
	wake   chan struct{}
	failed trouble

	// saving keeps the order of what is taken in the order of the file.
	saving sync.Mutex
	opened bool
	locked bool // by another process
}

func newRecorder(e *Engine, dir string) *recorder {
	r := &recorder{engine: e, wake: make(chan struct{}, 1)}
	r.spool = newSpool(dir, e.cluster, func(err error) { e.logf(LogError, "%v", err) })
	return r
}

// open opens the spool and has the engine go on with what is in it.
func (r *recorder) open() error {
	var recs []spoolRecord
	if s := r.engine.current(); s != nil {
		r.spool.after(s.Spooled)
	}
	err := r.spool.open(func(rec spoolRecord) { recs = append(recs, rec) })
	r.locked = errors.Is(err, errLocked)
	if err != nil {
		return err
	}
	r.opened = true
	r.engine.restore(recs)
	return nil
}

// isLocked tells whether another process still writes the spool.
func (r *recorder) isLocked() bool {
	r.saving.Lock()
	defer r.saving.Unlock()
	return r.locked
}

// notify tells the recorder that there is something to write.
func (r *recorder) notify() {
	select {
	case r.wake <- struct{}{}:
	default: // it knows already
	}
}

func (r *recorder) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
			r.save(false)
		case <-time.After(lockRetry):
			r.retry()
		}
	}
}

// retry opens the spool late, and saves what could not be saved.
func (r *recorder) retry() {
	if !r.engine.conf.Load().UsesDatabase() {
		return
	}
	r.saving.Lock()
	opened := r.opened
	if !opened {
		r.report(r.open())
	}
	r.saving.Unlock()
	if !opened || r.spool.pending() > 0 {
		r.save(false)
	}
}

// begin opens the spool if there was no need for it so far: there is a database
// now, which there was not at start.
func (r *recorder) begin() {
	if !r.opened && !r.locked && r.engine.conf.Load().UsesDatabase() {
		r.report(r.open())
	}
}

// save appends all news to the spool; with demand even if it isn't due.
func (r *recorder) save(demand bool) {
	r.saving.Lock()
	defer r.saving.Unlock()
	r.begin()
	r.report(r.spool.append(r.engine.news(demand, false)))
}

// cut is save, and marks a place in the spool: a snapshot that is read when the
// database has all up to there holds all that the tracker marked as covered.
func (r *recorder) cut() mark {
	r.saving.Lock()
	defer r.saving.Unlock()
	r.begin()
	r.report(r.spool.append(r.engine.news(true, true)))
	return r.spool.end()
}

// report logs the beginning and the end of a failure.
func (r *recorder) report(err error) {
	switch {
	case err == nil:
		if r.failed.over() {
			r.engine.logf(LogInfo, "spool %s is written again", r.spool.path)
		}
	case r.locked:
		if r.failed.met("locked") {
			r.engine.logf(LogInfo, "%v: what is to be written waits in memory", err)
		}
	case r.failed.met("unwritable"):
		r.engine.logf(LogError, "%v: what is to be written waits in memory", err)
	}
}

// close saves what is left and closes the spool.
func (r *recorder) close() error {
	r.save(true)
	if lost := r.spool.close(); lost > 0 {
		return fmt.Errorf("spool %s: %d records could not be saved", r.spool.path, lost)
	}
	return nil
}
