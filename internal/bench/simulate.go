// SPDX-License-Identifier: GPL-2.0-or-later

package bench

import (
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"syscall"
	"time"

	"gpubudget/fairshare"
	"gpubudget/simulate"
	"gpubudget/simulate/trace"
)

// Simulate measures the simulator and prints lines "bench: simulate/NAME VALUE
// UNIT" as it goes: processor time, the collector's included, which other work on
// the machine changes less than it does the time on the clock. Philly is a trace
// that isn't part of this project; without the file it is left out, in words.
func Simulate(out io.Writer, philly string) error {
	p := &printer{out: out}
	if err := simulatePhilly(p, philly); err != nil {
		return err
	}
	if err := simulateJobs(p); err != nil {
		return err
	}
	return p.err
}

func simulatePhilly(p *printer, name string) error {
	f, err := os.Open(name)
	if err != nil {
		_, err = fmt.Fprintf(p.out, "bench: simulate/philly left out: %v\n", err)
		return err
	}
	defer f.Close() //nolint:errcheck // it was only read
	t, err := trace.Read(f, trace.Philly, trace.Options{Seed: 1})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, policy := range simulate.PolicyNames() {
		taken, err := simulated(t.Workload, t.EqualBudget(), policy, 50)
		if err != nil {
			return err
		}
		p.print("simulate/philly/"+policy, taken.Seconds(), "s")
	}
	return nil
}

// simulateJobs has 4,096 GPUs at a load of 0.95 with the contract, for as many
// days as make the jobs.
func simulateJobs(p *printer) error {
	var each [3]float64
	for i, days := range []int{1, 10, 108} {
		g := simulate.DefaultGenerator()
		g.GPUs, g.Days, g.Jobs, g.Accounts, g.Load, g.Demand = 4096, days, 1_000_000*days/108, 30, 0.95, 0
		w, budget, err := g.Generate()
		if err != nil {
			return err
		}
		rounds := max(100_000/g.Jobs, 1)
		least := time.Duration(math.MaxInt64)
		for range rounds {
			taken, err := simulated(w, budget, "contract", 512)
			if err != nil {
				return err
			}
			least = min(least, taken)
		}
		each[i] = float64(least.Nanoseconds()) / float64(len(w.Jobs))
		p.print(fmt.Sprintf("simulate/jobs=%d", len(w.Jobs)), least.Seconds(), "s")
		p.print(fmt.Sprintf("simulate/job/jobs=%d", len(w.Jobs)), each[i]/1000, "us")
	}
	p.print("simulate/growth/job/jobs=9259..1000000", each[2]/each[0], "x")
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	p.print("simulate/memory", float64(m.Sys)/(1<<20), "MiB")
	return nil
}

// simulated is the processor time that a run took.
func simulated(w *simulate.Workload, budget *fairshare.Budget, policy string, nodes int) (time.Duration, error) {
	rules, err := simulate.DefaultPolicy(policy)
	if err != nil {
		return 0, err
	}
	runtime.GC()
	before := processorTime()
	_, err = simulate.Run(simulate.Config{
		Workload: w, Budget: budget, Policy: rules, Until: w.Span() + 1,
		Cluster: simulate.Cluster{Partitions: []simulate.Partition{{Nodes: nodes, GPUsPerNode: 8}}},
	})
	return processorTime() - before, err
}

// processorTime is what this process has used so far.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic("getrusage: " + err.Error()) // it can't fail for oneself
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
