// SPDX-License-Identifier: GPL-2.0-or-later

// Gpu-check tries the meter and the agent on the GPUs of this machine ("make
// gpu-check"). Its exit status is 0 if they saw what they should have, 1 if not,
// and 77 where there is no NVIDIA driver.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"gpubudget/internal/gpucheck"
)

const noDriver = 77

func main() { os.Exit(run()) }

func run() int {
	o := gpucheck.Options{Out: os.Stdout}
	flag.StringVar(&o.Library, "library", "", "the driver's library; by default the one that the dynamic linker finds")
	flag.StringVar(&o.Agent, "agent", "bin/gpubudget-agent", "the agent's program")
	flag.StringVar(&o.Spin, "spin", "build/gpucheck/spin", "the program that puts a load on a GPU")
	flag.StringVar(&o.GPU, "gpu", "", "UUID of the GPU to put a load on; by default the first that is not in MIG mode")
	flag.DurationVar(&o.Phase, "phase", 5*time.Second, "how long each load is watched")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	err := gpucheck.Run(ctx, o)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, gpucheck.ErrNoDriver):
		fmt.Fprintln(os.Stderr, "gpu-check: nothing checked:", err)
		return noDriver
	default:
		fmt.Fprintln(os.Stderr, "gpu-check:", err)
		return 1
	}
}
