// SPDX-License-Identifier: GPL-2.0-or-later

// Bench-simulate is the part of "make bench" that measures the simulator.
package main

import (
	"flag"
	"fmt"
	"os"

	"gpubudget/internal/bench"
)

func main() {
	philly := flag.String("philly", "../shared/traces/philly_2017.csv", "the trace of Philly 2017")
	flag.Parse()
	if err := bench.Simulate(os.Stdout, *philly); err != nil {
		fmt.Fprintln(os.Stderr, "bench-simulate:", err)
		os.Exit(1)
	}
}
