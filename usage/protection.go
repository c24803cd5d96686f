// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import "time"

// Jobs puts runs together that yield together: those of the components of a het
// job. All others are alone. Jobs come in the order of their first runs.
func Jobs(runs []Run) [][]*Run {
	jobs, het := make([][]*Run, 0, len(runs)), make(map[uint32]int)
	for i := range runs {
		r := &runs[i]
		place, known := het[r.HetJobID]
		if known && r.HetJobID != 0 {
			jobs[place] = append(jobs[place], r)
			continue
		}
		het[r.HetJobID] = len(jobs)
		jobs = append(jobs, []*Run{r})
	}
	return jobs
}

// Protection is for how long a job is left alone, with all its components: all of
// them yield or none does.
type Protection struct {
	// Until is when the protection ends that lasts longest; zero if none of the
	// components was ever protected.
	Until time.Time
	// Unknown: for how long one of them is protected isn't known, so all keep
	// their GPUs.
	Unknown   bool
	Allocated bool  // one of them is
	GPUs      int64 // whole ones; who has none is not preempted
}

// ProtectionOf is that of a job with these open runs, as of an instant. Beside
// components that have whole GPUs those without don't matter.
func ProtectionOf(job []*Run, now time.Time) (p Protection) {
	for _, r := range job {
		p.GPUs += r.GPUs
	}
	for _, r := range job {
		if r.GPUs == 0 && p.GPUs > 0 {
			continue
		}
		p.Allocated = p.Allocated || r.Allocated
		p.Unknown = p.Unknown || r.MinRuntime == nil
		if until, ok := r.ProtectedUntil(now); ok && until.After(p.Until) {
			p.Until = until
		}
	}
	return p
}
