// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"math"

	"gpubudget/budgets"
	"gpubudget/fairshare"
)

// scorer is fairshare.Strict or fairshare.Additive.
type scorer interface {
	Priority(job *fairshare.Job, f *fairshare.Factors)
	Table() *fairshare.Table
	RowAt(seat fairshare.Seat) fairshare.Row
}

// capacity puts what the database knew and what was seen since together, by what
// GPUs count for. The last value holds on.
func capacity(stored []fairshare.Step[fairshare.MilliGPUs], seen []capacityStep, weights fairshare.GPUWeights) []fairshare.Step[fairshare.MilliGPUs] {
	steps := make([]fairshare.Step[fairshare.MilliGPUs], 0, len(stored)+len(seen))
	for _, step := range stored {
		if len(seen) > 0 && step.From >= seen[0].at {
			break
		}
		steps = append(steps, step)
	}
	if n := len(steps); n > 0 && len(seen) > 0 {
		steps[n-1].Until = seen[0].at
	}
	holdings := make([]fairshare.Step[fairshare.Holding], 0, len(seen))
	for i, change := range seen {
		p := fairshare.Period{From: change.at, Until: fairshare.Never}
		if i+1 < len(seen) {
			p.Until = seen[i+1].at
		}
		holdings = append(holdings, fairshare.Step[fairshare.Holding]{Period: p, Value: change.gpus})
	}
	steps = append(steps, weights.Capacity(holdings)...)
	if n := len(steps); n > 0 {
		steps[n-1].Until = fairshare.Never
	}
	return steps
}

// prepare makes ready to give jobs their priorities, as of now.
func (e *Engine) prepare(now fairshare.Instant) {
	size := fairshare.ClusterSize{Nodes: e.size.Nodes, CPUs: e.size.CPUs}
	if e.slurm.inForce {
		e.slurm.scorer = fairshare.NewAdditive(nil, e.weights, size)
		e.scorer = e.slurm.scorer
		e.table = e.scorer.Table()
		e.openGate()
		return
	}
	e.ranking, e.rankedBy = e.rank(now), e.snapshot
	e.ranked(now)
	if e.snapshot != nil {
		e.owners.standing = e.ranking
	}
	e.openGate()
	if e.snapshot != nil && e.snapshot.Policy.Mode == budgets.Additive {
		e.scorer = fairshare.NewAdditive(e.ranking, e.weights, size)
	} else {
		e.scorer = fairshare.NewStrict(e.ranking, e.weights, size, &e.seen)
	}
	e.table = e.scorer.Table()
}

// describe says all of a table but the arrays, of which it gives the lengths.
// It writes no pointer: the memory is not Go's.
func describe(from *fairshare.Table, generation uint64, to *Table) {
	w, as := &from.Weights, &to.Weights
	as.Generation = generation
	as.Age, as.Assoc, as.Fairshare, as.JobSize, as.Partition, as.QOS = w.Age, w.Assoc, w.Fairshare, w.JobSize, w.Partition, w.QOS
	as.MaxAge, as.Flags, as.FavorSmall, as.Damping = w.MaxAge, uint32(w.Flags), truth(w.FavorSmall), w.Damping
	as.TRESCount = fairshare.Length(w.TRES)
	to.Nodes, to.CPUs, to.Packed, to.Unallocated = from.Size.Nodes, from.Size.CPUs, truth(from.Packed), 0
	to.QOSCount, to.NiceCount, to.SlotCount = fairshare.Length(from.QOS), fairshare.Length(from.Nice), fairshare.Length(from.Slots)
	to.RestSteps, to.RestScale, to.SiteLow, to.Band = from.RestSteps, from.RestScale, from.SiteLow, from.Band
	to.Unknown = placeOf(from.Unknown)
}

func placeOf(r fairshare.Row) Place { return Place{Fairshare: r.Fairshare, Slot: r.Slot} }

func truth(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// standing fills in how one association stands, or one owner of jobs without.
func (e *Engine) standing(a *Assoc) {
	a.Known, a.Place = 0, Place{}
	if e.slurm.inForce {
		if e.slurm.scorer != nil {
			a.Place = placeOf(e.slurm.scorer.RowOf(e.slurm.factors[a.ID]))
		}
		return
	}
	seat := e.seats.of(a, e.owners, e.ranking)
	if e.scorer != nil {
		a.Place = placeOf(e.scorer.RowAt(seat))
	}
	if e.ranking != nil {
		showStanding(e.ranking, seat, a)
	}
}

// showStanding fills in what sshare shows of an association.
func showStanding(r *fairshare.Ranking, seat fairshare.Seat, a *Assoc) {
	account, user := r.At(seat)
	root := &r.Accounts[0]
	switch {
	case user != nil:
		a.Known, a.Factor = 1, user.Factor
		a.LevelFS, a.SharesNorm = boundedLevel(user.LevelFS), user.ShareOfCluster
		a.UsageSeconds, a.UsageNorm = gpuSeconds(user.Used), part(user.Used, root.Used)
	case account != nil && a.User.IsNil():
		a.Known, a.Factor = 1, 0
		a.LevelFS, a.SharesNorm = boundedLevel(account.LevelFS), account.ShareOfCluster
		a.UsageSeconds, a.UsageNorm = gpuSeconds(account.Used), part(account.Used, root.Used)
	}
}

// seats are where associations are in rankings. Names are looked up once, as long
// as the budget stays as it is; but compared they are each time, as users can be
// given others.
type seats struct {
	in  *fairshare.Ranking // one of those that the seats are of
	all []assocSeat        // by association
}

type assocSeat struct {
	fairshare.Seat

	found         bool
	account, user string // as Slurm has them
}

// of is the seat of an association, or of an owner of jobs without one.
func (s *seats) of(a *Assoc, owners *owners, r *fairshare.Ranking) fairshare.Seat {
	if r == nil {
		return fairshare.Seat{}
	}
	if a.ID == 0 || a.ID >= lowAssocs || a.Account.IsNil() {
		return findSeat(a, owners, r)
	}
	if !r.Seats(s.in) {
		s.in, s.all = r, nil
	}
	if missing := int(a.ID) + 1 - len(s.all); missing > 0 {
		s.all = append(s.all, make([]assocSeat, missing)...)
	}
	known := &s.all[a.ID]
	if !known.found || known.account != a.Account.borrow() || known.user != a.User.borrow() {
		*known = assocSeat{Seat: findSeat(a, owners, r), found: true, account: a.Account.String(), user: a.User.String()}
	}
	return known.Seat
}

func findSeat(a *Assoc, owners *owners, r *fairshare.Ranking) fairshare.Seat {
	name := owners.nameOf(a.Account, a.User, a.UserID)
	if a.ID != 0 && a.User.IsNil() {
		name.user = "" // an account's own: a guest stands there
	}
	return r.Seat(name.account, name.user)
}

// boundedLevel is a level fair share as it may leave the bridge.
func boundedLevel(x float64) float64 { return min(x, math.MaxFloat64) }

func gpuSeconds(g fairshare.GPUMillis) float64 { return float64(g) / 1000 }

// part is used as a part of all, 0 if there is none.
func part(used, all fairshare.GPUMillis) float64 {
	if all <= 0 {
		return 0
	}
	return float64(used) / float64(all)
}
