// SPDX-License-Identifier: GPL-2.0-or-later

package explain

import (
	"cmp"
	"math"
	"slices"

	"gpubudget/fairshare"
)

// Assoc is one of Slurm's associations as Slurm's commands show it.
type Assoc struct {
	ID        uint32
	Subject          // an account, or a user in it
	Partition string // of a user's that counts in one partition only
	Above     int    // the place of the account that it is in or stands below; -1 for root
	// Shares is Fairshare as it was set; with ParentShares it was set to "parent".
	Shares       uint32
	ParentShares bool
	Usage        float64 // RawUsage, to a hundredth
	Shown        Shown
}

// Shown is what slurmctld has made of it in its last pass, to six decimals, and its
// usage without decimals. NaN is what isn't shown.
type Shown struct {
	Usage, SharesNorm, UsageNorm, UsageEffective, LevelFS, Factor float64
}

// NotShown is nothing that slurmctld has made of an association.
func NotShown() Shown { nan := math.NaN(); return Shown{nan, nan, nan, nan, nan, nan} }

// usageShown is by how much a usage that is shown may be wrong.
const usageShown = 0.005

// Slurm is how all of Slurm's associations stand by its own shares.
type Slurm struct {
	Policy fairshare.SlurmPolicy
	// Behind: usage or shares have changed since slurmctld's last pass, by which
	// associations still stand.
	Behind bool

	assocs []Assoc
	now    []fairshare.Association // as slurmctld shows them, to more digits where these follow
	next   []fairshare.Association // as fairshare works it out of what is given now
	users  int
}

// NewSlurm works out how associations stand. Root comes first, and every other
// behind the account it is in. Slurm doesn't say in which of two ways Fair Tree has
// treated ties: it is the other than the policy's if only that leads to what is shown.
func NewSlurm(assocs []Assoc, p fairshare.SlurmPolicy) (*Slurm, error) {
	s := &Slurm{assocs: assocs}
	if err := s.reckon(p); err != nil || !s.Behind || !p.FairTree {
		return s, err
	}
	other := &Slurm{assocs: assocs}
	p.TiesApart = !p.TiesApart
	if err := other.reckon(p); err != nil || other.Behind {
		return s, err
	}
	return other, nil
}

func (s *Slurm) reckon(p fairshare.SlurmPolicy) error {
	s.Policy, s.next = p, make([]fairshare.Association, len(s.assocs))
	for i := range s.assocs {
		a := &s.assocs[i]
		s.next[i] = fairshare.Association{Parent: s.rivalsBelow(i), User: a.User != "", Shares: a.Shares, ParentShares: a.ParentShares, Usage: a.Usage}
		if a.User != "" {
			s.users++
		}
	}
	if err := fairshare.SlurmShares(s.next, p); err != nil {
		return err
	}
	s.Behind = !s.agree()
	s.now = s.shown()
	return nil
}

// rivalsBelow is below which association i competes: the nearest above that has
// shares of its own.
func (s *Slurm) rivalsBelow(i int) int {
	above := s.assocs[i].Above
	for above > 0 && s.assocs[above].ParentShares {
		above = s.assocs[above].Above
	}
	return above
}

// agree tells whether slurmctld shows what follows from what is given now.
func (s *Slurm) agree() bool {
	unsure := make([]float64, len(s.assocs)) // relative, as usage is shown to a hundredth
	for i := range s.assocs {
		a := &s.assocs[i]
		if a.Usage > 0 {
			unsure[i] = usageShown / a.Usage
		}
		if i == 0 {
			continue // Slurm works nothing out for root
		}
		unsure[i] += unsure[a.Above]
		got, want := &s.next[i], &a.Shown
		if !same(got.SharesNorm, want.SharesNorm, 0) || !same(got.UsageNorm, want.UsageNorm, unsure[i]) ||
			!same(got.UsageEffective, want.UsageEffective, unsure[i]) {
			return false
		}
		if s.Policy.FairTree && !a.ParentShares && !same(got.LevelFS, want.LevelFS, unsure[i]) {
			return false
		}
		ofFactor := unsure[i]
		if s.Policy.FairTree {
			ofFactor = 0 // it is a rank
		}
		if a.User != "" && !same(got.Factor, want.Factor, ofFactor) {
			return false
		}
	}
	return true
}

// same tells whether shown may be x, to six decimals.
func same(x, shown, unsure float64) bool {
	const half = 0.5000001e-6
	return x == shown || math.IsNaN(shown) || math.Abs(x-shown) <= half+x*unsure
}

// shown is how associations stand: as they follow from what is given now, if
// slurmctld shows the same to the last digit, else as it shows them.
func (s *Slurm) shown() []fairshare.Association {
	list := slices.Clone(s.next)
	take := func(to *float64, shown float64) {
		if !same(*to, shown, 0) {
			*to = shown
		}
	}
	for i := 1; i < len(list); i++ {
		a, shown := &list[i], &s.assocs[i].Shown
		take(&a.SharesNorm, shown.SharesNorm)
		take(&a.UsageNorm, shown.UsageNorm)
		take(&a.UsageEffective, shown.UsageEffective)
		if s.Policy.FairTree && !a.ParentShares {
			take(&a.LevelFS, shown.LevelFS)
		}
		if a.User {
			take(&a.Factor, shown.Factor)
		}
	}
	return list
}

// Find is the association of a user in an account, or of an account: of several
// the one that is for a partition, else the one for all.
func (s *Slurm) Find(of Subject, partition string) (place int, ok bool) {
	place = -1
	for i := range s.assocs {
		a := &s.assocs[i]
		switch {
		case a.Subject != of:
		case a.Partition == partition:
			return i, true
		case a.Partition == "":
			place = i
		}
	}
	return place, place >= 0
}

// FindAny is Find, but takes an association of any partition if there is no other.
func (s *Slurm) FindAny(of Subject) (place int, ok bool) {
	if place, ok = s.Find(of, ""); ok {
		return place, ok
	}
	place = slices.IndexFunc(s.assocs, func(a Assoc) bool { return a.Subject == of })
	return place, place >= 0
}

// Accounts are the names of all accounts.
func (s *Slurm) Accounts() []string {
	var names []string
	for i := range s.assocs {
		if a := &s.assocs[i]; a.User == "" {
			names = append(names, a.Account)
		}
	}
	return names
}

// Next is how an association will stand after slurmctld's next pass, if nothing
// changes until then.
func (s *Slurm) Next(place int) fairshare.Association { return s.next[place] }

// SlurmLevel is how one step of the path stands.
type SlurmLevel struct {
	Assoc
	fairshare.Association

	Depth int
	// Ratio is the factor by classic fair share, of an account as well.
	Ratio float64
	// Place is the place among the Of rivals that this one is compared with, itself
	// included: equals share a place. 0 for root, and for an account with its
	// parent's shares.
	Place, Of int
	// Rank is that of a user among all Users; 0 of an account.
	Rank, Users int
}

// SlurmExplanation is how a subject stands by Slurm's shares, and why.
type SlurmExplanation struct {
	Subject Subject
	Path    []SlurmLevel // empty for a job without an association
	Ahead   []Rival
	Changes []SlurmChange
}

// Path is the levels from root to an association.
func (s *Slurm) Path(place int) (path []SlurmLevel) {
	for i := place; i >= 0; i = s.assocs[i].Above {
		path = append(path, s.level(i))
	}
	slices.Reverse(path)
	for depth := range path {
		path[depth].Depth = depth
	}
	return path
}

func (s *Slurm) level(i int) SlurmLevel {
	l := SlurmLevel{Assoc: s.assocs[i], Association: s.now[i], Ratio: s.ratio(i), Users: s.users}
	if i > 0 && s.competes(i) {
		for j := range s.now {
			if j > 0 && s.now[j].Parent == s.now[i].Parent && s.competes(j) {
				l.Of++
				if s.score(j) > s.score(i) {
					l.Place++
				}
			}
		}
		l.Place++
	}
	if s.assocs[i].User != "" {
		l.Rank = s.rank(i)
	}
	return l
}

// competes tells whether an association has rivals. An account with its parent's
// shares has none: those in it have.
func (s *Slurm) competes(i int) bool { return s.assocs[i].User != "" || !s.assocs[i].ParentShares }

// score is what rivals are compared by.
func (s *Slurm) score(i int) float64 {
	if s.Policy.FairTree {
		return s.now[i].LevelFS
	}
	return s.ratio(i)
}

func (s *Slurm) ratio(i int) float64 {
	a := &s.now[i]
	if s.assocs[i].User != "" {
		return a.Factor
	}
	return fairshare.ClassicFactor(a.UsageEffective, a.SharesNorm, s.Policy.Damping)
}

func (s *Slurm) rank(i int) int {
	rank := 1
	for j := range s.now {
		if s.assocs[j].User != "" && s.now[j].Factor > s.now[i].Factor {
			rank++
		}
	}
	return rank
}

// ---- who is ahead ----

// Job explains a job of the association at place, -1 if it has none, in each of the
// partitions it names. All is everything that waits, the job included.
func (s *Slurm) Job(place int, job, all []Pending) *SlurmExplanation {
	e := &SlurmExplanation{Subject: job[0].Owner}
	if place >= 0 {
		e.Path = s.Path(place)
	}
	found := rivals{of: map[rivalKey]*Rival{}}
	for _, f := range firstAhead(job, all) {
		found.add(f.theirs.Owner, 0, f.theirs.Tasks, f.theirs.Tasks*f.theirs.GPUs, s.why(f.mine, f.theirs))
	}
	e.Ahead = found.sorted()
	if gap := pointsMissing(job, all); gap > 0 {
		e.Changes = append(e.Changes, SlurmChange{Kind: Points, Points: gap})
	}
	if theirs, ok := s.nearest(e.Ahead); ok && place >= 0 {
		e.Changes = append(e.Changes, s.changes(place, theirs)...)
	}
	return e
}

// Waiting explains how an account or a user in it stands, and whose jobs that wait
// are of somebody who has more by fair share.
func (s *Slurm) Waiting(place int, all []Pending) *SlurmExplanation {
	e := &SlurmExplanation{Subject: s.assocs[place].Subject, Path: s.Path(place)}
	found, seen := rivals{of: map[rivalKey]*Rival{}}, map[uint32]bool{}
	for i := range all {
		p := &all[i]
		theirs, ok := s.Find(p.Owner, p.Partition)
		if !ok || seen[p.JobID] || s.within(theirs, place) || s.order(s.now, place, theirs) >= 0 {
			continue
		}
		seen[p.JobID] = true
		found.add(p.Owner, 0, p.Tasks, p.Tasks*p.GPUs, Why{Cause: Tree, Parting: s.parting(place, theirs), Standing: s.standing(place, theirs)})
	}
	e.Ahead = found.sorted()
	theirs, ok := s.nearest(e.Ahead)
	if !ok {
		theirs, ok = s.nearestOfAll(place)
	}
	if ok {
		e.Changes = s.changes(place, theirs)
	}
	return e
}

// sorted is what was collected, in the order in which it was met.
func (r *rivals) sorted() (list []Rival) {
	for _, rival := range r.order {
		list = append(list, *rival)
	}
	return list
}

// why tells why their job comes before mine.
func (s *Slurm) why(mine, theirs *Pending) Why {
	if mine.setByHand() || theirs.setByHand() {
		return Why{Cause: SetByHand}
	}
	why := whySum(mine, theirs)
	if why.Column != fairshareColumn {
		return why
	}
	a, mineKnown := s.Find(mine.Owner, mine.Partition)
	b, theirsKnown := s.Find(theirs.Owner, theirs.Partition)
	if mineKnown && theirsKnown {
		why.Parting, why.Standing = s.parting(a, b), s.standing(a, b)
	}
	return why
}

func (s *Slurm) standing(mine, theirs int) *Standing {
	return &Standing{Mine: s.now[mine], Theirs: s.now[theirs], MineRatio: s.ratio(mine), TheirsRatio: s.ratio(theirs)}
}

// parting is where two paths part in Fair Tree; nil in classic fair share, where a
// factor is compared with all others.
func (s *Slurm) parting(mine, theirs int) *Parting {
	if !s.Policy.FairTree {
		return nil
	}
	p, _, _, ok := s.part(s.now, mine, theirs)
	if !ok {
		return nil
	}
	return &p
}

// part finds where two paths part, and the associations that are compared there.
// Equal accounts have those in them ranked together, unless ties are kept apart.
func (s *Slurm) part(list []fairshare.Association, mine, theirs int) (p Parting, a, b int, ok bool) {
	up, down := s.chain(mine), s.chain(theirs)
	p.Below = fairshare.RootAccount
	for i := range min(len(up), len(down)) {
		if up[i] == down[i] {
			p.Below = s.assocs[up[i]].Account
			continue
		}
		if ok {
			p.Tied = append(p.Tied, p.Pair)
		}
		a, b, ok = up[i], down[i], true
		p.Pair = Pair{s.side(list, a), s.side(list, b)}
		if p.Order() != 0 || s.Policy.TiesApart || s.assocs[a].User != "" || s.assocs[b].User != "" {
			break
		}
	}
	return p, a, b, ok
}

func (s *Slurm) side(list []fairshare.Association, i int) Side {
	return Side{Account: s.assocs[i].Account, User: s.assocs[i].User, LevelFS: list[i].LevelFS}
}

// chain is the steps from below root down to an association that have rivals.
func (s *Slurm) chain(i int) (steps []int) {
	for ; i > 0; i = s.next[i].Parent {
		if s.competes(i) {
			steps = append(steps, i)
		}
	}
	slices.Reverse(steps)
	return steps
}

// order is positive if mine has more by fair share, negative if theirs.
func (s *Slurm) order(list []fairshare.Association, mine, theirs int) int {
	if s.assocs[mine].User != "" && s.assocs[theirs].User != "" {
		return cmp.Compare(list[mine].Factor, list[theirs].Factor)
	}
	if s.Policy.FairTree {
		p, _, _, ok := s.part(list, mine, theirs)
		if !ok {
			return 0
		}
		return p.Order()
	}
	ratio := func(i int) float64 {
		if s.assocs[i].User != "" {
			return list[i].Factor
		}
		return fairshare.ClassicFactor(list[i].UsageEffective, list[i].SharesNorm, s.Policy.Damping)
	}
	return cmp.Compare(ratio(mine), ratio(theirs))
}

// within tells whether i is an association, or stands below it.
func (s *Slurm) within(i, above int) bool {
	for ; i >= 0; i = s.assocs[i].Above {
		if i == above {
			return true
		}
	}
	return false
}

// nearest is, of those whose jobs are ahead by fair share, the one with the least.
func (s *Slurm) nearest(ahead []Rival) (place int, ok bool) {
	for i := range ahead {
		r := &ahead[i]
		if r.Why.Standing == nil {
			continue
		}
		if theirs, known := s.FindAny(r.First); known && (!ok || s.order(s.now, place, theirs) > 0) {
			place, ok = theirs, true
		}
	}
	return place, ok
}

// nearestOfAll is of all users who have more by fair share the one with the least.
func (s *Slurm) nearestOfAll(mine int) (place int, ok bool) {
	for i := range s.assocs {
		if s.assocs[i].User == "" || s.within(i, mine) || s.order(s.now, mine, i) >= 0 {
			continue
		}
		if !ok || s.order(s.now, place, i) > 0 {
			place, ok = i, true
		}
	}
	return place, ok
}

// ---- what would change it ----

// SlurmChange is something that would bring the subject forward. Mine is the step of
// its path that decides against Theirs, on the path to Rival.
type SlurmChange struct {
	Kind         Kind
	Mine, Theirs Side
	Rival        Subject

	Points      int64   // more that are needed to pass the next job, of a Points
	Usage       float64 // that Rival has to add while Mine adds none, of a Usage
	Shares, Has uint32  // Fairshare with which Mine would not be behind, and now, of a Share
}

// Usage is how much the rival has to use until the subject isn't behind.
const Usage Kind = "usage"

// changes are what puts mine level with theirs, or before.
func (s *Slurm) changes(mine, theirs int) (changes []SlurmChange) {
	if s.order(s.next, mine, theirs) >= 0 {
		return nil // the next pass does
	}
	p, a, b, ok := s.part(s.next, mine, theirs)
	if !ok {
		return nil
	}
	change := SlurmChange{Mine: p.Mine, Theirs: s.side(s.next, b), Rival: s.assocs[theirs].Subject}
	if usage, ok := leastThat(maxUsage, func(n uint64) bool { return s.passes(mine, theirs, s.withUsage(theirs, float64(n))) }); ok {
		change.Kind, change.Usage = Usage, float64(usage)
		changes = append(changes, change)
	}
	has := s.assocs[a].Shares
	if s.assocs[a].ParentShares || has >= maxShares {
		return changes
	}
	more, ok := leastThat(uint64(maxShares-has), func(n uint64) bool { return s.passes(mine, theirs, s.withShares(a, has+uint32(n))) }) //nolint:gosec // at most maxShares
	if ok {
		change.Kind, change.Usage = Share, 0
		change.Shares, change.Has = has+uint32(more), has //nolint:gosec // likewise
		changes = append(changes, change)
	}
	return changes
}

const (
	maxUsage  = 1 << 53
	maxShares = 1 << 30 // beyond it Slurm's sums of shares come near their end
)

// leastThat is the least number from 1 to most that does something which all larger
// ones do as well.
func leastThat(most uint64, does func(n uint64) bool) (n uint64, ok bool) {
	low, high := uint64(0), uint64(1)
	for !does(high) {
		if high == most {
			return 0, false
		}
		low, high = high, min(high*2, most)
	}
	for high-low > 1 {
		if middle := low + (high-low)/2; does(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return high, true
}

func (s *Slurm) passes(mine, theirs int, list []fairshare.Association) bool {
	err := fairshare.SlurmShares(list, s.Policy)
	return err == nil && s.order(list, mine, theirs) >= 0
}

// withUsage has somebody use more, and so all that he stands below.
func (s *Slurm) withUsage(i int, more float64) []fairshare.Association {
	list := slices.Clone(s.next)
	for ; i >= 0; i = s.assocs[i].Above {
		list[i].Usage += more
	}
	return list
}

func (s *Slurm) withShares(i int, shares uint32) []fairshare.Association {
	list := slices.Clone(s.next)
	list[i].Shares = shares
	return list
}
