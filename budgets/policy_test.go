// SPDX-License-Identifier: GPL-2.0-or-later

package budgets_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/internal/pgtest"
)

func TestPolicyHasDefaultsAndAHistory(t *testing.T) {
	s := budgets.NewStore(pgtest.Pool(t))
	at := func(n int) budgets.Policy {
		p, err := s.Policy(ctx, cluster, day(n))
		require.NoError(t, err)
		return p
	}
	require.Equal(t, budgets.DefaultPolicy, at(0))

	ok(t)(s.SetPolicy(ctx, cluster, "Lookback", " 1D12h ", by(day(1))))
	ok(t)(s.SetPolicy(ctx, cluster, budgets.Mode, "ADDITIVE", by(day(2))))
	ok(t)(s.SetPolicy(ctx, cluster, budgets.Bucket, "15m", by(day(3))))
	ok(t)(s.SetPolicy(ctx, cluster, budgets.Refresh, "5s", until(day(3), day(5))))
	ok(t)(s.SetPolicy(ctx, cluster, budgets.Lookback, "3m", by(day(4))))

	require.Equal(t, budgets.DefaultPolicy, at(0))
	ok(t)(s.SetPolicy(ctx, cluster, budgets.MinRuntime, "2h", by(day(3))))
	ok(t)(s.SetPolicy(ctx, cluster, budgets.MinRuntimeCap, "1h", by(day(5)))) // below the other

	want := budgets.Policy{
		Lookback: 36 * time.Hour, Mode: "additive", Bucket: 15 * time.Minute, Refresh: 5 * time.Second,
		MinRuntime: 2 * time.Hour, MinRuntimeCap: 8 * time.Hour, KeepMeter: 35 * 24 * time.Hour, Charge: budgets.Occupancy,
	}
	require.Equal(t, want, at(3))
	want.Lookback, want.Refresh, want.MinRuntimeCap = 3*time.Minute, 30*time.Second, time.Hour
	require.Equal(t, want, at(5))

	history, err := s.PolicyHistory(ctx, cluster)
	require.NoError(t, err)
	require.Len(t, history, 7)
	require.Equal(t, "129600s", history[0].Value)
}

func TestPolicyValues(t *testing.T) {
	s := budgets.NewStore(pgtest.Pool(t))
	for setting, values := range map[string][]string{
		budgets.Lookback:   {"1m", "60s", "7d", "168h", "3660d", "1d1h1m1s"},
		budgets.Mode:       {"strict", "additive"},
		budgets.Bucket:     {"1s", "1m", "90m", "1h", "24h", "1d"},
		budgets.Refresh:    {"1s", "30s", "1d"},
		budgets.MinRuntime: {"0", "0s", "1s", "90m", "366d"}, budgets.MinRuntimeCap: {"0s", "8h", "366d"},
		budgets.KeepMeter: {"1d", "35d", "36h", "3660d"},
	} {
		for _, value := range values {
			ok(t)(s.SetPolicy(ctx, cluster, setting, value, by(day(0))))
			p, err := s.Policy(ctx, cluster, day(1))
			require.NoError(t, err)
			again := ok(t)(s.SetPolicy(ctx, cluster, setting, p.Value(setting), by(day(0))))
			after, err := s.Policy(ctx, cluster, day(1))
			require.NoError(t, err)
			require.Equal(t, p, after, "%s=%s is shown as %q, stored as %q", setting, value, p.Value(setting), again.Value)
		}
	}
}

func TestPolicyRefusesOtherValues(t *testing.T) {
	pool := pgtest.Pool(t)
	s := budgets.NewStore(pool)
	for setting, values := range map[string][]string{
		budgets.Lookback:   {"", "59s", "0", "60", "-7d", "7", "1w", "1.5d", "3661d", "1m30.5s", "inf", "99999999999d"},
		budgets.Mode:       {"", "loose", "strict,additive"},
		budgets.Bucket:     {"", "0s", "7m", "25h", "2d", "1500ms", "-1h"},
		budgets.Refresh:    {"", "0s", "25h", "0.5s", "-1s"},
		budgets.MinRuntime: {"", "-1s", "1.5s", "367d", "366d1s", "1"}, budgets.MinRuntimeCap: {"", "-1s", "0.5h0.5s", "366d1s"},
		budgets.KeepMeter: {"", "0s", "23h", "3661d", "35"},
		"window":          {"7d"},
	} {
		for _, value := range values {
			_, err := s.SetPolicy(ctx, cluster, setting, value, by(day(0)))
			require.ErrorAs(t, err, new(*budgets.InvalidPolicyError), "%s=%q", setting, value)
		}
	}
	_, err := s.SetPolicy(ctx, cluster, "lokback", "7d", by(day(0)))
	require.ErrorContains(t, err, `did you mean "lookback"?`)

	// PostgreSQL refuses the same by itself.
	for setting, values := range map[string][]string{
		budgets.Lookback: {"59s", "60", "316224001s", "1m"}, budgets.Mode: {"loose"},
		budgets.Bucket: {"0s", "420s", "86401s"}, budgets.Refresh: {"0s", "86401s"}, "window": {"60s"},
		budgets.MinRuntime: {"-1s", "00s", "1h", "31622401s"}, budgets.MinRuntimeCap: {"", "60", "31622401s", "100000000s"},
		budgets.KeepMeter: {"", "0s", "86399s", "316224001s", "35d"},
	} {
		for _, value := range values {
			_, err := pool.Exec(ctx, `INSERT INTO gpubudget.ledger (cluster, kind, actor, setting, value)
				VALUES ('c1', 'policy_set', 'a', $1, $2)`, setting, value)
			require.ErrorContains(t, err, "ledger_policy_valid", "%s=%q", setting, value)
		}
	}
}

func TestNormalPolicy(t *testing.T) {
	for _, tc := range []struct{ setting, value, name, normal string }{
		{"lookback", "168h", budgets.Lookback, "7d"},
		{" Lookback ", "7D", budgets.Lookback, "7d"},
		{"lookback", "1d12h", budgets.Lookback, "1d12h"},
		{"MODE", "Strict", budgets.Mode, "strict"},
		{"bucket", "60m", budgets.Bucket, "1h"},
		{"refresh", "90s", budgets.Refresh, "1m30s"},
		{"Min_Runtime", "0m", budgets.MinRuntime, "0s"},
		{"min_runtime_cap", "480m", budgets.MinRuntimeCap, "8h"},
	} {
		name, normal, err := budgets.NormalPolicy(tc.setting, tc.value)
		require.NoError(t, err)
		require.Equal(t, tc.name, name)
		require.Equal(t, tc.normal, normal)

		_, again, err := budgets.NormalPolicy(name, normal)
		require.NoError(t, err)
		require.Equal(t, normal, again)
	}
	var invalid *budgets.InvalidPolicyError
	_, _, err := budgets.NormalPolicy("lookbck", "7d")
	require.ErrorAs(t, err, &invalid)
	_, _, err = budgets.NormalPolicy("mode", "loose")
	require.ErrorAs(t, err, &invalid)
}
