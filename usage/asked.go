// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Asked is a job that waits and has asked for a minimum runtime.
type Asked struct {
	JobID      uint32
	MinRuntime time.Duration
}

// WriteAsked replaces what the cluster's waiting jobs ask for. There may be many,
// and hardly any change: only those are written that do.
func (s *Store) WriteAsked(ctx context.Context, cluster string, asked []Asked) error {
	jobs, millis := make([]int64, len(asked)), make([]int64, len(asked))
	for i, a := range asked {
		jobs[i], millis[i] = int64(a.JobID), max(0, a.MinRuntime.Milliseconds())
	}
	_, err := s.db.Exec(ctx, `
		WITH waiting AS (
			SELECT job_id, max(ms) AS ms FROM unnest($2::bigint[], $3::bigint[]) n (job_id, ms) GROUP BY job_id
		), gone AS (
			DELETE FROM gpubudget.job_asked a WHERE a.cluster = $1 AND a.job_id NOT IN (SELECT job_id FROM waiting)
		)
		INSERT INTO gpubudget.job_asked AS a (cluster, job_id, min_runtime_ms) SELECT $1, job_id, ms FROM waiting
		ON CONFLICT (cluster, job_id) DO UPDATE SET min_runtime_ms = excluded.min_runtime_ms
		WHERE a.min_runtime_ms <> excluded.min_runtime_ms`,
		cluster, jobs, millis)
	if err != nil {
		return fmt.Errorf("write what jobs of %s ask for: %w", cluster, err)
	}
	return nil
}

// Asked is what a job that waits asks for; ok is false if it says nothing, or no
// pass has seen it yet.
func (s *Store) Asked(ctx context.Context, cluster string, job uint32) (minRuntime time.Duration, ok bool, err error) {
	var ms int64
	err = s.db.QueryRow(ctx, `SELECT min_runtime_ms FROM gpubudget.job_asked WHERE cluster = $1 AND job_id = $2`, cluster, int64(job)).Scan(&ms)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("read what job %d of %s asks for: %w", job, cluster, err)
	}
	return time.Duration(ms) * time.Millisecond, true, nil
}
