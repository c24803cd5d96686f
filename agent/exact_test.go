// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/agent/holding"
	"gpubudget/internal/pgtest"
)

// truth is when jobs held GPUs, by the clock since the boot.
type truth struct {
	gpu         int
	from, until int64 // until is -1 while the job runs
}

// Whatever happens to agents, the database and the clocks: in the end
// the database has of each job exactly the time from Prolog to Epilog. Only a
// reboot takes something, the time since the last look.
func TestWhateverHappensTimesAreExact(t *testing.T) {
	dsn := pgtest.DB(t)
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	root, world := inMemory(t), 0
	rapid.Check(t, func(rt *rapid.T) {
		world++
		n := &node{
			t: t, dir: filepath.Join(root, strconv.Itoa(world)), boot: "boot-1", log: &logText{}, dsn: dsn, uptime: time.Hour,
			wall: time.Now().UTC().Truncate(time.Hour).Add(-6 * time.Hour),
		}
		n.spl, n.driver.n, n.driver.gpus = filepath.Join(n.dir, "spool"), n, gpus(3)
		require.NoError(rt, os.MkdirAll(n.dir, 0o755))
		n.gresConf("Name=gpu File=/dev/nvidia[0-2]\n")
		cluster := fmt.Sprintf("world%d", world)
		jobs, whole := n.live(rt, cluster)
		held := map[int]int64{}
		result, err := conn.Query(t.Context(), "SELECT job_id, sum(held_ms)::bigint FROM gpubudget.gpu_bucket WHERE cluster = $1 GROUP BY job_id", cluster)
		require.NoError(rt, err)
		var job int
		var ms int64
		_, err = pgx.ForEachRow(result, []any{&job, &ms}, func() error { held[job] = ms; return nil })
		require.NoError(rt, err)
		for job, want := range jobs {
			require.Equal(rt, want.until-want.from, held[job], "job %d\n%s", job, n.log)
		}
		if !whole {
			return
		}
		var over int
		require.NoError(rt, conn.QueryRow(t.Context(), `SELECT count(*) FROM (SELECT FROM gpubudget.gpu_bucket WHERE cluster = $1
			GROUP BY gpu HAVING sum(part_ms) > $2) x`, cluster, n.Boot().Milliseconds()-time.Hour.Milliseconds()).Scan(&over))
		require.Zero(rt, over)
	})
}

// inMemory is a folder on a file system in memory, where a sync takes no time.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "gpubudget-agent-") //nolint:usetesting // that one lies on a disk
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// live lets a node live for a while, at random, and ends all of its jobs. whole tells
// whether the parts of all jobs are no more than the GPU: unless an agent read a file
// that the one before could not, and knows nothing of jobs that have ended meanwhile.
func (n *node) live(rt *rapid.T, cluster string) (jobs map[int]*truth, whole bool) {
	jobs, whole = map[int]*truth{}, true
	begin := func() {
		if n.Agent != nil {
			return
		}
		o := n.options()
		o.Cluster, o.KeepConnection, o.MappingDir = cluster, true, ""
		a, err := New(o)
		require.NoError(rt, err)
		n.Agent = a
	}
	now := func() int64 { return n.Boot().Milliseconds() }
	end := func(job int) {
		n.epilog(job)
		jobs[job].until = now()
	}
	running := func() (ids []int) {
		for id, job := range jobs {
			if job.until < 0 {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		return ids
	}
	var w written
	defer w.close()
	write := func() { n.sendTo(&w) }
	for range rapid.IntRange(1, 25).Draw(rt, "steps") {
		n.pass(time.Duration(rapid.IntRange(0, 200_000).Draw(rt, "ms")) * time.Millisecond)
		switch rapid.IntRange(0, 11).Draw(rt, "event") {
		case 0, 1:
			gpu := rapid.IntRange(0, 2).Draw(rt, "gpu")
			n.prolog(len(jobs)+1, strconv.Itoa(gpu))
			jobs[len(jobs)+1] = &truth{gpu, now(), -1}
		case 2:
			if ids := running(); len(ids) > 0 {
				end(rapid.SampledFrom(ids).Draw(rt, "job"))
			}
		case 3:
			n.kill()
		case 4:
			n.setClock(time.Duration(rapid.IntRange(-1000, 1000).Draw(rt, "seconds")) * time.Second)
		case 5:
			n.driver.gpus[0].UUID = fmt.Sprintf("GPU-%d", rapid.IntRange(10, 12).Draw(rt, "uuid"))
		case 6:
			n.connect = rapid.SampledFrom([]error{nil, nil, errAway}).Draw(rt, "database")
			begin()
			require.NoError(rt, n.Round())
			write()
		case 8: // a file can't be read for a while
			ids := running()
			if len(ids) == 0 {
				continue
			}
			file := filepath.Join(n.dir, "jobs", fmt.Sprint(rapid.SampledFrom(ids).Draw(rt, "job"), ".0"))
			require.NoError(rt, os.Rename(file, filepath.Join(n.dir, "away")))
			require.NoError(rt, os.Symlink(file, file))
			for range rapid.IntRange(1, 3).Draw(rt, "looks") {
				begin()
				n.pass(time.Duration(rapid.IntRange(0, 20_000).Draw(rt, "ms")) * time.Millisecond)
				require.NoError(rt, n.Round())
				if rapid.Bool().Draw(rt, "killed") {
					n.kill()
					whole = false
				}
			}
			require.NoError(rt, os.Rename(filepath.Join(n.dir, "away"), file))
			begin()
			require.NoError(rt, n.Round())
		case 7: // a look falls between Epilog's look at its clock and its file
			ids := running()
			if len(ids) == 0 {
				continue
			}
			job := rapid.SampledFrom(ids).Draw(rt, "job")
			late := n.hooks(jobEnv(job, ""))
			at := late.Now()
			late.Now = func() holding.Stamp { return at }
			jobs[job].until = at.Boot
			n.pass(time.Duration(rapid.IntRange(0, 5000).Draw(rt, "late")) * time.Millisecond)
			begin()
			require.NoError(rt, n.Round())
			if rapid.Bool().Draw(rt, "told") {
				write()
			}
			require.NoError(rt, late.Epilog())
			require.NoError(rt, n.Round())
		default:
			begin()
			require.NoError(rt, n.Round())
		}
	}
	n.connect = nil
	begin()
	for _, id := range running() {
		end(id)
	}
	require.NoError(rt, n.Round())
	n.pass(time.Second)
	require.NoError(rt, n.Round())
	write()
	require.Empty(rt, n.files())
	require.Zero(rt, n.spool.Waiting())
	require.NoFileExists(rt, filepath.Join(n.spl, "rejected"), "%s", n.log)
	n.kill()
	return jobs, whole
}
