// SPDX-License-Identifier: GPL-2.0-or-later

package usage_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/usage"
)

// Why runs are not charged adds up to what they used, in any window and while they
// run; those of which it isn't known are left out.
func TestUnallocatedSums(t *testing.T) {
	s := usage.NewStore(pgtest.Pool(t))
	job := uint32(0)
	add := func(user string, allocated bool, minRuntime *time.Duration, from, until time.Duration, change ...func(*usage.Run)) {
		job++
		r := usage.Run{
			Cluster: "c", JobID: job, ArrayTaskID: usage.NoTask, Account: "a", User: user, GPUs: 3, Allocated: allocated, MinRuntime: minRuntime,
			StartedAt: at(from), EndedAt: new(at(until)), EndState: "COMPLETED", SeenAt: at(until),
		}
		if until == 0 {
			r.EndedAt, r.EndState, r.SeenAt = nil, "", at(from)
		}
		for _, c := range change {
			c(&r)
		}
		require.NoError(t, s.WriteRuns(ctx, []usage.Run{r}))
	}
	none, hour := new(time.Duration(0)), new(time.Hour)
	const h = time.Hour
	suspended := func(r *usage.Run) { r.Suspended = 1234567 * time.Millisecond }
	add("u", false, none, -5*h, 5*h)
	add("u", false, none, 6*h, 0, suspended)
	add("u", false, hour, 7*h, 0)
	add("u", true, hour, 0, 5*h)
	add("v", false, hour, 1*h, 30*h, suspended)
	add("v", false, none, 20*h, 21*h) // beyond
	add("w", false, nil, 1*h, 2*h)    // not known
	add("x", true, none, 1*h, 2*h)
	for _, w := range []fairshare.Period{
		{From: fairshare.At(at(0)), Until: fairshare.At(at(10 * h))},
		{From: fairshare.At(at(3*h + 1234567*time.Millisecond)), Until: fairshare.At(at(8*h + 1*time.Millisecond))},
		{From: fairshare.At(at(0)), Until: fairshare.At(at(90 * h))},
	} {
		sums, err := s.UnallocatedSums(ctx, "c", w, w.Until.Time())
		require.NoError(t, err)
		got := map[string]fairshare.GPUMillis{}
		for _, sum := range sums {
			got[sum.User] = sum.NoMinRuntime + sum.NoBudget
		}
		totals, err := s.Totals(ctx, "c", w)
		require.NoError(t, err)
		want := map[string]fairshare.GPUMillis{}
		for _, total := range totals {
			if !total.Allocated && total.User != "w" {
				want[total.User] = total.Amount
			}
		}
		require.Equal(t, want, got)
	}
	// Open runs count up to where they were seen last.
	sums, err := s.UnallocatedSums(ctx, "c", fairshare.Period{From: fairshare.At(at(0)), Until: fairshare.At(at(10 * h))}, at(8*h))
	require.NoError(t, err)
	require.Equal(t, usage.UnallocatedSum{Account: "a", User: "u", NoMinRuntime: 3*(5+2)*fairshare.GPUHour - 3*1234567, NoBudget: 3 * fairshare.GPUHour}, sums[0])
}

func TestWhyARunIsUnallocated(t *testing.T) {
	for want, r := range map[usage.Unallocated]usage.Run{
		usage.NotUnallocated: {Allocated: true, MinRuntime: new(time.Hour)},
		usage.NoMinRuntime:   {MinRuntime: new(time.Duration(0))},
		usage.NoBudget:       {MinRuntime: new(time.Second)},
		usage.WhyUnknown:     {},
	} {
		require.Equal(t, want, r.Unallocated())
	}
}
