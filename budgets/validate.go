// SPDX-License-Identifier: GPL-2.0-or-later

package budgets

import (
	"fmt"
	"strings"
	"time"

	"gpubudget/fairshare"
)

const (
	// MaxAmount is the most that one deposit or transfer can be: a billion
	// GPU-hours.
	MaxAmount = 1_000_000_000 * fairshare.GPUHour

	maxNameLength = 128
	maxNoteLength = 256
	maxWhyLength  = 4096
)

// Entries are in force within these bounds.
var (
	earliest = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
)

// validate refuses what can be seen to be wrong without looking at the ledger.
// PostgreSQL refuses the same.
func (e *Entry) validate() error {
	if err := e.validateNames(); err != nil {
		return err
	}
	if err := e.validateNote(); err != nil {
		return err
	}
	if err := e.validatePeriod(); err != nil {
		return err
	}
	if err := e.validateShare(); err != nil {
		return err
	}
	if e.Weight != nil && *e.Weight != fairshare.DefaultWeight && (*e.Weight < 0 || *e.Weight > fairshare.MaxWeight) {
		return &InvalidWeightError{GPUType: e.GPUType, Weight: *e.Weight}
	}
	if e.isGrant() && (e.Amount < 1 || e.Amount > MaxAmount) {
		return &InvalidAmountError{Amount: e.Amount}
	}
	return nil
}

func (e *Entry) validateNames() error {
	if err := validateName("cluster", e.Cluster); err != nil {
		return err
	}
	if e.Kind == PolicySet && e.Account == "" {
		return nil
	}
	if e.Kind == WeightSet {
		return validateType(e.GPUType)
	}
	if err := validateName("account", e.Account); err != nil {
		return err
	}
	switch e.Kind {
	case AccountAdd, AccountMove:
		if e.Parent == e.Account {
			return &CycleError{Path: []string{e.Account, e.Parent}}
		}
		return validateName("account", e.Parent)
	case Transfer:
		if e.Receiver == e.Account {
			return &InvalidNameError{What: "account", Name: e.Receiver, Reason: "a transfer needs two different accounts"}
		}
		return validateName("account", e.Receiver)
	case UserAdd, UserRemove, UserShareSet, Refund:
		return validateName("user", e.User)
	default:
		return nil
	}
}

// validateName accepts what Slurm's tools can carry: printable ASCII but what
// quotes or separates.
func validateName(what, name string) error {
	switch {
	case name == "":
		return &InvalidNameError{What: what, Name: name, Reason: "it is empty"}
	case len(name) > maxNameLength:
		return &InvalidNameError{What: what, Name: name, Reason: fmt.Sprintf("it is longer than %d characters", maxNameLength)}
	}
	for _, r := range name {
		if r <= ' ' || r > '~' || strings.ContainsRune("\"'`,|=:;\\", r) {
			return &InvalidNameError{What: what, Name: name, Reason: fmt.Sprintf("the character %q can't be part of a name", r)}
		}
	}
	return nil
}

// validateType accepts what Slurm can name a type of GPUs.
func validateType(name string) error {
	if name == fairshare.OtherTypes {
		return nil
	}
	if strings.Contains(name, fairshare.OtherTypes) {
		return &InvalidNameError{What: "GPU type", Name: name, Reason: "only * alone stands for others"}
	}
	return validateName("GPU type", name)
}

func (e *Entry) validateNote() error {
	switch {
	case e.Actor == "":
		return &InvalidNoteError{Field: "actor", Reason: "it is empty: every entry says who decided it"}
	case len(e.Actor) > maxNoteLength:
		return &InvalidNoteError{Field: "actor", Reason: fmt.Sprintf("it is longer than %d bytes", maxNoteLength)}
	case len(e.Key) > maxNoteLength:
		return &InvalidNoteError{Field: "key", Reason: fmt.Sprintf("it is longer than %d bytes", maxNoteLength)}
	case len(e.Why) > maxWhyLength:
		return &InvalidNoteError{Field: "why", Reason: fmt.Sprintf("it is longer than %d bytes", maxWhyLength)}
	}
	for _, field := range []struct{ name, text string }{{"actor", e.Actor}, {"key", e.Key}, {"why", e.Why}} {
		if strings.ContainsRune(field.text, 0) || strings.ToValidUTF8(field.text, "") != field.text {
			return &InvalidNoteError{Field: field.name, Reason: "it is no valid UTF-8 text"}
		}
	}
	return nil
}

func (e *Entry) validatePeriod() error {
	problem := &PeriodError{From: e.From, Until: e.Until}
	switch {
	case e.isGrant() && e.Until == nil:
		problem.Reason = "GPU time is given for a period: say until when"
	case !e.From.IsZero() && (e.From.Before(earliest) || !e.From.Before(latest)):
		problem.Reason = "the beginning lies outside the years 1970 to 9998"
	case e.Until != nil && (e.Until.Before(earliest) || !e.Until.Before(latest)):
		problem.Reason = "the end lies outside the years 1970 to 9998"
	case e.Until != nil && !e.From.IsZero() && !e.Until.Truncate(time.Millisecond).After(e.From.Truncate(time.Millisecond)):
		problem.Reason = "the end must come after the beginning"
	default:
		return nil
	}
	return problem
}

func (e *Entry) validateShare() error {
	if e.Share == nil {
		return nil
	}
	isUser := e.Kind == UserAdd || e.Kind == UserShareSet
	if *e.Share >= 0 && *e.Share <= fairshare.Whole || isUser && *e.Share == fairshare.EqualPart {
		return nil
	}
	return &InvalidShareError{Share: *e.Share}
}
