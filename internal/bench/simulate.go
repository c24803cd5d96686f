// SPDX-License-Identifier: GPL-2.0-or-later

package bench

import (
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"sort"
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
		least := time.Duration(math.MaxInt64)
		for range 3 { // what other work takes off the caches is nobody's cost
			cost, err := measured(t.Workload, t.EqualBudget(), policy, 50, 0)
			if err != nil {
				return err
			}
			least = min(least, cost.all)
		}
		p.print("simulate/philly/"+policy, least.Seconds(), "s")
	}
	return nil
}

// simulateJobs has 4,096 GPUs at a load of 0.95 with the contract, for as many
// days as make the jobs: from an empty cluster, and after a week that fills it and
// the lookback window. What is to be done for a job depends on how many wait beside it, and
// few do on a cluster's first day: so it is the latter that tell whether a job costs more
// where there are more of them. How much waits also goes up and down with the weeks; so
// where the jobs are few, several such days are taken, of different seeds.
func simulateJobs(p *printer) error {
	var each [3]float64
	for i, size := range []struct{ days, seeds int }{{1, 24}, {10, 8}, {108, 2}} {
		w, budget, err := daysOfJobs(1, size.days)
		if err != nil {
			return err
		}
		cost, err := measured(w, budget, "contract", 512, 0)
		if err != nil {
			return err
		}
		n := len(w.Jobs)
		p.print(fmt.Sprintf("simulate/empty/jobs=%d", n), cost.all.Seconds(), "s")
		p.print(fmt.Sprintf("simulate/empty/job/jobs=%d", n), float64(cost.all.Nanoseconds())/float64(n)/1000, "us")
		if each[i], err = jobInFullSwing(size.days, size.seeds); err != nil {
			return err
		}
		p.print(fmt.Sprintf("simulate/job/jobs=%d", n), each[i]/1000, "us")
	}
	p.print("simulate/growth/job/jobs=9259..92592", each[1]/each[0], "x")
	p.print("simulate/growth/job/jobs=9259..1000000", each[2]/each[0], "x")
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	p.print("simulate/memory", float64(m.Sys)/(1<<20), "MiB")
	return nil
}

// daysOfJobs is 9,259 jobs a day.
func daysOfJobs(seed uint64, days int) (*simulate.Workload, *fairshare.Budget, error) {
	g := simulate.DefaultGenerator()
	g.Seed, g.GPUs, g.Days, g.Jobs, g.Accounts, g.Load, g.Demand = seed, 4096, days, 1_000_000*days/108, 30, 0.95, 0
	return g.Generate()
}

// jobInFullSwing is the nanoseconds that a job costs after a week, on average.
func jobInFullSwing(days, seeds int) (float64, error) {
	const week = 7
	var sum float64
	for seed := range seeds {
		w, budget, err := daysOfJobs(uint64(seed)+1, week+days)
		if err != nil {
			return 0, err
		}
		before := sort.Search(len(w.Jobs), func(i int) bool { return w.Jobs[i].Submit >= week*86_400 })
		cost, err := measured(w, budget, "contract", 512, before)
		if err != nil {
			return 0, err
		}
		setUp := float64(cost.setUp.Nanoseconds()) / float64(len(w.Jobs))
		sum += setUp + float64(cost.after.Nanoseconds())/float64(cost.jobs)
	}
	return sum / float64(seeds), nil
}

// cost is the processor time of a run: of all of it, of what comes before the
// first second, and of what comes after some of the jobs were submitted.
type cost struct {
	all, setUp, after time.Duration
	jobs              int // that were submitted after those
}

// measured runs a workload and tells the cost, apart of what comes after so many jobs.
func measured(w *simulate.Workload, budget *fairshare.Budget, policy string, nodes, before int) (cost, error) {
	rules, err := simulate.DefaultPolicy(policy)
	if err != nil {
		return cost{}, err
	}
	runtime.GC()
	var c cost
	start := processorTime()
	reached := start
	_, err = simulate.Run(simulate.Config{
		Workload: w, Budget: budget, Policy: rules, Until: w.Span() + 1,
		Cluster: simulate.Cluster{Partitions: []simulate.Partition{{Nodes: nodes, GPUsPerNode: 8}}},
		Progress: func(submitted, jobs int) {
			switch {
			case submitted == 0:
				c.setUp = processorTime() - start
			case c.jobs == 0 && submitted >= before:
				reached, c.jobs = processorTime(), jobs-submitted
			}
		},
	})
	end := processorTime()
	c.all, c.after = end-start, end-reached
	return c, err
}

// processorTime is what this process has used so far.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic("getrusage: " + err.Error()) // it can't fail for oneself
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
