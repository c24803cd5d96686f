// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/conf"
	"gpubudget/fairshare"
	"gpubudget/internal/pgtest"
	"gpubudget/slurmplugin/shimtest"
	"gpubudget/usage"
)

// TestMain keeps the property tests short, as each of their checks meets
// Postgres many times; -rapid.checks asks for more.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "25"); err != nil {
		panic(err)
	}
	pgtest.Main(m)
}

// begin is when the tests' clocks start.
var begin = time.Date(2026, 11, 2, 12, 0, 0, 0, time.UTC)

// tester is what *testing.T and *rapid.T have in common.
type tester interface {
	require.TestingT
	Helper()
	Fatalf(format string, args ...any)
}

// host is a slurmctld for an engine, with a clock of its own. Its engine has no
// goroutines: the test says when the spool is written and Postgres is met.
type host struct {
	t       tester
	pool    *pgxpool.Pool
	dsn     string
	dir     string
	cluster string
	now     time.Time
	passed  time.Duration // what is now from begin on, if nobody has set the clock
	engine  *Engine

	mu    sync.Mutex
	lines []string

	// What the shim keeps to itself: what else the priorities of pending jobs
	// depend on (Age is when that began to count), and the last table.
	inputs map[uint32]*fairshare.Job
	table  *fairshare.Table
	// What it says of jobs that ask to be unallocated.
	unallocated UnallocatedKinds
}

// newHost is a host on a database, in an empty folder.
func newHost(t tester, pool *pgxpool.Pool, dir, cluster string) *host {
	h := &host{t: t, pool: pool, dsn: pool.Config().ConnString(), dir: dir, cluster: cluster, now: begin}
	h.configure(h.dsn)
	return h
}

// hostOn is newHost on a fresh database with a small tree.
func hostOn(t *testing.T) *host {
	t.Helper()
	h := newHost(t, pgtest.Pool(t), t.TempDir(), "titan")
	h.plant()
	return h
}

// plant writes the tests' ledger, in force since long ago:
//
//	root -> physics 50% (alice, bob), bio 30% (carol), idle 0% (dora)
func (h *host) plant() {
	h.t.Helper()
	ctx, n := context.Background(), budgets.Note{Actor: "test", From: begin.AddDate(0, -1, 0)}
	require.NoError(h.t, budgets.NewStore(h.pool).InTx(ctx, func(s *budgets.Store) error {
		return h.plantIn(ctx, s, n)
	}))
}

func (h *host) plantIn(ctx context.Context, s *budgets.Store, n budgets.Note) error {
	for _, a := range []struct {
		name  string
		share fairshare.Share
		users []string
	}{
		{"physics", 500_000_000, []string{"alice", "bob"}},
		{"bio", 300_000_000, []string{"carol"}},
		{"idle", 0, []string{"dora"}},
	} {
		if _, err := s.AddAccount(ctx, h.cluster, a.name, fairshare.RootAccount, a.share, n); err != nil {
			return err
		}
		for _, user := range a.users {
			if _, err := s.AddUser(ctx, h.cluster, a.name, user, fairshare.EqualPart, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// configure writes the configuration file.
func (h *host) configure(dsn string, lines ...string) {
	h.t.Helper()
	text := fmt.Sprintf("DSN=%q\n%s\n", dsn, strings.Join(lines, "\n"))
	require.NoError(h.t, os.WriteFile(h.confPath(), []byte(text), 0o600))
}

func (h *host) confPath() string { return filepath.Join(h.dir, "gpubudget.conf") }

func (h *host) describe() Host {
	return Host{
		Cluster: h.cluster, SlurmVersion: "22.05.8", ConfPath: h.confPath(), StateDir: h.dir, Version: "test",
		Clock: h.clock, Passed: func() time.Duration { return h.passed },
		Log: func(_ Level, line string) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.lines = append(h.lines, line)
		},
	}
}

// start starts an engine without goroutines.
func (h *host) start() {
	h.t.Helper()
	c, err := conf.Load(h.confPath())
	require.NoError(h.t, err)
	h.engine = newEngine(h.describe(), c)
	h.engine.loadFiles()
}

// exchange is a meeting with Postgres, as the refresher's goroutine has them, in
// which the engine writes: it may take the server a moment to notice that the
// connection of an earlier engine is gone.
func (h *host) exchange() error {
	for began := time.Now(); ; time.Sleep(time.Millisecond) {
		err := h.meetOnce()
		if err != nil || !h.engine.refresher.waiting {
			return err
		}
		require.Less(h.t, time.Since(began), 30*time.Second, "the lock of the single writer")
	}
}

// meetOnce is exchange, which may find that another engine still writes.
func (h *host) meetOnce() error {
	r := h.engine.refresher
	r.reload()
	err := r.cycle(context.Background())
	if err == nil {
		r.back()
		return nil
	}
	r.disconnect()
	r.lost(err)
	r.save(true)
	r.report(r.tidy())
	return err
}

// stop ends the engine in an orderly way.
func (h *host) stop() {
	h.t.Helper()
	r := h.engine.refresher
	r.save(true)
	r.disconnect()
	require.NoError(h.t, h.engine.Stop())
}

// kill ends the engine as kill -9 would: what is only in memory is gone.
func (h *host) kill() {
	h.engine.refresher.disconnect()
	h.engine.recorder.spool.mu.Lock()
	defer h.engine.recorder.spool.mu.Unlock()
	h.engine.recorder.spool.release()
}

// logged counts the lines that contain text.
func (h *host) logged(text string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, line := range h.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func (h *host) ms() int64 { return h.now.UnixMilli() }

// pass shows all jobs to the engine, in batches as the shim does, and returns
// the priorities that follow for those that pend.
func (h *host) pass(jobs ...Job) map[uint32]uint32 {
	h.t.Helper()
	h.engine.GoesBySlurm()
	h.look(jobs...)
	h.rank(jobs...)
	priorities := make(map[uint32]uint32)
	for i := range jobs {
		if jobs[i].State == Pending {
			priorities[jobs[i].JobID] = h.score(&jobs[i]).Priority
		}
	}
	return priorities
}

// look is a pass that gives no priorities.
func (h *host) look(jobs ...Job) {
	h.t.Helper()
	h.engine.BeginPass(h.ms(), Cluster{Nodes: 4, CPUs: 64, GPUs: 32, GPUsConfigured: 32})
	for batch := range slices.Chunk(jobs, 3) {
		h.engine.Observe(batch)
	}
	require.NoError(h.t, h.engine.EndPass())
}

// rank has the engine rank everybody and takes its table, as the shim does.
func (h *host) rank(jobs ...Job) {
	h.t.Helper()
	var x Extremes
	for i := range jobs {
		in := h.inputs[jobs[i].JobID]
		if in == nil || jobs[i].State != Pending {
			continue
		}
		if x.Any == 0 {
			x.Any, x.SiteLow, x.SiteHigh = 1, in.Site, in.Site
		}
		x.SiteLow, x.SiteHigh = min(x.SiteLow, in.Site), max(x.SiteHigh, in.Site)
		x.Assoc, x.Partition = max(x.Assoc, in.AssocFactor), max(x.Partition, in.PartitionFactor)
	}
	var t Table
	require.NoError(h.t, h.engine.Rank(&x, &t))
	qos, nice, slots := make([]Rise, t.QOSCount+1), make([]Rise, t.NiceCount+1), make([]Slot, t.SlotCount+1)
	t.QOS, t.Nice, t.Slots = &qos[0], &nice[0], &slots[0]
	require.NoError(h.t, h.engine.FillTable(&t))
	h.table = h.tableOf(&t)
}

// tableOf is what the shim has been given as fairshare has it.
func (h *host) tableOf(t *Table) *fairshare.Table {
	w := &t.Weights
	slots := []fairshare.Slot(nil)
	for _, s := range array(t.Slots, t.SlotCount) {
		slots = append(slots, fairshare.Slot{
			QOSUnit: s.QOSUnit, NiceFirst: s.NiceFirst, NiceCount: s.NiceCount, UnallocatedBase: s.UnallocatedBase, Unallocated: s.Unallocated,
		})
	}
	table := &fairshare.Table{
		Packed: t.Packed != 0, Size: fairshare.ClusterSize{Nodes: t.Nodes, CPUs: t.CPUs},
		Weights: fairshare.Weights{
			Age: w.Age, Assoc: w.Assoc, Fairshare: w.Fairshare, JobSize: w.JobSize, Partition: w.Partition, QOS: w.QOS,
			TRES: h.engine.weights.TRES, MaxAge: w.MaxAge, FavorSmall: w.FavorSmall != 0, Damping: w.Damping, Flags: fairshare.Flags(w.Flags),
		},
		RestSteps: t.RestSteps, RestScale: t.RestScale, SiteLow: t.SiteLow, Band: t.Band,
		QOS: array(t.QOS, t.QOSCount), Nice: array(t.Nice, t.NiceCount), Slots: slots, Unknown: rowOf(t.Unknown),
	}
	require.Equal(h.t, h.engine.generation, w.Generation)
	h.unallocated = t.Unallocated
	return table
}

func rowOf(p Place) fairshare.Row { return fairshare.Row{Fairshare: p.Fairshare, Slot: p.Slot} }

// score is what the shim makes of the table that it was given last for a job,
// which must be what fairshare says.
func (h *host) score(j *Job) fairshare.Factors {
	h.t.Helper()
	in := fairshare.Job{Age: -1}
	if mine := h.inputs[j.JobID]; mine != nil {
		in = *mine
		in.Age = max(0, h.now.Unix()-in.Age) // when it began to count
	}
	in.QOSPriority, in.Nice = j.QOSPriority, j.Nice
	in.Unallocated = h.unallocated.Include(j.MinRuntime)
	owner := []Assoc{{ID: j.AssocID, UserID: j.UserID, Account: j.Account, User: j.User}}
	h.engine.Standings(owner)
	var f, want fairshare.Factors
	shimtest.Score(h.table, rowOf(owner[0].Place), &in, &f)
	parts := slices.Clone(in.Parts)

	if h.engine.slurm.inForce {
		in.Fairshare = h.engine.slurm.factors[j.AssocID]
	} else {
		o := h.engine.owners.of(j)
		in.Account, in.User = o.account, o.user
	}
	h.engine.scorer.Priority(&in, &want)
	require.Equal(h.t, want, f)
	require.Equal(h.t, parts, in.Parts)
	return f
}

// later moves the clock on.
func (h *host) later(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now, h.passed = h.now.Add(d), h.passed+d
}

// setClock sets the clock of the host and of its Slurm ahead, or back.
func (h *host) setClock(s *slurm, d time.Duration) {
	h.later(d)
	h.passed -= d
	s.now = h.clock().Unix()
}

func (h *host) clock() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

// tick moves the clock of the host and of its Slurm on.
func (h *host) tick(s *slurm, d time.Duration) {
	h.later(d)
	s.now = h.clock().Unix()
}

func (h *host) usage() *usage.Store { return usage.NewStore(h.pool) }
