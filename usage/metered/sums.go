// SPDX-License-Identifier: GPL-2.0-or-later

package metered

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"gpubudget/fairshare"
)

// Sum is what was metered of the runs of one user in one account in a period.
type Sum struct {
	Account, User string
	// Used is for how long the runs were on GPUs, charged or not: a job on shards or
	// MPS counts each GPU that it has a part of.
	Used    fairshare.GPUMillis
	Covered fairshare.GPUMillis // of it, metered
	Amounts Amounts             // utilisation and energy only
}

// Add adds what was metered of others.
func (s *Sum) Add(o *Sum) {
	s.Used += o.Used
	s.Covered += o.Covered
	s.Amounts.Add(&o.Amounts)
}

// Percent is how much of what was used was metered, 0 to 100; false if nothing was
// used.
func (s *Sum) Percent() (percent float64, ok bool) {
	if s.Used <= 0 {
		return 0, false
	}
	return 100 * float64(s.Covered) / float64(s.Used), true
}

// Sums are what was metered in a period, by account and user: of runs as Slurm's
// record has them, of holdings as Prolog knew them, or Slurm's record where it did
// not. It is for sums over weeks, and reads what Postgres has summed up already: a
// user's holdings in an account are held against what his runs there have used, all
// at once, where Read goes by each run and each instant. What is metered after the
// end of one run makes up for what was not of another.
func (s *Store) Sums(ctx context.Context, cluster string, w fairshare.Period, f Filter) ([]Sum, error) {
	if w.Empty() {
		return nil, nil
	}
	until := w.Until
	if f.OpenUntil != 0 {
		until = min(until, f.OpenUntil)
	}
	var all []Sum
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		const settings = `SELECT set_config('work_mem', '64MB', true), set_config('jit', 'off', true)`
		if _, err := tx.Exec(ctx, settings); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, sums, cluster, w.From.Time(), w.Until.Time(), until.Time())
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, scanSum)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("add up what was metered in %s: %w", cluster, err)
	}
	return all, nil
}

func scanSum(row pgx.CollectableRow) (Sum, error) {
	var s Sum
	a := &s.Amounts
	err := row.Scan(&s.Account, &s.User, &s.Used, &s.Covered, &a.Busy, &a.BusyKnown, &a.Energy, &a.EnergyKnown)
	return s, err
}

// sums reads what is summed up: by day of the days that lie in [$2, $3), by bucket of
// the buckets besides, and what has not been added to either. Of runs that have not
// ended, up to $4, and of what the window's edges cut, it counts each by itself.
const sums = `
WITH edge AS (
	SELECT $2::timestamptz AS f, $3::timestamptz AS u,
		date_trunc('day', $2::timestamptz - interval '1 microsecond', 'UTC') + interval '1 day' AS first_day, date_trunc('day', $3::timestamptz, 'UTC') AS last_day,
		date_trunc('hour', $2::timestamptz - interval '1 microsecond', 'UTC') + interval '1 hour' AS first_hour, date_trunc('hour', $3::timestamptz, 'UTC') AS last_hour
), part AS MATERIALIZED ( -- of hours, at the edges
	SELECT f AS f, least(first_hour, u) AS u FROM edge WHERE f < first_hour
	UNION ALL
	SELECT greatest(last_hour, f), u FROM edge WHERE last_hour < u AND first_hour <= last_hour
), cut AS MATERIALIZED ( -- buckets
	SELECT DISTINCT b.starts_at, b.ends_at
	FROM (
		SELECT cluster, starts_at, ends_at FROM gpubudget.metered_bucket
		UNION ALL
		SELECT cluster, starts_at, ends_at FROM gpubudget.metered_delta
	) b
	WHERE b.cluster = $1 AND (b.starts_at > $2::timestamptz - interval '1 day' AND b.starts_at < $2 AND b.ends_at > $2
		OR b.starts_at > $3::timestamptz - interval '1 day' AND b.starts_at < $3 AND b.ends_at > $3)
), summed AS (
	SELECT d.account, d.user_name, d.used_ms, d.held_ms, d.busy_ms, d.busy_known_ms, d.energy_mj, d.energy_known_ms
	FROM gpubudget.metered_day d
	WHERE d.cluster = $1 AND d.day >= (SELECT first_day FROM edge) AND d.day < (SELECT last_day FROM edge)
	UNION ALL
	SELECT b.account, b.user_name, b.used_ms, b.held_ms, b.busy_ms, b.busy_known_ms, b.energy_mj, b.energy_known_ms
	FROM gpubudget.metered_bucket b
	WHERE b.cluster = $1 AND b.starts_at >= $2 AND b.starts_at < (SELECT least(first_day, u) FROM edge) AND b.ends_at <= $3
	UNION ALL
	SELECT b.account, b.user_name, b.used_ms, b.held_ms, b.busy_ms, b.busy_known_ms, b.energy_mj, b.energy_known_ms
	FROM gpubudget.metered_bucket b
	WHERE b.cluster = $1 AND b.starts_at >= (SELECT greatest(last_day, first_day) FROM edge) AND b.starts_at < $3 AND b.ends_at <= $3
	UNION ALL
	SELECT b.account, b.user_name, b.used_ms, b.held_ms, b.busy_ms, b.busy_known_ms, b.energy_mj, b.energy_known_ms
	FROM gpubudget.metered_delta b
	WHERE b.cluster = $1 AND b.starts_at >= $2 AND b.ends_at <= $3
	UNION ALL
	SELECT r.account, r.user_name,
		gpubudget.run_used(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since, g.held, least(r.ended_at, p.u))
		- gpubudget.run_used(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since, g.held, greatest(r.started_at, p.f)), 0, 0, 0, 0, 0
	FROM part p JOIN gpubudget.job_run r ON tstzrange(r.started_at, r.ended_at) && tstzrange(p.f, p.u)
		CROSS JOIN LATERAL (SELECT gpubudget.run_gpus(r.gpus, r.parts, r.nodes) AS held OFFSET 0) g -- found once for a run
	WHERE r.cluster = $1 AND r.ended_at IS NOT NULL AND (r.gpus > 0 OR r.parts > 0) AND r.started_at < p.u AND r.ended_at > greatest(p.f, r.started_at)
	UNION ALL
	SELECT r.account, r.user_name,
		gpubudget.run_used(r.started_at, $4, r.suspended_ms, r.suspended_since, g.held, least($4, $3))
		- gpubudget.run_used(r.started_at, $4, r.suspended_ms, r.suspended_since, g.held, greatest(r.started_at, $2)), 0, 0, 0, 0, 0
	FROM gpubudget.job_run r CROSS JOIN LATERAL (SELECT gpubudget.run_gpus(r.gpus, r.parts, r.nodes) AS held OFFSET 0) g
	WHERE r.cluster = $1 AND r.ended_at IS NULL AND (r.gpus > 0 OR r.parts > 0) AND r.started_at < $3 AND $4 > greatest($2, r.started_at)
	UNION ALL
	SELECT b.account, b.user_name, 0, b.ms, coalesce(b.busy_ms * b.ms / b.held_ms, 0), b.busy_known_ms * b.ms / b.held_ms,
		CASE WHEN b.ms = b.held_ms THEN coalesce(b.energy_mj, 0) ELSE coalesce(div(b.energy_mj::numeric * b.ms, b.held_ms), 0)::bigint END,
		b.energy_known_ms * b.ms / b.held_ms
	FROM (
		SELECT b.*, gpubudget.unix_ms(least(b.held_until, $3)) - gpubudget.unix_ms(greatest(b.held_from, $2)) AS ms
		FROM cut CROSS JOIN LATERAL ( -- bucket by bucket: without OFFSET all rows would be read first
			SELECT * FROM gpubudget.gpu_bucket
			WHERE cluster = $1 AND starts_at = cut.starts_at AND ends_at = cut.ends_at AND held_from < $3 AND held_until > $2 AND held_ms > 0
			OFFSET 0
		) b
	) b
)
SELECT account, user_name, used, least(used, held), CASE WHEN busy_known > 0 THEN busy END, busy_known, CASE WHEN energy_known > 0 THEN energy END, energy_known
FROM (
	SELECT account, user_name, sum(used_ms)::bigint AS used, sum(held_ms)::bigint AS held, sum(busy_ms)::bigint AS busy, sum(busy_known_ms)::bigint AS busy_known,
		sum(energy_mj)::bigint AS energy, sum(energy_known_ms)::bigint AS energy_known
	FROM summed GROUP BY account, user_name
) s
WHERE used <> 0 OR held <> 0 OR busy_known <> 0 OR energy_known <> 0
ORDER BY account, user_name`
