// SPDX-License-Identifier: GPL-2.0-or-later

package usage_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/pgtest"
	"gpubudget/usage"
)

func TestAsked(t *testing.T) {
	pool := pgtest.Pool(t)
	s := usage.NewStore(pool)
	asked := func(job uint32) time.Duration {
		t.Helper()
		d, ok, err := s.Asked(ctx, "c", job)
		require.NoError(t, err)
		if !ok {
			return -1
		}
		return d
	}
	require.Equal(t, time.Duration(-1), asked(1))
	require.NoError(t, s.WriteAsked(ctx, "c", []usage.Asked{{1, time.Hour}, {2, 0}, {4294967295, time.Minute}}))
	require.NoError(t, s.WriteAsked(ctx, "other", []usage.Asked{{1, time.Second}}))
	require.Equal(t, []time.Duration{time.Hour, 0, time.Minute, -1}, []time.Duration{asked(1), asked(2), asked(4294967295), asked(3)})

	version := func(job uint32) (xmin string) {
		t.Helper()
		require.NoError(t, pool.QueryRow(ctx, `SELECT xmin::text FROM gpubudget.job_asked WHERE cluster = 'c' AND job_id = $1`, int64(job)).Scan(&xmin))
		return xmin
	}
	before := version(1)
	require.NoError(t, s.WriteAsked(ctx, "c", []usage.Asked{{1, time.Hour}, {3, time.Minute}, {4294967295, 2 * time.Minute}, {3, time.Minute}}))
	require.Equal(t, []time.Duration{time.Hour, -1, time.Minute, 2 * time.Minute}, []time.Duration{asked(1), asked(2), asked(3), asked(4294967295)})
	require.Equal(t, before, version(1), "what has not changed is left alone")
	require.NoError(t, s.WriteAsked(ctx, "c", nil))
	require.Equal(t, time.Duration(-1), asked(1))
	d, ok, err := s.Asked(ctx, "other", 1)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, time.Second, d)
}
