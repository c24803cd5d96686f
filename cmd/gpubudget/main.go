// SPDX-License-Identifier: GPL-2.0-or-later

// gpubudget is the administrator's command: it keeps the ledger of accounts,
// shares and GPU time.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
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
		sacctmgr: runSacctmgr,
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

// runSacctmgr is the output of Slurm's sacctmgr.
func runSacctmgr(ctx context.Context, args ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, "sacctmgr", args...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("run sacctmgr: %w: %s", err, strings.Join(strings.Fields(stderr.String()), " "))
	}
	return out, nil
}
