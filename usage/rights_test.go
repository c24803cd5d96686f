// SPDX-License-Identifier: GPL-2.0-or-later

package usage_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/usage"
)

// pluginsGrants are the statements that docs/admin.md gives for the plugin's role.
func pluginsGrants(t *testing.T, role string) string {
	t.Helper()
	page, err := os.ReadFile("../docs/admin.md")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(page), "    CREATE ROLE gpubudget_plugin LOGIN;\n")
	require.True(t, found)
	grants, _, found := strings.Cut(rest, "\n\n")
	require.True(t, found)
	return "CREATE ROLE " + role + " LOGIN;\n" + strings.ReplaceAll(grants, "gpubudget_plugin", role)
}

// The rights that the administrator's guide has one grant are all that the plugin
// needs, charges by what meters saw among them.
func TestThePluginsRightsSuffice(t *testing.T) {
	config, err := pgxpool.ParseConfig(pgtest.DB(t))
	require.NoError(t, err)
	owner, err := pgx.ConnectConfig(ctx, config.ConnConfig.Copy())
	require.NoError(t, err)
	role := "plugin_" + config.ConnConfig.Database
	_, err = owner.Exec(ctx, pluginsGrants(t, role))
	require.NoError(t, err)
	config.ConnConfig.User = role
	pool, err := pgxpool.NewWithConfig(ctx, config)
	require.NoError(t, err)
	t.Cleanup(func() {
		pool.Close()
		_, err := owner.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role)
		require.NoError(t, err)
		require.NoError(t, owner.Close(context.Background()))
	})
	_, err = budgets.NewStore(owner).SetPolicy(ctx, "c", budgets.Charge, "utilisation", budgets.Note{Actor: "test", From: epoch})
	require.NoError(t, err)

	s, hour := usage.NewStore(pool), window(0, time.Hour)
	require.NoError(t, s.WriteRuns(ctx, []usage.Run{ended("c", 1, 2, 0, time.Hour)}))
	wrong := ended("c", 1, 1, 0, 2*time.Hour)
	wrong.SeenAt = at(3 * time.Hour)
	require.NoError(t, s.WriteRuns(ctx, []usage.Run{wrong})) // takes buckets away
	require.NoError(t, s.WriteDemand(ctx, "c", "i", []usage.DemandBucket{{Period: hour, Account: "a", Pending: 1}}))
	require.NoError(t, s.WriteCapacity(ctx, "c", epoch, fairshare.Holding{GPUs: 8}))
	require.NoError(t, s.WriteQueue(ctx, "c", epoch, []usage.Queue{{Account: "a", User: "u", PendingJobs: 1}}))
	require.NoError(t, s.WriteQueue(ctx, "c", at(time.Minute), nil))
	require.NoError(t, s.Heartbeat(ctx, usage.Recorder{Cluster: "c", Incarnation: "i", SeenAt: epoch}))
	require.NoError(t, s.WritePreemptions(ctx, []usage.Preemption{{
		Cluster: "c", At: at(time.Hour), Rule: "R1", Job: usage.Party{JobID: 1, Account: "a", User: "u"}, StartedAt: epoch,
	}}))
	jobs, err := s.ChargeMetered(ctx, "c")
	require.NoError(t, err)
	require.Equal(t, 1, jobs)
	_, err = s.History(ctx, "c", hour, nil, nil)
	require.NoError(t, err)
	_, err = budgets.NewStore(pool).Load(ctx, "c", hour)
	require.NoError(t, err)

	_, err = pool.Exec(ctx, "INSERT INTO gpubudget.ledger (cluster, kind, actor, setting, value) VALUES ('c', 'policy_set', 'x', 'mode', 'strict')")
	require.ErrorContains(t, err, "permission denied")
}
