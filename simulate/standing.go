// SPDX-License-Identifier: GPL-2.0-or-later

package simulate

import (
	"slices"
	"time"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// standing is how everybody stands as of the last priority pass, and what
// priorities follow from it.
type standing struct {
	at     int64 // of the last pass
	passes int
	budget *fairshare.Budget
	seen   fairshare.Seen
	size   fairshare.ClusterSize

	ranker   *fairshare.Ranker
	numbers  []fairshare.Owner // by owner: his number to the ranker
	ranking  *fairshare.Ranking
	strict   *fairshare.Strict
	additive *fairshare.Additive // in its place
	seated   fairshare.Ranking   // whose seats these are; a copy, since ranks are written over
	seats    []fairshare.Seat    // by account: of who is no member
	members  []fairshare.Seat    // by owner
	places   []int32             // by account: its place, 1 is the most under-served
	worst    []int32             // accounts, the most over-served first
	funded   []bool              // by account
	keys     []uint32            // by kind of lane: its strict priority; 0 if nobody has asked
	yields   []int8              // by pair of accounts: can a job of the second yield to one of the first; 0 if nobody has asked. Then the same for patient requests

	shares  []fairshare.Association
	leaf    []int32 // by owner: his association
	factors fairshare.Factors
}

// unallocatedBelow is taken off the priority of what isn't charged, so that it
// comes after all that is.
const unallocatedBelow = 2 * fairshare.MaxStrict

func (st *standing) prepare(s *sim) {
	st.at = -1 << 60
	b := *s.cfg.Budget
	b.Capacity = s.cfg.Cluster.Capacity(s.cfg.Workload.Begin)
	st.budget = &b
	st.size = fairshare.ClusterSize{Nodes: uint32(s.cfg.Cluster.Nodes()), CPUs: uint32(s.cfg.Cluster.GPUs())}
	st.funded = make([]bool, len(s.names))
	st.places = make([]int32, len(s.names))
	st.yields = make([]int8, 2*len(s.names)*len(s.names))
	st.keys = make([]uint32, s.queue.kinds)
	for a := range s.names {
		st.worst = append(st.worst, int32(a))
	}
	for i := range s.queue.lanes {
		l := &s.queue.lanes[i]
		st.seen.Add(&fairshare.Job{Account: s.names[l.account], QOSPriority: l.qos})
	}
	st.ranking = fairshare.Rank(fairshare.Input{Budget: &fairshare.Budget{}})
	switch s.p.Kind {
	case Multifactor:
		st.associate(s)
		st.additive = fairshare.NewAdditive(nil, s.p.weights(), st.size)
	case Quota:
		tree := st.budget.Tree(s.instant(0))
		for i := range tree.Nodes {
			a := slices.Index(s.names, tree.Nodes[i].Name)
			if a >= 0 {
				s.accounts[a].quota = int64(tree.Nodes[i].ShareOfCluster*float64(s.cfg.Cluster.GPUs()) + 0.5)
			}
		}
	case Budgets:
		st.ranker = fairshare.NewRanker(st.budget)
		for _, o := range s.cfg.Workload.Owners {
			st.numbers = append(st.numbers, st.ranker.Owner(o.Account, o.User))
		}
	case FIFO:
	}
}

// refresh does a priority pass if one is due.
func (st *standing) refresh(s *sim) {
	if s.now < st.at+s.every.calc {
		return
	}
	st.at = s.now
	st.passes++
	switch s.p.Kind {
	case Budgets:
		if !st.rank(s) {
			return
		}
	case Multifactor:
		st.fairTree(s)
	case FIFO, Quota:
		return
	}
	for i := range s.queue.parts {
		p := &s.queue.parts[i]
		for _, n := range p.heap {
			st.key(s, &s.queue.lanes[n])
		}
		s.queue.heapify(p)
	}
}

// rank ranks everybody, with what each owner was charged in the window and what
// he is charged ahead. It tells whether any priority may have changed.
func (st *standing) rank(s *sim) (changed bool) {
	window := fairshare.Lookback(s.instant(s.now), s.p.Lookback)
	st.ranker.Begin(window, st.budget.Capacity)
	ahead := usage.ChargeAhead(fairshare.Millionths, s.p.Lookback)
	for i := range s.owners {
		g := &s.owners[i].gauge
		if used := g.within(s.now, s.every.lookback); used != 0 {
			st.ranker.Charge(st.numbers[i], window, fairshare.GPUMillis(used*1000))
		}
		if g.gpus != 0 {
			st.ranker.Ahead(st.numbers[i], ahead*fairshare.GPUMillis(g.gpus)) // whole GPUs: nothing is rounded
		}
	}
	before := st.ranking
	if s.p.Additive {
		st.ranking = st.ranker.Rank()
		st.additive = fairshare.NewAdditive(st.ranking, s.p.weights(), st.size)
	} else {
		st.ranking = st.ranker.Places()
	}
	st.seat(s)
	clear(st.yields)
	switch {
	case s.p.Additive:
	case st.strict == nil || s.straight:
		st.strict = fairshare.NewStrict(st.ranking, fairshare.Weights{MaxAge: uint32(s.p.MaxAge / time.Second)}, st.size, &st.seen)
	case samePlaces(before, st.ranking):
		return false
	default:
		st.strict = st.strict.Follow(st.ranking, &st.seen)
	}
	clear(st.keys)
	for a := range s.names {
		standing, _ := st.ranking.At(st.seats[a])
		st.funded[a] = standing != nil && standing.Funded
		st.places[a] = int32(len(st.ranking.Accounts) + 1)
		if standing != nil && standing.Rank > 0 {
			st.places[a] = int32(standing.Rank)
		}
	}
	slices.SortFunc(st.worst, func(a, b int32) int {
		if st.places[a] != st.places[b] {
			return int(st.places[b] - st.places[a])
		}
		return int(a - b)
	})
	return true
}

// seat finds everybody's seat, if they are others than before.
func (st *standing) seat(s *sim) {
	if st.ranking.Seats(&st.seated) {
		return
	}
	st.seated, st.seats, st.members = *st.ranking, st.seats[:0], st.members[:0]
	for _, name := range s.names {
		st.seats = append(st.seats, st.ranking.Seat(name, ""))
	}
	for _, o := range s.cfg.Workload.Owners {
		st.members = append(st.members, st.ranking.Seat(o.Account, o.User))
	}
}

// rivals are how the accounts of a request and of a running job stand to each other.
func (st *standing) rivals(a, b int32) fairshare.Rivals {
	if len(st.seats) == 0 {
		return fairshare.Rivals{} // nobody was ranked yet
	}
	return st.ranking.Rivals(st.seats[a], st.seats[b])
}

// weights are those of slurm.conf.
func (p *Policy) weights() fairshare.Weights {
	return fairshare.Weights{Fairshare: p.FairshareWeight, Age: p.AgeWeight, MaxAge: uint32(p.MaxAge / time.Second)}
}

// samePlaces tells whether two rankings of one budget put all accounts and users
// in the same places: then the strict priorities made from them are the same.
func samePlaces(x, y *fairshare.Ranking) bool {
	if len(x.Accounts) != len(y.Accounts) || len(x.Users) != len(y.Users) {
		return false
	}
	for i := range x.Accounts {
		if a, b := &x.Accounts[i], &y.Accounts[i]; a.Rank != b.Rank || a.Funded != b.Funded {
			return false
		}
	}
	for i := range x.Users {
		if x.Users[i].Level != y.Users[i].Level {
			return false
		}
	}
	return true
}

// key sets the priority of a lane's first job.
func (st *standing) key(s *sim, l *lane) {
	switch s.p.Kind {
	case Budgets:
		if st.strict == nil && st.additive == nil {
			st.refresh(s)
		}
		l.allocated = st.funded[l.account] && s.asks(l)
		if s.p.Additive {
			o := &s.cfg.Workload.Owners[l.owner]
			age := max(st.at-s.courses[l.head].submitted, 0)
			st.additive.Priority(&fairshare.Job{Account: o.Account, User: o.User, Age: age, Unallocated: !s.asks(l)}, &st.factors)
			l.key = float64(st.factors.Priority)
			return
		}
		known := &st.keys[l.kind]
		if *known == 0 {
			// Of jobs that are alike but for their age, who came first is next: the
			// queue knows that to the job, so age is left out here.
			st.strict.PriorityAt(st.members[l.owner], &fairshare.Job{QOSPriority: l.qos, Age: -1}, &st.factors)
			*known = st.factors.Priority
		}
		l.key = float64(*known)
		if !l.allocated {
			l.key -= unallocatedBelow
		}
	case Multifactor:
		if st.shares[0].SharesNorm == 0 {
			st.refresh(s)
		}
		age := max(st.at-s.courses[l.head].submitted, 0)
		job := fairshare.Job{Fairshare: st.shares[st.leaf[l.owner]].Factor, Age: age}
		st.additive.Priority(&job, &st.factors)
		l.key = float64(st.factors.Priority)
	case FIFO, Quota:
		l.key = 0
	}
}

// associate makes Slurm's associations from the budget, with the shares it has
// at the beginning.
func (st *standing) associate(s *sim) {
	const unit = fairshare.Whole / 1_000_000
	st.leaf = make([]int32, len(s.owners))
	tree := st.budget.Tree(s.instant(0))
	at := make([]int, len(tree.Nodes))
	for i := range tree.Nodes {
		node := &tree.Nodes[i]
		at[i] = len(st.shares)
		a := fairshare.Association{Shares: uint32(node.Share / unit)}
		if node.Parent >= 0 {
			a.Parent = at[node.Parent]
		}
		st.shares = append(st.shares, a)
		for o, owner := range s.cfg.Workload.Owners {
			if owner.Account != node.Name {
				continue
			}
			share := uint32(1)
			for u := range node.Users {
				if node.Users[u].Name == owner.User {
					share = max(uint32(node.Users[u].Share/unit), 1)
				}
			}
			st.leaf[o] = int32(len(st.shares))
			st.shares = append(st.shares, fairshare.Association{User: true, Parent: at[i], Shares: share})
		}
	}
}

// fairTree is Slurm's own priority pass.
func (st *standing) fairTree(s *sim) {
	for i := range st.shares {
		st.shares[i].Usage = 0
	}
	for o := range s.owners {
		d := &s.owners[o].decaying
		d.advance(s.now, s.p.HalfLife.Seconds())
		leaf := st.leaf[o]
		for at := int(leaf); ; at = st.shares[at].Parent {
			st.shares[at].Usage += d.usage
			if at == 0 {
				break
			}
		}
	}
	if err := fairshare.SlurmShares(st.shares, fairshare.SlurmPolicy{FairTree: true, TiesApart: true}); err != nil {
		panic("simulate: " + err.Error()) // associate puts parents first
	}
	st.shares[0].SharesNorm = 1 // a pass was made
}
