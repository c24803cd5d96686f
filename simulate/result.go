// SPDX-License-Identifier: GPL-2.0-or-later

package simulate

import (
	"math"
	"slices"

	"gpubudget/fairshare"
)

// Result is what came of one run. GPU time is in GPU-hours, other times are in
// seconds.
type Result struct {
	Policy string `json:"policy"`

	Jobs     int   `json:"jobs"`    // submitted
	Started  int   `json:"started"` // at least once
	Finished int   `json:"finished"`
	Waiting  int   `json:"waiting"`  // at the end, requeued ones included
	Withheld int   `json:"withheld"` // never submitted: the owner had enough outstanding
	Seconds  int64 `json:"seconds"`  // how long it went on

	CapacityHours  float64 `json:"capacity_gpu_hours"`
	Occupancy      float64 `json:"occupancy_percent"` // part of the capacity that was held by jobs
	AllocatedHours float64 `json:"allocated_gpu_hours"`
	UnallocHours   float64 `json:"unallocated_gpu_hours"`
	StrandedHours  float64 `json:"stranded_gpu_hours"`   // idle while a job waited that would have fitted by count
	QuotaIdleHours float64 `json:"quota_idle_gpu_hours"` // the same, but that only its quota kept it waiting: not in StrandedHours

	DemandHours      float64 `json:"demand_gpu_hours"` // pending and running, of jobs that mean to be charged
	OwedHours        float64 `json:"owed_gpu_hours"`   // of all accounts that jobs run in
	DeliveredPercent float64 `json:"delivered_percent"`
	StrictPercent    float64 `json:"delivered_strict_percent"`
	WorstAccount     string  `json:"worst_account"`
	WorstPercent     float64 `json:"worst_delivered_percent"`
	ShareError       float64 `json:"share_error_percent"` // mean over accounts of what was delivered beside what was owed
	Jain             float64 `json:"jain_index"`          // of delivered in proportion to owed

	Preemptions int            `json:"preemptions"`
	ByRule      map[string]int `json:"preemptions_by_rule,omitempty"`
	LostHours   float64        `json:"preemption_lost_gpu_hours"`
	NodeLosses  int            `json:"runs_lost_with_nodes"`
	BrokenHours float64        `json:"node_lost_gpu_hours"`

	Waits    []Waits `json:"waits"`
	Slowdown Spread  `json:"bounded_slowdown"`

	Accounts []AccountResult `json:"accounts"`
}

// Spread is a distribution.
type Spread struct {
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
	P99    float64 `json:"p99"`
	Mean   float64 `json:"mean"`
}

// Waits is how long jobs of one class waited for their first start. Those that
// have not started count with what they have waited so far.
type Waits struct {
	Class   string `json:"class"`
	Jobs    int    `json:"jobs"`
	Waiting int    `json:"not_started"`
	Spread
}

// AccountResult is what one account got.
type AccountResult struct {
	Account       string  `json:"account"`
	Share         float64 `json:"share_percent"` // of the cluster, at the end
	EntitledHours float64 `json:"entitled_gpu_hours"`
	DemandHours   float64 `json:"demand_gpu_hours"`
	OwedHours     float64 `json:"owed_gpu_hours"`
	Delivered     float64 `json:"delivered_gpu_hours"`
	Percent       float64 `json:"delivered_percent"`
	StrictPercent float64 `json:"delivered_strict_percent"`
	UnallocHours  float64 `json:"unallocated_gpu_hours"`
	ShareError    float64 `json:"share_error_percent"` // of what was delivered beside what was owed; 0 if nothing was owed
}

// waitClasses are the classes of jobs whose waits are told apart: all that mean to
// be charged, these by size, those that somebody waits for, and those that
// declared to be unallocated, and those that wait in the real queue now.
var waitClasses = []string{"all", "1 GPU", "2-8 GPUs", "9-64 GPUs", "65+ GPUs", "debug", "unallocated", "pending now"}

// WaitClasses are the names of the classes that a Result tells apart.
func WaitClasses() []string { return slices.Clone(waitClasses) }

// classesOf are those that a job belongs to.
func classesOf(j *Job) []int {
	size := 1
	for _, most := range []int32{1, 8, 64} {
		if j.GPUs > most {
			size++
		}
	}
	switch {
	case j.MinRuntime == 0:
		return []int{6}
	case j.Queued:
		return []int{0, size, 7}
	case j.Debug:
		return []int{0, size, 5}
	}
	return []int{0, size}
}

func (s *sim) result() *Result {
	for n := range s.slots {
		if sl := &s.slots[n]; s.runs(int32(n)) {
			s.counts.used += int64(sl.gpus) * (s.now - sl.start)
			s.tell(sl, Unfinished)
		}
	}
	c := &s.counts
	r := &Result{
		Policy: s.p.Name, Seconds: s.now, Finished: c.finished,
		CapacityHours: hours(c.capacity), StrandedHours: hours(c.stranded), QuotaIdleHours: hours(c.byQuota),
		Preemptions: c.evicted, LostHours: hours(c.wasted), NodeLosses: c.lost, BrokenHours: hours(c.broken),
		Slowdown: spread(c.slowdowns),
	}
	r.Occupancy = percentOf(float64(c.used), float64(c.capacity))
	for rule, n := range c.evictedBy {
		if n > 0 {
			if r.ByRule == nil {
				r.ByRule = make(map[string]int)
			}
			r.ByRule["R"+string(rune('0'+rule))] = n
		}
	}
	for i := range s.accounts {
		a := &s.accounts[i]
		a.charged.advance(s.now)
		a.unpaid.advance(s.now)
		a.asked.advance(s.now)
		r.AllocatedHours += hours(a.charged.total())
		r.UnallocHours += hours(a.unpaid.total())
	}
	s.countJobs(r)
	s.deliver(r)
	return r
}

// runs tells whether a slot is in use.
func (s *sim) runs(n int32) bool {
	sl := &s.slots[n]
	return s.byEnd[sl.part].has(sl.limitEnd, n)
}

func (s *sim) countJobs(r *Result) {
	withheld := make([]bool, len(s.jobs))
	for _, kept := range s.drawer {
		r.Withheld += len(kept)
		for _, job := range kept {
			withheld[job] = true
		}
	}
	waits := make([][]float64, len(waitClasses))
	classes := make([]Waits, len(waits))
	for i := range s.jobs {
		j := &s.jobs[i]
		if j.Submit >= s.until || withheld[i] {
			continue
		}
		r.Jobs++
		wait := s.courses[i].waited
		never := wait < 0
		if never {
			wait = s.now - s.courses[i].submitted
		} else {
			r.Started++
		}
		for _, k := range classesOf(j) {
			waits[k] = append(waits[k], float64(wait))
			classes[k].Jobs++
			if never {
				classes[k].Waiting++
			}
		}
	}
	for i := range s.queue.lanes {
		r.Waiting += int(s.queue.lanes[i].count)
	}
	for k := range classes {
		classes[k].Class = waitClasses[k]
		if classes[k].Jobs > 0 {
			classes[k].Spread = spread(waits[k])
			r.Waits = append(r.Waits, classes[k])
		}
	}
}

// deliver compares what was owed with what was delivered, by the functions of
// the report that gpubudget makes of a real cluster.
func (s *sim) deliver(r *Result) {
	in := fairshare.DeliveryInput{
		Budget: s.standing.budget, Window: fairshare.Period{From: s.instant(0), Until: s.instant(s.now)},
	}
	for i, name := range s.names {
		a := &s.accounts[i]
		for b, sum := range a.asked.sums {
			in.Demand = append(in.Demand, fairshare.Demand{Period: s.bucket(b), Account: name, Amount: fairshare.GPUMillis(sum * 1000)})
		}
		in.Charges = s.charges(in.Charges, name, a.charged.sums)
		in.Unallocated = s.charges(in.Unallocated, name, a.unpaid.sums)
	}
	shares, above := s.places()
	r.WorstPercent = 100
	var owed, delivered, capped, errors, ratios, squares float64
	owing := 0
	for _, d := range fairshare.Deliver(in) {
		if slices.Index(s.names, d.Account) < 0 {
			continue
		}
		a := AccountResult{
			Account: d.Account, Share: 100 * shares[d.Account],
			EntitledHours: d.Entitled.Hours(), DemandHours: d.Demand.Hours(), OwedHours: d.Owed.Hours(), Delivered: d.Delivered.Hours(),
			Percent: d.Percent(), StrictPercent: d.StrictPercent(), UnallocHours: d.Unallocated.Hours(),
		}
		if d.Owed > 0 {
			a.ShareError = 100 * math.Abs(a.Delivered/a.OwedHours-1)
		}
		r.Accounts = append(r.Accounts, a)
		if above[d.Account] {
			continue // it is part of the figures of an account above
		}
		r.DemandHours += a.DemandHours
		if d.Owed <= 0 {
			continue
		}
		if a.Percent < r.WorstPercent || r.WorstAccount == "" {
			r.WorstAccount, r.WorstPercent = a.Account, a.Percent
		}
		ratio := a.Delivered / a.OwedHours
		owing++
		owed += a.OwedHours
		delivered += min(a.Delivered, a.OwedHours)
		capped += d.Capped.Hours()
		errors += math.Abs(ratio - 1)
		ratios += ratio
		squares += ratio * ratio
	}
	if owing == 0 {
		r.DeliveredPercent, r.StrictPercent, r.Jain = 100, 100, 1
		return
	}
	r.OwedHours = owed
	r.DeliveredPercent, r.StrictPercent = percentOf(delivered, owed), percentOf(capped, owed)
	r.ShareError = 100 * errors / float64(owing)
	r.Jain = 1
	if squares > 0 {
		r.Jain = ratios * ratios / (float64(owing) * squares)
	}
}

// places is by account its share of the cluster, and whether jobs run in an
// account above it as well.
func (s *sim) places() (shares map[string]float64, above map[string]bool) {
	shares, above = make(map[string]float64), make(map[string]bool)
	tree := s.standing.budget.Tree(s.instant(s.now))
	for i := range tree.Nodes {
		n := &tree.Nodes[i]
		shares[n.Name] = n.ShareOfCluster
		if n.Parent >= 0 {
			parent := tree.Nodes[n.Parent].Name
			above[n.Name] = above[parent] || slices.Contains(s.names, parent)
		}
	}
	return shares, above
}

// bucket is the period of a bucket, as far as the run goes.
func (s *sim) bucket(b int) fairshare.Period {
	return fairshare.Period{From: s.instant(int64(b) * bucket), Until: s.instant(min(int64(b+1)*bucket, s.now))}
}

func (s *sim) charges(to []fairshare.Charge, account string, sums []int64) []fairshare.Charge {
	for b, sum := range sums {
		if sum != 0 {
			to = append(to, fairshare.Charge{Period: s.bucket(b), Account: account, Amount: fairshare.GPUMillis(sum * 1000)})
		}
	}
	return to
}

func hours(gpuSeconds int64) float64 { return float64(gpuSeconds) / 3600 }

func percentOf(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return 100 * part / whole
}

// spread sorts values and says how they lie.
func spread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	slices.Sort(values)
	at := func(part float64) float64 {
		return values[min(int(math.Ceil(part*float64(len(values))))-1, len(values)-1)]
	}
	var sum float64
	for _, v := range values {
		sum += v
	}
	return Spread{Median: at(0.5), P90: at(0.9), P99: at(0.99), Mean: sum / float64(len(values))}
}

// Wait is the waits of a class of jobs, all zero if there were none.
func (r *Result) Wait(class string) Waits {
	for _, w := range r.Waits {
		if w.Class == class {
			return w
		}
	}
	return Waits{Class: class}
}
