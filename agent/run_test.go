// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/agent/health"
	"gpubudget/agent/slurmnode"
	"gpubudget/internal/pgtest"
	"gpubudget/internal/simnvml"
	"gpubudget/usage/meter"
	"gpubudget/usage/nvml"
)

// live is an agent as it runs: with the machine's clock, a driver through
// go-nvml, and its goroutines.
type live struct {
	*node
	state  string // of the simulated driver
	cancel context.CancelFunc
	ended  chan error
}

// TestLive are the tests of agents that run. They share the simulated driver's
// library, which takes seconds to build.
func TestLive(t *testing.T) {
	library, err := simnvml.Build(t.Context(), t.TempDir())
	require.NoError(t, err)
	for _, tc := range []struct {
		name string
		test func(*testing.T, *live)
	}{
		{"an agent that runs", testAnAgentThatRuns},
		{"release", testRelease},
		{"a GPU that is reset", testAGPUThatIsReset},
		{"requests that make no sense", testRequestsThatMakeNoSense},
		{"metrics", testMetrics},
		{"a driver that hangs", testADriverThatHangs}, // last: the library is of no use any more
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := startLive(t, library)
			tc.test(t, l)
			l.Agent = nil // it has ended
		})
	}
}

func startLive(t *testing.T, library string) *live {
	t.Helper()
	n := newNode(t).withDatabase()
	n.mu.Lock()
	n.wall = time.Now()
	n.mu.Unlock()
	l := &live{node: n, state: filepath.Join(n.dir, "gpus"), ended: make(chan error, 1)}
	t.Cleanup(func() {
		if l.cancel != nil {
			l.cancel()
		}
	})
	t.Setenv(simnvml.Variable, l.state)
	l.gpus(simnvml.Steady(40))
	o := n.options()
	o.Interval, o.WriteInterval, o.Clock = 100*time.Millisecond, 100*time.Millisecond, meter.SystemClock{}
	o.Open = func() (Sampler, error) {
		return meter.Open(meter.Options{Driver: nvml.New(library), Log: o.Log, Timeout: time.Second})
	}
	var err error
	n.Agent, err = New(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	l.cancel = cancel
	go func() { l.ended <- l.Run(ctx) }()
	return l
}

// gpus has two GPUs, the first of which is busy as is said.
func (l *live) gpus(load *simnvml.Load, faults ...simnvml.Fault) {
	l.t.Helper()
	l.driver(load, simnvml.State{Faults: faults})
}

// driver is the same, with whatever else the driver says.
func (l *live) driver(load *simnvml.Load, s simnvml.State) {
	l.t.Helper()
	for i := range 2 {
		power := int64(100_000)
		s.GPUs = append(s.GPUs, simnvml.GPU{UUID: fmt.Sprintf("GPU-%d", i), PCI: fmt.Sprintf("0000:%02x:00", i), Name: "H100", Minor: &i, Memory: 80 << 30, Power: &power})
	}
	s.GPUs[0].Load = load
	require.NoError(l.t, s.Write(l.state))
}

// stop ends the agent and returns what it said.
func (l *live) stop() error {
	l.cancel()
	return <-l.ended
}

func (l *live) hook(do func(n *node)) {
	l.mu.Lock()
	l.wall, l.uptime = time.Now(), meter.SystemClock{}.Boot()
	l.mu.Unlock()
	do(l.node)
}

func (l *live) eventually(what string, done func() bool) {
	l.t.Helper()
	require.Eventually(l.t, done, 20*time.Second, 20*time.Millisecond, what)
}

func testAnAgentThatRuns(t *testing.T, l *live) {
	t.Helper()
	l.hook(func(n *node) { n.prolog(7, "0") })
	l.eventually("it to be written", func() bool {
		return len(rows(t, l.dsn, "SELECT gpu FROM gpubudget.gpu_bucket WHERE busy_known_ms > 300")) == 1
	})
	require.NoError(t, l.stop())
	require.Equal(t, []string{"GPU-0 0.4 f"}, rows(t, l.dsn, "SELECT format('%s %s %s', gpu, round(busy_ms::numeric / busy_known_ms, 1), ended) FROM gpubudget.gpu_bucket"))
	require.NoFileExists(t, l.o.Socket)
}

// As long as somebody asks for it the driver is let go of, and who holds the
// GPUs is counted on.
func testRelease(t *testing.T, l *live) {
	t.Helper()
	l.hook(func(n *node) { n.prolog(7, "0") })
	inUse := func() bool {
		used, err := simnvml.InUse(l.state)
		require.NoError(t, err)
		return used
	}
	l.eventually("the driver to be opened", inUse)
	l.eventually("the socket", func() bool { _, err := os.Stat(l.o.Socket); return err == nil })
	l.eventually("the job to be seen", func() bool {
		return len(rows(t, l.dsn, "SELECT gpu FROM gpubudget.gpu_bucket")) == 1
	})
	nothing := func() error { t.Error("it must not run"); return nil }
	for _, name := range []string{"0", "GPU-0", "gpu-0"} {
		require.ErrorContains(t, Release(t.Context(), l.o.Socket, name, nothing), "GPU "+name+" (GPU-0) is held by job 7: drain the node first")
	}
	require.ErrorContains(t, Release(t.Context(), l.o.Socket, "9", nothing), `no GPU is called "9" here`)
	require.NoError(t, Release(t.Context(), l.o.Socket, "1", func() error { require.False(t, inUse()); return nil }))
	l.eventually("the driver to be taken after that", inUse)
	released := errors.New("as the command said")
	err := Release(t.Context(), l.o.Socket, "", func() error {
		require.False(t, inUse(), "a GPU could be reset now")
		require.ErrorContains(t, Release(t.Context(), l.o.Socket, "", func() error { return nil }), "the agent says: it is released already")
		time.Sleep(500 * time.Millisecond)
		return released
	})
	require.ErrorIs(t, err, released)
	l.eventually("the driver to be taken again", inUse)
	l.eventually("it to be measured again", func() bool { return l.log.count("GPUs are measured again") >= 1 })
	l.hook(func(n *node) { n.epilog(7) })
	l.eventually("the job to be counted", func() bool {
		return len(rows(t, l.dsn, "SELECT gpu FROM gpubudget.gpu_bucket WHERE ended")) == 1
	})
	require.NoError(t, l.stop())
	require.Equal(t, []string{"t"}, rows(t, l.dsn, "SELECT (held_ms - energy_known_ms BETWEEN 400 AND 3000)::text::char FROM gpubudget.gpu_bucket"), "nothing is known of the time in between")
	require.Equal(t, 2, l.log.count("the driver is taken again"))
	require.ErrorContains(t, Release(t.Context(), l.o.Socket, "", nil), "ask the agent")
}

// Who has released a GPU by name for a command that succeeded has seen to it: an
// error that no reading tells to be over is. Another GPU's is not.
func testAGPUThatIsReset(t *testing.T, l *live) {
	t.Helper()
	findings := func() []health.Finding {
		s, err := health.Load(health.Path(l.o.SpoolDir))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		require.NoError(t, err)
		return s.Findings()
	}
	l.eventually("the socket", func() bool { _, err := os.Stat(l.o.Socket); return err == nil })
	l.eventually("a look", func() bool { _, err := os.Stat(health.Path(l.o.SpoolDir)); return err == nil })
	l.driver(simnvml.Steady(0), simnvml.State{Xids: []simnvml.Xid{{Number: 1, GPU: "GPU-0", Code: 119}, {Number: 2, GPU: "GPU-1", Code: 119}}})
	l.eventually("both errors", func() bool { return len(findings()) == 2 })
	failed := errors.New("it could not be reset")
	for _, release := range []struct {
		gpu  string
		says error
	}{{"1", failed}, {"", nil}} {
		taken := l.log.count("the driver is taken again")
		require.ErrorIs(t, Release(t.Context(), l.o.Socket, release.gpu, func() error { return release.says }), release.says)
		l.eventually("the driver to be taken again", func() bool { return l.log.count("the driver is taken again") > taken })
		time.Sleep(300 * time.Millisecond) // some looks
		require.Len(t, findings(), 2)
	}
	require.NoError(t, Release(t.Context(), l.o.Socket, "1", func() error { return nil }))
	l.eventually("it to be over", func() bool { f := findings(); return len(f) == 1 && strings.Contains(f[0].Text, "GPU 0 ") })
	require.NoError(t, l.stop())
}

func testRequestsThatMakeNoSense(t *testing.T, l *live) {
	t.Helper()
	l.eventually("the socket", func() bool { _, err := os.Stat(l.o.Socket); return err == nil })
	conn, err := new(net.Dialer).DialContext(t.Context(), "unix", l.o.Socket)
	require.NoError(t, err)
	defer conn.Close()
	_, err = fmt.Fprintln(conn, "reboot")
	require.NoError(t, err)
	answer, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "error: unknown request \"reboot\"\n", answer)
	_, err = openSocket(t.Context(), l.o.Socket)
	require.ErrorContains(t, err, "another agent listens")
	info, err := os.Stat(l.o.Socket)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o660), info.Mode().Perm())
	require.NoError(t, l.stop())
}

// A call that hangs ends the process, with what was counted on disk.
func testADriverThatHangs(t *testing.T, l *live) {
	t.Helper()
	l.hook(func(n *node) { n.prolog(7, "0") })
	l.eventually("it to be written", func() bool { return len(l.held()) == 1 })
	l.gpus(simnvml.Steady(0), simnvml.Fault{Function: "nvmlDeviceGetPowerUsage"})
	err := <-l.ended
	var hang *meter.HangError
	require.ErrorAs(t, err, &hang)
	require.Equal(t, "nvmlDeviceGetPowerUsage", hang.Call)
	require.Equal(t, 1, l.log.count("this process ends, to be started anew"))
	l.gpus(simnvml.Steady(0)) // so that the call returns before the next test
}

func testMetrics(t *testing.T, l *live) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan struct{})
	go func() {
		defer close(served)
		l.serveMetrics(ctx, listener)
	}()
	l.hook(func(n *node) { n.prolog(7, "1") })
	var text string
	l.eventually("a job to be held", func() bool {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String()+"/metrics", nil)
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		all, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		text = string(all)
		return strings.Contains(text, `gpubudget_agent_gpu_held{gpu="1",uuid="GPU-1"} 1`)
	})
	for _, line := range []string{
		"gpubudget_agent_up 1", `gpubudget_agent_gpu_up{gpu="0",uuid="GPU-0"} 1`, `gpubudget_agent_gpu_held{gpu="0",uuid="GPU-0"} 0`,
		"gpubudget_agent_holdings 1", "gpubudget_agent_spool_buckets 0", `gpubudget_agent_info{version="v1"} 1`,
	} {
		require.Contains(t, text, line+"\n")
	}
	require.NotContains(t, text, "job=")
	cancel()
	<-served
	require.NoError(t, l.stop())

	busy, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer busy.Close()
	l.ServeMetrics(t.Context(), busy.Addr().String())
	require.Equal(t, 1, l.log.count("metrics are not served"))
}

// Agents take turns: each at a time of its own, the same in every interval, and
// thousands of them evenly.
func TestTurns(t *testing.T) {
	const interval, agents, slots = 30 * time.Second, 2000, 30
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	var at [slots]int
	for i := range agents {
		node := fmt.Sprintf("node%04d", i)
		wait := untilTurn(node, interval, now)
		require.Positive(t, wait)
		require.LessOrEqual(t, wait, interval)
		require.Equal(t, interval, untilTurn(node, interval, now.Add(wait)))
		require.Equal(t, wait-time.Millisecond, untilTurn(node, interval, now.Add(interval+time.Millisecond)))
		at[int(wait.Seconds())%slots]++
	}
	for second, n := range at {
		require.Less(t, n, 3*agents/slots/2, "second %d", second)
		require.Greater(t, n, agents/slots/2, "second %d", second)
	}
}

func TestLook(t *testing.T) {
	n := newNode(t)
	n.prolog(7, "1")
	n.process(4242, 7)
	n.driver.busy(25, 0)
	used := uint64(3 << 30)
	n.driver.gpus[1].MemoryUsed = &used
	n.driver.gpus[1].Processes = []meter.Process{{PID: 4242, Memory: &used}}
	o := n.options()
	open := o.Open
	o.Open = func() (Sampler, error) { n.pass(time.Second); return open() }
	v, err := Look(o, time.Millisecond)
	require.NoError(t, err)
	require.Empty(t, v.Problems)
	require.Len(t, v.Holdings, 1)
	require.Len(t, v.GPUs, 2)
	require.Equal(t, []uint32{7}, v.GPUs[1].Jobs)
	require.Equal(t, int64(3072), *v.GPUs[1].UsedMiB)
	require.Equal(t, uint32(7), v.GPUs[1].Processes[0].JobID)
	require.Nil(t, v.GPUs[0].UsedMiB, "it is not known")

	n.driver.openErr = errors.New("no driver")
	v, err = Look(o, 0)
	require.NoError(t, err)
	require.Equal(t, []string{"no driver"}, v.Problems)
	require.Len(t, v.Holdings, 1)
}

// BenchmarkRound is a round of a node with 8 GPUs that jobs hold, through go-nvml.
func BenchmarkRound(b *testing.B) {
	dir := b.TempDir()
	b.Setenv(simnvml.Variable, filepath.Join(dir, "gpus"))
	library, err := simnvml.Build(b.Context(), dir)
	require.NoError(b, err)
	var s simnvml.State
	for i := range 8 {
		s.GPUs = append(s.GPUs, simnvml.GPU{
			UUID: fmt.Sprintf("GPU-%d", i), PCI: fmt.Sprintf("0000:%02x:00", i), Minor: &i, Memory: 80 << 30, Load: simnvml.Steady(50),
			Processes: []simnvml.Process{{PID: os.Getpid()}},
		})
	}
	require.NoError(b, s.Write(filepath.Join(dir, "gpus")))
	a, err := New(Options{
		Cluster: "titan", Node: "n1", JobsDir: filepath.Join(dir, "jobs"), SpoolDir: filepath.Join(dir, "spool"),
		GresConf: filepath.Join(dir, "gres.conf"), Interval: 10 * time.Second, Clock: meter.SystemClock{}, BootID: "boot-1",
		Open: func() (Sampler, error) { return meter.Open(meter.Options{Driver: nvml.New(library)}) },
		Log:  slog.New(slog.DiscardHandler), Cgroups: &slurmnode.Cgroups{},
	})
	require.NoError(b, err)
	for i := range 8 {
		n := &node{t: nil, dir: dir, boot: "boot-1"}
		require.NoError(b, n.hooks(jobEnv(i+1, strconv.Itoa(i))).Prolog())
	}
	for b.Loop() {
		require.NoError(b, a.Round())
	}
}

// BenchmarkSend is what a report of 8 GPUs costs the database, on a connection
// that is kept and on a new one: the time of its processes is in pg-ms/op.
func BenchmarkSend(b *testing.B) {
	for _, keep := range []bool{true, false} {
		b.Run(fmt.Sprintf("keep=%v", keep), func(b *testing.B) { benchmarkSend(b, keep) })
	}
}

func benchmarkSend(b *testing.B, keep bool) {
	b.Helper()
	const agents = 2000
	n := &node{dsn: pgtest.DB(b)}
	before := serverTime(b)
	db, err := n.connectDB(b.Context())
	require.NoError(b, err)
	sent := 0
	for b.Loop() {
		r := aReport()
		r.Node = fmt.Sprintf("n%d", sent%agents)
		for gpu := range 8 {
			bucket := aBucket(thisHour(), 0)
			bucket.GPU, bucket.Seq = fmt.Sprintf("GPU-%s-%d", r.Node, gpu), int64(sent)
			r.Buckets = append(r.Buckets, bucket)
		}
		if !keep {
			require.NoError(b, db.Close(b.Context()))
			db, err = n.connectDB(b.Context())
			require.NoError(b, err)
		}
		require.NoError(b, Send(b.Context(), db, r))
		sent++
	}
	require.NoError(b, db.Close(b.Context()))
	time.Sleep(100 * time.Millisecond) // for the last processes to be waited for
	b.ReportMetric(float64((serverTime(b)-before).Milliseconds())/float64(sent), "pg-ms/op")
}

// serverTime is the CPU time of the database's processes that have ended, one
// for each connection.
func serverTime(b *testing.B) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pgtest.Server(b).PID()))
	require.NoError(b, err)
	fields := strings.Fields(string(text[strings.LastIndex(string(text), ")")+1:]))
	var ticks int64
	for _, field := range fields[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(field, 10, 64)
		require.NoError(b, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
