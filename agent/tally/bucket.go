// SPDX-License-Identifier: GPL-2.0-or-later

// Package tally adds up what jobs held and what their GPUs did meanwhile. It is
// pure: it is told what was seen and when, and has no clock, files or driver.
//
// Amounts are integers and absolute: a bucket says what there was so far, so
// that it can be written down as often as one likes.
package tally

import "gpubudget/fairshare"

// Source is how it is known that a job holds a GPU.
type Source string

// The kinds of Source.
const (
	// FromProlog has exact ends: those of Prolog and Epilog.
	FromProlog Source = "prolog"
	// FromProcess is a job that no Prolog told of and whose processes were seen
	// on the GPU; it is held from the first to the last look at them.
	FromProcess Source = "process"
)

// Bucket is what one job held of one GPU in one bucket, as one incarnation of
// the agent has counted it so far. It is a line of the spool and an element of
// the report to the database, whose column comments hold here too: amounts that
// nobody knows are nil, never 0.
type Bucket struct {
	Starts fairshare.Instant `json:"starts_ms"`
	Ends   fairshare.Instant `json:"ends_ms"`
	GPU    string            `json:"gpu"`
	JobID  uint32            `json:"job_id"`

	Restart     uint32 `json:"restart,omitempty"`
	Incarnation string `json:"incarnation"` // a UUID
	Seq         int64  `json:"seq"`

	Source     Source             `json:"source"`
	User       string             `json:"user_name,omitempty"`
	Account    string             `json:"account,omitempty"`
	JobStarted *fairshare.Instant `json:"job_started_ms,omitempty"`

	From  fairshare.Instant `json:"held_from_ms"`
	Until fairshare.Instant `json:"held_until_ms"`
	Ended bool              `json:"ended,omitempty"`

	Shared     int64 `json:"shared_ms,omitempty"`
	Part       int64 `json:"part_ms"`
	MPSPercent *int  `json:"mps_percent,omitempty"`

	Busy            *int64 `json:"busy_ms,omitempty"`
	BusyKnown       int64  `json:"busy_known_ms,omitempty"`
	SharedBusy      *int64 `json:"shared_busy_ms,omitempty"`
	SharedBusyKnown int64  `json:"shared_busy_known_ms,omitempty"`
	Memory          *int64 `json:"memory_mib_ms,omitempty"`
	MemoryKnown     int64  `json:"memory_known_ms,omitempty"`
	MemoryMax       *int64 `json:"memory_max_mib,omitempty"`
	Energy          *int64 `json:"energy_mj,omitempty"`
	EnergyKnown     int64  `json:"energy_known_ms,omitempty"`
	Process         *int64 `json:"process_ms,omitempty"`
	ProcessKnown    int64  `json:"process_known_ms,omitempty"`
	Samples         int64  `json:"samples,omitempty"`

	LastBusy  *fairshare.Instant `json:"last_busy_ms,omitempty"`
	IdleSince *fairshare.Instant `json:"idle_since_ms,omitempty"`
}

// Held is how long the job held the GPU in the bucket, in milliseconds.
func (b *Bucket) Held() int64 { return int64(b.Until - b.From) }

// cut takes back what was counted after an instant: a moment only, so that how
// the amounts lie in it does not matter. Only the part goes to others, and is known
// piece by piece.
func (b *Bucket) cut(at fairshare.Instant) {
	b.Until = min(b.Until, max(b.From, at))
	held := b.Held()
	for _, part := range []*int64{&b.Shared, &b.Part, &b.BusyKnown, &b.MemoryKnown, &b.EnergyKnown, &b.ProcessKnown} {
		*part = min(*part, held)
	}
	b.SharedBusyKnown = min(b.SharedBusyKnown, held-b.BusyKnown)
	for _, of := range []struct {
		amount **int64
		known  int64
	}{{&b.Busy, b.BusyKnown}, {&b.SharedBusy, b.SharedBusyKnown}, {&b.Process, b.ProcessKnown}} {
		if *of.amount != nil {
			*of.amount = new(min(**of.amount, of.known))
		}
	}
	for _, of := range []struct {
		amount **int64
		known  int64
	}{{&b.Busy, b.BusyKnown}, {&b.SharedBusy, b.SharedBusyKnown}, {&b.Memory, b.MemoryKnown}, {&b.MemoryMax, b.MemoryKnown}, {&b.Energy, b.EnergyKnown}, {&b.Process, b.ProcessKnown}} {
		if of.known == 0 {
			*of.amount = nil
		}
	}
	b.LastBusy, b.IdleSince = earlier(b.LastBusy, b.Until), earlier(b.IdleSince, b.Until)
}

func earlier(at *fairshare.Instant, than fairshare.Instant) *fairshare.Instant {
	if at == nil || *at <= than {
		return at
	}
	return &than
}
