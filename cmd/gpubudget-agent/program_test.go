// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// host is a program in surroundings of its own.
type host struct {
	*program
	dir            string
	stdout, stderr bytes.Buffer
	env            map[string]string
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{dir: t.TempDir(), env: map[string]string{}}
	h.program = &program{
		stdout: &h.stdout, stderr: &h.stderr, getenv: func(name string) string { return h.env[name] },
		gpuFiles: filepath.Join(h.dir, "nvidia[0-9]*"), logSocket: filepath.Join(h.dir, "log"),
	}
	require.NoError(t, os.WriteFile(h.conf(), []byte("Cluster=titan\nAgentJobsDir="+h.dir+"/%n/jobs\nAgentSpoolDir="+h.dir+"/spool\nAgentGresConf="+h.dir+
		"/gres.conf\nAgentSocket="+h.dir+"/sock\nAgentLibrary="+h.dir+"/libnvidia-ml.so.1\nDSN=host=db.example user=node password=hush\n"), 0o600))
	return h
}

func (h *host) conf() string { return filepath.Join(h.dir, "gpubudget.conf") }

func (h *host) jobs(t *testing.T, node string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(h.dir, node, "jobs"))
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestHooksByWhateverNameTheyAreCalled(t *testing.T) {
	for _, args := range [][]string{
		{"gpubudget-agent", "--conf", "CONF", "prolog"},
		{"gpubudget-agent", "prolog", "--conf=CONF"},
		{"/etc/slurm/prolog.d/50-gpubudget-prolog", "--conf", "CONF"},
	} {
		h := newHost(t)
		h.env = map[string]string{"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0", "SLURMD_NODENAME": "n3"}
		for i, arg := range args {
			args[i] = string(bytes.ReplaceAll([]byte(arg), []byte("CONF"), []byte(h.conf())))
		}
		require.Equal(t, exitOK, h.run(t.Context(), args))
		require.Empty(t, h.stderr.String())
		require.Equal(t, []string{"7.0"}, h.jobs(t, "n3"))
	}
}

// Whatever is wrong, a job does not fail for it.
func TestHooksAlwaysSucceed(t *testing.T) {
	for _, tc := range []struct {
		name string
		set  func(h *host)
		args []string
		want string
	}{
		{"no job", func(*host) {}, nil, `SLURM_JOB_ID="" is not a job's number: this is to be run by slurmd as Prolog and Epilog`},
		{"no GPUs", func(h *host) { h.env["SLURM_JOB_ID"] = "7" }, nil, "gpubudget-agent prolog: job 7: no SLURM_JOB_GPUS"},
		{"no such file", func(h *host) { _ = os.Remove(h.conf()) }, nil, "the default folder is used"},
		{"a bad file", func(h *host) { _ = os.WriteFile(h.conf(), []byte("x\n"), 0o600) }, nil, "the default folder is used"},
		{"an option nobody knows", func(h *host) { h.env["SLURM_JOB_ID"] = "7" }, []string{"--frobnicate"}, "no SLURM_JOB_GPUS"},
		{"a file in the place of the folder", func(h *host) {
			h.env["SLURM_JOB_ID"], h.env["SLURM_JOB_GPUS"], h.env["SLURMD_NODENAME"] = "7", "0", "n3"
			_ = os.WriteFile(filepath.Join(h.dir, "n3"), nil, 0o600)
		}, nil, "not a directory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHost(t)
			tc.set(h)
			code := h.run(t.Context(), append([]string{"gpubudget-agent", "--conf", h.conf(), "prolog"}, tc.args...))
			require.Equal(t, exitOK, code)
			require.Contains(t, h.stderr.String(), tc.want)
			require.Equal(t, 1, bytes.Count(h.stderr.Bytes(), []byte("\n")), "one line")
		})
	}
}

func TestPrintConfig(t *testing.T) {
	h := newHost(t)
	require.Equal(t, exitOK, h.run(t.Context(), []string{"gpubudget-agent", "--conf", h.conf(), "--node", "n3", "--print-config"}))
	require.Equal(t, `# from `+h.conf()+`
Cluster=titan
AgentNode=n3
AgentJobsDir=`+h.dir+`/n3/jobs
AgentSpoolDir=`+h.dir+`/spool
AgentSocket=`+h.dir+`/sock
#AgentMappingDir=
AgentGresConf=`+h.dir+`/gres.conf
AgentLibrary=`+h.dir+`/libnvidia-ml.so.1
AgentMetrics=:9838
AgentKeepConnection=yes
AgentInterval=10
AgentWriteInterval=30
DebugLevel=info
# database: host=db.example port=5432 dbname= user=node
`, h.stdout.String())
	require.NotContains(t, h.stdout.String(), "hush")
}

// Without a driver --once says so, and shows what Prolog wrote.
func TestOnceWithoutADriver(t *testing.T) {
	h := newHost(t)
	h.env = map[string]string{"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0", "SLURMD_NODENAME": "n3"}
	require.Equal(t, exitOK, h.run(t.Context(), []string{"gpubudget-agent", "--conf", h.conf(), "prolog"}))
	require.Equal(t, exitOK, h.run(t.Context(), []string{"gpubudget-agent", "--conf", h.conf(), "--once", "--json"}))
	var v struct {
		Node     string   `json:"node"`
		GPUs     []any    `json:"gpus"`
		Problems []string `json:"problems"`
		Holdings []struct {
			JobID int `json:"job_id"`
		} `json:"holdings"`
	}
	require.NoError(t, json.Unmarshal(h.stdout.Bytes(), &v))
	require.Equal(t, "n3", v.Node)
	require.NotNil(t, v.GPUs)
	require.Len(t, v.Holdings, 1)
	require.Len(t, v.Problems, 1)
	require.Contains(t, v.Problems[0], "is the NVIDIA driver installed on this node?")
	h.stdout.Reset()
	require.Equal(t, exitOK, h.run(t.Context(), []string{"gpubudget-agent", "--conf", h.conf(), "--once"}))
	require.Contains(t, h.stdout.String(), "NUMBER  MINOR  PCI")
	require.Contains(t, h.stderr.String(), "is the NVIDIA driver installed")
}

func TestMistakes(t *testing.T) {
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"frobnicate"}, exitUsage, `gpubudget-agent: error: unknown command "frobnicate"`},
		{[]string{"--frobnicate"}, exitUsage, "flag provided but not defined"},
		{[]string{"--conf", "/nonexistent"}, exitError, "/nonexistent"},
		{[]string{"release", "true"}, exitError, "ask the agent"},
		{[]string{"--version"}, exitOK, ""},
		{[]string{"--help"}, exitOK, ""},
	} {
		h := newHost(t)
		args := append([]string{"gpubudget-agent", "--conf", h.conf()}, tc.args...)
		require.Equal(t, tc.code, h.run(t.Context(), args), tc.args)
		require.Contains(t, h.stderr.String(), tc.want)
	}
	h := newHost(t)
	require.NoError(t, os.WriteFile(h.conf(), []byte("AgentMetrics=no\n"), 0o600))
	require.Equal(t, exitError, h.run(t.Context(), []string{"gpubudget-agent", "--conf", h.conf()}))
	require.Contains(t, h.stderr.String(), "no cluster is named: set Cluster in gpubudget.conf, as ClusterName in slurm.conf")
}

// A disk that does not answer holds a job up for five seconds, and fails nothing.
func TestAHookGivesUpOnADiskThatHangs(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.env = map[string]string{"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0", "SLURMD_NODENAME": "n3"}
	hangs := filepath.Join(h.dir, "hangs.conf") // who opens a pipe waits for the other end
	require.NoError(t, syscall.Mkfifo(hangs, 0o600))
	began := time.Now()
	require.Equal(t, exitOK, h.run(t.Context(), []string{"gpubudget-agent", "--conf", hangs, "prolog"}))
	require.InDelta(t, hookPatience.Seconds(), time.Since(began).Seconds(), 2)
	require.Equal(t, "gpubudget-agent prolog: the disk has not answered for 5s: nothing is recorded\n", h.stderr.String())
} // the pipe is never opened: what waits for it ends with the test

// A hook is a matter of milliseconds, loading the program included.
func TestHooksAreQuick(t *testing.T) {
	h := newHost(t)
	program := filepath.Join(h.dir, "gpubudget-agent")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", program, ".")
	said, err := build.CombinedOutput()
	require.NoError(t, err, string(said))
	best, cpu := time.Hour, time.Hour
	for range 20 {
		hook := exec.CommandContext(t.Context(), program, "--conf", h.conf(), "prolog")
		hook.Env = []string{"SLURM_JOB_ID=7", "SLURM_JOB_GPUS=0", "SLURMD_NODENAME=n3"}
		began := time.Now()
		require.NoError(t, hook.Run())
		best = min(best, time.Since(began))
		cpu = min(cpu, hook.ProcessState.UserTime()+hook.ProcessState.SystemTime())
	}
	t.Logf("the quickest of 20: %s, %s of CPU", best, cpu)
	require.Less(t, best, 100*time.Millisecond)
	require.Less(t, cpu, 25*time.Millisecond, "docs/agent.md says 6 ms")
	require.Equal(t, []string{"7.0"}, h.jobs(t, "n3"))
}
