// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"math/bits"
	"slices"
	"time"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// contract is what the engine keeps for preemption. It is guarded by Engine.mu.
//
// The rules go by the ranking of the last pass. What has been exchanged since
// it, and isn't seen there yet, is counted in, so that an account that is a
// little behind doesn't evict as if each of its jobs were the only one.
type contract struct {
	preemptions []Preemption       // not taken yet
	asks        map[uint32]*ask    // by request
	tries       map[uint32]*tries  // by request, those of a het job by that
	evictions   evictions          // of the last day
	ranking     *fairshare.Ranking // the last one, with what was exchanged since; nil: to be made

	// Memory that is used again: there may be ten thousand jobs.
	recent recent
	wholes wholes
	offers fairshare.Offers
}

// ask is what is remembered of a request that may evict others.
type ask struct {
	request   fairshare.Request
	party     Party
	at        fairshare.Instant // asked last
	fruitless int               // attempts with candidates of whom Slurm took none
	rules     []yielded         // why each of the candidates does
	tasks     uint32            // of an array that the request stands for
	told      []*run            // that were evicted for it
	evicted   int64             // GPUs of allocated jobs that were, so far
	exchange  []charge          // what that changes and the ranking doesn't know
	since     fairshare.Instant // of the first of them
	whole     uint32            // the het job that it is a component of; 0: of none
	looks     int               // at it, as such
	rounds    int               // of evictions for it
	evictedAt fairshare.Instant // the last of them
}

// yielded is a job that yields, by a rule.
type yielded struct {
	id   uint32
	rule fairshare.Rule
}

// charge is what an account is charged more: for a run that ends, less, and for
// the request that comes in its place.
type charge struct {
	account string
	amount  fairshare.GPUMillis
	run     *run // that ends; nil: of the request
}

const (
	// exchangeLast is how long an exchange counts if the request doesn't start.
	exchangeLast = 2 * 60 * 1000
	// askLast is how long a request is remembered that isn't asked for any more.
	askLast = 10 * 60 * 1000
	// mostEvicted is how many evicted jobs are remembered before those that are gone
	// are looked for.
	mostEvicted = 1000
	// spareNodes are offered to Slurm beyond those that a request needs, twice as
	// many after each few attempts in vain: it may know why it can't use them.
	spareNodes, fewAttempts, mostDoublings = 4, 3, 8
	// usualDoublings are those of every attempt. Others take turns, the more of them
	// the rarer: an attempt takes as long as it has candidates.
	usualDoublings = 4
)

// spare is how many nodes are offered beyond those that are needed, after so many
// attempts in vain. Once all the doublings are reached, half of the attempts
// offer spareNodes << usualDoublings, every other one of the rest twice that, and so
// on; the most are offered to one in 16, so that nothing that Slurm could use
// is kept from it for long.
func spare(fruitless int) int {
	doublings := min(fruitless/fewAttempts, mostDoublings)
	if doublings > usualDoublings {
		doublings = min(doublings, usualDoublings+bits.TrailingZeros(uint(fruitless)))
	}
	return spareNodes << doublings
}

// Candidates decides who may be evicted for a request, and in which order: it
// sets Order of all occupants.
func (e *Engine) Candidates(p *Placing, nowMS int64) {
	occupants, now := array(p.Occupants, p.OccupantCount), fairshare.Instant(nowMS)
	for i := range occupants {
		occupants[i].Order = 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	ranking := e.contracted()
	if ranking == nil {
		return
	}
	request, party := e.requestOf(&p.Request.Job, now)
	if !request.Allocated {
		return // R5
	}
	a := e.contract.ask(p.Request.Job.JobID, now)
	if tasks := p.Request.Job.ArrayTasks; tasks != a.tasks {
		// One of them has started: what was done for it is over.
		e.contract.runs(a)
		*a = ask{at: now, since: now, tasks: tasks}
	}
	a.request, a.party, a.whole = request, party, p.Request.Job.HetJobID
	if e.contract.triesOf(a).pausing(a.tasks, now) {
		return
	}

	found := e.consider(ranking, &request, p, now)
	where := fairshare.Ask{
		Free: array(p.Free, p.NodeCount), Nodes: int(p.Request.Nodes), MaxNodes: int(p.Request.MaxNodes), PerNode: p.Request.PerNode,
		Spare: spare(a.fruitless), Evicted: a.evicted, InNeed: a.inNeed(),
	}
	rules := e.rules()
	offers := &e.contract.offers
	offered := a.offerLeaving(offers, &rules, ranking, now, &found, occupants, where)
	if offered == nil {
		offered = offers.Offer(&rules, ranking, now, &request, found.occupants, found.pieces, &where)
	}
	a.rules = a.rules[:0]
	for place, i := range offered {
		order := uint32(place + 1)
		for member := range found.members(i) {
			occupants[member].Order = order
			a.rules = append(a.rules, yielded{occupants[member].JobID, found.whole[i].rule})
		}
	}
	if len(offered) > 0 {
		a.fruitless++
	}
}

// offerLeaving offers those alone that were told to go for this request and have a
// grace time left to them, if that makes room: nobody else has to go meanwhile.
// That they were evicted is counted already.
func (a *ask) offerLeaving(
	offers *fairshare.Offers, rules *fairshare.Contract, r *fairshare.Ranking, now fairshare.Instant, found *considered, occupants []Occupant,
	where fairshare.Ask,
) []int {
	if len(a.told) == 0 {
		return nil
	}
	var indices []int
	var leaving []fairshare.Occupant
	var pieces [][]fairshare.Piece
	for i := range found.whole {
		if !found.some(i, func(m int) bool { return a.leaving(occupants[m].JobID) }) {
			continue
		}
		indices, leaving, pieces = append(indices, i), append(leaving, found.occupants[i]), append(pieces, found.pieces[i])
		if found.occupants[i].Allocated {
			where.Evicted -= found.occupants[i].GPUs
		}
	}
	if len(leaving) == 0 {
		return nil
	}
	where.Evicted, where.Spare = max(where.Evicted, 0), 0
	offered := offers.Offer(rules, r, now, &a.request, leaving, pieces, &where)
	for k, i := range offered {
		offered[k] = indices[i]
	}
	return offered
}

// rule is why a job is a candidate.
func (a *ask) rule(id uint32) fairshare.Rule {
	if i := slices.IndexFunc(a.rules, func(y yielded) bool { return y.id == id }); i >= 0 {
		return a.rules[i].rule
	}
	return fairshare.NoRule
}

// leaving tells whether a job that runs was evicted for the request in this run.
func (a *ask) leaving(id uint32) bool {
	return slices.ContainsFunc(a.told, func(r *run) bool { return r.JobID == id && r.Open() })
}

// rules are the cluster's.
func (e *Engine) rules() fairshare.Contract { return e.snapshot.Policy.Contract }

// contracted is the ranking that the rules go by, nil if nobody knows how
// accounts stand: then nobody is evicted.
func (e *Engine) contracted() *fairshare.Ranking {
	if e.ranking == nil || e.snapshot == nil || e.slurm.inForce || !e.watching {
		return nil
	}
	c := &e.contract
	if c.ranking == nil {
		c.ranking = e.ranking
		for _, a := range sortedAsks(c.asks) {
			for _, x := range a.exchange {
				c.ranking = c.ranking.Charged(x.account, x.amount)
			}
		}
	}
	return c.ranking
}

// started tells whether a job has begun a run since an instant.
func (e *Engine) started(id uint32, since fairshare.Instant) bool {
	rec := e.tracker.jobs[id]
	return rec != nil && rec.run != nil && fairshare.At(rec.run.StartedAt) >= since-1000
}

// waits tells whether a job that others were evicted for so long ago is going to
// start. It may be so new that no pass has seen it.
func (e *Engine) waits(id uint32, evicting fairshare.Instant) bool {
	rec := e.tracker.jobs[id]
	return evicting <= exchangeLast && (rec == nil || rec.demanding)
}

func sortedAsks(asks map[uint32]*ask) []*ask {
	all := make([]*ask, 0, len(asks))
	for _, a := range asks {
		all = append(all, a)
	}
	slices.SortFunc(all, func(x, y *ask) int { return int(x.party.JobID) - int(y.party.JobID) })
	return all
}

// ranked tells the contract that there is a new ranking. What it knows, because
// the request runs or a run has ended, is not counted twice, and what came to
// nothing is forgotten.
func (e *Engine) ranked(now fairshare.Instant) {
	c := &e.contract
	c.ranking = nil
	for id, a := range c.asks {
		if now-a.at > askLast || e.started(id, a.since) {
			c.runs(a)
			delete(c.asks, id)
			continue
		}
		if !e.waits(id, now-a.since) {
			a.exchange, a.evicted = nil, 0
		}
		a.exchange = slices.DeleteFunc(a.exchange, func(x charge) bool { return x.run != nil && !x.run.Open() })
	}
	c.forgetTries(now)
	if len(c.evictions) > mostEvicted {
		for id := range c.evictions {
			if c.evictions.count(id, now) > 0 && e.tracker.jobs[id] == nil {
				delete(c.evictions, id) // Slurm has forgotten it too
			}
		}
	}
}

// ask is what is remembered of a request.
func (c *contract) ask(id uint32, now fairshare.Instant) *ask {
	a := c.asks[id]
	if a == nil {
		a = &ask{since: now, party: Party{JobID: id}}
		c.asks[id] = a
	}
	a.at = now
	return a
}

// requestOf is a job that pends as the rules have it.
func (e *Engine) requestOf(j *Job, now fairshare.Instant) (fairshare.Request, Party) {
	o := e.owners.of(j)
	allocated, minRuntime := e.owners.decide(o.account, askedTerms{asked: j.asked(), limit: j.limit()})
	request := fairshare.Request{
		Account: o.account, GPUs: j.gpus(), Rate: e.tracker.rateOf(j), Allocated: allocated, MinRuntime: minRuntime,
		QOSPriority: j.QOSPriority, Nice: j.Nice,
	}
	if j.Begin > 0 {
		request.Waited = time.Duration(max(0, now-fairshare.Instant(j.Begin)*1000)) * time.Millisecond
	}
	return request, Party{
		JobID: j.JobID, Restart: j.Restart, Account: o.account, User: o.user, GPUs: j.gpus(),
		Allocated: allocated, MinRuntime: minRuntime, QOSPriority: j.QOSPriority, Nice: j.Nice,
	}
}

// runningAs is the run that an occupant shows, as far as it is known; ok is
// false if it isn't: such a job keeps its GPUs. It is nil for a component of a
// het job that has none.
func (rec *job) runningAs(o *Occupant) (r *run, ok bool) {
	if o.GPUs == 0 {
		return nil, o.HetJobID != 0
	}
	if rec == nil || rec.run == nil {
		return nil, false
	}
	r = rec.run
	return r, r.Open() && r.origin == o.Start && r.decided && r.MinRuntime != nil
}

// occupantOf is a run as the judge has it. What is slow to find out is left out
// where he doesn't ask for it.
func (e *Engine) occupantOf(r *run, o *Occupant, now fairshare.Instant, judge *fairshare.Judge) fairshare.Occupant {
	out := fairshare.Occupant{
		Account: r.Account, GPUs: r.GPUs, Allocated: r.Allocated, QOSPriority: o.QOSPriority, Nice: o.Nice,
		ProtectedUntil: r.protectedUntil(now),
	}
	if !r.Allocated || judge.Protects(&out) {
		return out
	}
	out.Preempted = e.contract.evictions.count(o.JobID, now)
	e.tracker.rate(r)
	out.Ahead = usage.ChargeAhead(r.rateAt(now), e.snapshot.Policy.Lookback)
	return out
}

// Preempted notes that Slurm evicts a job for a request: it requeues the job, or
// cancels it.
func (e *Engine) Preempted(victim, request uint32, requeues bool, nowMS int64) {
	defer e.recorder.notify()
	e.mu.Lock()
	defer e.mu.Unlock()
	now := fairshare.Instant(nowMS)
	c := &e.contract
	a := c.ask(request, now)
	ranking := e.contracted()
	if rec := e.tracker.jobs[victim]; rec != nil && rec.run != nil && rec.run.Open() && ranking != nil {
		a.told = append(a.told, rec.run)
		e.exchange(ranking, a, rec.run, requeues, now)
		c.evictions.note(victim, eviction{rec.run.StartedAt.Unix(), now})
	}
	c.evictedFor(a, now)
	a.fruitless = 0
	e.wanted.Store(true)
}

// exchange notes what an eviction changes, and who was who.
func (e *Engine) exchange(ranking *fairshare.Ranking, a *ask, r *run, requeues bool, now fairshare.Instant) {
	p := Preemption{At: now, Rule: a.rule(r.JobID), Requeue: requeues, Request: a.party, Victim: e.victimOf(r, now)}
	p.Request.Ratio, p.Victim.Ratio = ranking.Ratios(a.party.Account, r.Account)
	p.Request.Rank, p.Victim.Rank = rankOf(ranking, a.party.Account), rankOf(ranking, r.Account)
	c := &e.contract
	c.preemptions = append(c.preemptions, p)
	if len(a.exchange) == 0 {
		a.since = now
		a.exchange = append(a.exchange, charge{account: a.party.Account, amount: a.request.Promised()})
	}
	if r.Allocated {
		e.tracker.rate(r)
		a.evicted += r.GPUs
		a.exchange = append(a.exchange, charge{r.Account, -usage.ChargeAhead(r.RateAt(now), e.snapshot.Policy.Lookback), r})
	}
	c.ranking = nil
}

func (e *Engine) victimOf(r *run, now fairshare.Instant) Party {
	p := Party{
		JobID: r.JobID, Restart: r.Restart, Account: r.Account, User: r.User, GPUs: r.GPUs, QOS: r.QOS,
		Allocated: r.Allocated, StartedAt: r.StartedAt,
	}
	if r.MinRuntime != nil {
		p.MinRuntime = *r.MinRuntime
	}
	job := []*usage.Run{&r.Run}
	if r.HetJobID != 0 {
		for _, other := range e.tracker.components(r.HetJobID) {
			job = append(job, &other.Run)
		}
	}
	if until := usage.ProtectionOf(job, now.Time()).Until; !until.IsZero() {
		p.ProtectedUntil = fairshare.At(until)
	}
	return p
}

func rankOf(r *fairshare.Ranking, account string) int {
	standing, known := r.Account(account)
	if !known {
		return 0
	}
	return standing.Rank
}
