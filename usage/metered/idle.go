// SPDX-License-Identifier: GPL-2.0-or-later

package metered

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"gpubudget/fairshare"
)

// WorkingWatts is a power that a GPU does not draw when it does nothing, not even
// with a job's memory on it. One that draws more is not idle, whatever its
// utilisation is said to be.
const WorkingWatts = 200

// Idle is a GPU that a job holds now and does nothing with.
type Idle struct {
	Node, GPU, Model string
	Index            *int64 // what SLURM_JOB_GPUS calls it; nil: not known
	JobID, Restart   uint32
	Account, User    string // by Slurm's record of the run; as Prolog knew them if there is none

	HeldFrom fairshare.Instant // Slurm's start of the run; of the meter's row if there is none
	Since    fairshare.Instant // no work was seen since
	Until    fairshare.Instant // up to when that is known
	// Watts is its mean power since, over the buckets that lie wholly in that time;
	// nil: not known.
	Watts *float64
}

// Cost is the GPU time that was held for nothing.
func (i *Idle) Cost() fairshare.GPUMillis { return fairshare.GPUMillis(max(0, i.Until-i.Since)) }

// Idle are the GPUs that are held now and that have been idle for so long at
// least, by what they cost. Utilisation and power decide together: no sample since
// showed any work, as the agent says, and the mean power is no more than watts, if
// it is known. Of a GPU whose agent is silent nobody knows, and it is not listed;
// neither is one that several jobs hold.
func (s *Store) Idle(ctx context.Context, cluster string, now time.Time, atLeast time.Duration, watts float64) ([]Idle, error) {
	rows, err := s.db.Query(ctx, idle, cluster, now, SilentAfter)
	if err != nil {
		return nil, fmt.Errorf("look for idle GPUs of %s: %w", cluster, err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Idle, error) {
		var i Idle
		err := row.Scan(&i.Node, &i.GPU, &i.Model, &i.Index, &i.JobID, &i.Restart, &i.Account, &i.User, &i.HeldFrom, &i.Since, &i.Until, &i.Watts)
		return i, err
	})
	if err != nil {
		return nil, fmt.Errorf("look for idle GPUs of %s: %w", cluster, err)
	}
	all = slices.DeleteFunc(all, func(i Idle) bool {
		return i.Cost() < fairshare.GPUMillis(atLeast.Milliseconds()) || i.Watts != nil && *i.Watts > watts
	})
	slices.SortStableFunc(all, func(a, b Idle) int { return cmp.Compare(b.Cost(), a.Cost()) })
	return all, nil
}

// idle reads the buckets of the last day: the present one of each holding is among
// them, however long it is.
const idle = `
WITH recent AS MATERIALIZED (
	SELECT node, gpu, job_id, restart, held_from, held_until, ended, idle_since, energy_mj, energy_known_ms, account, user_name
	FROM gpubudget.gpu_bucket
	WHERE cluster = $1 AND starts_at > $2::timestamptz - interval '1 day' AND starts_at <= $2
), last AS (
	SELECT DISTINCT ON (node, gpu, job_id, restart) *
	FROM recent
	WHERE held_until > $2::timestamptz - $3::interval
	ORDER BY node, gpu, job_id, restart, held_until DESC, held_from DESC
), found AS (
	SELECT * FROM last WHERE NOT ended AND idle_since IS NOT NULL
), power AS (
	SELECT f.node, f.gpu, f.job_id, f.restart, sum(b.energy_mj)::float8 / nullif(sum(b.energy_known_ms), 0) AS watts
	FROM found f JOIN recent b USING (node, gpu, job_id, restart)
	WHERE b.held_from >= f.idle_since
	GROUP BY f.node, f.gpu, f.job_id, f.restart
)
SELECT f.node, f.gpu, coalesce(g.model, ''), g.gres_index, f.job_id, f.restart, coalesce(r.account, f.account), coalesce(r.user_name, f.user_name),
	gpubudget.unix_ms(coalesce(r.started_at, f.held_from)), gpubudget.unix_ms(f.idle_since), gpubudget.unix_ms(f.held_until), p.watts
FROM found f
LEFT JOIN power p USING (node, gpu, job_id, restart)
LEFT JOIN gpubudget.gpu g ON g.cluster = $1 AND g.node = f.node AND g.uuid = f.gpu
LEFT JOIN gpubudget.job_run r ON r.cluster = $1 AND r.job_id = f.job_id AND r.restart = f.restart AND r.ended_at IS NULL
ORDER BY f.node, g.gres_index, f.gpu, f.job_id, f.restart`
