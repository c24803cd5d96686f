// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"cmp"
	"slices"
)

// Strict packs the order of jobs into a number, like the digits of one:
//
//	funded, account rank | QOS priority | nice | user | rest
//
// the most significant first. A job of a better-placed account is before all
// jobs of a worse-placed one, whatever else they have; within the account the
// declared priority decides, then which user is further behind what he is due,
// and then the rest: the weighted sum of age, size, partition, association,
// TRES and site factor. Jobs that ask to be unallocated come after all that are
// allocated, in the same order but for the users. A Strict can be used from
// several goroutines.
type Strict struct {
	ranking *Ranking
	qos     levels
	rest    rest
	slots   []*slot // by account, as in ranking
	order   []*slot // from the lowest
	nowhere *slot   // for jobs of unknown accounts
	basis   []footing
	scratch []footing // for reuse
}

// footing is what of an account's standing decides which range of priorities it
// has.
type footing struct {
	funded bool
	rank   int
	steps  int64 // that its users need
}

// slot is the range of priorities of the accounts that share a place.
type slot struct {
	index             uint32 // in Strict.order
	base              int64  // what nice 0 of the lowest QOS priority and user has
	nice              levels
	zero              int64 // the step of nice 0
	full              int64 // steps that its users need
	users             int64 // steps they have
	niceUnit, qosUnit int64
	unallocated       *slot // of its jobs that ask to be unallocated; itself if all its jobs are
}

// NewStrict prepares the priorities of one pass. A nil seen is an empty one.
func NewStrict(r *Ranking, w Weights, size ClusterSize, seen *Seen) *Strict {
	if seen == nil {
		seen = &Seen{}
	}
	p := packing{groups: groupAccounts(r, seen), qos: seen.qos.sorted()}
	radix := p.fit()
	s := &Strict{
		ranking: r,
		qos:     newLevels(p.qos, radix.gaps, radix.qos),
		rest:    newRest(w, size, seen, radix.rest),
		slots:   make([]*slot, len(r.Accounts)),
		basis:   footings(nil, r),
	}
	s.assign(p.groups, radix)
	return s
}

// Follow is the priorities by another ranking of the same budget, with the same
// values seen as s was made with. If no account has changed places, s is changed
// and returned: much less work than a new one.
func (s *Strict) Follow(r *Ranking, seen *Seen) *Strict {
	if s.scratch = footings(s.scratch[:0], r); !r.Seats(s.ranking) || !slices.Equal(s.basis, s.scratch) {
		return NewStrict(r, s.rest.weights, s.rest.size, seen)
	}
	s.ranking = r
	return s
}

// footings appends those of all accounts.
func footings(to []footing, r *Ranking) []footing {
	next := 0
	for i := range r.Accounts {
		a := &r.Accounts[i]
		f := footing{a.Funded, a.Rank, 0}
		for ; next < len(r.Users) && r.Users[next].Account == a.Name; next++ {
			f.steps = max(f.steps, int64(r.Users[next].Level)+2)
		}
		to = append(to, f)
	}
	return to
}

// assign gives the groups their ranges, one above the other, from 1.
func (s *Strict) assign(groups []group, radix radices) {
	lowest := int64(1)
	unallocated := make([]*slot, len(s.slots))
	for i := range groups {
		g := &groups[i]
		sl := newSlot(g, radix, lowest)
		lowest += radix.qos * sl.qosUnit
		sl.index, sl.unallocated = Length(s.order), &sl
		s.order = append(s.order, &sl)
		if i == 0 {
			s.nowhere = &sl
		}
		slots := s.slots
		if g.unallocated {
			slots = unallocated
		}
		for _, a := range g.accounts {
			slots[a] = &sl
		}
		if g.funded {
			sl.unallocated = cmp.Or(unallocated[g.accounts[0]], s.nowhere)
		}
	}
}

func newSlot(g *group, radix radices, lowest int64) slot {
	sl := slot{full: g.users, users: min(g.users, radix.users), nice: newLevels(g.nice, radix.gaps, radix.nice)}
	sl.niceUnit = sl.users * radix.rest
	sl.qosUnit = sl.nice.steps * sl.niceUnit
	sl.zero = sl.nice.step(0)
	sl.base = lowest + (sl.nice.steps-1-sl.zero)*sl.niceUnit
	return sl
}

// Priority works out the job's priority into f, and those of its Parts. It
// reuses f.TRES if that is large enough. All columns are whole numbers and add
// up to the priority exactly:
//
//   - Fairshare: the place of the account and of the user; 0 if the account is
//     funded and the job asks to be unallocated
//   - QOS: the QOS digit; of such a job its place as well
//   - Nice: how far below nice 0 the job is put, 0 for nice 0
//   - the others: the rest
func (s *Strict) Priority(job *Job, f *Factors) {
	s.PriorityAt(s.ranking.Seat(job.Account, job.User), job, f)
}

// PriorityAt is Priority for who knows the seat of the job's account and user.
func (s *Strict) PriorityAt(seat Seat, job *Job, f *Factors) {
	f.reset(len(s.rest.weights.TRES))
	sl, user := s.at(seat)
	fairshare, place := sl.fairshare(user, &s.rest), int64(0)
	if job.Unallocated && sl.unallocated != sl {
		sl = sl.unallocated
		fairshare, place = 0, sl.base
	}
	qos := place + s.qos.step(int64(job.QOSPriority))*sl.qosUnit
	nice := (sl.nice.step(job.Nice) - sl.zero) * sl.niceUnit
	f.Fairshare, f.QOS, f.Nice = float64(fairshare), float64(qos), nice
	above := fairshare + qos - nice
	f.Priority = uint32(above + s.rest.fill(job, f))
	for i := range job.Parts {
		part := &job.Parts[i]
		part.Priority = uint32(above + s.rest.part(f, part))
	}
}

// fairshare is what the places of the account and of the user come to.
func (sl *slot) fairshare(user int64, r *rest) int64 { return sl.base + user*r.steps }

// find finds the range of an account and the step of its user.
func (s *Strict) find(account, name string) (sl *slot, user int64) {
	return s.at(s.ranking.Seat(account, name))
}

// at is find for who knows the seat.
func (s *Strict) at(seat Seat) (sl *slot, user int64) {
	if seat.account == 0 {
		return s.nowhere, 0
	}
	sl = s.slots[seat.account-1]
	if _, u := s.ranking.At(seat); u != nil {
		user = merge(sl.full-1-int64(u.Level), sl.full, sl.users)
	}
	return sl, user
}
