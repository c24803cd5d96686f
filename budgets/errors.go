// SPDX-License-Identifier: GPL-2.0-or-later

package budgets

import (
	"fmt"
	"strings"
	"time"

	"gpubudget/fairshare"
	"gpubudget/internal/amount"
)

// UnknownClusterError is a cluster without any entry, where one was needed.
type UnknownClusterError struct {
	Name    string
	Nearest string   // the known name it most likely stands for; may be empty
	Known   []string // all there are
}

func (e *UnknownClusterError) Error() string {
	text := fmt.Sprintf("unknown cluster %q", e.Name)
	switch {
	case e.Nearest != "":
		return fmt.Sprintf("%s: did you mean %q?", text, e.Nearest)
	case len(e.Known) > 0:
		return fmt.Sprintf("%s: the ledger knows %s", text, strings.Join(e.Known, ", "))
	}
	return text + ": its ledger is empty, begin with `gpubudget account add`"
}

// UnknownAccountError is an account that was never opened in the cluster.
type UnknownAccountError struct {
	Cluster, Name string
	Nearest       string // the known name it most likely stands for; may be empty
}

func (e *UnknownAccountError) Error() string {
	text := fmt.Sprintf("unknown account %q in cluster %q", e.Name, e.Cluster)
	if e.Nearest != "" {
		return fmt.Sprintf("%s: did you mean %q?", text, e.Nearest)
	}
	return text + ": open it first with `gpubudget account add`"
}

// UnknownUserError is a user who is no member of the account at that time.
type UnknownUserError struct {
	Account, User string
	At            time.Time
	Nearest       string // the member he most likely is; may be empty
}

func (e *UnknownUserError) Error() string {
	text := fmt.Sprintf("user %q is no member of account %q at %s", e.User, e.Account, stamp(e.At))
	if e.Nearest != "" {
		return fmt.Sprintf("%s: did you mean %q?", text, e.Nearest)
	}
	return text + ": add the user first with `gpubudget user add`"
}

// ClosedAccountError is an account that isn't open at the time an entry needs
// it.
type ClosedAccountError struct {
	Account string
	At      time.Time
	Since   *time.Time // when it was closed; nil: it had not been opened yet
	Opens   *time.Time // when it opens next; nil: it doesn't
	Child   string     // the account that would stand under it; may be empty
}

func (e *ClosedAccountError) Error() string {
	text := fmt.Sprintf("account %q is not open at %s", e.Account, stamp(e.At))
	if e.Child != "" {
		text = fmt.Sprintf("account %q can't stand under %q, which is not open at %s", e.Child, e.Account, stamp(e.At))
	}
	if e.Since != nil {
		text += ", it was closed on " + stamp(*e.Since)
	}
	if e.Opens != nil {
		return fmt.Sprintf("%s and opens on %s: choose a date from then on", text, stamp(*e.Opens))
	}
	return text + ": choose another account or date, or open it with `gpubudget account add`"
}

// DuplicateError is an account that is open already, or a user who is a member
// already.
type DuplicateError struct {
	Account string
	User    string     // empty: the account itself
	Since   *time.Time // when the account was opened
}

func (e *DuplicateError) Error() string {
	if e.User != "" {
		return fmt.Sprintf("user %q is a member of account %q already: change the share with `gpubudget share set`", e.User, e.Account)
	}
	text := fmt.Sprintf("account %q is open already", e.Account)
	if e.Since != nil {
		text += ", since " + stamp(*e.Since)
	}
	return text + ": change its share with `gpubudget share set`, its parent with `gpubudget account move`"
}

// Holding is what a child account or a user holds of an account.
type Holding struct {
	Account string          `json:"account"` // empty: a user's
	User    string          `json:"user"`
	Share   fairshare.Share `json:"share"`
}

func (h Holding) String() string {
	if h.User != "" {
		return fmt.Sprintf("user %s %s", h.User, amount.Percent(h.Share))
	}
	return fmt.Sprintf("%s %s", h.Account, amount.Percent(h.Share))
}

// ShareError is an account whose children would hold more than all of it.
type ShareError struct {
	Account, User string          // whose share the entry sets; empty if several do
	Parent        string          // the account that would be given away
	At            time.Time       // the first instant at which it would
	Total         fairshare.Share // what its children would hold then
	Over          fairshare.Share // how much too much that is
	Holders       []Holding       // who would hold how much then, greatest first
}

func (e *ShareError) Error() string {
	const most = 8
	held := make([]string, 0, most+1)
	for i, h := range e.Holders {
		if i == most {
			held = append(held, fmt.Sprintf("%d more", len(e.Holders)-most))
			break
		}
		held = append(held, h.String())
	}
	return fmt.Sprintf("share over 100%%: at %s the children of account %q would hold %s of it, %s too much (%s): lower one of them first",
		stamp(e.At), e.Parent, amount.Percent(e.Total), amount.Percent(e.Over), strings.Join(held, ", "))
}

// CycleError is an account that would stand under itself.
type CycleError struct {
	Path []string  // each stands under the next; the last one is among those before
	At   time.Time // the first instant at which it would; zero: always
}

func (e *CycleError) Error() string {
	text := fmt.Sprintf("account %q would stand under itself (%s)", e.Path[len(e.Path)-1], strings.Join(e.Path, " under "))
	if !e.At.IsZero() {
		text += " at " + stamp(e.At)
	}
	return text + ": choose another parent, or move one of them elsewhere first"
}

// OpenChildrenError is an account that can't be closed yet.
type OpenChildrenError struct {
	Account, Child string
	At             time.Time // the first instant at which Child is open under it
}

func (e *OpenChildrenError) Error() string {
	return fmt.Sprintf("account %q can't be closed: account %q is open under it at %s: close or move that first",
		e.Account, e.Child, stamp(e.At))
}

// RootError is an entry that can't be about root.
type RootError struct{ Kind Kind }

func (e *RootError) Error() string {
	return fmt.Sprintf("%s is refused for account %q, which is always open and holds the whole cluster: name an account below it",
		e.Kind, fairshare.RootAccount)
}

// KeyError is an idempotency key that another entry has.
type KeyError struct {
	Key string
	Seq int64 // that entry's number
}

func (e *KeyError) Error() string {
	return fmt.Sprintf("key %q was used for a different entry, number %d: use a new key for a new entry", e.Key, e.Seq)
}

// RefundError is a refund that the record of the run doesn't bear out.
type RefundError struct {
	Job     uint32
	Start   time.Time // of the run
	Problem string    // one of the Refund... constants
	Seq     int64     // of RefundedAlready: the entry that did it
	Amount  fairshare.GPUMillis
	Charged fairshare.GPUMillis // of RefundTooMuch: what was charged in the period
}

// What is wrong with a refund.
const (
	RefundedAlready   = "refunded"    // a run is refunded once
	RefundUnknown     = "unknown"     // there is no record of such a run
	RefundRunning     = "running"     // the run has not ended
	RefundUnallocated = "unallocated" // the run was charged to nobody
	RefundOwner       = "owner"       // another user or account was charged
	RefundPeriod      = "period"      // it is for a time in which the job didn't run
	RefundTooMuch     = "amount"      // it is more than was charged
)

func (e *RefundError) Error() string {
	text := fmt.Sprintf("job %d, started %s", e.Job, e.Start.Format(time.RFC3339))
	switch e.Problem {
	case RefundedAlready:
		return fmt.Sprintf("%s, was refunded already, by entry %d", text, e.Seq)
	case RefundUnknown:
		return text + ": there is no record of such a run"
	case RefundRunning:
		return text + ", still runs: what is lost is known when it has ended"
	case RefundUnallocated:
		return text + ", was unallocated and charged to nobody: there is nothing to refund"
	case RefundOwner:
		return text + ", was charged to another user or account"
	case RefundPeriod:
		return text + ", did not run all of that time"
	case RefundTooMuch:
		return fmt.Sprintf("%s, was charged %s GPU-hours in that time: %s are too much to refund", text,
			amount.Hours(e.Charged), amount.Hours(e.Amount))
	}
	return text + ", can't be refunded: " + e.Problem
}

// InvalidAmountError is an amount of GPU time that can't be given.
type InvalidAmountError struct {
	Amount fairshare.GPUMillis
	Total  bool // it is the sum of all grants that would be too great
}

func (e *InvalidAmountError) Error() string {
	switch {
	case e.Total:
		return amount.Hours(e.Amount) + " GPU-hours are too much: with them more has been granted in this cluster than can be counted"
	case e.Amount < 0:
		return "a negative amount of GPU time can't be given: to take some from an account, transfer it to another"
	case e.Amount == 0:
		return "no GPU time at all can't be given: give a positive number of GPU-hours"
	}
	return fmt.Sprintf("%s GPU-hours are too much: at most %s in one entry", amount.Hours(e.Amount), amount.Hours(MaxAmount))
}

// InvalidShareError is a share that is not from nothing to all.
type InvalidShareError struct{ Share fairshare.Share }

func (e *InvalidShareError) Error() string {
	return fmt.Sprintf("a share of %v%% can't be given: from 0%% to 100%% of the parent, or, for a user, equal",
		float64(e.Share)/float64(fairshare.Whole/100))
}

// InvalidWeightError is a weight that a GPU can't have.
type InvalidWeightError struct {
	GPUType string
	Weight  fairshare.Weight
}

func (e *InvalidWeightError) Error() string {
	return fmt.Sprintf("a weight of %s can't be given to %s: from 0 to %s", amount.Weight(e.Weight), e.GPUType, amount.Weight(fairshare.MaxWeight))
}

// InvalidNameError is a name that can't be one.
type InvalidNameError struct{ What, Name, Reason string }

func (e *InvalidNameError) Error() string {
	return fmt.Sprintf("%q can't be the name of the %s: %s", e.Name, e.What, e.Reason)
}

// InvalidNoteError is a who, why or key that can't be stored.
type InvalidNoteError struct{ Field, Reason string }

func (e *InvalidNoteError) Error() string {
	return fmt.Sprintf("the entry's %s: %s", e.Field, e.Reason)
}

// PeriodError is a period that can't be one.
type PeriodError struct {
	From   time.Time // zero: now
	Until  *time.Time
	Reason string
}

func (e *PeriodError) Error() string {
	from, until := "now", "ever"
	if !e.From.IsZero() {
		from = stamp(e.From)
	}
	if e.Until != nil {
		until = stamp(*e.Until)
	}
	return fmt.Sprintf("from %s until %s: %s", from, until, e.Reason)
}

// InvalidPolicyError is a setting there is not, or a value it can't have.
type InvalidPolicyError struct {
	Setting, Value string
	Nearest        string // the setting that is most likely meant
	Reason         string
}

func (e *InvalidPolicyError) Error() string {
	if e.Nearest != "" {
		return fmt.Sprintf("policy %q: %s: did you mean %q?", e.Setting, e.Reason, e.Nearest)
	}
	return fmt.Sprintf("policy %s=%s: %s", e.Setting, e.Value, e.Reason)
}

// stamp is t as error messages show it.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.999Z") }
