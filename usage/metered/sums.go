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
	Used          fairshare.GPUMillis // by the runs, charged or not
	Covered       fairshare.GPUMillis // of it, metered
	Amounts       Amounts             // utilisation and energy only
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

// Sums are what was metered in a period, by account and user as Slurm's record has
// them. It is Read added up by Postgres, for all at once: where incarnations of an
// agent have counted the same time, or more GPUs were metered than a run has, it
// counts them up to what the run has used, where Read goes by each instant.
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
		// Postgres can't know how many rows a run has, and takes it for one: it would
		// sort what it can hash.
		const settings = `SELECT set_config('work_mem', '64MB', true), set_config('enable_sort', 'off', true), set_config('jit', 'off', true)`
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

// sums joins the runs in [$2, $3), the open ones up to $4, with the rows of the
// meters. Almost all rows lie in their run as a whole; only those that do not are
// cut, which is slow.
const sums = `
WITH run AS MATERIALIZED (
	SELECT r.job_id, r.restart, r.account, r.user_name, r.gpus, greatest(r.started_at, $2) AS f, least(r.stop, $3) AS u,
		gpubudget.run_used(r.started_at, r.stop, r.suspended_ms, r.suspended_since, r.gpus, least(r.stop, $3))
		- gpubudget.run_used(r.started_at, r.stop, r.suspended_ms, r.suspended_since, r.gpus, greatest(r.started_at, $2)) AS used
	FROM (
		SELECT job_id, restart, account, user_name, gpus, suspended_ms, suspended_since, started_at, ended_at AS stop
		FROM gpubudget.job_run
		WHERE cluster = $1 AND ended_at IS NOT NULL AND tstzrange(started_at, ended_at) && tstzrange($2, $3)
		UNION ALL
		SELECT job_id, restart, account, user_name, gpus, suspended_ms, suspended_since, started_at, greatest($4, started_at)
		FROM gpubudget.job_run
		WHERE cluster = $1 AND ended_at IS NULL
	) r
	WHERE r.gpus > 0 AND r.started_at < $3 AND r.stop > greatest($2, r.started_at)
), seen AS (
	SELECT job_id, f, sum(ms)::bigint AS held,
		sum(CASE WHEN ms = held_ms THEN busy_ms ELSE div(busy_ms::numeric * ms, held_ms)::bigint END)::bigint AS busy,
		sum(CASE WHEN ms = held_ms THEN busy_known_ms ELSE div(busy_known_ms::numeric * ms, held_ms)::bigint END)::bigint AS busy_known,
		sum(CASE WHEN ms = held_ms THEN energy_mj ELSE div(energy_mj::numeric * ms, held_ms)::bigint END)::bigint AS energy,
		sum(CASE WHEN ms = held_ms THEN energy_known_ms ELSE div(energy_known_ms::numeric * ms, held_ms)::bigint END)::bigint AS energy_known
	FROM (
		SELECT r.job_id, r.f, b.held_ms, b.busy_ms, b.busy_known_ms, b.energy_mj, b.energy_known_ms,
			CASE WHEN b.held_from >= r.f AND b.held_until <= r.u THEN b.held_ms
				ELSE gpubudget.unix_ms(least(b.held_until, r.u)) - gpubudget.unix_ms(greatest(b.held_from, r.f)) END AS ms
		FROM run r
		JOIN gpubudget.gpu_bucket b ON b.job_id = r.job_id AND (b.restart = r.restart OR b.source = 'process')
			AND b.held_from < r.u AND b.held_until > r.f
		WHERE b.cluster = $1 AND b.starts_at > $2::timestamptz - interval '1 day' AND b.starts_at < $3
	) part
	GROUP BY job_id, f
)
SELECT r.account, r.user_name, sum(r.used)::bigint,
	sum(least(r.used, coalesce(CASE
		WHEN r.used = r.gpus * gpubudget.unix_ms(r.u) - r.gpus * gpubudget.unix_ms(r.f) THEN s.held
		ELSE div(s.held::numeric * r.used, r.gpus * gpubudget.unix_ms(r.u) - r.gpus * gpubudget.unix_ms(r.f))
	END, 0)))::bigint,
	sum(s.busy)::bigint, coalesce(sum(s.busy_known), 0)::bigint,
	sum(s.energy)::bigint, coalesce(sum(s.energy_known), 0)::bigint
FROM run r LEFT JOIN seen s USING (job_id, f)
GROUP BY r.account, r.user_name
ORDER BY r.account, r.user_name`
