// SPDX-License-Identifier: GPL-2.0-or-later

package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// A small fleet, whose reports come twice and late, is what it has counted; a bucket
// that is missing, or that has too much, is found.
func TestFleet(t *testing.T) {
	dir, err := os.MkdirTemp("", "gpubudget-bench-") //nolint:usetesting // the server's user can't reach t.TempDir
	require.NoError(t, err)
	defer func() { require.NoError(t, os.RemoveAll(dir)) }()
	require.NoError(t, os.Chmod(dir, 0o755))
	server, dsn, err := StartServer(t.Context(), filepath.Join(dir, "pg"))
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Stop()) }()
	var out strings.Builder
	require.NoError(t, RunFleet(t.Context(), &out, FleetOptions{DSN: dsn, Server: server, Nodes: []int{40}, Length: 2 * time.Second}))
	require.Regexp(t, `(?m)^bench: fleet/write-p99/nodes=40 [\d.e+-]+ ms$`, out.String())
	require.Contains(t, out.String(), "bench: fleet/lost/nodes=40 0 buckets\nbench: fleet/doubled/nodes=40 0 buckets\n")

	pool, err := pgxpool.New(t.Context(), dsn)
	require.NoError(t, err)
	defer pool.Close()
	f := &fleet{cluster: "broken", pool: pool, began: time.Now(), nodes: []node{{number: 1}}}
	require.NoError(t, f.report(t.Context(), &f.nodes[0]))
	p := &printer{out: &out}
	require.NoError(t, f.check(t.Context(), p))
	exec := func(sql string) {
		t.Helper()
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	exec(`UPDATE gpubudget.gpu_bucket SET busy_ms = busy_ms + 1 WHERE cluster = 'broken' AND gpu = 'GPU-1-0' AND ended = false`)
	exec(`DELETE FROM gpubudget.gpu_bucket WHERE cluster = 'broken' AND gpu = 'GPU-1-1'`)
	require.ErrorContains(t, f.check(t.Context(), p), "doubled, and the sums are off by 0 ms")

	cpu, err := serverCPU(server.PID())
	require.NoError(t, err)
	require.Positive(t, cpu)
}
