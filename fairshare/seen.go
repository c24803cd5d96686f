// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"maps"
	"slices"
)

// Seen collects which values the jobs of a pass have, so that strict
// priorities can give each its own place. Nice values are kept apart by
// account: however many of them one account's users think up, they take no
// room from another's. The zero value is ready; the order of Add doesn't
// matter.
type Seen struct {
	qos                    values
	nice                   map[string]values // by account
	siteLow, siteHigh      int64
	maxAssoc, maxPartition float64
	maxTRES                []float64
}

// Add takes note of a job. It keeps the string job.Account, nothing else of it.
func (s *Seen) Add(job *Job) {
	if s.qos == nil {
		s.qos, s.nice = values{}, make(map[string]values)
		s.siteLow, s.siteHigh = job.Site, job.Site
	}
	s.qos[int64(job.QOSPriority)] = struct{}{}
	nice := s.nice[job.Account]
	if nice == nil {
		nice = values{}
		s.nice[job.Account] = nice
	}
	nice[job.Nice] = struct{}{}
	s.siteLow, s.siteHigh = min(s.siteLow, job.Site), max(s.siteHigh, job.Site)
	s.maxAssoc = max(s.maxAssoc, factor(job.AssocFactor))
	s.maxPartition = max(s.maxPartition, factor(job.PartitionFactor))
	s.addTRES(job.TRES)
	for i := range job.Parts {
		s.maxPartition = max(s.maxPartition, factor(job.Parts[i].Factor))
		s.addTRES(job.Parts[i].TRES)
	}
}

// values is a set.
type values map[int64]struct{}

func (v values) sorted(always ...int64) []int64 {
	all := append(slices.Collect(maps.Keys(v)), always...)
	slices.Sort(all)
	return slices.Compact(all)
}

func (s *Seen) addTRES(factors []float64) {
	for len(s.maxTRES) < len(factors) {
		s.maxTRES = append(s.maxTRES, 0)
	}
	for i, x := range factors {
		s.maxTRES[i] = max(s.maxTRES[i], factor(x))
	}
}

// largestSum is the largest weighted sum of the rest's factors that a job can
// have. Normalised factors go up to 1, others as far as was seen.
func (s *Seen) largestSum(w *Weights) float64 {
	sum := float64(w.Age) + float64(w.JobSize) + float64(s.siteHigh) - float64(s.siteLow)
	sum += float64(w.Assoc) * max(s.maxAssoc, 1)
	sum += float64(w.Partition) * max(s.maxPartition, 1)
	for i, weight := range w.TRES {
		most := 1.0
		if i < len(s.maxTRES) {
			most = max(most, s.maxTRES[i])
		}
		sum += factor(weight) * most
	}
	return sum
}

// factor is x without what no factor can be: negative, NaN, infinite.
func factor(x float64) float64 { return max(finite(x), 0) }
