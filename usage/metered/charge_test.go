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
		if b.JobID != r.JobID || b.Restart != r.Restart || in.Empty() || b.Busy == nil {
			continue
		}
		g := gpus[b.GPU]
		if g == nil {
			g = &sums{new(big.Rat), new(big.Rat), new(big.Rat), new(big.Rat)}
			gpus[b.GPU] = g
		}
		part := big.NewRat(in.Millis(), b.Held())
		g.ms.Add(g.ms, big.NewRat(in.Millis(), 1))
		g.known.Add(g.known, new(big.Rat).Mul(big.NewRat(b.BusyKnown, 1), part))
		at := new(big.Rat).Mul(big.NewRat(*b.Busy, 1), part)
		g.busy.Add(g.busy, at)
		g.own.Add(g.own, new(big.Rat).Mul(at, big.NewRat(b.Part, b.Held())))
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

// atWork says of most buckets how busy their GPUs were, and of all how much of them
// the job had.
func (w *world) atWork() {
	for i := range w.buckets {
		b := &w.buckets[i]
		b.Part = rapid.Int64Range(0, b.Held()).Draw(w.T, "part")
		if b.Held() > 1 && rapid.IntRange(0, 4).Draw(w.T, "known") > 0 {
			b.BusyKnown = rapid.Int64Range(1, b.Held()/2).Draw(w.T, "known for") // it may be told when it was half as long
			b.Busy = new(rapid.Int64Range(0, b.BusyKnown).Draw(w.T, "busy"))
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
