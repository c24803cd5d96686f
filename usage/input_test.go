// SPDX-License-Identifier: GPL-2.0-or-later

package usage_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

func TestInput(t *testing.T) {
	now := time.Date(2026, 10, 12, 0, 0, 0, 0, time.UTC)
	window := fairshare.Lookback(fairshare.At(now), 100*time.Hour)
	ended := make([]fairshare.Charge, 1, 8)
	ended[0] = fairshare.Charge{Period: window, Account: "a", User: "u", Amount: 5}
	over := now.Add(-time.Minute)
	in := usage.Input(&fairshare.Budget{}, window, ended, []usage.Run{
		{Account: "a", User: "u", GPUs: 2, Allocated: true, StartedAt: now.Add(-time.Hour)},
		{Account: "a", User: "v", GPUs: 2, StartedAt: now.Add(-time.Hour)},
		{Account: "b", User: "u", GPUs: 3, Allocated: true, StartedAt: now},
		{Account: "b", User: "u", GPUs: 0, Allocated: true, StartedAt: now.Add(-time.Hour)},
		{Account: "b", User: "u", GPUs: 1, Allocated: true, StartedAt: now.Add(-2 * time.Minute), EndedAt: &over},
	}, now)

	charge := func(account string, from, until time.Time, amount fairshare.GPUMillis) fairshare.Charge {
		return fairshare.Charge{Period: fairshare.Period{From: fairshare.At(from), Until: fairshare.At(until)}, Account: account, User: "u", Amount: amount}
	}
	require.Equal(t, []fairshare.Charge{
		ended[0],
		charge("a", now.Add(-time.Hour), now, 2*fairshare.GPUHour),
		charge("b", now.Add(-2*time.Minute), over, 60_000),
	}, in.Charges)
	require.Equal(t, []fairshare.Charge{ // a thousandth of 100 hours: six minutes
		charge("a", now.Add(-time.Hour), now, 2*360_000),
		charge("b", now, now, 3*360_000),
	}, in.Ahead)
	require.Equal(t, []fairshare.Charge{ended[0], {}}, ended[:2], "the caller's memory is not written to")
}
