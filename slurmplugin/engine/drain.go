// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/usage"
)

// Drains tells whether jobs are to make room for the repair of nodes that are
// being drained.
func (e *Engine) Drains() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.watching && !e.slurm.inForce && e.snapshot != nil && e.snapshot.Policy.Drain == budgets.DrainRequeue
}

// MayLeave tells whether nothing protects a running job: it is unallocated, or
// its minimum runtime has passed. A job of which that isn't known stays, and a
// component of a het job stays while any of the others is protected.
func (e *Engine) MayLeave(id uint32, nowMS int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	rec := e.tracker.jobs[id]
	if rec == nil || rec.run == nil || !rec.run.Open() {
		return false
	}
	now := fairshare.Instant(nowMS)
	if rec.run.HetJobID == 0 {
		return unprotected(rec.run, now)
	}
	for _, r := range e.tracker.openRuns() {
		if r.HetJobID == rec.run.HetJobID && !unprotected(r, now) {
			return false
		}
	}
	return true
}

// unprotected tells that a run may be made to give way at an instant.
func unprotected(r *run, now fairshare.Instant) bool {
	if !r.decided {
		return false
	}
	if !r.Allocated {
		return true
	}
	until, ok := r.ProtectedUntil(now.Time())
	return ok && now >= fairshare.At(until)
}

// Left notes that a job is requeued from a node that is being drained.
func (e *Engine) Left(id uint32, node string, nowMS int64) {
	defer e.recorder.notify()
	e.mu.Lock()
	defer e.mu.Unlock()
	rec := e.tracker.jobs[id]
	if rec == nil || rec.run == nil {
		return
	}
	now := fairshare.Instant(nowMS)
	victim := victimOf(rec.run, now)
	p := &spoolPreemption{
		At: now, Rule: usage.Drain, Mode: requeues, Node: node,
		Victim: spooledParty(&victim), StartedAt: fairshare.At(rec.run.StartedAt),
	}
	p.Victim.Known = false // nobody's account was asked about
	if r := e.ranking; r != nil {
		p.Victim.Rank = rankOf(r, rec.run.Account)
	}
	if victim.Allocated {
		p.ProtectedUntil = victim.ProtectedUntil
	}
	e.left = append(e.left, p)
	e.wanted.Store(true)
}

// takeLeft hands over, once, what Left has noted.
func (e *Engine) takeLeft() []*spoolPreemption {
	e.mu.Lock()
	defer e.mu.Unlock()
	taken := e.left
	e.left = nil
	return taken
}
