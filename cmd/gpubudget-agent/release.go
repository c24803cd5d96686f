// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/agent"
)

func (p *program) releaseCommand() *cli.Command {
	return &cli.Command{
		Name:      "release",
		Usage:     "have the running agent let go of the driver, for a reset or a change of MIG",
		ArgsUsage: "[COMMAND [ARGUMENT...]]",
		Description: "As long as any process is connected to the driver no GPU can be reset and MIG\n" +
			"   mode can't be changed. The agent lets go of all GPUs (the driver knows no less),\n" +
			"   goes on counting who holds them, and takes the driver again when COMMAND has\n" +
			"   ended; without one, after --for, or when this is interrupted.\n\n" +
			"   EXAMPLES:\n" +
			"   gpubudget-agent release --gpu 3 nvidia-smi --gpu-reset -i 3\n" +
			"   gpubudget-agent release --for 2m",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: optGPU, Usage: "for the GPU of this UUID, PCI bus id or number of the driver; refused if a job holds it"},
			&cli.DurationFlag{Name: optFor, Usage: "without a command: release it for `TIME`", Value: time.Minute},
		},
		HideHelpCommand: true,
		OnUsageError:    func(_ *cli.Context, err error, _ bool) error { return &usageError{err} },
		Action:          p.release,
	}
}

func (p *program) release(c *cli.Context) error {
	config, err := p.config(c)
	if err != nil {
		return err
	}
	return agent.Release(c.Context, config.Agent.Socket, c.String(optGPU), func() error {
		if c.NArg() == 0 {
			fmt.Fprintf(p.stderr, "the driver is released for %s\n", c.Duration(optFor))
			return wait(c.Context, c.Duration(optFor))
		}
		cmd := exec.CommandContext(c.Context, c.Args().First(), c.Args().Tail()...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, p.stdout, p.stderr
		return cmd.Run()
	})
}

// wait waits; an interrupt ends it and is no error.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return nil
}
