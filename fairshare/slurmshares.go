// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"fmt"
	"math"
)

// Association is one of slurmdbd's associations, an account's or a user's in an
// account, and how it stands by Slurm's own reckoning: that of
// priority/multifactor, from the shares it was given and its RawUsage.
type Association struct {
	// Parent is the place in the list of the association whose children are
	// this one's rivals: the nearest above that has shares of its own. Root,
	// the first, has none; all others come behind theirs.
	Parent int
	User   bool
	// Shares is Fairshare as it was set; with ParentShares it was set to
	// "parent".
	Shares       uint32
	ParentShares bool
	// Usage is RawUsage in seconds times billed TRES, and UsageRest what a
	// float leaves out of it.
	Usage, UsageRest float64

	// SharesNorm is its part of the shares, 0 to 1: by Fair Tree of those of its
	// rivals, in classic fair share of the whole cluster.
	SharesNorm float64
	// UsageNorm is its part of the cluster's usage, 0 to 1.
	UsageNorm float64
	// UsageEffective is by Fair Tree its part of its parent's usage; in classic
	// fair share UsageNorm corrected by what those above it used.
	UsageEffective float64
	// LevelFS is its level fair share, by Fair Tree only; +Inf is possible. It
	// means nothing for an account with ParentShares.
	LevelFS float64
	// Factor is the fair-share factor of its jobs, 0 to 1; of users only.
	Factor float64
}

// SlurmPolicy is how Slurm is told to reckon.
type SlurmPolicy struct {
	// FairTree and DepthOblivious are those of PriorityFlags.
	FairTree, DepthOblivious bool
	// Damping is FairShareDampeningFactor; 0 counts as 1.
	Damping uint32
	// TiesApart ranks accounts with equal level fair shares one after the
	// other, in the order of the list, as Slurm does. Otherwise their users are
	// ranked together, and what differs only by rounding is equal.
	TiesApart bool
}

// SlurmShares works out how all associations stand. It is an error if the list
// does not begin with root or a parent does not come before its children; then
// nothing has changed.
func SlurmShares(list []Association, p SlurmPolicy) error {
	if err := checkParents(list); err != nil || len(list) == 0 {
		return err
	}
	r := reckoning{list: list, policy: p, usage: make([]extended, len(list)), level: make([]uint32, len(list))}
	for i := range list {
		a := &list[i]
		r.usage[i] = extend(a.Usage, a.UsageRest)
		if i > 0 && !a.ParentShares {
			r.level[a.Parent] += a.Shares
		}
	}
	if p.FairTree {
		r.fairTree()
	} else {
		r.classic()
	}
	return nil
}

func checkParents(list []Association) error {
	for i := range list {
		if i > 0 && (list[i].Parent < 0 || list[i].Parent >= i) {
			return fmt.Errorf("association %d of %d comes before its parent", i, len(list))
		}
	}
	if len(list) > 0 && list[0].User {
		return fmt.Errorf("the first of %d associations is a user's, not root", len(list))
	}
	return nil
}

// reckoning is one run of SlurmShares.
type reckoning struct {
	list   []Association
	policy SlurmPolicy
	usage  []extended
	level  []uint32 // shares of all children together
}

// usageNorm is an association's part of the cluster's usage. It can exceed the
// whole for a while after the half-life was changed.
func (r *reckoning) usageNorm(i int) float64 {
	if r.usage[0].mant == 0 {
		return 0
	}
	high, _ := r.usage[i].over(r.usage[0]).split()
	return min(high, 1)
}

// given is the association whose shares count for i.
func (r *reckoning) given(i int) int {
	if i > 0 && r.list[i].ParentShares {
		return r.list[i].Parent
	}
	return i
}

// ofLevel is the part that i's shares are of those of its rivals.
func (r *reckoning) ofLevel(i int) float64 {
	if i == 0 || r.level[r.list[i].Parent] == 0 {
		return 0
	}
	return float64(r.list[i].Shares) / float64(r.level[r.list[i].Parent])
}

// ---- Fair Tree ----

func (r *reckoning) fairTree() {
	t := newFairTree(len(r.list), len(r.list))
	t.apart = r.policy.TiesApart
	users := 0
	for i := range r.list {
		r.standInLevel(t, i)
		if r.list[i].User {
			users++
		}
	}
	t.visit(t.children[0], false)
	for i := range r.list {
		if r.list[i].User {
			r.list[i].Factor = float64(users-t.ranks[i]+1) / float64(users)
		}
	}
}

// slurmNoLevel stands for the level fair share of an account with its parent's
// shares in Slurm's lists, and is compared like any other there.
const slurmNoLevel = 0xfffffffe

// standInLevel works out how i stands among its rivals, and enters it into the
// tree. An account with its parent's shares has no rivals: its children compete
// in its stead. Slurm lists it beside them all the same. There is nobody left in
// it to be given a rank, but if it comes first it ends a tie: whoever follows
// does not share the last rank that was given before this level.
func (r *reckoning) standInLevel(t *fairTree, i int) {
	a := &r.list[i]
	a.UsageNorm, a.SharesNorm, a.Factor = r.usageNorm(i), r.ofLevel(r.given(i)), 0
	a.UsageEffective, a.LevelFS = 1, 0
	if i == 0 {
		return
	}
	var used extended
	if above := r.usage[a.Parent]; above.mant != 0 {
		used = r.usage[i].over(above)
	}
	a.UsageEffective, _ = used.split()
	e := entry{account: i, leaf: -1}
	if a.User {
		e.account, e.leaf = -1, i
	}
	e.levelFS, e.rest = r.levelFS(a, used)
	a.LevelFS = e.levelFS
	if !r.policy.TiesApart {
		e.levelFS, e.rest = comparable40(e.levelFS), 0
	}
	switch {
	case a.User || !a.ParentShares:
		t.children[a.Parent] = append(t.children[a.Parent], e)
	case r.policy.TiesApart:
		e.levelFS, e.rest = slurmNoLevel, 0
		t.children[a.Parent] = append(t.children[a.Parent], e)
	}
}

// levelFS is S/U. Users with their parent's shares stand before all others.
func (r *reckoning) levelFS(a *Association, used extended) (levelFS, rest float64) {
	switch {
	case a.ParentShares:
		return math.Inf(1), 0
	case a.SharesNorm == 0:
		return 0, 0
	case used.mant == 0:
		return math.Inf(1), 0
	}
	return exactly(a.SharesNorm).over(used).split()
}

// ---- classic fair share ----

func (r *reckoning) classic() {
	siblings := r.siblingUsage()
	for i := range r.list {
		a := &r.list[i]
		a.UsageNorm, a.LevelFS, a.Factor = r.usageNorm(i), 0, 0
		a.SharesNorm = r.sharesNorm(i)
		a.UsageEffective = r.effective(i, siblings)
		if a.User {
			of := &r.list[r.given(i)]
			a.Factor = ClassicFactor(of.UsageEffective, of.SharesNorm, r.policy.Damping)
		}
	}
}

// ClassicFactor is 2 to the power of -(usage/shares/damping): 1 if nothing was
// used, 1/2 if as much as is due, 0 if nothing is due. A damping of 0 counts as 1.
func ClassicFactor(usage, shares float64, damping uint32) float64 {
	if !(shares > 0) {
		return 0
	}
	return math.Pow(2, -(usage / shares / float64(max(damping, 1))))
}

// siblingUsage is, by parent, the normalized usage of those of its children that
// have shares of their own.
func (r *reckoning) siblingUsage() []float64 {
	if !r.policy.DepthOblivious {
		return nil
	}
	sums := make([]float64, len(r.list))
	for i := 1; i < len(r.list); i++ {
		if a := &r.list[i]; !a.ParentShares {
			sums[a.Parent] += r.usageNorm(i)
		}
	}
	return sums
}

// sharesNorm is i's part of the cluster: the product of its parts of all levels
// up to root.
func (r *reckoning) sharesNorm(i int) float64 {
	if given := r.given(i); given != i {
		return r.list[given].SharesNorm
	}
	part := 1.0
	for ; i > 0; i = r.list[i].Parent {
		part *= r.ofLevel(i)
	}
	return part
}

// effective is i's usage with a part of what others of the same parent used:
// who shares with a hog is served later.
func (r *reckoning) effective(i int, siblings []float64) float64 {
	if i == 0 {
		return 1
	}
	a := &r.list[i]
	parent := &r.list[a.Parent]
	switch {
	case a.Parent == 0:
		return a.UsageNorm
	case a.ParentShares:
		return parent.UsageEffective
	case r.policy.DepthOblivious:
		return depthOblivious(a, parent, siblings[a.Parent])
	case r.level[a.Parent] == 0:
		return parent.UsageEffective
	}
	return a.UsageNorm + (parent.UsageEffective-a.UsageNorm)*r.ofLevel(i)
}

// depthOblivious is the effective usage with the flag DEPTH_OBLIVIOUS: such that
// usage over shares is that of the parent times that of i among its siblings,
// the latter the weaker the further the parent is from its due, if it would make
// up for it.
func depthOblivious(a, parent *Association, siblings float64) float64 {
	if a.SharesNorm == 0 || parent.SharesNorm == 0 || parent.UsageEffective == 0 || a.UsageNorm == 0 {
		return a.UsageNorm
	}
	const strength = 5
	above := parent.UsageEffective / parent.SharesNorm
	here := a.UsageNorm / a.SharesNorm / (siblings / parent.SharesNorm)
	weight := 1.0
	if math.Log(above)*math.Log(here) < 0 {
		weight = 1 / (1 + math.Pow(strength*math.Log(above), 2))
	}
	return above * math.Pow(here, weight) * a.SharesNorm
}
