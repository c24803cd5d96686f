// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"gpubudget/fairshare"
)

// WriteRuns records sightings of runs, any number at once, in one transaction.
// The buckets follow in the same transaction.
//
// Sightings may come twice, late and in any order, also from several writers:
// the rows that result are the same. What is kept of the sightings of a run:
//   - An ended run never reopens. Of several ends the one seen last is kept.
//   - Everything else is taken from one sighting: the one seen last among
//     those that saw the allocation (GPUs, parts of GPUs or nodes), or if none did, the one
//     seen last. So a sighting after the allocation was given back, as of a
//     job that was requeued, ends a run without wiping out what it held.
//   - Sightings of one run at the very same time are ordered by their content.
//
// A run that ended before it started (a clock that was set back) is kept as one
// of no length. A start before 1970 is refused by Postgres, as is GPU time that
// no bigint holds; nothing of the batch is written then.
func (s *Store) WriteRuns(ctx context.Context, runs []Run) error {
	if len(runs) == 0 {
		return nil
	}
	return s.inTx(ctx, func(tx pgx.Tx) error {
		for _, cluster := range clustersOf(runs) {
			if err := lockWriters(ctx, tx, cluster); err != nil {
				return fmt.Errorf("write runs: %w", err)
			}
		}
		for _, round := range rounds(runs) {
			if _, err := tx.Exec(ctx, writeRuns, columns(round)...); err != nil {
				return fmt.Errorf("write runs: %w", err)
			}
		}
		return nil
	})
}

// writeRuns merges sightings into job_run, one at most for each run. The order
// by which the sub-selects choose is the one that WriteRuns documents; it must
// be total, or the result would depend on the order of arrival.
const writeRuns = `
INSERT INTO gpubudget.job_run AS r (
	cluster, job_id, started_at,
	restart, array_job_id, array_task_id, het_job_id,
	account, user_name, partition, qos, nodes, gpus, parts, gpu_type, allocated, min_runtime_ms,
	suspended_ms, suspended_since, seen_at,
	ended_at, end_state, end_seen_at, bucket_ms)
SELECT
	s.cluster, s.job_id, s.started_at,
	s.restart, s.array_job_id, s.array_task_id, s.het_job_id,
	s.account, s.user_name, s.partition, s.qos, s.nodes, s.gpus, s.parts, s.gpu_type, s.allocated, s.min_runtime_ms,
	s.suspended_ms, s.suspended_since, s.seen_at,
	s.ended_at, s.end_state, s.seen_at,
	gpubudget.bucket_ms(s.cluster, coalesce(s.ended_at, s.started_at))
FROM unnest(
	$1::text[], $2::bigint[], $3::timestamptz[],
	$4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
	$8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::bigint[], $14::text[], $15::boolean[], $16::bigint[],
	$17::bigint[], $18::timestamptz[], $19::timestamptz[],
	$20::timestamptz[], $21::text[], $22::bigint[])
AS s (
	cluster, job_id, started_at,
	restart, array_job_id, array_task_id, het_job_id,
	account, user_name, partition, qos, nodes, gpus, gpu_type, allocated, min_runtime_ms,
	suspended_ms, suspended_since, seen_at,
	ended_at, end_state, parts)
ORDER BY s.cluster, s.job_id, s.started_at
ON CONFLICT (cluster, job_id, started_at) DO UPDATE SET
	(restart, array_job_id, array_task_id, het_job_id,
	 account, user_name, partition, qos, nodes, gpus, parts, gpu_type, allocated, min_runtime_ms,
	 suspended_ms, suspended_since, seen_at)
	= (SELECT * FROM (VALUES
		(excluded.restart, excluded.array_job_id, excluded.array_task_id, excluded.het_job_id,
		 excluded.account, excluded.user_name, excluded.partition, excluded.qos, excluded.nodes,
		 excluded.gpus, excluded.parts, excluded.gpu_type, excluded.allocated, excluded.min_runtime_ms,
		 excluded.suspended_ms, excluded.suspended_since, excluded.seen_at),
		(r.restart, r.array_job_id, r.array_task_id, r.het_job_id,
		 r.account, r.user_name, r.partition, r.qos, r.nodes,
		 r.gpus, r.parts, r.gpu_type, r.allocated, r.min_runtime_ms,
		 r.suspended_ms, r.suspended_since, r.seen_at))
	   AS c (restart, array_job_id, array_task_id, het_job_id,
		 account, user_name, partition, qos, nodes, gpus, parts, gpu_type, allocated, min_runtime_ms,
		 suspended_ms, suspended_since, seen_at)
	   ORDER BY (c.gpus > 0 OR c.parts > 0 OR c.nodes <> '') DESC, c.seen_at DESC,
		c.gpus DESC, c.parts DESC, c.suspended_ms DESC, c.suspended_since DESC NULLS LAST, c.allocated DESC, c.min_runtime_ms DESC NULLS LAST,
		c.account DESC, c.user_name DESC, c.partition DESC, c.qos DESC, c.nodes DESC, c.gpu_type DESC,
		c.restart DESC, c.array_job_id DESC, c.array_task_id DESC, c.het_job_id DESC
	   LIMIT 1),
	(ended_at, end_state, end_seen_at, bucket_ms)
	= (SELECT e.ended_at, e.end_state, e.end_seen_at, e.bucket_ms FROM (VALUES
		(excluded.ended_at, excluded.end_state, excluded.end_seen_at, excluded.bucket_ms, 0),
		(r.ended_at, r.end_state, r.end_seen_at, r.bucket_ms, 1))
	   AS e (ended_at, end_state, end_seen_at, bucket_ms, kept)
	   ORDER BY e.ended_at IS NOT NULL DESC, e.end_seen_at DESC, e.ended_at DESC, e.end_state DESC, e.kept DESC
	   LIMIT 1)
WHERE (r.restart, r.array_job_id, r.array_task_id, r.het_job_id,
	r.account, r.user_name, r.partition, r.qos, r.nodes, r.gpus, r.parts, r.gpu_type, r.allocated, r.min_runtime_ms,
	r.suspended_ms, r.suspended_since, r.seen_at, r.ended_at, r.end_state, r.end_seen_at)
	IS DISTINCT FROM
	(excluded.restart, excluded.array_job_id, excluded.array_task_id, excluded.het_job_id,
	excluded.account, excluded.user_name, excluded.partition, excluded.qos, excluded.nodes,
	excluded.gpus, excluded.parts, excluded.gpu_type, excluded.allocated, excluded.min_runtime_ms,
	excluded.suspended_ms, excluded.suspended_since, excluded.seen_at,
	excluded.ended_at, excluded.end_state, excluded.end_seen_at)`

// clustersOf are the clusters of runs, sorted, each once.
func clustersOf(runs []Run) []string {
	var names []string
	for _, r := range runs {
		names = append(names, text(r.Cluster))
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// rounds deals runs out so that no round has two sightings of one run, which
// one statement could not merge. Mostly that is one round.
func rounds(runs []Run) [][]Run {
	type key struct {
		cluster string
		job     uint32
		start   int64
	}
	var out [][]Run
	seen := make(map[key]int, len(runs))
	for _, r := range runs {
		k := key{text(r.Cluster), r.JobID, r.StartedAt.UnixMilli()}
		n := seen[k]
		seen[k] = n + 1
		if n == len(out) {
			out = append(out, nil)
		}
		out[n] = append(out[n], r)
	}
	return out
}

// columns are runs as the arrays that writeRuns unnests.
func columns(runs []Run) []any {
	n := len(runs)
	var (
		cluster, account, user         = make([]string, n), make([]string, n), make([]string, n)
		partition, qos, nodes, gpuType = make([]string, n), make([]string, n), make([]string, n), make([]string, n)
		endState                       = make([]string, n)
		job, restart, array, task, het = make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
		gpus, parts, suspended         = make([]int64, n), make([]int64, n), make([]int64, n)
		started, seen                  = make([]time.Time, n), make([]time.Time, n)
		since, ended                   = make([]*time.Time, n), make([]*time.Time, n)
		allocated                      = make([]bool, n)
		minRuntime                     = make([]*int64, n)
	)
	for i, r := range runs {
		cluster[i], account[i], user[i] = text(r.Cluster), text(r.Account), text(r.User)
		partition[i], qos[i], nodes[i], gpuType[i] = text(r.Partition), text(r.QOS), text(r.Nodes), text(r.GPUType)
		job[i], restart[i], het[i] = int64(r.JobID), int64(r.Restart), int64(r.HetJobID)
		array[i], task[i] = int64(r.ArrayJobID), int64(r.ArrayTaskID)
		if r.ArrayJobID == 0 {
			task[i] = int64(NoTask)
		}
		gpus[i], parts[i], suspended[i] = max(0, r.GPUs), max(0, r.Parts), max(0, r.Suspended.Milliseconds())
		allocated[i], minRuntime[i] = r.Allocated, storedMillis(r.MinRuntime)
		started[i], seen[i] = stored(r.StartedAt), stored(r.SeenAt)
		since[i] = storedAfter(started[i], r.SuspendedSince)
		if ended[i] = storedAfter(started[i], r.EndedAt); ended[i] != nil {
			endState[i] = text(r.EndState)
		}
	}
	return []any{
		cluster, job, started,
		restart, array, task, het,
		account, user, partition, qos, nodes, gpus, gpuType, allocated, minRuntime,
		suspended, since, seen,
		ended, endState, parts,
	}
}

// storedMillis is d in whole milliseconds.
func storedMillis(d *time.Duration) *int64 {
	if d == nil {
		return nil
	}
	ms := max(0, d.Milliseconds())
	return &ms
}

// storedAfter is t as it is stored, but not before start.
func storedAfter(start time.Time, t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	at := stored(*t)
	if at.Before(start) {
		at = start
	}
	return &at
}

// OpenRuns are the cluster's runs that have not ended, by job id and start.
func (s *Store) OpenRuns(ctx context.Context, cluster string) ([]Run, error) {
	runs, err := s.runs(ctx, `WHERE cluster = $1 AND ended_at IS NULL`, cluster)
	if err != nil {
		return nil, fmt.Errorf("read open runs of %s: %w", cluster, err)
	}
	return runs, nil
}

// EndedSince are the cluster's runs that ended after an instant, by job id and
// start; of those of no length none.
func (s *Store) EndedSince(ctx context.Context, cluster string, at time.Time) ([]Run, error) {
	runs, err := s.runs(ctx, `
		WHERE cluster = $1 AND ended_at IS NOT NULL AND tstzrange(started_at, ended_at) && tstzrange($2, NULL)`, cluster, at)
	if err != nil {
		return nil, fmt.Errorf("read runs of %s that ended lately: %w", cluster, err)
	}
	return runs, nil
}

// Runs are the cluster's runs, open and ended, some part of which lies in w,
// by job id and start. A run of no length never does.
func (s *Store) Runs(ctx context.Context, cluster string, w fairshare.Period) ([]Run, error) {
	runs, err := s.runs(ctx, `
		WHERE cluster = $1 AND started_at < $3
		  AND coalesce(ended_at, 'infinity') > greatest($2, started_at)`,
		cluster, w.From.Time(), w.Until.Time())
	if err != nil {
		return nil, fmt.Errorf("read runs of %s: %w", cluster, err)
	}
	return runs, nil
}

func (s *Store) runs(ctx context.Context, where string, args ...any) ([]Run, error) {
	rows, err := s.db.Query(ctx, `
		SELECT cluster, job_id, restart, array_job_id, array_task_id, het_job_id,
			account, user_name, partition, qos, nodes, gpus, parts, gpu_type, allocated, min_runtime_ms,
			started_at, ended_at, end_state, suspended_ms, suspended_since, seen_at, rate, rate_changes, metered_ms
		FROM gpubudget.job_run `+where+`
		ORDER BY cluster, job_id, started_at`, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanRun)
}

func scanRun(row pgx.CollectableRow) (Run, error) {
	var r Run
	var suspended int64
	var minRuntime *int64
	var counts rates
	err := row.Scan(&r.Cluster, &r.JobID, &r.Restart, &r.ArrayJobID, &r.ArrayTaskID, &r.HetJobID,
		&r.Account, &r.User, &r.Partition, &r.QOS, &r.Nodes, &r.GPUs, &r.Parts, &r.GPUType, &r.Allocated, &minRuntime,
		&r.StartedAt, &r.EndedAt, &r.EndState, &suspended, &r.SuspendedSince, &r.SeenAt, &counts.first, &counts.changes, &r.Metered)
	if err != nil {
		return Run{}, err
	}
	r.Suspended = time.Duration(suspended) * time.Millisecond
	if minRuntime != nil {
		d := time.Duration(*minRuntime) * time.Millisecond
		r.MinRuntime = &d
	}
	r.StartedAt, r.SeenAt = r.StartedAt.UTC(), r.SeenAt.UTC()
	r.EndedAt, r.SuspendedSince = utc(r.EndedAt), utc(r.SuspendedSince)
	r.Rates = counts.since(r.StartedAt)
	return r, nil
}

// rates are what a run counts for, as the database has it: from its start on, and
// an instant and a rate for each change.
type rates struct {
	first   *int64
	changes []int64
}

func (r *rates) since(start time.Time) []fairshare.Rate {
	if r.first == nil {
		return nil
	}
	all := []fairshare.Rate{{Since: fairshare.At(start), Millionths: *r.first}}
	for i := 0; i+1 < len(r.changes); i += 2 {
		all = append(all, fairshare.Rate{Since: fairshare.Instant(r.changes[i]), Millionths: r.changes[i+1]})
	}
	return all
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	u := t.UTC()
	return &u
}

// Total is what the runs of one user in one account used in a window.
type Total struct {
	Account, User string
	Allocated     bool
	Runs          int64 // runs with some part in the window
	Amount        fairshare.GPUMillis
}

// Totals sums up the runs themselves, ended and open, over w, by account, user
// and whether they were allocated. Open runs count up to w.Until. It is a check
// on Charges and OpenRuns, which read the buckets, and for comparison with
// Slurm's own record.
func (s *Store) Totals(ctx context.Context, cluster string, w fairshare.Period) ([]Total, error) {
	rows, err := s.db.Query(ctx, `
		SELECT account, user_name, allocated, count(*),
			sum(gpubudget.run_charged(r.started_at, r.stop, r.suspended_ms, r.suspended_since,
				r.gpus, r.parts, r.rate, r.rate_changes, r.metered_ms, least(r.stop, $3))
			  - gpubudget.run_charged(r.started_at, r.stop, r.suspended_ms, r.suspended_since,
				r.gpus, r.parts, r.rate, r.rate_changes, r.metered_ms, greatest(r.started_at, $2)))::bigint
		FROM (SELECT *, coalesce(ended_at, $3) AS stop FROM gpubudget.job_run WHERE cluster = $1) r
		WHERE r.started_at < $3 AND r.stop > $2 AND r.stop > r.started_at
		GROUP BY account, user_name, allocated
		ORDER BY account, user_name, allocated DESC`,
		cluster, w.From.Time(), w.Until.Time())
	if err != nil {
		return nil, fmt.Errorf("sum up runs of %s: %w", cluster, err)
	}
	totals, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Total])
	if err != nil {
		return nil, fmt.Errorf("sum up runs of %s: %w", cluster, err)
	}
	return totals, nil
}
