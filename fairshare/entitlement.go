// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"maps"
	"math"
	"math/bits"
	"slices"
)

// Entitlements is what each account and user is due in a window.
type Entitlements struct {
	Window     Period
	layout     *layout
	flow       []due // by account: F_a, what reaches the account itself
	total      []due // by account: E_a, flow and what was granted below
	users      []due // by user
	direct     []due // by account: what its users have, former members too
	unassigned []GPUMillis
}

// due is an entitlement twice: in whole GPU-milliseconds, which add up, and
// unrounded, so that accounts with equal budgets stay equal when they are
// compared.
type due struct {
	whole   GPUMillis
	exact   float64
	debited bool // something was taken away
}

func (d *due) add(e due) {
	d.whole = add(d.whole, e.whole)
	d.exact += e.exact
	d.debited = d.debited || e.debited
}

// entitled is d for a reader: never negative.
func (d *due) entitled() GPUMillis { return max(d.whole, 0) }

// weight is d for a comparison: never negative, and 0 if all there was has been
// taken away, whatever fraction of a millisecond remains.
func (d *due) weight() float64 {
	if d.debited && d.whole <= 0 {
		return 0
	}
	return max(d.exact, 0)
}

// Entitlements integrates the budget over a window.
//
// In each stretch of time in which no share, parent, membership and no grant
// changes, GPU time flows down from root:
//
//	F_root = C + g_root
//	F_a    = s_a · max(F_parent, 0) + g_a
//
// where C is capacity, s_a the account's share and g_a its grants, spread
// evenly over their periods. The account's entitlement is the integral of F_a
// and of what was granted to accounts below it.
func (b *Budget) Entitlements(window Period) *Entitlements {
	return newLayout(b).entitlements(window)
}

// Account is the account's entitlement; 0 if it is unknown, stands outside the
// tree or has given away all it had.
func (e *Entitlements) Account(name string) GPUMillis {
	a, known := e.layout.number[name]
	if !known {
		return 0
	}
	return e.total[a].entitled()
}

// User is the entitlement of a user in an account.
func (e *Entitlements) User(account, user string) GPUMillis {
	u, known := e.layout.member[memberKey{account, user}]
	if !known {
		return 0
	}
	return e.users[u].whole
}

// Unassigned is the part of the account's GPU time that neither its child
// accounts nor its users have. It is negative if the account gave away more
// than it had.
func (e *Entitlements) Unassigned(account string) GPUMillis {
	a, known := e.layout.number[account]
	if !known {
		return 0
	}
	return e.unassigned[a]
}

func (l *layout) newEntitlements(window Period) *Entitlements {
	n := len(l.accounts)
	return &Entitlements{
		Window: window, layout: l,
		flow: make([]due, n), total: make([]due, n), direct: make([]due, n),
		unassigned: make([]GPUMillis, n), users: make([]due, len(l.users)),
	}
}

func (e *Entitlements) reset(window Period) {
	e.Window = window
	clear(e.flow)
	clear(e.total)
	clear(e.direct)
	clear(e.unassigned)
	clear(e.users)
}

func (l *layout) entitlements(window Period) *Entitlements {
	e := l.newEntitlements(window)
	newIntegrator(l, l.budget.Capacity).integrate(e, l.budgetChanges(window, l.budget.Capacity).segments())
	return e
}

// budgetChanges are all instants in the window at which the flow of GPU time
// changes its course. Changes of capacity only swell it and needn't be told
// apart, unless a negative grant makes it run dry.
func (l *layout) budgetChanges(window Period, capacity []Step[MilliGPUs]) *changes {
	c := &changes{window: window}
	for i := l.interval(window.From); i < len(l.changes) && l.changes[i] < window.Until; i++ {
		c.at(l.changes[i])
	}
	if l.debits {
		addSteps(c, capacity)
	}
	return c
}

// integrator lets GPU time flow through one segment after the other.
type integrator struct {
	*layout
	plans    map[int]*plan // by layout.interval; nil if none are kept
	scratch  plan
	shape    *shape // the tree in the segment
	capacity capacity
	split    apportionment
	inflow   []due // by account: from the parent
	granted  []due // by account: of its own
	below    []due // by account: granted to the accounts below it
}

// plan is how GPU time is divided while nothing of the budget changes.
type plan struct {
	shape     *shape
	divisions []division // in the order of the shape
}

// mostPlans bounds how many plans are kept: each is about a quarter of a ranking.
const mostPlans = 32

func newIntegrator(l *layout, capacity []Step[MilliGPUs]) *integrator {
	n := len(l.accounts)
	in := &integrator{layout: l, inflow: make([]due, n), granted: make([]due, n), below: make([]due, n)}
	in.capacity.steps = capacity
	return in
}

// keepPlans has plans kept, for one who integrates over the same time again.
func (in *integrator) keepPlans() { in.plans = make(map[int]*plan) }

// forget drops the plans of times before an instant.
func (in *integrator) forget(before Instant) {
	first := in.interval(before)
	maps.DeleteFunc(in.plans, func(number int, _ *plan) bool { return number < first })
}

// planAt is the plan that holds at an instant. It may be overwritten by the next.
func (in *integrator) planAt(at Instant) *plan {
	number := in.interval(at)
	if known := in.plans[number]; known != nil {
		return known
	}
	p := &in.scratch
	if in.plans != nil && len(in.plans) < mostPlans {
		p = &plan{}
		in.plans[number] = p
	}
	p.shape = in.layout.shape(at, false)
	p.divisions = slices.Grow(p.divisions[:0], len(p.shape.order))[:len(p.shape.order)]
	for i, a := range p.shape.order {
		in.divide(&p.divisions[i], p.shape, a, at)
	}
	return p
}

// integrate adds to e what flows in segments that follow each other.
func (in *integrator) integrate(e *Entitlements, segments []Period) {
	for _, segment := range segments {
		in.flowIn(e, segment, in.capacity.over(segment))
	}
}

// flowIn adds to e what flows in a segment in which root has so much.
func (in *integrator) flowIn(e *Entitlements, segment Period, root due) {
	in.flow(e, segment.From, root, func(a int) due { return in.grants(a, segment) })
}

// comeIn adds to e what grants that are in force at an instant still bring, divided
// as it is then.
func (in *integrator) comeIn(e *Entitlements, now Instant) {
	in.flow(e, now, due{}, func(a int) due { return in.remainders(a, now) })
}

// flow adds to e what flows, divided as it is at an instant, if root has so much
// and accounts are granted so much.
func (in *integrator) flow(e *Entitlements, at Instant, root due, granted func(a int) due) {
	p := in.planAt(at)
	in.shape = p.shape
	in.inflow[in.root] = root
	for i, a := range in.shape.order {
		flow := in.inflow[a]
		if in.layout.grants {
			in.granted[a] = granted(a)
			flow.add(in.granted[a])
		}
		e.flow[a].add(flow)
		e.total[a].add(flow)
		in.distribute(e, a, flow, &p.divisions[i])
	}
	if in.layout.grants {
		in.addBelow(e)
	}
}

// addBelow adds to every account's total what was granted below it.
func (in *integrator) addBelow(e *Entitlements) {
	clear(in.below)
	for _, a := range slices.Backward(in.shape.order) {
		e.total[a].add(in.below[a])
		if parent := in.shape.parent[a]; parent >= 0 {
			in.below[parent].add(in.below[a])
			in.below[parent].add(in.granted[a])
		}
	}
}

func (in *integrator) grants(a int, segment Period) (sum due) {
	for _, grant := range in.accounts[a].Grants {
		part := portion(grant.Amount, grant.Period, segment)
		sum.add(due{part, float64(part), part < 0})
	}
	return sum
}

// remainders are what grants in force still bring an account.
func (in *integrator) remainders(a int, now Instant) (sum due) {
	for _, grant := range in.accounts[a].Grants {
		if grant.Contains(now) {
			part := portion(grant.Amount, grant.Period, Period{now, grant.Until})
			sum.add(due{part, float64(part), part < 0})
		}
	}
	return sum
}

// distribute lets what account a has flow to its child accounts and users.
func (in *integrator) distribute(e *Entitlements, a int, flow due, d *division) {
	children := in.shape.children[a]
	pool := due{whole: flow.entitled(), exact: flow.weight()}
	in.split.weights = d.weights
	parts := in.split.distribute(pool.whole, d.total)
	for i, child := range children {
		in.inflow[child] = due{whole: parts[i], exact: pool.exact * d.fraction(i)}
	}
	for i, user := range d.members {
		part := due{whole: parts[len(children)+i], exact: pool.exact * d.fraction(len(children)+i)}
		e.users[user].add(part)
		e.direct[a].add(part)
	}
	overdrawn := min(flow.whole, 0)
	e.unassigned[a] = add(e.unassigned[a], add(parts[len(parts)-1], overdrawn))
}

// capacity integrates the schedulable GPUs over segments that follow each
// other. It carries the thousandths over, so that the sum over all segments is
// the whole integral rounded down once.
type capacity struct {
	steps []Step[MilliGPUs]
	carry uint64
}

func (c *capacity) over(segment Period) due {
	var sum due
	for len(c.steps) > 0 && c.steps[0].Until <= segment.From {
		c.steps = c.steps[1:]
	}
	for _, step := range c.steps {
		if step.From >= segment.Until {
			break
		}
		sum.add(c.product(step.Value, step.Intersect(segment)))
	}
	return sum
}

func (c *capacity) product(gpus MilliGPUs, p Period) due {
	if gpus <= 0 || p.Empty() {
		return due{}
	}
	millis := distance(p.From, p.Until)
	hi, lo := bits.Mul64(uint64(gpus), millis)
	lo, carried := bits.Add64(lo, c.carry, 0)
	hi += carried
	exact := float64(gpus) * float64(millis) / float64(GPU)
	if hi >= uint64(GPU) {
		return due{whole: math.MaxInt64, exact: exact}
	}
	whole, rest := bits.Div64(hi, lo, uint64(GPU))
	c.carry = rest
	return due{whole: GPUMillis(min(whole, math.MaxInt64)), exact: exact}
}
