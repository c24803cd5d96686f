// SPDX-License-Identifier: GPL-2.0-or-later

// Package e2e shows on real daemons (munge, slurmdbd, slurmctld, slurmds and
// PostgreSQL) what gpubudget promises: each test says what it shows.
package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/internal/testcluster"
)

const (
	ann = "gpub_ann" // account _a of each scenario
	bob = "gpub_bob" // account _b
	cem = "gpub_cem" // the hog, and account _c where there is one

	startTimeout = 2 * time.Minute
	testTimeout  = time.Minute
	// soon is within how long a change must have reached the priorities: the
	// plugin reads the ledger every second and recalculates every second, and
	// this machine may be busy.
	soon = 5 * time.Second
)

// scenarios are the tests that compare two accounts: each has a pair of its
// own, so that what one test used does not change another's order.
var scenarios = []string{"comeback", "reshare", "nice", "site", "forms", "runs", "parts", "away", "crash", "fresh", "clients"}

func accounts() []testcluster.Account {
	list := []testcluster.Account{{Name: "hog", Share: "10%", Users: []string{cem}}}
	for _, name := range scenarios {
		list = append(list,
			testcluster.Account{Name: name, Share: "8%"},
			testcluster.Account{Name: name + "_a", Parent: name, Share: "40%", Users: []string{ann}},
			testcluster.Account{Name: name + "_b", Parent: name, Share: "40%", Users: []string{bob}},
			testcluster.Account{Name: name + "_c", Parent: name, Share: "0%", Users: []string{cem}},
		)
	}
	return list
}

// shared is the cluster that most tests use: 2 nodes with 8 GPUs each.
var shared struct {
	sync.Once
	cluster *testcluster.Cluster
	began   time.Time // when the budgets had been loaded
	err     error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if c := shared.cluster; c != nil {
		if code != 0 {
			c.KeepFiles()
			fmt.Printf("the cluster's files stay in %s%s\n", c.Dir(), c.LogTails())
		}
		if err := c.Stop(); err != nil {
			fmt.Println(err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

func startShared() {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	shared.cluster, shared.err = testcluster.Start(ctx, testcluster.Options{
		Nodes: 2, Users: []string{ann, bob, cem}, Slurmdbd: true, Accounts: accounts(),
		QOS: map[string]int{"high": 100}, Priority: testcluster.Gpubudget,
		SlurmConf: []string{
			"PartitionName=short Nodes=ALL MaxTime=10 PriorityJobFactor=10 State=UP",
			"PriorityWeightJobSize=1000", "PriorityWeightPartition=1000", "PriorityWeightAssoc=1000",
			"PriorityWeightTRES=gres/gpu=1000", "PriorityMaxAge=1:00", "MinJobAge=300",
		},
	})
	if shared.err != nil {
		return
	}
	shared.err = shared.cluster.LoadBudgets(ctx, nil)
	shared.began = time.Now()
}

// scenario is a test's view of a cluster.
type scenario struct {
	*testcluster.Cluster
	t       *testing.T
	ctx     context.Context //nolint:containedctx // a scenario is one test
	a, b, c string          // its accounts
}

// begin starts a test on the shared cluster, with nothing in the queue.
func begin(t *testing.T, name string) *scenario {
	t.Helper()
	shared.Do(startShared)
	require.NoError(t, shared.err)
	require.Contains(t, scenarios, name)
	return newScenario(t, shared.cluster, name)
}

func newScenario(t *testing.T, c *testcluster.Cluster, name string) *scenario {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	s := &scenario{Cluster: c, t: t, ctx: ctx, a: name + "_a", b: name + "_b", c: name + "_c"}
	t.Cleanup(func() {
		cancel()
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		require.NoError(t, c.CancelAll(ctx))
	})
	return s
}

// submit submits a job that sleeps, as a user, and returns its id.
func (s *scenario) submit(user, account string, seconds int, args ...string) uint32 {
	s.t.Helper()
	args = append([]string{"--account=" + account, fmt.Sprintf("--wrap=sleep %d", seconds)}, args...)
	id, err := s.Sbatch(s.ctx, user, args...)
	require.NoError(s.t, err)
	return id
}

// hog takes every GPU until release is called.
func (s *scenario) hog() (release func()) {
	s.t.Helper()
	id := s.submit(cem, "hog", 1000, fmt.Sprintf("--nodes=%d", len(s.Nodes())), "--gpus-per-node=8")
	s.waitState(id, "R")
	return func() {
		s.t.Helper()
		s.exec("root", "scancel", strconv.Itoa(int(id)))
	}
}

// use lets an account use GPU time and waits until the report knows of it.
func (s *scenario) use(user, account string, gpus, seconds int) {
	s.t.Helper()
	before := s.used(account)
	id := s.submit(user, account, seconds, fmt.Sprintf("--gpus=%d", gpus))
	s.waitGone(id)
	s.wait(account+"'s use to be recorded", func() bool {
		return s.used(account)-before >= fairshare.GPUMillis(1000*gpus*seconds)
	})
}

// used is what the report says an account used, charged or not.
func (s *scenario) used(account string) fairshare.GPUMillis {
	s.t.Helper()
	r, err := s.Report(s.ctx)
	require.NoError(s.t, err)
	row, ok := r.Account(account)
	require.True(s.t, ok, "account %s is not in the report", account)
	return row.Used + row.Unallocated
}

func (s *scenario) exec(user, name string, args ...string) string {
	s.t.Helper()
	out, err := s.Exec(s.ctx, user, name, args...)
	require.NoError(s.t, err)
	return out
}

func (s *scenario) rows(name string, args ...string) [][]string {
	s.t.Helper()
	rows, err := s.Rows(s.ctx, "root", name, args...)
	require.NoError(s.t, err)
	return rows
}

func (s *scenario) wait(what string, done func() bool) {
	s.t.Helper()
	require.NoError(s.t, s.Wait(s.ctx, what, func() (bool, error) { return done(), nil }))
}

// state is squeue's short name for a job's state, "" when it is gone.
func (s *scenario) state(id uint32) string {
	s.t.Helper()
	for _, row := range s.rows("squeue", "--noheader", "--format=%A|%t") {
		if row[0] == strconv.Itoa(int(id)) {
			return row[1]
		}
	}
	return ""
}

func (s *scenario) waitState(id uint32, state string) {
	s.t.Helper()
	s.wait(fmt.Sprintf("job %d to be %s", id, state), func() bool { return s.state(id) == state })
}

func (s *scenario) waitGone(ids ...uint32) {
	s.t.Helper()
	for _, id := range ids {
		s.wait(fmt.Sprintf("job %d to end", id), func() bool { return s.state(id) == "" })
	}
}

// order is the pending jobs from the highest priority to the lowest.
func (s *scenario) order() []uint32 {
	s.t.Helper()
	type pending struct {
		id       uint32
		priority int64
	}
	var jobs []pending
	for _, row := range s.rows("squeue", "--noheader", "--states=PENDING", "--format=%A|%Q") {
		jobs = append(jobs, pending{uint32(number(s.t, row[0])), number(s.t, row[1])})
	}
	slices.SortStableFunc(jobs, func(x, y pending) int { return int(y.priority - x.priority) })
	ids := make([]uint32, len(jobs))
	for i, job := range jobs {
		ids[i] = job.id
	}
	return ids
}

// waitOrder waits until the pending jobs stand in this order, and tells how
// long that took.
func (s *scenario) waitOrder(want ...uint32) time.Duration {
	s.t.Helper()
	began := time.Now()
	var got []uint32
	for time.Since(began) < soon {
		if got = s.order(); slices.Equal(got, want) {
			return time.Since(began)
		}
		time.Sleep(100 * time.Millisecond)
	}
	require.Equal(s.t, want, got, "order of the pending jobs after %v\n%s", soon, s.exec("root", "sprio", "--long"))
	return 0
}

// agree waits until what we recorded of the test's accounts equals Slurm's
// record exactly.
func (s *scenario) agree() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, 20*time.Second)
	defer cancel()
	_, err := s.WaitAgreement(ctx, s.a, s.b, s.c)
	require.NoError(s.t, err)
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return n
}

// logLines are the lines of slurmctld's log, from one on, that hold a text.
func (s *scenario) logLines(from int, text string) []string {
	s.t.Helper()
	log, err := os.ReadFile(s.Log("slurmctld"))
	require.NoError(s.t, err)
	var found []string
	for _, line := range strings.Split(string(log), "\n")[from:] {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

func (s *scenario) logLength() int {
	s.t.Helper()
	log, err := os.ReadFile(s.Log("slurmctld"))
	require.NoError(s.t, err)
	return strings.Count(string(log), "\n")
}
