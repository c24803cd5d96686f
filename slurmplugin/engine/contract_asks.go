// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
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
	evictions   evictions          // of the last day
	ranking     *fairshare.Ranking // the last one, with what was exchanged since; nil: to be made
}

// ask is what is remembered of a request that may evict others.
type ask struct {
	request   fairshare.Request
	party     Party
	at        fairshare.Instant         // asked last
	fruitless int                       // attempts with candidates of whom Slurm took none
	rules     map[uint32]fairshare.Rule // why each of the candidates yields
	tasks     uint32                    // of an array that the request stands for
	told      []*run                    // that were evicted for it
	evicted   int64                     // GPUs of allocated jobs that were, so far
	exchange  []charge                  // what that changes and the ranking doesn't know
	since     fairshare.Instant         // of the first of them
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
)

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
		*a = ask{at: now, since: now, tasks: tasks}
	}
	a.request, a.party = request, party

	found := e.consider(ranking, &request, p, now)
	where := fairshare.Ask{
		Free: array(p.Free, p.NodeCount), Nodes: int(p.Request.Nodes), MaxNodes: int(p.Request.MaxNodes), PerNode: p.Request.PerNode,
		Spare: spareNodes << min(a.fruitless/fewAttempts, mostDoublings), Evicted: a.evicted,
	}
	rules := e.rules()
	offered := a.offerLeaving(&rules, ranking, now, &found, occupants, where)
	if offered == nil {
		offered = rules.Offer(ranking, now, &request, found.occupants, found.pieces, &where)
	}
	a.rules = make(map[uint32]fairshare.Rule, len(offered))
	for place, i := range offered {
		for _, member := range found.members[i] {
			occupants[member].Order = uint32(place + 1)
			a.rules[occupants[member].JobID] = found.rules[i]
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
	rules *fairshare.Contract, r *fairshare.Ranking, now fairshare.Instant, found *considered, occupants []Occupant, where fairshare.Ask,
) []int {
	var indices []int
	var leaving []fairshare.Occupant
	var pieces [][]fairshare.Piece
	for i, members := range found.members {
		if !slices.ContainsFunc(members, func(m int) bool { return a.leaving(occupants[m].JobID) }) {
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
	offered := rules.Offer(r, now, &a.request, leaving, pieces, &where)
	for k, i := range offered {
		offered[k] = indices[i]
	}
	return offered
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
			delete(c.asks, id)
			continue
		}
		if !e.waits(id, now-a.since) {
			a.exchange, a.evicted = nil, 0
		}
		a.exchange = slices.DeleteFunc(a.exchange, func(x charge) bool { return x.run != nil && !x.run.Open() })
	}
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
		a = &ask{since: now}
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
		Account: o.account, GPUs: j.gpus(), Rate: e.tracker.wanted(j), Allocated: allocated, MinRuntime: minRuntime,
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

// considered are the jobs that yield to a request. The components of a het job
// are one.
type considered struct {
	occupants []fairshare.Occupant
	pieces    [][]fairshare.Piece
	members   [][]int // of Placing.Occupants
	rules     []fairshare.Rule
}

// consider asks the rules about all that run.
func (e *Engine) consider(r *fairshare.Ranking, q *fairshare.Request, p *Placing, now fairshare.Instant) considered {
	occupants := array(p.Occupants, p.OccupantCount)
	whole := newWholes(occupants)
	rules := e.rules()
	judge := rules.Judge(r, now, q)
	for i := range occupants {
		if whole.keeps(i) {
			continue
		}
		run, ok := e.runningAs(&occupants[i])
		if !ok {
			whole.keep(i)
			continue
		}
		if run == nil { // a component without GPUs
			w := whole.of(i)
			w.members = append(w.members, i)
			continue
		}
		o := e.occupantOf(run, &occupants[i], now, judge)
		d := judge.Decide(&o)
		if !d.Yields {
			whole.keep(i)
			continue
		}
		whole.of(i).add(i, &o, d.Rule)
	}
	return whole.considered(array(p.Pieces, p.PieceCount))
}

// runningAs is the run that an occupant shows, as far as it is known; ok is
// false if it isn't: such a job keeps its GPUs. It is nil for a component of a
// het job that has none.
func (e *Engine) runningAs(o *Occupant) (r *run, ok bool) {
	rec := e.tracker.jobs[o.JobID]
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

// wholes are jobs, the components of a het job put together.
type wholes struct {
	occupants []Occupant
	all       []wholeJob
	index     []int32          // by occupant: its place in all, or none
	het       map[uint32]int32 // places of het jobs
	room      []int            // for members
}

// none is the place of an occupant that keeps its GPUs, or wasn't considered yet.
const none = -1

// wholeJob is a job with all its components, all of which have to yield.
type wholeJob struct {
	occupant fairshare.Occupant
	any      bool // there is an occupant
	keeps    bool // one of them keeps its GPUs
	rule     fairshare.Rule
	members  []int // of Placing.Occupants
	pieces   int   // how many
}

// newWholes: there may be ten thousand, so all lie together, and nothing is kept
// of those that keep their GPUs.
func newWholes(occupants []Occupant) *wholes {
	w := &wholes{occupants: occupants, index: make([]int32, len(occupants)), het: make(map[uint32]int32)}
	for i := range w.index {
		w.index[i] = none
	}
	return w
}

// keeps tells whether another component of the job is known to keep its GPUs.
func (w *wholes) keeps(i int) bool {
	return w.occupants[i].HetJobID != 0 && w.of(i).keeps
}

// keep notes that an occupant keeps its GPUs, and with it the whole of its job.
func (w *wholes) keep(i int) {
	if w.occupants[i].HetJobID != 0 {
		w.of(i).keeps = true
	}
}

// of is the job of an occupant that may yield.
func (w *wholes) of(i int) *wholeJob {
	if w.index[i] != none {
		return &w.all[w.index[i]]
	}
	id := w.occupants[i].HetJobID
	place, known := w.het[id]
	if !known {
		place = w.add()
	}
	if id != 0 {
		w.het[id] = place
	}
	w.index[i] = place
	return &w.all[place]
}

func (w *wholes) add() int32 {
	if w.all == nil {
		w.all, w.room = make([]wholeJob, 0, len(w.occupants)), make([]int, len(w.occupants))
	}
	i := len(w.all)
	w.all = append(w.all, wholeJob{members: w.room[i : i : i+1]})
	return int32(i) //nolint:gosec // there are fewer jobs
}

// add adds a component. Together they are as their worst.
func (j *wholeJob) add(i int, o *fairshare.Occupant, rule fairshare.Rule) {
	j.members = append(j.members, i)
	if !j.any {
		j.occupant, j.rule, j.any = *o, rule, true
		return
	}
	j.occupant.GPUs += o.GPUs
	j.occupant.Ahead += o.Ahead
	j.occupant.ProtectedUntil = max(j.occupant.ProtectedUntil, o.ProtectedUntil)
	if o.Allocated && !j.occupant.Allocated {
		j.occupant.Allocated, j.rule = true, rule
	}
}

// considered are those that yield, with what they hold.
func (w *wholes) considered(pieces []Piece) considered {
	yielding, held := 0, 0
	for i := range pieces {
		if w.index[pieces[i].Occupant] == none {
			continue
		}
		if j := w.of(int(pieces[i].Occupant)); !j.keeps && j.any {
			if j.pieces == 0 {
				yielding++
			}
			j.pieces++
			held++
		}
	}
	c := considered{
		occupants: make([]fairshare.Occupant, 0, yielding), pieces: make([][]fairshare.Piece, 0, yielding),
		members: make([][]int, 0, yielding), rules: make([]fairshare.Rule, 0, yielding),
	}
	room, place := make([]fairshare.Piece, held), make([]int, len(w.all))
	for i := range w.all {
		j := &w.all[i]
		if j.pieces == 0 {
			continue
		}
		place[i] = len(c.occupants)
		c.occupants, c.members, c.rules = append(c.occupants, j.occupant), append(c.members, j.members), append(c.rules, j.rule)
		c.pieces, room = append(c.pieces, room[:0:j.pieces]), room[j.pieces:]
	}
	for i := range pieces {
		if k := w.index[pieces[i].Occupant]; k != none && w.all[k].pieces > 0 {
			of := &c.pieces[place[k]]
			*of = append(*of, fairshare.Piece{Node: int(pieces[i].Node), Held: pieces[i].Held})
		}
	}
	return c
}

// Preempted notes that Slurm evicts a job for a request.
func (e *Engine) Preempted(victim, request uint32, nowMS int64) {
	defer e.recorder.notify()
	e.mu.Lock()
	defer e.mu.Unlock()
	now := fairshare.Instant(nowMS)
	c := &e.contract
	a := c.ask(request, now)
	ranking := e.contracted()
	if rec := e.tracker.jobs[victim]; rec != nil && rec.run != nil && rec.run.Open() && ranking != nil {
		a.told = append(a.told, rec.run)
		e.exchange(ranking, a, rec.run, now)
		c.evictions.note(victim, eviction{rec.run.StartedAt.Unix(), now})
	}
	a.fruitless = 0
	e.wanted.Store(true)
}

// exchange notes what an eviction changes, and who was who.
func (e *Engine) exchange(ranking *fairshare.Ranking, a *ask, r *run, now fairshare.Instant) {
	p := Preemption{At: now, Rule: a.rules[r.JobID], Request: a.party, Victim: victimOf(r, now)}
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

func victimOf(r *run, now fairshare.Instant) Party {
	p := Party{
		JobID: r.JobID, Restart: r.Restart, Account: r.Account, User: r.User, GPUs: r.GPUs, QOS: r.QOS,
		Allocated: r.Allocated, StartedAt: r.StartedAt,
	}
	if r.MinRuntime != nil {
		p.MinRuntime = *r.MinRuntime
	}
	if until, ok := r.ProtectedUntil(now.Time()); ok {
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
