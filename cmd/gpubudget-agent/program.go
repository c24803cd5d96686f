// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/usage/meter"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
	// exitHang is a driver that does not answer: the supervisor starts the agent
	// anew.
	exitHang = 3
	// exitExchanged is a driver that is of another version than its library, which
	// this process has loaded.
	exitExchanged = 4
)

// Names of the options.
const (
	optConf        = "conf"
	optDSN         = "dsn"
	optNode        = "node"
	optOnce        = "once"
	optJSON        = "json"
	optPrintConfig = "print-config"
	optVersion     = "version"
	optFor         = "for"
	optGPU         = "gpu"
)

// program is one run of gpubudget-agent and all it takes from its surroundings.
type program struct {
	stdout, stderr io.Writer
	getenv         func(string) string
	gpuFiles       string        // a pattern: the device files of GPUs
	logSocket      string        // of the system's log; "": where it is on this system
	driverPatience time.Duration // after it a driver counts as hung; 0: the meter's own
}

// usageError is a command line that is wrong in itself.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }

// run executes a command line and returns the exit code. Called by the name of a
// hook, as a link in Slurm's folder of Prologs is, it is that hook.
func (p *program) run(ctx context.Context, args []string) int {
	if hook := hookOf(args); hook != "" {
		return p.runHook(hook, args)
	}
	err := p.app().RunContext(ctx, asHealth(args))
	if err == nil {
		return exitOK
	}
	if errors.Is(err, errUnfit) { // and has said so
		return exitError
	}
	fmt.Fprintf(p.stderr, "gpubudget-agent: error: %v\n", err)
	if _, ok := errors.AsType[*usageError](err); ok {
		fmt.Fprintln(p.stderr, "See: gpubudget-agent --help")
		return exitUsage
	}
	if _, ok := errors.AsType[*meter.HangError](err); ok {
		return exitHang
	}
	if errors.Is(err, meter.ErrOtherVersion) {
		return exitExchanged
	}
	return exitError
}

// hookOf is the hook that a command line asks for, "" for none. It is found
// before anything else: a hook must not fail, whatever else is wrong.
func hookOf(args []string) string {
	for _, hook := range []string{hookProlog, hookEpilog} {
		if strings.HasSuffix(filepath.Base(args[0]), "-"+hook) || slices.Contains(args[1:], hook) && !slices.Contains(args, "--") {
			return hook
		}
	}
	return ""
}

func (p *program) app() *cli.App {
	return &cli.App{
		Name:      "gpubudget-agent",
		Usage:     "measure which job holds the GPUs of this node, and what they do",
		UsageText: "gpubudget-agent [OPTIONS]\n   gpubudget-agent [OPTIONS] COMMAND",
		Description: "Without a command it runs until it is told to end. What is counted is kept on\n" +
			"   disk and written to the database. docs/agent.md tells how to set it up.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: optConf, Usage: "read the configuration `FILE`"},
			&cli.StringFlag{Name: optDSN, Usage: "write to the database at `DSN`, a libpq connection string or URL"},
			&cli.StringFlag{Name: optNode, Usage: "be the agent of the node `NAME` (default: AgentNode, SLURMD_NODENAME, this host)"},
			&cli.BoolFlag{Name: optOnce, Usage: "look once, print what is seen and end; nothing is written", DisableDefaultText: true},
			&cli.BoolFlag{Name: optJSON, Usage: "with --once: print JSON", DisableDefaultText: true},
			&cli.BoolFlag{Name: optPrintConfig, Usage: "print the settings that hold and end", DisableDefaultText: true},
			&cli.BoolFlag{Name: optVersion, Aliases: []string{"V"}, Usage: "print the version", DisableDefaultText: true},
		},
		Commands: []*cli.Command{
			p.hookCommand(hookProlog, "note that a job has got its GPUs; for Prolog= of slurm.conf"),
			p.hookCommand(hookEpilog, "note that a job has given them back; for Epilog= of slurm.conf"),
			p.releaseCommand(),
			p.healthCommand(),
		},
		Action:          p.root,
		Writer:          p.stdout,
		ErrWriter:       p.stderr,
		HideVersion:     true,
		HideHelpCommand: true,
		ExitErrHandler:  func(*cli.Context, error) {},
		OnUsageError:    func(_ *cli.Context, err error, _ bool) error { return &usageError{err} },
	}
}

// root runs if no command is named.
func (p *program) root(c *cli.Context) error {
	if c.NArg() > 0 {
		return &usageError{fmt.Errorf("unknown command %q", c.Args().First())}
	}
	switch {
	case c.Bool(optVersion):
		_, err := fmt.Fprintln(p.stdout, "gpubudget-agent", buildVersion())
		return err
	case c.Bool(optPrintConfig):
		return p.printConfig(c)
	case c.Bool(optOnce):
		return p.once(c)
	}
	return p.daemon(c)
}
