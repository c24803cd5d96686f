// SPDX-License-Identifier: GPL-2.0-or-later

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"gpubudget/internal/testcluster"
)

// The two sides, in the order of kinds.
const (
	stock = 0
	ours  = 1
)

var kinds = []string{testcluster.Multifactor, testcluster.Gpubudget}

// threads are the names of the threads that recalculate.
var threads = map[string]string{testcluster.Multifactor: "decay", testcluster.Gpubudget: "gpub_prio"}

// side is a cluster with one of the plugins.
type side struct {
	name    string // PriorityType without "priority/"
	cluster *testcluster.Cluster
	probe   *probe
	pid     int    // slurmctld's
	thread  string // folder of the one that recalculates
	state   string // StateSaveLocation, in memory
	tools   string
	gpus    int // of the cluster
	users   int
}

// What a cluster has: a few jobs run, all others pend.
const nodes, gpusPerNode = 8, 8

// startSide starts a cluster.
func startSide(ctx context.Context, priority string, opts Options) (s *side, err error) {
	s = &side{name: priority, tools: opts.Tools, gpus: nodes * gpusPerNode}
	defer func(started *side) {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s: %w", priority, err), started.stop())
		}
	}(s)
	if err := s.makeState(); err != nil {
		return nil, err
	}
	accounts, users := tree(opts.Users, opts.Accounts)
	s.cluster, err = testcluster.Start(ctx, testcluster.Options{
		NoAgents: "what is measured is slurmctld, on a machine that does nothing else",
		Nodes:    nodes, GPUsPerNode: gpusPerNode, CPUsPerNode: 64, Users: users, Accounts: accounts, Slurmdbd: true, Priority: priority,
		// What 100,000 jobs need: submissions that don't try to start the job
		// at once, and a scheduler that leaves the locks to others.
		SlurmConf: []string{
			"StateSaveLocation=" + s.state,
			"SchedulerParameters=defer,sched_interval=-1,bf_interval=60,bf_max_job_test=50",
			"PriorityCalcPeriod=1", "SlurmctldDebug=info", "MaxJobCount=300000", "MessageTimeout=60",
		},
		SlurmctldEnv: []string{"LD_AUDIT=" + filepath.Join(s.state, "probe.so"), "GPUBENCH_PROBE=" + filepath.Join(s.state, "probe")},
		Conf:         map[string]string{"RefreshInterval": "30", "CalcInterval": "60"},
	})
	if err != nil {
		return nil, err
	}
	s.pid = s.cluster.SlurmctldPID()
	if s.thread, err = findThread(s.pid, threads[priority]); err != nil {
		return nil, err
	}
	if err := s.writeOwners(accounts); err != nil {
		return nil, err
	}
	if priority != testcluster.Gpubudget {
		return s, nil
	}
	// The runs of the last week are to be charged.
	if err := s.cluster.LoadBudgetsFrom(ctx, time.Now().Add(-history), nil); err != nil {
		return nil, err
	}
	return s, s.addUsage(ctx)
}

// history is for how long there have been the budgets and the GPUs.
const history = 30 * 24 * time.Hour

// makeState makes StateSaveLocation, with the probe in it.
func (s *side) makeState() error {
	slurm, err := user.Lookup("slurm")
	if err != nil {
		return err
	}
	uid, err := strconv.Atoi(slurm.Uid)
	if err != nil {
		return err
	}
	if s.state, err = os.MkdirTemp("/dev/shm", "gpubudget-bench-"); err != nil {
		return err
	}
	if err := errors.Join(os.Chmod(s.state, 0o755), os.Chown(s.state, uid, uid)); err != nil {
		return err
	}
	library, err := os.ReadFile(filepath.Join(s.tools, "probe.so"))
	if err != nil {
		return fmt.Errorf("%w (make bench makes it)", err)
	}
	if err := os.WriteFile(filepath.Join(s.state, "probe.so"), library, 0o755); err != nil {
		return err
	}
	s.probe, err = newProbe(filepath.Join(s.state, "probe"), uid)
	return err
}

// tree is a tree of two levels: one account in 25 holds 24 others, and these
// the users.
func tree(users, accounts int) ([]testcluster.Account, []string) {
	const below = 24
	tops := (accounts + below) / (below + 1)
	leaves := max(accounts-tops, 1)
	all := make([]testcluster.Account, 0, tops+leaves)
	for i := range tops {
		all = append(all, testcluster.Account{Name: fmt.Sprintf("program%d", i), Share: percent(tops)})
	}
	for i := range leaves {
		parent := i % tops
		children := (leaves - parent + tops - 1) / tops
		all = append(all, testcluster.Account{
			Name: fmt.Sprintf("project%d", i), Parent: fmt.Sprintf("program%d", parent), Share: percent(children),
		})
	}
	names := make([]string, users)
	for i := range users {
		names[i] = fmt.Sprintf("user%d", i)
		a := &all[tops+i%leaves]
		a.Users = append(a.Users, names[i])
	}
	return all, names
}

// percent is an equal part of the whole, rounded down.
func percent(parts int) string { return fmt.Sprintf("%.4f%%", float64(1_000_000/parts)/10_000) }

// writeOwners writes the file that submit reads.
func (s *side) writeOwners(accounts []testcluster.Account) error {
	var text strings.Builder
	for _, a := range accounts {
		for _, name := range a.Users {
			uid, err := s.cluster.UID(name)
			if err != nil {
				return err
			}
			fmt.Fprintf(&text, "%d %s\n", uid, a.Name)
		}
	}
	return os.WriteFile(s.owners(), []byte(text.String()), 0o644)
}

func (s *side) owners() string { return filepath.Join(s.cluster.Dir(), "etc", "owners") }

// addUsage gives every user runs in the last week: two a day, of two hours; but for
// those of some accounts.
func (s *side) addUsage(ctx context.Context, but ...string) error {
	conn, err := pgx.Connect(ctx, s.cluster.DSN())
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `
		INSERT INTO gpubudget.job_run (cluster, job_id, account, user_name, gpus, allocated, started_at, ended_at, seen_at, end_seen_at)
		SELECT $1, 1000000000 + row_number() OVER (), m.account, m.user_name, 1 + n % 8, true, t, t + interval '2 hours', t, t
		FROM (SELECT account, user_name, row_number() OVER (ORDER BY account, user_name) AS k
			FROM gpubudget.ledger WHERE cluster = $1 AND kind = 'user_add' AND account <> ALL ($2)) m,
			generate_series(1, 13) n,
			LATERAL (VALUES (date_trunc('second', now() - n * interval '12 hours' - k % 600 * interval '1 minute'))) v (t)`,
		s.cluster.Name(), append([]string{}, but...))
	if err == nil {
		_, err = conn.Exec(ctx, `INSERT INTO gpubudget.capacity (cluster, since, milli_gpus) VALUES ($1, $2, $3)`,
			s.cluster.Name(), time.Now().Add(-history), s.gpus*1000)
	}
	if err == nil {
		_, err = conn.Exec(ctx, `ANALYZE`)
	}
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("add usage: %w", err)
	}
	return nil
}

// stop ends the cluster and removes its files.
func (s *side) stop() error {
	var errs []error
	if s.cluster != nil {
		errs = append(errs, s.cluster.Stop())
	}
	if s.probe != nil {
		errs = append(errs, s.probe.close())
	}
	if s.state != "" {
		errs = append(errs, os.RemoveAll(s.state))
	}
	return errors.Join(errs...)
}

// submit submits jobs from number first on, with options of submit.c, and returns
// the seconds it took.
func (s *side) submit(ctx context.Context, first, count, clients int, options ...string) (float64, error) {
	printed, err := s.cluster.Exec(ctx, "root", filepath.Join(s.tools, "submit"),
		append(options, strconv.Itoa(first), strconv.Itoa(count), strconv.Itoa(clients), s.owners())...)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(printed), 64)
}

// settle waits until slurmctld has told slurmdbd everything.
func (s *side) settle(ctx context.Context) error {
	return s.cluster.Wait(ctx, "slurmdbd to hear of all jobs", func() (bool, error) {
		text, err := s.cluster.Exec(ctx, "root", "sdiag")
		if err != nil {
			return false, err
		}
		for line := range strings.Lines(text) {
			if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "DBD Agent queue size:"); ok {
				return strings.TrimSpace(rest) == "0", nil
			}
		}
		return false, errors.New("sdiag does not tell the size of the DBD agent's queue")
	})
}

const (
	look  = 5 * time.Millisecond   // how often the thread's CPU time is read
	quiet = 700 * time.Millisecond // for so long it has not run when a pass is over
)

// passes waits for passes, a minute apart, and returns what each cost. Between
// two of them our plugin also looks at all jobs every few seconds, and gives no
// priorities: these looks are returned too.
func (s *side) passes(ctx context.Context, n int) (passes, looks []pass, err error) {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	cpu, err := cpuTime(s.thread)
	if err != nil {
		return nil, nil, err
	}
	var (
		rested  bool // once: what runs as we begin is not seen from its start
		start   = cpu
		holds   = s.probe.count()
		changed = time.Now()
	)
	for len(passes) < n {
		select {
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("%s: wait for a pass: %w", s.name, ctx.Err())
		case <-ticker.C:
		}
		now, err := cpuTime(s.thread)
		if err != nil {
			return nil, nil, err
		}
		if now != cpu {
			cpu, changed = now, time.Now()
			continue
		}
		if time.Since(changed) < quiet {
			continue
		}
		to := s.probe.count()
		p := pass{cpu: cpu - start, holds: s.probe.between(holds, to)}
		switch {
		case rested && p.gave():
			passes = append(passes, p)
		case rested && p.held(readLock) > 0:
			looks = append(looks, p)
		}
		rested, start, holds, changed = true, cpu, to, time.Now()
	}
	return passes, looks, nil
}
