// SPDX-License-Identifier: GPL-2.0-or-later

// Bench is what "make bench" runs on two real slurmctlds.
package main

import (
	"flag"
	"fmt"
	"os"

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

func run(jobs string, opts bench.Options) (err error) {
	if opts.Jobs, err = bench.Numbers("jobs", jobs); err != nil {
		return err
	}
	if err := bench.Absolute(&opts.Tools); err != nil {
		return err
	}
	ctx, cancel := bench.Interruptible()
	defer cancel()
	return bench.Run(ctx, os.Stdout, opts)
}
