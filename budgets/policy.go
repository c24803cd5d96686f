// SPDX-License-Identifier: GPL-2.0-or-later

package budgets

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"gpubudget/fairshare"
	"gpubudget/internal/nearest"
)

// The settings of a cluster's policy.
const (
	Lookback = "lookback" // length of the sliding window: a duration, 1 minute to 3660 days
	Mode     = "mode"     // how a job's priority is made: strict or additive
	Bucket   = "bucket"   // what usage and demand are added up by: a duration that divides a day, from 1 second
	Refresh  = "refresh"  // how often the plugin reads the database: a duration, 1 second to 1 day
	// MinRuntime and MinRuntimeCap are terms of the scheduling contract, for preemption to go by.
	MinRuntime    = "min_runtime"     // how long a job that asks for nothing else runs undisturbed: a duration, 0 to 366 days
	MinRuntimeCap = "min_runtime_cap" // the most that a job can ask for: likewise
	KeepMeter     = "keep_meter"      // how long the meters' records are kept: a duration, 1 to 3660 days
	DrainPolicy   = "drain"           // what jobs do on a node that is being drained: wait or requeue
	Charge        = "charge"          // what a run that has ended is charged for: occupancy, utilisation or max
	Unfunded      = "unfunded"        // what becomes of a job whose account has nothing left: unallocated or refuse
)

// Settings are the names of all settings.
var Settings = []string{
	Lookback, Mode, Bucket, Refresh, MinRuntime, MinRuntimeCap, KeepMeter, Charge,
	PreemptMargin, PreemptWithinAccount, EvictedPerGPU, PreemptPerDay, PatientGPUs, Patience, DrainPolicy,
	Unfunded,
}

// The values of the setting Mode.
const (
	Strict   = "strict"
	Additive = "additive"
)

// The values of the setting Charge.
const (
	Occupancy   = "occupancy"   // what was held
	Utilisation = "utilisation" // of that, what was at work where meters know
	Max         = "max"         // the greater of what was held and what was at work
)

// The values of the setting DrainPolicy.
const (
	DrainWait    = "wait"    // they run on, as long as they like
	DrainRequeue = "requeue" // those that can be are requeued as soon as nothing protects them
)

// The values of the setting Unfunded.
const (
	Unallocated = "unallocated" // it runs when nobody needs its GPUs, and is charged to nobody
	Refuse      = "refuse"      // it is refused when it is submitted
)

// words are the settings whose value is one of some words.
var words = map[string][]string{
	Mode: {Strict, Additive}, Charge: {Occupancy, Utilisation, Max}, PreemptWithinAccount: {Yes, No}, DrainPolicy: {DrainWait, DrainRequeue},
	Unfunded: {Unallocated, Refuse},
}

// Policy is a cluster's settings at an instant.
type Policy struct { //nolint:recvcheck // set fills in what others only read
	Lookback time.Duration
	Mode     string
	Bucket   time.Duration
	Refresh  time.Duration
	// MinRuntime is the minimum runtime of a job that names none, MinRuntimeCap
	// the longest that a job can name. Neither is bound to be below the other.
	MinRuntime, MinRuntimeCap time.Duration
	// KeepMeter is how long the meters' records are kept. The lookback window
	// need not fit into it: charges don't come from them.
	KeepMeter time.Duration
	// Charge is what runs are charged for that end now.
	Charge string
	// Drain is what jobs do on nodes that are being drained: DrainWait or
	// DrainRequeue.
	Drain string
	// Contract is who yields to whom.
	Contract fairshare.Contract
	// Unfunded is what becomes of a job whose account has nothing left, or no
	// budget. One that asks to be unallocated runs either way.
	Unfunded string
}

// DefaultPolicy is what is in force where the ledger says nothing.
var DefaultPolicy = Policy{
	Lookback: 7 * 24 * time.Hour, Mode: Strict, Bucket: time.Hour, Refresh: 30 * time.Second,
	MinRuntime: time.Hour, MinRuntimeCap: 8 * time.Hour, KeepMeter: 35 * 24 * time.Hour,
	Charge: Occupancy, Drain: DrainWait, Contract: fairshare.DefaultContract(), Unfunded: Unallocated,
}

// Policy is the cluster's policy at an instant.
func (s *Store) Policy(ctx context.Context, cluster string, at time.Time) (Policy, error) {
	const sql = `SELECT DISTINCT ON (setting) setting, value FROM gpubudget.ledger
		WHERE cluster = $1 AND kind = 'policy_set' AND account IS NULL
		  AND effective_from <= $2 AND (effective_until IS NULL OR effective_until > $2)
		ORDER BY setting, effective_from DESC, seq DESC`
	p := DefaultPolicy
	rows, err := s.db.Query(ctx, sql, cluster, at)
	if err != nil {
		return Policy{}, failed("read policy", err)
	}
	var setting, value string
	_, err = pgx.ForEachRow(rows, []any{&setting, &value}, func() error { return p.set(setting, value) })
	if err != nil {
		return Policy{}, failed("read policy", err)
	}
	return p, nil
}

// PolicyHistory is all entries that set a setting, the cluster's or an account's, in the order they were
// written.
func (s *Store) PolicyHistory(ctx context.Context, cluster string) ([]Entry, error) {
	return s.Ledger(ctx, Filter{Cluster: cluster, Kinds: []Kind{PolicySet}})
}

// Value is a setting's value as SetPolicy reads and people write it.
func (p Policy) Value(setting string) string {
	if value, ok := contractValue(&p.Contract, setting); ok {
		return value
	}
	switch setting {
	case Lookback:
		return formatDuration(p.Lookback)
	case Mode:
		return p.Mode
	case Bucket:
		return formatDuration(p.Bucket)
	case Refresh:
		return formatDuration(p.Refresh)
	case MinRuntime:
		return formatDuration(p.MinRuntime)
	case MinRuntimeCap:
		return formatDuration(p.MinRuntimeCap)
	case KeepMeter:
		return formatDuration(p.KeepMeter)
	case Charge:
		return p.Charge
	case DrainPolicy:
		return p.Drain
	case Unfunded:
		return p.Unfunded
	}
	return ""
}

// set takes over a value as the ledger stores it.
func (p *Policy) set(setting, value string) error {
	if ok, err := setContract(&p.Contract, setting, value); ok {
		return err
	}
	switch setting {
	case Mode:
		p.Mode = value
		return nil
	case Charge:
		p.Charge = value
		return nil
	case DrainPolicy:
		p.Drain = value
		return nil
	case Unfunded:
		p.Unfunded = value
		return nil
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		return fmt.Errorf("setting %s: %w", setting, err)
	}
	switch setting {
	case Lookback:
		p.Lookback = d
	case Bucket:
		p.Bucket = d
	case Refresh:
		p.Refresh = d
	case MinRuntime:
		p.MinRuntime = d
	case MinRuntimeCap:
		p.MinRuntimeCap = d
	case KeepMeter:
		p.KeepMeter = d
	default:
		return fmt.Errorf("setting %q is not known to this release", setting)
	}
	return nil
}

// With is the policy with a setting changed. The error is an
// *InvalidPolicyError.
func (p Policy) With(setting, value string) (Policy, error) {
	name, stored, err := canonicalPolicy(setting, value)
	if err != nil {
		return p, err
	}
	err = p.set(name, stored)
	return p, err
}

// NormalPolicy is a setting and its value as Policy.Value gives it: two values
// that mean the same have the same form. The error is an *InvalidPolicyError.
func NormalPolicy(setting, value string) (name, normal string, err error) {
	name, stored, err := canonicalPolicy(setting, value)
	if err != nil {
		return "", "", err
	}
	var p Policy
	if err := p.set(name, stored); err != nil {
		return "", "", err
	}
	return name, p.Value(name), nil
}

// canonicalPolicy is a setting and its value as the ledger stores them: names
// in lower case, durations in seconds. The error is an *InvalidPolicyError.
func canonicalPolicy(setting, value string) (string, string, error) {
	setting = strings.ToLower(strings.TrimSpace(setting))
	value = strings.ToLower(strings.TrimSpace(value))
	problem := &InvalidPolicyError{Setting: setting, Value: value}
	if !slices.Contains(Settings, setting) {
		problem.Nearest = nearest.Word(setting, Settings)
		problem.Reason = "there is no such setting, only " + strings.Join(Settings, ", ")
		return "", "", problem
	}
	if known := words[setting]; known != nil {
		if slices.Contains(known, value) {
			return setting, value, nil
		}
		last := len(known) - 1
		problem.Reason = fmt.Sprintf("must be %s or %s", strings.Join(known[:last], ", "), known[last])
		return "", "", problem
	}
	if _, ok := numbers[setting]; ok {
		var stored string
		if stored, problem.Reason = canonicalNumber(setting, value); problem.Reason != "" {
			return "", "", problem
		}
		return setting, stored, nil
	}
	seconds, err := parseSeconds(value)
	if err != nil {
		problem.Reason = err.Error()
		return "", "", problem
	}
	if problem.Reason = outOfRange(setting, seconds); problem.Reason != "" {
		return "", "", problem
	}
	return setting, strconv.FormatInt(seconds, 10) + "s", nil
}

const day = 24 * 60 * 60

// outOfRange is what is wrong with a duration for a setting, "" if nothing is.
func outOfRange(setting string, seconds int64) string {
	if setting == KeepMeter {
		return outOfKeep(seconds)
	}
	switch {
	case setting == Lookback && (seconds < 60 || seconds > 3660*day):
		return "must be from 1 minute to 3660 days"
	case setting == Bucket && (seconds < 1 || seconds > day || day%seconds != 0):
		return "must divide a day into equal parts, for example 1m, 15m, 1h or 1d"
	case setting == Refresh && (seconds < 1 || seconds > day):
		return "must be from 1 second to 1 day"
	case slices.Contains([]string{MinRuntime, MinRuntimeCap, Patience}, setting) && seconds > 366*day:
		return "must be from 0s to 366 days"
	}
	return ""
}

func outOfKeep(seconds int64) string {
	if seconds < day || seconds > 3660*day {
		return "must be from 1 to 3660 days"
	}
	return ""
}

// parseSeconds reads a duration such as 7d, 36h, 1d12h or 90s.
func parseSeconds(text string) (int64, error) {
	const forms = "is no duration: write 7d, 12h, 90m or 30s"
	rest, days := text, int64(0)
	if before, after, found := strings.Cut(text, "d"); found {
		n, err := strconv.ParseInt(before, 10, 32)
		if err != nil || n < 0 {
			return 0, fmt.Errorf("%q %s", text, forms)
		}
		rest, days = after, n
	}
	var d time.Duration
	if rest != "" {
		var err error
		if d, err = time.ParseDuration(rest); err != nil {
			return 0, fmt.Errorf("%q %s", text, forms)
		}
	}
	if text == "" || d < 0 || d%time.Second != 0 {
		return 0, fmt.Errorf("%q %s", text, forms)
	}
	return days*day + int64(d/time.Second), nil
}

// formatDuration is the shortest form that parseSeconds reads back.
func formatDuration(d time.Duration) string {
	seconds := int64(d / time.Second)
	var b strings.Builder
	for _, unit := range []struct {
		name    string
		seconds int64
	}{{"d", day}, {"h", 3600}, {"m", 60}, {"s", 1}} {
		if n := seconds / unit.seconds; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, unit.name)
		}
		seconds %= unit.seconds
	}
	if b.Len() == 0 {
		return "0s"
	}
	return b.String()
}
