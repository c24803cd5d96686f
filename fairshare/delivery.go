// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
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
	Bucket      time.Duration // how long demand is averaged over; 0 is an hour; longer where there were more than 100,000
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
	charged := l.byBucket(buckets, len(in.Charges), func(i int) timed { return in.Charges[i].timed() })
	demand := l.byBucket(buckets, len(in.Demand), func(i int) timed { return in.Demand[i].timed() })
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

// maxBuckets is more than ten years of hours.
const maxBuckets = 100_000

// split cuts a window into buckets.
func split(window Period, length time.Duration) []Period {
	c := &changes{window: window}
	if window.Empty() {
		return nil
	}
	step := max(uint64(length.Milliseconds()), 1)
	if length <= 0 {
		step = uint64(time.Hour.Milliseconds())
	}
	for distance(window.From, window.Until)/step >= maxBuckets {
		step *= 2
	}
	at := window.From - mod(window.From, Instant(step))
	for n := distance(at, window.Until) / step; n > 0; n-- {
		at += Instant(step)
		c.at(at)
	}
	return c.segments()
}

// mod is a modulo b, not negative.
func mod(a, b Instant) Instant { return ((a % b) + b) % b }

// timed is an amount of an account in a period: a charge or demand.
type timed struct {
	Period
	account string
	amount  GPUMillis
}

func (c *Charge) timed() timed { return timed{c.Period, c.Account, c.Amount} }
func (d *Demand) timed() timed { return timed{d.Period, d.Account, d.Amount} }

// byBucket sums n amounts by bucket and account, rolled up. What belongs to no
// account of the tree is left out.
func (l *layout) byBucket(buckets []Period, n int, amount func(i int) timed) [][]GPUMillis {
	if len(buckets) == 0 {
		return nil
	}
	window := Period{From: buckets[0].From, Until: buckets[len(buckets)-1].Until}
	cuts := make([]Instant, len(buckets))
	for i, bucket := range buckets {
		cuts[i] = bucket.From
	}
	epochs := l.epochs(window, cuts)
	for i := range n {
		t := amount(i)
		l.spread(epochs, l.find(t.account), t.Period, t.amount)
	}
	return l.foldEpochs(epochs, buckets)
}

// foldEpochs rolls up the epochs and adds them up by bucket, whose edges are
// edges of epochs too.
func (l *layout) foldEpochs(epochs []epoch, buckets []Period) [][]GPUMillis {
	sums := make([][]GPUMillis, len(buckets))
	for i, bucket := range buckets {
		sums[i] = make([]GPUMillis, len(l.accounts))
		for len(epochs) > 0 && epochs[0].From < bucket.Until {
			epochs[0].rollUp()
			for a, sum := range epochs[0].sums {
				sums[i][a] = add(sums[i][a], sum)
			}
			epochs = epochs[1:]
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
