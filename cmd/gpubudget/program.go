// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/cmd/gpubudget/queue"
	"gpubudget/internal/slurmtime"
)

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
)

// program is one run of gpubudget and all it takes from its surroundings.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	terminal       bool          // stdin is a terminal: questions can be asked
	progress       bool          // stderr is a terminal: progress can be shown
	patience       time.Duration // how long a question waits for its answer
	now            func() time.Time
	zone           *time.Location
	actor          string        // who acts, unless --actor says otherwise
	slurm          queue.Command // runs one of Slurm's commands
}

// usageError is a command line that is wrong in itself.
type usageError struct {
	command string // the command it was meant for, as in "share set"
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// misuse is a usageError for the command that runs in c.
func misuse(c *cli.Context, format string, args ...any) error {
	return &usageError{command: commandPath(c), err: fmt.Errorf(format, args...)}
}

// run executes a command line and returns the exit code.
func (p *program) run(ctx context.Context, args []string) int {
	app := p.app()
	args, err := arrange(app, args)
	if err == nil {
		err = app.RunContext(ctx, args)
	}
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil && !errors.Is(err, errInterrupted) {
		err = errors.New("interrupted") // whatever it was that broke off
	}
	fmt.Fprintf(p.stderr, "gpubudget: error: %s\n", p.message(err))
	if wrong, ok := errors.AsType[*usageError](err); ok {
		fmt.Fprintf(p.stderr, "See: gpubudget %s\n", join(wrong.command, "--help"))
		return exitUsage
	}
	return exitError
}

// join is the words that are not empty with blanks between them.
func join(words ...string) string {
	out := ""
	for _, w := range words {
		if w != "" && out != "" {
			out += " "
		}
		out += w
	}
	return out
}

// local is the present moment in the zone in which times are read and shown.
func (p *program) local() time.Time { return p.now().In(p.zone) }

// formatTime is t as Slurm's commands print it, "" for the zero time.
func (p *program) formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return slurmtime.Format(t, p.zone)
}

// isNow tells whether an option whose default is now asks for just that. Now
// is the database's: this machine's clock may lag behind it.
func isNow(option, text string) bool {
	return (option == optFrom || option == optAt) && strings.EqualFold(strings.TrimSpace(text), "now")
}

// readTime reads a time given with an option; the zero time if it is not
// given. past reads times without a day or year as sacct does.
func (p *program) readTime(c *cli.Context, option string, past bool) (time.Time, error) {
	text := c.String(option)
	if !c.IsSet(option) || isNow(option, text) {
		return time.Time{}, nil
	}
	t, err := slurmtime.Reader{Now: p.local(), Past: past}.Read(text)
	if err != nil {
		return time.Time{}, fmt.Errorf("--%s: %w", option, err)
	}
	return t, nil
}
