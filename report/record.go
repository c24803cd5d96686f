// SPDX-License-Identifier: GPL-2.0-or-later

package report

import (
	"context"
	"fmt"
	"time"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/usage"
)

// Record is all that a cluster's ledger and usage have to say about a lookback
// window.
type Record struct {
	Cluster string
	At      time.Time // when it holds
	Window  fairshare.Period
	Policy  budgets.Policy
	// MinRuntimes are those of accounts that have one of their own.
	MinRuntimes map[string]time.Duration
	// Budget reaches as far into the future as the ledger does; the capacity of
	// now goes on.
	Budget *fairshare.Budget

	Charged, Free []fairshare.Charge // of ended runs: charged to budgets, and not
	Open          []usage.Run
	Demand        []fairshare.Demand
	Queue         []usage.Queue
	QueueSeenAt   time.Time      // zero if it never was
	Recorder      usage.Recorder // its last sign of life

	// Stale: the recorder had been silent for too long. Open runs are counted
	// up to UsedUntil, which is At otherwise.
	Stale     bool
	UsedUntil time.Time
}

// Read reads budgets and usage of a cluster for the lookback window that ends at
// now. Both stores should see one state of the database: give them the same
// read-only transaction, or what changes between their reads may count twice or
// not at all.
func Read(ctx context.Context, b *budgets.Store, u *usage.Store, cluster string, now time.Time, o Options) (*Record, error) {
	now = now.UTC()
	policy, err := b.Policy(ctx, cluster, now)
	if err != nil {
		return nil, fmt.Errorf("report on %s: %w", cluster, err)
	}
	r := &Record{Cluster: cluster, At: now, Window: fairshare.Lookback(fairshare.At(now), policy.Lookback), Policy: policy}
	if r.MinRuntimes, err = b.MinRuntimes(ctx, cluster, now); err != nil {
		return nil, fmt.Errorf("report on %s: %w", cluster, err)
	}
	ahead := fairshare.Period{From: r.Window.From, Until: fairshare.Never}
	if r.Budget, err = b.Load(ctx, cluster, ahead); err != nil {
		return nil, fmt.Errorf("report on %s: %w", cluster, err)
	}
	if err := u.Snapshot(ctx, func(u *usage.Store) error { return r.read(ctx, u, o) }); err != nil {
		return nil, fmt.Errorf("report on %s: %w", cluster, err)
	}
	r.date(o)
	return r, nil
}

// read reads what usage has to say.
func (r *Record) read(ctx context.Context, u *usage.Store, o Options) (err error) {
	cuts := append(r.Budget.Moves(), o.cuts(r.Window, r.Policy.Bucket)...)
	if r.Charged, r.Free, err = u.Charges(ctx, r.Cluster, r.Window, cuts...); err != nil {
		return err
	}
	if r.Open, err = u.OpenRuns(ctx, r.Cluster); err != nil {
		return err
	}
	if r.Demand, err = u.Demand(ctx, r.Cluster, r.Window); err != nil {
		return err
	}
	if r.Budget.Capacity, err = u.Capacity(ctx, r.Cluster, r.Window); err != nil {
		return err
	}
	if n := len(r.Budget.Capacity); n > 0 {
		r.Budget.Capacity[n-1].Until = fairshare.Never
	}
	if r.Queue, r.QueueSeenAt, err = u.Queue(ctx, r.Cluster); err != nil {
		return err
	}
	r.Recorder, _, err = u.LastSeen(ctx, r.Cluster)
	return err
}

// date works out how old the record is and up to when open runs count.
func (r *Record) date(o Options) {
	stale := o.StaleAfter
	if stale == 0 {
		stale = DefaultStaleAfter
	}
	r.UsedUntil = r.At
	if r.Stale = r.At.Sub(r.Recorder.SeenAt) > stale; r.Stale && !r.Recorder.SeenAt.IsZero() {
		r.UsedUntil = r.Recorder.SeenAt
	}
}

// Input is what the ranking is made from, as the plugin makes it.
func (r *Record) Input() fairshare.Input {
	return usage.Input(r.Budget, r.Window, r.Charged, r.Open, r.UsedUntil)
}
