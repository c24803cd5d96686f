// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"slices"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// window ranks by a snapshot while time goes on. It sums up what was charged, so
// that a pass needn't look at each bucket of a week, and keeps what follows from
// the budget alone.
type window struct {
	snapshot *Snapshot
	sums     *usage.Sums
	ranker   *fairshare.Ranker
	owners   []fairshare.Owner // by their number in the history
	refunds  []fairshare.Charge
}

// newWindow is the window of a snapshot, and how everybody stands in it but for
// what runs if that is worked out already. From the one before it takes over what is
// of the same budget; as passes go on with that meanwhile, its ranker is left
// alone.
func newWindow(s *Snapshot, before *window) (n *window, roles *fairshare.Ranking) {
	n = &window{snapshot: s, refunds: s.Budget.Refunds()}
	if before != nil && sameAccounts(before.snapshot.Budget, s.Budget) {
		n.ranker = before.ranker
		known := before.snapshot.History.Owners()
		if all := s.History.Owners(); len(known) <= len(all) && slices.Equal(known, all[:len(known)]) {
			n.owners = slices.Clip(before.owners)
		}
	} else {
		n.ranker = fairshare.NewRanker(s.Budget)
	}
	n.sums = usage.NewSums(s.History, n.ranker.Moves())
	n.sums.In(s.Lookback(s.ReadAt), func(uint32, fairshare.Period, fairshare.GPUMillis) {})
	if before == nil || n.ranker != before.ranker {
		n.number()
		roles = n.roles()
	}
	return n, roles
}

// sameAccounts tells whether two budgets differ in their capacity only, because
// one was made from the other.
func sameAccounts(x, y *fairshare.Budget) bool {
	return len(x.Accounts) == len(y.Accounts) && (len(x.Accounts) == 0 || &x.Accounts[0] == &y.Accounts[0])
}

// number finds the numbers that the ranker has for owners.
func (n *window) number() {
	for _, o := range n.snapshot.History.Owners()[len(n.owners):] {
		n.owners = append(n.owners, n.ranker.Owner(o.Account, o.User))
	}
}

// roles is a ranking by what has ended: it tells who is funded and where users are
// at home.
func (n *window) roles() *fairshare.Ranking {
	w := n.snapshot.Lookback(n.snapshot.ReadAt)
	n.ranker.Begin(w, n.snapshot.Budget.Capacity)
	n.charge(w)
	return n.ranker.Rank()
}

// charge tells the ranker what ended runs were charged in w, and what of it was
// refunded.
func (n *window) charge(w fairshare.Period) {
	n.sums.In(w, func(owner uint32, p fairshare.Period, amount fairshare.GPUMillis) {
		n.ranker.Charge(n.owners[owner], p, amount)
	})
	for i := range n.refunds {
		c := &n.refunds[i]
		n.ranker.Charge(n.ranker.Owner(c.Account, c.User), c.Period, c.Amount)
	}
}

// place is who owns a run, by the ranker's number: that is looked up once.
type place struct {
	ranker        *fairshare.Ranker
	account, user string
	owner         fairshare.Owner
}

func (n *window) ownerOf(r *run) fairshare.Owner {
	p := &r.place
	if p.ranker != n.ranker || p.account != r.Account || p.user != r.User {
		*p = place{n.ranker, r.Account, r.User, n.ranker.Owner(r.Account, r.User)}
	}
	return p.owner
}

// rank ranks everybody at an instant: by the snapshot, by what ended since it
// was read, and by what runs. Without a snapshot nobody stands anywhere, and
// jobs are alike but for what they bring along: QOS, nice, age, size.
func (e *Engine) rank(now fairshare.Instant) *fairshare.Ranking {
	s, n := e.snapshot, e.window
	if s == nil {
		return fairshare.Rank(fairshare.Input{Budget: &fairshare.Budget{}, Window: fairshare.Period{From: now, Until: now}})
	}
	w := s.Lookback(now)
	e.tracker.trim(w, s.Policy.Bucket)
	n.ranker.Begin(w, capacity(s.Budget.Capacity, e.tracker.capacity, s.Weights))
	n.charge(w)
	for i := range e.tracker.tail {
		if c := &e.tracker.tail[i]; c.run == nil {
			n.ranker.Charge(n.ranker.Owner(c.Account, c.User), c.Period, c.Amount)
		}
	}
	at := now.Time()
	for _, r := range e.tracker.openRuns() {
		if !r.Allocated || e.tracker.holds(r) {
			continue
		}
		e.tracker.rate(r)
		o := n.ownerOf(r)
		r.EachCharge(at, func(p fairshare.Period, amount fairshare.GPUMillis) { n.ranker.Charge(o, p, amount) })
		n.ranker.Ahead(o, r.Ahead(at, s.Policy.Lookback))
	}
	return n.ranker.Rank()
}
