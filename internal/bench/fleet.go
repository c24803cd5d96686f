// SPDX-License-Identifier: GPL-2.0-or-later

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"gpubudget/agent"
	"gpubudget/agent/tally"
	"gpubudget/fairshare"
	"gpubudget/internal/pgserver"
	"gpubudget/migrations"
	"gpubudget/usage"
)

const (
	fleetCluster  = "fleet"
	fleetGPUs     = 8                // of a node
	fleetInterval = 30 * time.Second // between two reports of an agent
	// fleetClients is over how many connections agents report, as through a pooler.
	fleetClients = 32
	// One report in so many is sent twice, and after one in so many comes once more
	// the one before it.
	repeatEvery, lateEvery = 20, 20
	nodesOfLargeJob        = 100 // on every fourth hundred of nodes: they all count for one user
)

// FleetOptions are what the measurement of a fleet of agents needs.
type FleetOptions struct {
	DSN    string // of a migrated database, as its owner, on a server
	Server *pgserver.Server
	Nodes  []int // at each of these numbers
	// Length is how long each is measured; an agent reports each 30 s.
	Length time.Duration
}

// StartServer starts a PostgreSQL server as one would be in production, durable,
// with a migrated database.
func StartServer(ctx context.Context, dir string) (*pgserver.Server, string, error) {
	s, err := pgserver.Start(ctx, dir, pgserver.Temporary(), pgserver.Setting("fsync", "on"), pgserver.Setting("full_page_writes", "on"),
		pgserver.Setting("shared_buffers", "512MB"), pgserver.Setting("max_wal_size", "2GB"))
	if err != nil {
		return nil, "", err
	}
	cfg, err := pgx.ParseConfig(s.DSN("postgres"))
	if err == nil {
		err = migrations.Up(ctx, cfg, nil)
	}
	if err != nil {
		return nil, "", errors.Join(err, s.Stop())
	}
	return s, s.DSN("postgres"), nil
}

// RunFleet has agents report, each at its own moment of each 30 s, and measures what
// that costs the server. It fails if afterwards the server does not have exactly
// what was counted, though reports came twice and late.
func RunFleet(ctx context.Context, out io.Writer, o FleetOptions) error {
	p := &printer{out: out}
	pool, err := pgxpool.New(ctx, o.DSN+" pool_max_conns="+strconv.Itoa(fleetClients))
	if err != nil {
		return fmt.Errorf("measure a fleet: %w", err)
	}
	defer pool.Close()
	for _, n := range o.Nodes {
		if err := runFleet(ctx, p, pool, n, o); err != nil {
			return fmt.Errorf("measure a fleet of %d nodes: %w", n, err)
		}
	}
	return p.err
}

func runFleet(ctx context.Context, p *printer, pool *pgxpool.Pool, n int, o FleetOptions) error {
	f := &fleet{cluster: fleetCluster + strconv.Itoa(n), pool: pool, began: time.Now(), nodes: make([]node, n)}
	for i := range f.nodes {
		f.nodes[i].number = i
	}
	// The first report of each makes its rows, and comes before it is measured.
	if err := f.all(ctx, func(i int) error { return f.report(ctx, &f.nodes[i]) }); err != nil {
		return err
	}
	f.took = nil
	from, err := serverCPU(o.Server.PID())
	if err != nil {
		return err
	}
	began := time.Now()
	if err := f.all(ctx, func(i int) error { return f.pace(ctx, &f.nodes[i], began, o.Length) }); err != nil {
		return err
	}
	wall := time.Since(began)
	until, err := serverCPU(o.Server.PID())
	if err != nil {
		return err
	}
	p.line2("fleet/cpu", n, 100*(until-from).Seconds()/wall.Seconds(), "% of a core")
	p.line2("fleet/reports", n, float64(len(f.took))/wall.Seconds(), "reports/s")
	p.line2("fleet/write-p50", n, quantile(f.took, 0.50), "ms")
	p.line2("fleet/write-p99", n, quantile(f.took, 0.99), "ms")
	return f.check(ctx, p)
}

// line2 prints a number at a size of a fleet.
func (p *printer) line2(name string, nodes int, value float64, unit string) {
	p.print(fmt.Sprintf("%s/nodes=%d", name, nodes), value, unit)
}

// fleet is a number of agents, and what they have counted.
type fleet struct {
	cluster string
	pool    *pgxpool.Pool
	began   time.Time
	nodes   []node

	mu   sync.Mutex
	took []float64 // milliseconds, of each report
}

// node is the agent of a node.
type node struct {
	number  int
	reports int64
	last    []*tally.Bucket // what it has told last
}

// all does something for each node, as many at a time as there are.
func (f *fleet) all(ctx context.Context, do func(i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	for i := range f.nodes {
		group.Go(func() {
			if ctx.Err() != nil {
				return
			}
			if err := do(i); err != nil {
				cancel(err)
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

// pace reports at the node's moments of each interval, spread evenly over all nodes.
func (f *fleet) pace(ctx context.Context, n *node, began time.Time, length time.Duration) error {
	at := began.Add(fleetInterval * time.Duration(n.number) / time.Duration(len(f.nodes)))
	for ; at.Before(began.Add(length)); at = at.Add(fleetInterval) {
		if err := sleep(ctx, time.Until(at)); err != nil {
			return err
		}
		if err := f.report(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// report tells what the node has counted by now; at times it repeats itself, or the
// report before comes once more, after it.
func (f *fleet) report(ctx context.Context, n *node) error {
	before := n.last
	n.reports++
	n.last = f.count(n, fairshare.At(time.Now()))
	if err := f.send(ctx, n, n.last); err != nil {
		return err
	}
	turn := n.number + int(n.reports)
	if turn%repeatEvery == 0 {
		if err := f.send(ctx, n, n.last); err != nil {
			return err
		}
	}
	if turn%lateEvery == lateEvery/2 && before != nil {
		return f.send(ctx, n, before)
	}
	return nil
}

// count is what a node has counted up to an instant: 8 GPUs that 4 jobs hold, or one
// job of many nodes.
func (f *fleet) count(n *node, now fairshare.Instant) []*tally.Bucket {
	const hour = fairshare.Instant(time.Hour / time.Millisecond)
	first := fairshare.At(f.began) - 10*60_000
	var all []*tally.Bucket
	for starts := first - first%hour; starts < now; starts += hour {
		from, until := max(starts, first), min(starts+hour, now)
		for gpu := range fleetGPUs {
			held, part := int64(until-from), n.number*fleetGPUs/2+gpu/2
			account, user := fmt.Sprint("a", part%20), fmt.Sprint("u", part%200)
			if n.number/nodesOfLargeJob%4 == 3 {
				part, account, user = 10_000_000+n.number/nodesOfLargeJob, "large", "ann"
			}
			all = append(all, &tally.Bucket{
				Starts: starts, Ends: starts + hour, GPU: fmt.Sprintf("GPU-%d-%d", n.number, gpu), JobID: uint32(part + 1), //nolint:gosec // small
				Incarnation: tally.UUID(fmt.Sprint(f.cluster, n.number)), Seq: n.reports, Source: tally.FromProlog, User: user, Account: account,
				From: from, Until: until, Part: held, Busy: new(held / 2), BusyKnown: held, Memory: new(held * 1000), MemoryKnown: held, MemoryMax: new(int64(1000)),
				Energy: new(held * 300), EnergyKnown: held, Process: new(held), ProcessKnown: held, Samples: n.reports, LastBusy: &until,
			})
		}
	}
	return all
}

func (f *fleet) send(ctx context.Context, n *node, buckets []*tally.Bucket) error {
	now := time.Now()
	sampled := now.UnixMilli()
	err := agent.Send(ctx, f.pool, &agent.Report{
		Cluster: f.cluster, Node: fmt.Sprint("n", n.number), Sent: sampled, Buckets: buckets,
		Agent: agent.Sign{Incarnation: buckets[0].Incarnation, BootID: "bench", Started: sampled, Version: "bench", Sampled: &sampled, GPUs: fleetGPUs, State: agent.StateOK},
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.took = append(f.took, milliseconds(time.Since(now)))
	return err
}

// check holds what the server has against what was counted: row by row, and the sums
// by account and user against the rows.
func (f *fleet) check(ctx context.Context, p *printer) error {
	lost, doubled, err := f.compare(ctx)
	if err != nil {
		return err
	}
	var sums int64
	err = f.pool.QueryRow(ctx, `SELECT abs((SELECT coalesce(sum(held_ms), 0) FROM gpubudget.gpu_bucket WHERE cluster = $1)
		- (SELECT sum(held_ms) FROM (SELECT cluster, held_ms FROM gpubudget.metered_bucket UNION ALL SELECT cluster, held_ms FROM gpubudget.metered_delta) m WHERE cluster = $1))::bigint`,
		f.cluster).Scan(&sums)
	if err != nil {
		return err
	}
	p.line2("fleet/lost", len(f.nodes), float64(lost), "buckets")
	p.line2("fleet/doubled", len(f.nodes), float64(doubled), "buckets")
	if lost+doubled != 0 || sums != 0 {
		return fmt.Errorf("%d buckets are lost, %d doubled, and the sums are off by %d ms", lost, doubled, sums)
	}
	return p.err
}

// compare counts buckets of which the server has less than was counted, and those of
// which it has more.
func (f *fleet) compare(ctx context.Context) (lost, doubled int, err error) {
	want := map[string]*tally.Bucket{}
	for i := range f.nodes {
		for _, b := range f.nodes[i].last {
			want[fmt.Sprint(b.GPU, " ", b.JobID, " ", int64(b.Starts))] = b
		}
	}
	rows, err := f.pool.Query(ctx, `SELECT gpu, job_id, gpubudget.unix_ms(starts_at), seq, held_ms, busy_ms, energy_mj
		FROM gpubudget.gpu_bucket WHERE cluster = $1`, f.cluster)
	if err != nil {
		return 0, 0, err
	}
	var got tally.Bucket
	var gpu string
	var held, busy, energy int64
	_, err = pgx.ForEachRow(rows, []any{&gpu, &got.JobID, &got.Starts, &got.Seq, &held, &busy, &energy}, func() error {
		key := fmt.Sprint(gpu, " ", got.JobID, " ", int64(got.Starts))
		switch b := want[key]; {
		case b == nil || held > b.Held() || busy > *b.Busy || energy > *b.Energy:
			doubled++
		case got.Seq != b.Seq || held != b.Held() || busy != *b.Busy || energy != *b.Energy:
			lost++
		}
		delete(want, key)
		return nil
	})
	return lost + len(want), doubled, err
}

// serverCPU is the CPU time of a server and of all processes that it has started,
// those that have ended too.
func serverCPU(pid int) (time.Duration, error) {
	const tick = 10 * time.Millisecond // what /proc counts in, on Linux
	dirs, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, path := range dirs {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// The name, in parentheses, may have spaces.
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest)
		if len(fields) < 15 {
			return 0, fmt.Errorf("%s: %q", path, text)
		}
		own := filepath.Base(filepath.Dir(path)) == strconv.Itoa(pid)
		if !own && fields[1] != strconv.Itoa(pid) {
			continue
		}
		counted := fields[11:13] // user, system
		if own {
			counted = fields[11:15] // and those of children that have ended
		}
		for _, field := range counted {
			ticks, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", path, err)
			}
			sum += time.Duration(ticks) * tick
		}
	}
	return sum, nil
}

const (
	windowUsers   = 5000
	windowRuns    = 14 // of each in the week: 42 buckets of an hour, as of two runs of two hours a day
	windowEnded   = 50 // runs that end between two refreshes
	windowRounds  = 20
	windowCluster = "window"
)

// RunWindow measures a refresh of the lookback window: a week of 5,000 users in
// buckets of an hour, of which 50 have ended a run since the refresh before.
func RunWindow(ctx context.Context, out io.Writer, dsn string) error {
	p := &printer{out: out}
	db, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("measure a refresh: %w", err)
	}
	defer db.Close(ctx)
	for _, sql := range []string{
		fmt.Sprintf(`INSERT INTO gpubudget.job_run (cluster, job_id, account, user_name, gpus, allocated, started_at, ended_at, seen_at, end_seen_at)
		SELECT '%s', i * %[3]d + n, 'a' || i / 10, 'u' || i, 1 + i %% 8, true, t, t + interval '2 hours', t, t
		FROM generate_series(0, %[2]d) i, generate_series(1, %[3]d) n,
			LATERAL (VALUES (date_trunc('second', now() - (n - 1) * interval '12 hours' - interval '2 hours' - i %% 90 * interval '1 minute'))) v (t)`,
			windowCluster, windowUsers-1, windowRuns),
		"ANALYZE",
	} {
		if _, err := db.Exec(ctx, sql); err != nil {
			return fmt.Errorf("measure a refresh: %w", err)
		}
	}
	s := usage.NewStore(db)
	read := func(old *usage.History) (*usage.History, time.Duration, error) {
		began := time.Now()
		now := fairshare.At(began)
		h, err := s.History(ctx, windowCluster, fairshare.Period{From: now - 7*24*3_600_000, Until: now}, nil, old)
		return h, time.Since(began), err
	}
	h, took, err := read(nil)
	if err != nil {
		return err
	}
	p.print(fmt.Sprintf("window/first/rows=%d", h.Len()), milliseconds(took), "ms")
	var all []float64
	for n := range windowRounds {
		_, err := db.Exec(ctx, `INSERT INTO gpubudget.job_run (cluster, job_id, account, user_name, gpus, allocated, started_at, ended_at, seen_at, end_seen_at)
			SELECT $1, 1000000 + $2 * $3 + i, 'a' || i * 10, 'u' || i * 100, 2, true, t - interval '2 hours', t, t, t
			FROM generate_series(0, $3 - 1) i, LATERAL (VALUES (date_trunc('second', now()))) v (t)`, windowCluster, n, windowEnded)
		if err != nil {
			return fmt.Errorf("measure a refresh: %w", err)
		}
		if h, took, err = read(h); err != nil {
			return err
		}
		all = append(all, milliseconds(took))
	}
	p.print(fmt.Sprintf("window/refresh/rows=%d", h.Len()), median(all), "ms")
	return p.err
}
