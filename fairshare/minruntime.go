// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import "time"

// Terms are what a cluster's policy says of minimum runtimes.
type Terms struct {
	Default time.Duration // that of a job which asks for none
	Cap     time.Duration // the longest that a job can ask for
	// Accounts are the defaults of accounts that have one of their own. Each holds
	// for the accounts below, too.
	Accounts map[string]time.Duration
}

// Of are the terms for the jobs of an account: the default is that of the nearest
// account above it which has one, itself first. parent names the account above
// another, "" if there is none. Where the cluster's default is 0, jobs that ask for
// nothing are unallocated in every account.
func (t Terms) Of(account string, parent func(account string) string) Terms {
	if t.Default == 0 || len(t.Accounts) == 0 {
		return t
	}
	for ; account != ""; account = parent(account) {
		if d, said := t.Accounts[account]; said {
			t.Default = d
			break
		}
	}
	return t
}

// NotAsked is the minimum runtime that a job asks for which says nothing of it.
// Any negative one is read so.
const NotAsked time.Duration = -1

// MinRuntime is for how long nobody may have a job give up its GPUs once it
// runs: what it asks for, cut to the cap, or the default; in no case longer than
// its time limit, of which 0 is none. A job for which that is 0 is unallocated:
// it is charged to no budget and never protected.
func (t Terms) MinRuntime(asked, limit time.Duration) time.Duration {
	d := t.Default
	if asked >= 0 {
		d = min(asked, t.Cap)
	}
	if limit > 0 {
		d = min(d, limit)
	}
	return max(d, 0)
}

// Unallocated tells whether a job that asks for this minimum runtime is
// unallocated, whatever its account has left.
func (t Terms) Unallocated(asked time.Duration) bool { return t.MinRuntime(asked, 0) == 0 }
