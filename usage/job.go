// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// JobRuns are all runs of a job, open and ended, by start.
func (s *Store) JobRuns(ctx context.Context, cluster string, job uint32) ([]Run, error) {
	runs, err := s.runs(ctx, `WHERE cluster = $1 AND job_id = $2`, cluster, int64(job))
	if err != nil {
		return nil, fmt.Errorf("read the runs of job %d of %s: %w", job, cluster, err)
	}
	return runs, nil
}

// ArrayTask is the job id of a task of an array; false if there is no record of it.
func (s *Store) ArrayTask(ctx context.Context, cluster string, array, task uint32) (job uint32, ok bool, err error) {
	err = s.db.QueryRow(ctx, `SELECT job_id FROM gpubudget.job_run
		WHERE cluster = $1 AND array_job_id = $2 AND array_task_id = $3 ORDER BY started_at DESC LIMIT 1`,
		cluster, int64(array), int64(task)).Scan(&job)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("look for task %d_%d of %s: %w", array, task, cluster, err)
	}
	return job, true, nil
}
