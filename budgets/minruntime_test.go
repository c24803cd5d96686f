// SPDX-License-Identifier: GPL-2.0-or-later

package budgets_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
)

// An account's minimum runtime has a history as the cluster's has, and leaves that
// as it is.
func TestMinRuntimesOfAccounts(t *testing.T) {
	s := budgets.NewStore(pgtest.Pool(t))
	at := func(d int) map[string]time.Duration {
		said, err := s.MinRuntimes(ctx, cluster, day(d))
		require.NoError(t, err)
		return said
	}
	require.Nil(t, at(1))
	ok(t)(s.AddAccount(ctx, cluster, "vision", fairshare.RootAccount, fairshare.Whole/2, by(day(0))))
	ok(t)(s.AddAccount(ctx, cluster, "detection", "vision", fairshare.Whole/2, by(day(0))))
	ok(t)(s.SetPolicy(ctx, cluster, budgets.MinRuntime, "2h", by(day(0))))
	e := ok(t)(s.SetMinRuntime(ctx, cluster, "Vision", "30m", by(day(1))))
	require.Equal(t, "vision", e.Account)
	require.Equal(t, "1800s", e.Value)
	ok(t)(s.SetMinRuntime(ctx, cluster, "detection", "366d", by(day(2))))
	ok(t)(s.SetMinRuntime(ctx, cluster, "vision", "1s", until(day(3), day(5))))
	ok(t)(s.SetMinRuntime(ctx, cluster, "vision", " Inherit ", by(day(6))))

	require.Nil(t, at(0))
	require.Equal(t, map[string]time.Duration{"vision": 30 * time.Minute}, at(1))
	require.Equal(t, map[string]time.Duration{"vision": time.Second, "detection": 366 * 24 * time.Hour}, at(4))
	require.Equal(t, map[string]time.Duration{"vision": 30 * time.Minute, "detection": 366 * 24 * time.Hour}, at(5))
	require.Equal(t, map[string]time.Duration{"detection": 366 * 24 * time.Hour}, at(6))

	for d := range 7 {
		p, err := s.Policy(ctx, cluster, day(d))
		require.NoError(t, err)
		require.Equal(t, 2*time.Hour, p.MinRuntime, "the cluster's")
	}
	history, err := s.PolicyHistory(ctx, cluster)
	require.NoError(t, err)
	require.Len(t, history, 5)

	n := by(day(7))
	n.Key = "once"
	first := ok(t)(s.SetMinRuntime(ctx, cluster, "vision", "60m", n))
	again := ok(t)(s.SetMinRuntime(ctx, cluster, "vision", "1h", n))
	require.True(t, again.Repeated)
	require.Equal(t, first.Seq, again.Seq)
	_, err = s.SetMinRuntime(ctx, cluster, "detection", "1h", n)
	require.ErrorAs(t, err, new(*budgets.KeyError))
}

func TestMinRuntimesOfAccountsThatAreRefused(t *testing.T) {
	pool := pgtest.Pool(t)
	s := budgets.NewStore(pool)
	ok(t)(s.AddAccount(ctx, cluster, "vision", fairshare.RootAccount, fairshare.Whole/2, by(day(0))))
	for _, value := range []string{"", "0", "0s", "-1s", "1.5s", "367d", "1", "none"} {
		_, err := s.SetMinRuntime(ctx, cluster, "vision", value, by(day(0)))
		require.ErrorAs(t, err, new(*budgets.InvalidPolicyError), value)
	}
	_, err := s.SetMinRuntime(ctx, cluster, "Root", "1h", by(day(0)))
	require.ErrorContains(t, err, "that of root is the cluster's")
	_, err = s.SetMinRuntime(ctx, cluster, "", "1h", by(day(0)))
	require.ErrorAs(t, err, new(*budgets.InvalidNameError))
	_, err = s.SetMinRuntime(ctx, cluster, "vison", "1h", by(day(0)))
	require.ErrorContains(t, err, `did you mean "vision"?`)
	ok(t)(s.CloseAccount(ctx, cluster, "vision", by(day(2))))
	_, err = s.SetMinRuntime(ctx, cluster, "vision", "1h", by(day(3)))
	require.ErrorAs(t, err, new(*budgets.ClosedAccountError))

	// PostgreSQL refuses the same by itself.
	const set = `INSERT INTO gpubudget.ledger (cluster, kind, actor, effective_from, account, setting, value)
		VALUES ('c1', 'policy_set', 'a', $4, $1, $2, $3)`
	_, err = pool.Exec(ctx, set, "Vision", budgets.MinRuntime, "inherit", day(1))
	require.NoError(t, err)
	for _, tc := range [][3]string{
		{"vision", budgets.MinRuntime, "0s"}, {"vision", budgets.MinRuntime, "1h"}, {"vision", budgets.MinRuntime, "31622401s"},
		{"vision", budgets.MinRuntime, ""}, {"vision", budgets.MinRuntime, "none"}, {"vision", budgets.MinRuntimeCap, "60s"},
		{"vision", budgets.Bucket, "60s"}, {"root", budgets.MinRuntime, "60s"},
	} {
		_, err := pool.Exec(ctx, set, tc[0], tc[1], tc[2], day(1))
		require.ErrorContains(t, err, "ledger_policy_valid", tc)
	}
	_, err = pool.Exec(ctx, `INSERT INTO gpubudget.ledger (cluster, kind, actor, setting, value) VALUES ('c1', 'policy_set', 'a', 'min_runtime', 'inherit')`)
	require.ErrorContains(t, err, "ledger_policy_valid")
	_, err = pool.Exec(ctx, `INSERT INTO gpubudget.ledger (cluster, kind, actor, effective_from, account, setting, value, share)
		VALUES ('c1', 'policy_set', 'a', $1, 'vision', 'min_runtime', '60s', 1)`, day(1))
	require.ErrorContains(t, err, "ledger_kind_valid")
}

func TestNormalMinRuntime(t *testing.T) {
	for value, want := range map[string]string{"60m": "1h", "1D12h": "1d12h", "INHERIT": budgets.Inherit, "1s": "1s"} {
		normal, err := budgets.NormalMinRuntime("vision", value)
		require.NoError(t, err)
		require.Equal(t, want, normal)
	}
	require.Equal(t, "1d12h", budgets.FormatMinRuntime(36*time.Hour))
}
