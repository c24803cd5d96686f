// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"context"
	"fmt"
	"time"
)

// NodeFail is Slurm's word for the end of a run whose node failed.
const NodeFail = "NODE_FAIL"

// FailedRuns are the runs that have ended since an instant by a node failure, as
// the recorder saw it, by job id and start. Of a job that Slurm has queued again
// at once it sees it only where AccountingStorageEnforce has limits, else such a
// run has ended as REQUEUED; sacct knows.
func (s *Store) FailedRuns(ctx context.Context, cluster string, since time.Time) ([]Run, error) {
	runs, err := s.runs(ctx, `WHERE cluster = $1 AND ended_at >= $2 AND end_state = '`+NodeFail+`'`, cluster, since)
	if err != nil {
		return nil, fmt.Errorf("read failed runs of %s: %w", cluster, err)
	}
	return runs, nil
}
