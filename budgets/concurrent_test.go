// SPDX-License-Identifier: GPL-2.0-or-later

package budgets_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
)

const (
	writers          = 32
	writesPerWriter  = 4
	maxTries         = 200
	serializationErr = "40001"
	deadlockErr      = "40P01"
)

// Many writers at once, each on a connection of its own, all want more of one
// account than there is, from dates in the past and the future. Some get it;
// at no instant have they got more than all of it.
func TestWritersCannotGiveAwayMoreThanAll(t *testing.T) {
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			dsn := pgtest.DB(t)
			s := storeWithChildren(t, dsn)
			var group sync.WaitGroup
			outcomes := make([]outcome, writers)
			for i := range writers {
				group.Go(func() { outcomes[i] = raceFor(dsn, level, i) })
			}
			group.Wait()

			var all outcome
			for _, o := range outcomes {
				require.NoError(t, o.err)
				all.written += o.written
				all.refused += o.refused
			}
			t.Logf("%d written, %d refused", all.written, all.refused)
			require.Equal(t, writers*writesPerWriter, all.written+all.refused)
			require.GreaterOrEqual(t, all.written, 10)
			require.GreaterOrEqual(t, all.refused, 10)

			entries, err := s.Ledger(ctx, budgets.Filter{Cluster: cluster})
			require.NoError(t, err)
			requireGapless(t, entries)
			requireNeverOver(t, entries, "team")
		})
	}
}

// storeWithChildren is a ledger with an account that all writers want a part
// of: half of them as an account under it, half as a user with a share.
func storeWithChildren(t *testing.T, dsn string) *budgets.Store {
	t.Helper()
	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(ctx)) })
	s := budgets.NewStore(conn)
	require.NoError(t, s.InTx(ctx, func(s *budgets.Store) error {
		ok(t)(s.AddAccount(ctx, cluster, "team", "root", fairshare.Whole, by(day(0))))
		for i := range writers {
			if i%2 == 0 {
				ok(t)(s.AddAccount(ctx, cluster, child(i), "team", 0, by(day(0))))
			} else {
				ok(t)(s.AddUser(ctx, cluster, "team", child(i), 0, by(day(0))))
			}
		}
		return nil
	}))
	return s
}

func child(i int) string { return fmt.Sprintf("child%02d", i) }

type outcome struct {
	written, refused int
	err              error
}

// raceFor sets one child's share again and again.
func raceFor(dsn string, level pgx.TxIsoLevel, i int) (o outcome) {
	random := rand.New(rand.NewPCG(uint64(i), 7))
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return outcome{err: err}
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, fmt.Sprintf("SET default_transaction_isolation = '%s'", level)); err != nil {
		return outcome{err: err}
	}
	s := budgets.NewStore(conn)
	for range writesPerWriter {
		n := by(day(random.IntN(8)))
		if random.IntN(3) == 0 {
			n = until(n.From, n.From.AddDate(0, 0, 1+random.IntN(3)))
		}
		share := fairshare.Share(2+random.IntN(20)) * percent
		err := retried(func() error { return setShareOf(s, i, share, n) })
		var over *budgets.ShareError
		switch {
		case err == nil:
			o.written++
		case errors.As(err, &over):
			o.refused++
		default:
			o.err = err
			return o
		}
	}
	return o
}

// setShareOf writes alone or, for some children, in a transaction of several
// steps.
func setShareOf(s *budgets.Store, i int, share fairshare.Share, n budgets.Note) error {
	set := func(s *budgets.Store) (err error) {
		if i%2 == 0 {
			_, err = s.SetShare(ctx, cluster, child(i), share, n)
		} else {
			_, err = s.SetUserShare(ctx, cluster, "team", child(i), share, n)
		}
		return err
	}
	if i%3 != 0 {
		return set(s)
	}
	return s.InTx(ctx, func(s *budgets.Store) error {
		if _, err := s.SetPolicy(ctx, cluster, budgets.Mode, budgets.Strict, by(day(0))); err != nil {
			return err
		}
		return set(s)
	})
}

// retried calls f again for as long as PostgreSQL says that this helps.
func retried(f func() error) error {
	var err error
	for range maxTries {
		err = f()
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != serializationErr && pgErr.Code != deadlockErr {
			return err
		}
	}
	return fmt.Errorf("after %d tries: %w", maxTries, err)
}

func requireGapless(t *testing.T, entries []budgets.Entry) {
	t.Helper()
	for i, e := range entries {
		require.Equal(t, int64(i+1), e.Seq)
		if i > 0 {
			require.False(t, e.RecordedAt.Before(entries[i-1].RecordedAt), "recorded in the order of the numbers")
		}
	}
}

// requireNeverOver adds up what the children of an account hold at each instant
// at which it changes, by the plain model of model_test.go.
func requireNeverOver(t *testing.T, entries []budgets.Entry, account string) {
	t.Helper()
	m := &model{entries: entries}
	var greatest fairshare.Share
	for _, at := range m.points() {
		var sum fairshare.Share
		for i := range writers {
			if i%2 == 0 {
				sum += m.share(child(i), at)
			} else {
				sum += m.userShare(account, child(i), at)
			}
		}
		require.LessOrEqual(t, sum, fairshare.Whole, "at %v", at)
		greatest = max(greatest, sum)
	}
	require.Greater(t, greatest, 80*percent, "the writers came near the limit")
}

// Transactions that take from one child and give to another, in either order,
// keep the sum at exactly all of it whoever wins.
func TestSwappingSharesUnderConcurrency(t *testing.T) {
	pool := pgtest.Pool(t)
	s := budgets.NewStore(pool)
	ok(t)(s.AddAccount(ctx, cluster, "x", "root", 50*percent, by(day(0))))
	ok(t)(s.AddAccount(ctx, cluster, "y", "root", 50*percent, by(day(0))))

	var group sync.WaitGroup
	failures := make([]error, 8)
	for i := range failures {
		group.Go(func() {
			x := fairshare.Share(10*i+10) * percent
			failures[i] = s.InTx(ctx, func(s *budgets.Store) error {
				if _, err := s.SetShare(ctx, cluster, "x", x, by(day(1))); err != nil {
					return err
				}
				_, err := s.SetShare(ctx, cluster, "y", fairshare.Whole-x, by(day(1)))
				return err
			})
		})
	}
	group.Wait()
	for _, err := range failures {
		require.NoError(t, err)
	}
	accounts, err := s.Accounts(ctx, cluster, day(2))
	require.NoError(t, err)
	require.Equal(t, fairshare.Whole, accounts[1].Share+accounts[2].Share)
}

// The same key written by many at once is written once.
func TestOneEntryPerKeyUnderConcurrency(t *testing.T) {
	pool := pgtest.Pool(t)
	s := budgets.NewStore(pool)
	var group sync.WaitGroup
	entries := make([]budgets.Entry, 16)
	failures := make([]error, len(entries))
	for i := range entries {
		group.Go(func() {
			entries[i], failures[i] = s.AddAccount(ctx, cluster, "x", "root", percent, budgets.Note{Actor: "a", Key: "k"})
		})
	}
	group.Wait()
	first := 0
	for i, e := range entries {
		require.NoError(t, failures[i])
		require.Equal(t, int64(1), e.Seq)
		if !e.Repeated {
			first++
		}
	}
	require.Equal(t, 1, first)
}

// A write that is rolled back leaves no hole in the numbers, and clusters are
// numbered apart.
func TestNumbersHaveNoGaps(t *testing.T) {
	pool := pgtest.Pool(t)
	s := budgets.NewStore(pool)
	change := errors.New("changed my mind")
	for i := range 20 {
		for _, cluster := range []string{"one", "two"} {
			err := s.InTx(ctx, func(s *budgets.Store) error {
				ok(t)(s.AddAccount(ctx, cluster, child(i), "root", 0, by(day(0))))
				if i%3 == 0 {
					return change
				}
				return nil
			})
			require.Equal(t, i%3 == 0, err != nil)
		}
	}
	for _, cluster := range []string{"one", "two"} {
		entries, err := s.Ledger(ctx, budgets.Filter{Cluster: cluster})
		require.NoError(t, err)
		require.Len(t, entries, 13)
		requireGapless(t, entries)
		version, err := s.Version(ctx, cluster)
		require.NoError(t, err)
		require.Equal(t, int64(13), version)
	}
	clusters, err := s.Clusters(ctx)
	require.NoError(t, err)
	require.True(t, slices.Equal([]string{"one", "two"}, clusters))
}

// A writer's transaction makes others of its cluster wait, not those of another.
func TestClustersDoNotWaitForEachOther(t *testing.T) {
	pool := pgtest.Pool(t)
	s := budgets.NewStore(pool)
	ok(t)(s.AddAccount(ctx, "one", "x", "root", 0, by(day(0))))
	ok(t)(s.AddAccount(ctx, "two", "x", "root", 0, by(day(0))))
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer tx.Rollback(ctx) //nolint:errcheck // ends the waiting
	ok(t)(budgets.NewStore(tx).SetShare(ctx, "one", "x", percent, by(day(1))))

	ok(t)(s.SetShare(ctx, "two", "x", percent, by(day(1))))

	impatient, err := pool.Acquire(ctx)
	require.NoError(t, err)
	defer impatient.Release()
	_, err = impatient.Exec(ctx, "SET lock_timeout = '100ms'")
	require.NoError(t, err)
	start := time.Now()
	_, err = budgets.NewStore(impatient.Conn()).SetShare(ctx, "one", "x", percent, by(day(1)))
	require.ErrorContains(t, err, "lock timeout")
	require.GreaterOrEqual(t, time.Since(start), 100*time.Millisecond)
}
