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

	ok(t)(s.SetPolicy(ctx, cluster, budgets.PreemptMargin, "0.250", by(day(2))))
	ok(t)(s.SetPolicy(ctx, cluster, budgets.PreemptWithinAccount, "No", by(day(2))))

	want := budgets.Policy{
		Lookback: 36 * time.Hour, Mode: "additive", Bucket: 15 * time.Minute, Refresh: 5 * time.Second,
		MinRuntime: 2 * time.Hour, MinRuntimeCap: 8 * time.Hour, KeepMeter: 35 * 24 * time.Hour, Charge: budgets.Occupancy, Drain: budgets.DrainWait,
		Contract: fairshare.Contract{Margin: 0.25, EvictedPerGPU: 2, PerDay: 4, PatientGPUs: 32, Patience: time.Hour}, Unfunded: budgets.Unallocated,
	}
	require.Equal(t, want, at(3))
	want.Lookback, want.Refresh, want.MinRuntimeCap = 3*time.Minute, 30*time.Second, time.Hour
	require.Equal(t, want, at(5))

	history, err := s.PolicyHistory(ctx, cluster)
	require.NoError(t, err)
	require.Len(t, history, 9)
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
		budgets.KeepMeter:     {"1d", "35d", "36h", "3660d"},
		budgets.PreemptMargin: {"0", "0.1", "00.100", "10", "1.234", "9.999"}, budgets.PreemptWithinAccount: {"yes", "NO"},
		budgets.DrainPolicy:   {"wait", "Requeue"},
		budgets.EvictedPerGPU: {"0", "1.5", "1000"}, budgets.PreemptPerDay: {"0", "4", "007", "4.0", "1000"},
		budgets.PatientGPUs: {"0", "32", "1000000"}, budgets.Patience: {"0s", "1h", "366d"}, budgets.Unfunded: {"refuse", "unallocated", "Refuse"},
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
		budgets.KeepMeter:     {"", "0s", "23h", "3661d", "35"},
		budgets.PreemptMargin: {"", "-0.1", "10.1", "0.1234", "10%", "1e1", ".5", "1.", "nan", "inf", "0x1"}, budgets.PreemptWithinAccount: {"", "maybe", "true"},
		budgets.EvictedPerGPU: {"", "-1", "1001", "1.0001"}, budgets.PreemptPerDay: {"", "-1", "1.5", "1001", "99999999999999999999"},
		budgets.PatientGPUs: {"", "-1", "32.5", "1000001"}, budgets.Patience: {"", "1", "-1h", "367d"}, budgets.Unfunded: {"", "allow", "refuse,unallocated"},
		"window": {"7d"},
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
		budgets.KeepMeter:     {"", "0s", "86399s", "316224001s", "35d"},
		budgets.PreemptMargin: {"", "-1", "10.5", "11", "0.1234", "01", "1.", "0.10"}, budgets.PreemptWithinAccount: {"", "Yes", "true"},
		budgets.EvictedPerGPU: {"", "-1", "1000.5", "1001", "00"}, budgets.PreemptPerDay: {"", "-1", "1.5", "1001", "04"},
		budgets.PatientGPUs: {"", "1000001", "10000000", "1.5"}, budgets.Patience: {"", "1h", "31622401s", "00s"}, budgets.Unfunded: {"", "Refuse", "allow"},
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
		{"preempt_margin", "0.10", budgets.PreemptMargin, "0.1"},
		{"Evicted_Per_GPU", "02.000", budgets.EvictedPerGPU, "2"},
		{"preempt_within_account", "YES", budgets.PreemptWithinAccount, "yes"},
		{"patience", "90m", budgets.Patience, "1h30m"},
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

func TestWith(t *testing.T) {
	p, err := budgets.DefaultPolicy.With("Patience", "2h")
	require.NoError(t, err)
	require.Equal(t, 2*time.Hour, p.Contract.Patience)
	require.Equal(t, time.Hour, budgets.DefaultPolicy.Contract.Patience)
	_, err = p.With("patience", "later")
	var wrong *budgets.InvalidPolicyError
	require.ErrorAs(t, err, &wrong)
}
