// SPDX-License-Identifier: GPL-2.0-or-later

// Package gpucheck tries the meter and the agent on the GPUs of this machine: it
// prints what they read, puts a known load on a GPU, and says whether they saw it.
package gpucheck

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gpubudget/usage/meter"
	"gpubudget/usage/nvml"
)

// Options of a check.
type Options struct {
	Library string        // the driver's; "" for the one the linker finds
	Agent   string        // the program gpubudget-agent
	Spin    string        // the program that makes load: spin SECONDS [BUSY_MS IDLE_MS]
	GPU     string        // UUID of the GPU to load; "" for the first that is not in MIG mode
	Phase   time.Duration // how long each load is watched
	Out     io.Writer
}

// ErrNoDriver says that there is nothing to check.
var ErrNoDriver = errors.New("no NVIDIA driver on this machine")

// ErrFailed says that the meter did not see what it should have.
var ErrFailed = errors.New("some checks failed")

// check is a check under way.
type check struct {
	Options
	m      *meter.Meter
	failed bool
}

// Run checks. It returns ErrNoDriver, ErrFailed, or what kept it from checking.
func Run(ctx context.Context, o Options) error {
	m, err := meter.Open(meter.Options{Driver: nvml.New(o.Library)})
	if errors.Is(err, meter.ErrNoLibrary) || errors.Is(err, meter.ErrDriverNotLoaded) {
		return fmt.Errorf("%w: %w", ErrNoDriver, err)
	}
	if err != nil {
		return err
	}
	c := &check{Options: o, m: m}
	err = c.run(ctx)
	if closed := m.Close(); err == nil {
		err = closed
	}
	if err == nil && c.failed {
		err = ErrFailed
	}
	return err
}

func (c *check) run(ctx context.Context) error {
	c.printf("driver %s", known(c.m.Version()))
	r, err := c.m.Sample()
	if err != nil {
		return err
	}
	for _, g := range r.GPUs {
		c.describe(g)
	}
	if err := c.cost(); err != nil {
		return err
	}
	uuid, ok := c.choose(r)
	if !ok {
		c.printf("no GPU to put a load on: there is none, or all are in MIG mode")
		return c.release()
	}
	if err := c.loads(ctx, uuid); err != nil {
		return err
	}
	return c.release()
}

func (c *check) printf(format string, args ...any) { fmt.Fprintf(c.Out, format+"\n", args...) }

// expectf prints what was found and whether it is as it should be.
func (c *check) expectf(ok bool, what, format string, args ...any) {
	mark := "ok    "
	if !ok {
		mark, c.failed = "FAILED", true
	}
	c.printf("%s  %s: %s", mark, what, fmt.Sprintf(format, args...))
}

func (c *check) choose(r *meter.Round) (string, bool) {
	for _, g := range r.GPUs {
		if g.UUID == c.GPU || c.GPU == "" && g.Err == nil && (g.MIG == nil || !*g.MIG) {
			return g.UUID, true
		}
	}
	return "", false
}

// cost measures rounds that follow each other as fast as they can.
func (c *check) cost() error {
	const rounds = 20
	cpu, began := cpuTime(), time.Now()
	for range rounds {
		if _, err := c.m.Sample(); err != nil {
			return err
		}
	}
	took, used := time.Since(began)/rounds, (cpuTime()-cpu)/rounds
	// A core at ten seconds a round has ten seconds.
	c.expectf(used <= 20*time.Millisecond, "cost", "a round takes %s, %s of it on a CPU: %.4f%% of a core at a round each 10 s; %.1f MiB resident",
		took.Round(time.Microsecond), used.Round(time.Microsecond), 100*used.Seconds()/10, resident())
	return nil
}

// loads watches a GPU idle, at work, at work half of the time, and idle again.
func (c *check) loads(ctx context.Context, uuid string) error {
	idle, _, _, err := c.watch(uuid, 0)
	if err != nil {
		return err
	}
	c.printf("before the load: %s", describeBusy(idle.Busy))
	loads := []struct {
		name     string
		args     []string
		min, max float64
	}{
		{"load all the time", nil, 0.95, 1},
		{"load half of the time", []string{"50", "50"}, 0.4, 0.6},
	}
	for _, load := range loads {
		if err := c.load(ctx, uuid, load.name, load.min, load.max, load.args); err != nil {
			return err
		}
	}
	return nil
}

func (c *check) load(ctx context.Context, uuid, name string, least, most float64, args []string) error {
	seconds := fmt.Sprint(10 * (c.Phase.Seconds() + 10))
	spin := exec.CommandContext(ctx, c.Spin, append([]string{seconds}, args...)...)
	spin.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES="+uuid)
	spin.Stderr = os.Stderr // while this process writes to c.Out
	out, err := spin.StdoutPipe()
	if err != nil {
		return err
	}
	if err := spin.Start(); err != nil {
		return fmt.Errorf("put a load on a GPU: %w", err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		return fmt.Errorf("put a load on a GPU: %q, %w", line, errors.Join(err, spin.Wait()))
	}
	g, found, elapsed, err := c.watch(uuid, spin.Process.Pid)
	if err == nil && args == nil {
		err = c.agent(ctx, uuid, spin.Process.Pid)
	}
	_ = spin.Process.Kill()
	_ = spin.Wait() // says that it was killed
	if err != nil {
		return err
	}
	b := g.Busy
	c.expectf(b != nil && within(b.Busy, b.Known, least, most), name, "%s, expected %.0f%% to %.0f%%", describeBusy(b), 100*least, 100*most)
	// The samples of two rounds lie as far apart as the rounds, give or take one.
	c.expectf(b != nil && (b.Known-elapsed).Abs() <= time.Second, name, "that is known of nearly all the time there was, %s", elapsed.Round(time.Millisecond))
	c.expectf(found != nil, name, "process %d is listed: %s", spin.Process.Pid, describeProcesses(g.Processes))
	if found != nil {
		c.expectf(found.Memory == nil || *found.Memory >= 256<<20, name, "it holds 256 MiB and its context: %s", describeMemory(found.Memory))
	}
	g, found, _, err = c.watch(uuid, spin.Process.Pid)
	if err != nil {
		return err
	}
	c.expectf(found == nil, "after "+name, "the process is gone: %s; %s", describeProcesses(g.Processes), describeBusy(g.Busy))
	return nil
}

// watch reads a GPU before and after a phase; found is a process's row, elapsed
// the time between the two.
func (c *check) watch(uuid string, pid int) (g meter.Reading, found *meter.Process, elapsed time.Duration, err error) {
	if _, err := c.m.Sample(); err != nil {
		return g, nil, 0, err
	}
	time.Sleep(c.Phase)
	r, err := c.m.Sample()
	if err != nil {
		return g, nil, 0, err
	}
	for _, g := range r.GPUs {
		if g.UUID != uuid {
			continue
		}
		for i := range g.Processes {
			if g.Processes[i].PID == pid {
				found = &g.Processes[i]
			}
		}
		return g, found, r.Elapsed, g.Err
	}
	return g, nil, 0, fmt.Errorf("%s is gone", uuid)
}

// release frees the driver: no device file may stay open, or no GPU could be
// reset.
func (c *check) release() error {
	if err := c.m.Release(); err != nil {
		return err
	}
	open := deviceFiles()
	c.expectf(len(open) == 0, "release", "device files still open: %s", orNone(strings.Join(open, " ")))
	if err := c.m.Reopen(); err != nil {
		return err
	}
	r, err := c.m.Sample()
	if err != nil {
		return err
	}
	c.expectf(len(r.GPUs) > 0, "reopen", "%d GPUs", len(r.GPUs))
	return nil
}

// within tells whether part/whole is between two fractions.
func within(part, whole time.Duration, least, most float64) bool {
	if whole <= 0 {
		return false
	}
	f := part.Seconds() / whole.Seconds()
	return f >= least && f <= most
}

// cpuTime is what this process has used.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic("gpucheck: getrusage: " + err.Error()) // it has no way to fail
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
