// SPDX-License-Identifier: GPL-2.0-or-later

package testcluster

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// environment is what processes of the cluster see.
func (c *Cluster) environment(as account) []string {
	return []string{
		"PATH=" + c.path("bin") + ":" + systemPath,
		"SLURM_CONF=" + c.SlurmConf(),
		"GPUBUDGET_CONF=" + c.Conf(),
		"HOME=" + as.home,
		"USER=" + as.name,
		"LOGNAME=" + as.name,
		"SHELL=/bin/bash",
		"LANG=C.UTF-8",
		"TZ=UTC",
	}
}

// user is one of the cluster's users or of the machine's.
func (c *Cluster) user(name string) (account, error) {
	if u, ok := c.users[name]; ok {
		return u, nil
	}
	return systemAccount(name)
}

// Command is a command of a user in the cluster: the cluster's users, Slurm and
// gpubudget's programs are what it sees. Its standard output, error and input
// are the caller's to set; Run runs it.
func (c *Cluster) Command(ctx context.Context, user, name string, args ...string) (*exec.Cmd, error) {
	as, err := c.user(user)
	if err != nil {
		return nil, err
	}
	// env looks the command up, and along the cluster's path.
	cmd := exec.CommandContext(ctx, "/usr/bin/env", append([]string{name}, args...)...)
	cmd.Dir = "/"
	if _, own := c.users[user]; own {
		cmd.Dir = as.home
	}
	cmd.Env = c.environment(as)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: as.credential}
	cmd.WaitDelay = time.Second
	return cmd, nil
}

// Run runs a command made by Command.
func (c *Cluster) Run(cmd *exec.Cmd) error {
	if err := c.ns.start(cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// Exec runs a command as a user within the cluster and returns its standard
// output. The error holds the command and what it wrote to its standard error,
// and wraps an *exec.ExitError if it exited with a code other than 0.
func (c *Cluster) Exec(ctx context.Context, user, name string, args ...string) (string, error) {
	cmd, err := c.Command(ctx, user, name, args...)
	if err != nil {
		return "", err
	}
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := c.Run(cmd); err != nil {
		said := strings.TrimSpace(stderr.String())
		if said == "" {
			said = strings.TrimSpace(stdout.String())
		}
		return stdout.String(), fmt.Errorf("%s (as %s): %w: %s", strings.Join(append([]string{name}, args...), " "), user, err, said)
	}
	return stdout.String(), nil
}

// Sbatch submits a job as a user and returns its id, of a het job the first
// component's. Its output goes nowhere unless the arguments say otherwise.
func (c *Cluster) Sbatch(ctx context.Context, user string, args ...string) (uint32, error) {
	out, err := c.Exec(ctx, user, "sbatch", append([]string{"--parsable", "--output=/dev/null"}, args...)...)
	if err != nil {
		return 0, err
	}
	id, _, _ := strings.Cut(strings.TrimSpace(out), ";")
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("sbatch printed %q: %w", out, err)
	}
	return uint32(n), nil
}

// Rows runs a command that prints columns separated by "|", as
// squeue --format does, and returns the fields without the blanks around them.
func (c *Cluster) Rows(ctx context.Context, user, name string, args ...string) ([][]string, error) {
	out, err := c.Exec(ctx, user, name, args...)
	if err != nil {
		return nil, err
	}
	var rows [][]string
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		if line == "" {
			continue
		}
		fields := strings.Split(line, "|")
		for i := range fields {
			fields[i] = strings.TrimSpace(fields[i])
		}
		rows = append(rows, fields)
	}
	return rows, nil
}

// WaitNodesIdle waits until every node is idle.
func (c *Cluster) WaitNodesIdle(ctx context.Context) error {
	return c.Wait(ctx, "all nodes idle", func() (bool, error) {
		rows, err := c.Rows(ctx, "root", "sinfo", "--noheader", "--Node", "--format=%N|%t")
		if err != nil {
			return false, err
		}
		idle := map[string]bool{} // by name: a node is listed once for each partition
		for _, row := range rows {
			if row[1] != "idle" {
				return false, nil
			}
			idle[row[0]] = true
		}
		return len(idle) == c.opts.Nodes+c.opts.Hollow, nil
	})
}

// WaitNoJobs waits until no job is pending, running or completing.
func (c *Cluster) WaitNoJobs(ctx context.Context) error {
	return c.Wait(ctx, "no job left", func() (bool, error) {
		rows, err := c.Rows(ctx, "root", "squeue", "--noheader", "--format=%i")
		return len(rows) == 0, err
	})
}

// CancelPending cancels every job that waits.
func (c *Cluster) CancelPending(ctx context.Context) error { return c.cancel(ctx, "--state=PENDING") }

// CancelAll cancels every job and waits until all are gone.
func (c *Cluster) CancelAll(ctx context.Context) error {
	if err := c.cancel(ctx); err != nil {
		return err
	}
	return c.WaitNoJobs(ctx)
}

func (c *Cluster) cancel(ctx context.Context, args ...string) error {
	for _, name := range c.opts.Users {
		if _, err := c.Exec(ctx, "root", "scancel", append(args, "--user="+name)...); err != nil {
			return err
		}
	}
	return nil
}

// Wait waits until done says so; an error of done ends the waiting.
func (c *Cluster) Wait(ctx context.Context, what string, done func() (bool, error)) error {
	for {
		ok, err := done()
		if err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-time.After(5 * pollInterval):
		}
	}
}

// ExitCode is the exit code of the command that err tells about, -1 if err is
// about something else.
func ExitCode(err error) int {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return -1
}
