// SPDX-License-Identifier: GPL-2.0-or-later

// Bench is what "make bench" runs on two real slurmctlds.
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
	opts := bench.Options{}
	jobs := flag.String("jobs", "1000,10000", "numbers of pending jobs, ascending, separated by commas")
	flag.IntVar(&opts.Users, "users", 5000, "users who have them")
	flag.IntVar(&opts.Accounts, "accounts", 500, "accounts these are in")
	flag.IntVar(&opts.Passes, "passes", 3, "recalculations measured at each number of jobs, one a minute; 0 for submissions alone")
	flag.IntVar(&opts.Clients, "clients", 2, "processes that submit at a time")
	flag.StringVar(&opts.Tools, "tools", "build/bench", "where probe.so and submit are")
	flag.Parse()
	if err := run(*jobs, opts); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(jobs string, opts bench.Options) error {
	for text := range strings.SplitSeq(jobs, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("-jobs: %w", err)
		}
		opts.Jobs = append(opts.Jobs, n)
	}
	tools, err := filepath.Abs(opts.Tools) // the clusters' processes run elsewhere
	if err != nil {
		return fmt.Errorf("-tools: %w", err)
	}
	opts.Tools = tools
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	return bench.Run(ctx, os.Stdout, opts)
}
