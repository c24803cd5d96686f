// SPDX-License-Identifier: GPL-2.0-or-later

// gpubudget is the administrator's command: it keeps the ledger of accounts,
// shares and GPU time.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	p := &program{
		stdin:    os.Stdin,
		stdout:   os.Stdout,
		stderr:   os.Stderr,
		terminal: term.IsTerminal(int(os.Stdin.Fd())),
		progress: term.IsTerminal(int(os.Stderr.Fd())),
		patience: 30 * time.Second, // as sacctmgr
		now:      time.Now,
		zone:     time.Local,
		actor:    unixActor(),
		slurm:    runSlurm,
	}
	code := p.run(ctx, os.Args)
	stop()
	os.Exit(code)
}

// unixActor is who runs the program: the user before sudo, else the Unix user.
func unixActor() string {
	if name := os.Getenv("SUDO_USER"); name != "" {
		return name
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return fmt.Sprintf("uid %d", os.Getuid())
}

// runSlurm is the output of one of Slurm's commands. Variables that would change
// what squeue, sprio and sacct show are kept from it; SLURM_CONF is not.
func runSlurm(ctx context.Context, name string, args ...string) ([]byte, error) {
	if path := os.Getenv("SLURM_CONF"); path != "" {
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("run %s: SLURM_CONF: %w", name, err) // it would look for the file for a minute
		}
	}
	command := exec.CommandContext(ctx, name, args...)
	command.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return slices.ContainsFunc([]string{"SQUEUE_", "SPRIO_", "SACCT_", "SLURM_CLUSTERS=", "SLURM_BITSTR_LEN=", "SLURM_TIME_FORMAT="}, func(prefix string) bool {
			return strings.HasPrefix(v, prefix)
		})
	})
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, fmt.Errorf("%s is not on the PATH", name)
	}
	if err != nil {
		return nil, fmt.Errorf("run %s: %w: %s", name, err, strings.Join(strings.Fields(stderr.String()), " "))
	}
	return out, nil
}
