// SPDX-License-Identifier: GPL-2.0-or-later

package budgets_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
)

// Every refusal is an error of its own type that names the thing and the
// remedy.
func TestErrors(t *testing.T) {
	s := newStore(t)
	ok(t)(s.AddAccount(ctx, cluster, "old", "root", 0, by(day(0))))
	ok(t)(s.CloseAccount(ctx, cluster, "old", by(day(2))))
	ok(t)(s.AddAccount(ctx, cluster, "later", "root", 0, by(day(50))))
	head, err := s.Version(ctx, cluster)
	require.NoError(t, err)

	type result struct {
		budgets.Entry
		error
	}
	of := func(e budgets.Entry, err error) result { return result{e, err} }
	for name, test := range map[string]struct {
		got  result
		want error
		text string
	}{
		"unknown account": {
			of(s.SetShare(ctx, cluster, "phsics", percent, by(day(1)))),
			&budgets.UnknownAccountError{Cluster: cluster, Name: "phsics", Nearest: "physics"},
			`unknown account "phsics" in cluster "c1": did you mean "physics"?`,
		},
		"unknown account, nothing near": {
			of(s.AddAccount(ctx, cluster, "lasers", "engineering", 0, by(day(1)))),
			&budgets.UnknownAccountError{Cluster: cluster, Name: "engineering"},
			"unknown account \"engineering\" in cluster \"c1\": open it first with `gpubudget account add`",
		},
		"unknown receiver": {
			of(s.Transfer(ctx, cluster, "chem", "optcs", 1, until(day(1), day(2)))),
			&budgets.UnknownAccountError{Cluster: cluster, Name: "optcs", Nearest: "optics"},
			`unknown account "optcs" in cluster "c1": did you mean "optics"?`,
		},
		"unknown cluster": {
			of(s.SetShare(ctx, "c11", "chem", percent, by(day(1)))),
			&budgets.UnknownClusterError{Name: "c11", Nearest: "c1", Known: []string{"c1"}},
			`unknown cluster "c11": did you mean "c1"?`,
		},
		"unknown user": {
			of(s.RemoveUser(ctx, cluster, "physics", "alcie", by(day(1)))),
			&budgets.UnknownUserError{Account: "physics", User: "alcie", At: day(1), Nearest: "alice"},
			`user "alcie" is no member of account "physics" at 2026-03-02T00:00:00Z: did you mean "alice"?`,
		},
		"user of another account": {
			of(s.SetUserShare(ctx, cluster, "chem", "alice", percent, by(day(1)))),
			&budgets.UnknownUserError{Account: "chem", User: "alice", At: day(1)},
			"user \"alice\" is no member of account \"chem\" at 2026-03-02T00:00:00Z: add the user first with `gpubudget user add`",
		},
		"closed": {
			of(s.SetShare(ctx, cluster, "old", percent, by(day(3)))),
			&budgets.ClosedAccountError{Account: "old", At: day(3), Since: new(day(2))},
			"account \"old\" is not open at 2026-03-04T00:00:00Z, it was closed on 2026-03-03T00:00:00Z: " +
				"choose another account or date, or open it with `gpubudget account add`",
		},
		"closed twice": {
			of(s.CloseAccount(ctx, cluster, "old", by(day(3)))),
			&budgets.ClosedAccountError{Account: "old", At: day(3), Since: new(day(2))},
			"it was closed on 2026-03-03T00:00:00Z",
		},
		"closed parent": {
			of(s.AddAccount(ctx, cluster, "x", "old", 0, by(day(3)))),
			&budgets.ClosedAccountError{Account: "old", At: day(3), Since: new(day(2))},
			`account "old" is not open at`,
		},
		"parent that closes later": {
			of(s.AddAccount(ctx, cluster, "x", "old", 0, by(day(1)))),
			&budgets.ClosedAccountError{Account: "old", At: day(2), Child: "x"},
			`account "x" can't stand under "old", which is not open at 2026-03-03T00:00:00Z`,
		},
		"not open yet": {
			of(s.Deposit(ctx, cluster, "later", 1, until(day(3), day(60)))),
			&budgets.ClosedAccountError{Account: "later", At: day(3), Opens: new(day(50))},
			`account "later" is not open at 2026-03-04T00:00:00Z and opens on 2026-04-20T00:00:00Z: choose a date from then on`,
		},
		"account twice": {
			of(s.AddAccount(ctx, cluster, "chem", "root", 0, by(day(1)))),
			&budgets.DuplicateError{Account: "chem", Since: new(day(0))},
			`account "chem" is open already, since 2026-03-01T00:00:00Z`,
		},
		"user twice": {
			of(s.AddUser(ctx, cluster, "physics", "alice", 0, by(day(1)))),
			&budgets.DuplicateError{Account: "physics", User: "alice"},
			`user "alice" is a member of account "physics" already`,
		},
		"share over 100%, accounts": {
			of(s.SetShare(ctx, cluster, "chem", 45*percent+1, by(day(1)))),
			&budgets.ShareError{
				Account: "chem", Parent: "root", At: day(1), Total: 105*percent + 1, Over: 5*percent + 1,
				Holders: []budgets.Holding{{Account: "physics", Share: 60 * percent}, {Account: "chem", Share: 45*percent + 1}},
			},
			`share over 100%: at 2026-03-02T00:00:00Z the children of account "root" would hold 105.0000001% of it, ` +
				`5.0000001% too much (physics 60%, chem 45.0000001%): lower one of them first`,
		},
		"share over 100%, account and users": {
			of(s.SetUserShare(ctx, cluster, "physics", "bob", 50*percent, by(day(1)))),
			&budgets.ShareError{
				Account: "physics", User: "bob", Parent: "physics", At: day(1), Total: 110 * percent, Over: 10 * percent,
				Holders: []budgets.Holding{
					{Account: "optics", Share: 50 * percent}, {User: "bob", Share: 50 * percent}, {User: "alice", Share: 10 * percent},
				},
			},
			`(optics 50%, user bob 50%, user alice 10%)`,
		},
		"share over 100% at a later date": {
			of(s.AddAccount(ctx, cluster, "x", "root", percent, by(day(-9)))),
			&budgets.ShareError{
				Account: "x", Parent: "root", At: day(0), Total: 101 * percent, Over: percent,
				Holders: []budgets.Holding{
					{Account: "physics", Share: 60 * percent}, {Account: "chem", Share: 40 * percent}, {Account: "x", Share: percent},
				},
			},
			`at 2026-03-01T00:00:00Z the children of account "root" would hold 101% of it, 1% too much`,
		},
		"share over 100% by moving": {
			of(s.MoveAccount(ctx, cluster, "chem", "physics", 41*percent, by(day(1)))),
			&budgets.ShareError{
				Account: "chem", Parent: "physics", At: day(1), Total: 101 * percent, Over: percent,
				Holders: []budgets.Holding{
					{Account: "optics", Share: 50 * percent}, {Account: "chem", Share: 41 * percent}, {User: "alice", Share: 10 * percent},
				},
			},
			`the children of account "physics"`,
		},
		"under itself": {
			of(s.MoveAccount(ctx, cluster, "chem", "CHEM", 0, by(day(1)))),
			&budgets.CycleError{Path: []string{"chem", "chem"}},
			`account "chem" would stand under itself (chem under chem): choose another parent`,
		},
		"under its child": {
			of(s.MoveAccount(ctx, cluster, "physics", "optics", 0, by(day(1)))),
			&budgets.CycleError{Path: []string{"physics", "optics", "physics"}, At: day(1)},
			`account "physics" would stand under itself (physics under optics under physics) at 2026-03-02T00:00:00Z`,
		},
		"closing above open accounts": {
			of(s.CloseAccount(ctx, cluster, "physics", by(day(1)))),
			&budgets.OpenChildrenError{Account: "physics", Child: "optics", At: day(1)},
			`account "physics" can't be closed: account "optics" is open under it at 2026-03-02T00:00:00Z: close or move that first`,
		},
		"moving root": {
			of(s.MoveAccount(ctx, cluster, "root", "chem", 0, by(day(1)))),
			&budgets.RootError{Kind: budgets.AccountMove}, `account_move is refused for account "root"`,
		},
		"closing root": {
			of(s.CloseAccount(ctx, cluster, "root", by(day(1)))),
			&budgets.RootError{Kind: budgets.AccountClose}, "root",
		},
		"opening root": {
			of(s.AddAccount(ctx, cluster, "root", "chem", 0, by(day(1)))),
			&budgets.RootError{Kind: budgets.AccountAdd}, "root",
		},
		"share of root": {
			of(s.SetShare(ctx, cluster, "root", percent, by(day(1)))),
			&budgets.RootError{Kind: budgets.ShareSet}, "root",
		},
		"deposit to root": {
			of(s.Deposit(ctx, cluster, "root", 1, until(day(1), day(2)))),
			&budgets.RootError{Kind: budgets.Deposit}, "root",
		},
		"transfer to root": {
			of(s.Transfer(ctx, cluster, "chem", "root", 1, until(day(1), day(2)))),
			&budgets.RootError{Kind: budgets.Transfer}, "root",
		},
		"transfer to oneself": {
			of(s.Transfer(ctx, cluster, "chem", "Chem", 1, until(day(1), day(2)))),
			&budgets.InvalidNameError{What: "account", Name: "chem", Reason: "a transfer needs two different accounts"},
			"two different accounts",
		},
		"no GPU time": {
			of(s.Deposit(ctx, cluster, "chem", 0, until(day(1), day(2)))),
			&budgets.InvalidAmountError{}, "no GPU time at all can't be given",
		},
		"negative GPU time": {
			of(s.Transfer(ctx, cluster, "chem", "physics", -1, until(day(1), day(2)))),
			&budgets.InvalidAmountError{Amount: -1}, "a negative amount of GPU time can't be given: to take some from an account, transfer it to another",
		},
		"too much GPU time": {
			of(s.Deposit(ctx, cluster, "chem", budgets.MaxAmount+fairshare.GPUHour, until(day(1), day(2)))),
			&budgets.InvalidAmountError{Amount: budgets.MaxAmount + fairshare.GPUHour},
			"1000000001 GPU-hours are too much: at most 1000000000 in one entry",
		},
		"grant without an end": {
			of(s.Deposit(ctx, cluster, "chem", 1, by(day(1)))),
			&budgets.PeriodError{From: day(1), Reason: "GPU time is given for a period: say until when"},
			"from 2026-03-02T00:00:00Z until ever: GPU time is given for a period: say until when",
		},
		"end before the beginning": {
			of(s.SetShare(ctx, cluster, "chem", percent, until(day(3), day(3)))),
			&budgets.PeriodError{From: day(3), Until: new(day(3)), Reason: "the end must come after the beginning"},
			"from 2026-03-04T00:00:00Z until 2026-03-04T00:00:00Z: the end must come after the beginning",
		},
		"end before now": {
			of(s.SetShare(ctx, cluster, "chem", percent, until(time.Time{}, day(-3000)))),
			&budgets.PeriodError{Until: new(day(-3000)), Reason: "the end must come after the beginning"},
			"from now until 2017-12-13T00:00:00Z: the end must come after the beginning",
		},
		"a date out of bounds": {
			of(s.SetShare(ctx, cluster, "chem", percent, by(time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC)))),
			&budgets.PeriodError{From: time.Date(1969, 12, 31, 0, 0, 0, 0, time.UTC), Reason: "the beginning lies outside the years 1970 to 9998"},
			"years 1970 to 9998",
		},
		"more than the whole": {
			of(s.SetShare(ctx, cluster, "chem", 101*percent, by(day(1)))),
			&budgets.InvalidShareError{Share: 101 * percent}, "a share of 101% can't be given",
		},
		"less than nothing": {
			of(s.SetUserShare(ctx, cluster, "physics", "bob", -2, by(day(1)))),
			&budgets.InvalidShareError{Share: -2}, "can't be given",
		},
		"an equal part for an account": {
			of(s.SetShare(ctx, cluster, "chem", fairshare.EqualPart, by(day(1)))),
			&budgets.InvalidShareError{Share: -1}, "can't be given",
		},
		"a name with a comma": {
			of(s.AddUser(ctx, cluster, "chem", "a,b", 0, by(day(1)))),
			&budgets.InvalidNameError{What: "user", Name: "a,b", Reason: `the character ',' can't be part of a name`},
			`"a,b" can't be the name of the user: the character ',' can't be part of a name`,
		},
		"no name": {
			of(s.AddAccount(ctx, cluster, "", "root", 0, by(day(1)))),
			&budgets.InvalidNameError{What: "account", Reason: "it is empty"}, "it is empty",
		},
		"a long name": {
			of(s.AddAccount(ctx, strings.Repeat("c", 129), "x", "root", 0, by(day(1)))),
			&budgets.InvalidNameError{What: "cluster", Name: strings.Repeat("c", 129), Reason: "it is longer than 128 characters"},
			"longer than 128 characters",
		},
		"nobody": {
			of(s.SetShare(ctx, cluster, "chem", percent, budgets.Note{})),
			&budgets.InvalidNoteError{Field: "actor", Reason: "it is empty: every entry says who decided it"},
			"the entry's actor: it is empty",
		},
		"a why that is no text": {
			of(s.SetShare(ctx, cluster, "chem", percent, budgets.Note{Actor: "a", Why: "\xff"})),
			&budgets.InvalidNoteError{Field: "why", Reason: "it is no valid UTF-8 text"}, "no valid UTF-8",
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, test.got.error)
			require.ErrorContains(t, test.got.error, test.text)
			require.Zero(t, test.got.Entry)
		})
	}
	after, err := s.Version(ctx, cluster)
	require.NoError(t, err)
	require.Equal(t, head, after, "what is refused leaves no entry")
	clusters, err := s.Clusters(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{cluster}, clusters, "nor a cluster")
}

func TestUsersOfNoAccount(t *testing.T) {
	s := newStore(t)
	_, err := s.Users(ctx, cluster, "chemm", day(1))
	require.Equal(t, &budgets.UnknownAccountError{Cluster: cluster, Name: "chemm", Nearest: "chem"}, err)
	_, err = s.Users(ctx, cluster, "chem", day(-1))
	require.Equal(t, &budgets.ClosedAccountError{Account: "chem", At: day(-1), Opens: new(day(0))}, err)
	users, err := s.Users(ctx, cluster, "chem", day(1))
	require.NoError(t, err)
	require.Empty(t, users)
}

func TestLongListsOfHoldersAreCut(t *testing.T) {
	e := &budgets.ShareError{Parent: "root", At: day(0), Total: 110 * percent, Over: 10 * percent}
	for i := range 11 {
		e.Holders = append(e.Holders, budgets.Holding{Account: child(i), Share: 10 * percent})
	}
	require.ErrorContains(t, e, "child07 10%, 3 more)")
}

// So much GPU time can't be granted that sums of it overflow.
func TestSumOfGrantsIsBounded(t *testing.T) {
	s := newStore(t)
	n := until(day(0), day(1))
	var err error
	granted := 0
	for ; err == nil && granted < 1000; granted++ {
		_, err = s.Deposit(ctx, cluster, "chem", budgets.MaxAmount, n)
	}
	require.Equal(t, &budgets.InvalidAmountError{Amount: budgets.MaxAmount, Total: true}, err)
	require.Equal(t, 278, granted)
}

func TestWithoutASchemaTheErrorSaysWhatToDo(t *testing.T) {
	conn, err := pgx.Connect(ctx, pgtest.EmptyDB(t))
	require.NoError(t, err)
	defer conn.Close(ctx)
	s := budgets.NewStore(conn)
	_, err = s.SetShare(ctx, cluster, "chem", percent, by(day(1)))
	require.ErrorContains(t, err, "gpubudget db migrate")
	_, err = s.Policy(ctx, cluster, day(1))
	require.ErrorContains(t, err, "gpubudget db migrate")
	_, err = s.Load(ctx, cluster, fairshare.Period{})
	require.ErrorContains(t, err, "gpubudget db migrate")
}
