// SPDX-License-Identifier: GPL-2.0-or-later

package testcluster_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/testcluster"
)

// helperEnv has the test binary start a cluster and then "hang", to be killed,
// or "leave" it to others.
const helperEnv = "GPUBUDGET_TESTCLUSTER_HELPER"

func TestMain(m *testing.M) {
	switch os.Getenv(helperEnv) {
	case "hang":
		startAndHang()
	case "leave":
		startAndLeave()
	}
	os.Exit(m.Run())
}

func start(t *testing.T, opts testcluster.Options) *testcluster.Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	began := time.Now()
	c, err := testcluster.Start(ctx, opts)
	require.NoError(t, err)
	t.Logf("started in %v", time.Since(began).Round(time.Millisecond))
	t.Cleanup(func() {
		require.NoError(t, c.Stop())
		require.NoDirExists(t, c.Dir())
	})
	return c
}

// A job of a user the machine doesn't know gets GPUs, and Slurm's own record
// says so afterwards.
func TestJobsOfOwnUsersAreAccounted(t *testing.T) {
	ctx := t.Context()
	c := start(t, testcluster.Options{
		Nodes:    2,
		Users:    []string{"gpub_alice", "gpub_bob"},
		Slurmdbd: true,
		Accounts: []testcluster.Account{
			{Name: "prog"},
			{Name: "proj", Parent: "prog", Users: []string{"gpub_alice"}},
		},
		QOS: map[string]int{"high": 100},
	})

	id, err := c.Sbatch(ctx, "gpub_alice", "--gpus-per-node=3", "--nodes=2", "--qos=high",
		"--output=out", "--wrap", "echo $USER $CUDA_VISIBLE_DEVICES")
	require.NoError(t, err)
	require.NoError(t, c.WaitNoJobs(ctx))

	out, err := os.ReadFile(filepath.Join(c.Dir(), "home", "gpub_alice", "out"))
	require.NoError(t, err)
	require.Equal(t, "gpub_alice 0,1,2\n", string(out))
	require.Eventually(t, func() bool {
		rows, err := c.Rows(ctx, "gpub_alice", "sacct", "-nXP", "-j", strconv.Itoa(int(id)), "-o", "User,Account,QOS,AllocTRES,State")
		return err == nil && len(rows) == 1 && rows[0][0] == "gpub_alice" && rows[0][1] == "proj" && rows[0][2] == "high" &&
			strings.Contains(rows[0][3], "gres/gpu=6") && rows[0][4] == "COMPLETED"
	}, 10*time.Second, 100*time.Millisecond)

	_, err = c.Sbatch(ctx, "gpub_bob", "--wrap", "true")
	require.ErrorContains(t, err, "Invalid account", "bob is in no account")
	require.Equal(t, 1, testcluster.ExitCode(err))
	require.NotContains(t, string(must(os.ReadFile("/etc/passwd"))), "gpub_alice", "the machine's users")
}

// Without slurmdbd there are no associations, and accounts are what jobs say.
func TestWithoutSlurmdbd(t *testing.T) {
	ctx := t.Context()
	c := start(t, testcluster.Options{Users: []string{"gpub_alice"}})
	id, err := c.Sbatch(ctx, "gpub_alice", "--account=anything", "--gpus=1", "--wrap", "sleep 60")
	require.NoError(t, err)
	require.NoError(t, c.Wait(ctx, "the job to run", func() (bool, error) {
		rows, err := c.Rows(ctx, "root", "squeue", "-h", "-j", strconv.Itoa(int(id)), "-o", "%t|%a")
		return len(rows) == 1 && rows[0][0] == "R" && rows[0][1] == "anything", err
	}))

	// The state survives both ways for slurmctld to end.
	require.NoError(t, c.RestartSlurmctld(ctx))
	require.NoError(t, c.KillSlurmctld())
	require.Zero(t, c.SlurmctldPID())
	require.NoError(t, c.StartSlurmctld(ctx))
	out, err := c.Exec(ctx, "root", "squeue", "-h", "-o", "%i")
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(int(id)), strings.TrimSpace(out))
	require.NoError(t, c.CancelAll(ctx))
}

func TestPostgresStopsAndComesBack(t *testing.T) {
	ctx := t.Context()
	c := start(t, testcluster.Options{Users: []string{"gpub_alice"}})
	query := func() error {
		_, err := c.Exec(ctx, "gpub_alice", "psql", c.DSN(), "-c", "select count(*) from gpubudget.ledger")
		return err
	}
	require.NoError(t, query())
	require.NoError(t, c.StopPostgres())
	require.Error(t, query())
	require.NoError(t, c.StartPostgres(ctx))
	require.NoError(t, query())
}

func TestClustersSideBySide(t *testing.T) {
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			c, err := testcluster.Start(ctx, testcluster.Options{Nodes: 2})
			if err != nil {
				t.Error(err)
				return
			}
			if err := c.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// Whatever kills the process that started a cluster, nothing of it lives on:
// not a daemon, not a job, and the next start takes the files away.
func TestNothingOutlivesAKilledParent(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"=hang")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	dir := strings.TrimSpace(line)
	require.NotEmpty(t, processesOf(t, dir))

	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.Eventually(t, func() bool { return len(processesOf(t, dir)) == 0 }, 10*time.Second, 50*time.Millisecond)

	start(t, testcluster.Options{})
	require.NoDirExists(t, dir)
}

func TestASecondClusterInAFolderIsRefused(t *testing.T) {
	dir, err := os.MkdirTemp("", "gpubudget-test-") //nolint:usetesting // t.TempDir lets nobody else through
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	start(t, testcluster.Options{Dir: dir})
	_, err = testcluster.Start(t.Context(), testcluster.Options{Dir: dir})
	var running *testcluster.RunningError
	require.ErrorAs(t, err, &running)
	require.DirExists(t, dir, "the first one's files")
}

func TestAFailedStartSaysWhyAndLeavesNothing(t *testing.T) {
	dir, err := os.MkdirTemp("", "gpubudget-test-") //nolint:usetesting // t.TempDir lets nobody else through
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	_, err = testcluster.Start(t.Context(), testcluster.Options{Dir: dir, SlurmConf: []string{"SelectType=select/nonsense"}})
	require.ErrorContains(t, err, "slurmctld ended while starting")
	require.ErrorContains(t, err, "select/nonsense", "the log's own words")
	require.Empty(t, processesOf(t, dir))
	require.NoDirExists(t, dir)
}

// A detached cluster stays when the process that started it has ended; people
// run commands in it as its users, and it ends when told to.
func TestDetached(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"=leave")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	dir := strings.TrimSpace(string(out))
	running, err := testcluster.Running(dir)
	require.NoError(t, err)
	require.True(t, running)

	as := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), testcluster.WrapperPath(dir), args...).CombinedOutput()
		require.NoError(t, err, string(out))
		return strings.TrimSpace(string(out))
	}
	require.Equal(t, "gpub_alice "+filepath.Join(dir, "home", "gpub_alice"), as("gpub_alice", "sh", "-c", `echo "$(whoami) $PWD"`))
	as("gpub_alice", "sbatch", "--wrap", "sleep 1000")
	require.Equal(t, "gpub_alice", as("root", "squeue", "-h", "-o", "%u"))
	require.Equal(t, "1", as("gpub_alice", "psql", "-At", "host="+dir+"/pg/run user=postgres dbname=gpubudget", "-c", "select 1"))

	require.NoError(t, testcluster.StopDetached(dir))
	require.Empty(t, processesOf(t, dir))
	require.NoDirExists(t, dir)
	running, err = testcluster.Running(dir)
	require.NoError(t, err)
	require.False(t, running)
	require.NoError(t, testcluster.StopDetached(dir), "twice does no harm")
}

// startAndLeave is the helper process of TestDetached.
func startAndLeave() {
	c, err := testcluster.Start(context.Background(), testcluster.Options{Users: []string{"gpub_alice"}, Detached: true})
	if err != nil {
		panic(err)
	}
	fmt.Println(c.Dir())
	os.Exit(0)
}

// startAndHang is the helper process: a cluster with a job on it.
func startAndHang() {
	ctx := context.Background()
	c, err := testcluster.Start(ctx, testcluster.Options{Users: []string{"gpub_alice"}, Slurmdbd: true,
		Accounts: []testcluster.Account{{Name: "proj", Users: []string{"gpub_alice"}}}})
	if err == nil {
		_, err = c.Sbatch(ctx, "gpub_alice", "--wrap", "trap '' TERM; sleep 1000 & wait; sleep 1000 # "+c.Dir())
	}
	if err == nil {
		err = c.Wait(ctx, "the job to run", func() (bool, error) {
			rows, err := c.Rows(ctx, "root", "squeue", "-h", "-t", "R", "-o", "%i")
			return len(rows) == 1, err
		})
	}
	if err != nil {
		panic(err)
	}
	fmt.Println(c.Dir())
	select {}
}

// processesOf are the processes that have to do with the cluster in dir, by
// their command line, folder or environment.
func processesOf(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	var found []string
	for _, path := range paths {
		pid, err := strconv.Atoi(filepath.Base(path))
		require.NoError(t, err)
		if pid == os.Getpid() || syscall.Kill(pid, 0) != nil {
			continue
		}
		for _, file := range []string{"cmdline", "environ"} {
			text, err := os.ReadFile(filepath.Join(path, file))
			if err == nil && strings.Contains(string(text), dir) {
				found = append(found, string(text))
				break
			}
		}
	}
	return found
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
