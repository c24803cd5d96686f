// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"gpubudget/conf"
	"gpubudget/fairshare"
)

// slurmShares is what the engine knows of slurmdbd's associations, where
// priorities go by the shares that these have.
type slurmShares struct {
	inForce bool
	factors map[uint32]float64 // of jobs, by association
	list    []fairshare.Association
	scorer  *fairshare.Additive // of the last pass that went by them

	unassociated unassociated
}

// GoesBySlurm begins to give priorities, and tells whether these go by Slurm's
// shares from now on, until it is asked again.
func (e *Engine) GoesBySlurm() bool {
	e.wanted.Store(false) // what changes from here on is for the next pass
	e.mu.Lock()
	defer e.mu.Unlock()
	e.slurm.inForce = e.conf.Load().Shares == conf.SharesSlurm
	return e.slurm.inForce
}

// SlurmShares works out how associations stand by Slurm's shares. The jobs of
// the next pass have the factors that follow.
func (e *Engine) SlurmShares(assocs []SlurmAssoc) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := &e.slurm
	s.list = s.list[:0]
	for i := range assocs {
		a := &assocs[i]
		s.list = append(s.list, fairshare.Association{
			Parent: int(a.Parent), User: a.Flags&AssocUser != 0,
			Shares: a.Shares, ParentShares: a.Flags&AssocParentShares != 0,
			Usage: a.Usage, UsageRest: a.UsageRest,
		})
	}
	flags := e.weights.Flags
	policy := fairshare.SlurmPolicy{
		FairTree: flags.Has(fairshare.FairTreeFlag), DepthOblivious: flags.Has(fairshare.DepthOblivious),
		Damping: e.weights.Damping, TiesApart: e.conf.Load().FairTreeTies == conf.TiesSlurm,
	}
	if err := fairshare.SlurmShares(s.list, policy); err != nil {
		return err
	}
	if s.factors == nil {
		s.factors = make(map[uint32]float64, len(assocs))
	}
	clear(s.factors)
	for i := range assocs {
		s.answer(&assocs[i], &s.list[i], policy.FairTree)
	}
	return nil
}

// answer hands over how one association stands.
func (s *slurmShares) answer(to *SlurmAssoc, from *fairshare.Association, fairTree bool) {
	to.SharesNorm, to.UsageNorm, to.UsageEffective = from.SharesNorm, from.UsageNorm, from.UsageEffective
	to.LevelFS, to.Factor = boundedLevel(from.LevelFS), 0
	if !from.User {
		return
	}
	s.factors[to.ID] = from.Factor
	if fairTree {
		to.Factor = from.Factor
	}
}

// shadow logs, if that is wanted, how accounts would stand by the ledger.
func (e *Engine) shadow() {
	c := e.conf.Load()
	if !c.Shadow || c.Shares != conf.SharesSlurm {
		return
	}
	accounts := e.shadows()
	for i := range accounts {
		a := &accounts[i]
		e.logf(LogInfo, "shadow: by the ledger account %s has rank %d, level fair share %.6g and fair-share factor %.6f: %.3f of %.3f GPU-hours used",
			a.Name, a.Rank, a.LevelFS, a.Factor, a.Used.Hours(), a.Entitled.Hours())
	}
}

// shadows is how the accounts that have jobs of their own stand by the ledger;
// none in the midst of a pass or before the first.
func (e *Engine) shadows() (standings []fairshare.AccountStanding) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tracker.passing || e.tracker.now == 0 {
		return nil
	}
	for _, a := range e.rank(e.tracker.now).Accounts {
		if a.Rank > 0 {
			standings = append(standings, a)
		}
	}
	return standings
}
