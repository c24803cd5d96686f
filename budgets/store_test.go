// SPDX-License-Identifier: GPL-2.0-or-later

package budgets_test

import (
	"context"
	"testing"
	"time"

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
	return func(e budgets.Entry, err error) budgets.Entry {
		t.Helper()
		require.NoError(t, err)
		return e
	}
}

func TestSmoke(t *testing.T) {
	s := budgets.NewStore(pgtest.Pool(t))
	ok(t)(s.AddAccount(ctx, cluster, "Physics", "root", 50*percent, by(day(0))))
	ok(t)(s.AddAccount(ctx, cluster, "chem", "root", 50*percent, by(day(0))))
	ok(t)(s.AddUser(ctx, cluster, "physics", "alice", fairshare.EqualPart, by(day(0))))
	_, err := s.SetShare(ctx, cluster, "chem", 60*percent, by(day(1)))
	var share *budgets.ShareError
	require.ErrorAs(t, err, &share)
	t.Log(err)
	require.NoError(t, s.InTx(ctx, func(s *budgets.Store) error {
		ok(t)(s.SetShare(ctx, cluster, "chem", 60*percent, by(day(1))))
		ok(t)(s.SetShare(ctx, cluster, "physics", 40*percent, by(day(1))))
		return nil
	}))
	b, err := s.Load(ctx, cluster, fairshare.Period{From: fairshare.At(day(0)), Until: fairshare.Never})
	require.NoError(t, err)
	t.Logf("%+v", b)
	_, err = s.AddAccount(ctx, cluster, "x", "phsics", 0, by(day(1)))
	t.Log(err)
	_, err = s.CloseAccount(ctx, cluster, "chem", by(day(3)))
	require.NoError(t, err)
	_, err = s.SetShare(ctx, cluster, "chem", 0, by(day(4)))
	t.Log(err)
	_, err = s.RemoveUser(ctx, cluster, "physics", "alcie", by(day(4)))
	t.Log(err)
	e := ok(t)(s.Deposit(ctx, cluster, "physics", fairshare.GPUHour, until(day(1), day(4))))
	t.Logf("%+v", e)
	users, err := s.Users(ctx, cluster, "", day(2))
	require.NoError(t, err)
	t.Log(users)
}
