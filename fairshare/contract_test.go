// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
)

// contractNow is the instant at which the tables of the contract decide.
const contractNow = start + 10*hour

// contractRanking is of 100 GPUs over ten hours, 1,000 GPU-hours: "behind" was
// charged half of the 400 it is due, "ahead" twice as much. "lab" has users and
// the child account "bench"; "poor" is due nothing.
func contractRanking() *fairshare.Ranking {
	w := hours(0, 10)
	b := budget(100, account("behind", "root", 40, equal("u")), account("ahead", "root", 20, equal("v")),
		account("lab", "root", 40, withShare("w", 50)), account("bench", "lab", 50, equal("x")),
		account("poor", "root", 0, equal("y")))
	return fairshare.Rank(fairshare.Input{Budget: b, Window: w, Charges: []fairshare.Charge{
		charge("behind", "u", w, 200), charge("ahead", "v", w, 400), charge("lab", "w", w, 100), charge("bench", "x", w, 300),
		charge("poor", "y", w, 10),
	}})
}

// request is an allocated one of account "behind" for 4 GPUs, and occupant an
// allocated job of account "ahead" on 4 GPUs, whose protection has ended.
func request(changes ...func(*fairshare.Request)) *fairshare.Request {
	q := &fairshare.Request{Account: "behind", GPUs: 4, Allocated: true, MinRuntime: time.Hour, QOSPriority: 10}
	for _, change := range changes {
		change(q)
	}
	return q
}

func occupant(changes ...func(*fairshare.Occupant)) *fairshare.Occupant {
	o := &fairshare.Occupant{Account: "ahead", GPUs: 4, Allocated: true, ProtectedUntil: contractNow - hour, QOSPriority: 10}
	for _, change := range changes {
		change(o)
	}
	return o
}

type decisionCase struct {
	name     string
	request  *fairshare.Request
	occupant *fairshare.Occupant
	want     fairshare.Decision
}

func yields(rule fairshare.Rule) fairshare.Decision {
	return fairshare.Decision{Yields: true, Rule: rule}
}

func keeps(rule fairshare.Rule) fairshare.Decision { return fairshare.Decision{Rule: rule} }

func decide(t *testing.T, c fairshare.Contract, cases []decisionCase) {
	t.Helper()
	r := contractRanking()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.want, c.Decide(r, contractNow, tc.request, tc.occupant))
		})
	}
}

func TestR1UnallocatedYields(t *testing.T) {
	unallocated := func(o *fairshare.Occupant) { o.Allocated = false }
	decide(t, fairshare.DefaultContract(), []decisionCase{
		{"to an account behind", request(), occupant(unallocated), yields(fairshare.R1)},
		{
			"to an account ahead of its own", request(func(q *fairshare.Request) { q.Account = "ahead" }),
			occupant(unallocated, func(o *fairshare.Occupant) { o.Account = "behind" }), yields(fairshare.R1),
		},
		{"before any runtime", request(), occupant(unallocated, func(o *fairshare.Occupant) { o.ProtectedUntil = contractNow + hour }), yields(fairshare.R1)},
		{"however large, however often", request(), occupant(unallocated, func(o *fairshare.Occupant) { o.GPUs, o.Preempted = 1000, 99 }), yields(fairshare.R1)},
	})
}

func TestR2ProtectedKeeps(t *testing.T) {
	until := func(at fairshare.Instant) func(*fairshare.Occupant) {
		return func(o *fairshare.Occupant) { o.ProtectedUntil = at }
	}
	decide(t, fairshare.DefaultContract(), []decisionCase{
		{"an hour before", request(), occupant(until(contractNow + hour)), keeps(fairshare.R2)},
		{"a millisecond before", request(), occupant(until(contractNow + 1)), keeps(fairshare.R2)},
		{"at the end", request(), occupant(until(contractNow)), yields(fairshare.R3)},
		{"declared priority doesn't help", request(func(q *fairshare.Request) { q.Account, q.QOSPriority = "ahead", 1000 }), occupant(until(contractNow + 1)), keeps(fairshare.R2)},
	})
}

func TestR3YieldsToWhoIsFurtherBehind(t *testing.T) {
	from := func(account string) func(*fairshare.Request) {
		return func(q *fairshare.Request) { q.Account = account }
	}
	of := func(account string) func(*fairshare.Occupant) {
		return func(o *fairshare.Occupant) { o.Account = account }
	}
	asks := func(gpus int64, d time.Duration) func(*fairshare.Request) {
		return func(q *fairshare.Request) { q.GPUs, q.MinRuntime = gpus, d }
	}
	c := fairshare.DefaultContract()
	decide(t, c, []decisionCase{
		{"behind from ahead", request(), occupant(), yields(fairshare.R3)},
		{"ahead from behind", request(from("ahead")), occupant(of("behind")), keeps(fairshare.R3)},
		// 400/(200+x) against 200/400, a tenth apart: x < 527.3
		{"up to what the exchange evens out", request(asks(527, time.Hour)), occupant(), yields(fairshare.R3)},
		{"not beyond it", request(asks(528, time.Hour)), occupant(), keeps(fairshare.R3)},
		{"the same with long runs", request(asks(66, 8*time.Hour)), occupant(), keeps(fairshare.R3)},
		{"compared where the paths part", request(), occupant(of("bench")), yields(fairshare.R3)},
		{"users of an account against its child account", request(from("lab")), occupant(of("bench")), yields(fairshare.R3)},
		{"and the other way round", request(from("bench")), occupant(of("lab")), keeps(fairshare.R3)},
		{"an account that is due nothing", request(), occupant(of("poor")), yields(fairshare.R3)},
		{"an account that is no more", request(), occupant(of("gone")), yields(fairshare.R3)},
		{"a request of one that is due nothing", request(from("poor")), occupant(), keeps(fairshare.R3)},
		{"a request of one that is unknown", request(from("nobody")), occupant(), keeps(fairshare.R3)},
	})
	t.Run("what was counted in advance is given back", func(t *testing.T) {
		q := request(asks(526, time.Hour))
		o := occupant(func(o *fairshare.Occupant) { o.Ahead = 4 * fairshare.GPUHour })
		require.Equal(t, keeps(fairshare.R3), c.Decide(contractRanking(), contractNow, q, o))
	})
	t.Run("who was charged nothing yields to nobody", func(t *testing.T) {
		b := budget(100, account("behind", "root", 90, equal("u")), account("ahead", "root", 10, equal("v")))
		r := fairshare.Rank(fairshare.Input{Budget: b, Window: hours(0, 10)})
		require.Equal(t, keeps(fairshare.R3), c.Decide(r, contractNow, request(), occupant()))
	})
}

func TestR4DeclaredPriorityWithinAnAccount(t *testing.T) {
	inside := func(qos uint32, nice int64) *fairshare.Request {
		return request(func(q *fairshare.Request) { q.Account, q.QOSPriority, q.Nice = "ahead", qos, nice })
	}
	decide(t, fairshare.DefaultContract(), []decisionCase{
		{"a higher QOS", inside(11, 100), occupant(), yields(fairshare.R4)},
		{"a lower nice", inside(10, -1), occupant(), yields(fairshare.R4)},
		{"the same", inside(10, 0), occupant(), keeps(fairshare.R4)},
		{"a lower QOS", inside(9, -100), occupant(), keeps(fairshare.R4)},
		{"a higher nice", inside(10, 1), occupant(), keeps(fairshare.R4)},
	})
	c := fairshare.DefaultContract()
	c.WithinAccount = false
	decide(t, c, []decisionCase{{"unless the policy says no", inside(1000, -100), occupant(), keeps(fairshare.R4)}})
}

func TestR3LargeJobsThatHaveWaited(t *testing.T) {
	large := func(account string, gpus int64, waited time.Duration) *fairshare.Request {
		return request(func(q *fairshare.Request) { q.Account, q.GPUs, q.Waited = account, gpus, waited })
	}
	size := func(gpus int64) *fairshare.Occupant { return occupant(func(o *fairshare.Occupant) { o.GPUs = gpus }) }
	c := fairshare.DefaultContract()
	decide(t, c, []decisionCase{
		{"not within an account", large("ahead", 32, 99*time.Hour), size(31), keeps(fairshare.R4)},
		{"not of a protected one", large("behind", 32, time.Hour), occupant(func(o *fairshare.Occupant) { o.ProtectedUntil = contractNow + 1 }), keeps(fairshare.R2)},
		// 400/(200+x) against 200/400: without the margin x < 600
		{"without the margin", large("behind", 599, time.Hour), size(4), yields(fairshare.R3)},
		{"not beyond", large("behind", 600, time.Hour), size(4), keeps(fairshare.R3)},
		{"with it before the hour", large("behind", 599, time.Hour-1), size(4), keeps(fairshare.R3)},
		{"against a job that is a little smaller", large("behind", 599, time.Hour), size(598), yields(fairshare.R3)},
		{"not against one as large", large("behind", 599, time.Hour), size(599), keeps(fairshare.R3)},
	})
	c.PatientGPUs = 599
	decide(t, c, []decisionCase{
		{"for as many GPUs as the policy says", large("behind", 599, time.Hour), size(4), yields(fairshare.R3)},
		{"not for fewer", large("behind", 598, time.Hour), size(4), keeps(fairshare.R3)},
	})
	c.PatientGPUs = 0
	decide(t, c, []decisionCase{{"unless the policy says no", large("behind", 599, 99*time.Hour), size(4), keeps(fairshare.R3)}})
}

func TestR5UnallocatedRequestPreemptsNobody(t *testing.T) {
	free := request(func(q *fairshare.Request) { q.Allocated = false })
	decide(t, fairshare.DefaultContract(), []decisionCase{
		{"no allocated job", free, occupant(), keeps(fairshare.R5)},
		{"no unallocated one", free, occupant(func(o *fairshare.Occupant) { o.Allocated = false }), keeps(fairshare.R5)},
	})
}

func TestR7Limits(t *testing.T) {
	gpus := func(n int64) *fairshare.Occupant { return occupant(func(o *fairshare.Occupant) { o.GPUs = n }) }
	often := func(n int) *fairshare.Occupant { return occupant(func(o *fairshare.Occupant) { o.Preempted = n }) }
	c := fairshare.DefaultContract()
	decide(t, c, []decisionCase{
		{"twice as many GPUs", request(), gpus(8), yields(fairshare.R3)},
		{"one more", request(), gpus(9), keeps(fairshare.R7)},
		{"the fourth time in a day", request(), often(3), yields(fairshare.R3)},
		{"the fifth", request(), often(4), keeps(fairshare.R7)},
	})
	c.EvictedPerGPU, c.PerDay = 0, 0
	decide(t, c, []decisionCase{
		{"no limit of size", request(), gpus(1000), yields(fairshare.R3)},
		{"no limit of number", request(), often(1000), yields(fairshare.R3)},
	})
}

// Whoever has won an exchange isn't further behind, by then, than who lost it, nor
// of a lower declared priority within the account; and a large job that has waited
// wins back nothing that it lost, nor loses what it has won by that.
func TestNobodyTakesTurns(t *testing.T) {
	qos, nice := rapid.Uint32Range(0, 1), rapid.Int64Range(0, 1)
	gpus := rapid.SampledFrom([]int64{1, 2, 8, 31, 32, 33, 64, 512})
	rapid.Check(t, func(t *rapid.T) {
		b := drawTree(t)
		in := fairshare.Input{Budget: b, Window: window, Charges: drawCharges(t, b)}
		names := []string{fairshare.RootAccount}
		for i := range b.Accounts {
			names = append(names, b.Accounts[i].Name)
		}
		c := fairshare.DefaultContract()
		c.Margin = rapid.Float64Range(0, 1).Draw(t, "margin")
		c.EvictedPerGPU = 0
		q := &fairshare.Request{
			Account: rapid.SampledFrom(names).Draw(t, "winner"), Allocated: true,
			GPUs:       gpus.Draw(t, "gpus"),
			MinRuntime: time.Duration(rapid.IntRange(1, 480).Draw(t, "minutes")) * time.Minute,
			Waited:     time.Duration(rapid.IntRange(0, 2).Draw(t, "waited")) * time.Hour,

			QOSPriority: qos.Draw(t, "winner's QOS"), Nice: nice.Draw(t, "winner's nice"),
		}
		loser := rapid.SampledFrom(names).Draw(t, "loser")
		if rapid.Bool().Draw(t, "of one account") {
			loser = q.Account
		}
		o := &fairshare.Occupant{
			Account: loser, GPUs: gpus.Draw(t, "held"), Allocated: true,
			QOSPriority: qos.Draw(t, "loser's QOS"), Nice: nice.Draw(t, "loser's nice"),
		}
		now := window.Until
		if !c.Decide(fairshare.Rank(in), now, q, o).Yields {
			return
		}
		won := fairshare.Charge{Period: fairshare.Period{From: now - 1, Until: now}, Account: q.Account, Amount: fairshare.GPUMillis(q.GPUs * q.MinRuntime.Milliseconds())}
		in.Charges = append(in.Charges, won)
		back := &fairshare.Request{Account: o.Account, Allocated: true, GPUs: o.GPUs, MinRuntime: time.Minute, Waited: 2 * time.Hour, QOSPriority: o.QOSPriority, Nice: o.Nice}
		winner := &fairshare.Occupant{Account: q.Account, GPUs: q.GPUs, Allocated: true, QOSPriority: q.QOSPriority, Nice: q.Nice}
		require.False(t, c.Decide(fairshare.Rank(in), now, back, winner).Yields)
	})
}

// Nobody outranks himself, and of two accounts at most one outranks the other.
func TestOutranksIsAStrictOrderOfTwo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		r := fairshare.Rank(in)
		c := fairshare.DefaultContract()
		a := rapid.SampledFrom(r.Accounts).Draw(t, "a").Name
		b := rapid.SampledFrom(r.Accounts).Draw(t, "b").Name
		from := func(x, y string) bool {
			return c.Decide(r, in.Window.Until, &fairshare.Request{Account: x, GPUs: 1, Allocated: true, MinRuntime: time.Minute},
				&fairshare.Occupant{Account: y, GPUs: 1, Allocated: true}).Yields
		}
		require.False(t, from(a, b) && from(b, a), "%s and %s", a, b)
		require.False(t, from(a, a))
	})
}

// Random hours of jobs that come, go, evict and come back: whoever the rules evict
// has had his protected window, nobody takes back what he lost by the winner's
// having had his minimum runtime, and whenever GPUs go round in a circle, back
// to a job that had them, a protected window has passed in between.
func TestNoCycleWithoutAProtectedWindow(t *testing.T) {
	var took, circles [2]int // without patience, with it
	rapid.Check(t, func(t *rapid.T) {
		accounts := rapid.IntRange(2, 5).Draw(t, "accounts")
		b := budget(soakGPUs)
		for i := range accounts {
			b.Accounts = append(b.Accounts, account(fmt.Sprint("a", i), "root", float64(100/accounts), equal("u")))
		}
		s := &soak{t: t, budget: b, contract: fairshare.DefaultContract(), now: start}
		s.contract.PatientGPUs = 0
		patient := 0
		if rapid.Bool().Draw(t, "patience") {
			s.contract.PatientGPUs, patient = 4, 1
		}
		for range rapid.IntRange(40, 120).Draw(t, "steps") {
			s.step()
		}
		took[patient] += s.took
		circles[patient] += s.circles
	})
	for patient := range took {
		require.Positive(t, took[patient], "exchanges with PatientGPUs %d", 4*patient)
		require.Positive(t, circles[patient], "circles with PatientGPUs %d", 4*patient)
	}
}

const soakGPUs = 8

// soak is a cluster of 8 GPUs, in which jobs of 1 to 4 GPUs come, take what is
// free, and evict.
type soak struct {
	t        *rapid.T
	budget   *fairshare.Budget
	contract fairshare.Contract
	now      fairshare.Instant
	jobs     int
	running  []*soakJob
	waiting  []*soakJob // new or evicted
	charges  []fairshare.Charge
	took     int // exchanges
	circles  int
}

// soakJob is a run of a job, or what is to be its next one.
type soakJob struct {
	id      int
	account string
	gpus    int64
	min     time.Duration
	qos     uint32
	since   fairshare.Instant // it waits
	started fairshare.Instant
	ended   fairshare.Instant
	took    []*soakJob // the runs that had to go for this one
}

func (j *soakJob) protectedUntil() fairshare.Instant {
	return j.started + fairshare.Instant(j.min.Milliseconds())
}

func (s *soak) step() {
	s.now += fairshare.Instant(rapid.IntRange(1, 30).Draw(s.t, "minutes")) * hour / 60
	s.leave()
	job := s.next()
	if !s.evictFor(job) {
		s.waiting = append(s.waiting, job)
		return
	}
	job.started = s.now
	s.running = append(s.running, job)
	for _, victim := range job.took {
		s.neverTakenBack(job, victim)
	}
}

// leave ends a job now and then.
func (s *soak) leave() {
	if n := len(s.running); n > 0 && rapid.IntRange(0, 9).Draw(s.t, "ends") == 0 {
		s.stop(s.running[rapid.IntRange(0, n-1).Draw(s.t, "who")])
	}
}

// stop ends a run and charges it.
func (s *soak) stop(job *soakJob) {
	s.running = slices.DeleteFunc(s.running, func(j *soakJob) bool { return j == job })
	job.ended = s.now
	if job.min > 0 {
		s.charges = append(s.charges, s.charge(job))
	}
}

// evictFor makes room for a job, if the rules let it.
func (s *soak) evictFor(job *soakJob) bool {
	room, r, q := int64(soakGPUs), s.rank(), s.request(job)
	var victims []*soakJob
	for _, j := range s.running {
		room -= j.gpus
	}
	for _, j := range s.running {
		if room >= job.gpus {
			break
		}
		if o := s.occupant(j); s.contract.Decide(r, s.now, q, &o).Yields {
			require.True(s.t, j.min == 0 || s.now >= j.protectedUntil(), "evicted within its window")
			victims = append(victims, j)
			room += j.gpus
		}
	}
	if room < job.gpus {
		return false
	}
	for _, victim := range victims {
		s.stop(victim)
		again := *victim
		again.since, again.took = s.now, nil
		s.waiting = append(s.waiting, &again)
	}
	job.took = victims
	s.took += len(victims)
	s.circle(job)
	return true
}

// neverTakenBack asks for the victim at once, which R2 answers, and as if the
// winner's minimum runtime were over, where it doesn't.
func (s *soak) neverTakenBack(job, victim *soakJob) {
	back, winner := s.request(victim), s.occupant(job)
	back.Waited = 24 * time.Hour
	require.False(s.t, s.contract.Decide(s.rank(), s.now, back, &winner).Yields, "taken back at once")
	winner.ProtectedUntil = s.now
	had := s.rank().Charged(job.account, fairshare.GPUMillis(job.gpus*job.min.Milliseconds()))
	d := s.contract.Decide(had, s.now, back, &winner)
	require.NotEqual(s.t, fairshare.R2, d.Rule)
	require.False(s.t, d.Yields, "taken back when protection has ended")
}

// next is a job that wants to start: one that waits, or a new one.
func (s *soak) next() *soakJob {
	if n := len(s.waiting); n > 0 && rapid.Bool().Draw(s.t, "again") {
		i := rapid.IntRange(0, n-1).Draw(s.t, "which")
		job := s.waiting[i]
		s.waiting = slices.Delete(s.waiting, i, i+1)
		return job
	}
	s.jobs++
	return &soakJob{
		id: s.jobs, account: fmt.Sprint("a", rapid.IntRange(0, len(s.budget.Accounts)-1).Draw(s.t, "account")),
		gpus: rapid.Int64Range(1, 4).Draw(s.t, "gpus"),
		min:  time.Duration(rapid.IntRange(0, 60).Draw(s.t, "min")) * time.Minute, since: s.now,
		qos: uint32(rapid.IntRange(0, 1).Draw(s.t, "qos")),
	}
}

// circle follows back from whom each had the GPUs. If one of them was the same
// job, that has come round, and since its earlier run ended each on the way has
// had its window.
func (s *soak) circle(job *soakJob) {
	var back func(run *soakJob, least time.Duration)
	back = func(run *soakJob, least time.Duration) {
		for _, before := range run.took {
			if before.id == job.id {
				s.circles++
				require.GreaterOrEqual(s.t, time.Duration(s.now-before.ended)*time.Millisecond, least, "round in less than a window")
				continue
			}
			back(before, min(least, before.min))
		}
	}
	back(job, math.MaxInt64)
}

func (s *soak) request(j *soakJob) *fairshare.Request {
	return &fairshare.Request{
		Account: j.account, GPUs: j.gpus, Allocated: j.min > 0, MinRuntime: j.min, QOSPriority: j.qos,
		Waited: time.Duration(s.now-j.since) * time.Millisecond,
	}
}

func (s *soak) occupant(j *soakJob) fairshare.Occupant {
	return fairshare.Occupant{Account: j.account, GPUs: j.gpus, Allocated: j.min > 0, ProtectedUntil: j.protectedUntil(), QOSPriority: j.qos}
}

func (s *soak) charge(j *soakJob) fairshare.Charge {
	return fairshare.Charge{
		Period: fairshare.Period{From: j.started, Until: s.now}, Account: j.account, User: "u",
		Amount: fairshare.GPUMillis(j.gpus * int64(s.now-j.started)),
	}
}

func (s *soak) rank() *fairshare.Ranking {
	in := fairshare.Input{Budget: s.budget, Window: fairshare.Period{From: s.now - 48*hour, Until: s.now}, Charges: slices.Clone(s.charges)}
	for _, j := range s.running {
		if j.min > 0 && j.started < s.now {
			in.Charges = append(in.Charges, s.charge(j))
		}
	}
	return fairshare.Rank(in)
}

// The components of a het job yield together: what one of them alone would yield to may
// not be enough for all of them.
func TestTogether(t *testing.T) {
	components := []fairshare.Occupant{
		{Account: "lab", GPUs: 2, Allocated: true, Ahead: 10},
		{Account: "lab", GPUs: 3, Allocated: true, Ahead: 5},
		{Account: "lab", GPUs: 8},
		{Account: "other", GPUs: 1, Allocated: true, Ahead: 7},
	}
	fairshare.Together(components)
	require.Equal(t, []fairshare.Occupant{
		{Account: "lab", GPUs: 6, Allocated: true, Ahead: 15},
		{Account: "lab", GPUs: 6, Allocated: true, Ahead: 15},
		{Account: "lab", GPUs: 8},
		{Account: "other", GPUs: 6, Allocated: true, Ahead: 7},
	}, components)
}
