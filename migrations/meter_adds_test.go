// SPDX-License-Identifier: GPL-2.0-or-later

package migrations_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/migrations"
)

// What agents told before they could only add stays, grows by what they tell next, and
// is not made less; they need no other right for it.
func TestUpHasAgentsOnlyAdd(t *testing.T) {
	cfg := emptyDatabase(t)
	require.NoError(t, migrations.UpTo(ctx, cfg, 20))
	conn := connect(t, cfg)
	hour := time.Now().UTC().Truncate(time.Hour).Add(-time.Hour).UnixMilli()
	tell := func(node string, seq, held int64) error {
		_, err := conn.Exec(ctx, "SELECT gpubudget.record_meter($1::jsonb)", fmt.Sprintf(`{"cluster": "c1", "node": %q, "sent_ms": %d,
			"agent": {"incarnation": "7b0a3c52-9a3e-4c57-8f50-0c0f7a4f2a11", "boot_id": "b", "started_ms": 0, "version": "v", "spooled": 0, "gpus": 1, "state": "ok"},
			"buckets": [{"starts_ms": %d, "ends_ms": %d, "gpu": "GPU-1", "job_id": 7, "incarnation": "7b0a3c52-9a3e-4c57-8f50-0c0f7a4f2a11", "seq": %d,
				"source": "prolog", "held_from_ms": %d, "held_until_ms": %d, "part_ms": %d}]}`,
			node, time.Now().UnixMilli(), hour, hour+3600_000, seq, hour, hour+held, held))
		return err
	}
	held := func() []int64 {
		return query[int64](t, conn, "SELECT held_ms FROM gpubudget.gpu_bucket")
	}
	require.NoError(t, tell("n1", 1, 500_000))
	require.NoError(t, tell("n1", 2, 400_000), "as it was")
	before := query[bool](t, conn, "SELECT has_function_privilege('gpubudget_agent', 'gpubudget.record_meter(jsonb)', 'EXECUTE')")
	require.Equal(t, []bool{true}, before)

	require.NoError(t, migrations.Up(ctx, cfg, nil))
	require.Equal(t, []int64{400_000}, held())
	require.NoError(t, tell("n1", 3, 600_000))
	require.ErrorContains(t, tell("n1", 4, 599_999), "an agent adds, and this would be less")
	require.ErrorContains(t, tell("n2", 4, 700_000), "it is of node n1, and not of n2")
	require.Equal(t, []int64{600_000}, held())
	require.Equal(t, []string{"record_meter"}, query[string](t, conn, `SELECT p.proname::text FROM pg_proc p
		WHERE p.pronamespace = 'gpubudget'::regnamespace AND p.proname IN ('record_meter', 'refuse_bucket') AND has_function_privilege('gpubudget_agent', p.oid, 'EXECUTE')`))
}
