// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"slices"
	"time"

	"gpubudget/fairshare"
)

// Input is what everybody's standing is worked out from, the same for whoever
// schedules, reports or explains: charges of ended runs, and open runs as far as
// they are charged, up to until, less what the budget refunds. w is the lookback
// window.
func Input(b *fairshare.Budget, w fairshare.Period, ended []fairshare.Charge, open []Run, until time.Time) fairshare.Input {
	in := fairshare.Input{Budget: b, Window: w, Charges: append(slices.Clip(ended), b.Refunds()...)}
	for i := range open {
		AddOpen(&in, &open[i], until)
	}
	return in
}

// AddOpen adds an open run to an input: its charge up to until and, for the
// level fair share only, what it is charged ahead. Runs that are not charged to
// a budget add nothing.
func AddOpen(in *fairshare.Input, r *Run, until time.Time) {
	if !r.Allocated {
		return
	}
	last := fairshare.Charge{Period: r.Period(until), Account: r.Account, User: r.User}
	r.EachCharge(until, func(p fairshare.Period, amount fairshare.GPUMillis) {
		if last.Period = p; amount != 0 {
			in.Charges = append(in.Charges, fairshare.Charge{Period: p, Account: r.Account, User: r.User, Amount: amount})
		}
	})
	if last.Amount = r.Ahead(until, time.Duration(in.Window.Millis())*time.Millisecond); last.Amount != 0 {
		in.Ahead = append(in.Ahead, last)
	}
}

// Ahead is what the run is charged in advance at an instant, while it is open.
func (r Run) Ahead(at time.Time, lookback time.Duration) fairshare.GPUMillis {
	if !r.Open() {
		return 0
	}
	return ChargeAhead(r.RateAt(fairshare.At(at)), lookback)
}
