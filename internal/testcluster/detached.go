// SPDX-License-Identifier: GPL-2.0-or-later

package testcluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"gpubudget/internal/pgserver"
)

// WrapperPath is the script that runs a command as a user in the cluster that
// lies in dir, for people: DIR/as USER COMMAND...
func WrapperPath(dir string) string { return filepath.Join(dir, "as") }

func holderPath(dir string) string { return filepath.Join(dir, "holder") }

func (c *Cluster) writeWrapper() error {
	script := fmt.Sprintf(`#!/bin/sh
# as USER COMMAND...: runs a command as one of the cluster's users.
test $# -ge 2 || { echo "usage: $0 USER COMMAND..." >&2; exit 2; }
user=$1; shift
home=%[1]s/home/$user
test -d "$home" || home=/
exec nsenter --target %[2]d --mount --pid -- env -i TERM="${TERM:-dumb}" LANG=C.UTF-8 TZ=UTC \
	PATH=%[3]s SLURM_CONF=%[4]s GPUBUDGET_CONF=%[5]s \
	HOME="$home" USER="$user" LOGNAME="$user" SHELL=/bin/bash \
	setpriv --reuid "$user" --regid "$user" --init-groups sh -c 'cd "$HOME" && exec "$@"' sh "$@"
`, c.dir, c.ns.pid, c.path("bin")+":"+systemPath, c.SlurmConf(), c.Conf())
	return os.WriteFile(WrapperPath(c.dir), []byte(script), 0o755)
}

// writeHolder notes which process holds the namespace.
func (c *Cluster) writeHolder() error {
	born, err := birth(c.ns.pid)
	if err != nil {
		return err
	}
	return os.WriteFile(holderPath(c.dir), fmt.Appendf(nil, "%d %d\n", c.ns.pid, born), 0o644)
}

// Running tells whether a cluster runs in dir.
func Running(dir string) (bool, error) {
	lock, err := lockDir(dir)
	var running *RunningError
	switch {
	case errors.As(err, &running):
		return true, nil
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	}
	return false, lock.Close()
}

// StopDetached ends what runs of the cluster in dir, whichever process started
// it, and removes the folder. It is no error if nothing runs.
func StopDetached(dir string) error {
	err := errors.Join(killHolder(dir), stopDetachedPostgres(dir))
	if err != nil {
		return fmt.Errorf("stop the cluster in %s: %w", dir, err)
	}
	return os.RemoveAll(dir)
}

func killHolder(dir string) error {
	text, err := os.ReadFile(holderPath(dir))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var pid int
	var born uint64
	if _, err := fmt.Sscanf(strings.TrimSpace(string(text)), "%d %d", &pid, &born); err != nil {
		return fmt.Errorf("%s: %w", holderPath(dir), err)
	}
	if now, err := birth(pid); errors.Is(err, os.ErrNotExist) || now != born {
		return nil // it has ended, and another process may have its id now
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	for deadline := time.Now().Add(stopTimeout); time.Now().Before(deadline); time.Sleep(pollInterval) {
		if now, err := birth(pid); errors.Is(err, os.ErrNotExist) || now != born {
			return nil
		}
	}
	return fmt.Errorf("process %d does not end", pid)
}

func stopDetachedPostgres(dir string) error {
	server, err := pgserver.Attach(postgresDir(dir))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// After a reboot the number may be another process's. The server's own
	// folder is where it works.
	work, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", server.PID()))
	if err != nil || filepath.Dir(work) != postgresDir(dir) {
		return nil //nolint:nilerr // it is gone
	}
	return server.Stop()
}
