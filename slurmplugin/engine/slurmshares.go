// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"fmt"

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

	// For the shadow: level fair shares by association, and how accounts stood when
	// all associations were shown last, nil before that.
	levels   map[uint32]float64
	accounts map[string]slurmStanding

	unassociated unassociated
}

// slurmStanding is how an account stands by Slurm's shares.
type slurmStanding struct {
	level, factor float64 // the factor is the lowest of its users'
	users         int
}

// GoesBySlurm begins to give priorities, and tells whether these go by Slurm's
// shares from now on, until it is asked again.
func (e *Engine) GoesBySlurm() bool {
	e.wanted.Store(false) // what changes from here on is for the next pass
	e.mu.Lock()
	defer e.mu.Unlock()
	e.slurm.inForce = e.conf.Load().Shares == conf.SharesSlurm
	if !e.shadowed() {
		e.slurm.accounts = nil
	}
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
		s.levels = make(map[uint32]float64)
	}
	clear(s.factors)
	clear(s.levels)
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
		s.levels[to.ID] = from.LevelFS
		return
	}
	s.factors[to.ID] = from.Factor
	if fairTree {
		to.Factor = from.Factor
	}
}

// showed remembers how accounts stand, of all associations. It takes the place of
// what was remembered at once: a refresh may come at any moment.
func (s *slurmShares) showed(assocs []Assoc) {
	accounts := make(map[string]slurmStanding)
	for i := range assocs {
		a := &assocs[i]
		if a.ID == 0 {
			continue
		}
		account := a.Account.String()
		of := accounts[account]
		if a.User.IsNil() {
			of.level = s.levels[a.ID]
		} else {
			factor := s.factors[a.ID]
			if of.users == 0 || factor < of.factor {
				of.factor = factor
			}
			of.users++
		}
		accounts[account] = of
	}
	s.accounts = accounts
}

// String is what the log says beside what follows from the ledger.
func (s slurmStanding) String() string {
	if s.users == 0 {
		return fmt.Sprintf("level fair share %.6g and no users", s.level)
	}
	return fmt.Sprintf("level fair share %.6g and fair-share factor %.6f", s.level, s.factor)
}

// shadow logs, if that is wanted, how accounts would stand by the ledger,
// beside how they do stand by Slurm's shares.
func (e *Engine) shadow() {
	if !e.shadowed() {
		return
	}
	accounts, slurm := e.shadows()
	for i := range accounts {
		a := &accounts[i]
		now := "is not there"
		if of, ok := slurm[a.Name]; ok {
			now = "has " + of.String()
		}
		e.logf(LogInfo, "shadow: by the ledger account %s has rank %d, level fair share %.6g and fair-share factor %.6f: %.3f of %.3f GPU-hours used; by Slurm's shares it %s",
			a.Name, a.Rank, a.LevelFS, a.Factor, a.Used.Hours(), a.Entitled.Hours(), now)
	}
}

// shadowed tells whether a shadow of the ledger is to be logged.
func (e *Engine) shadowed() bool {
	c := e.conf.Load()
	return c.Shadow && c.Shares == conf.SharesSlurm
}

// shadows is how the accounts that have jobs of their own stand by the ledger,
// and how all stand by Slurm's shares; none in the midst of a pass or before
// associations were shown.
func (e *Engine) shadows() (standings []fairshare.AccountStanding, slurm map[string]slurmStanding) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tracker.passing || e.slurm.accounts == nil {
		return nil, nil
	}
	for _, a := range e.rank(e.tracker.now).Accounts {
		if a.Rank > 0 {
			standings = append(standings, a)
		}
	}
	return standings, e.slurm.accounts
}
