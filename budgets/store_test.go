// SPDX-License-Identifier: GPL-2.0-or-later

package budgets_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	cluster = "c1"
	percent = fairshare.Whole / 100
)

var (
	ctx    = context.Background()
	spring = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
)

// by is a note with what a test cares about.
func by(from time.Time) budgets.Note { return budgets.Note{Actor: "tester", From: from} }

func until(from, until time.Time) budgets.Note {
	n := by(from)
	n.Until = &until
	return n
}

func day(n int) time.Time { return spring.AddDate(0, 0, n) }

// ok is an entry that must have been written.
func ok(t testing.TB) func(e budgets.Entry, err error) budgets.Entry {
	t.Helper()
	return func(e budgets.Entry, err error) budgets.Entry {
		t.Helper()
		require.NoError(t, err)
		return e
	}
}

// newStore is a store in a fresh database with two accounts: physics (60%, users
// alice and bob) with optics (50%) under it, and chem (40%).
func newStore(t testing.TB) *budgets.Store {
	t.Helper()
	return fill(t, budgets.NewStore(pgtest.Pool(t)))
}

func fill(t testing.TB, s *budgets.Store) *budgets.Store {
	t.Helper()
	ok(t)(s.AddAccount(ctx, cluster, "physics", "root", 60*percent, by(day(0))))
	ok(t)(s.AddAccount(ctx, cluster, "chem", "root", 40*percent, by(day(0))))
	ok(t)(s.AddAccount(ctx, cluster, "optics", "physics", 50*percent, by(day(0))))
	ok(t)(s.AddUser(ctx, cluster, "physics", "alice", 10*percent, by(day(0))))
	ok(t)(s.AddUser(ctx, cluster, "physics", "bob", fairshare.EqualPart, by(day(0))))
	return s
}

// treeAt is who stands under whom, with what share, at an instant.
func treeAt(t testing.TB, s *budgets.Store, at time.Time) []budgets.Account {
	t.Helper()
	accounts, err := s.Accounts(ctx, cluster, at)
	require.NoError(t, err)
	return accounts
}

func usersAt(t testing.TB, s *budgets.Store, account string, at time.Time) []budgets.User {
	t.Helper()
	users, err := s.Users(ctx, cluster, account, at)
	require.NoError(t, err)
	return users
}

var (
	rootAccount = budgets.Account{Name: "root", Share: fairshare.Whole}
	firstTree   = []budgets.Account{
		{Name: "chem", Parent: "root", Share: 40 * percent},
		{Name: "optics", Parent: "physics", Share: 50 * percent},
		{Name: "physics", Parent: "root", Share: 60 * percent},
		rootAccount,
	}
)

func TestEntryIsReturnedAsStored(t *testing.T) {
	s := budgets.NewStore(pgtest.Pool(t))
	before := time.Now()
	from := day(0).Add(1234567 * time.Nanosecond)
	end := day(5).In(time.FixedZone("", 7200))
	e := ok(t)(s.AddAccount(ctx, cluster, "Physics", "ROOT", 60*percent,
		budgets.Note{Actor: "ann", Why: "a new programme", Key: "k1", From: from, Until: &end}))

	require.WithinRange(t, e.RecordedAt, before.Add(-time.Second), time.Now().Add(time.Second))
	share, utc := 60*percent, day(5)
	require.Equal(t, budgets.Entry{
		Cluster: cluster, Seq: 1, RecordedAt: e.RecordedAt, Kind: budgets.AccountAdd,
		Actor: "ann", Why: "a new programme", Key: "k1", Role: "postgres",
		From: day(0).Add(time.Millisecond), Until: &utc,
		Account: "physics", Parent: "root", Share: &share,
	}, e)
	entries, err := s.Ledger(ctx, budgets.Filter{})
	require.NoError(t, err)
	require.Equal(t, []budgets.Entry{e}, entries)
}

func TestEntryWithoutADateHoldsFromNow(t *testing.T) {
	s := budgets.NewStore(pgtest.Pool(t))
	e := ok(t)(s.AddAccount(ctx, cluster, "x", "root", percent, by(time.Time{})))
	require.Equal(t, e.RecordedAt.Truncate(time.Millisecond), e.From)
	second := ok(t)(s.SetShare(ctx, cluster, "x", 2*percent, by(e.From)))
	require.Equal(t, 2*percent, treeAt(t, s, second.From)[1].Share, "the one written last wins a tie")
}

// The example of docs/ledger.md.
func TestWhatHoldsAtAnInstant(t *testing.T) {
	s := newStore(t)
	ok(t)(s.SetShare(ctx, cluster, "chem", 10*percent, until(day(9), day(19))))
	ok(t)(s.SetShare(ctx, cluster, "chem", 20*percent, until(day(11), day(13))))
	ok(t)(s.SetShare(ctx, cluster, "chem", 30*percent, by(day(15))))
	ok(t)(s.SetShare(ctx, cluster, "chem", 35*percent, by(day(4))))
	for march, want := range map[int]fairshare.Share{
		1: 40, 4: 40, 5: 35, 9: 35, 10: 10, 11: 10, 12: 20, 13: 20, 14: 10, 15: 10, 16: 30, 19: 30, 20: 30, 31: 30,
	} {
		require.Equal(t, want*percent, treeAt(t, s, day(march-1))[0].Share, "%d March", march)
	}
}

func TestMovingAndClosingDoNotChangeThePast(t *testing.T) {
	s := newStore(t)
	firstUsers := []budgets.User{{"physics", "alice", 10 * percent}, {"physics", "bob", fairshare.EqualPart}}
	ok(t)(s.MoveAccount(ctx, cluster, "optics", "chem", budgets.KeepShare, by(day(10))))
	ok(t)(s.CloseAccount(ctx, cluster, "physics", by(day(20))))
	ok(t)(s.AddAccount(ctx, cluster, "physics", "root", 5*percent, by(day(30))))

	require.Equal(t, firstTree, treeAt(t, s, day(0)))
	require.Equal(t, firstTree, treeAt(t, s, day(10).Add(-time.Millisecond)))
	require.Equal(t, firstUsers, usersAt(t, s, "", day(19)))

	moved := []budgets.Account{
		{Name: "chem", Parent: "root", Share: 40 * percent},
		{Name: "optics", Parent: "chem", Share: 50 * percent},
		{Name: "physics", Parent: "root", Share: 60 * percent},
		rootAccount,
	}
	require.Equal(t, moved, treeAt(t, s, day(10)))
	closed := []budgets.Account{moved[0], moved[1], rootAccount}
	require.Equal(t, closed, treeAt(t, s, day(20)))
	require.Empty(t, usersAt(t, s, "", day(20)), "members go with their account")
	reopened := []budgets.Account{moved[0], moved[1], {Name: "physics", Parent: "root", Share: 5 * percent}, rootAccount}
	require.Equal(t, reopened, treeAt(t, s, day(30)))
	require.Empty(t, usersAt(t, s, "physics", day(30)), "and do not come back with it")
}

// What still runs in an account that was closed counts where it stood last.
func TestLoadKeepsWhereAClosedAccountStood(t *testing.T) {
	s := newStore(t)
	ok(t)(s.CloseAccount(ctx, cluster, "chem", by(day(1))))
	b, err := s.Load(ctx, cluster, fairshare.Period{From: fairshare.At(day(5)), Until: fairshare.At(day(6))})
	require.NoError(t, err)
	require.Equal(t, fairshare.Account{
		Name: "chem",
		Parent: []fairshare.Step[string]{{
			Period: fairshare.Period{From: fairshare.At(day(0)), Until: fairshare.At(day(1))}, Value: "root",
		}},
	}, b.Accounts[0])
}

func TestLoadOfAnEmptyLedgerIsRoot(t *testing.T) {
	s := budgets.NewStore(pgtest.Pool(t))
	b, err := s.Load(ctx, cluster, fairshare.Lookback(fairshare.At(day(0)), time.Hour))
	require.NoError(t, err)
	require.Equal(t, &fairshare.Budget{Accounts: []fairshare.Account{{Name: "root"}}}, b)
	version, err := s.Version(ctx, cluster)
	require.NoError(t, err)
	require.Zero(t, version)
}

func TestBackdatedEntryChangesThePastOnly(t *testing.T) {
	s := newStore(t)
	ok(t)(s.SetShare(ctx, cluster, "chem", 20*percent, by(day(10))))
	ok(t)(s.SetShare(ctx, cluster, "chem", 30*percent, by(day(5))))
	require.Equal(t, 40*percent, treeAt(t, s, day(4))[0].Share)
	require.Equal(t, 30*percent, treeAt(t, s, day(9))[0].Share)
	require.Equal(t, 20*percent, treeAt(t, s, day(10))[0].Share)
}

func TestClustersDoNotMix(t *testing.T) {
	s := newStore(t)
	ok(t)(s.AddAccount(ctx, "c2", "physics", "root", 100*percent, by(day(3))))
	ok(t)(s.AddUser(ctx, "c2", "physics", "carol", 100*percent, by(day(3))))
	ok(t)(s.Deposit(ctx, "c2", "physics", fairshare.GPUHour, until(day(3), day(4))))
	ok(t)(s.SetPolicy(ctx, "c2", budgets.Mode, budgets.Additive, by(day(3))))

	require.Equal(t, firstTree, treeAt(t, s, day(5)))
	require.Len(t, usersAt(t, s, "physics", day(5)), 2)
	accounts, err := s.Accounts(ctx, "c2", day(5))
	require.NoError(t, err)
	require.Equal(t, []budgets.Account{{Name: "physics", Parent: "root", Share: fairshare.Whole}, rootAccount}, accounts)
	policy, err := s.Policy(ctx, cluster, day(5))
	require.NoError(t, err)
	require.Equal(t, budgets.DefaultPolicy, policy)
	_, err = s.AddAccount(ctx, "c2", "x", "optics", 0, by(day(5)))
	require.ErrorAs(t, err, new(*budgets.UnknownAccountError), "optics is the other cluster's")
}

func TestGrantsAreLoadedOnBothSides(t *testing.T) {
	s := newStore(t)
	ok(t)(s.Deposit(ctx, cluster, "chem", 100*fairshare.GPUHour, until(day(0), day(30))))
	ok(t)(s.Transfer(ctx, cluster, "chem", "optics", 10*fairshare.GPUHour, until(day(10), day(11))))
	ok(t)(s.Deposit(ctx, cluster, "chem", fairshare.GPUHour, until(day(1), day(2))))
	b, err := s.Load(ctx, cluster, fairshare.Period{From: fairshare.At(day(5)), Until: fairshare.At(day(12))})
	require.NoError(t, err)
	period := func(from, until int) fairshare.Period {
		return fairshare.Period{From: fairshare.At(day(from)), Until: fairshare.At(day(until))}
	}
	require.Equal(t, []fairshare.Grant{
		{Period: period(0, 30), Amount: 100 * fairshare.GPUHour},
		{Period: period(10, 11), Amount: -10 * fairshare.GPUHour},
	}, b.Accounts[0].Grants)
	require.Equal(t, []fairshare.Grant{{Period: period(10, 11), Amount: 10 * fairshare.GPUHour}}, b.Accounts[1].Grants)
}

// Two shares can be swapped in one transaction, whichever is written first.
func TestSharesAreSwappedInOneTransaction(t *testing.T) {
	s := newStore(t)
	swap := func(first, second string, shares map[string]fairshare.Share) {
		require.NoError(t, s.InTx(ctx, func(s *budgets.Store) error {
			ok(t)(s.SetShare(ctx, cluster, first, shares[first], by(day(1))))
			ok(t)(s.SetShare(ctx, cluster, second, shares[second], by(day(1))))
			return nil
		}))
	}
	swap("chem", "physics", map[string]fairshare.Share{"chem": 60 * percent, "physics": 40 * percent})
	swap("chem", "physics", map[string]fairshare.Share{"chem": 10 * percent, "physics": 90 * percent})
	require.Equal(t, 10*percent, treeAt(t, s, day(1))[0].Share)
	require.Equal(t, 90*percent, treeAt(t, s, day(1))[2].Share)
}

// Accounts can change places in one transaction although neither step alone
// makes a tree.
func TestParentAndChildChangePlacesInOneTransaction(t *testing.T) {
	s := newStore(t)
	require.NoError(t, s.InTx(ctx, func(s *budgets.Store) error {
		ok(t)(s.MoveAccount(ctx, cluster, "physics", "optics", 50*percent, by(day(1))))
		ok(t)(s.MoveAccount(ctx, cluster, "optics", "root", 60*percent, by(day(1))))
		return nil
	}))
	require.Equal(t, "optics", treeAt(t, s, day(1))[2].Parent)
	require.Equal(t, "root", treeAt(t, s, day(1))[1].Parent)
}

func TestRefusedTransactionLeavesNothing(t *testing.T) {
	s := newStore(t)
	err := s.InTx(ctx, func(s *budgets.Store) error {
		ok(t)(s.SetUserShare(ctx, cluster, "physics", "bob", percent, by(day(1))))
		ok(t)(s.SetShare(ctx, cluster, "chem", 50*percent, by(day(1))))
		return nil
	})
	var over *budgets.ShareError
	require.ErrorAs(t, err, &over)
	require.Equal(t, fairshare.EqualPart, usersAt(t, s, "physics", day(2))[1].Share)
	require.Equal(t, firstTree, treeAt(t, s, day(2)))
}

func TestCheckFindsWhatCommitWould(t *testing.T) {
	s := newStore(t)
	err := s.InTx(ctx, func(s *budgets.Store) error {
		ok(t)(s.SetShare(ctx, cluster, "chem", 40*percent, by(day(1))))
		require.NoError(t, s.Check(ctx))
		ok(t)(s.SetShare(ctx, cluster, "chem", 50*percent, by(day(1))))
		return s.Check(ctx)
	})
	require.ErrorAs(t, err, new(*budgets.ShareError))
}

// A refused write within a transaction leaves it usable, and its error knows
// the nearest name.
func TestTransactionGoesOnAfterARefusedWrite(t *testing.T) {
	s := newStore(t)
	require.NoError(t, s.InTx(ctx, func(s *budgets.Store) error {
		_, err := s.SetShare(ctx, cluster, "phsyics", percent, by(day(1)))
		var unknown *budgets.UnknownAccountError
		require.ErrorAs(t, err, &unknown)
		require.Equal(t, "physics", unknown.Nearest)
		ok(t)(s.SetShare(ctx, cluster, "physics", 50*percent, by(day(1))))
		return nil
	}))
	require.Equal(t, 50*percent, treeAt(t, s, day(1))[2].Share)
}

func TestRepeatedKey(t *testing.T) {
	s := newStore(t)
	n := budgets.Note{Actor: "ann", Why: "first", Key: "k", From: day(1)}
	first := ok(t)(s.SetShare(ctx, cluster, "chem", 30*percent, n))
	require.False(t, first.Repeated)

	again := n
	again.Actor, again.Why, again.From = "ben", "again", time.Time{}
	second := ok(t)(s.SetShare(ctx, cluster, "Chem", 30*percent, again))
	require.True(t, second.Repeated)
	second.Repeated = false
	require.Equal(t, first, second, "who repeats it, and when, doesn't matter")

	require.NoError(t, s.InTx(ctx, func(s *budgets.Store) error {
		e, err := s.SetShare(ctx, cluster, "chem", 30*percent, n)
		require.True(t, e.Repeated)
		return err
	}))
	for name, change := range map[string]func(budgets.Note) error{
		"share":   func(n budgets.Note) error { _, err := s.SetShare(ctx, cluster, "chem", 31*percent, n); return err },
		"account": func(n budgets.Note) error { _, err := s.SetShare(ctx, cluster, "optics", 30*percent, n); return err },
		"kind":    func(n budgets.Note) error { _, err := s.CloseAccount(ctx, cluster, "chem", n); return err },
		"from": func(n budgets.Note) error {
			n.From = day(2)
			_, err := s.SetShare(ctx, cluster, "chem", 30*percent, n)
			return err
		},
		"until": func(n budgets.Note) error {
			_, err := s.SetShare(ctx, cluster, "chem", 30*percent, budgets.Note{Actor: "a", Key: "k", From: n.From, Until: new(day(9))})
			return err
		},
	} {
		var key *budgets.KeyError
		require.ErrorAs(t, change(n), &key, name)
		require.Equal(t, &budgets.KeyError{Key: "k", Seq: first.Seq}, key)
	}
	ok(t)(s.AddAccount(ctx, "c2", "x", "root", 0, n))
	version, err := s.Version(ctx, cluster)
	require.NoError(t, err)
	require.Equal(t, first.Seq, version)
}

func TestLedgerFilter(t *testing.T) {
	s := newStore(t)
	ok(t)(s.MoveAccount(ctx, cluster, "optics", "chem", budgets.KeepShare, budgets.Note{Actor: "ann", From: day(1)}))
	ok(t)(s.Transfer(ctx, cluster, "physics", "chem", fairshare.GPUHour, until(day(1), day(2))))
	ok(t)(s.AddAccount(ctx, "c2", "chem", "root", 0, by(day(0))))
	all, err := s.Ledger(ctx, budgets.Filter{Cluster: cluster})
	require.NoError(t, err)
	require.Len(t, all, 7)
	for name, test := range map[string]struct {
		filter budgets.Filter
		want   []int64
	}{
		"account":       {budgets.Filter{Account: "Chem"}, []int64{2, 6, 7}},
		"user":          {budgets.Filter{User: "bob"}, []int64{5}},
		"actor":         {budgets.Filter{Actor: "ann"}, []int64{6}},
		"kinds":         {budgets.Filter{Kinds: []budgets.Kind{budgets.UserAdd, budgets.Transfer}}, []int64{4, 5, 7}},
		"since":         {budgets.Filter{Since: all[4].RecordedAt}, []int64{5, 6, 7}},
		"until":         {budgets.Filter{Until: all[1].RecordedAt}, []int64{1}},
		"after":         {budgets.Filter{After: 5}, []int64{6, 7}},
		"the last":      {budgets.Filter{Limit: 2}, []int64{6, 7}},
		"several":       {budgets.Filter{Account: "physics", Kinds: []budgets.Kind{budgets.AccountAdd}, Limit: 1}, []int64{3}},
		"nothing":       {budgets.Filter{User: "nobody"}, nil},
		"no such actor": {budgets.Filter{Actor: "ann' OR true --"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			test.filter.Cluster = cluster
			entries, err := s.Ledger(ctx, test.filter)
			require.NoError(t, err)
			var got []int64
			for _, e := range entries {
				got = append(got, e.Seq)
			}
			require.Equal(t, test.want, got)
		})
	}
	both, err := s.Ledger(ctx, budgets.Filter{Account: "chem", Kinds: []budgets.Kind{budgets.AccountAdd, budgets.AccountMove}})
	require.NoError(t, err)
	require.Equal(t, []string{"c1", "c1", "c2"}, []string{both[0].Cluster, both[1].Cluster, both[2].Cluster})
}

func TestShareHistory(t *testing.T) {
	s := newStore(t)
	ok(t)(s.SetShare(ctx, cluster, "physics", 50*percent, by(day(4))))
	ok(t)(s.SetUserShare(ctx, cluster, "physics", "bob", percent, by(day(2))))
	ok(t)(s.MoveAccount(ctx, cluster, "physics", "root", budgets.KeepShare, by(day(5))))
	entries, err := s.ShareHistory(ctx, cluster, "Physics")
	require.NoError(t, err)
	var got []budgets.Kind
	for _, e := range entries {
		got = append(got, e.Kind)
	}
	require.Equal(t, []budgets.Kind{budgets.AccountAdd, budgets.UserAdd, budgets.UserAdd, budgets.ShareSet, budgets.UserShareSet}, got)
}

func TestNewEntriesAreNotified(t *testing.T) {
	dsn := pgtest.DB(t)
	listener, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	defer listener.Close(ctx)
	_, err = listener.Exec(ctx, "LISTEN "+budgets.Channel)
	require.NoError(t, err)
	writer, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	defer writer.Close(ctx)

	ok(t)(budgets.NewStore(writer).AddAccount(ctx, cluster, "x", "root", 0, by(day(0))))
	wait, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	n, err := listener.WaitForNotification(wait)
	require.NoError(t, err)
	require.Equal(t, cluster, n.Payload)
}
