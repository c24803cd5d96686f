// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// version is set by the build: -ldflags "-X main.version=1.2.3".
var version string

// program is one run of gshare and all it takes from its surroundings.
type program struct {
	stdout, stderr io.Writer
	now            func() time.Time
	zone           *time.Location // in which times are shown
	caller         string         // the Unix user
}

// usageError is a command line that is wrong in itself.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// run executes a command line and returns the exit code.
func (p *program) run(ctx context.Context, args []string) int {
	app := p.app()
	words, err := expand(app.Flags, args[1:])
	if err == nil {
		err = app.RunContext(ctx, append(args[:1:1], words...))
	}
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	fmt.Fprintf(p.stderr, "gshare: error: %s\n", strings.Join(strings.Fields(err.Error()), " "))
	if _, ok := errors.AsType[*usageError](err); ok {
		fmt.Fprintln(p.stderr, `Try "gshare --help" for more information`)
		return exitUsage
	}
	return exitError
}

// act does what the options ask for.
func (p *program) act(c *cli.Context) error {
	switch {
	case c.Bool(optHelp), c.Bool(optUsage):
		return p.printHelp()
	case c.Bool(optVersion):
		_, err := fmt.Fprintln(p.stdout, "gpubudget", buildVersion())
		return err
	case c.Bool(optHelpFormat):
		return p.printFields()
	case c.IsSet(optCompletion):
		return p.printCompletion(c.String(optCompletion))
	}
	o, err := p.options(c)
	if err != nil {
		return err
	}
	if o.idle {
		return p.actIdle(c.Context, o)
	}
	if o.jobs {
		return p.actJobs(c.Context, o)
	}
	reports, err := p.read(c.Context, o)
	if err != nil {
		return err
	}
	return p.print(reports, o)
}

// buildVersion is the version that the build set, else what the Go tool
// recorded of the module and the commit.
func buildVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(unknown)"
	}
	return info.Main.Version
}
