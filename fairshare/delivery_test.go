// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
)

func demand(account string, p fairshare.Period, gpuHours int64) fairshare.Demand {
	return fairshare.Demand{Period: p, Account: account, Amount: fairshare.GPUMillis(gpuHours) * fairshare.GPUHour}
}

// gpuHours is a Delivery in GPU-hours.
type gpuHours struct {
	entitled, demand, owed, delivered, capped, unallocated float64
}

func TestDeliver(t *testing.T) {
	// Whole hours since 1970, so that buckets are too.
	const zero fairshare.Instant = 492_000 * 3_600_000
	at := func(from, until fairshare.Instant) fairshare.Period {
		return fairshare.Period{From: zero + from*hour, Until: zero + until*hour}
	}
	b := budget(100, account("lab", "root", 60), account("x", "lab", 50, equal("u")), account("y", "lab", 50, equal("u")),
		account("z", "root", 40, equal("u")))
	tests := []struct {
		name string
		in   fairshare.DeliveryInput
		want map[string]gpuHours
		// percent and strict percent
		percents map[string][2]float64
	}{
		{
			name: "owed is the smaller of entitlement and demand, hour by hour",
			in: fairshare.DeliveryInput{
				Window: at(0, 4),
				Demand: []fairshare.Demand{demand("z", at(0, 1), 10), demand("z", at(1, 2), 100), demand("z", at(2, 4), 50)},
				Charges: []fairshare.Charge{
					charge("z", "u", at(0, 1), 10), charge("z", "u", at(1, 2), 30), charge("z", "u", at(2, 3), 35),
				},
			},
			want: map[string]gpuHours{
				// 25 of the demand fall to the third hour, and 35 were used in it.
				"z":    {entitled: 160, demand: 10 + 100 + 35 + 25, owed: 10 + 40 + 35 + 25, delivered: 75, capped: 75},
				"root": {entitled: 400, demand: 170, owed: 170, delivered: 75, capped: 75},
			},
			percents: map[string][2]float64{"z": {100 * 75.0 / 110, 100 * 75.0 / 110}},
		},
		{
			name: "more in one hour makes up for less in another, but not strictly",
			in: fairshare.DeliveryInput{
				Window:  at(0, 2),
				Demand:  []fairshare.Demand{demand("z", at(0, 2), 80)},
				Charges: []fairshare.Charge{charge("z", "u", at(0, 1), 90)},
			},
			want:     map[string]gpuHours{"z": {entitled: 80, demand: 90 + 40, owed: 80, delivered: 90, capped: 40}},
			percents: map[string][2]float64{"z": {100, 50}, "x": {100, 100}},
		},
		{
			name: "a program is owed what its projects leave to each other",
			in: fairshare.DeliveryInput{
				Window:  at(0, 1),
				Demand:  []fairshare.Demand{demand("x", at(0, 1), 100), demand("y", at(0, 1), 5)},
				Charges: []fairshare.Charge{charge("x", "u", at(0, 1), 35), charge("y", "u", at(0, 1), 5)},
			},
			want: map[string]gpuHours{
				"x":   {entitled: 30, demand: 100, owed: 30, delivered: 35, capped: 30},
				"y":   {entitled: 30, demand: 5, owed: 5, delivered: 5, capped: 5},
				"lab": {entitled: 60, demand: 105, owed: 60, delivered: 40, capped: 40},
			},
			percents: map[string][2]float64{"x": {100, 100}, "lab": {100 * 40.0 / 60, 100 * 40.0 / 60}},
		},
		{
			name: "edges of the window cut buckets, charges and demand",
			in: fairshare.DeliveryInput{
				Window:  fairshare.Period{From: zero + hour/2, Until: zero + 2*hour - hour/4},
				Demand:  []fairshare.Demand{demand("z", at(0, 1), 20), demand("z", at(1, 2), 80)},
				Charges: []fairshare.Charge{charge("z", "u", at(0, 2), 40)},
			},
			want: map[string]gpuHours{"z": {entitled: 50, demand: 10 + 60, owed: 10 + 30, delivered: 25, capped: 10 + 15}},
		},
		{
			name: "longer buckets level demand out",
			in: fairshare.DeliveryInput{
				Window: at(0, 2), Bucket: 2 * time.Hour,
				Demand:  []fairshare.Demand{demand("z", at(0, 1), 80)},
				Charges: []fairshare.Charge{charge("z", "u", at(0, 1), 80)},
			},
			want: map[string]gpuHours{"z": {entitled: 80, demand: 80, owed: 80, delivered: 80, capped: 80}},
		},
		{
			name: "unallocated time is told apart, and what is unknown is nobody's",
			in: fairshare.DeliveryInput{
				Window:      at(0, 1),
				Charges:     []fairshare.Charge{charge("nobody", "u", at(0, 1), 9)},
				Demand:      []fairshare.Demand{demand("nobody", at(0, 1), 9)},
				Unallocated: []fairshare.Charge{charge("x", "u", at(0, 1), 3), charge("lab", "u", at(0, 1), 2), charge("", "", at(0, 1), 9)},
			},
			want: map[string]gpuHours{
				"root": {entitled: 100, unallocated: 5}, "lab": {entitled: 60, unallocated: 5}, "x": {entitled: 30, unallocated: 3},
			},
		},
		{
			name:     "nothing",
			in:       fairshare.DeliveryInput{Window: at(1, 0)},
			want:     map[string]gpuHours{"root": {}, "z": {}},
			percents: map[string][2]float64{"root": {100, 100}},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.in.Budget = b
			got := map[string]fairshare.Delivery{}
			for _, d := range fairshare.Deliver(test.in) {
				got[d.Account] = d
			}
			require.Len(t, got, 5)
			for name, want := range test.want {
				d := got[name]
				for _, pair := range [][2]float64{
					{want.entitled, d.Entitled.Hours()}, {want.demand, d.Demand.Hours()}, {want.owed, d.Owed.Hours()},
					{want.delivered, d.Delivered.Hours()}, {want.capped, d.Capped.Hours()}, {want.unallocated, d.Unallocated.Hours()},
				} {
					require.InDelta(t, pair[0], pair[1], 1e-6, "%s: %+v", name, d)
				}
			}
			for name, want := range test.percents {
				d := got[name]
				require.InDelta(t, want[0], d.Percent(), 1e-6, name)
				require.InDelta(t, want[1], d.StrictPercent(), 1e-6, name)
			}
		})
	}
}

// Accounts that were closed come last, if there is anything to tell of them.
func TestDeliverToClosedAccounts(t *testing.T) {
	closed, before := account("closed", "", 50), account("before", "", 50)
	closed.Parent = []fairshare.Step[string]{{Period: clock(-5*60, 60), Value: "lab"}}
	before.Parent = []fairshare.Step[string]{{Period: clock(-5*60, -60), Value: "lab"}}
	b := budget(100, account("lab", "root", 100), closed, before)
	got := fairshare.Deliver(fairshare.DeliveryInput{
		Budget: b, Window: clock(0, 120),
		Demand:  []fairshare.Demand{demand("closed", clock(0, 60), 20)},
		Charges: []fairshare.Charge{charge("closed", "u", clock(0, 120), 20)}, // runs on after it was closed
	})
	require.Len(t, got, 3)
	require.Equal(t, []string{"root", "lab", "closed"}, []string{got[0].Account, got[1].Account, got[2].Account})
	require.Equal(t, 20*fairshare.GPUHour, got[1].Delivered)
	require.Equal(t, 20*fairshare.GPUHour, got[2].Delivered)
	require.Equal(t, 20*fairshare.GPUHour, got[2].Owed)
}

// clock is the period from the given to the other minute since a full hour.
func clock(from, until fairshare.Instant) fairshare.Period {
	const zero fairshare.Instant = 492_000 * 3_600_000
	return fairshare.Period{From: zero + from*hour/60, Until: zero + until*hour/60}
}

// The demand of the hour in which an account comes into the tree or moves counts
// whole, and where it was.
func TestDeliverInTheHourInWhichAnAccountIsOpenedOrMoved(t *testing.T) {
	under := func(parent string, p fairshare.Period) fairshare.Step[string] {
		return fairshare.Step[string]{Period: p, Value: parent}
	}
	never := fairshare.Instant(1_000_000)
	young, nomad := account("young", "", 50, equal("u")), account("nomad", "", 50, equal("u"))
	young.Parent = []fairshare.Step[string]{under("east", clock(52, never))}
	nomad.Parent = []fairshare.Step[string]{under("east", clock(0, 20)), under("west", clock(30, never))}
	b := budget(60, account("east", "root", 50), account("west", "root", 50), young, nomad)
	for _, test := range []struct {
		name    string
		window  fairshare.Period
		demand  fairshare.Demand
		charges []fairshare.Charge
		want    map[string]gpuHours
	}{
		{
			name:   "opened: it asks for 10 GPU-hours in 8 minutes and is due 2",
			window: clock(0, 60),
			demand: demand("young", clock(0, 60), 10),
			want: map[string]gpuHours{
				"young": {entitled: 2, demand: 10, owed: 2}, "east": {entitled: 30, demand: 10, owed: 10}, "root": {entitled: 60, demand: 10, owed: 10},
			},
		},
		{
			name:    "and gets 1",
			window:  clock(0, 60),
			demand:  demand("young", clock(0, 60), 10),
			charges: []fairshare.Charge{charge("young", "u", clock(52, 60), 1)},
			want:    map[string]gpuHours{"young": {entitled: 2, demand: 10, owed: 2, delivered: 1, capped: 1}},
		},
		{
			name:   "opened before the window begins: half of its demand lies before",
			window: clock(56, 60),
			demand: demand("young", clock(0, 60), 10),
			want:   map[string]gpuHours{"young": {entitled: 1, demand: 5, owed: 1}},
		},
		{
			name:   "closed for 10 minutes, during which it stands where it stood",
			window: clock(0, 60),
			demand: demand("nomad", clock(0, 60), 6),
			want: map[string]gpuHours{
				"nomad": {entitled: 12.5, demand: 6, owed: 6}, "east": {entitled: 30, demand: 3, owed: 3}, "west": {entitled: 30, demand: 3, owed: 3},
			},
		},
		{
			name:    "what was charged after the move was asked for after it",
			window:  clock(0, 60),
			demand:  demand("nomad", clock(0, 60), 6),
			charges: []fairshare.Charge{charge("nomad", "u", clock(40, 60), 5)},
			want: map[string]gpuHours{
				"nomad": {entitled: 12.5, demand: 6, owed: 6, delivered: 5, capped: 5},
				"east":  {entitled: 30, demand: 1, owed: 1},
				"west":  {entitled: 30, demand: 5, owed: 5, delivered: 5, capped: 5},
				"root":  {entitled: 60, demand: 6, owed: 6, delivered: 5, capped: 5},
			},
		},
		{
			name:    "what was charged was asked for, even if nobody recorded it",
			window:  clock(0, 60),
			demand:  demand("nomad", clock(0, 60), 0),
			charges: []fairshare.Charge{charge("nomad", "u", clock(0, 60), 6)},
			want:    map[string]gpuHours{"nomad": {entitled: 12.5, demand: 6, owed: 6, delivered: 6, capped: 6}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := map[string]fairshare.Delivery{}
			for _, d := range fairshare.Deliver(fairshare.DeliveryInput{
				Budget: b, Window: test.window, Demand: []fairshare.Demand{test.demand}, Charges: test.charges,
			}) {
				got[d.Account] = d
			}
			for name, want := range test.want {
				d := got[name]
				require.InDeltaSlice(t,
					[]float64{want.entitled, want.demand, want.owed, want.delivered, want.capped},
					[]float64{d.Entitled.Hours(), d.Demand.Hours(), d.Owed.Hours(), d.Delivered.Hours(), d.Capped.Hours()}, 1e-6, name)
			}
		})
	}
}

// Whatever moves when: demand is neither lost nor made, but for what was charged
// beyond it, and nobody is owed less than he was delivered within his
// entitlement.
func TestDeliverOwesWhatItDelivered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawBudget(t)
		length := hour * rapid.SampledFrom([]fairshare.Instant{1, 2, 6, 24}).Draw(t, "hours of a bucket")
		w := fairshare.Period{From: start + hour*fairshare.Instant(rapid.IntRange(0, 40).Draw(t, "hour"))}
		w.From -= w.From % length
		w.Until = w.From + length

		var asked []fairshare.Demand
		recorded := map[string]fairshare.GPUMillis{} // of accounts that were in the tree meanwhile
		for _, c := range drawCharges(t, b) {
			from := rapid.Int64Range(0, int64(length)-1).Draw(t, "begun")
			until := rapid.Int64Range(from+1, int64(length)).Draw(t, "seen")
			c.Period = fairshare.Period{From: w.From + fairshare.Instant(from), Until: w.From + fairshare.Instant(until)}
			asked = append(asked, fairshare.Demand{Period: c.Period, Account: c.Account, Amount: c.Amount})
			if c.Amount += 1 << 40; b.Usage(c.Period, []fairshare.Charge{c}).Direct(c.Account) > 0 {
				recorded[c.Account] += c.Amount - 1<<40
			}
		}
		deliver := func(charges []fairshare.Charge) []fairshare.Delivery {
			return fairshare.Deliver(fairshare.DeliveryInput{
				Budget: b, Window: w, Bucket: time.Duration(length) * time.Millisecond, Charges: charges, Demand: asked,
			})
		}
		var all fairshare.GPUMillis
		for _, amount := range recorded {
			all += amount
		}
		require.Equal(t, all, deliver(nil)[0].Demand, "root's is the sum of all")

		charges := drawCharges(t, b)
		used := b.Usage(w, charges)
		all = max(recorded[fairshare.RootAccount], used.Direct(fairshare.RootAccount))
		for _, a := range b.Accounts {
			all += max(recorded[a.Name], used.Direct(a.Name))
		}
		deliveries := deliver(charges)
		require.Equal(t, all, deliveries[0].Demand, "or of what was charged")
		for _, d := range deliveries {
			require.GreaterOrEqual(t, d.Demand, d.Delivered, d.Account)
			require.GreaterOrEqual(t, d.Owed, min(d.Entitled, d.Delivered), d.Account)
		}
	})
}

// A window without end takes no longer than a long one.
func TestDeliverBoundsItsBuckets(t *testing.T) {
	w := fairshare.Period{From: fairshare.Always, Until: fairshare.Never}
	got := fairshare.Deliver(fairshare.DeliveryInput{
		Budget: budget(1), Window: w, Bucket: time.Millisecond,
		Charges: []fairshare.Charge{charge("root", "u", hours(0, 1), 1)},
	})
	require.Equal(t, fairshare.GPUHour, got[0].Delivered)
}

func TestDeliverAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawBudget(t)
		charges, unallocated := drawCharges(t, b), drawCharges(t, b)
		var asked []fairshare.Demand
		for _, c := range drawCharges(t, b) {
			asked = append(asked, fairshare.Demand{Period: c.Period, Account: c.Account, Amount: c.Amount})
		}
		bucket := time.Duration(rapid.IntRange(1, 600).Draw(t, "minutes")) * time.Minute
		used, free := b.Usage(window, charges), b.Usage(window, unallocated)
		entitled := b.Entitlements(window)
		for _, d := range fairshare.Deliver(fairshare.DeliveryInput{
			Budget: b, Window: window, Bucket: bucket, Charges: charges, Unallocated: unallocated, Demand: asked,
		}) {
			require.Equal(t, used.Account(d.Account), d.Delivered)
			require.Equal(t, free.Account(d.Account), d.Unallocated)
			require.LessOrEqual(t, d.Owed, d.Demand)
			require.LessOrEqual(t, d.Owed, d.Entitled)
			require.LessOrEqual(t, d.Capped, d.Owed)
			require.LessOrEqual(t, d.Capped, d.Delivered)
			require.LessOrEqual(t, d.StrictPercent(), d.Percent())
			require.True(t, d.StrictPercent() >= 0 && d.Percent() <= 100)
			if !hasDebits(b) {
				require.InDelta(t, float64(entitled.Account(d.Account)), float64(d.Entitled), 20_000)
			}
		}
	})
}

// hasDebits tells whether anything is taken away: an account may then be
// overdrawn in some buckets, which count as 0 each.
func hasDebits(b *fairshare.Budget) bool {
	for _, a := range b.Accounts {
		for _, g := range a.Grants {
			if g.Amount < 0 {
				return true
			}
		}
	}
	return false
}
