// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"gpubudget/fairshare"
)

// DemandBucket is what one account asked for in one bucket, as one incarnation
// of the recorder has added it up so far.
type DemandBucket struct {
	fairshare.Period        // the bucket, see Bucket
	Account          string // as submitted
	// Pending is the GPU time that jobs which could have run waited for: the
	// integral of their GPUs over the time. Running is that of jobs that ran.
	Pending, Running fairshare.GPUMillis
	// BegunAt is when the account first asked for anything in the bucket. Zero
	// stands for its beginning.
	BegunAt time.Time
	// SeenAt is how far into the bucket the amounts reach. Zero stands for its
	// end.
	SeenAt time.Time
}

// WriteDemand records demand. An incarnation (of the recorder: one start of one
// process) gives its absolute totals of a bucket, not increments, and they only
// grow: a repeated or a late write changes nothing. The demand of a bucket is
// the sum over its incarnations.
func (s *Store) WriteDemand(ctx context.Context, cluster, incarnation string, buckets []DemandBucket) error {
	if len(buckets) == 0 {
		return nil
	}
	n := len(buckets)
	from, until := make([]time.Time, n), make([]time.Time, n)
	begun, seen := make([]time.Time, n), make([]time.Time, n)
	account := make([]string, n)
	pending, running := make([]int64, n), make([]int64, n)
	for i, b := range buckets {
		from[i], until[i], account[i] = b.From.Time(), b.Until.Time(), text(b.Account)
		pending[i], running[i] = int64(b.Pending), int64(b.Running)
		if begun[i] = stored(b.BegunAt); b.BegunAt.IsZero() {
			begun[i] = from[i]
		}
		if seen[i] = stored(b.SeenAt); b.SeenAt.IsZero() {
			seen[i] = until[i]
		}
	}
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		if err := lockWriters(ctx, tx, cluster); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, writeDemand, cluster, incarnation, from, until, account, pending, running, begun, seen)
		return err
	})
	if err != nil {
		return fmt.Errorf("write demand of %s: %w", cluster, err)
	}
	return nil
}

const writeDemand = `
INSERT INTO gpubudget.demand_bucket AS d
	(cluster, incarnation, starts_at, ends_at, account, pending_ms, running_ms, begun_at, seen_at)
SELECT $1, $2, s.starts_at, s.ends_at, s.account, max(s.pending_ms), max(s.running_ms), min(s.begun_at), max(s.seen_at)
FROM unnest($3::timestamptz[], $4::timestamptz[], $5::text[], $6::bigint[], $7::bigint[], $8::timestamptz[], $9::timestamptz[])
AS s (starts_at, ends_at, account, pending_ms, running_ms, begun_at, seen_at)
GROUP BY s.starts_at, s.ends_at, s.account
ON CONFLICT (cluster, starts_at, ends_at, account, incarnation) DO UPDATE SET
	pending_ms = greatest(d.pending_ms, excluded.pending_ms),
	running_ms = greatest(d.running_ms, excluded.running_ms),
	begun_at = least(coalesce(d.begun_at, d.starts_at), excluded.begun_at),
	seen_at = greatest(d.seen_at, excluded.seen_at)
WHERE (d.pending_ms, d.running_ms, d.begun_at, d.seen_at)
	IS DISTINCT FROM (greatest(d.pending_ms, excluded.pending_ms), greatest(d.running_ms, excluded.running_ms),
		least(coalesce(d.begun_at, d.starts_at), excluded.begun_at), greatest(d.seen_at, excluded.seen_at))`

// Demand is what the accounts of the cluster asked for (pending and running) in
// the buckets that meet w, ordered by period and account. Buckets that an edge
// of w cuts come whole. A period begins when the account first asked for
// anything in the bucket and ends, if the bucket is not over, where that was last
// seen: its amount isn't taken for that of a whole bucket.
func (s *Store) Demand(ctx context.Context, cluster string, w fairshare.Period) ([]fairshare.Demand, error) {
	rows, err := s.db.Query(ctx, `
		SELECT gpubudget.unix_ms(min(coalesce(begun_at, starts_at))), gpubudget.unix_ms(least(ends_at, max(max(seen_at)) OVER (PARTITION BY starts_at, ends_at))),
			account, sum(pending_ms + running_ms)::bigint
		FROM gpubudget.demand_bucket
		WHERE cluster = $1 AND starts_at > $2::timestamptz - interval '1 day' AND starts_at < $3 AND ends_at > $2
		GROUP BY starts_at, ends_at, account
		ORDER BY 1, 2, account`,
		cluster, w.From.Time(), w.Until.Time())
	if err != nil {
		return nil, fmt.Errorf("read demand of %s: %w", cluster, err)
	}
	demand, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (fairshare.Demand, error) {
		var d fairshare.Demand
		err := row.Scan(&d.From, &d.Until, &d.Account, &d.Amount)
		return d, err
	})
	if err != nil {
		return nil, fmt.Errorf("read demand of %s: %w", cluster, err)
	}
	return demand, nil
}
