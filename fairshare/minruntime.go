// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import "time"

// Terms are what a cluster's policy says of minimum runtimes.
type Terms struct {
	Default time.Duration // that of a job which asks for none
	Cap     time.Duration // the longest that a job can ask for
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
