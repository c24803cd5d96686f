// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"gpubudget/fairshare"
)

// Unallocated is why a run is charged to nobody.
type Unallocated uint8

// Why a run is charged to nobody, if it isn't charged.
const (
	NotUnallocated Unallocated = iota // it is charged
	NoMinRuntime                      // its job asked for a minimum runtime of 0, or the policy gave it none
	NoBudget                          // its account had no budget when it began, or nothing left of it
	WhyUnknown                        // a release recorded it that didn't tell
)

// Unallocated tells why the run is charged to nobody. What it would have been
// promised tells that, see MinRuntime.
func (r Run) Unallocated() Unallocated {
	switch {
	case r.Allocated:
		return NotUnallocated
	case r.MinRuntime == nil:
		return WhyUnknown
	case *r.MinRuntime == 0:
		return NoMinRuntime
	}
	return NoBudget
}

// UnallocatedSum is what unallocated runs of a user in an account used, by why they
// were; of runs of which that is not known, nothing.
type UnallocatedSum struct {
	Account, User          string
	NoMinRuntime, NoBudget fairshare.GPUMillis
}

// UnallocatedSums are those of the runs in w, open ones counted up to an instant, by
// account and user. It reads the runs themselves.
func (s *Store) UnallocatedSums(ctx context.Context, cluster string, w fairshare.Period, openUntil time.Time) ([]UnallocatedSum, error) {
	rows, err := s.db.Query(ctx, `
		SELECT account, user_name,
			coalesce(sum(c.used) FILTER (WHERE min_runtime_ms = 0), 0)::bigint,
			coalesce(sum(c.used) FILTER (WHERE min_runtime_ms > 0), 0)::bigint
		FROM (
			SELECT *, least(coalesce(ended_at, $4), $3) AS stop FROM gpubudget.job_run
			WHERE cluster = $1 AND NOT allocated AND min_runtime_ms IS NOT NULL
			  AND (ended_at IS NULL OR tstzrange(started_at, ended_at) && tstzrange($2, $3))
		) r
		CROSS JOIN LATERAL (
			SELECT gpubudget.run_charged(r.started_at, coalesce(r.ended_at, r.stop), r.suspended_ms, r.suspended_since,
					r.gpus, r.parts, r.rate, r.rate_changes, r.metered_ms, r.stop)
				- gpubudget.run_charged(r.started_at, coalesce(r.ended_at, r.stop), r.suspended_ms, r.suspended_since,
					r.gpus, r.parts, r.rate, r.rate_changes, r.metered_ms, greatest(r.started_at, $2)) AS used
		) c
		WHERE r.stop > r.started_at AND r.stop > $2
		GROUP BY account, user_name
		ORDER BY account, user_name`,
		cluster, w.From.Time(), w.Until.Time(), openUntil)
	if err != nil {
		return nil, fmt.Errorf("sum up unallocated runs of %s: %w", cluster, err)
	}
	sums, err := pgx.CollectRows(rows, pgx.RowToStructByPos[UnallocatedSum])
	if err != nil {
		return nil, fmt.Errorf("sum up unallocated runs of %s: %w", cluster, err)
	}
	return sums, nil
}
