// SPDX-License-Identifier: GPL-2.0-or-later

package metered

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// SilentAfter is how long an agent may give no sign of life until it counts as
// silent. Agents write each half minute by default.
const SilentAfter = 5 * time.Minute

// Agent is the last sign of life of a node's agent.
type Agent struct {
	Node      string
	SeenAt    time.Time     // by the database's clock
	StartedAt time.Time     // this start of it, by the node's clock
	SampledAt *time.Time    // its last look at the GPUs; nil: none yet
	Version   string        //
	Skew      time.Duration // the node's clock less the database's
	Spooled   int64         // rows that wait on the node
	GPUs      int64         // that the driver shows, without MIG instances
	State     string        // "ok", or why GPUs are not measured
}

// Silent tells whether the agent has given no sign of life for too long.
func (a *Agent) Silent(now time.Time) bool { return now.Sub(a.SeenAt) > SilentAfter }

// Agents are the agents of a cluster that have ever written, by node.
func (s *Store) Agents(ctx context.Context, cluster string) ([]Agent, error) {
	rows, err := s.db.Query(ctx, `
		SELECT node, seen_at, started_at, sampled_at, version, skew_ms, spooled, gpus, state
		FROM gpubudget.agent WHERE cluster = $1 ORDER BY node`, cluster)
	if err != nil {
		return nil, fmt.Errorf("read the agents of %s: %w", cluster, err)
	}
	agents, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Agent, error) {
		var a Agent
		var skew int64
		err := row.Scan(&a.Node, &a.SeenAt, &a.StartedAt, &a.SampledAt, &a.Version, &skew, &a.Spooled, &a.GPUs, &a.State)
		a.Skew = time.Duration(skew) * time.Millisecond
		return a, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the agents of %s: %w", cluster, err)
	}
	return agents, nil
}

// Device is a GPU of a node, or a MIG instance on one.
type Device struct {
	Node, UUID, Model string
	Index             *int64 // what SLURM_JOB_GPUS calls it; nil: not known
	Parent            string // of a MIG instance: the GPU it is a part of
	Profile           string // of a MIG instance
}

// Devices are the devices of a cluster's nodes that were there when the agents
// last told of them, by node and UUID.
func (s *Store) Devices(ctx context.Context, cluster string) ([]Device, error) {
	rows, err := s.db.Query(ctx, `
		SELECT g.node, g.uuid, g.model, g.gres_index, coalesce(g.parent, ''), g.profile
		FROM gpubudget.gpu g
		WHERE g.cluster = $1
		  AND g.last_seen = (SELECT max(last_seen) FROM gpubudget.gpu o WHERE o.cluster = g.cluster AND o.node = g.node)
		ORDER BY g.node, g.uuid`, cluster)
	if err != nil {
		return nil, fmt.Errorf("read the GPUs of %s: %w", cluster, err)
	}
	devices, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Device])
	if err != nil {
		return nil, fmt.Errorf("read the GPUs of %s: %w", cluster, err)
	}
	return devices, nil
}
