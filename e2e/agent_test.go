// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/agent/holding"
	"gpubudget/internal/simnvml"
	"gpubudget/internal/testcluster"
)

// metered is a cluster whose node has an agent.
type metered struct{ *scenario }

func newMetered(t *testing.T, opts testcluster.Options) metered {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout+testTimeout)
	t.Cleanup(cancel)
	opts.Users = []string{ann}
	c, err := testcluster.Start(ctx, opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.LogTails())
		}
		require.NoError(t, c.Stop())
	})
	return metered{&scenario{Cluster: c, t: t, ctx: ctx}}
}

// rows are the rows of a query, as text.
func (m metered) rows(sql string, args ...any) []string {
	m.t.Helper()
	conn, err := pgx.Connect(m.ctx, m.DSN())
	require.NoError(m.t, err)
	defer conn.Close(m.ctx)
	result, err := conn.Query(m.ctx, sql, args...)
	require.NoError(m.t, err)
	all, err := pgx.CollectRows(result, pgx.RowTo[string])
	require.NoError(m.t, err)
	return all
}

// until waits until done says so.
func (m metered) until(what string, done func() bool) {
	m.t.Helper()
	require.NoError(m.t, m.Wait(m.ctx, what, func() (bool, error) { return done(), nil }))
}

func (m metered) sbatch(args ...string) uint32 {
	m.t.Helper()
	id, err := m.Sbatch(m.ctx, ann, args...)
	require.NoError(m.t, err)
	return id
}

// file is what Prolog and Epilog have written of a job, nil if there is none.
func (m metered) file(job uint32) *holding.Record {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.AgentJobs("n1"), fmt.Sprintf("%d.0", job)))
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(m.t, err)
	r := new(holding.Record)
	require.NoError(m.t, json.Unmarshal(text, r))
	return r
}

// What a job held is in the database to the millisecond between its Prolog and
// its Epilog, although the agent was killed while it ran, and the database was
// away. Utilisation is known for as long as the agent looked.
func TestAJobIsMeteredToTheMillisecond(t *testing.T) {
	m := newMetered(t, testcluster.Options{GPUsPerNode: 4})
	busy := m.IdleGPUs("n1")
	busy.GPUs[0].Load, busy.GPUs[1].Load = simnvml.Steady(60), simnvml.Steady(60)
	require.NoError(t, m.WriteGPUs("n1", busy))

	job := m.sbatch("--gres=gpu:2", "--wrap", "sleep 8")
	m.until("the job to be counted", func() bool {
		return len(m.rows("SELECT DISTINCT gpu FROM gpubudget.gpu_bucket WHERE job_id = $1 AND samples > 1", job)) == 2
	})
	require.NoError(t, m.KillAgent("n1"))
	require.NoError(t, m.StopPostgres())
	var record *holding.Record
	m.until("Epilog", func() bool {
		record = m.file(job)
		return record != nil && record.Until != nil
	})
	require.Equal(t, "0,1", record.GPUs)
	require.Equal(t, ann, record.User)
	require.NoError(t, m.StartAgent("n1"))
	m.until("the agent to count it to the end", func() bool { return m.file(job) == nil })
	require.NoError(t, m.StartPostgres(m.ctx))
	want := strconv.FormatInt(record.Until.Boot-record.From.Boot, 10)
	m.until("the database to have all", func() bool {
		return len(m.rows("SELECT gpu FROM gpubudget.gpu_bucket WHERE job_id = $1 AND ended", job)) == 2
	})
	require.Equal(t, []string{"GPU-n1-0 " + want, "GPU-n1-1 " + want}, m.rows(`SELECT gpu || ' ' || sum(held_ms) FROM gpubudget.gpu_bucket
		WHERE job_id = $1 AND user_name = $2 GROUP BY gpu ORDER BY 1`, job, ann))
	require.Equal(t, []string{"t t"}, m.rows(`SELECT format('%s %s', sum(busy_ms)::float / sum(busy_known_ms) BETWEEN 0.59 AND 0.61,
		sum(busy_known_ms) BETWEEN 1000 AND sum(held_ms) - 1000) FROM gpubudget.gpu_bucket WHERE job_id = $1`, job))
}

// A job that ends while everything runs; its length is what Slurm says, but for
// the seconds that Slurm rounds to.
func TestAMeteredJobIsAsLongAsSlurmSays(t *testing.T) {
	m := newMetered(t, testcluster.Options{GPUsPerNode: 2})
	job := m.sbatch("--gres=gpu:1", "--wrap", "sleep 3")
	m.until("the job to end", func() bool {
		return len(m.rows("SELECT gpu FROM gpubudget.gpu_bucket WHERE job_id = $1 AND ended", job)) == 1
	})
	var held int64
	_, err := fmt.Sscan(m.rows("SELECT sum(held_ms)::text FROM gpubudget.gpu_bucket WHERE job_id = $1", job)[0], &held)
	require.NoError(t, err)
	require.InDelta(t, m.elapsed(job)*1000, held, 1500)
	require.Empty(t, m.file(job))
	// A job without GPUs leaves no trace.
	without := m.sbatch("--wrap", "true")
	require.NoError(t, m.WaitNoJobs(m.ctx))
	require.Empty(t, m.rows("SELECT gpu FROM gpubudget.gpu_bucket WHERE job_id = $1", without))
}

// A job that is requeued has two runs, and each its own count, by the number
// that Slurm gives it.
func TestARequeuedJobIsMeteredByRuns(t *testing.T) {
	m := newMetered(t, testcluster.Options{GPUsPerNode: 1})
	job := m.sbatch("--requeue", "--gres=gpu:1", "--wrap", "sleep 4")
	m.until("half a second of it to be counted", func() bool {
		return len(m.rows("SELECT gpu FROM gpubudget.gpu_bucket WHERE job_id = $1 GROUP BY gpu HAVING sum(held_ms) >= 500", job)) == 1
	})
	m.exec("root", "scontrol", "requeue", number0(job))
	m.until("both runs to end", func() bool {
		return len(m.rows("SELECT DISTINCT restart::text FROM gpubudget.gpu_bucket WHERE job_id = $1 AND ended", job)) == 2
	})
	require.Equal(t, []string{"0 t", "1 t"}, m.rows(`SELECT format('%s %s', restart, sum(held_ms) BETWEEN 500 AND 9000)
		FROM gpubudget.gpu_bucket WHERE job_id = $1 GROUP BY restart ORDER BY 1`, job))
	require.Equal(t, []string{"f"}, m.rows(`SELECT (max(held_until) FILTER (WHERE restart = 0) > min(held_from) FILTER (WHERE restart = 1))::text::char
		FROM gpubudget.gpu_bucket WHERE job_id = $1`, job))
}

// Jobs that share a GPU by shards: Prolog names the GPU, and their parts of it
// add up to the time and no more.
func TestShardsOfAGPU(t *testing.T) {
	m := newMetered(t, testcluster.Options{
		GPUsPerNode: 1, NodeGres: "gpu:1,shard:8", GresConf: []string{"NodeName=n1 Name=gpu File=%s/gpu0", "NodeName=n1 Name=shard Count=8"},
		SlurmConf: []string{"GresTypes=gpu,shard"},
	})
	first := m.sbatch("--gres=shard:2", "--wrap", "sleep 6")
	second := m.sbatch("--gres=shard:1", "--wrap", "sleep 6")
	m.until("both to be counted", func() bool {
		return len(m.rows("SELECT gpu FROM gpubudget.gpu_bucket WHERE ended AND job_id IN ($1, $2)", first, second)) == 2
	})
	require.Equal(t, []string{"GPU-n1-0 t t"}, m.rows(`SELECT format('%s %s %s', min(gpu), bool_and(shared_ms > 3000),
		sum(part_ms) = gpubudget.unix_ms(max(held_until)) - gpubudget.unix_ms(min(held_from)))
		FROM gpubudget.gpu_bucket WHERE job_id IN ($1, $2)`, first, second))
}

// Slurm numbers GPUs by their places in gres.conf. Whatever the order there, it
// is the device file's GPU that the job held.
func TestNumbersOfGPUsInAnotherOrder(t *testing.T) {
	m := newMetered(t, testcluster.Options{
		GPUsPerNode: 4, GresConf: []string{"NodeName=n1 Name=gpu File=%s/gpu2", "NodeName=n1 Name=gpu File=%s/gpu[0-1]", "NodeName=n1 Name=gpu File=%s/gpu3"},
		SlurmConf: []string{"SlurmdDebug=debug", "DebugFlags=Gres"},
	})
	// slurmd itself tells which device has which number: it lists them in order.
	text, err := os.ReadFile(m.Log("slurmd.n1"))
	require.NoError(t, err)
	var devices []string
	for _, match := range regexp.MustCompile(`gpu device number \d+\(\S*/(gpu\d)\)`).FindAllStringSubmatch(string(text), 4) {
		devices = append(devices, match[1])
	}
	require.Equal(t, []string{"gpu2", "gpu0", "gpu1", "gpu3"}, devices)

	first := m.sbatch("--gres=gpu:1", "--wrap", "sleep 4")
	second := m.sbatch("--gres=gpu:2", "--wrap", "sleep 4")
	m.until("both to be counted", func() bool {
		return len(m.rows("SELECT DISTINCT gpu FROM gpubudget.gpu_bucket WHERE job_id IN ($1, $2)", first, second)) == 3
	})
	require.Equal(t, []string{"0"}, []string{m.file(first).GPUs})
	require.Equal(t, []string{"1,2"}, []string{m.file(second).GPUs})
	require.Equal(t, []string{"GPU-n1-2"}, m.rows("SELECT DISTINCT gpu FROM gpubudget.gpu_bucket WHERE job_id = $1", first))
	require.Equal(t, []string{"GPU-n1-0", "GPU-n1-1"}, m.rows("SELECT DISTINCT gpu FROM gpubudget.gpu_bucket WHERE job_id = $1 ORDER BY 1", second))
}

// On the cluster that most tests use, as on each with a database, usage comes from the
// meters: every node has an agent, on a simulated driver whose GPUs work while a job
// holds them, and what gshare says of an account was metered.
func TestUsageComesFromTheMeters(t *testing.T) {
	s := begin(t, "forms")
	s.use(ann, s.a, 4, 4)
	s.agree()
	type row struct {
		Account     string   `json:"account"`
		User        *string  `json:"user"`
		Metered     *float64 `json:"metered_percent"`
		Utilisation *float64 `json:"utilisation"`
	}
	var mine row
	s.wait("what was used to be metered", func() bool {
		var out struct {
			Clusters []struct {
				Rows []row `json:"rows"`
			} `json:"clusters"`
		}
		require.NoError(t, json.Unmarshal([]byte(s.exec("root", "gshare", "-a", "--json")), &out))
		require.Len(t, out.Clusters, 1)
		for _, r := range out.Clusters[0].Rows {
			if r.Account == s.a && r.User == nil {
				mine = r
			}
		}
		// Slurm's start and end are whole seconds, so that a short run may be longer there.
		return mine.Metered != nil && *mine.Metered > 80
	})
	require.NotNil(t, mine.Utilisation)
	// 90%, but that what is seen between two looks, a second apart, is spread evenly
	// over it: where the run begins and ends, some of it is taken for the time without.
	require.GreaterOrEqual(t, *mine.Utilisation, 0.5)
	require.LessOrEqual(t, *mine.Utilisation, 0.9)
	out, err := s.Exec(s.ctx, "root", "gpubudget", "usage", "check", "--json")
	var audit struct {
		Nodes []struct {
			Agent *struct {
				State string `json:"state"`
				GPUs  int    `json:"gpus"`
			} `json:"agent"`
		} `json:"nodes"`
	}
	require.NoError(t, json.Unmarshal([]byte(out), &audit), "%v", err)
	require.Len(t, audit.Nodes, len(s.Nodes()))
	for _, n := range audit.Nodes {
		require.NotNil(t, n.Agent)
		require.Equal(t, "ok", n.Agent.State)
		require.Equal(t, 8, n.Agent.GPUs)
	}
}
