// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"fmt"
	"time"

	"gpubudget/budgets"
	"gpubudget/fairshare"
)

// gate is what jobs that are submitted are judged by. It is replaced as a whole
// and never changed, so that slurmctld's threads, which hold the job lock, wait for
// no pass.
type gate struct {
	standing *fairshare.Ranking
	terms    fairshare.Terms
	refuse   bool // jobs of accounts that have nothing left
}

// openGate has jobs that are submitted from now on judged by what is in force. The
// caller holds Engine.mu.
func (e *Engine) openGate() {
	if e.slurm.inForce || e.snapshot == nil || !e.owners.knows() {
		e.gate.Store(nil)
		return
	}
	e.gate.Store(&gate{
		standing: e.owners.standing, terms: e.owners.terms,
		refuse: e.snapshot.Policy.Unfunded == budgets.Refuse,
	})
}

// Submit judges a job that is submitted. It waits for no lock.
func (e *Engine) Submit(s *Submission) {
	s.Verdict, s.Granted = Accepted, s.MinRuntime
	s.say("")
	if g := e.gate.Load(); g != nil && s.GPUs != 0 {
		g.judge(s)
	}
}

func (g *gate) judge(s *Submission) {
	asks := Job{MinRuntime: s.MinRuntime, TimeLimit: s.TimeLimit}
	asked, limit := asks.asked(), asks.limit()
	if g.refuse && !g.terms.Unallocated(asked) {
		if text := g.unfunded(nameBy(g.standing, s.Account, s.User, s.UserID)); text != "" {
			s.Verdict = Refused
			s.say(text)
			return
		}
	}
	switch {
	case asked > g.terms.Cap:
		s.Verdict, s.Granted = Capped, int64(g.terms.Cap/time.Second)
		s.say(fmt.Sprintf("gpubudget: the longest minimum runtime is %s here: the job gets that, not %s; it may run longer, but not protected",
			slurmTime(g.terms.Cap), slurmTime(asked)))
	case limit > 0 && asked > limit:
		s.say(fmt.Sprintf("gpubudget: a minimum runtime of %s is more than the time limit: the job is protected for %s, all that it may run",
			slurmTime(asked), slurmTime(limit)))
	}
}

// unfunded says why nothing is left for the owner of a job, and what helps; nothing
// if there is something, or nobody knows whose the job is.
func (g *gate) unfunded(owner ownerName) string {
	if owner.account == "" {
		return ""
	}
	const help = "submit it to another account, ask for a share or a deposit (gpubudget account, gpubudget deposit), or run it unallocated: --min-runtime=0"
	a, known := g.standing.Account(owner.account)
	switch {
	case !known:
		return fmt.Sprintf("gpubudget: account %s has no budget, it is not open in the ledger: %s", owner.account, help)
	case a.Spent:
		return fmt.Sprintf("gpubudget: account %s has nothing left of its budget, %.1f GPU-hours of %.1f are used: %s",
			a.Name, a.Used.Hours(), a.Entitled.Hours(), help)
	case !a.Funded:
		return fmt.Sprintf("gpubudget: account %s has no budget: %s", a.Name, help)
	}
	return ""
}

// slurmTime is a time as Slurm writes it: [D-]HH:MM:SS.
func slurmTime(d time.Duration) string {
	const day = 24 * time.Hour
	days := ""
	if d >= day {
		days = fmt.Sprintf("%d-", d/day)
	}
	d %= day
	return fmt.Sprintf("%s%02d:%02d:%02d", days, d/time.Hour, d%time.Hour/time.Minute, d%time.Minute/time.Second)
}
