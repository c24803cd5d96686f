// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"gpubudget/fairshare"
)

// Charges are what ended runs used in w, per bucket, account and user: the time
// charged to budgets and, apart, the unallocated time that is free. Both are
// ordered by period, account and user, and lie within w.
//
// Where an edge of w or one of the cuts falls into a bucket, the bucket is split
// there and counted anew from the runs: the sum over w, and over each part of it
// between two cuts, is exact to the millisecond whatever the length of the
// buckets. Cuts that matter are the Moves of the budget that the charges are
// held against.
//
// Open runs are not among them: see OpenRuns. A caller that adds the two up
// reads both in one Snapshot, or it may miss a run that ends in between.
func (s *Store) Charges(ctx context.Context, cluster string, w fairshare.Period, cuts ...fairshare.Instant) (allocated, unallocated []fairshare.Charge, err error) {
	if w.Millis() == 0 {
		return nil, nil, nil
	}
	edges := []time.Time{w.From.Time(), w.Until.Time()}
	for _, at := range cuts {
		if at > w.From && at < w.Until {
			edges = append(edges, at.Time())
		}
	}
	rows, err := s.db.Query(ctx, charges, cluster, w.From.Time(), w.Until.Time(), edges)
	if err != nil {
		return nil, nil, fmt.Errorf("read charges of %s: %w", cluster, err)
	}
	var (
		from, until   time.Time
		amount        int64
		funded        bool
		names         = make(map[string]string)
		account, user = interned{names: names}, interned{names: names}
	)
	_, err = pgx.ForEachRow(rows, []any{&from, &until, &account, &user, &funded, &amount}, func() error {
		c := fairshare.Charge{
			Period:  fairshare.Period{From: fairshare.At(from), Until: fairshare.At(until)},
			Account: account.text, User: user.text, Amount: fairshare.GPUMillis(amount),
		}
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

// interned is a text of a column in which few are told many times: each of them
// is stored once.
type interned struct {
	names map[string]string
	text  string
}

// ScanBytes makes it a pgtype.BytesScanner.
func (t *interned) ScanBytes(text []byte) error {
	known, ok := t.names[string(text)]
	if !ok {
		known = string(text)
		t.names[known] = known
	}
	t.text = known
	return nil
}

// charges reads whole buckets inside the window [$2, $3), and the runs of those
// that one of the edges $4 cuts. No bucket is longer than a day
// (gpubudget.bucket_ms).
const charges = `
WITH edge AS MATERIALIZED (
	SELECT DISTINCT at FROM unnest($4::timestamptz[]) at
), cut AS MATERIALIZED ( -- buckets with an edge inside
	SELECT DISTINCT b.starts_at, b.ends_at
	FROM edge e, gpubudget.usage_bucket b
	WHERE b.cluster = $1 AND b.starts_at > e.at - interval '1 day' AND b.starts_at < e.at AND b.ends_at > e.at
), part AS MATERIALIZED ( -- what the edges make of them, within the window
	SELECT * FROM (
		SELECT c.starts_at AS bucket, gpubudget.unix_ms(c.ends_at) - gpubudget.unix_ms(c.starts_at) AS bucket_ms,
			p.at AS starts_at, lead(p.at) OVER (PARTITION BY c.starts_at, c.ends_at ORDER BY p.at) AS ends_at
		FROM cut c, LATERAL (
			SELECT c.starts_at AS at UNION ALL SELECT c.ends_at
			UNION ALL SELECT e.at FROM edge e WHERE e.at > c.starts_at AND e.at < c.ends_at
		) p
	) split
	WHERE starts_at >= $2 AND ends_at <= $3
)
SELECT c.starts_at, c.ends_at, c.account, c.user_name, c.allocated, c.gpu_ms
FROM (
	SELECT starts_at, ends_at, account, user_name, allocated, gpu_ms
	FROM gpubudget.usage_bucket b
	WHERE cluster = $1 AND starts_at >= $2 AND starts_at < $3 AND ends_at <= $3
	  AND NOT EXISTS (SELECT FROM cut WHERE cut.starts_at = b.starts_at AND cut.ends_at = b.ends_at)
	UNION ALL
	SELECT p.starts_at, p.ends_at, r.account, r.user_name, r.allocated,
		sum(gpubudget.run_charged(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since,
			r.gpus, r.parts, r.rate, r.rate_changes, r.metered_ms, least(r.ended_at, p.ends_at))
		  - gpubudget.run_charged(r.started_at, r.ended_at, r.suspended_ms, r.suspended_since,
			r.gpus, r.parts, r.rate, r.rate_changes, r.metered_ms, greatest(r.started_at, p.starts_at)))::bigint
	FROM part p, LATERAL (
		SELECT * FROM gpubudget.job_run r
		WHERE r.cluster = $1 AND r.ended_at IS NOT NULL AND (r.gpus > 0 OR r.parts > 0) AND r.bucket_ms = p.bucket_ms
		  AND tstzrange(r.started_at, r.ended_at) && tstzrange(p.starts_at, p.ends_at)
		  AND r.started_at < p.ends_at AND r.ended_at > p.starts_at
		OFFSET 0 -- part by part, by the index: the planner takes the parts for thousands
	) r
	GROUP BY p.starts_at, p.ends_at, r.account, r.user_name, r.allocated
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
