// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"gpubudget/fairshare"
)

// WriteCapacity records how many GPUs could be scheduled from at on, by type if
// they have any. Call it when that changes and when a recorder starts. Of two
// values for the same millisecond the greater is kept.
func (s *Store) WriteCapacity(ctx context.Context, cluster string, at time.Time, gpus fairshare.Holding) error {
	_, err := s.db.Exec(ctx, `
		INSERT INTO gpubudget.capacity AS c (cluster, since, milli_gpus, types) VALUES ($1, $2, $3, $4)
		ON CONFLICT (cluster, since) DO UPDATE SET milli_gpus = excluded.milli_gpus, types = excluded.types
		WHERE (c.milli_gpus, c.types) < (excluded.milli_gpus, excluded.types)`,
		cluster, stored(at), gpus.GPUs*int64(fairshare.GPU), text(gpus.Type))
	if err != nil {
		return fmt.Errorf("write capacity of %s: %w", cluster, err)
	}
	return nil
}

// Capacity is the cluster's capacity within w, by what its GPUs count for. A value
// holds until the next one; before the first there is none.
func (s *Store) Capacity(ctx context.Context, cluster string, w fairshare.Period) ([]fairshare.Step[fairshare.MilliGPUs], error) {
	rows, err := s.db.Query(ctx, `
		SELECT gpubudget.unix_ms(since), milli_gpus FROM gpubudget.capacity_steps($1, $2, $3)`,
		cluster, w.From.Time(), w.Until.Time())
	if err != nil {
		return nil, fmt.Errorf("read capacity of %s: %w", cluster, err)
	}
	var steps []fairshare.Step[fairshare.MilliGPUs]
	var since fairshare.Instant
	var gpus fairshare.MilliGPUs
	_, err = pgx.ForEachRow(rows, []any{&since, &gpus}, func() error {
		if n := len(steps); n > 0 {
			if steps[n-1].Value == gpus {
				return nil
			}
			steps[n-1].Until = since
		}
		steps = append(steps, fairshare.Step[fairshare.MilliGPUs]{
			Period: fairshare.Period{From: max(since, w.From), Until: w.Until}, Value: gpus,
		})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read capacity of %s: %w", cluster, err)
	}
	return steps, nil
}

// Schedulable is what GPUs could be scheduled at an instant; false if that is not
// known.
func (s *Store) Schedulable(ctx context.Context, cluster string, at time.Time) (gpus fairshare.Holding, known bool, err error) {
	err = s.db.QueryRow(ctx, `
		SELECT milli_gpus / 1000, types FROM gpubudget.capacity WHERE cluster = $1 AND since <= $2 ORDER BY since DESC LIMIT 1`,
		cluster, at).Scan(&gpus.GPUs, &gpus.Type)
	if errors.Is(err, pgx.ErrNoRows) {
		return gpus, false, nil
	}
	if err != nil {
		return gpus, false, fmt.Errorf("read how many GPUs %s has: %w", cluster, err)
	}
	return gpus, true, nil
}

// Queue is what one user has in the queue of one account.
type Queue struct {
	Account, User            string
	PendingJobs, PendingGPUs int64
	RunningJobs, RunningGPUs int64
}

// WriteQueue replaces the cluster's queue by what was seen at at. A sighting
// older than the one that is stored changes nothing, unless that is of the
// future: then it is of a clock that was ahead.
func (s *Store) WriteQueue(ctx context.Context, cluster string, at time.Time, queue []Queue) error {
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		newer, err := newestQueue(ctx, tx, cluster, at)
		if err != nil || !newer {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM gpubudget.queue WHERE cluster = $1`, cluster); err != nil {
			return err
		}
		return insertQueue(ctx, tx, cluster, queue)
	})
	if err != nil {
		return fmt.Errorf("write queue of %s: %w", cluster, err)
	}
	return nil
}

// newestQueue claims the queue's time for at, and tells whether it is the
// newest. The row it updates keeps other writers out until the end of tx.
func newestQueue(ctx context.Context, tx pgx.Tx, cluster string, at time.Time) (bool, error) {
	tag, err := tx.Exec(ctx, `
		INSERT INTO gpubudget.queue_seen AS q (cluster, seen_at) VALUES ($1, $2)
		ON CONFLICT (cluster) DO UPDATE SET seen_at = excluded.seen_at
		WHERE excluded.seen_at >= q.seen_at OR q.seen_at > now() + interval '1 minute'`,
		cluster, stored(at))
	return tag.RowsAffected() > 0, err
}

func insertQueue(ctx context.Context, tx pgx.Tx, cluster string, queue []Queue) error {
	n := len(queue)
	account, user := make([]string, n), make([]string, n)
	pendingJobs, pendingGPUs := make([]int64, n), make([]int64, n)
	runningJobs, runningGPUs := make([]int64, n), make([]int64, n)
	for i, q := range queue {
		account[i], user[i] = text(q.Account), text(q.User)
		pendingJobs[i], pendingGPUs[i] = q.PendingJobs, q.PendingGPUs
		runningJobs[i], runningGPUs[i] = q.RunningJobs, q.RunningGPUs
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO gpubudget.queue (cluster, account, user_name, pending_jobs, pending_gpus, running_jobs, running_gpus)
		SELECT $1, s.account, s.user_name, sum(s.pj), sum(s.pg), sum(s.rj), sum(s.rg)
		FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
		AS s (account, user_name, pj, pg, rj, rg)
		GROUP BY s.account, s.user_name`,
		cluster, account, user, pendingJobs, pendingGPUs, runningJobs, runningGPUs)
	return err
}

// Queue is the cluster's queue, by account and user, and when it was seen. The
// time is zero if it never was.
func (s *Store) Queue(ctx context.Context, cluster string) ([]Queue, time.Time, error) {
	// One statement, so that rows and time belong together.
	rows, err := s.db.Query(ctx, `
		SELECT seen.seen_at, q.account, q.user_name, q.pending_jobs, q.pending_gpus, q.running_jobs, q.running_gpus
		FROM gpubudget.queue_seen seen LEFT JOIN gpubudget.queue q USING (cluster)
		WHERE cluster = $1
		ORDER BY q.account, q.user_name`, cluster)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read queue of %s: %w", cluster, err)
	}
	var queue []Queue
	var at time.Time
	var account, user *string
	var pendingJobs, pendingGPUs, runningJobs, runningGPUs *int64
	_, err = pgx.ForEachRow(rows, []any{&at, &account, &user, &pendingJobs, &pendingGPUs, &runningJobs, &runningGPUs}, func() error {
		if account != nil { // nil: the queue was seen, and empty
			queue = append(queue, Queue{*account, *user, *pendingJobs, *pendingGPUs, *runningJobs, *runningGPUs})
		}
		return nil
	})
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read queue of %s: %w", cluster, err)
	}
	if !at.IsZero() {
		at = at.UTC()
	}
	return queue, at, nil
}

// Recorder is a sign of life of the recorder that writes for a cluster.
type Recorder struct {
	Cluster     string
	Incarnation string // one start of one process
	Host        string
	Version     string
	SeenAt      time.Time     // when it was alive, by its own clock
	Lag         time.Duration // age of the oldest record it has not written yet
}

// Heartbeat records a sign of life. One older than what is stored changes
// nothing, unless that is of the future: then it is of a clock that was ahead.
func (s *Store) Heartbeat(ctx context.Context, r Recorder) error {
	_, err := s.db.Exec(ctx, `
		INSERT INTO gpubudget.recorder AS r (cluster, incarnation, host, version, seen_at, lag_ms)
		VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (cluster) DO UPDATE SET
			incarnation = excluded.incarnation, host = excluded.host, version = excluded.version,
			seen_at = excluded.seen_at, lag_ms = excluded.lag_ms
		WHERE excluded.seen_at >= r.seen_at OR r.seen_at > now() + interval '1 minute'`,
		r.Cluster, r.Incarnation, text(r.Host), text(r.Version), stored(r.SeenAt), max(0, r.Lag.Milliseconds()))
	if err != nil {
		return fmt.Errorf("write heartbeat of %s: %w", r.Cluster, err)
	}
	return nil
}

// LastSeen is the recorder's last sign of life; false if it never gave any.
func (s *Store) LastSeen(ctx context.Context, cluster string) (Recorder, bool, error) {
	r := Recorder{Cluster: cluster}
	var lag int64
	err := s.db.QueryRow(ctx, `
		SELECT incarnation, host, version, seen_at, lag_ms FROM gpubudget.recorder WHERE cluster = $1`, cluster).
		Scan(&r.Incarnation, &r.Host, &r.Version, &r.SeenAt, &lag)
	if errors.Is(err, pgx.ErrNoRows) {
		return Recorder{}, false, nil
	}
	if err != nil {
		return Recorder{}, false, fmt.Errorf("read heartbeat of %s: %w", cluster, err)
	}
	r.SeenAt, r.Lag = r.SeenAt.UTC(), time.Duration(lag)*time.Millisecond
	return r, true, nil
}
