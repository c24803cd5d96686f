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
	c, ahead := r.ChargeOpen(until, time.Duration(in.Window.Millis())*time.Millisecond)
	if c.Amount != 0 {
		in.Charges = append(in.Charges, c)
	}
	if ahead != 0 {
		c.Amount = ahead
		in.Ahead = append(in.Ahead, c)
	}
}

// ChargeOpen is what an allocated run is charged up to until and, while it is
// open, charged ahead.
func (r Run) ChargeOpen(until time.Time, lookback time.Duration) (c fairshare.Charge, ahead fairshare.GPUMillis) {
	if r.GPUs > 0 && r.Open() {
		ahead = ChargeAhead(r.GPUs, lookback)
	}
	return r.Charge(until), ahead
}
