// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"cmp"
	"slices"
	"time"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// keepBuckets is how long a bucket's totals are kept after the last pass has
// left it, should something late be found to belong in it.
const keepBuckets = time.Hour

// demand adds up what accounts asked for, per bucket, since this incarnation of
// the engine began. Totals only grow.
type demand struct {
	length   time.Duration
	buckets  map[fairshare.Period]*demandBucket
	current  *demandBucket // a pass mostly adds to this one
	accounts map[string]*accountDemand
	// held is until when no bucket is given up: the clock was set, and may be
	// set back to where it was.
	held fairshare.Instant
}

type demandBucket struct {
	fairshare.Period
	seen    fairshare.Instant // counted up to here
	dirty   bool
	amounts map[string]*demandAmounts
}

type demandAmounts struct {
	Pending fairshare.GPUMillis `json:"p"`
	Running fairshare.GPUMillis `json:"r"`
	Begun   fairshare.Instant   `json:"b,omitempty"` // when the first of it was asked for; 0 if an older release counted it
}

// accountDemand is one account's place in the bucket it was last counted in.
type accountDemand struct {
	name    string
	bucket  *demandBucket
	amounts *demandAmounts
}

func newDemand(length time.Duration) *demand {
	return &demand{
		length:   length,
		buckets:  make(map[fairshare.Period]*demandBucket),
		accounts: make(map[string]*accountDemand),
	}
}

// account is the account's place.
func (d *demand) account(name string) *accountDemand {
	a := d.accounts[name]
	if a == nil {
		a = &accountDemand{name: name}
		d.accounts[name] = a
	}
	return a
}

// resize changes the length of the buckets to come.
func (d *demand) resize(length time.Duration) {
	if length != d.length {
		d.length, d.current = length, nil
	}
}

// advance prepares to count from the last pass to this one.
func (d *demand) advance(previous, now fairshare.Instant) {
	d.current = d.bucket(now)
	if now < d.held {
		return
	}
	for p, b := range d.buckets {
		if !b.dirty && b != d.current && p.Until < previous-fairshare.Instant(keepBuckets.Milliseconds()) {
			delete(d.buckets, p)
		}
	}
}

// passed notes that all is counted up to now.
func (d *demand) passed(now fairshare.Instant) {
	for _, b := range d.buckets {
		if seen := min(now, b.Until); seen > b.seen {
			b.seen, b.dirty = seen, true
		}
	}
}

func (d *demand) bucket(at fairshare.Instant) *demandBucket {
	if d.current != nil && d.current.Contains(at) {
		return d.current
	}
	p := usage.Bucket(at, d.length)
	b := d.buckets[p]
	if b == nil {
		b = &demandBucket{Period: p, amounts: make(map[string]*demandAmounts)}
		d.buckets[p] = b
	}
	return b
}

func (a *accountDemand) in(b *demandBucket) *demandAmounts {
	if a.bucket == b {
		return a.amounts
	}
	amounts := b.amounts[a.name]
	if amounts == nil {
		amounts = &demandAmounts{}
		b.amounts[a.name] = amounts
	}
	a.bucket, a.amounts = b, amounts
	return amounts
}

// pending counts GPUs that an account waited for, in millionths of one by what they
// count for.
func (d *demand) pending(a *accountDemand, rate int64, from, until fairshare.Instant) {
	d.split(a, from, until, func(amounts *demandAmounts, ms int64) {
		amounts.Pending += fairshare.Charged(rate, ms)
	})
}

// running counts GPUs that an account held, likewise.
func (d *demand) running(a *accountDemand, rate int64, from, until fairshare.Instant) {
	d.split(a, from, until, func(amounts *demandAmounts, ms int64) {
		amounts.Running += fairshare.Charged(rate, ms)
	})
}

// split shows add the parts of a period, bucket by bucket.
func (d *demand) split(a *accountDemand, from, until fairshare.Instant, add func(*demandAmounts, int64)) {
	for from < until {
		b := d.bucket(from)
		end := min(until, b.Until)
		amounts := a.in(b)
		if amounts.Begun == 0 || from < amounts.Begun {
			amounts.Begun = from
		}
		add(amounts, int64(end-from))
		b.dirty = true
		from = end
	}
}

// take hands over the buckets that have changed, whole.
func (d *demand) take(incarnation string) []spoolRecord {
	var out []spoolRecord
	for _, b := range d.buckets {
		if !b.dirty {
			continue
		}
		b.dirty = false
		accounts := make(map[string]demandAmounts, len(b.amounts))
		for name, amounts := range b.amounts {
			accounts[name] = *amounts
		}
		out = append(out, spoolRecord{Demand: &spoolDemand{
			Incarnation: incarnation, From: b.From, Until: b.Until, Seen: b.seen, Accounts: accounts,
		}})
	}
	slices.SortFunc(out, func(x, y spoolRecord) int {
		return cmp.Or(cmp.Compare(x.Demand.From, y.Demand.From), cmp.Compare(x.Demand.Until, y.Demand.Until))
	})
	return out
}
