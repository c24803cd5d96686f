// SPDX-License-Identifier: GPL-2.0-or-later

package explain

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
)

// A job that asks for no minimum runtime has nothing in the column FAIRSHARE. It
// is told apart from one of an account without a budget, from one that an operator
// has put somewhere, and from one that has no columns yet.
func TestUnallocatedJob(t *testing.T) {
	u, v, poor := Subject{"a", "u"}, Subject{"b", "v"}, Subject{"c", "p"}
	byHand := Pending{JobID: 1, Owner: u, Partition: "gpu", Tasks: 1, GPUs: 1}
	byHand.Factors.Priority = 1_000_000
	fresh := Pending{JobID: 1, Owner: u, Partition: "gpu", Tasks: 1, GPUs: 1}
	fresh.Factors.Priority = 1
	for _, tt := range []struct {
		name string
		mode string
		job  Pending
		all  []Pending
		want bool
	}{
		{"strict", budgets.Strict, pending(1, u, "gpu", 0, 700, 0, 5), nil, true},
		{"strict, allocated", budgets.Strict, pending(1, u, "gpu", 700, 0, 0, 5), nil, false},
		{"strict, without a budget", budgets.Strict, pending(1, poor, "gpu", 1, 0, 0, 5), nil, false},
		{"strict, without columns", budgets.Strict, fresh, nil, false},
		{"by hand", budgets.Strict, byHand, nil, false},
		{"additive", budgets.Additive, pending(1, u, "gpu", 0, 0, 0, 5), []Pending{pending(2, v, "gpu", 100, 0, 0, 5)}, true},
		{"additive, and that column has no weight", budgets.Additive, pending(1, u, "gpu", 0, 0, 0, 5), []Pending{pending(2, v, "gpu", 0, 0, 0, 5)}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rec := record(tt.mode, account("a", "root", 20, equal("u")), account("b", "root", 20, equal("v")), account("c", "root", 0, equal("p")))
			rec.Charged = []fairshare.Charge{charge("a", "u", period(0, 50), 30)}
			e, ok := Job(rec, []Pending{tt.job}, append(tt.all, tt.job))
			require.True(t, ok)
			require.Equal(t, tt.want, e.Unallocated)
			if tt.want {
				changeOf(t, e, Allocate)
			}
		})
	}
}

// All that is allocated is ahead of it, for that reason alone.
func TestAllocatedJobsAreAheadOfAnUnallocatedOne(t *testing.T) {
	rec := record(budgets.Strict, account("a", "root", 20, equal("u")), account("b", "root", 20, equal("v")))
	rec.Charged = []fairshare.Charge{charge("b", "v", period(0, 50), 30)}
	mine := pending(1, Subject{"a", "u"}, "gpu", 0, 700, 0, 5)
	same := pending(2, Subject{"a", "u"}, "gpu", 0, 900, 0, 5)
	behind := pending(3, Subject{"b", "v"}, "gpu", 5000, 0, 0, 5)
	e, ok := Job(rec, []Pending{mine}, []Pending{mine, same, behind})
	require.True(t, ok)
	require.Len(t, e.Ahead, 2)
	require.Equal(t, Why{Cause: Allocated}, e.Ahead[0].Why)
	require.Equal(t, "b", e.Ahead[0].Account)
	require.Equal(t, Why{Cause: QOS, Column: "QOS", Points: 200}, e.Ahead[1].Why)
}
