// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"maps"
	"math"
	"slices"
	"sort"
)

// Limits of what strict priorities are packed into.
const (
	// MaxStrict is the highest strict priority. It leaves a margin below 2^32
	// for an operator who wants to set one by hand above all others.
	MaxStrict = 4_000_000_000
	// minRest is how many steps age, size and so on keep when room is short.
	minRest = 100
	// maxRest is the most steps they get when there is room.
	maxRest = 1_000_000
	// maxColumn is the largest NICE that Slurm's protocol can carry.
	maxColumn = math.MaxInt32
)

// Seen collects which values the jobs of a pass have, so that strict
// priorities can give each its own place. The zero value is ready; the order
// of Add doesn't matter.
type Seen struct {
	qos                    map[int64]struct{}
	nice                   map[int64]struct{}
	siteLow, siteHigh      int64
	maxAssoc, maxPartition float64
	maxTRES                []float64
}

// Add takes note of a job.
func (s *Seen) Add(job *Job) {
	if s.qos == nil {
		s.qos, s.nice = make(map[int64]struct{}), make(map[int64]struct{})
		s.siteLow, s.siteHigh = job.Site, job.Site
	}
	s.qos[int64(job.QOSPriority)] = struct{}{}
	s.nice[job.Nice] = struct{}{}
	s.siteLow, s.siteHigh = min(s.siteLow, job.Site), max(s.siteHigh, job.Site)
	s.maxAssoc = max(s.maxAssoc, factor(job.AssocFactor))
	s.maxPartition = max(s.maxPartition, factor(job.PartitionFactor))
	s.addTRES(job.TRES)
	for i := range job.Parts {
		s.maxPartition = max(s.maxPartition, factor(job.Parts[i].Factor))
		s.addTRES(job.Parts[i].TRES)
	}
}

func (s *Seen) addTRES(factors []float64) {
	for len(s.maxTRES) < len(factors) {
		s.maxTRES = append(s.maxTRES, 0)
	}
	for i, x := range factors {
		s.maxTRES[i] = max(s.maxTRES[i], factor(x))
	}
}

// factor is x without what no factor can be: negative, NaN, infinite.
func factor(x float64) float64 { return max(finite(x), 0) }

// Strict packs the order of jobs into a number, like the digits of one:
//
//	funded, account rank | QOS priority | nice | user | rest
//
// the most significant first. A job of a better-placed account is before all
// jobs of a worse-placed one, whatever else they have; within the account the
// declared priority decides, then which user is further behind what he is due,
// and then the rest: the weighted sum of age, size, partition, association,
// TRES and site factor. A Strict can be used from several goroutines.
type Strict struct {
	ranking *Ranking
	qos     levels
	nice    levels
	rest    rest
	users   int64 // most steps that the users of one account get
	slots   map[string]slot
	nowhere slot // for jobs of unknown accounts
}

// slot is the range of priorities of the accounts that share a rank.
type slot struct {
	base  int64 // the lowest priority
	full  int64 // steps its users need
	users int64 // steps they have
	nice  int64 // unit of the nice digit
	qos   int64 // unit of the QOS digit
}

// NewStrict prepares the priorities of one pass.
func NewStrict(r *Ranking, w Weights, size ClusterSize, seen *Seen) *Strict {
	groups := groupAccounts(r)
	qos, nice := newLevels(seen.qos), newLevels(seen.nice, 0)
	radix := fit(groups, qos.values, nice.values)
	s := &Strict{
		ranking: r,
		qos:     qos.with(radix.gaps, radix.qos),
		nice:    nice.with(radix.gaps, radix.nice),
		rest:    newRest(w, size, seen, radix.rest),
		slots:   make(map[string]slot, len(r.Accounts)),
	}
	s.assign(groups, radix)
	return s
}

func (s *Strict) assign(groups []group, radix radices) {
	base := int64(1)
	for i, g := range groups {
		users := min(g.users, radix.users)
		sl := slot{base: base, full: g.users, users: users, nice: users * radix.rest}
		sl.qos = radix.nice * sl.nice
		base += radix.qos * sl.qos
		if i == 0 {
			s.nowhere = sl
		}
		for _, name := range g.accounts {
			s.slots[name] = sl
		}
	}
}

// group is the accounts that share a place in the order, and how many steps
// their users need: one for each level and one for users who are not listed.
type group struct {
	funded   bool
	rank     int
	users    int64
	accounts []string
}

// groupAccounts gives the places from the lowest to the highest. The lowest is
// that of jobs without a known account.
func groupAccounts(r *Ranking) []group {
	need := make(map[string]int64, len(r.Accounts))
	for i := range r.Users {
		u := &r.Users[i]
		need[u.Account] = max(need[u.Account], int64(u.Level)+2)
	}
	byPlace := make([]int, len(r.Accounts))
	for i := range byPlace {
		byPlace[i] = i
	}
	slices.SortStableFunc(byPlace, func(x, y int) int { return comparePlaces(&r.Accounts[x], &r.Accounts[y]) })
	groups := []group{{users: 1}}
	for i, index := range byPlace {
		account := &r.Accounts[index]
		if i == 0 || comparePlaces(&r.Accounts[byPlace[i-1]], account) != 0 {
			groups = append(groups, group{funded: account.Funded, rank: account.Rank, users: 1})
		}
		g := &groups[len(groups)-1]
		g.accounts = append(g.accounts, account.Name)
		g.users = max(g.users, need[account.Name])
	}
	return groups
}

// comparePlaces puts unfunded accounts first, then those without a rank, then
// the highest rank, which is the worst.
func comparePlaces(x, y *AccountStanding) int {
	if x.Funded != y.Funded {
		if y.Funded {
			return -1
		}
		return 1
	}
	if (x.Rank == 0) != (y.Rank == 0) {
		if x.Rank == 0 {
			return -1
		}
		return 1
	}
	return y.Rank - x.Rank
}

// radices is how many steps each digit has.
type radices struct {
	qos, nice int64
	users     int64 // at most, in each account
	rest      int64
	gaps      bool // QOS and nice have steps between the values seen
}

// fit finds radices with which all places together fit. If room is short, steps
// are given up in this order: of the rest down to 100; those between the QOS
// and nice values seen; of the users; of nice; of QOS; and the last of the
// rest. Steps given up merge neighbours: they never turn an order round.
func fit(groups []group, qos, nice []int64) radices {
	most := int64(1)
	for i := range groups {
		most = max(most, groups[i].users)
	}
	r := radices{users: most, rest: minRest, gaps: true}
	r.qos, r.nice = fullRadix(qos, true), fullRadix(nice, true)
	if !r.fits(groups, most) {
		r.gaps = false
		r.qos, r.nice = fullRadix(qos, false), fullRadix(nice, false)
	}
	for _, digit := range []*int64{&r.users, &r.nice, &r.qos, &r.rest} {
		r.shrink(digit, groups, most)
	}
	r.widen(groups, most)
	return r
}

// shrink makes a digit as large as fits, if anything fits, or else 1.
func (r *radices) shrink(digit *int64, groups []group, most int64) {
	full := *digit
	*digit = int64(sort.Search(int(full-1), func(i int) bool {
		*digit = full - int64(i)
		return r.fits(groups, most)
	}))
	*digit = full - *digit
}

// widen gives the room that is left to the rest, in powers of ten, so that the
// digits of a priority can be told apart by eye.
func (r *radices) widen(groups []group, most int64) {
	for r.rest >= minRest && r.rest < maxRest {
		r.rest *= 10
		if !r.fits(groups, most) {
			r.rest /= 10
			return
		}
	}
}

func (r *radices) fits(groups []group, most int64) bool {
	if !productFits(maxColumn, min(most, r.users), r.nice, r.rest) {
		return false
	}
	var steps int64
	for i := range groups {
		steps += min(groups[i].users, r.users)
	}
	return productFits(MaxStrict-1, steps, r.qos, r.nice, r.rest)
}

// productFits tells whether the product of the factors is at most limit.
func productFits(limit int64, factors ...int64) bool {
	for _, f := range factors {
		if f > limit {
			return false
		}
		limit /= f
	}
	return true
}

// levels gives each of the values seen a step of its own, in their order, and
// others the steps between.
type levels struct {
	values []int64 // ascending
	gaps   bool
	full   int64 // steps there are
	radix  int64 // steps they are merged into
}

func newLevels(seen map[int64]struct{}, always ...int64) levels {
	values := append(slices.Collect(maps.Keys(seen)), always...)
	slices.Sort(values)
	return levels{values: slices.Compact(values)}
}

func (l levels) with(gaps bool, radix int64) levels {
	l.gaps, l.full, l.radix = gaps, fullRadix(l.values, gaps), radix
	return l
}

func fullRadix(values []int64, gaps bool) int64 {
	if gaps {
		return 2*int64(len(values)) + 1
	}
	return max(int64(len(values)), 1)
}

// step is the step of a value: it never falls as the value rises.
func (l *levels) step(value int64) int64 {
	i, seen := slices.BinarySearch(l.values, value)
	step := int64(i)
	switch {
	case l.gaps && seen:
		step = 2*step + 1
	case l.gaps:
		step *= 2
	case !seen:
		step = max(step-1, 0)
	}
	return merge(step, l.full, l.radix)
}

// merge maps full steps to fewer, or as many, in order.
func merge(step, full, radix int64) int64 {
	if radix >= full {
		return step
	}
	return step * radix / full
}

// Priority works out the job's priority into f, and those of its Parts. It
// reuses f.TRES if that is large enough. All columns are whole numbers and add
// up to the priority exactly:
//
//   - Fairshare: the place of the account and of the user
//   - QOS: the QOS digit
//   - Nice: how far below nice 0 the job is put, 0 for nice 0
//   - the others: the rest
func (s *Strict) Priority(job *Job, f *Factors) {
	f.reset(len(s.rest.weights.TRES))
	sl, user := s.place(job)
	zero := s.nice.step(0)
	down := (s.nice.step(job.Nice) - zero) * sl.nice
	fairshare := sl.base + (s.nice.radix-1-zero)*sl.nice + user*s.rest.radix
	qos := s.qos.step(int64(job.QOSPriority)) * sl.qos
	f.Fairshare, f.QOS, f.Nice = float64(fairshare), float64(qos), down
	above := fairshare + qos - down
	f.Priority = uint32(above + s.rest.fill(job, f))
	for i := range job.Parts {
		part := &job.Parts[i]
		part.Priority = uint32(above + s.rest.part(f, part))
	}
}

// place finds the job's account and the step of its user.
func (s *Strict) place(job *Job) (sl slot, user int64) {
	sl, known := s.slots[job.Account]
	if !known {
		return s.nowhere, 0
	}
	if u, member := s.ranking.User(job.Account, job.User); member {
		user = merge(sl.full-1-int64(u.Level), sl.full, sl.users)
	}
	return sl, user
}

// rest is the last digit: Slurm's weighted sum, scaled so that the largest sum
// there can be fills the digit.
type rest struct {
	weights Weights
	size    ClusterSize
	radix   int64
	scale   float64 // steps for each point of the weighted sum
	siteLow int64
}

// newRest scales the digit. If slurm.conf gives no weights at all, age alone
// fills it.
func newRest(w Weights, size ClusterSize, seen *Seen, radix int64) rest {
	span := float64(seen.siteHigh) - float64(seen.siteLow)
	largest := func() float64 {
		sum := float64(w.Age) + float64(w.JobSize) + span
		sum += float64(w.Assoc) * max(seen.maxAssoc, 1)
		sum += float64(w.Partition) * max(seen.maxPartition, 1)
		for i, weight := range w.TRES {
			most := 1.0
			if i < len(seen.maxTRES) {
				most = max(most, seen.maxTRES[i])
			}
			sum += factor(weight) * most
		}
		return sum
	}
	if largest() == 0 {
		w.Age = 1
	}
	return rest{weights: w, size: size, radix: radix, scale: float64(radix-1) / largest(), siteLow: seen.siteLow}
}

// fill sets the columns of the rest and returns their sum, which is at most
// radix-1: what would be more is cut off the columns in their order here.
func (r *rest) fill(job *Job, f *Factors) int64 {
	w, left := &r.weights, r.radix-1
	f.Age = float64(r.take(&left, float64(w.Age)*AgeFactor(job.Age, w.MaxAge)))
	f.JobSize = float64(r.take(&left, float64(w.JobSize)*SizeFactor(job, w, r.size)))
	f.Assoc = float64(r.take(&left, float64(w.Assoc)*factor(job.AssocFactor)))
	f.Site = r.take(&left, float64(job.Site)-float64(r.siteLow))
	f.Partition = float64(r.take(&left, float64(w.Partition)*factor(job.PartitionFactor)))
	for i := range min(len(w.TRES), len(job.TRES)) {
		f.TRES[i] = float64(r.take(&left, factor(w.TRES[i])*factor(job.TRES[i])))
	}
	return r.radix - 1 - left
}

// part is the rest in one of several partitions, f being filled.
func (r *rest) part(f *Factors, part *JobPart) int64 {
	w, left := &r.weights, r.radix-1-int64(f.Age+f.JobSize+f.Assoc)-f.Site
	r.take(&left, float64(w.Partition)*factor(part.Factor))
	for i := range min(len(w.TRES), len(part.TRES)) {
		r.take(&left, factor(w.TRES[i])*factor(part.TRES[i]))
	}
	return r.radix - 1 - left
}

// take turns points of the weighted sum into whole steps, of those left.
func (r *rest) take(left *int64, points float64) int64 {
	steps := int64(min(max(points*r.scale, 0), float64(*left)))
	*left -= steps
	return steps
}
