// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"math"
	"slices"
	"time"
)

// Contract is a cluster's policy on preemption: who may be made to give way,
// to whom, and how often. Its rules are R1 to R7 of docs/contract.md.
type Contract struct {
	// Margin is how much further behind what it is due the account of a request
	// must be than that of the job that is to yield, once the exchange is
	// counted: 0.1 is a tenth. Negative counts as 0.
	Margin float64
	// WithinAccount lets a request preempt jobs of its own account that have a
	// lower declared priority.
	WithinAccount bool
	// EvictedPerGPU is how many GPUs of allocated jobs a request may evict for
	// each GPU it asks for; 0 is no limit.
	EvictedPerGPU float64
	// PatientGPUs and Patience let a request for so many GPUs or more that has
	// waited for so long evict smaller jobs of other accounts without the margin. It
	// needs whole nodes, which waiting alone doesn't bring about. PatientGPUs 0 is
	// for no request.
	PatientGPUs int64
	Patience    time.Duration
	// PerDay is how often one job may be preempted in 24 hours; 0 is no limit.
	PerDay int
}

// DefaultContract is what holds where the policy says nothing.
func DefaultContract() Contract {
	return Contract{
		Margin: 0.1, WithinAccount: true, EvictedPerGPU: 2, PerDay: 4,
		PatientGPUs: 32, Patience: time.Hour,
	}
}

// Request is a pending job that wants to start now.
type Request struct {
	Account     string
	GPUs        int64
	Rate        int64         // what they count for, in millionths of a GPU, or CountsNothing; 0: as many as there are
	Allocated   bool          // its minimum runtime isn't 0 and its account is funded
	MinRuntime  time.Duration // for which it will be protected
	Waited      time.Duration // since it could have started
	QOSPriority uint32
	Nice        int64
}

// CountsNothing is the Rate of a request for GPUs of weight 0.
const CountsNothing int64 = -1

// Promised is the GPU time for which the request will be protected.
func (q *Request) Promised() GPUMillis {
	if q.Rate != 0 {
		return Charged(q.Rate, q.MinRuntime.Milliseconds())
	}
	return gpuTime(q.GPUs, q.MinRuntime)
}

// Occupant is a running job that may have to yield to a request.
type Occupant struct {
	Account        string
	GPUs           int64
	Allocated      bool
	ProtectedUntil Instant   // its start and its minimum runtime, suspensions not counted
	Ahead          GPUMillis // what the ranking counts for it in advance
	QOSPriority    uint32
	Nice           int64
	Preempted      int // how often in the last 24 hours
}

// Together prepares the components of a job, which all yield or none of which does,
// for the rules to be asked about each: an allocated one has the GPUs of all that are
// (R7), and is counted in advance for as much as all of its account are (R3).
func Together(components []Occupant) {
	var gpus int64
	ahead := make(map[string]GPUMillis, 1)
	for i := range components {
		if c := &components[i]; c.Allocated {
			gpus += c.GPUs
			ahead[c.Account] = add(ahead[c.Account], c.Ahead)
		}
	}
	for i := range components {
		if c := &components[i]; c.Allocated {
			c.GPUs, c.Ahead = gpus, ahead[c.Account]
		}
	}
}

// Rule is one of the rules that decide whether a job yields.
type Rule uint8

// The rules, in the numbers of docs/contract.md.
const (
	NoRule Rule = iota
	R1          // an unallocated job yields to any allocated request
	R2          // an allocated job keeps its GPUs until its minimum runtime has passed
	R3          // then it yields to an account that is further behind
	R4          // within one account, to a higher declared priority
	R5          // an unallocated request preempts nobody
	R6          // who of those that would yield has to
	R7          // nobody evicts too much, nobody is evicted too often
)

// Decision is what the rules say about a request and a running job, with the
// rule that said it.
type Decision struct {
	Yields bool
	Rule   Rule
}

// Decide tells whether a running job yields to a request now. The rules are
// asked one after the other; the first that has something to say decides.
func (c *Contract) Decide(r *Ranking, now Instant, q *Request, o *Occupant) Decision {
	if d, decided := c.beforeRanking(now, q, o); decided {
		return d
	}
	between := r.rivals(q.Account, o.Account)
	return c.byRanking(&between, q, o)
}

// DecideBetween is Decide for who knows how the two accounts stand to each other,
// and asks about many jobs of few accounts.
func (c *Contract) DecideBetween(v *Rivals, now Instant, q *Request, o *Occupant) Decision {
	if d, decided := c.beforeRanking(now, q, o); decided {
		return d
	}
	return c.byRanking(v, q, o)
}

// beforeRanking asks the rules that don't go by how the two accounts stand.
func (c *Contract) beforeRanking(now Instant, q *Request, o *Occupant) (d Decision, decided bool) {
	switch {
	case requestUnallocated(q):
		return Decision{Rule: R5}, true
	case occupantUnallocated(o):
		return Decision{Yields: true, Rule: R1}, true
	case stillProtected(o, now):
		return Decision{Rule: R2}, true
	case c.preemptedEnough(o), c.tooLarge(q, o):
		return Decision{Rule: R7}, true
	}
	return Decision{}, false
}

// byRanking asks the others.
func (c *Contract) byRanking(v *Rivals, q *Request, o *Occupant) Decision {
	if v.same {
		return Decision{Yields: c.WithinAccount && declaredHigher(q, o), Rule: R4}
	}
	return Decision{Yields: c.outranks(v, q, o), Rule: R3}
}

// Judge decides about many running jobs for one request, as Contract.Decide does
// about each. It remembers how accounts stand to that of the request.
type Judge struct {
	contract *Contract
	ranking  *Ranking
	now      Instant
	request  *Request
	known    map[string]Rivals // by the job's account
}

// Judge is for a request as of now. Nothing of what it is given may change as
// long as it is used.
func (c *Contract) Judge(r *Ranking, now Instant, q *Request) *Judge {
	return &Judge{contract: c, ranking: r, now: now, request: q, known: make(map[string]Rivals)}
}

// Decide tells whether a running job yields to the request.
func (j *Judge) Decide(o *Occupant) Decision {
	if d, decided := j.contract.beforeRanking(j.now, j.request, o); decided {
		return d
	}
	v := j.against(o.Account)
	return j.contract.byRanking(&v, j.request, o)
}

// Protects tells whether R2 lets the job keep its GPUs: then its account, its
// size, how often it was preempted and so on don't matter.
func (j *Judge) Protects(o *Occupant) bool {
	return !occupantUnallocated(o) && stillProtected(o, j.now)
}

func (j *Judge) against(account string) Rivals {
	found, known := j.known[account]
	if !known {
		found = j.ranking.rivals(j.request.Account, account)
		j.known[account] = found
	}
	return found
}

// requestUnallocated is R5: an unallocated request preempts nobody, not even
// another unallocated job.
func requestUnallocated(q *Request) bool { return !q.Allocated }

// occupantUnallocated is R1: an unallocated job is never protected.
func occupantUnallocated(o *Occupant) bool { return !o.Allocated }

// stillProtected is R2. The instant at which the minimum runtime has passed is
// the first at which the job may have to yield.
func stillProtected(o *Occupant, now Instant) bool { return now < o.ProtectedUntil }

// preemptedEnough is R7 for the job that would yield.
func (c *Contract) preemptedEnough(o *Occupant) bool { return c.PerDay > 0 && o.Preempted >= c.PerDay }

// tooLarge is R7 for the request, with this job alone.
func (c *Contract) tooLarge(q *Request, o *Occupant) bool { return !c.mayEvict(q, o.GPUs) }

// mayEvict is R7: what a request may evict depends on what it asks for. Who is
// unallocated doesn't count.
func (c *Contract) mayEvict(q *Request, gpus int64) bool {
	return c.EvictedPerGPU <= 0 || float64(gpus) <= c.EvictedPerGPU*float64(q.GPUs)
}

// declaredHigher is R4: the QOS priority decides, then nice.
func declaredHigher(q *Request, o *Occupant) bool {
	if q.QOSPriority != o.QOSPriority {
		return q.QOSPriority > o.QOSPriority
	}
	return q.Nice < o.Nice
}

// outranks is R3. Of the two branches in which the paths of the accounts part,
// it compares what is due with what is charged, as the level fair share does,
// after the exchange: the request has had its minimum runtime, and what was
// counted in advance for the job that yields no longer is. So an account that
// has won an exchange is not behind the one that lost it when its protection
// ends, and the two can't take turns.
func (c *Contract) outranks(v *Rivals, q *Request, o *Occupant) bool {
	if !v.ok {
		return false
	}
	due, held := v.due, v.held
	due.charged = add(due.charged, q.Promised())
	held.charged = add(held.charged, -o.Ahead)
	margin := max(c.Margin, 0)
	if c.patient(q, o) {
		margin = 0
	}
	return furtherBehind(due, held, margin)
}

// patient is the part of R3 for large requests that have waited for long. Only
// smaller jobs make way for them, so that of two of them, whose accounts are hardly
// apart, neither goes for the other.
func (c *Contract) patient(q *Request, o *Occupant) bool {
	return c.PatientGPUs > 0 && q.GPUs >= c.PatientGPUs && q.Waited >= c.Patience && o.GPUs < q.GPUs
}

// branch is one of several siblings: an account with all below it, or the
// direct users of an account.
type branch struct {
	entitled, charged GPUMillis
}

// Rivals are how the accounts of a request and of a running job stand to each
// other: all that Contract.Decide goes by of a Ranking.
type Rivals struct {
	due, held branch // what R3 compares
	ok        bool   // the former can be ahead of somebody
	same      bool   // they are one account
}

func (r *Ranking) rivals(a, b string) Rivals {
	v := r.Rivals(r.guests(a), r.guests(b))
	v.same = a == b // known or not
	return v
}

// Rivals are those of the accounts at two seats, of a request's and of a running
// job's.
func (r *Ranking) Rivals(a, b Seat) Rivals {
	due, held, ok := r.part(a, b)
	return Rivals{due, held, ok && r.Accounts[a.account-1].Funded, a.account > 0 && a.account == b.account}
}

// guests is the seat of who is no member of an account.
func (r *Ranking) guests(account string) (s Seat) {
	if i, known := r.accounts[account]; known {
		s.account = int32(i) + 1
	}
	return s
}

// part follows two accounts up to where their paths meet and gives the
// branches by which they come. An account above the other comes by its direct
// users. An account that isn't in the tree is due nothing. ok is false for one
// and the same account, and if the first isn't in the tree.
func (r *Ranking) part(a, b Seat) (of, with branch, ok bool) {
	if a.account == 0 || a.account == b.account {
		return of, with, false
	}
	i := int(a.account - 1)
	if b.account == 0 {
		return r.branch(i), branch{}, true
	}
	k := int(b.account - 1)
	of, with = r.pooled(i), r.pooled(k)
	for i != k {
		switch {
		case r.Accounts[i].Depth > r.Accounts[k].Depth:
			of, i = r.branch(i), r.parent(i)
		case r.Accounts[i].Depth < r.Accounts[k].Depth:
			with, k = r.branch(k), r.parent(k)
		default:
			of, i = r.branch(i), r.parent(i)
			with, k = r.branch(k), r.parent(k)
		}
	}
	return of, with, true
}

func (r *Ranking) parent(i int) int { return r.parents[i] }

func (r *Ranking) branch(i int) branch {
	return branch{r.Accounts[i].Entitled, r.Accounts[i].Load}
}

func (r *Ranking) pooled(i int) branch {
	return branch{r.Accounts[i].Direct.Entitled, r.Accounts[i].Direct.Load}
}

// Ratios are what is due to what is charged, of the branches that R3 compares for
// two accounts: +Inf if nothing is charged, 0 if nothing is due. Those of one and
// the same account are its own users'.
func (r *Ranking) Ratios(a, b string) (ofA, ofB float64) {
	if i, known := r.accounts[a]; known && a == b {
		own := r.pooled(i)
		return own.ratio(), own.ratio()
	}
	x, y := r.guests(a), r.guests(b)
	of, with, ok := r.part(x, y)
	if !ok {
		with, of, _ = r.part(y, x)
	}
	return of.ratio(), with.ratio()
}

func (b branch) ratio() float64 {
	switch {
	case b.entitled <= 0:
		return 0
	case b.charged <= 0:
		return math.Inf(1)
	}
	return float64(b.entitled) / float64(b.charged)
}

// Charged is the ranking with so much more charged to an account, for the rules
// of the contract to go by: what it is ranked by changes, ranks do not. The
// ranking itself is left as it is.
func (r *Ranking) Charged(account string, amount GPUMillis) *Ranking {
	i, known := r.accounts[account]
	if !known {
		return r
	}
	changed := *r
	changed.Accounts = slices.Clone(r.Accounts)
	direct := &changed.Accounts[i].Direct
	direct.Load = add(direct.Load, amount)
	for {
		a := &changed.Accounts[i]
		a.Load = add(a.Load, amount)
		if a.Depth == 0 {
			return &changed
		}
		i = r.parent(i)
	}
}

// furtherBehind tells whether a's ratio of what is due to what is charged
// exceeds b's by more than the margin. The ratios are compared crosswise, so
// that nothing charged is no division by zero. Who is due nothing yields to
// whoever is due something; who is due something and has been charged nothing
// yields to nobody.
func furtherBehind(a, b branch, margin float64) bool {
	if b.entitled <= 0 {
		return a.entitled > 0
	}
	mine := float64(max(a.entitled, 0)) * float64(max(b.charged, 0))
	theirs := float64(b.entitled) * float64(max(a.charged, 0))
	return mine > theirs*(1+margin)
}

// gpuTime is what some GPUs come to in a stretch of time. It stops at the end
// of the range.
func gpuTime(gpus int64, d time.Duration) GPUMillis {
	if gpus <= 0 || d <= 0 {
		return 0
	}
	if product, _ := mulDiv(uint64(gpus), uint64(d.Milliseconds()), 1); product < math.MaxInt64 {
		return GPUMillis(product)
	}
	return math.MaxInt64
}
