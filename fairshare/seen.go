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
	nice                   map[string]*values // by account
	pass                   *int               // differs between two Seen that are in use, for Place
	siteLow, siteHigh      int64
	maxAssoc, maxPartition float64
	maxTRES                []float64
}

// Add takes note of a job. It keeps the string job.Account and what is in
// job.Place, nothing else of it.
func (s *Seen) Add(job *Job) {
	if s.nice == nil {
		s.nice, s.pass = make(map[string]*values), new(int)
		s.siteLow, s.siteHigh = job.Site, job.Site
	}
	s.qos.add(int64(job.QOSPriority))
	s.niceOf(job).add(job.Nice)
	s.siteLow, s.siteHigh = min(s.siteLow, job.Site), max(s.siteHigh, job.Site)
	s.maxAssoc = max(s.maxAssoc, factor(job.AssocFactor))
	s.maxPartition = max(s.maxPartition, factor(job.PartitionFactor))
	s.addTRES(job.TRES)
	for i := range job.Parts {
		s.maxPartition = max(s.maxPartition, factor(job.Parts[i].Factor))
		s.addTRES(job.Parts[i].TRES)
	}
}

// niceOf are the nice values seen of the job's account.
func (s *Seen) niceOf(job *Job) *values {
	if p := job.Place; p != nil && p.seenIn == s.pass {
		return p.nice
	}
	nice := s.nice[job.Account]
	if nice == nil {
		nice = &values{}
		s.nice[job.Account] = nice
	}
	if p := job.Place; p != nil {
		p.seenIn, p.nice = s.pass, nice
	}
	return nice
}

// values is a set. Mostly a value is one of the few that were added last.
type values struct {
	all    map[int64]struct{}
	recent [4]int64
	next   uint
}

func (v *values) add(value int64) {
	for i := range min(v.next, uint(len(v.recent))) {
		if v.recent[i] == value {
			return
		}
	}
	if v.all == nil {
		v.all = make(map[int64]struct{})
	}
	v.all[value] = struct{}{}
	v.recent[v.next%uint(len(v.recent))] = value
	v.next++
}

// addAll adds those of another set, which may be nil.
func (v *values) addAll(others *values) {
	if others == nil {
		return
	}
	for value := range others.all {
		v.add(value)
	}
}

func (v *values) sorted(always ...int64) []int64 {
	all := append(slices.Collect(maps.Keys(v.all)), always...)
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
