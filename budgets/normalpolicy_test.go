// SPDX-License-Identifier: GPL-2.0-or-later

package budgets

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNormalPolicy(t *testing.T) {
	for _, tc := range []struct{ setting, value, name, normal string }{
		{"lookback", "168h", Lookback, "7d"},
		{" Lookback ", "7D", Lookback, "7d"},
		{"lookback", "1d12h", Lookback, "1d12h"},
		{"MODE", "Strict", Mode, "strict"},
		{"bucket", "60m", Bucket, "1h"},
		{"refresh", "90s", Refresh, "1m30s"},
	} {
		name, normal, err := NormalPolicy(tc.setting, tc.value)
		require.NoError(t, err)
		require.Equal(t, tc.name, name)
		require.Equal(t, tc.normal, normal)

		_, again, err := NormalPolicy(name, normal)
		require.NoError(t, err)
		require.Equal(t, normal, again)
	}
	var invalid *InvalidPolicyError
	_, _, err := NormalPolicy("lookbck", "7d")
	require.ErrorAs(t, err, &invalid)
	_, _, err = NormalPolicy("mode", "loose")
	require.ErrorAs(t, err, &invalid)
}
