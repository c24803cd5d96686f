// SPDX-License-Identifier: GPL-2.0-or-later

// gpubudget-agent runs on each node with GPUs: it measures which job holds them
// and what they do, and adds that to the database. It is Slurm's Prolog and
// Epilog as well.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	p := &program{stdout: os.Stdout, stderr: os.Stderr, getenv: os.Getenv, gpuFiles: gpuFiles}
	code := p.run(ctx, os.Args)
	stop()
	os.Exit(code)
}
