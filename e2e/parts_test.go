// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/agent"
	"gpubudget/fairshare"
	"gpubudget/internal/simnvml"
	"gpubudget/internal/testcluster"
)

// parted is a cluster whose GPUs are shared: two A100 by MPS, one by 100 and one by
// 50, which do nothing whoever holds them, and two H100 by four shards each, which
// work as long as a job holds them.
func parted(t *testing.T) metered {
	t.Helper()
	m := newMetered(t, testcluster.Options{
		Nodes: 2, GPUsPerNode: 2, Slurmdbd: true, Priority: testcluster.Gpubudget,
		GresOfNodes: map[string]string{"n1": "gpu:a100:2,mps:150", "n2": "gpu:h100:2,shard:8"},
		GresConf: []string{
			"NodeName=n1 Name=gpu Type=a100 File=%s/gpu[0-1]",
			"NodeName=n1 Name=mps Count=100 File=%s/gpu0",
			"NodeName=n1 Name=mps Count=50 File=%s/gpu1",
			"NodeName=n2 Name=gpu Type=h100 File=%s/gpu[0-1]",
			"NodeName=n2 Name=shard Count=4 File=%s/gpu0",
			"NodeName=n2 Name=shard Count=4 File=%s/gpu1",
		},
		SlurmConf: []string{"GresTypes=gpu,mps,shard", "MinJobAge=300", "AccountingStorageTRES=gres/gpu,gres/mps,gres/shard"},
		Accounts: []testcluster.Account{
			{Name: "w", Share: "100%"}, {Name: "w_a", Parent: "w", Share: "50%", Users: []string{ann}}, {Name: "w_b", Parent: "w", Share: "50%", Users: []string{ann}},
		},
	})
	require.NoError(t, m.LoadBudgets(m.ctx, nil))
	require.NoError(t, m.WriteGPUs("n1", m.IdleGPUs("n1")))
	return m
}

// heldGPUs are the GPUs that the meters say a job held.
func (m metered) heldGPUs(job uint32) []string {
	m.t.Helper()
	return m.rows("SELECT DISTINCT gpu FROM gpubudget.gpu_bucket WHERE job_id = $1 ORDER BY 1", job)
}

// waitCounted waits until all that jobs held has been counted, and their runs are recorded.
func (m metered) waitCounted(jobs ...uint32) {
	m.t.Helper()
	for _, job := range jobs {
		m.until(fmt.Sprintf("job %d to be counted to its end", job), func() bool {
			return len(m.rows("SELECT gpu FROM gpubudget.gpu_bucket WHERE job_id = $1 AND ended", job)) > 0 &&
				len(m.rows("SELECT job_id::text FROM gpubudget.job_run WHERE job_id = $1 AND ended_at IS NOT NULL", job)) > 0
		})
	}
}

// jobCharge is what gpubudget usage job says a job is charged.
func (m metered) jobCharge(job uint32) (sum fairshare.GPUMillis) {
	m.t.Helper()
	var out struct {
		Runs []struct {
			Charged fairshare.GPUMillis `json:"charged_gpu_milliseconds"`
		} `json:"runs"`
	}
	require.NoError(m.t, json.Unmarshal([]byte(m.exec("root", "gpubudget", "usage", "job", number0(job), "--json")), &out))
	require.NotEmpty(m.t, out.Runs)
	for _, r := range out.Runs {
		sum += r.Charged
	}
	return sum
}

// atWork is what meters saw of a run on one GPU.
type atWork struct {
	known, busy *big.Rat // for how long its utilisation is known, and for how long the GPU was at work
	own         *big.Rat // of that, as its part of the GPU is to those of all on it
}

// sharer is that a job has a part of a GPU, by Slurm's record, while a meter sees it there.
type sharer struct {
	GPU               string
	Job               uint32
	Part, From, Until int64 // millionths; milliseconds
}

// sharers are all of them.
func (m metered) sharers(conn *pgx.Conn) []sharer {
	m.t.Helper()
	rows, err := conn.Query(m.ctx, `SELECT gpu, job_id, gpus * 1000000 + parts AS part,
			gpubudget.unix_ms(greatest(held_from, started_at)) AS from, gpubudget.unix_ms(least(held_until, coalesce(ended_at, 'infinity'))) AS until
		FROM gpubudget.gpu_bucket b JOIN gpubudget.job_run r USING (cluster, job_id, restart)`)
	require.NoError(m.t, err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[sharer])
	require.NoError(m.t, err)
	return all
}

// answersFor is for how long of a stretch a job was on the GPU alone, and for how much
// of the work in the rest it answers, beside others.
func (s sharer) answersFor(all []sharer) (alone int64, ofShared *big.Rat) {
	all = slices.DeleteFunc(slices.Clone(all), func(o sharer) bool {
		return o.GPU != s.GPU || o.Job == s.Job || o.Until <= s.From || o.From >= s.Until
	})
	edges := []int64{s.From, s.Until}
	for _, o := range all {
		edges = append(edges, max(s.From, o.From), min(s.Until, o.Until))
	}
	slices.Sort(edges)
	sum, length := new(big.Rat), s.Until-s.From
	for i := range len(edges) - 1 {
		parts := s.Part
		for _, o := range all {
			if o.From <= edges[i] && edges[i] < o.Until {
				parts += o.Part
			}
		}
		if parts == s.Part {
			alone += edges[i+1] - edges[i]
			continue
		}
		sum.Add(sum, big.NewRat((edges[i+1]-edges[i])*s.Part, parts))
	}
	if alone == length {
		return alone, big.NewRat(1, 1)
	}
	return alone, sum.Quo(sum, big.NewRat(length-alone, 1))
}

// ofAlone is for how much a job answers of what a meter counted as its alone: less, where
// others were there for longer than it counted.
func ofAlone(alone int64, ofShared, counted *big.Rat) *big.Rat {
	was := big.NewRat(alone, 1)
	if was.Cmp(counted) >= 0 {
		return big.NewRat(1, 1)
	}
	truly := was.Quo(was, counted)
	rest := new(big.Rat).Sub(big.NewRat(1, 1), truly)
	return truly.Add(truly, rest.Mul(rest, ofShared))
}

func (m metered) atWork(job uint32) atWork {
	m.t.Helper()
	conn, err := pgx.Connect(m.ctx, m.DSN())
	require.NoError(m.t, err)
	defer conn.Close(m.ctx)
	all := m.sharers(conn)
	rows, err := conn.Query(m.ctx, `SELECT held_ms, shared_ms, gpu, busy_known_ms + shared_busy_known_ms, coalesce(busy_ms, 0), coalesce(shared_busy_ms, 0),
			gpubudget.unix_ms(greatest(held_from, started_at)), gpubudget.unix_ms(least(held_until, ended_at)), gpus * 1000000 + parts
		FROM gpubudget.gpu_bucket b JOIN gpubudget.job_run r USING (cluster, job_id, restart)
		WHERE job_id = $1 AND (busy_ms IS NOT NULL OR shared_busy_ms IS NOT NULL) AND held_from < ended_at`, job)
	require.NoError(m.t, err)
	w := atWork{new(big.Rat), new(big.Rat), new(big.Rat)}
	for rows.Next() {
		var held, shared, known, busyAlone, busyShared int64
		s := sharer{Job: job}
		require.NoError(m.t, rows.Scan(&held, &shared, &s.GPU, &known, &busyAlone, &busyShared, &s.From, &s.Until, &s.Part))
		within := func(amount int64) *big.Rat { return big.NewRat(amount*(s.Until-s.From), held) }
		alone, ofShared := s.answersFor(all)
		w.known.Add(w.known, within(known))
		w.busy.Add(w.busy, within(busyAlone+busyShared))
		w.own.Add(w.own, new(big.Rat).Mul(within(busyShared), ofShared))
		w.own.Add(w.own, new(big.Rat).Mul(within(busyAlone), ofAlone(alone, ofShared, within(held-shared))))
	}
	require.NoError(m.t, rows.Err())
	return w
}

// change is what a policy makes of it for a run that holds a part of each GPU.
func (w atWork) change(policy string, part int64) float64 {
	of := big.NewRat(min(part, fairshare.Millionths), fairshare.Millionths)
	change := new(big.Rat)
	switch policy {
	case "utilisation":
		change.Mul(of, change.Sub(w.busy, w.known))
	case "max":
		if change.Sub(w.own, change.Mul(of, w.known)); change.Sign() < 0 {
			change.SetInt64(0)
		}
	}
	exactly, _ := change.Float64()
	return exactly
}

// Jobs on MPS and on shards hold parts of GPUs in Slurm's record and ours, are charged
// those, and never more than a GPU; the meters count them on the same GPU, and what
// they do there bears on the charge as the policy says: a job that squats on a GPU
// pays by occupancy and max, and not by utilisation; one that keeps more of a GPU
// at work than its part pays for that by max only.
func TestPartsOfGPUsAreCharged(t *testing.T) {
	m := parted(t)
	from := time.Now().UTC().Format("2006-01-02T15:04:05Z")
	setCharge := func(policy string) {
		m.exec("root", "gpubudget", "-i", "policy", "set", "charge", policy, "--from", from)
	}
	setCharge("utilisation")
	type job struct {
		id      uint32
		seconds int64
		part    int64 // millionths of a GPU, by Slurm's record
	}
	run := func(account string, args ...string) *job {
		return &job{id: m.sbatch(append(args, "--account="+account, "--wrap", "sleep 6")...)}
	}
	squatter, worker, glutton := run("w_a", "--gres=gpu:a100:1"), run("w_a", "--gres=gpu:h100:1"), run("w_a", "--gres=shard:1")
	mps := run("w_b", "--gres=mps:25")
	require.NoError(t, m.WaitNoJobs(m.ctx))
	shards, rest := run("w_b", "--gres=shard:3"), run("w_b", "--gres=shard:1")
	third, whole := run("w_b", "--gres=mps:20"), run("w_b", "--gres=shard:4")
	require.NoError(t, m.WaitNoJobs(m.ctx))
	all := []*job{squatter, worker, glutton, mps, shards, rest, third, whole}
	for _, j := range all {
		m.waitCounted(j.id)
		j.seconds = m.sacct(j.id).seconds
	}

	// What each held, by Slurm's record: the part of MPS is one of 100 or of 50, by the
	// GPU that the meter saw it on.
	of := func(j *job, count int64) string {
		j.part = count * 1_000_000 / 100
		if slices.Equal(m.heldGPUs(j.id), []string{"GPU-n1-1"}) {
			j.part *= 2
		}
		return fmt.Sprintf("0 %d a100", j.part)
	}
	squatter.part, worker.part, glutton.part, shards.part, rest.part, whole.part = 1e6, 1e6, 250_000, 750_000, 250_000, 1e6
	for j, want := range map[*job]string{
		squatter: "1 0 a100", worker: "1 0 h100", glutton: "0 250000 h100", shards: "0 750000 h100", rest: "0 250000 h100",
		whole: "0 1000000 h100", mps: of(mps, 25), third: of(third, 20),
	} {
		require.Equal(t, want, m.held(j.id), m.exec("root", "sacct", "-XP", "-j", number0(j.id), "-o", "SubmitLine,AllocTRES"))
		require.Len(t, m.heldGPUs(j.id), 1)
	}
	require.Equal(t, []string{"25"}, m.rows("SELECT DISTINCT mps_percent::text FROM gpubudget.gpu_bucket WHERE job_id = $1 AND gpu = 'GPU-n1-0' UNION SELECT '25'", mps.id))
	// Nobody had more of a GPU than there is, by the runs and by the meters.
	require.Empty(t, m.rows(`SELECT format('%s at %s: %s', b.gpu, r.started_at, sum(o.parts + o.gpus * 1000000))
		FROM gpubudget.job_run r JOIN gpubudget.gpu_bucket b USING (cluster, job_id, restart)
		JOIN gpubudget.gpu_bucket n ON n.gpu = b.gpu JOIN gpubudget.job_run o ON o.job_id = n.job_id AND o.started_at <= r.started_at AND o.ended_at > r.started_at
		GROUP BY b.gpu, r.job_id, r.started_at HAVING sum(o.parts + o.gpus * 1000000) > 1000000`))
	require.Equal(t, []string{"t"}, m.rows(`SELECT DISTINCT (sum(part_ms) <= gpubudget.unix_ms(max(held_until)) - gpubudget.unix_ms(min(held_from)))::text::char
		FROM gpubudget.gpu_bucket GROUP BY gpu`))
	m.exec("root", "gpubudget", "usage", "check", "--tolerance", "10s")
	// What a GPU was at work while two shared it is known too.
	require.Equal(t, m.heldGPUs(shards.id), m.heldGPUs(rest.id))
	require.Equal(t, []string{"t"}, m.rows(`SELECT DISTINCT (sum(shared_busy_ms) > 0 AND sum(shared_busy_known_ms) > sum(shared_ms) / 2)::text::char
		FROM gpubudget.gpu_bucket WHERE job_id IN ($1, $2) GROUP BY job_id`, shards.id, rest.id))

	// By each policy, to the millisecond.
	held := func(j *job) fairshare.GPUMillis { return fairshare.Charged(j.part, j.seconds*1000) }
	charged := map[string]map[*job]fairshare.GPUMillis{}
	for _, policy := range []string{"utilisation", "max", "occupancy"} {
		if policy != "utilisation" { // which holds since before they ran
			setCharge(policy)
		}
		charged[policy] = map[*job]fairshare.GPUMillis{}
		for _, j := range all {
			want := float64(held(j)) + m.atWork(j.id).change(policy, j.part)
			m.until(fmt.Sprintf("job %d to be charged by %s", j.id, policy), func() bool {
				charged[policy][j] = m.jobCharge(j.id)
				return math.Abs(float64(charged[policy][j])-want) < 1.5
			})
		}
		for account, of := range map[string][]*job{"w_a": {squatter, worker, glutton}, "w_b": {mps, shards, rest, third, whole}} {
			var sum fairshare.GPUMillis
			for _, j := range of {
				sum += charged[policy][j]
			}
			require.Equal(t, sum, m.charged(account))
			require.Equal(t, sum, m.used(account), "gshare")
		}
	}
	for _, j := range all {
		require.Equal(t, held(j), charged["occupancy"][j])
	}
	part := func(policy string, j *job) float64 { return float64(charged[policy][j]) / float64(j.seconds*1000) }
	require.Less(t, part("utilisation", squatter), 0.5, "idle, but for the moments that nobody knows of")
	require.Equal(t, 1.0, part("max", squatter))
	require.InDelta(t, 0.8, part("utilisation", worker), 0.19, "at work for most of what is known")
	require.Equal(t, 1.0, part("max", worker))
	require.InDelta(t, 0.8*0.25, part("utilisation", glutton), 0.19*0.25)
	require.Greater(t, part("max", glutton), 0.5, "it keeps all of the GPU at work, and has a quarter")
}

// mapped are a node's files for dcgm-exporter, by name.
func (m metered) mapped(node string) map[string]string {
	m.t.Helper()
	dir := m.AgentMapping(node)
	entries, err := os.ReadDir(dir)
	require.NoError(m.t, err)
	files := map[string]string{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if !os.IsNotExist(err) { // it is being replaced
			require.NoError(m.t, err)
			files[e.Name()] = string(text)
		}
	}
	return files
}

// instance is a MIG instance of a simulated A100.
type instance struct {
	gi, slices, gib int
	device          int // of its GPU instance's capability; that of its compute instance is the next
}

// cutUp is what an A100 can be cut into: 7 slices of compute and 8 of memory.
var cutUp = []instance{{1, 3, 20, 30}, {5, 2, 10, 50}, {13, 1, 5, 70}, {14, 1, 5, 80}}

func (i instance) uuid() string    { return fmt.Sprintf("MIG-n1-%d", i.gi) }
func (i instance) profile() string { return fmt.Sprintf("%dg.%dgb", i.slices, i.gib) }

// A GPU that is cut into MIG instances: Slurm hands out each by its type, the meter
// finds which one that is by the driver's capability devices, and it is charged its
// part of a GPU.
func TestMIGInstancesAreCharged(t *testing.T) {
	var minors strings.Builder
	gres := []string{"NodeName=n1 Name=gpu Type=a100 File=%s/gpu0"}
	for _, i := range cutUp {
		fmt.Fprintf(&minors, "gpu1/gi%d/access %d\ngpu1/gi%[1]d/ci0/access %[3]d\n", i.gi, i.device, i.device+1)
		gres = append(gres, fmt.Sprintf("NodeName=n1 Name=gpu Type=a100_%s MultipleFiles=%%s/gpu1,%%s/nvidia-cap%d,%%s/nvidia-cap%d", i.profile(), i.device, i.device+1))
	}
	m := newMetered(t, testcluster.Options{
		GPUsPerNode: 2, MIGMinors: minors.String(), GresConf: gres, Slurmdbd: true, Priority: testcluster.Gpubudget,
		NodeGres:  "gpu:a100:1,gpu:a100_3g.20gb:1,gpu:a100_2g.10gb:1,gpu:a100_1g.5gb:2",
		SlurmConf: []string{"MinJobAge=300"},
		Accounts:  []testcluster.Account{{Name: "w", Share: "100%", Users: []string{ann}}},
	})
	require.NoError(t, m.LoadBudgets(m.ctx, nil))
	gpus := m.WorkingGPUs("n1")
	g := &gpus.GPUs[1]
	g.Load, g.Working, g.MIG, g.Slices, g.GPM = nil, "", new(true), 7, true
	for n, i := range cutUp {
		load := simnvml.Steady([]float64{80, 0, 40, 0}[n])
		g.Instances = append(g.Instances, simnvml.Instance{UUID: i.uuid(), GI: i.gi, Slices: i.slices, Memory: uint64(i.gib) << 30, Load: load})
	}
	require.NoError(t, m.WriteGPUs("n1", gpus))

	run := func(gres string) uint32 { return m.sbatch("--account=w", "--gres="+gres, "--wrap", "sleep 4") }
	const bySlurm, byMeter = 0, 1
	jobs := map[uint32][2]string{
		run("gpu:a100_3g.20gb:1"): {"1 0 a100_3g.20gb", "MIG-n1-1"},
		run("gpu:a100_2g.10gb:1"): {"1 0 a100_2g.10gb", "MIG-n1-5"},
		run("gpu:a100_1g.5gb:2"):  {"2 0 a100_1g.5gb", "MIG-n1-13 MIG-n1-14"},
		run("gpu:a100:1"):         {"1 0 a100", "GPU-n1-0"},
	}
	// Whoever looks on the node sees who holds which instance.
	var view agent.View
	m.until("all to be held", func() bool {
		view = agent.View{}
		text := m.exec("root", "env", simnvml.Variable+"="+m.GPUState("n1"), "gpubudget-agent", "--conf", m.AgentConf(), "--node", "n1", "--once", "--json")
		require.NoError(t, json.Unmarshal([]byte(text), &view))
		return len(view.Holdings) == len(jobs)
	})
	require.Empty(t, view.Problems)
	for _, g := range view.GPUs {
		if g.UUID == "GPU-n1-1" {
			require.Empty(t, g.Jobs)
			continue
		}
		require.Len(t, g.Jobs, 1, g.UUID)
		require.Contains(t, strings.Fields(jobs[g.Jobs[0]][byMeter]), g.UUID)
		require.Equal(t, g.Profile != "", g.Parent == "GPU-n1-1")
		require.NotNil(t, g.Percent)
	}
	// dcgm-exporter's files are named by GPU and GPU instance.
	m.until("dcgm-exporter's files", func() bool { return len(m.mapped("n1")) == len(cutUp)+1 })
	files := m.mapped("n1")
	for job, want := range jobs {
		for uuid := range strings.FieldsSeq(want[byMeter]) {
			name := map[string]string{"GPU-n1-0": "0", "MIG-n1-1": "1.1", "MIG-n1-5": "1.5", "MIG-n1-13": "1.13", "MIG-n1-14": "1.14"}[uuid]
			require.Equal(t, number0(job)+"\n", files[name], files)
		}
	}
	release := func(args ...string) error {
		_, err := m.Exec(m.ctx, "root", "gpubudget-agent", slices.Concat([]string{"--conf", m.AgentConf(), "--node", "n1", "release"}, args)...)
		return err
	}
	require.ErrorContains(t, release("--gpu", "1", "true"), "GPU 1 (GPU-n1-1) is held by job")
	require.NoError(t, m.WaitNoJobs(m.ctx))
	// Who is connected to the simulated driver has a lock.
	free := []string{"flock", "--nonblock", m.GPUState("n1") + ".clients", "true"}
	_, err := m.Exec(m.ctx, "root", free[0], free[1:]...)
	require.Error(t, err, "the agent is connected")
	m.until("the agent to let go of the GPU", func() bool { return release(append([]string{"--gpu", "1"}, free...)...) == nil })
	all := run("gpu:a100_3g.20gb:1,gpu:a100_2g.10gb:1,gpu:a100_1g.5gb:2")
	require.NoError(t, m.WaitNoJobs(m.ctx))

	part := map[string]int64{"a100_3g.20gb": 500_000, "a100_2g.10gb": 285_714, "a100_1g.5gb": 2 * 142_857, "a100": fairshare.Millionths}
	var sum fairshare.GPUMillis
	for job, want := range jobs {
		m.waitCounted(job)
		require.Equal(t, want[bySlurm], m.held(job))
		require.Equal(t, strings.Fields(want[byMeter]), m.heldGPUs(job))
		held := fairshare.Charged(part[strings.Fields(want[bySlurm])[2]], m.sacct(job).seconds*1000)
		require.Equal(t, held, m.jobCharge(job))
		sum += held
	}
	require.Equal(t, []string{"MIG-n1-1 0.8", "MIG-n1-13 0.4", "MIG-n1-14 0.0", "MIG-n1-5 0.0"}, m.rows(`SELECT format('%s %s', gpu, round(sum(busy_ms)::numeric / sum(busy_known_ms), 1))
		FROM gpubudget.gpu_bucket WHERE gpu LIKE 'MIG%' AND job_id <> $1 GROUP BY gpu ORDER BY 1`, all), "each has a meter of its own")
	m.exec("root", "gpubudget", "usage", "check", "--tolerance", "10s")

	// All instances of the GPU are one GPU, in capacity too.
	m.waitCounted(all)
	require.Equal(t, "4 0 a100_3g.20gb:1,a100_2g.10gb:1,a100_1g.5gb:2", m.held(all))
	whole := m.jobCharge(all)
	require.Equal(t, fairshare.GPUMillis(m.sacct(all).seconds*1000), whole)
	require.Equal(t, sum+whole, m.used("w"), "gshare")
	r, err := m.Report(m.ctx)
	require.NoError(t, err)
	require.Equal(t, fairshare.MilliGPUs(2000), r.Capacity)
}
