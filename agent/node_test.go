// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/agent/holding"
	"gpubudget/agent/slurmnode"
	"gpubudget/internal/pgtest"
	"gpubudget/usage/meter"
)

// node is a node in a test's hands: its clock, its driver, its files, and the
// agents that run on it one after the other.
type node struct {
	*Agent
	t    *testing.T
	dir  string
	spl  string // the spool
	dsn  string
	user string // of the agent in the database, "" for the owner
	boot string
	log  *logText

	mu     sync.Mutex
	wall   time.Time
	uptime time.Duration

	driver  driver
	connect error // why the database can't be reached; nil: it can
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{
		t: t, dir: t.TempDir(), boot: "boot-1", log: &logText{}, uptime: 1000 * time.Second,
		// A few minutes into the hour, so that seconds don't cross its end.
		wall: time.Now().UTC().Truncate(time.Hour).Add(-50 * time.Minute),
	}
	n.spl = filepath.Join(n.dir, "spool")
	n.driver.n = n
	n.gresConf("Name=gpu File=/dev/nvidia[0-7]\n")
	n.driver.gpus = gpus(2)
	return n
}

func (n *node) gresConf(text string) {
	n.t.Helper()
	require.NoError(n.t, os.WriteFile(filepath.Join(n.dir, "gres.conf"), []byte(text), 0o600))
}

// Now and Boot are the node's clock.
func (n *node) Now() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.wall
}

func (n *node) Boot() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.uptime
}

// pass lets time go by, without a round.
func (n *node) pass(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wall, n.uptime = n.wall.Add(d), n.uptime+d
}

// setClock sets the wall clock.
func (n *node) setClock(by time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wall = n.wall.Add(by)
}

func (n *node) options() Options {
	return Options{
		Cluster: "titan", Node: "n1", Version: "v1", JobsDir: filepath.Join(n.dir, "jobs"), SpoolDir: n.spl,
		MappingDir: filepath.Join(n.dir, "dcgm"), GresConf: filepath.Join(n.dir, "gres.conf"), MIGMinors: filepath.Join(n.dir, "mig-minors"),
		Socket:   filepath.Join(n.dir, "sock"),
		Interval: 10 * time.Second, WriteInterval: 30 * time.Second,
		Open: n.driver.open, Connect: n.connectDB, Clock: n, BootID: n.boot, Log: slog.New(slog.NewTextHandler(n.log, nil)),
		Cgroups: &slurmnode.Cgroups{Node: "n1", Proc: filepath.Join(n.dir, "proc"), Root: filepath.Join(n.dir, "cgroup")},
	}
}

func (n *node) connectDB(ctx context.Context) (Database, error) {
	if n.connect != nil {
		return nil, n.connect
	}
	config, err := pgx.ParseConfig(n.dsn)
	if err != nil {
		return nil, err
	}
	if n.user != "" {
		config.User = n.user
	}
	return pgx.ConnectConfig(ctx, config)
}

// start starts an agent.
func (n *node) start() *node {
	n.t.Helper()
	var err error
	n.Agent, err = New(n.options())
	require.NoError(n.t, err)
	n.t.Cleanup(n.kill)
	return n
}

// kill ends the agent as a crash does.
func (n *node) kill() {
	if n.Agent != nil {
		require.NoError(n.t, n.spool.Close())
		n.Agent = nil
	}
}

// rounds are rounds, ten seconds one after the other.
func (n *node) rounds(count int) *node {
	n.t.Helper()
	for range count {
		n.pass(10 * time.Second)
		require.NoError(n.t, n.Round())
	}
	return n
}

// send has the agent write to the database, its clock being right meanwhile, and
// returns why that failed.
func (n *node) send() error {
	n.t.Helper()
	return n.sendAt(time.Now())
}

func (n *node) hooks(env map[string]string) *holding.Hooks {
	return &holding.Hooks{
		Dir: filepath.Join(n.dir, "jobs"), Getenv: func(name string) string { return env[name] }, BootID: n.boot,
		Now: func() holding.Stamp {
			return holding.Stamp{Boot: n.Boot().Milliseconds(), Wall: n.Now().UnixMilli()}
		},
	}
}

func jobEnv(job int, gpus string) map[string]string {
	return map[string]string{"SLURM_JOB_ID": strconv.Itoa(job), "SLURM_JOB_GPUS": gpus, "SLURM_JOB_USER": "ann", "SLURM_JOB_ACCOUNT": "vision"}
}

func (n *node) prolog(job int, gpus string) *node {
	n.t.Helper()
	require.NoError(n.t, n.hooks(jobEnv(job, gpus)).Prolog())
	return n
}

func (n *node) epilog(job int) *node {
	n.t.Helper()
	require.NoError(n.t, n.hooks(jobEnv(job, "")).Epilog())
	return n
}

// files are the files of Prolog and Epilog.
func (n *node) files() (names []string) {
	entries, err := os.ReadDir(filepath.Join(n.dir, "jobs"))
	require.NoError(n.t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// process puts a process into the control group of a job.
func (n *node) process(pid, job int) {
	n.t.Helper()
	group := fmt.Sprintf("system.slice/slurmstepd.scope/job_%d/step_0", job)
	require.NoError(n.t, os.MkdirAll(filepath.Join(n.dir, "cgroup", group), 0o755))
	require.NoError(n.t, os.MkdirAll(filepath.Join(n.dir, "proc", strconv.Itoa(pid)), 0o755))
	require.NoError(n.t, os.WriteFile(filepath.Join(n.dir, "proc", strconv.Itoa(pid), "cgroup"), []byte("0::/"+group+"\n"), 0o600))
}

// endJob removes the control group of a job.
func (n *node) endJob(job int) {
	n.t.Helper()
	require.NoError(n.t, os.RemoveAll(filepath.Join(n.dir, "cgroup", "system.slice", "slurmstepd.scope", fmt.Sprintf("job_%d", job))))
}

// withDatabase gives the node a database, and an agent's role in it.
func (n *node) withDatabase() *node {
	n.t.Helper()
	n.dsn = pgtest.DB(n.t)
	n.user = agentPool(n.t, n.dsn).Config().ConnConfig.User
	return n
}

// held is what the database says was held: GPU, job, source and milliseconds.
func (n *node) held() []string {
	n.t.Helper()
	return rows(n.t, n.dsn, `SELECT format('%s %s.%s %s %s', gpu, job_id, restart, source, sum(held_ms)) FROM gpubudget.gpu_bucket
		GROUP BY gpu, job_id, restart, source ORDER BY 1`)
}

// driver is what the GPUs of the node show.
type driver struct {
	n        *node
	gpus     []meter.Reading
	openErr  error
	err      error
	xids     []meter.Xid
	last     time.Duration
	released bool
	opened   int
}

// gpus are GPUs of minor numbers 0, 1, ..., idle.
func gpus(count int) (all []meter.Reading) {
	for i := range count {
		memory, power := uint64(80<<30), int64(100_000)
		all = append(all, meter.Reading{
			GPU:   meter.GPU{UUID: fmt.Sprintf("GPU-%d", i), PCI: fmt.Sprintf("0000:%02x:00.0", i), Name: "H100", Index: i, Minor: &i, Memory: &memory},
			Power: &power, Usage: meter.Usage{Processes: []meter.Process{}},
		})
	}
	return all
}

func (d *driver) open() (Sampler, error) {
	if d.openErr != nil {
		return nil, d.openErr
	}
	d.opened++
	d.last = d.n.Boot()
	return d, nil
}

// busy has GPUs be at work for so much of the time, in percent.
func (d *driver) busy(percent ...int) {
	for i, p := range percent {
		d.gpus[i].Busy = &meter.Busy{Busy: time.Duration(p), Known: -1}
	}
}

func (d *driver) Sample() (*meter.Round, error) {
	if d.released {
		return nil, meter.ErrReleased
	}
	if d.err != nil {
		return nil, d.err
	}
	r := &meter.Round{At: d.n.Now(), Boot: d.n.Boot(), Elapsed: d.n.Boot() - d.last, Xids: d.xids}
	d.last = r.Boot
	for _, g := range d.gpus {
		if g.Busy != nil {
			percent := g.Busy.Busy
			g.Busy = &meter.Busy{Busy: time.Duration(int64(r.Elapsed) * int64(percent) / 100), Known: r.Elapsed, Source: meter.FromSamples}
		}
		r.GPUs = append(r.GPUs, g)
	}
	return r, nil
}

func (d *driver) Release() error { d.released = true; return nil }
func (d *driver) Reopen() error  { d.released, d.last = false, d.n.Boot(); return nil }
func (d *driver) Close() error   { return nil }

// logText is what an agent logs.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// count is how many lines hold a text.
func (l *logText) count(text string) (lines int) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, text) {
			lines++
		}
	}
	return lines
}

var errAway = errors.New("connection refused")
