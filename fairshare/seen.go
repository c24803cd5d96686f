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
	qos         values
	nice        map[string]*values // by account
	unallocated map[string]*values // likewise, of jobs that ask to be unallocated
	extremes    Extremes
}

// Extremes are the lowest and the highest of what jobs have. The zero value is
// that of no job.
type Extremes struct {
	Any               bool // some job was seen
	SiteLow, SiteHigh int64
	Assoc, Partition  float64   // the highest factors, 0 at least
	TRES              []float64 // the highest factors, 0 at least
}

// SeenNice are the nice values seen of one account's jobs.
type SeenNice struct{ values *values }

// Add takes note of a job. It keeps the string job.Account, nothing else of it.
func (s *Seen) Add(job *Job) {
	of := s.Of(job.Account)
	if job.Unallocated {
		of = s.OfUnallocated(job.Account)
	}
	s.AddDeclared(of, job.QOSPriority, job.Nice)
	x := Extremes{Any: true, SiteLow: job.Site, SiteHigh: job.Site, Assoc: job.AssocFactor, Partition: job.PartitionFactor, TRES: job.TRES}
	s.Widen(x)
	for i := range job.Parts {
		x.Partition, x.TRES = job.Parts[i].Factor, job.Parts[i].TRES
		s.Widen(x)
	}
}

// Of is the place in which nice values of an account's jobs are noted. It keeps
// the string.
func (s *Seen) Of(account string) SeenNice { return placeIn(&s.nice, account) }

// OfUnallocated is the same for jobs that ask to be unallocated.
func (s *Seen) OfUnallocated(account string) SeenNice { return placeIn(&s.unallocated, account) }

func placeIn(by *map[string]*values, account string) SeenNice {
	if *by == nil {
		*by = make(map[string]*values)
	}
	nice := (*by)[account]
	if nice == nil {
		nice = &values{}
		(*by)[account] = nice
	}
	return SeenNice{nice}
}

// AddDeclared takes note of the priority that a job declares.
func (s *Seen) AddDeclared(of SeenNice, qosPriority uint32, nice int64) {
	s.qos.add(int64(qosPriority))
	of.values.add(nice)
}

// Widen takes note of other jobs' extremes. It keeps nothing of x.TRES.
func (s *Seen) Widen(x Extremes) {
	if !x.Any {
		return
	}
	e := &s.extremes
	if !e.Any {
		e.Any, e.SiteLow, e.SiteHigh = true, x.SiteLow, x.SiteHigh
	}
	e.SiteLow, e.SiteHigh = min(e.SiteLow, x.SiteLow), max(e.SiteHigh, x.SiteHigh)
	e.Assoc = max(e.Assoc, factor(x.Assoc))
	e.Partition = max(e.Partition, factor(x.Partition))
	for len(e.TRES) < len(x.TRES) {
		e.TRES = append(e.TRES, 0)
	}
	for i, most := range x.TRES {
		e.TRES[i] = max(e.TRES[i], factor(most))
	}
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

// sorted are the values of a set, which may be nil, and some more.
func (v *values) sorted(always ...int64) []int64 {
	if v == nil {
		v = &values{}
	}
	all := make([]int64, 0, len(v.all)+len(always))
	all = append(slices.AppendSeq(all, maps.Keys(v.all)), always...)
	slices.Sort(all)
	return slices.Compact(all)
}

// union is several sets put together; mostly there is one.
type union struct {
	of  *values // nil if there is none
	own bool    // nobody else's
}

// add adds a set, which may be nil.
func (u *union) add(v *values) {
	switch {
	case v == nil:
	case u.of == nil:
		u.of = v
	default:
		if !u.own {
			first := u.of
			u.of, u.own = &values{}, true
			u.of.addAll(first)
		}
		u.of.addAll(v)
	}
}

func (u *union) sorted(always ...int64) []int64 { return u.of.sorted(always...) }

// largestSum is the largest weighted sum of the rest's factors that a job can
// have. Normalised factors go up to 1, others as far as was seen.
func (s *Seen) largestSum(w *Weights) float64 {
	e := &s.extremes
	sum := float64(w.Age) + float64(w.JobSize) + float64(e.SiteHigh) - float64(e.SiteLow)
	sum += float64(w.Assoc) * max(e.Assoc, 1)
	sum += float64(w.Partition) * max(e.Partition, 1)
	for i, weight := range w.TRES {
		most := 1.0
		if i < len(e.TRES) {
			most = max(most, e.TRES[i])
		}
		sum += factor(weight) * most
	}
	return sum
}

// factor is x without what no factor can be: negative, NaN, infinite.
func factor(x float64) float64 { return max(finite(x), 0) }
