// SPDX-License-Identifier: GPL-2.0-or-later

package metered_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/agent/tally"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/usage"
	"gpubudget/usage/metered"
)

// anew is what the sums must hold: gpu_bucket and job_run added up from scratch. It
// returns what is in one of the two and not in the other, by bucket and by day.
const anew = `
WITH row AS (
	SELECT cluster, starts_at, ends_at, account, user_name, 1 AS holdings, 0 AS used_ms, held_ms, part_ms,
		coalesce(busy_ms, 0) AS busy_ms, busy_known_ms, coalesce(energy_mj, 0) AS energy_mj, energy_known_ms
	FROM gpubudget.gpu_bucket
	UNION ALL
	SELECT r.cluster, h, h + interval '1 hour', r.account, r.user_name, 0,
		gpubudget.run_used(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since, gpubudget.run_gpus(r.gpus, r.parts, r.nodes), least(r.ended_at, h + interval '1 hour'))
		- gpubudget.run_used(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since, gpubudget.run_gpus(r.gpus, r.parts, r.nodes), greatest(r.started_at, h)), 0, 0, 0, 0, 0, 0
	FROM gpubudget.job_run r, generate_series(date_trunc('hour', r.started_at, 'UTC'), r.ended_at - interval '1 millisecond', interval '1 hour') h
	WHERE (r.gpus > 0 OR r.parts > 0) AND r.ended_at > r.started_at
), told AS (
	SELECT 'bucket' AS what, * FROM gpubudget.metered_bucket
	UNION ALL SELECT 'bucket', * FROM gpubudget.metered_delta
	UNION ALL SELECT 'day', cluster, day, NULL, account, user_name, holdings, used_ms, held_ms, part_ms, busy_ms, busy_known_ms, energy_mj, energy_known_ms
	FROM gpubudget.metered_day
	UNION ALL SELECT 'day', cluster, date_trunc('day', starts_at, 'UTC'), NULL, account, user_name,
		holdings, used_ms, held_ms, part_ms, busy_ms, busy_known_ms, energy_mj, energy_known_ms
	FROM gpubudget.metered_delta
), have AS (
	SELECT what, cluster, starts_at, ends_at, account, user_name, sum(holdings)::bigint, sum(used_ms)::bigint, sum(held_ms)::bigint, sum(part_ms)::bigint,
		sum(busy_ms)::bigint, sum(busy_known_ms)::bigint, sum(energy_mj)::bigint, sum(energy_known_ms)::bigint
	FROM told GROUP BY 1, 2, 3, 4, 5, 6 HAVING sum(holdings) <> 0 OR sum(used_ms) <> 0 OR sum(held_ms) <> 0 OR sum(busy_known_ms) <> 0
), want AS (
	SELECT what, cluster, CASE what WHEN 'day' THEN date_trunc('day', starts_at, 'UTC') ELSE starts_at END, CASE what WHEN 'bucket' THEN ends_at END,
		account, user_name, sum(holdings)::bigint, sum(used_ms)::bigint, sum(held_ms)::bigint, sum(part_ms)::bigint,
		sum(busy_ms)::bigint, sum(busy_known_ms)::bigint, sum(energy_mj)::bigint, sum(energy_known_ms)::bigint
	FROM row, (VALUES ('bucket'), ('day')) v (what) GROUP BY 1, 2, 3, 4, 5, 6 HAVING sum(holdings) <> 0 OR sum(used_ms) <> 0
)
SELECT 'missing ' || x::text FROM (SELECT * FROM want EXCEPT SELECT * FROM have) x
UNION ALL
SELECT 'too much ' || x::text FROM (SELECT * FROM have EXCEPT SELECT * FROM want) x`

func requireSummedUp(t require.TestingT, db usage.DB) {
	rows, err := db.Query(ctx, anew)
	require.NoError(t, err)
	wrong, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Empty(t, wrong)
}

// Whatever is told of holdings, again, late, of jobs whose account is not known yet,
// and taken out by hand or with its day: the sums are those of all rows, added up
// from scratch. It is the same with rows that were there before the sums were.
func TestSumsAreThoseOfAllRows(t *testing.T) {
	db := pgtest.Pool(t)
	u, start, n := usage.NewStore(db), hour()-2*24*hours, 0
	told := map[string]map[string]tally.Bucket{"c0": {}, "c1": {}}
	rapid.Check(t, func(t *rapid.T) {
		n++
		cluster := fmt.Sprint("c", n%2)
		job := func() uint32 { return uint32(rapid.IntRange(1, 4).Draw(t, "job")) }
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			switch rapid.IntRange(0, 11).Draw(t, "step") {
			case 0: // the recorder tells of a run
				at := start + fairshare.Instant(rapid.IntRange(0, int(3*hours)).Draw(t, "run"))
				r := run(cluster, job(), uint32(rapid.IntRange(0, 1).Draw(t, "restart")), 1, period(at, at+hours))
				r.Parts = rapid.SampledFrom([]int64{0, 250_000}).Draw(t, "parts")
				r.Nodes = rapid.SampledFrom([]string{"n1", "n[1-2,4]"}).Draw(t, "nodes")
				r.Account = rapid.SampledFrom([]string{"vision", "speech", ""}).Draw(t, "account")
				require.NoError(t, u.WriteRuns(ctx, []usage.Run{r}))
			case 1:
				_, err := db.Exec(ctx, "DELETE FROM gpubudget.gpu_bucket WHERE cluster = $1 AND job_id = $2", cluster, job())
				require.NoError(t, err)
			case 2, 3:
				_, err := db.Exec(ctx, "SELECT gpubudget.fold_meter()")
				require.NoError(t, err)
			case 4:
				_, err := db.Exec(ctx, "DELETE FROM gpubudget.job_run WHERE cluster = $1 AND job_id = $2", cluster, job())
				require.NoError(t, err)
			case 5:
				_, err := metered.NewStore(db).Prune(ctx, start.Time().Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "days"))*24*time.Hour), time.Minute)
				require.NoError(t, err)
			default:
				node := rapid.IntRange(1, 2).Draw(t, "node")
				report(t, db, cluster, fmt.Sprint("n", node), drawBuckets(t, start, job, node, told[cluster])...)
			}
			requireSummedUp(t, db)
		}
		from := start + fairshare.Instant(rapid.Int64Range(-int64(30*hours), int64(5*hours)).Draw(t, "window from"))
		if rapid.Bool().Draw(t, "from an edge") {
			from -= from % (24 * hours)
		}
		requireSums(t, db, cluster, period(from, from+fairshare.Instant(rapid.Int64Range(1, int64(60*hours)).Draw(t, "window length"))))
	})
}

// requireSums holds the sums of a window against its rows one by one.
func requireSums(t *rapid.T, db usage.DB, cluster string, w fairshare.Period) {
	all, err := metered.NewStore(db).Sums(ctx, cluster, w, metered.Filter{})
	require.NoError(t, err)
	got := []string{}
	for _, s := range all {
		busy := int64(0)
		if s.Amounts.Busy != nil {
			busy = *s.Amounts.Busy
		}
		got = append(got, fmt.Sprint(s.Account, "/", s.User, " ", int64(s.Used), " ", int64(s.Covered), " ", busy, " ", s.Amounts.BusyKnown, " ", s.Amounts.EnergyKnown))
	}
	rows, err := db.Query(ctx, `
		SELECT format('%s/%s %s %s %s %s %s', account, user_name, used, least(used, held), busy, known, energy_known) FROM (
			SELECT account, user_name, sum(used) AS used, sum(held) AS held, sum(busy) AS busy, sum(known) AS known, sum(energy_known) AS energy_known FROM (
				SELECT account, user_name, 0 AS used, ms AS held, coalesce(div(busy_ms::numeric * ms, held_ms), 0) AS busy,
					div(busy_known_ms::numeric * ms, held_ms) AS known, div(energy_known_ms::numeric * ms, held_ms) AS energy_known
				FROM (SELECT *, gpubudget.unix_ms(least(held_until, $3)) - gpubudget.unix_ms(greatest(held_from, $2)) AS ms FROM gpubudget.gpu_bucket) b
				WHERE cluster = $1 AND ms > 0
				UNION ALL
				SELECT account, user_name, gpubudget.run_used(started_at, ended_at, suspended_ms, suspended_since, gpubudget.run_gpus(gpus, parts, nodes), least(ended_at, $3))
					- gpubudget.run_used(started_at, ended_at, suspended_ms, suspended_since, gpubudget.run_gpus(gpus, parts, nodes), greatest(started_at, $2)), 0, 0, 0, 0
				FROM gpubudget.job_run WHERE cluster = $1 AND started_at < $3 AND ended_at > $2
			) x GROUP BY 1, 2) y
		WHERE used > 0 OR held > 0 ORDER BY account, user_name`, cluster, w.From.Time(), w.Until.Time())
	require.NoError(t, err)
	want, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// drawBuckets are what a node's agent tells in a report: of each bucket once, and no
// less than was told of it.
func drawBuckets(t *rapid.T, start fairshare.Instant, job func() uint32, node int, told map[string]tally.Bucket) []tally.Bucket {
	met := map[string]bool{}
	var all []tally.Bucket
	for range rapid.IntRange(1, 12).Draw(t, "holdings") {
		at := start + fairshare.Instant(rapid.IntRange(0, int(3*hours)).Draw(t, "from"))
		for _, b := range held(job(), uint32(rapid.IntRange(0, 1).Draw(t, "restart")), rapid.SampledFrom([]string{"GPU-0", "GPU-1"}).Draw(t, "GPU"),
			10*node+rapid.IntRange(1, 2).Draw(t, "incarnation"), period(at, at+fairshare.Instant(rapid.IntRange(1, int(2*hours)).Draw(t, "length")))) {
			if met[key(&b)] {
				continue
			}
			met[key(&b)] = true
			b.Seq = int64(rapid.IntRange(1, 5).Draw(t, "seq"))
			if old, ok := told[key(&b)]; ok {
				b.From, b.Until = old.From, max(old.Until, b.Until)
				b.Part, b.BusyKnown, b.Busy, b.EnergyKnown, b.Energy = b.Held(), old.BusyKnown, old.Busy, old.EnergyKnown, old.Energy
			}
			b.Account = rapid.SampledFrom([]string{"vision", "speech", ""}).Draw(t, "account")
			if b.Account == "" && rapid.Bool().Draw(t, "by its processes") {
				b.Source = tally.FromProcess
			}
			if rapid.Bool().Draw(t, "looked at") {
				b.BusyKnown, b.Busy = b.Held(), new(b.Held()/2)
				b.EnergyKnown, b.Energy = b.Held(), new(70*b.Held())
			}
			told[key(&b)] = b
			all = append(all, b)
		}
	}
	return all
}

// A holding of which no Prolog told, or one that did not know the account, is
// counted in the account of the run, as soon as that is known.
func TestAHoldingWithoutAnAccountIsTheRuns(t *testing.T) {
	db, start := pgtest.Pool(t), hour()
	w := period(start, start+2*hours)
	sums := func() (out []string) {
		all, err := metered.NewStore(db).Sums(ctx, "titan", w, metered.Filter{})
		require.NoError(t, err)
		for _, s := range all {
			out = append(out, fmt.Sprintf("%s/%s %d of %d", s.Account, s.User, s.Covered/1000, s.Used/1000))
		}
		return out
	}
	tell := func(seq int64, until fairshare.Instant) {
		all := held(7, 0, "GPU-0", 1, period(start, until))
		for i := range all {
			all[i].Seq, all[i].Source, all[i].User = seq, tally.FromProcess, ""
		}
		report(t, db, "titan", "n1", all...)
		requireSummedUp(t, db)
	}
	tell(1, start+minute)
	require.Equal(t, []string{"/ 0 of 0"}, sums())
	require.NoError(t, usage.NewStore(db).WriteRuns(ctx, []usage.Run{run("titan", 7, 3, 1, period(start, start+3*minute))}))
	tell(2, start+2*minute)
	require.Equal(t, []string{"vision/ann 120 of 180"}, sums())
}

// A job on shards or MPS holds a part of a GPU: Meter% goes by whether it was on it,
// whatever its part and whoever else was there.
func TestJobsOnShardsAreCovered(t *testing.T) {
	db, start := pgtest.Pool(t), hour()
	whole := period(start, start+hours)
	shards := func(job uint32, user, nodes string, parts int64) usage.Run {
		r := run("titan", job, 0, 0, whole)
		r.User, r.Nodes, r.Parts = user, nodes, parts
		return r
	}
	require.NoError(t, usage.NewStore(db).WriteRuns(ctx, []usage.Run{
		shards(1, "ann", "n1", 750_000), shards(2, "bob", "n1", 125_000), shards(3, "cyd", "n[1-2]", 250_000), shards(4, "cyd", "n1", 250_000),
	}))
	holds := func(job uint32, user, gpu string, part int64) tally.Bucket {
		b := held(job, 0, gpu, 1, whole)[0]
		b.User, b.Account, b.Part, b.Shared = user, "vision", part, b.Held()-part
		return b
	}
	report(t, db, "titan", "n1",
		holds(1, "ann", "GPU-0", int64(hours/2)), holds(2, "bob", "GPU-0", int64(hours/2)), // which share a GPU
		holds(3, "cyd", "GPU-1", int64(hours)), // and nothing of n2, nor of job 4
	)
	requireSummedUp(t, db)
	for _, w := range []fairshare.Period{whole, period(start+10*minute, start+20*minute)} {
		all, err := metered.NewStore(db).Sums(ctx, "titan", w, metered.Filter{})
		require.NoError(t, err)
		var got []string
		for i := range all {
			percent, _ := all[i].Percent()
			got = append(got, fmt.Sprintf("%s %.1f%%", all[i].User, percent))
		}
		require.Equal(t, []string{"ann 100.0%", "bob 100.0%", "cyd 33.3%"}, got)
	}
}

// PostgreSQL and Go count the nodes of a list alike.
func TestNodesAreCountedAlike(t *testing.T) {
	db := pgtest.Pool(t)
	for _, list := range []string{
		"", "n1", "n1,m2", "n[1-3]", "n[1-3,7],m", "gpu[08-10,7]", "r[1-2]n[01-02]x,a", "n[0-65535]",
		"n[1", "n]1", "n[a]", "n[3-1]", "n[0-99999999]", "n[1-99999999999999999999]", "n[1-300]m[1-90000]", "n[-1]", "n[]",
	} {
		var n int
		require.NoError(t, db.QueryRow(ctx, "SELECT gpubudget.node_count($1)", list).Scan(&n), list)
		require.Equal(t, len(metered.Nodes(list)), n, list)
	}
}
