// SPDX-License-Identifier: GPL-2.0-or-later

// Package report puts budgets and usage together: how every account and user
// of a cluster stands, in the numbers the scheduler goes by.
package report

import (
	"context"
	"fmt"
	"slices"
	"time"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/usage"
	"gpubudget/usage/metered"
)

// DefaultStaleAfter is how long the recorder may be silent before its data
// count as old.
const DefaultStaleAfter = 2 * time.Minute

// Options change what Build does. The zero value is the default.
type Options struct {
	// StaleAfter is how long the recorder may be silent before its data count
	// as old: runs that were open then are counted up to its last sign of life
	// and no further. 0 is DefaultStaleAfter.
	StaleAfter time.Duration
	// Pieces is into how many pieces, at least, charges of ended runs are to be
	// split over the window, and Cuts where they are to be split besides: for
	// who moves the window on. What is charged in it does not depend on that.
	Pieces int
	Cuts   []fairshare.Instant
	// Metered: what the meters on the nodes saw is read as well. In a large cluster
	// that takes longer than all the rest.
	Metered bool
	// Unallocated: why what is not charged is not is read as well.
	Unallocated bool
}

// cuts are the instants at which charges in a window are to be split, if they
// come in buckets of a length.
func (o Options) cuts(w fairshare.Period, bucket time.Duration) []fairshare.Instant {
	cuts := slices.Clone(o.Cuts)
	if o.Pieces == 0 {
		return cuts
	}
	piece := fairshare.Instant(max(w.Millis()/int64(o.Pieces), 1))
	if bucket.Milliseconds() <= int64(piece) {
		return cuts
	}
	for at := w.From + piece; at < w.Until; at += piece {
		cuts = append(cuts, at)
	}
	return cuts
}

// Report is how a cluster's accounts and users stand at one time.
type Report struct {
	Cluster string
	At      time.Time // when it holds
	Window  fairshare.Period
	Policy  budgets.Policy

	Capacity     fairshare.MilliGPUs // at the end of the window
	CapacityTime fairshare.GPUMillis // over the window

	// Rows are the accounts depth first, siblings by name, each followed by its
	// users and then by the accounts below it. Accounts that are not in the
	// tree at the end of the window come last, by name.
	Rows []Row

	// Open are the runs that had not ended, by job id and start.
	Open []usage.Run

	// SeenAt is the recorder's last sign of life, zero if it never gave any; Lag
	// the age of what it had not written by then; QueueSeenAt when the queue was
	// seen.
	SeenAt, QueueSeenAt time.Time
	Lag                 time.Duration
	// Stale: the recorder had been silent for too long. Runs are counted up to
	// UsedUntil, which is At otherwise.
	Stale     bool
	UsedUntil time.Time
}

// Place is where a row stands.
type Place int

const (
	// InTree is an account of the tree in force, or one of its members.
	InTree Place = iota
	// Guest is a user who is in the queue or used GPUs in an account of the tree
	// that he's no member of, or no longer.
	Guest
	// Closed is an account that was closed, or a user of it. What it used
	// counts where it stood last.
	Closed
	// Unbudgeted is an account that the ledger doesn't have, or that was not in
	// the tree at the time, or a user of it. It counts nowhere else.
	Unbudgeted
)

// Row is how an account, with all accounts below it, or a user in an account
// stands.
type Row struct {
	Account string
	User    string // empty for an account
	Parent  string // an account's parent; of a user, his account
	Depth   int    // 0 for root; a user's is one more than his account's
	Place   Place

	Share          fairshare.Share // of the parent, now; only InTree
	EqualPart      bool            // a user without a share of his own
	ShareOfCluster float64         // now, 0 to 1; only InTree

	Entitled    fairshare.GPUMillis // due in the window
	Used        fairshare.GPUMillis // charged in the window
	Owed        fairshare.GPUMillis // of accounts: bucket by bucket the smaller of entitlement and demand
	Delivered   fairshare.GPUMillis // of users: what they used
	Capped      fairshare.GPUMillis // of accounts: bucket by bucket the smaller of delivered and owed
	Unallocated fairshare.GPUMillis // used in the window and not charged
	// NoMinRuntime and NoBudget are why, as far as that is known: the jobs have no
	// minimum runtime, or their accounts no budget or nothing left of it. 0 unless
	// Options ask for it.
	NoMinRuntime, NoBudget fairshare.GPUMillis

	LevelFS float64 // 0 to +Inf; of root and outside the tree it means nothing
	// Factor is a user's fair-share factor, (0, 1]; of an account the one that a
	// guest gets. 0 if there is none.
	Factor float64
	// Rank: 1 is the most under-served. An account's is among accounts, a
	// user's among users. 0 if there is none.
	Rank   int
	Funded bool // of an account: its jobs are charged and served as its budget says

	PendingJobs, PendingGPUs int64 // what can run and waits
	RunningJobs, RunningGPUs int64

	// Metered is what meters saw of the runs in the window, charged or not; empty
	// unless Options ask for it.
	Metered metered.Sum
}

// IsUser tells whether the row is a user's.
func (r *Row) IsUser() bool { return r.User != "" }

// Ratio is what was used by what was due; false if nothing was due.
func (r *Row) Ratio() (ratio float64, ok bool) {
	if r.Entitled <= 0 {
		return 0, false
	}
	return float64(r.Used) / float64(r.Entitled), true
}

// Percent is the part of what was owed that was delivered, 0 to 100, over the
// whole window; false if nothing was owed, as to users, to whom nothing is.
func (r *Row) Percent() (percent float64, ok bool) { return percentOf(r.Delivered, r.Owed) }

// StrictPercent is Percent with each bucket standing for itself.
func (r *Row) StrictPercent() (percent float64, ok bool) { return percentOf(r.Capped, r.Owed) }

func percentOf(part, whole fairshare.GPUMillis) (percent float64, ok bool) {
	if whole <= 0 {
		return 0, false
	}
	return 100 * min(1, max(0, float64(part)/float64(whole))), true
}

// Account is the row of an account.
func (r *Report) Account(name string) (*Row, bool) { return r.User(name, "") }

// User is the row of a user in an account.
func (r *Report) User(account, user string) (*Row, bool) {
	for i := range r.Rows {
		if r.Rows[i].Account == account && r.Rows[i].User == user {
			return &r.Rows[i], true
		}
	}
	return nil, false
}

// Build reads budgets and usage of a cluster and works out how everybody stands
// at now, over the lookback window that ends then. See Read for what the stores
// should see.
func Build(ctx context.Context, b *budgets.Store, u *usage.Store, cluster string, now time.Time, o Options) (*Report, error) {
	rec, err := Read(ctx, b, u, cluster, now, o)
	if err != nil {
		return nil, err
	}
	r := &Report{
		Cluster: rec.Cluster, At: rec.At, Window: rec.Window, Policy: rec.Policy,
		SeenAt: rec.Recorder.SeenAt, Lag: rec.Recorder.Lag, QueueSeenAt: rec.QueueSeenAt,
		Stale: rec.Stale, UsedUntil: rec.UsedUntil, Open: rec.Open,
	}
	var milli int64
	for _, step := range rec.Budget.Capacity {
		r.Capacity = step.Value
		milli += int64(step.Value) * step.Intersect(r.Window).Millis()
	}
	r.CapacityTime = fairshare.GPUMillis(milli / int64(fairshare.GPU))
	rows := r.fill(rec)
	if o.Metered {
		sums, err := metered.NewStore(u.DB()).Sums(ctx, cluster, r.Window, metered.Filter{OpenUntil: fairshare.At(r.UsedUntil)})
		if err != nil {
			return nil, fmt.Errorf("report on %s: %w", cluster, err)
		}
		rows.meter(sums)
	}
	if o.Unallocated {
		sums, err := u.UnallocatedSums(ctx, cluster, r.Window, r.UsedUntil)
		if err != nil {
			return nil, fmt.Errorf("report on %s: %w", cluster, err)
		}
		rows.why(sums)
	}
	return r, nil
}
