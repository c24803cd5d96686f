// SPDX-License-Identifier: GPL-2.0-or-later

// Bench-preempt is the part of "make bench" that measures what preemption adds to
// an attempt to place a job, on real slurmctlds with thousands of running jobs.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

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

func run(running string, opts bench.PreemptOptions) error {
	for text := range strings.SplitSeq(running, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("-running: %w", err)
		}
		opts.Running = append(opts.Running, n)
	}
	tools, err := filepath.Abs(opts.Tools) // the clusters' processes run elsewhere
	if err != nil {
		return fmt.Errorf("-tools: %w", err)
	}
	opts.Tools = tools
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	return bench.RunPreempt(ctx, os.Stdout, opts)
}
