// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"time"

	"gpubudget/fairshare"
)

// Preemption is a running job that Slurm made give way to a request, because
// the rules of the contract said that it yields.
type Preemption struct {
	At      fairshare.Instant
	Rule    fairshare.Rule // that said so
	Requeue bool           // it will pend again, or else is cancelled
	Request Party          // the job that waited
	Victim  Party          // the job that ran
}

// Party is one of the two jobs of a preemption, and how its account stood by
// the ranking that the rules were asked with.
type Party struct {
	JobID   uint32
	Restart uint32 // of the run, for the victim; how often it was requeued, for the request
	Account string
	User    string
	GPUs    int64
	QOS     string // "" of the request, which is known by QOSPriority only

	Allocated      bool
	MinRuntime     time.Duration
	StartedAt      time.Time         // of the victim's run; zero for the request
	ProtectedUntil fairshare.Instant // of the victim; 0 for the request
	QOSPriority    uint32
	Nice           int64

	// Ratio is what was due to what was charged, of the branch by which the
	// account comes where the paths of both part: +Inf if nothing was charged,
	// 0 if nothing is due or the account is unknown.
	Ratio float64
	// Rank is the account's place among all, 1 the most under-served; 0 if it is
	// unknown or has no users.
	Rank int
}

// takePreemptions hands over, once, the preemptions since the last call, in the
// order in which they happened.
func (e *Engine) takePreemptions() []Preemption {
	e.mu.Lock()
	defer e.mu.Unlock()
	taken := e.contract.preemptions
	e.contract.preemptions = nil
	return taken
}
