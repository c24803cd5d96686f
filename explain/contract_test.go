// SPDX-License-Identifier: GPL-2.0-or-later

package explain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/usage"
)

// nothingQueued is a queue and a record of preemptions that say nothing but nice 0.
type nothingQueued struct{}

func (nothingQueued) Preempted(uint32) int          { return 0 }
func (nothingQueued) Nice(uint32) (n int64, _ bool) { return 0, true }

// offered is what a job of due, which was charged nothing, is offered of what over
// runs.
func offered(runs ...usage.Run) Offer {
	rec := record(budgets.Strict, account("over", "root", 20, equal("bob")), account("due", "root", 60, equal("ann")))
	rec.Policy.Contract = fairshare.DefaultContract()
	rec.Charged = []fairshare.Charge{charge("over", "bob", period(0, 100), 500)}
	for i := range runs {
		r := &runs[i]
		r.User, r.StartedAt = "bob", rec.At.Add(-3*time.Hour)
		if r.Account == "" {
			r.Account = "over"
		}
	}
	rec.Open = runs
	return OfferTo(rec, fairshare.Request{Account: "due", GPUs: 4, Allocated: true, MinRuntime: time.Hour}, nothingQueued{})
}

func overs(job, het uint32, minRuntime time.Duration) usage.Run {
	return usage.Run{JobID: job, HetJobID: het, GPUs: 2, Allocated: minRuntime > 0, MinRuntime: &minRuntime}
}

func yielding(o *Offer) (jobs []uint32) {
	for _, y := range o.Yields {
		for _, r := range y.Runs {
			jobs = append(jobs, r.JobID)
		}
	}
	return jobs
}

// All components of a het job yield or none does, as the plugin has it.
func TestAHetJobYieldsAsOne(t *testing.T) {
	o := offered(overs(11, 10, 2*time.Hour), overs(10, 10, time.Hour), overs(20, 0, time.Hour))
	require.Equal(t, []uint32{11, 10, 20}, yielding(&o))
	require.Len(t, o.Yields, 2)
	require.EqualValues(t, 6, o.GPUs)
	require.EqualValues(t, 10, o.Yields[0].Name().JobID)

	o = offered(overs(10, 10, time.Hour), overs(11, 10, 4*time.Hour), overs(20, 0, 5*time.Hour))
	require.Empty(t, o.Yields, "its sibling protects the first component")
	require.Equal(t, 2, o.Protected)
	require.EqualValues(t, 10, o.Next.Name().JobID)
	require.Equal(t, o.Next.Runs[0].StartedAt.Add(4*time.Hour), o.Next.ProtectedUntil)

	o = offered(overs(10, 10, 0), overs(11, 10, 4*time.Hour))
	require.Empty(t, o.Yields, "it protects an unallocated component as well")
	require.Equal(t, 1, o.Protected)

	o = offered(overs(10, 10, 0), overs(11, 10, time.Hour))
	require.Equal(t, []fairshare.Rule{fairshare.R3}, []fairshare.Rule{o.Yields[0].Rule}, "an allocated component is what counts")

	unknown := overs(11, 10, time.Hour)
	unknown.MinRuntime = nil
	o = offered(overs(10, 10, time.Hour), unknown)
	require.Empty(t, o.Yields)
	require.Equal(t, 1, o.Unknown)

	mine := overs(11, 10, time.Hour)
	mine.Account = "due"
	o = offered(overs(10, 10, time.Hour), mine)
	require.Empty(t, o.Yields, "R4 keeps the component of the request's own account")
	require.Equal(t, 1, o.Same)
}

// What a resize has left no protection is not protected for ever.
func TestAJobResizedAfterItsMinimumRuntimeYields(t *testing.T) {
	resized := overs(1, 0, 0)
	resized.Allocated = true
	o := offered(resized)
	require.Equal(t, []uint32{1}, yielding(&o))
	require.Equal(t, fairshare.R3, o.Yields[0].Rule)
}

func TestPartsOfGPUsAndUnknownTermsAreNotOffered(t *testing.T) {
	parts, unknown := overs(1, 0, time.Hour), overs(2, 0, 0)
	parts.GPUs, parts.Parts, unknown.MinRuntime = 0, 250_000, nil
	o := offered(parts, unknown)
	require.Empty(t, o.Yields)
	require.Equal(t, 1, o.Unknown)
	require.Zero(t, o.Protected+o.Ahead+o.Spared+o.Same)
}
