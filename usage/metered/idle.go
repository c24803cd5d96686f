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

// WorkingWatts is a power that a GPU of which nothing else is known does not draw when
// it does nothing, not even with a job's memory on it. One that draws more is not
// idle, whatever its utilisation is said to be.
const WorkingWatts = 200

// Where it is known what GPUs of a model draw when they do nothing, one works that
// draws so many times as much, and so much more.
const (
	workingTimes = 2
	workingAbove = 40 // watts
)

// floorFor is for how long a GPU must have done nothing in a bucket, milliseconds, for
// its power to be one of an idle GPU.
const floorFor = 300_000

// Idle is a GPU that a job holds now and does nothing with.
type Idle struct {
	Node, GPU, Model string
	Index            *int64 // what SLURM_JOB_GPUS calls it; nil: not known
	JobID, Restart   uint32
	Account, User    string // by Slurm's record of the run; as Prolog knew them if there is none

	HeldFrom fairshare.Instant // Slurm's start of the run; of the meter's row if there is none
	Since    fairshare.Instant // no work was seen since
	Until    fairshare.Instant // up to when that is known
	// Cost is the GPU time that was held for nothing, by what the GPU counts for: of a
	// run on GPUs of several types, the mean of them.
	Cost fairshare.GPUMillis
	// Watts is its mean power since, over the buckets that lie wholly in that time;
	// nil: not known.
	Watts *float64
	// Floor is the least mean power of any GPU of its model in a bucket of the last
	// day in which it did nothing; nil: not known.
	Floor *float64
}

// Working is the power above which the GPU is at work.
func (i *Idle) Working() float64 {
	if i.Floor == nil {
		return WorkingWatts
	}
	return max(workingTimes**i.Floor, *i.Floor+workingAbove)
}

// For is for how long it has been idle.
func (i *Idle) For() time.Duration {
	return time.Duration(max(0, i.Until-i.Since)) * time.Millisecond
}

// Idle are the GPUs that are held now and that have been idle for so long at
// least, by what they cost. Utilisation and power decide together: no sample since
// showed any work, as the agent says, and the mean power, if it is known, is no more
// than watts or, if that is 0, than what the GPU draws when it works. Of a GPU whose agent is silent nobody knows, and it is not listed;
// neither is one that several jobs hold.
func (s *Store) Idle(ctx context.Context, cluster string, now time.Time, atLeast time.Duration, watts float64) ([]Idle, error) {
	rows, err := s.db.Query(ctx, idle, cluster, now, SilentAfter, floorFor)
	if err != nil {
		return nil, fmt.Errorf("look for idle GPUs of %s: %w", cluster, err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Idle, error) {
		var i Idle
		err := row.Scan(&i.Node, &i.GPU, &i.Model, &i.Index, &i.JobID, &i.Restart, &i.Account, &i.User, &i.HeldFrom, &i.Since, &i.Until, &i.Cost, &i.Watts, &i.Floor)
		return i, err
	})
	if err != nil {
		return nil, fmt.Errorf("look for idle GPUs of %s: %w", cluster, err)
	}
	all = slices.DeleteFunc(all, func(i Idle) bool {
		most := watts
		if most == 0 {
			most = i.Working()
		}
		return i.For() < atLeast.Truncate(time.Millisecond) || i.Watts != nil && *i.Watts > most
	})
	slices.SortStableFunc(all, func(a, b Idle) int { return cmp.Compare(b.Cost, a.Cost) })
	return all, nil
}

// idle reads the buckets of the last day: the present one of each holding is among
// them, however long it is.
const idle = `
WITH recent AS MATERIALIZED (
	SELECT node, gpu, job_id, restart, held_from, held_until, ended, idle_since, busy_ms, energy_mj, energy_known_ms, account, user_name
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
), floor AS (
	SELECT g.model, min(b.energy_mj::float8 / b.energy_known_ms) AS watts
	FROM recent b JOIN gpubudget.gpu g ON g.cluster = $1 AND g.node = b.node AND g.uuid = b.gpu
	WHERE b.busy_ms = 0 AND b.energy_known_ms >= $4 AND g.model <> ''
	GROUP BY g.model
)
SELECT f.node, f.gpu, coalesce(g.model, ''), g.gres_index, f.job_id, f.restart, coalesce(r.account, f.account), coalesce(r.user_name, f.user_name),
	gpubudget.unix_ms(coalesce(r.started_at, f.held_from)), gpubudget.unix_ms(f.idle_since), gpubudget.unix_ms(f.held_until),
	coalesce((gpubudget.run_charged(r.started_at, f.held_until, r.suspended_ms, r.suspended_since, r.gpus, r.parts, r.rate, r.rate_changes, r.metered_ms, f.held_until)
			- gpubudget.run_charged(r.started_at, f.held_until, r.suspended_ms, r.suspended_since, r.gpus, r.parts, r.rate, r.rate_changes, r.metered_ms, f.idle_since))
		/ nullif(gpubudget.run_gpus(r.gpus, r.parts, r.nodes), 0),
		greatest(0, gpubudget.unix_ms(f.held_until) - gpubudget.unix_ms(f.idle_since))),
	p.watts, l.watts
FROM found f
LEFT JOIN power p USING (node, gpu, job_id, restart)
LEFT JOIN gpubudget.gpu g ON g.cluster = $1 AND g.node = f.node AND g.uuid = f.gpu
LEFT JOIN floor l ON l.model = g.model
LEFT JOIN gpubudget.job_run r ON r.cluster = $1 AND r.job_id = f.job_id AND r.restart = f.restart AND r.ended_at IS NULL
ORDER BY f.node, g.gres_index, f.gpu, f.job_id, f.restart`
