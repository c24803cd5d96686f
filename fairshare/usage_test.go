// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

func TestUsage(t *testing.T) {
	closed := account("closed", "", 10, equal("u"))
	closed.Parent = always("lab")
	closed.Parent[0].Until = hours(4, 4).From
	moved := account("moved", "", 10, equal("u"))
	moved.Parent = changing("lab", change[string]{4, "other"})
	late := account("late", "", 10)
	late.Parent = []fairshare.Step[string]{{Period: hours(6, 99), Value: "lab"}}
	b := budget(10, account("lab", "root", 50, equal("u")), account("other", "root", 50), account("team", "lab", 50, equal("u")),
		closed, moved, late, account("lost", "nobody", 1))

	tests := []struct {
		name       string
		charges    []fairshare.Charge
		want       map[string]float64
		unbudgeted []fairshare.Charge
	}{
		{
			name:    "rolls up, and counts for the user in his account only",
			charges: []fairshare.Charge{charge("team", "u", hours(1, 2), 3), charge("lab", "u", hours(1, 2), 1)},
			want:    map[string]float64{"root": 4, "lab": 4, "team": 3, "team/u": 3, "lab/u": 1, "other": 0},
		},
		{
			name:    "counts the part within the window",
			charges: []fairshare.Charge{charge("team", "u", hours(-3, 1), 8), charge("team", "u", hours(9, 13), 4), charge("team", "u", hours(10, 11), 4)},
			want:    map[string]float64{"root": 3, "team/u": 3},
		},
		{
			name:    "counts a user who is no member at the account",
			charges: []fairshare.Charge{charge("team", "guest", hours(1, 2), 3)},
			want:    map[string]float64{"root": 3, "team": 3, "team/guest": 0, "team/u": 0},
		},
		{
			name:    "follows the account",
			charges: []fairshare.Charge{charge("moved", "u", hours(0, 8), 16)},
			want:    map[string]float64{"root": 16, "lab": 8, "other": 8, "moved": 16, "moved/u": 16},
		},
		{
			name:    "of a closed account counts where it stood",
			charges: []fairshare.Charge{charge("closed", "u", hours(3, 9), 6)},
			want:    map[string]float64{"root": 6, "lab": 6, "closed": 6, "closed/u": 6},
		},
		{
			name: "of accounts that are unknown, not open yet or in no tree is told apart",
			charges: []fairshare.Charge{
				charge("nobody", "v", hours(1, 2), 1), charge("nobody", "u", hours(2, 3), 2), charge("nobody", "u", hours(9, 11), 2),
				charge("late", "u", hours(4, 8), 4), charge("lost", "u", hours(4, 5), 1), charge("", "", hours(0, 1), 5),
			},
			want: map[string]float64{"root": 2, "lab": 2, "late": 2},
			unbudgeted: []fairshare.Charge{
				charge("", "", hours(0, 10), 5), charge("late", "u", hours(0, 10), 2), charge("lost", "u", hours(0, 10), 1),
				charge("nobody", "u", hours(0, 10), 3), charge("nobody", "v", hours(0, 10), 1),
			},
		},
		{
			name:    "at one instant counts where that lies",
			charges: []fairshare.Charge{charge("team", "u", hours(0, 0), 1), charge("team", "u", hours(10, 10), 2), charge("team", "u", hours(4, 4), 4)},
			want:    map[string]float64{"root": 5, "team/u": 5},
		},
		{
			name:    "can be given back",
			charges: []fairshare.Charge{charge("team", "u", hours(0, 4), 8), charge("team", "u", hours(2, 4), -3)},
			want:    map[string]float64{"root": 5, "team/u": 5},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			u := b.Usage(hours(0, 10), test.charges)
			for name, want := range test.want {
				got := u.Account(name)
				if account, user, isUser := cutUser(name); isUser {
					got = u.User(account, user)
				}
				require.InDelta(t, want, got.Hours(), 1e-6, name)
			}
			require.Equal(t, test.unbudgeted, u.Unbudgeted)
		})
	}
}
