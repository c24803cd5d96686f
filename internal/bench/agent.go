// SPDX-License-Identifier: GPL-2.0-or-later

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"gpubudget/agent/holding"
	"gpubudget/internal/simnvml"
	"gpubudget/usage/meter"
)

const (
	agentGPUs  = 8
	agentPace  = 30 * time.Second // for which the agent runs as it does on a node
	manyRounds = 10_000           // over which its memory must not grow
	warmRounds = 1_000            // after which it is looked at first
)

// AgentOptions are what the measurement of an agent needs.
type AgentOptions struct {
	Program string // gpubudget-agent
	Library string // the simulated driver
	DSN     string // of a migrated database, as its owner
}

// RunAgent measures the agent of a node with 8 GPUs that 8 jobs hold: its CPU time at
// the usual pace, a look each 10 s, and the memory that it has after many rounds,
// which are driven as fast as it goes.
func RunAgent(ctx context.Context, out io.Writer, o AgentOptions) error {
	p := &printer{out: out}
	usual, err := startAgent(ctx, o, "usual", agentSettings{interval: "10", write: "30", samplePeriod: 166_667})
	if err != nil {
		return err
	}
	defer func() { _ = usual.stop() }() // where an error says more
	if err := usual.waitRounds(ctx, 1); err != nil {
		return err
	}
	from, began := usual.cpu(), time.Now()
	if err := sleep(ctx, agentPace); err != nil {
		return err
	}
	p.print("agent/cpu/gpus=8/interval=10s", 100*(usual.cpu()-from).Seconds()/time.Since(began).Seconds(), "% of a core")
	if err := usual.stop(); err != nil {
		return err
	}

	// 60 new samples of each GPU a round, as in 10 s of a driver that looks six times a second.
	fast, err := startAgent(ctx, o, "fast", agentSettings{interval: "0.005", write: "0.015", samplePeriod: 83})
	if err != nil {
		return err
	}
	defer func() { _ = fast.stop() }()
	if err := fast.waitRounds(ctx, warmRounds); err != nil {
		return err
	}
	rounds, from := fast.rounds, fast.cpu()
	before, err := residentMemory(fast.pid())
	if err != nil {
		return err
	}
	if err := fast.waitRounds(ctx, warmRounds+manyRounds); err != nil {
		return err
	}
	after, err := residentMemory(fast.pid())
	if err != nil {
		return err
	}
	p.print("agent/round/gpus=8", 1000*(fast.cpu()-from).Seconds()/float64(fast.rounds-rounds), "ms of CPU")
	p.print("agent/memory/gpus=8", float64(after)/(1<<20), "MiB")
	p.print(fmt.Sprintf("agent/growth/rounds=%d", manyRounds), float64(after-before)/(1<<20), "MiB")
	return errors.Join(p.err, fast.stop())
}

type agentSettings struct {
	interval, write string // seconds
	samplePeriod    int64  // µs, of the simulated driver
}

// measuredAgent is a running agent.
type measuredAgent struct {
	cmd     *exec.Cmd
	node    string
	db      *pgx.Conn
	dir     string
	rounds  int64
	stopped bool
}

func startAgent(ctx context.Context, o AgentOptions, node string, s agentSettings) (a *measuredAgent, err error) {
	a = &measuredAgent{node: node}
	if a.dir, err = os.MkdirTemp("", "gpubudget-bench-agent-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("measure the agent: %w", err), a.stop())
		}
	}()
	if a.db, err = pgx.Connect(ctx, o.DSN); err != nil {
		return nil, err
	}
	if err := writeGPUs(a.dir, s.samplePeriod); err != nil {
		return nil, err
	}
	if err := holdGPUs(a.dir); err != nil {
		return nil, err
	}
	conf := fmt.Sprintf("Cluster=bench\nDSN=%s\nAgentNode=%s\nAgentJobsDir=%[3]s/jobs\nAgentSpoolDir=%[3]s/spool\nAgentSocket=%[3]s/sock\n"+
		"AgentGresConf=%[3]s/gres.conf\nAgentLibrary=%[4]s\nAgentMetrics=no\nAgentInterval=%[5]s\nAgentWriteInterval=%[6]s\n",
		o.DSN, node, a.dir, o.Library, s.interval, s.write)
	if err := os.WriteFile(filepath.Join(a.dir, "conf"), []byte(conf), 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(a.dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()                                                       //nolint:errcheck // only the agent writes to it
	a.cmd = exec.Command(o.Program, "--conf", filepath.Join(a.dir, "conf")) //nolint:noctx // stop ends it
	a.cmd.Env = append(os.Environ(), simnvml.Variable+"="+filepath.Join(a.dir, "gpus"))
	a.cmd.Stderr = log
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return a, a.cmd.Start()
}

// writeGPUs writes a simulated driver's GPUs, and a gres.conf that names them.
func writeGPUs(dir string, samplePeriod int64) error {
	var s simnvml.State
	for i := range agentGPUs {
		power, used := int64(300_000), uint64(40<<30)
		s.GPUs = append(s.GPUs, simnvml.GPU{
			UUID: fmt.Sprintf("GPU-%d", i), PCI: fmt.Sprintf("0000:%02x:00", i+1), Name: "Simulated", Minor: &i, Memory: 80 << 30,
			MemoryUsed: &used, Power: &power, Load: simnvml.Steady(80), SamplePeriod: samplePeriod,
			Processes: []simnvml.Process{{PID: os.Getpid(), Memory: &used}},
		})
	}
	if err := s.Write(filepath.Join(dir, "gpus")); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "gres.conf"), []byte("Name=gpu File=/dev/nvidia[0-7]\n"), 0o600)
}

// holdGPUs has a job hold each GPU, as Prolog would note it.
func holdGPUs(dir string) error {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	clock := meter.SystemClock{}
	for gpu := range agentGPUs {
		env := map[string]string{
			"SLURM_JOB_ID": strconv.Itoa(gpu + 1), "SLURM_JOB_GPUS": strconv.Itoa(gpu), "SLURM_JOB_USER": "ann", "SLURM_JOB_ACCOUNT": "vision",
		}
		h := &holding.Hooks{
			Dir: filepath.Join(dir, "jobs"), Getenv: func(name string) string { return env[name] }, BootID: strings.TrimSpace(string(boot)),
			Now: func() holding.Stamp {
				return holding.Stamp{Boot: clock.Boot().Milliseconds(), Wall: clock.Now().UnixMilli()}
			},
		}
		if err := h.Prolog(); err != nil {
			return err
		}
	}
	return nil
}

func (a *measuredAgent) pid() int { return a.cmd.Process.Pid }

// waitRounds waits until the agent has looked so often at least, by what it has
// told the database.
func (a *measuredAgent) waitRounds(ctx context.Context, n int64) error {
	for {
		err := a.db.QueryRow(ctx, "SELECT coalesce(max(n), 0) FROM (SELECT sum(samples) AS n FROM gpubudget.gpu_bucket WHERE node = $1 GROUP BY gpu) s", a.node).Scan(&a.rounds)
		if err != nil || a.rounds >= n {
			return err
		}
		if err := syscall.Kill(a.pid(), 0); err != nil {
			return fmt.Errorf("the agent has ended: %w%s", err, a.logTail())
		}
		if err := sleep(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%w: after %d rounds%s", err, a.rounds, a.logTail())
		}
	}
}

func (a *measuredAgent) logTail() string {
	text, err := os.ReadFile(filepath.Join(a.dir, "log"))
	if err != nil {
		return ""
	}
	return "\n" + string(text[max(0, len(text)-2000):])
}

// cpu is how long its threads have run.
func (a *measuredAgent) cpu() (sum time.Duration) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", a.pid()))
	for _, thread := range threads {
		if t, err := cpuTime(thread); err == nil { // it may have ended
			sum += t
		}
	}
	return sum
}

func (a *measuredAgent) stop() error {
	if a.stopped {
		return nil
	}
	a.stopped = true
	var errs []error
	if a.cmd != nil && a.cmd.Process != nil {
		errs = append(errs, a.cmd.Process.Signal(syscall.SIGTERM), a.cmd.Wait())
	}
	if a.db != nil {
		errs = append(errs, a.db.Close(context.Background()))
	}
	return errors.Join(append(errs, os.RemoveAll(a.dir))...)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
