// SPDX-License-Identifier: GPL-2.0-or-later

package metered_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/agent/tally"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/usage"
	"gpubudget/usage/metered"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var ctx = context.Background()

// hour is a full hour of today or yesterday, long enough past: the database takes
// reports of the last 35 days only, by its own clock.
func hour() fairshare.Instant {
	return fairshare.At(time.Now().UTC().Truncate(time.Hour).Add(-3 * time.Hour))
}

const (
	second = fairshare.Instant(1000)
	minute = 60 * second
	hours  = 60 * minute
)

func period(from, until fairshare.Instant) fairshare.Period {
	return fairshare.Period{From: from, Until: until}
}

// report sends what an agent of a node has counted.
func report(t require.TestingT, db usage.DB, cluster, node string, buckets ...tally.Bucket) {
	send(t, db, cluster, node, sign{}, buckets...)
}

// sign is what an agent tells of itself, and of its GPUs.
type sign struct {
	gpus  int
	uuids []string
	state string
	skew  time.Duration
}

func send(t require.TestingT, db usage.DB, cluster, node string, s sign, buckets ...tally.Bucket) {
	now := time.Now().Add(s.skew).UnixMilli()
	gpus := []map[string]any{}
	for i, uuid := range s.uuids {
		gpus = append(gpus, map[string]any{"uuid": uuid, "model": "H200", "gres_index": i})
	}
	if s.state == "" {
		s.state = "ok"
	}
	text, err := json.Marshal(map[string]any{
		"cluster": cluster, "node": node, "sent_ms": now, "gpus": gpus, "buckets": append([]tally.Bucket{}, buckets...),
		"agent": map[string]any{
			"incarnation": incarnation(0), "boot_id": "b", "started_ms": now - 1000, "version": "test", "sampled_ms": now, "spooled": 0,
			"gpus": s.gpus, "state": s.state,
		},
	})
	require.NoError(t, err)
	_, err = db.Exec(ctx, "SELECT gpubudget.record_meter($1)", string(text))
	require.NoError(t, err)
}

func incarnation(n int) string { return fmt.Sprintf("00000000-0000-0000-0000-%012d", n) }

// held are the buckets, of an hour each, of a stretch of a holding.
func held(job, restart uint32, gpu string, who int, p fairshare.Period) []tally.Bucket {
	var all []tally.Bucket
	for at := p.From; at < p.Until; {
		b := usage.Bucket(at, time.Hour)
		in := p.Intersect(b)
		all = append(all, tally.Bucket{
			Starts: b.From, Ends: b.Until, GPU: gpu, JobID: job, Restart: restart, Incarnation: incarnation(who), Seq: 2,
			Source: tally.FromProlog, User: "ann", From: in.From, Until: in.Until, Part: in.Millis(),
		})
		at = in.Until
	}
	return all
}

func run(cluster string, job, restart uint32, gpus int64, p fairshare.Period) usage.Run {
	return usage.Run{
		Cluster: cluster, JobID: job, Restart: restart, ArrayTaskID: usage.NoTask, Account: "vision", User: "ann", Nodes: "n1",
		GPUs: gpus, Allocated: true, StartedAt: p.From.Time(), EndedAt: new(p.Until.Time()), EndState: "COMPLETED", SeenAt: p.Until.Time(),
	}
}

func charged(t require.TestingT, db usage.DB, cluster string, w fairshare.Period) (sum fairshare.GPUMillis) {
	charges, _, err := usage.NewStore(db).Charges(ctx, cluster, w)
	require.NoError(t, err)
	for _, c := range charges {
		sum += c.Amount
	}
	return sum
}

// An agent that is killed for half of a run, and whose node loses what it had on
// disk: the run is charged to the millisecond as if it had been there, one half as
// metered and the other from Slurm's record.
func TestAnAgentKilledForHalfARunChargesExactly(t *testing.T) {
	db, start := pgtest.Pool(t), hour()-10*minute
	require.NoError(t, usage.NewStore(db).WriteRuns(ctx, []usage.Run{run("titan", 7, 0, 2, period(start, start+30*minute))}))
	// Prolog and Epilog are a little later than Slurm's start and end.
	prolog, killed, back, epilog := start+137, start+10*minute+1, start+25*minute+1, start+30*minute+412
	for _, gpu := range []string{"GPU-0", "GPU-1"} {
		report(t, db, "titan", "n1", held(7, 0, gpu, 1, period(prolog, killed))...)
		report(t, db, "titan", "n1", held(7, 0, gpu, 2, period(back, epilog))...)
	}
	w := period(start-hours, start+2*hours)
	r, err := metered.NewStore(db).Read(ctx, "titan", w, metered.Filter{})
	require.NoError(t, err)
	require.Len(t, r.Runs, 1)
	got := r.Runs[0]
	require.Equal(t, fairshare.GPUMillis(2*30*minute), got.Charge())
	require.Equal(t, charged(t, db, "titan", w), got.Charge())
	require.Equal(t, fairshare.GPUMillis(2*15*minute), got.Covered, "Prolog, soon after the start, is no gap")
	require.Equal(t, fairshare.GPUMillis(2*15*minute), got.Uncovered)
	require.Equal(t, []metered.Gap{{Period: period(killed, back), Amount: 2 * 15 * 60000}}, got.Gaps)
	require.Equal(t, []metered.Outside{
		{Period: period(start+30*minute, epilog), JobID: 7, Node: "n1", GPU: "GPU-0", User: "ann", Known: true},
		{Period: period(start+30*minute, epilog), JobID: 7, Node: "n1", GPU: "GPU-1", User: "ann", Known: true},
	}, r.Outside, "what is metered after the end is told of and not charged")
}

// world is a random history of jobs and of meters.
type world struct {
	*rapid.T
	cluster string
	start   fairshare.Instant
	length  int
	runs    []usage.Run
	buckets []tally.Bucket
	// metered is, for each job, restart and GPU, each millisecond that was metered.
	metered map[place][]bool
	uuids   int
}

type place struct {
	job, restart uint32
	gpu          string
}

func (w *world) job(job uint32) {
	at := w.start + fairshare.Instant(rapid.IntRange(0, w.length/2).Draw(w.T, "start"))
	for restart := range uint32(rapid.IntRange(1, 2).Draw(w.T, "starts")) {
		begin, most := at, 0
		for range rapid.IntRange(1, 3).Draw(w.T, "resizes") {
			gpus := rapid.IntRange(1, 3).Draw(w.T, "GPUs")
			most = max(most, gpus)
			until := at + fairshare.Instant(rapid.IntRange(1, w.length/4).Draw(w.T, "length"))
			r := run(w.cluster, job, restart, int64(gpus), period(at, until))
			if rapid.Bool().Draw(w.T, "suspended") {
				r.Suspended = time.Duration(rapid.Int64Range(0, int64(until-at)).Draw(w.T, "suspended for")) * time.Millisecond
			}
			w.runs = append(w.runs, r)
			at = until
		}
		late := fairshare.Instant(rapid.IntRange(0, 900).Draw(w.T, "Prolog"))
		over := fairshare.Instant(rapid.IntRange(0, 900).Draw(w.T, "Epilog"))
		for gpu := range rapid.IntRange(0, most+1).Draw(w.T, "metered GPUs") {
			w.meter(place{job, restart, fmt.Sprint("GPU-", gpu)}, period(begin+late, max(at+over, begin+late+1)))
		}
		at += fairshare.Instant(rapid.IntRange(1, 2000).Draw(w.T, "pause"))
	}
}

// meter has several incarnations count a holding, with gaps and overlaps.
func (w *world) meter(p place, holding fairshare.Period) {
	var done []fairshare.Period
	for range rapid.IntRange(1, 4).Draw(w.T, "incarnations") {
		from := holding.From + fairshare.Instant(rapid.Int64Range(0, holding.Millis()-1).Draw(w.T, "from"))
		stretch := period(from, from+fairshare.Instant(rapid.Int64Range(1, int64(holding.Until-from)).Draw(w.T, "until")))
		if rapid.Bool().Draw(w.T, "all") {
			stretch = holding
		}
		w.uuids++
		w.buckets = append(w.buckets, held(p.job, p.restart, p.gpu, w.uuids, stretch)...)
		done = append(done, stretch)
	}
	seen := make([]bool, 4*w.length)
	for _, stretch := range done {
		for at := stretch.From; at < stretch.Until; at++ {
			seen[at-w.start] = true
		}
	}
	w.metered[p] = seen
}

// send tells all, in any order, some of it twice or in an older state as well.
func (w *world) send(db usage.DB) {
	var all []tally.Bucket
	for i := range w.buckets {
		b := w.buckets[i]
		if rapid.Bool().Draw(w.T, "told before") {
			older := b
			older.Seq, older.Until = 1, b.From+(b.Until-b.From)/2
			older.Part = min(b.Part, older.Held())
			all = append(all, older)
		}
		all = append(all, b)
	}
	if len(all) == 0 {
		return
	}
	tx, err := db.Begin(ctx)
	require.NoError(w.T, err)
	defer tx.Rollback(ctx) //nolint:errcheck // it was committed, or has failed
	for rest := rapid.Permutation(all).Draw(w.T, "order"); len(rest) > 0; {
		n := min(len(rest), rapid.IntRange(1, 20).Draw(w.T, "in a report"))
		for i := range n { // a report tells of a bucket once
			if slices.ContainsFunc(rest[:i], func(b tally.Bucket) bool { return key(&b) == key(&rest[i]) }) {
				n = i
				break
			}
		}
		report(w.T, tx, w.cluster, "n1", rest[:n]...)
		rest = rest[n:]
	}
	require.NoError(w.T, tx.Commit(ctx))
}

func key(b *tally.Bucket) string {
	return fmt.Sprint(b.Starts, b.GPU, b.JobID, b.Restart, b.Incarnation)
}

// covered counts millisecond by millisecond what of a run was metered in a period:
// GPU-milliseconds of its time on the GPUs, suspended or not.
func (w *world) covered(r *usage.Run, p fairshare.Period) (n int64) {
	for at := max(p.From, fairshare.At(r.StartedAt)); at < min(p.Until, fairshare.At(*r.EndedAt)); at++ {
		var gpus int64
		for place, seen := range w.metered {
			if place.job == r.JobID && place.restart == r.Restart && (seen[at-w.start] || w.begins(place, r.Period(r.StartedAt), at)) {
				gpus++
			}
		}
		n += min(gpus, r.GPUs)
	}
	return n
}

// begins tells whether a holding begins after an instant in a run, and not so late
// after the run's start that a meter must have been away.
func (w *world) begins(p place, run fairshare.Period, at fairshare.Instant) bool {
	return slices.ContainsFunc(w.buckets, func(b tally.Bucket) bool {
		return place{b.JobID, b.Restart, b.GPU} == p && b.From > at && b.From > b.Starts && b.From < run.Until && b.From-run.From <= fairshare.Instant(metered.Startup.Milliseconds())
	})
}

// Whatever agents did, what was metered of a run and what was not add up to the
// run; and that is what its account is charged, in every window.
func TestWhatIsMeteredAndWhatIsNotAddUpToTheRun(t *testing.T) {
	db := pgtest.Pool(t)
	s, u := metered.NewStore(db), usage.NewStore(db)
	start, n := hour()-4*second, 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		w := &world{T: t, cluster: fmt.Sprint("c", n), start: start, length: 8000, metered: map[place][]bool{}}
		for job := range uint32(rapid.IntRange(1, 3).Draw(t, "jobs")) {
			w.job(job + 1)
		}
		require.NoError(t, u.WriteRuns(ctx, w.runs))
		w.send(db)

		all := period(start-hours, start+2*hours)
		cut := period(start+fairshare.Instant(rapid.IntRange(0, w.length).Draw(t, "cut from")), 0)
		cut.Until = cut.From + fairshare.Instant(rapid.IntRange(1, w.length).Draw(t, "cut length"))
		for _, window := range []fairshare.Period{all, cut} {
			r, err := s.Read(ctx, w.cluster, window, metered.Filter{})
			require.NoError(t, err)
			var sum fairshare.GPUMillis
			for i := range r.Runs {
				sum += r.Runs[i].Charge()
				w.check(&r.Runs[i])
			}
			require.Equal(t, charged(t, db, w.cluster, window), sum, "what is charged")
			w.checkOutside(r)
			w.checkSums(s, r)
		}
	})
}

func (w *world) check(r *metered.Run) {
	require.Equal(w.T, r.GPUMillis(r.Within.Until.Time())-r.GPUMillis(r.Within.From.Time()), r.Used)
	require.Equal(w.T, r.Used, r.Covered+r.Uncovered)
	require.GreaterOrEqual(w.T, r.Covered, fairshare.GPUMillis(0))
	require.GreaterOrEqual(w.T, r.Uncovered, fairshare.GPUMillis(0))
	var gaps fairshare.GPUMillis
	for _, g := range r.Gaps {
		gaps += g.Amount
	}
	require.Equal(w.T, r.Uncovered, gaps)
	want, length := w.covered(&r.Run, r.Within), r.Run.Period(r.StartedAt).Millis()
	if r.Suspended == 0 {
		require.Equal(w.T, fairshare.GPUMillis(want), r.Covered, "job %d", r.JobID)
		return
	}
	// Time that was suspended lies evenly in the run, rounded at each change.
	even := float64(want) * float64(max(0, length-r.Suspended.Milliseconds())) / float64(length)
	require.InDelta(w.T, even, float64(r.Covered), 60, "job %d", r.JobID)
}

// checkOutside counts what was metered outside of all runs.
func (w *world) checkOutside(r *metered.Reading) {
	var got, want int64
	for i := range r.Outside {
		got += r.Outside[i].Millis()
	}
	for p, seen := range w.metered {
		for i, was := range seen {
			at := w.start + fairshare.Instant(i)
			if was && r.Period.Contains(at) && !slices.ContainsFunc(w.runs, func(run usage.Run) bool {
				return run.JobID == p.job && run.Restart == p.restart && run.Period(run.StartedAt).Contains(at)
			}) {
				want++
			}
		}
	}
	require.Equal(w.T, want, got)
}

// checkSums holds what Postgres has added up against the rows one by one.
func (w *world) checkSums(s *metered.Store, r *metered.Reading) {
	sums, err := s.Sums(ctx, w.cluster, r.Period, metered.Filter{})
	require.NoError(w.T, err)
	var used, part, covered fairshare.GPUMillis
	for i := range r.Runs {
		used += r.Runs[i].Used
		covered += r.Runs[i].Covered
	}
	for i := range w.buckets {
		part += fairshare.GPUMillis(period(w.buckets[i].From, w.buckets[i].Until).Intersect(r.Period).Millis())
	}
	var got metered.Sum
	for i := range sums {
		got.Add(&sums[i])
	}
	require.Equal(w.T, used, got.Used)
	require.Equal(w.T, min(used, part), got.Covered)
}
