// SPDX-License-Identifier: GPL-2.0-or-later

package budgets

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"gpubudget/fairshare"
)

// The settings of who yields to whom: see fairshare.Contract.
const (
	PreemptMargin        = "preempt_margin"         // how much further behind an account must be (R3): 0 to 10, 0.1 is a tenth
	PreemptWithinAccount = "preempt_within_account" // whether declared priority preempts within an account (R4): yes or no
	EvictedPerGPU        = "evicted_per_gpu"        // GPUs evicted for each that is asked for (R7): 0 to 1000; 0 is no limit
	PreemptPerDay        = "preempt_per_day"        // how often a job is preempted in 24 hours (R7): 0 to 1000; 0 is no limit
	PatientGPUs          = "patient_gpus"           // from how many GPUs on a job that has waited counts as large: 0 to 1000000; 0 is none
	Patience             = "patience"               // for how long it has to have waited: a duration, 0 to 366 days
)

// The values of the setting PreemptWithinAccount.
const (
	Yes = "yes"
	No  = "no"
)

// numbers are the settings whose value is a number: the most that it may be, and
// how many decimals it may have.
var numbers = map[string]struct {
	most     float64
	decimals int
}{PreemptMargin: {10, 3}, EvictedPerGPU: {1000, 3}, PreemptPerDay: {1000, 0}, PatientGPUs: {1000000, 0}}

// contractValue is the value of a setting of the contract as people write it;
// ok is false if it is another's.
func contractValue(c *fairshare.Contract, setting string) (value string, ok bool) {
	switch setting {
	case PreemptMargin:
		return formatNumber(c.Margin), true
	case PreemptWithinAccount:
		if c.WithinAccount {
			return Yes, true
		}
		return No, true
	case EvictedPerGPU:
		return formatNumber(c.EvictedPerGPU), true
	case PreemptPerDay:
		return strconv.Itoa(c.PerDay), true
	case PatientGPUs:
		return strconv.FormatInt(c.PatientGPUs, 10), true
	case Patience:
		return formatDuration(c.Patience), true
	}
	return "", false
}

// setContract takes over a value of the contract as the ledger stores it; ok is
// false if the setting is another's.
func setContract(c *fairshare.Contract, setting, value string) (ok bool, err error) {
	switch setting {
	case PreemptMargin:
		c.Margin, err = strconv.ParseFloat(value, 64)
	case PreemptWithinAccount:
		c.WithinAccount = value == Yes
	case EvictedPerGPU:
		c.EvictedPerGPU, err = strconv.ParseFloat(value, 64)
	case PreemptPerDay:
		c.PerDay, err = strconv.Atoi(value)
	case PatientGPUs:
		c.PatientGPUs, err = strconv.ParseInt(value, 10, 64)
	case Patience:
		c.Patience, err = time.ParseDuration(value)
	default:
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("setting %s: %w", setting, err)
	}
	return true, nil
}

// canonicalNumber is a number as the ledger stores it, or what is wrong with it.
func canonicalNumber(setting, value string) (stored, problem string) {
	bounds := numbers[setting]
	kind := "a whole number"
	if bounds.decimals > 0 {
		kind = fmt.Sprintf("a number with up to %d decimals", bounds.decimals)
	}
	problem = fmt.Sprintf("must be %s from 0 to %s", kind, formatNumber(bounds.most))
	whole, decimals, pointed := strings.Cut(value, ".")
	if !digits(whole) || pointed && !digits(decimals) || len(strings.TrimRight(decimals, "0")) > bounds.decimals {
		return "", problem
	}
	x, err := strconv.ParseFloat(value, 64)
	if err != nil || x > bounds.most {
		return "", problem
	}
	return formatNumber(x), ""
}

func digits(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}

func formatNumber(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
