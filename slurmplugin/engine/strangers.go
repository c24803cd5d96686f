// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"fmt"

	"gpubudget/fairshare"
)

// mostStrangers bounds how many strangers are told of one by one, between two
// starts of slurmctld.
const mostStrangers = 100

// strangers are the accounts and users of jobs that the ledger doesn't know, or
// knows no longer: each is told of once, until it is known.
type strangers struct {
	told map[ownerName]bool
	many bool // there were more
}

// tell logs those in the queue who have not been told of.
func (e *Engine) tellStrangers(s *strangers) {
	for _, line := range e.newStrangers(s) {
		e.logf(LogInfo, "%s", line)
	}
}

// newStrangers are lines about those who wait for GPUs and have not been told
// of.
func (e *Engine) newStrangers(s *strangers) (lines []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.owners.standing
	if r == nil || e.slurm.inForce || len(r.Accounts) <= 1 {
		return nil // nobody is known, which is said elsewhere
	}
	s.forget(r)
	for _, q := range e.owners.queue() {
		name, text := stranger(r, q.Account, q.User)
		switch {
		case text == "" || s.told[name] || s.many:
		case len(s.told) == mostStrangers:
			s.many = true
			lines = append(lines, "there are more accounts and users that the ledger doesn't know, which are not listed here")
		default:
			s.told[name] = true
			lines = append(lines, text)
		}
	}
	return lines
}

// forget drops those who are known by now.
func (s *strangers) forget(r *fairshare.Ranking) {
	if s.told == nil {
		s.told = make(map[ownerName]bool)
	}
	for name := range s.told {
		if _, text := stranger(r, name.account, name.user); text == "" {
			delete(s.told, name)
			s.many = false
		}
	}
}

// stranger says what is unknown of a user in an account, and what to do; nothing
// if both are known. The name is that of the account alone if it is unknown.
func stranger(r *fairshare.Ranking, account, user string) (ownerName, string) {
	if account == "" { // the pass may have been before there was a snapshot
		account, _ = r.DefaultAccount(user)
	}
	switch a, known := r.Account(account); {
	case account == "":
		return ownerName{"", user}, fmt.Sprintf("user %s has jobs that name no account, and is in none of the ledger: they come after all others and "+
			"are charged to nobody; see: gpubudget user add", user)
	case !known:
		return ownerName{account, ""}, fmt.Sprintf("account %s has jobs but is not open in the ledger: they come after all others and "+
			"are charged to nobody; see: gpubudget account add", account)
	case a.Rank > 0 && a.Direct.Members == 0:
		return ownerName{}, "" // it lists nobody: it is open to whoever Slurm lets in
	}
	if _, member := r.User(account, user); member {
		return ownerName{}, ""
	}
	return ownerName{account, user}, fmt.Sprintf("user %s has jobs in account %s but is no member of it in the ledger: they come after those of "+
		"its members and are charged to the account alone; see: gpubudget user add", user, account)
}

// unassociated are the jobs of a pass that have no association, where priorities
// go by the shares of these.
type unassociated struct {
	jobs  int
	first uint32 // id of one of them
	user  string // whose that is
	told  trouble
}

// note notes a job, if it is one of them.
func (s *slurmShares) note(j *Job) {
	u := &s.unassociated
	if !s.inForce || j.State != Pending || j.AssocID != 0 {
		return
	}
	if u.jobs++; u.jobs == 1 {
		u.first, u.user = j.JobID, j.User.String()
	}
}

// tellUnassociated logs, when a pass has met some and none before has.
func (e *Engine) tellUnassociated() {
	e.mu.Lock()
	u := &e.slurm.unassociated
	jobs, first, user := u.jobs, u.first, u.user
	u.jobs = 0
	e.mu.Unlock()
	switch {
	case jobs == 0:
		u.told.over()
	case u.told.met("some"):
		e.logf(LogInfo, "%d pending jobs have no association, such as JobId=%d of user %s: their fair-share factor is 0; see: sacctmgr add user", jobs, first, user)
	}
}
