// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"slices"
	"time"
)

// Demand is GPU time that an account asked for in a period: GPUs pending and
// running, integrated over it.
type Demand struct {
	Period
	Account string
	Amount  GPUMillis
}

// DeliveryInput is what Deliver compares.
type DeliveryInput struct {
	Budget      *Budget
	Window      Period
	Bucket      time.Duration // how long demand is averaged over; 0 is an hour
	Charges     []Charge      // allocated time
	Unallocated []Charge      // time that was not charged to a budget
	Demand      []Demand
}

// Delivery is what an account, with all accounts below it, was owed and got.
type Delivery struct {
	Account     string
	Entitled    GPUMillis
	Demand      GPUMillis
	Owed        GPUMillis // in each bucket the smaller of entitlement and demand
	Delivered   GPUMillis // charged
	Capped      GPUMillis // in each bucket the smaller of delivered and owed
	Unallocated GPUMillis
}

// Percent is the part of what was owed that was delivered, 0 to 100, counted
// over the whole window: time above what was owed in one bucket makes up for
// another. It is 100 if nothing was owed.
func (d *Delivery) Percent() float64 { return percent(d.Delivered, d.Owed) }

// StrictPercent is Percent with each bucket standing for itself.
func (d *Delivery) StrictPercent() float64 { return percent(d.Capped, d.Owed) }

func percent(part, whole GPUMillis) float64 {
	if whole <= 0 {
		return 100
	}
	return 100 * unit(float64(part)/float64(whole))
}

// Deliver tells what each account was owed and got in a window. Buckets begin
// at multiples of their length since 1970 UTC; the first and the last are cut
// by the window. In each bucket charges and demand count in proportion to the
// part of their period that lies in it, and both roll up the tree in force.
//
// The accounts come depth first as of the end of the window, then by name those
// that are no longer in the tree but were owed or got something.
func Deliver(in DeliveryInput) []Delivery {
	l := newLayout(in.Budget)
	now := l.shape(in.Window.Until, false)
	sums := make([]Delivery, len(l.accounts))
	buckets := split(in.Window, in.Bucket)
	charged := l.byBucket(buckets, chargedParts(in.Charges))
	demand := l.byBucket(buckets, demandedParts(in.Demand))
	entitled := l.entitledByBucket(buckets)
	free := l.usage(in.Window, in.Unallocated)
	for a := range sums {
		sums[a].Account, sums[a].Unallocated = l.accounts[a].Name, free.total[a]
		for b := range buckets {
			sums[a].count(entitled[b][a], demand[b][a], charged[b][a])
		}
	}
	return l.ordered(sums, now)
}

func (d *Delivery) count(entitled, demand, delivered GPUMillis) {
	entitled, demand, delivered = max(entitled, 0), max(demand, 0), max(delivered, 0)
	owed := min(entitled, demand)
	d.Entitled = add(d.Entitled, entitled)
	d.Demand = add(d.Demand, demand)
	d.Owed = add(d.Owed, owed)
	d.Delivered = add(d.Delivered, delivered)
	d.Capped = add(d.Capped, min(delivered, owed))
}

func (l *layout) ordered(sums []Delivery, now *shape) []Delivery {
	deliveries := make([]Delivery, 0, len(sums))
	for _, a := range now.order {
		deliveries = append(deliveries, sums[a])
	}
	for a := range sums {
		if !now.reached[a] && sums[a] != (Delivery{Account: sums[a].Account}) {
			deliveries = append(deliveries, sums[a])
		}
	}
	return deliveries
}

// split cuts a window into buckets.
func split(window Period, length time.Duration) []Period {
	step := Instant(length.Milliseconds())
	if step <= 0 {
		step = Instant(time.Hour.Milliseconds())
	}
	c := &changes{window: window}
	for at := window.From - mod(window.From, step) + step; at < window.Until; at += step {
		c.at(at)
	}
	return c.segments()
}

// mod is a modulo b, not negative.
func mod(a, b Instant) Instant { return ((a % b) + b) % b }

// amountOf is an amount of an account in a period.
type amountOf struct {
	Period
	account string
	amount  GPUMillis
}

func chargedParts(charges []Charge) func(func(amountOf) bool) {
	return func(yield func(amountOf) bool) {
		for i := range charges {
			if !yield(amountOf{charges[i].Period, charges[i].Account, charges[i].Amount}) {
				return
			}
		}
	}
}

func demandedParts(demand []Demand) func(func(amountOf) bool) {
	return func(yield func(amountOf) bool) {
		for i := range demand {
			if !yield(amountOf{demand[i].Period, demand[i].Account, demand[i].Amount}) {
				return
			}
		}
	}
}

// byBucket sums amounts by bucket and account, rolled up. What belongs to no
// account of the tree is left out.
func (l *layout) byBucket(buckets []Period, amounts func(func(amountOf) bool)) [][]GPUMillis {
	if len(buckets) == 0 {
		return nil
	}
	window := Period{From: buckets[0].From, Until: buckets[len(buckets)-1].Until}
	cuts := make([]Instant, len(buckets))
	for i, b := range buckets {
		cuts[i] = b.From
	}
	epochs := l.epochs(window, slices.DeleteFunc(cuts, func(i Instant) bool { return i <= window.From }))
	for amount := range amounts {
		a, known := l.number[amount.account]
		l.spread(epochs, a, known, amount.Period, amount.amount, func(GPUMillis) {})
	}
	sums := make([][]GPUMillis, len(buckets))
	bucket := -1
	for i := range epochs {
		if bucket < 0 || epochs[i].From >= buckets[bucket].Until {
			bucket++
			sums[bucket] = make([]GPUMillis, len(l.accounts))
		}
		epochs[i].rollUp()
		for a, sum := range epochs[i].sums {
			sums[bucket][a] = add(sums[bucket][a], sum)
		}
	}
	return sums
}

// entitledByBucket is the entitlement by bucket and account.
func (l *layout) entitledByBucket(buckets []Period) [][]GPUMillis {
	in := newIntegrator(l)
	sums := make([][]GPUMillis, len(buckets))
	for i, bucket := range buckets {
		e := l.newEntitlements(bucket)
		for _, segment := range l.budgetChanges(bucket).segments() {
			in.integrate(e, segment)
		}
		sums[i] = make([]GPUMillis, len(l.accounts))
		for a := range sums[i] {
			sums[i][a] = e.total[a].whole
		}
	}
	return sums
}
