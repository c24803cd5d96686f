// SPDX-License-Identifier: GPL-2.0-or-later

// Bench-preempt is the part of "make bench" that measures what preemption adds to
// an attempt to place a job, on real slurmctlds with thousands of running jobs.
package main

import (
	"flag"
	"fmt"
	"os"

	"gpubudget/internal/bench"
)

func main() {
	opts := bench.PreemptOptions{}
	running := flag.String("running", "1000,10000", "numbers of running jobs, separated by commas")
	flag.StringVar(&opts.Cases, "cases", "", "part of the names of the clusters that are measured")
	flag.IntVar(&opts.Pending, "pending", 2, "jobs that are held, for each that runs")
	flag.Uint64Var(&opts.Searches, "searches", 64, "searches that are measured in each case: 16 for each request that waits")
	flag.IntVar(&opts.Users, "users", 5000, "users who have the jobs")
	flag.IntVar(&opts.Accounts, "accounts", 500, "accounts these are in")
	flag.StringVar(&opts.Tools, "tools", "build/bench", "where probe.so and submit are")
	flag.Parse()
	if err := run(*running, opts); err != nil {
		fmt.Fprintln(os.Stderr, "bench-preempt:", err)
		os.Exit(1)
	}
}

func run(running string, opts bench.PreemptOptions) (err error) {
	if opts.Running, err = bench.Numbers("running", running); err != nil {
		return err
	}
	if err := bench.Absolute(&opts.Tools); err != nil {
		return err
	}
	ctx, cancel := bench.Interruptible()
	defer cancel()
	return bench.RunPreempt(ctx, os.Stdout, opts)
}
