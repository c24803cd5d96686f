// SPDX-License-Identifier: GPL-2.0-or-later

// Bench-meters is the part of "make bench" that measures the agents: one on its node, many
// of them at a database, and what is read of a window there.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"gpubudget/internal/bench"
)

func main() {
	program := flag.String("agent", "bin/gpubudget-agent", "the agent")
	library := flag.String("library", "build/simnvml/libnvidia-ml.so.1", "the simulated NVIDIA driver")
	nodes := flag.String("nodes", "20,200,2000", "sizes of fleets, separated by commas")
	length := flag.Duration("length", 30*time.Second, "for how long each fleet is measured; its agents report each 30 s")
	flag.Parse()
	if err := run(*program, *library, *nodes, *length); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(program, library, nodes string, length time.Duration) (err error) {
	sizes, err := bench.Numbers("nodes", nodes)
	if err != nil {
		return err
	}
	if err := bench.Absolute(&program, &library); err != nil {
		return err
	}
	ctx, cancel := bench.Interruptible()
	defer cancel()
	dir, err := os.MkdirTemp("", "gpubudget-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil { // the server runs as another user
		return err
	}
	server, dsn, err := bench.StartServer(ctx, filepath.Join(dir, "pg"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	if err := bench.RunAgent(ctx, os.Stdout, bench.AgentOptions{Program: program, Library: library, DSN: dsn}); err != nil {
		return err
	}
	if err := bench.RunFleet(ctx, os.Stdout, bench.FleetOptions{DSN: dsn, Server: server, Nodes: sizes, Length: length}); err != nil {
		return err
	}
	return bench.RunWindow(ctx, os.Stdout, dsn)
}
