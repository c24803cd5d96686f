// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import "gpubudget/fairshare"

// tries is how often others were evicted for a request that doesn't run yet: slurmctld
// may know why it can't start, or somebody else may get what was freed. The
// components of a het job start together or not at all, and so are one.
type tries struct {
	rounds int               // of evictions: of a component, the most of any
	last   fairshare.Instant // of them
	asked  fairshare.Instant // for the request
}

// roomDoubted of the looks at a component in each turn are for who may go though there
// is room: enough in a row for two passes of backfill, each of which may look twice.
const turnOfRoom, roomDoubted = 24, 6

// pausing tells whether enough were evicted in vain for now. Each of the tasks that an
// array's request stands for may have others evicted.
func (t *tries) pausing(tasks uint32, now fairshare.Instant) bool {
	return now < t.last+fairshare.PauseAfter(t.rounds/int(max(tasks, 1)))
}

// inNeed tells whether nobody is to be offered for the request if there is room for it. Of
// the components of a het job those for which somebody has to go are told from the others so.
// Where Slurm doesn't start one in the room that there seems to be, it may know why it
// can't: some of the looks at it are of those that offer all the same.
func (a *ask) inNeed() bool {
	if a.whole == 0 {
		return false
	}
	a.looks++
	return (a.looks-1)%turnOfRoom < turnOfRoom-roomDoubted
}

// triesOf are those of a request, or of the het job that it belongs to.
func (c *contract) triesOf(a *ask) *tries {
	id := a.whole
	if id == 0 {
		id = a.party.JobID
	}
	t := c.tries[id]
	if t == nil {
		t = new(tries)
		c.tries[id] = t
	}
	t.asked = max(t.asked, a.at)
	return t
}

// evictedFor notes an eviction for a request.
func (c *contract) evictedFor(a *ask, now fairshare.Instant) {
	if a.rounds == 0 || now-a.evictedAt > fairshare.OneRound {
		a.rounds++
	}
	a.evictedAt = now
	t := c.triesOf(a)
	t.rounds, t.last = max(t.rounds, a.rounds), now
}

// runs forgets what was tried for a request that has started. A component of a het job
// may have been started alone, and be taken back.
func (c *contract) runs(a *ask) {
	if a.whole == 0 {
		delete(c.tries, a.party.JobID)
	}
}

// forgetTries forgets the requests that nobody asks for any more.
func (c *contract) forgetTries(now fairshare.Instant) {
	for id, t := range c.tries {
		if now-t.asked > max(askLast, fairshare.PauseAfter(t.rounds)) {
			delete(c.tries, id)
		}
	}
}
