// SPDX-License-Identifier: GPL-2.0-or-later

// Demo is what "make demo" runs: three teams share a real Slurm cluster by
// budget.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"gpubudget/internal/demo"
)

func main() {
	length := flag.Duration("length", demo.DefaultLength, "how long users submit jobs")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	_, err := unix.IoctlGetTermios(int(os.Stdout.Fd()), unix.TCGETS)
	err = demo.Run(ctx, os.Stdout, demo.Options{Length: *length, Terminal: err == nil})
	var failure *demo.VerdictError
	switch {
	case err == nil:
		return
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "demo: interrupted, everything is stopped")
	case errors.As(err, &failure):
		fmt.Println(err)
	default:
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	os.Exit(1) //nolint:gocritic // which ends what cancel would
}
