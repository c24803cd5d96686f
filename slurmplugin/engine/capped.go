// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import "time"

// mostCapped bounds how many jobs are told of one by one in a pass.
const mostCapped = 10

// cappedJobs are jobs that ask for a longer minimum runtime than the policy
// allows, and have not been told of. The option of the client refuses them: they
// went round it, or its cap is another.
type cappedJobs struct {
	jobs int
	some []cappedJob // mostCapped at most
}

type cappedJob struct {
	id    uint32
	user  string
	asked time.Duration
}

// cap notes a job that asks for too much, once.
func (t *tracker) cap(rec *job, j *Job) {
	if j.MinRuntime <= 0 || rec.capped || !t.owners.knows() || j.State >= Complete {
		return
	}
	asked := j.asked()
	if asked <= t.owners.terms.Cap {
		return
	}
	rec.capped = true
	c := &t.capped
	if c.jobs++; len(c.some) < mostCapped {
		c.some = append(c.some, cappedJob{j.JobID, rec.owner.user, asked})
	}
}

// tellCapped logs what was noted.
func (e *Engine) tellCapped() {
	e.mu.Lock()
	found, most := e.tracker.capped, e.owners.terms.Cap
	e.tracker.capped = cappedJobs{}
	e.mu.Unlock()
	for _, j := range found.some {
		e.logf(LogInfo, "JobId=%d of user %s asks for a minimum runtime of %s: it gets %s, the longest there is (policy min_runtime_cap)", j.id, j.user, j.asked, most)
	}
	if more := found.jobs - len(found.some); more > 0 {
		e.logf(LogInfo, "%d other jobs ask for more than that as well", more)
	}
}
