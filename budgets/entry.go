// SPDX-License-Identifier: GPL-2.0-or-later

package budgets

import (
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"gpubudget/fairshare"
)

// Kind says what an entry does.
type Kind string

// The kinds of entries and the fields, besides those of every entry, that each
// has.
const (
	AccountAdd   Kind = "account_add"    // Account, Parent, Share
	AccountMove  Kind = "account_move"   // Account, Parent, perhaps Share
	AccountClose Kind = "account_close"  // Account
	ShareSet     Kind = "share_set"      // Account, Share
	UserAdd      Kind = "user_add"       // Account, User, Share
	UserRemove   Kind = "user_remove"    // Account, User
	UserShareSet Kind = "user_share_set" // Account, User, Share
	Deposit      Kind = "deposit"        // Account, Amount
	Transfer     Kind = "transfer"       // Account (giving), Receiver, Amount
	Refund       Kind = "refund"         // Account, User, Amount, Job, JobStart
	PolicySet    Kind = "policy_set"     // Setting, Value, perhaps Account
	WeightSet    Kind = "weight_set"     // GPUType, Weight
)

// Kinds are all kinds there are.
var Kinds = []Kind{AccountAdd, AccountMove, AccountClose, ShareSet, UserAdd, UserRemove, UserShareSet, Deposit, Transfer, Refund, PolicySet, WeightSet}

// Entry is one line of a cluster's ledger.
type Entry struct {
	Cluster    string
	Seq        int64 // 1, 2, 3, ... within the cluster, without gaps
	RecordedAt time.Time
	Kind       Kind
	Actor      string
	Why        string
	Key        string // idempotency key
	Role       string // the database role that wrote it
	From       time.Time
	Until      *time.Time // nil: until superseded
	Account    string
	Parent     string
	Receiver   string
	User       string
	Share      *fairshare.Share
	Amount     fairshare.GPUMillis
	Setting    string
	Value      string
	Job        uint32            // of a refund
	JobStart   time.Time         // with Job, the run that is refunded
	GPUType    string            // in lower case; fairshare.OtherTypes: of all others
	Weight     *fairshare.Weight // fairshare.DefaultWeight takes back what was said

	// Repeated is set on what a write returns if the entry was there already,
	// under the same key, and nothing was written.
	Repeated bool
}

const entryColumns = `cluster, seq, recorded_at, kind, actor, why, coalesce(key, ''), db_role, effective_from, effective_until,
	coalesce(account, ''), coalesce(parent, ''), coalesce(receiver, ''), coalesce(user_name, ''), share,
	coalesce(amount, 0), coalesce(setting, ''), coalesce(value, ''), coalesce(job_id, 0), job_started_at,
	coalesce(gpu_type, ''), CASE WHEN kind = 'weight_set' THEN coalesce(weight, -1) END`

func scanEntry(row pgx.CollectableRow) (Entry, error) {
	var e Entry
	var started *time.Time
	err := row.Scan(&e.Cluster, &e.Seq, &e.RecordedAt, &e.Kind, &e.Actor, &e.Why, &e.Key, &e.Role, &e.From, &e.Until,
		&e.Account, &e.Parent, &e.Receiver, &e.User, &e.Share, &e.Amount, &e.Setting, &e.Value, &e.Job, &started,
		&e.GPUType, &e.Weight)
	e.RecordedAt, e.From = e.RecordedAt.UTC(), e.From.UTC()
	if e.Until != nil {
		*e.Until = e.Until.UTC()
	}
	if started != nil {
		e.JobStart = started.UTC()
	}
	return e, err
}

// note fills in what accompanies every entry, and writes names as they are
// stored: account names in lower case, as in Slurm.
func (e *Entry) note(n Note) {
	e.Actor, e.Why, e.Key, e.From, e.Until = n.Actor, n.Why, n.Key, n.From, n.Until
	e.Account = strings.ToLower(e.Account)
	e.Parent = strings.ToLower(e.Parent)
	e.Receiver = strings.ToLower(e.Receiver)
	e.GPUType = strings.ToLower(e.GPUType)
}

// isGrant tells whether the entry gives GPU time, be it back.
func (e *Entry) isGrant() bool {
	return e.Kind == Deposit || e.Kind == Transfer || e.Kind == Refund
}
