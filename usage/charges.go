// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"gpubudget/fairshare"
)

// Charges are what ended runs used in w, per bucket, account and user: the time
// charged to budgets and, apart, the unallocated time that is free. Both are
// ordered by period, account and user, and lie within w: where an edge of w
// cuts a bucket, the part inside is counted anew from the runs, so that the sum
// over w is exact to the millisecond whatever the length of the buckets.
//
// Open runs are not among them: see OpenRuns. A caller that adds the two up
// reads both in one Snapshot, or it may miss a run that ends in between.
func (s *Store) Charges(ctx context.Context, cluster string, w fairshare.Period) (allocated, unallocated []fairshare.Charge, err error) {
	if w.Millis() == 0 {
		return nil, nil, nil
	}
	rows, err := s.db.Query(ctx, charges, cluster, w.From.Time(), w.Until.Time())
	if err != nil {
		return nil, nil, fmt.Errorf("read charges of %s: %w", cluster, err)
	}
	var c fairshare.Charge
	var funded bool
	_, err = pgx.ForEachRow(rows, []any{&c.From, &c.Until, &c.Account, &c.User, &funded, &c.Amount}, func() error {
		if funded {
			allocated = append(allocated, c)
		} else {
			unallocated = append(unallocated, c)
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read charges of %s: %w", cluster, err)
	}
	return allocated, unallocated, nil
}

// charges reads whole buckets inside the window [$2, $3), and the runs of those
// that the window cuts. No bucket is longer than a day (gpubudget.bucket_ms).
const charges = `
WITH cut AS ( -- how far the buckets reach that an edge cuts
	SELECT least(min(starts_at) FILTER (WHERE ends_at > $3), $3) AS head,
	       greatest(max(ends_at) FILTER (WHERE starts_at < $2), $2) AS tail
	FROM gpubudget.usage_bucket
	WHERE cluster = $1
	  AND (starts_at > $2::timestamptz - interval '1 day' AND starts_at < $2 AND ends_at > $2
	    OR starts_at > $3::timestamptz - interval '1 day' AND starts_at < $3 AND ends_at > $3)
), edge AS ( -- each run's part in its bucket that an edge cuts
	SELECT r.*, p.starts_at, p.ends_at
	FROM cut, gpubudget.job_run r,
	LATERAL (
		SELECT greatest(b.starts_at, $2) AS starts_at, least(b.ends_at, $3) AS ends_at
		FROM gpubudget.buckets_at(ARRAY[$2, $3]::timestamptz[], r.bucket_ms) b
		WHERE b.starts_at < $2 OR b.ends_at > $3
	) p
	WHERE r.cluster = $1 AND r.ended_at IS NOT NULL AND r.gpus > 0
	  AND (tstzrange(r.started_at, r.ended_at) && tstzrange($2, cut.tail)
	    OR tstzrange(r.started_at, r.ended_at) && tstzrange(cut.head, $3))
	  AND r.started_at < p.ends_at AND r.ended_at > p.starts_at
)
SELECT gpubudget.unix_ms(c.starts_at), gpubudget.unix_ms(c.ends_at), c.account, c.user_name, c.allocated, c.gpu_ms
FROM (
	SELECT starts_at, ends_at, account, user_name, allocated, gpu_ms
	FROM gpubudget.usage_bucket
	WHERE cluster = $1 AND starts_at >= $2 AND starts_at < $3 AND ends_at <= $3
	UNION ALL
	SELECT starts_at, ends_at, account, user_name, allocated,
		sum(gpubudget.run_used(started_at, ended_at, suspended_ms, suspended_since, gpus, least(ended_at, ends_at))
		  - gpubudget.run_used(started_at, ended_at, suspended_ms, suspended_since, gpus, greatest(started_at, starts_at)))::bigint
	FROM edge
	GROUP BY starts_at, ends_at, account, user_name, allocated
) c
WHERE c.gpu_ms <> 0
ORDER BY c.starts_at, c.ends_at, c.account, c.user_name, c.allocated DESC`

// Snapshot calls read with a store that sees one state of the database
// throughout. If s itself works within a transaction, read gets that.
func (s *Store) Snapshot(ctx context.Context, read func(*Store) error) error {
	if _, nested := s.db.(pgx.Tx); nested {
		return read(s)
	}
	return s.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY`); err != nil {
			return fmt.Errorf("begin reading: %w", err)
		}
		return read(NewStore(tx))
	})
}
