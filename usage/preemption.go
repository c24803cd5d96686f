// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Drain is the Rule of a run that had to make room for the repair of a node.
const Drain = "drain"

// Preemption is a run that had to give way. It is keyed by the run: (Cluster,
// Job.JobID, StartedAt) are the key of a Run.
type Preemption struct {
	Cluster   string
	At        time.Time
	Rule      string // R1 to R7 of docs/contract.md, or Drain
	Mode      string // requeue or cancel; empty if it is not known
	Node      string // of Drain: the node
	Job       Party  // who gave way
	StartedAt time.Time
	// ProtectedUntil is when the run's minimum runtime had passed; nil if it was
	// never protected.
	ProtectedUntil *time.Time
	For            *Party // whom it gave way to; nil if nobody
}

// Party is one of the jobs of a preemption, and how its account stood then.
type Party struct {
	JobID         uint32
	Restart       uint32
	Account, User string
	GPUs          int64
	Allocated     bool
	MinRuntime    time.Duration
	QOSPriority   uint32
	Nice          int64
	// Ratio is what was due to the account's branch by what it was charged, +Inf
	// if nothing was charged; nil if it is not known.
	Ratio *float64
	Rank  int // of the account, 1 the most under-served; 0 if it has none
}

// WritePreemptions records preemptions, any number at once. They may come twice,
// late and in any order: of several about one run the earliest is kept.
func (s *Store) WritePreemptions(ctx context.Context, preemptions []Preemption) error {
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		var batch pgx.Batch
		for i := range preemptions {
			batch.Queue(writePreemption, preemptionColumns(&preemptions[i])...)
		}
		return tx.SendBatch(ctx, &batch).Close()
	})
	if err != nil {
		return fmt.Errorf("write preemptions: %w", err)
	}
	return nil
}

const writePreemption = `
INSERT INTO gpubudget.preemption AS p (cluster, job_id, started_at, at, rule, mode, node,
	restart, account, user_name, gpus, allocated, min_runtime_ms, protected_until, qos_priority, nice, ratio, rank,
	for_job_id, for_restart, for_account, for_user_name, for_gpus, for_allocated, for_min_runtime_ms, for_qos_priority, for_nice, for_ratio, for_rank)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29)
ON CONFLICT (cluster, job_id, started_at) DO UPDATE SET
	(at, rule, mode, node, restart, account, user_name, gpus, allocated, min_runtime_ms, protected_until, qos_priority, nice, ratio, rank,
	 for_job_id, for_restart, for_account, for_user_name, for_gpus, for_allocated, for_min_runtime_ms, for_qos_priority, for_nice, for_ratio, for_rank)
	= (excluded.at, excluded.rule, excluded.mode, excluded.node, excluded.restart, excluded.account, excluded.user_name, excluded.gpus,
	 excluded.allocated, excluded.min_runtime_ms, excluded.protected_until, excluded.qos_priority, excluded.nice, excluded.ratio, excluded.rank,
	 excluded.for_job_id, excluded.for_restart, excluded.for_account, excluded.for_user_name, excluded.for_gpus, excluded.for_allocated,
	 excluded.for_min_runtime_ms, excluded.for_qos_priority, excluded.for_nice, excluded.for_ratio, excluded.for_rank)
WHERE excluded.at < p.at`

func preemptionColumns(p *Preemption) []any {
	var until *time.Time
	if p.ProtectedUntil != nil {
		until = new(stored(*p.ProtectedUntil))
	}
	j := &p.Job
	columns := []any{
		text(p.Cluster), int64(j.JobID), stored(p.StartedAt), stored(p.At), text(p.Rule), text(p.Mode), text(p.Node),
		int64(j.Restart), text(j.Account), text(j.User), max(0, j.GPUs), j.Allocated, j.MinRuntime.Milliseconds(), until,
		int64(j.QOSPriority), j.Nice, j.Ratio, rankOf(j),
	}
	if p.For == nil {
		return append(columns, make([]any, 11)...)
	}
	f := p.For
	return append(columns, int64(f.JobID), int64(f.Restart), text(f.Account), text(f.User), max(0, f.GPUs), f.Allocated, f.MinRuntime.Milliseconds(),
		int64(f.QOSPriority), f.Nice, f.Ratio, rankOf(f))
}

// rankOf is a rank for a column.
func rankOf(p *Party) *int {
	if p.Rank == 0 {
		return nil
	}
	return &p.Rank
}

// PreemptionsOf are the preemptions that a job had a part in, on either side,
// oldest first.
func (s *Store) PreemptionsOf(ctx context.Context, cluster string, job uint32) ([]Preemption, error) {
	return s.preemptions(ctx, "cluster = $1 AND (job_id = $2 OR for_job_id = $2)", cluster, int64(job))
}

// Preemptions are those since an instant, oldest first.
func (s *Store) Preemptions(ctx context.Context, cluster string, since time.Time) ([]Preemption, error) {
	return s.preemptions(ctx, "cluster = $1 AND at >= $2", cluster, since)
}

func (s *Store) preemptions(ctx context.Context, where string, args ...any) ([]Preemption, error) {
	rows, err := s.db.Query(ctx, `
		SELECT cluster, job_id, started_at, at, rule, mode, node,
			restart, account, user_name, gpus, allocated, min_runtime_ms, protected_until, qos_priority, nice, ratio, coalesce(rank, 0),
			for_job_id IS NOT NULL, coalesce(for_job_id, 0), coalesce(for_restart, 0), coalesce(for_account, ''), coalesce(for_user_name, ''),
			coalesce(for_gpus, 0), coalesce(for_allocated, false), coalesce(for_min_runtime_ms, 0), coalesce(for_qos_priority, 0), coalesce(for_nice, 0),
			for_ratio, coalesce(for_rank, 0)
		FROM gpubudget.preemption WHERE `+where+`
		ORDER BY at, job_id, started_at`, args...)
	if err != nil {
		return nil, fmt.Errorf("read preemptions: %w", err)
	}
	list, err := pgx.CollectRows(rows, scanPreemption)
	if err != nil {
		return nil, fmt.Errorf("read preemptions: %w", err)
	}
	return list, nil
}

func scanPreemption(row pgx.CollectableRow) (Preemption, error) {
	var p Preemption
	var f Party
	var has bool
	var minMS, forMS int64
	j := &p.Job
	err := row.Scan(&p.Cluster, &j.JobID, &p.StartedAt, &p.At, &p.Rule, &p.Mode, &p.Node,
		&j.Restart, &j.Account, &j.User, &j.GPUs, &j.Allocated, &minMS, &p.ProtectedUntil, &j.QOSPriority, &j.Nice, &j.Ratio, &j.Rank,
		&has, &f.JobID, &f.Restart, &f.Account, &f.User, &f.GPUs, &f.Allocated, &forMS, &f.QOSPriority, &f.Nice, &f.Ratio, &f.Rank)
	if err != nil {
		return Preemption{}, err
	}
	j.MinRuntime, f.MinRuntime = time.Duration(minMS)*time.Millisecond, time.Duration(forMS)*time.Millisecond
	p.StartedAt, p.At, p.ProtectedUntil = p.StartedAt.UTC(), p.At.UTC(), utc(p.ProtectedUntil)
	if has {
		p.For = &f
	}
	return p, nil
}
