// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"slices"

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
// its minimum runtime has passed. A job of which that isn't known stays. A het
// job, of which het is the id, stays while any of its components is protected;
// those without GPUs have no minimum runtime, and need not be known.
func (e *Engine) MayLeave(id, het uint32, nowMS int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := fairshare.Instant(nowMS)
	if het != 0 {
		return e.allUnprotected(het, now)
	}
	rec := e.tracker.jobs[id]
	return rec != nil && rec.run != nil && rec.run.Open() && unprotected(rec.run, now)
}

// allUnprotected tells whether nothing protects any component of a het job, of
// which some is known.
func (e *Engine) allUnprotected(het uint32, now fairshare.Instant) bool {
	components := e.tracker.components(het)
	return len(components) > 0 && !slices.ContainsFunc(components, func(r *run) bool { return !unprotected(r, now) })
}

// unprotected tells that a run may be made to give way at an instant.
func unprotected(r *run, now fairshare.Instant) bool {
	if !r.decided {
		return false
	}
	if !r.Allocated {
		return true
	}
	return r.MinRuntime != nil && now >= r.protectedUntil(now)
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
	victim := e.victimOf(rec.run, now)
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
