// SPDX-License-Identifier: GPL-2.0-or-later

package metered_test

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/agent/tally"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/usage"
)

func setCharge(t require.TestingT, db usage.DB, cluster, value string, from fairshare.Instant) {
	_, err := db.Exec(ctx, `INSERT INTO gpubudget.ledger (cluster, kind, actor, setting, value, effective_from)
		VALUES ($1, 'policy_set', 'test', 'charge', $2, $3)`, cluster, value, from.Time())
	require.NoError(t, err)
}

// busy is buckets of which it is known how busy the GPU was, in thousandths.
func busy(buckets []tally.Bucket, thousandths int64) []tally.Bucket {
	for i := range buckets {
		b := &buckets[i]
		b.BusyKnown = b.Held()
		b.Busy = new(b.BusyKnown * thousandths / 1000)
	}
	return buckets
}

// What each policy makes of a job that squats, of one that works and of one on a
// shard that keeps the whole GPU at work; and of what no meter knows.
func TestPoliciesOfWhatIsCharged(t *testing.T) {
	db := pgtest.Pool(t)
	u := usage.NewStore(db)
	start := hour()
	for _, tt := range []struct {
		policy                                     string
		squatter, worker, glutton, half, unmetered int64 // thousandths of what is held
	}{
		{"occupancy", 1000, 1000, 1000, 1000, 1000},
		{"utilisation", 0, 900, 1000, 500, 1000},
		{"max", 1000, 1000, 4000, 1000, 1000},
	} {
		t.Run(tt.policy, func(t *testing.T) {
			setCharge(t, db, tt.policy, tt.policy, start-hours)
			whole := period(start, start+20*minute)
			shard := run(tt.policy, 3, 0, 0, whole)
			shard.Parts = fairshare.Millionths / 4
			runs := []usage.Run{run(tt.policy, 1, 0, 2, whole), run(tt.policy, 2, 0, 1, whole), shard, run(tt.policy, 4, 0, 1, whole), run(tt.policy, 5, 0, 1, whole)}
			for i := range runs {
				runs[i].User = strconv.Itoa(i)
			}
			require.NoError(t, u.WriteRuns(ctx, runs))
			report(t, db, tt.policy, "n1", slices.Concat(
				busy(held(1, 0, "GPU-1", 1, whole), 0), busy(held(1, 0, "GPU-2", 1, whole), 0),
				busy(held(2, 0, "GPU-3", 1, whole), 900), busy(held(3, 0, "GPU-4", 1, whole), 1000),
				busy(held(4, 0, "GPU-5", 1, period(start, start+10*minute)), 0))...)
			n, err := u.ChargeMetered(ctx, tt.policy)
			require.NoError(t, err)
			require.Equal(t, 5, n)
			charges, _, err := u.Charges(ctx, tt.policy, whole)
			require.NoError(t, err)
			got := map[string]fairshare.GPUMillis{}
			for _, c := range charges {
				got[c.User] += c.Amount
			}
			want := map[string]fairshare.GPUMillis{}
			for i, thousandths := range []int64{tt.squatter, tt.worker, tt.glutton, tt.half, tt.unmetered} {
				if thousandths > 0 {
					want[strconv.Itoa(i)] = runs[i].GPUMillis(*runs[i].EndedAt) * fairshare.GPUMillis(thousandths) / 1000
				}
			}
			require.Equal(t, want, got)

			n, err = u.ChargeMetered(ctx, tt.policy)
			require.NoError(t, err)
			require.Zero(t, n, "nothing is due any more")
			// What is known late changes the charge; what is told again does not.
			report(t, db, tt.policy, "n1", busy(held(5, 0, "GPU-6", 1, whole), 0)...)
			n, err = u.ChargeMetered(ctx, tt.policy)
			require.NoError(t, err)
			require.Equal(t, 1, n)
			lost := fairshare.GPUMillis(0)
			if tt.policy == "utilisation" {
				lost = 20 * 60 * 1000
			}
			var sum fairshare.GPUMillis
			for _, amount := range want {
				sum += amount
			}
			require.Equal(t, sum-lost, charged(t, db, tt.policy, whole))
			// And a policy for the past takes all of it back.
			setCharge(t, db, tt.policy, "occupancy", start-hours)
			_, err = u.ChargeMetered(ctx, tt.policy)
			require.NoError(t, err)
			require.Equal(t, fairshare.GPUMillis(20*60*1000*5+20*60*1000/4), charged(t, db, tt.policy, whole))
		})
	}
}

// Where the policy never said anything of what is charged, meters make no difference.
func TestNothingIsDueWithoutAPolicy(t *testing.T) {
	db := pgtest.Pool(t)
	u := usage.NewStore(db)
	p := period(hour(), hour()+10*minute)
	require.NoError(t, u.WriteRuns(ctx, []usage.Run{run("titan", 1, 0, 1, p)}))
	report(t, db, "titan", "n1", busy(held(1, 0, "GPU-1", 1, p), 0)...)
	var due int
	require.NoError(t, db.QueryRow(ctx, `SELECT count(*) FROM gpubudget.meter_due`).Scan(&due))
	require.Zero(t, due)
	n, err := u.ChargeMetered(ctx, "titan")
	require.NoError(t, err)
	require.Zero(t, n)
}

// recharged is what meters change of a run's charge, worked out from all there is.
func (w *world) recharged(r *usage.Run, policy string) int64 {
	length := fairshare.At(*r.EndedAt) - fairshare.At(r.StartedAt)
	if policy == "occupancy" || length <= 0 {
		return 0
	}
	type sums struct{ ms, known, busy, own *big.Rat }
	gpus := map[string]*sums{}
	for i := range w.buckets {
		b := &w.buckets[i]
		in := period(b.From, b.Until).Intersect(r.Period(r.StartedAt))
		if b.JobID != r.JobID || b.Restart != r.Restart || in.Empty() || b.Busy == nil && b.SharedBusy == nil {
			continue
		}
		g := gpus[b.GPU]
		if g == nil {
			g = &sums{new(big.Rat), new(big.Rat), new(big.Rat), new(big.Rat)}
			gpus[b.GPU] = g
		}
		part := big.NewRat(in.Millis(), b.Held())
		g.ms.Add(g.ms, big.NewRat(in.Millis(), 1))
		g.known.Add(g.known, new(big.Rat).Mul(big.NewRat(b.BusyKnown+b.SharedBusyKnown, 1), part))
		alone, shared := new(big.Rat).Mul(big.NewRat(amount(b.Busy), 1), part), new(big.Rat).Mul(big.NewRat(amount(b.SharedBusy), 1), part)
		g.busy.Add(g.busy, alone)
		g.busy.Add(g.busy, shared)
		ofAlone, ofShared := w.own(r, b, in)
		g.own.Add(g.own, alone.Mul(alone, ofAlone))
		g.own.Add(g.own, shared.Mul(shared, ofShared))
	}
	if len(gpus) == 0 {
		return 0
	}
	known, atWork, own := new(big.Rat), new(big.Rat), new(big.Rat)
	whole := big.NewRat(int64(length), 1)
	for _, g := range gpus {
		once := big.NewRat(1, 1)
		if g.ms.Cmp(whole) > 0 {
			once.Quo(whole, g.ms)
		}
		known.Add(known, new(big.Rat).Mul(g.known, once))
		atWork.Add(atWork, new(big.Rat).Mul(g.busy, once))
		own.Add(own, new(big.Rat).Mul(g.own, once))
	}
	holding := big.NewRat(r.GPUs*fairshare.Millionths+r.Parts, fairshare.Millionths)
	each := new(big.Rat).Quo(holding, big.NewRat(int64(len(gpus)), 1))
	if each.Cmp(big.NewRat(1, 1)) > 0 {
		each.SetInt64(1)
	}
	unsuspended := big.NewRat(max(0, int64(length)-r.Suspended.Milliseconds()), int64(length))
	change := new(big.Rat)
	if policy == "max" {
		if change.Sub(own, change.Mul(each, known)); change.Sign() < 0 {
			change.SetInt64(0)
		}
	} else {
		change.Mul(each, change.Sub(atWork, known))
		if least := new(big.Rat).Neg(new(big.Rat).Mul(holding, whole)); change.Cmp(least) < 0 {
			change = least
		}
	}
	change.Mul(change, unsuspended)
	return new(big.Int).Quo(change.Num(), change.Denom()).Int64()
}

func amount(v *int64) int64 {
	if v == nil {
		return 0
	}
	return *v
}

// own is what falls to a run of the work of a bucket in a period, of what the meter
// counted as alone and of the rest: all of it, or while others had parts of the GPU, as
// its part is to those of all, millisecond by millisecond. Where others had parts for
// longer than the meter knew, so much of what it counted as alone was not.
func (w *world) own(r *usage.Run, b *tally.Bucket, in fairshare.Period) (alone, shared *big.Rat) {
	one := big.NewRat(1, 1)
	if r.Parts == 0 {
		return one, one
	}
	var withOthers int64
	sum, before, share := new(big.Rat), "", new(big.Rat)
	for at := in.From; at < in.Until; at++ {
		parts := map[uint32]int64{r.JobID: partOfGPU(r)}
		for i := range w.runs {
			other := &w.runs[i]
			if other.JobID != r.JobID && other.Period(other.StartedAt).Contains(at) && w.on(other, b.GPU, at) {
				parts[other.JobID] = max(parts[other.JobID], partOfGPU(other))
			}
		}
		if len(parts) == 1 {
			continue
		}
		if now := fmt.Sprint(parts); now != before { // it seldom changes
			var all int64
			for _, part := range parts {
				all += part
			}
			before, share = now, big.NewRat(partOfGPU(r), all)
		}
		withOthers++
		sum.Add(sum, share)
	}
	if withOthers == 0 {
		return one, one
	}
	shared = sum.Quo(sum, big.NewRat(withOthers, 1))
	counted := new(big.Rat).Mul(big.NewRat(b.Held()-b.Shared, b.Held()), big.NewRat(in.Millis(), 1))
	was := big.NewRat(in.Millis()-withOthers, 1)
	if was.Cmp(counted) >= 0 {
		return one, shared
	}
	truly := was.Quo(was, counted)
	return new(big.Rat).Add(truly, new(big.Rat).Mul(new(big.Rat).Sub(one, truly), shared)), shared
}

// on tells whether a meter had a run's job on a GPU at an instant.
func (w *world) on(r *usage.Run, gpu string, at fairshare.Instant) bool {
	return slices.ContainsFunc(w.buckets, func(b tally.Bucket) bool {
		return b.GPU == gpu && b.JobID == r.JobID && b.Restart == r.Restart && b.From <= at && at < b.Until
	})
}

// partOfGPU is a run's part of each GPU that it has, in millionths.
func partOfGPU(r *usage.Run) int64 {
	if r.GPUs > 0 {
		return fairshare.Millionths
	}
	return r.Parts
}

// atWork says of most buckets how busy their GPUs were, alone or shared, and of all how
// much of them the job had. No agent counts so: alone or shared is drawn by chance.
func (w *world) atWork() {
	for i := range w.buckets {
		b := &w.buckets[i]
		b.Part = rapid.Int64Range(0, b.Held()).Draw(w.T, "part")
		if b.Held() > 1 && rapid.IntRange(0, 4).Draw(w.T, "known") > 0 {
			b.BusyKnown = rapid.Int64Range(1, b.Held()/2).Draw(w.T, "known for") // it may be told when it was half as long
			b.Busy = new(rapid.Int64Range(0, b.BusyKnown).Draw(w.T, "busy"))
		}
		if b.Held() > 1 && rapid.Bool().Draw(w.T, "shared") {
			b.Shared = rapid.Int64Range(1, b.Held()/2).Draw(w.T, "shared for")
			b.SharedBusyKnown = rapid.Int64Range(1, b.Shared).Draw(w.T, "shared known for")
			b.SharedBusy = new(rapid.Int64Range(0, b.SharedBusyKnown).Draw(w.T, "shared busy"))
		}
	}
}

// In whatever order runs end, meters tell, the policy changes and what is due is
// done: in the end each run is charged as if all were worked out anew.
func TestWhatMetersSawIsChargedInAnyOrder(t *testing.T) {
	db := pgtest.Pool(t)
	u := usage.NewStore(db)
	start, n := hour()-4*second, 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		w := &world{T: t, cluster: fmt.Sprint("c", n), start: start, length: 8000, metered: map[place][]bool{}}
		for job := range uint32(rapid.IntRange(1, 3).Draw(t, "jobs")) {
			w.job(job + 1)
		}
		for i := range w.runs {
			if rapid.Bool().Draw(t, "on shards") {
				w.runs[i].GPUs, w.runs[i].Parts = 0, rapid.Int64Range(1, fairshare.Millionths).Draw(t, "parts")
			}
		}
		w.atWork()
		type change struct {
			value string
			from  fairshare.Instant
		}
		var policy []change
		settle := func() {
			_, err := u.ChargeMetered(ctx, w.cluster)
			require.NoError(t, err)
		}
		steps := []func(){
			func() { require.NoError(t, u.WriteRuns(ctx, w.runs)) },
			func() { w.send(db) },
		}
		for range rapid.IntRange(1, 3).Draw(t, "policies") {
			c := change{
				rapid.SampledFrom([]string{"utilisation", "max", "occupancy"}).Draw(t, "policy"),
				start + fairshare.Instant(rapid.IntRange(-1000, w.length).Draw(t, "policy from")),
			}
			steps = append(steps, func() {
				setCharge(t, db, w.cluster, c.value, c.from)
				policy = append(policy, c)
			})
		}
		for _, step := range rapid.Permutation(steps).Draw(t, "order") {
			step()
			if rapid.Bool().Draw(t, "settle") {
				settle()
			}
		}
		settle()

		runs, err := u.Runs(ctx, w.cluster, period(start-hours, start+hours))
		require.NoError(t, err)
		for i := range runs {
			r := &runs[i]
			inForce := change{"occupancy", fairshare.Always}
			for _, c := range policy {
				if c.from <= fairshare.At(*r.EndedAt) && c.from >= inForce.from {
					inForce = c
				}
			}
			require.InDelta(t, w.recharged(r, inForce.value), int64(r.Metered), 1, "%s: job %d", inForce.value, r.JobID)
		}
		var sum fairshare.GPUMillis
		for i := range runs {
			sum += runs[i].Charged(*runs[i].EndedAt)
		}
		require.Equal(t, sum, charged(t, db, w.cluster, period(start-hours, start+hours)))

		// Bit for bit the same if all of it is done at once.
		_, err = db.Exec(ctx, `INSERT INTO gpubudget.meter_due SELECT DISTINCT cluster, job_id FROM gpubudget.job_run WHERE cluster = $1`, w.cluster)
		require.NoError(t, err)
		settle()
		again, err := u.Runs(ctx, w.cluster, period(start-hours, start+hours))
		require.NoError(t, err)
		require.Equal(t, runs, again)
	})
}

// What a GPU's work is told apart by.
func TestPartsOfAGPUsWork(t *testing.T) {
	db := pgtest.Pool(t)
	for _, tt := range []struct {
		name         string
		part, others string
		want         string
	}{
		{"alone on a quarter", "0.25", "0", "1"},
		{"beside as much", "0.25", "0.25", "0.5"},
		{"few shards beside many", "0.125", "0.875", "0.125"},
		{"many beside few", "0.75", "0.25", "0.75"},
		{"what nobody has falls to those who have some, by what they have", "0.5", "0.125", "0.8"},
	} {
		var same bool
		require.NoError(t, db.QueryRow(ctx, `SELECT gpubudget.part_at_work($1, $2) = $3`, tt.part, tt.others, tt.want).Scan(&same))
		require.True(t, same, tt.name)
	}
}

// sharing is jobs on shards of one GPU.
type sharing struct {
	cluster string
	runs    []usage.Run
	buckets [][]tally.Bucket // of each run
	shards  []int64          // of each run, of 8
}

// add adds a job that sees its GPU at work for so many thousandths of its time. What
// the meter takes for its part is of no account. Its rows are made up: an agent that
// knew of all sharers would have shared time apart, as in TestSharersAreChargedByWhatAnAgentCounts.
func (s *sharing) add(shards int64, p fairshare.Period, thousandths int64) {
	job := uint32(len(s.runs) + 1)
	r := run(s.cluster, job, 0, 0, p)
	r.Parts, r.User = shards*fairshare.Millionths/8, strconv.FormatUint(uint64(job), 10)
	buckets := busy(held(job, 0, "GPU-1", 1, p), thousandths)
	for i := range buckets {
		buckets[i].Part /= 2
	}
	s.runs, s.shards, s.buckets = append(s.runs, r), append(s.shards, shards), append(s.buckets, buckets)
}

// at is how many shards are held at an instant.
func (s *sharing) at(at fairshare.Instant) (held int64) {
	for i := range s.runs {
		if s.runs[i].Period(s.runs[i].StartedAt).Contains(at) {
			held += s.shards[i]
		}
	}
	return held
}

// fits tells whether so many shards more are free all the time.
func (s *sharing) fits(shards int64, p fairshare.Period) bool {
	for at := p.From; at < p.Until; at += second {
		if s.at(at)+shards > 8 {
			return false
		}
	}
	return true
}

// charge has all of it written, and is what each job is charged.
func (s *sharing) charge(t require.TestingT, db usage.DB, order func([]func()) []func()) map[string]int64 {
	u := usage.NewStore(db)
	var steps []func()
	for i := range s.runs {
		steps = append(steps,
			func() { require.NoError(t, u.WriteRuns(ctx, s.runs[i:i+1])) },
			func() { report(t, db, s.cluster, "n1", s.buckets[i]...) },
			func() {
				begun := s.runs[i]
				begun.EndedAt, begun.EndState, begun.SeenAt = nil, "", begun.StartedAt
				require.NoError(t, u.WriteRuns(ctx, []usage.Run{begun}))
			})
	}
	for _, step := range order(steps) {
		step()
	}
	_, err := u.ChargeMetered(ctx, s.cluster)
	require.NoError(t, err)
	charges, _, err := u.Charges(ctx, s.cluster, period(hour()-hours, hour()+hours))
	require.NoError(t, err)
	got := map[string]int64{}
	for _, c := range charges {
		got[c.User] += int64(c.Amount)
	}
	return got
}

// Jobs on 1 and on 3 of a GPU's 8 shards are charged what they hold, or together for
// what it was at work, as their shards are.
func TestAGPUsWorkIsToldApartByShards(t *testing.T) {
	db := pgtest.Pool(t)
	for _, tt := range []struct {
		thousandths, few, many int64
	}{{0, 125, 375}, {400, 125, 375}, {500, 125, 375}, {800, 200, 600}, {1000, 250, 750}} {
		s := sharing{cluster: fmt.Sprint("work", tt.thousandths)}
		setCharge(t, db, s.cluster, "max", hour()-hours)
		p := period(hour(), hour()+10*minute)
		s.add(1, p, tt.thousandths)
		s.add(3, p, tt.thousandths)
		got := s.charge(t, db, func(steps []func()) []func() { return steps })
		require.Equal(t, map[string]int64{"1": 600 * tt.few, "2": 600 * tt.many}, got, s.cluster)
	}
}

// A job on 1 of a GPU's 4 shards, beside which another has 3 for half of the time, is
// charged by what an agent counts of them: for what the GPU was at work while it was
// alone, all of it; while it was shared, by the shards; and idle time of either by
// utilisation.
func TestSharersAreChargedByWhatAnAgentCounts(t *testing.T) {
	db := pgtest.Pool(t)
	u := usage.NewStore(db)
	long, short := period(hour(), hour()+40*minute), period(hour()+10*minute, hour()+30*minute)
	for policy, want := range map[string]map[string]fairshare.GPUMillis{ // in seconds
		"occupancy":   {"few": 600, "many": 900},
		"utilisation": {"few": 600 - (300+600)/4, "many": 900 - 300*3/4},
		"max":         {"few": 600 + 900/4, "many": 900},
	} {
		setCharge(t, db, policy, policy, hour()-hours)
		few, many := run(policy, 1, 0, 0, long), run(policy, 2, 0, 0, short)
		few.Parts, few.User, many.Parts, many.User = fairshare.Millionths/4, "few", 3*fairshare.Millionths/4, "many"
		require.NoError(t, u.WriteRuns(ctx, []usage.Run{few, many}))

		agent := tally.New(incarnation(0), int64(hours), int64(hour()), nil)
		for now := 10 * second; now <= 41*minute; now += 10 * second {
			r := tally.Round{Now: int64(now), Looks: map[string]tally.Look{"GPU-1": atWork(now-10*second, now)}}
			for _, job := range []usage.Run{few, many} {
				from, until := int64(fairshare.At(job.StartedAt)-hour()), int64(fairshare.At(*job.EndedAt)-hour())
				if until > r.Now {
					until = tally.Open
				}
				if from < r.Now {
					r.Holdings = append(r.Holdings, tally.Holding{ID: tally.ID{GPU: "GPU-1", JobID: job.JobID, From: from}, Until: until, Source: tally.FromProlog})
				}
			}
			agent.Add(r)
			for _, b := range append(agent.Closed(), agent.Buckets()...) {
				report(t, db, policy, "n1", *b)
			}
		}

		_, err := u.ChargeMetered(ctx, policy)
		require.NoError(t, err)
		charges, _, err := u.Charges(ctx, policy, period(hour(), hour()+hours))
		require.NoError(t, err)
		got := map[string]fairshare.GPUMillis{}
		for _, c := range charges {
			got[c.User] += c.Amount / 1000
		}
		require.Equal(t, want, got, policy)
	}
}

// atWork is a GPU that is at work for the first 10 minutes, three quarters of the
// next 20 and then not.
func atWork(from, now fairshare.Instant) tally.Look {
	span := int64(now-from) * 1000
	look := tally.Look{From: int64(from), BusyKnown: span}
	switch {
	case now <= 10*minute:
		look.Busy = span
	case now <= 30*minute:
		look.Busy = span * 3 / 4
	}
	return look
}

// Whoever shares a GPU, and for how long: together they are never charged for more
// than it; and if it is at work evenly for no more than what they hold at each
// instant, or what it was at work if that is more. Whatever becomes known first.
func TestJobsThatShareAGPUAreNotChargedForMoreThanIt(t *testing.T) {
	db := pgtest.Pool(t)
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		s := sharing{cluster: fmt.Sprint("c", n)}
		setCharge(t, db, s.cluster, "max", hour()-hours)
		evenly, thousandths := rapid.Bool().Draw(t, "evenly"), rapid.Int64Range(0, 1000)
		even := thousandths.Draw(t, "at work")
		for range rapid.IntRange(1, 8).Draw(t, "jobs") {
			from := hour() + second*fairshare.Instant(rapid.IntRange(0, 40).Draw(t, "from"))
			p := period(from, from+second*fairshare.Instant(rapid.IntRange(1, 60).Draw(t, "seconds")))
			work := even
			if !evenly {
				work = thousandths.Draw(t, "at work meanwhile")
			}
			if shards := rapid.Int64Range(1, 8).Draw(t, "shards"); s.fits(shards, p) {
				s.add(shards, p, work)
			}
		}
		got := s.charge(t, db, func(steps []func()) []func() {
			settle := func() {
				_, err := usage.NewStore(db).ChargeMetered(ctx, s.cluster)
				require.NoError(t, err)
			}
			return rapid.Permutation(append(steps, settle, settle, settle)).Draw(t, "order")
		})

		var sum, holding, most int64
		for i := range s.runs {
			mine := got[s.runs[i].User]
			sum += mine
			require.GreaterOrEqual(t, mine, int64(s.runs[i].GPUMillis(*s.runs[i].EndedAt)))
		}
		for at := hour(); at < hour()+2*minute; at += second {
			switch shards := s.at(at); {
			case shards == 0:
			case evenly:
				most += max(shards*125, even)
			default:
				most += 1000
			}
			holding += s.at(at) * 125
		}
		require.GreaterOrEqual(t, sum, holding)
		require.LessOrEqual(t, sum, most)
	})
}

// A hundred jobs of a tenth of a large cluster have ended, or been told of late.
func BenchmarkChargeMetered(b *testing.B) {
	db := pgtest.Pool(b)
	u := usage.NewStore(db)
	w := benchWeek(b, db)
	setCharge(b, db, "c", "utilisation", w.From)
	_, err := db.Exec(ctx, `DELETE FROM gpubudget.meter_due`)
	require.NoError(b, err)
	for b.Loop() {
		b.StopTimer()
		_, err := db.Exec(ctx, `INSERT INTO gpubudget.meter_due SELECT 'c', job_id FROM gpubudget.job_run ORDER BY ended_at DESC, job_id LIMIT 100`)
		require.NoError(b, err)
		b.StartTimer()
		n, err := u.ChargeMetered(ctx, "c")
		require.NoError(b, err)
		require.Equal(b, 100, n)
	}
}
