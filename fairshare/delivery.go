// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"sort"
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
	Demand      GPUMillis // asked for; not less, in any bucket, than what was charged
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
// An account asks for nothing before it is in the tree: its demand is that of the
// part of its period in which it is. What was charged was asked for, too: within
// a bucket, as much of an account's demand as was charged lies where it was
// charged, and demand that fell short of the charges is taken for as much.
//
// The accounts come depth first as of the end of the window, then by name those
// that are no longer in the tree but were owed or got something.
func Deliver(in DeliveryInput) []Delivery {
	l := newLayout(in.Budget)
	now := l.shape(in.Window.Until, false)
	sums := make([]Delivery, len(l.accounts))
	buckets := split(in.Window, in.Bucket)
	charges, asked := l.bucketEpochs(buckets), l.bucketEpochs(buckets)
	for _, c := range in.Charges {
		l.spread(charges, l.find(c.Account), c.Period, c.Amount)
	}
	for _, d := range in.Demand {
		l.spreadDemand(asked, l.find(d.Account), d.Period, d.Amount)
	}
	cover(asked, charges, buckets)
	charged, demand := l.foldEpochs(charges, buckets), l.foldEpochs(asked, buckets)
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

// bucketEpochs cuts buckets that follow each other wherever an account moves.
func (l *layout) bucketEpochs(buckets []Period) []epoch {
	if len(buckets) == 0 {
		return nil
	}
	cuts := make([]Instant, len(buckets))
	for i, bucket := range buckets {
		cuts[i] = bucket.From
	}
	return l.epochs(Period{From: buckets[0].From, Until: buckets[len(buckets)-1].Until}, cuts)
}

// spreadDemand adds the demand of account a to the epochs it falls into. All of
// it is spread evenly over the part of p in which a is in the tree.
func (l *layout) spreadDemand(epochs []epoch, a int, p Period, amount GPUMillis) {
	stays, whole := l.stays(a, p)
	if whole == 0 {
		l.spread(epochs, a, p, amount)
		return
	}
	var length uint64
	var given GPUMillis
	for _, stay := range stays {
		length += distance(stay.From, stay.Until)
		upTo := scale(amount, length, whole)
		l.spread(epochs, a, stay, upTo-given)
		given = upTo
	}
}

// stays are the parts of p in which account a is in the tree, and how long they
// are together.
func (l *layout) stays(a int, p Period) (stays []Period, length uint64) {
	if a < 0 || p.Empty() {
		return nil, 0
	}
	c := &changes{window: p}
	first := sort.Search(len(l.moves), func(i int) bool { return l.moves[i] > p.From })
	for _, at := range l.moves[first:] {
		if at >= p.Until {
			break
		}
		c.at(at)
	}
	for _, segment := range c.segments() {
		if l.shape(segment.From, true).reached[a] {
			stays = append(stays, segment)
			length += distance(segment.From, segment.Until)
		}
	}
	return stays, length
}

// cover sees that what was charged was asked for, bucket by bucket: where an
// account moved, from the demand of the epochs that have more than they need,
// in proportion; beyond that, what was charged is demand in itself. Nothing is
// rolled up yet.
func cover(asked, charges []epoch, buckets []Period) {
	for _, bucket := range buckets {
		n := sort.Search(len(asked), func(i int) bool { return asked[i].From >= bucket.Until })
		for a := range asked[0].sums {
			coverAccount(asked[:n], charges[:n], a)
		}
		asked, charges = asked[n:], charges[n:]
	}
}

// coverAccount is cover for one account in one bucket.
func coverAccount(asked, charges []epoch, a int) {
	var lacking, spare GPUMillis
	for i := range asked {
		more := add(asked[i].sums[a], -max(charges[i].sums[a], 0))
		lacking, spare = add(lacking, max(-more, 0)), add(spare, max(more, 0))
	}
	if lacking == 0 {
		return
	}
	moved := min(lacking, spare)
	var passed, taken GPUMillis
	for i := range asked {
		need := max(charges[i].sums[a], 0)
		more := add(asked[i].sums[a], -need)
		if more <= 0 {
			asked[i].sums[a] = need
			continue
		}
		passed = add(passed, more)
		upTo := scale(moved, uint64(passed), uint64(spare))
		asked[i].sums[a] -= upTo - taken
		taken = upTo
	}
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
	in := newIntegrator(l, l.budget.Capacity)
	in.keepPlans()
	sums, e := make([][]GPUMillis, len(buckets)), l.newEntitlements(Period{})
	for i, bucket := range buckets {
		e.reset(bucket)
		in.integrate(e, l.budgetChanges(bucket, l.budget.Capacity).segments())
		sums[i] = make([]GPUMillis, len(l.accounts))
		for a := range sums[i] {
			sums[i][a] = e.total[a].whole
		}
	}
	return sums
}
