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
	from, until, seen := make([]time.Time, n), make([]time.Time, n), make([]time.Time, n)
	account := make([]string, n)
	pending, running := make([]int64, n), make([]int64, n)
	for i, b := range buckets {
		from[i], until[i], account[i] = b.From.Time(), b.Until.Time(), text(b.Account)
		pending[i], running[i] = int64(b.Pending), int64(b.Running)
		if seen[i] = stored(b.SeenAt); b.SeenAt.IsZero() {
			seen[i] = until[i]
		}
	}
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		if err := lockWriters(ctx, tx, cluster); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, writeDemand, cluster, incarnation, from, until, account, pending, running, seen)
		return err
	})
	if err != nil {
		return fmt.Errorf("write demand of %s: %w", cluster, err)
	}
	return nil
}

const writeDemand = `
INSERT INTO gpubudget.demand_bucket AS d
	(cluster, incarnation, starts_at, ends_at, account, pending_ms, running_ms, seen_at)
SELECT $1, $2, s.starts_at, s.ends_at, s.account, max(s.pending_ms), max(s.running_ms), max(s.seen_at)
FROM unnest($3::timestamptz[], $4::timestamptz[], $5::text[], $6::bigint[], $7::bigint[], $8::timestamptz[])
AS s (starts_at, ends_at, account, pending_ms, running_ms, seen_at)
GROUP BY s.starts_at, s.ends_at, s.account
ON CONFLICT (cluster, starts_at, ends_at, account, incarnation) DO UPDATE SET
	pending_ms = greatest(d.pending_ms, excluded.pending_ms),
	running_ms = greatest(d.running_ms, excluded.running_ms),
	seen_at = greatest(d.seen_at, excluded.seen_at)
WHERE (d.pending_ms, d.running_ms, d.seen_at)
	IS DISTINCT FROM (greatest(d.pending_ms, excluded.pending_ms),
		greatest(d.running_ms, excluded.running_ms), greatest(d.seen_at, excluded.seen_at))`
