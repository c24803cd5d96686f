// SPDX-License-Identifier: GPL-2.0-or-later

package testcluster

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"gpubudget/internal/pgserver"
)

const (
	mariadbUser     = "slurm"
	mariadbDatabase = "slurm_acct"
	// The default, 96 MB, takes longer to write than all else together.
	innodbLog = "--innodb-log-file-size=8M"

	pollInterval = 20 * time.Millisecond
	// stopTimeout is how long a daemon may take to end when told to; slurmctld
	// saves its state and the plugin has two seconds of its own.
	stopTimeout = 15 * time.Second
)

// daemon is a running process of the cluster.
type daemon struct {
	name   string
	cmd    *exec.Cmd
	exited chan struct{} // closed once it has ended; then err is set
	err    error
}

func (d *daemon) running() bool {
	select {
	case <-d.exited:
		return false
	default:
		return true
	}
}

// spawn starts a daemon in the foreground of a session of its own.
func (c *Cluster) spawn(name string, as account, args ...string) error {
	if d := c.daemon(name); d != nil && d.running() {
		return fmt.Errorf("%s is running already", name)
	}
	out, err := os.OpenFile(c.path("log", name+".out"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer out.Close() //nolint:errcheck // only the daemon writes to it
	// env looks the program up along the cluster's path and becomes it.
	cmd := exec.Command("/usr/bin/env", args...) //nolint:noctx // it outlives the call
	cmd.Env = c.environment(as)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: as.credential}
	if err := c.ns.start(cmd); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	d := &daemon{name: name, cmd: cmd, exited: make(chan struct{})}
	go func() {
		d.err = cmd.Wait()
		close(d.exited)
	}()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.daemons[name] = d
	return nil
}

func (c *Cluster) daemon(name string) *daemon {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.daemons[name]
}

// end signals a daemon and waits until it has ended.
func (c *Cluster) end(name string, sig syscall.Signal) error {
	d := c.daemon(name)
	if d == nil {
		return fmt.Errorf("%s is not running", name)
	}
	if !d.running() {
		return fmt.Errorf("%s had ended by itself: %w", name, errors.Join(d.err, errUnasked))
	}
	if err := d.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("signal %s: %w", name, err)
	}
	select {
	case <-d.exited:
	case <-time.After(stopTimeout):
		return fmt.Errorf("%s does not end within %v of signal %v", name, stopTimeout, sig)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.daemons, name)
	return nil
}

var errUnasked = errors.New("nobody told it to")

// waitReady waits until the check succeeds, or the daemon has ended.
func (c *Cluster) waitReady(ctx context.Context, name string, check func() error) error {
	d := c.daemon(name)
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-d.exited:
			return fmt.Errorf("%s ended while starting: %v", name, d.err) //nolint:errorlint // it may have ended well
		case <-ctx.Done():
			return fmt.Errorf("%s does not get ready: %w", name, errors.Join(ctx.Err(), err))
		case <-time.After(pollInterval):
		}
	}
}

// waitListening waits until a daemon's port is open: Slurm's own commands wait
// a full second before they try again.
func (c *Cluster) waitListening(ctx context.Context, name string, port int) error {
	return c.waitReady(ctx, name, func() error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

func (c *Cluster) startMunge(ctx context.Context) error {
	err := c.spawn("munged", c.munge, "munged", "--foreground", "--force",
		"--key-file="+c.path("etc", "munge.key"), "--socket="+c.mungeSocket(), "--pid-file="+c.path("munge", "pid"),
		"--seed-file="+c.path("munge", "seed"), "--log-file="+c.path("munge", "log"))
	if err != nil {
		return err
	}
	return c.waitReady(ctx, "munged", func() error {
		_, err := c.Exec(ctx, "root", "munge", "--socket="+c.mungeSocket(), "--no-input")
		return err
	})
}

// mariadbData makes MariaDB's empty data folder. Installing one takes a second
// of both cores, so the first is kept in the repository's build folder to be
// copied for the next clusters.
func (c *Cluster) mariadbData(ctx context.Context) error {
	data := c.path("mariadb", "data")
	if _, err := os.Stat(data); err == nil {
		return nil
	}
	version, err := c.Exec(ctx, "root", "mariadbd", "--no-defaults", "--version")
	if err != nil {
		return err
	}
	root, err := repository()
	if err != nil {
		return c.installMariaDB(ctx, data)
	}
	kept := filepath.Join(root, "build", "cache", fmt.Sprintf("mariadb-%x", sha256.Sum256([]byte(version+innodbLog)))[:40])
	if _, err := os.Stat(kept); errors.Is(err, fs.ErrNotExist) {
		if err := c.keepMariaDB(ctx, kept); err != nil {
			return err
		}
	}
	_, err = c.Exec(ctx, "root", "cp", "--archive", kept, data)
	return err
}

// keepMariaDB installs a data folder under the name kept, whole or not at all.
func (c *Cluster) keepMariaDB(ctx context.Context, kept string) error {
	if err := os.MkdirAll(filepath.Dir(kept), 0o755); err != nil {
		return err
	}
	fresh := c.path("mariadb", "fresh")
	if err := c.installMariaDB(ctx, fresh); err != nil {
		return err
	}
	partial, err := os.MkdirTemp(filepath.Dir(kept), "partial-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(partial) //nolint:errcheck // what remains is in nobody's way
	if _, err := c.Exec(ctx, "root", "cp", "--archive", fresh, partial); err != nil {
		return err
	}
	err = os.Rename(filepath.Join(partial, "fresh"), kept)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) {
		return nil // another cluster was faster
	}
	return err
}

func (c *Cluster) installMariaDB(ctx context.Context, data string) error {
	_, err := c.Exec(ctx, "root", "mariadb-install-db", "--no-defaults", "--datadir="+data, "--user="+c.mysql.name,
		"--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve", innodbLog, c.mariadbTemp())
	return err
}

// mariadbTemp keeps temporary tables in the cluster's own folder: MariaDB names
// their files by its process id, and every cluster counts those from 1.
func (c *Cluster) mariadbTemp() string { return "--tmpdir=" + c.path("mariadb", "tmp") }

func (c *Cluster) startMariaDB(ctx context.Context) error {
	if err := c.mariadbData(ctx); err != nil {
		return err
	}
	data, socket := c.path("mariadb", "data"), c.path("mariadb", "socket")
	grants := strings.Join([]string{
		fmt.Sprintf("CREATE USER IF NOT EXISTS %s@'127.0.0.1' IDENTIFIED BY '%[1]s';", mariadbUser),
		fmt.Sprintf("GRANT ALL ON %s.* TO %s@'127.0.0.1';", mariadbDatabase, mariadbUser),
	}, "\n")
	init := c.path("mariadb", "init.sql")
	if err := os.WriteFile(init, []byte(grants+"\n"), 0o644); err != nil {
		return err
	}
	err := c.spawn("mariadb", c.mysql, "mariadbd", "--no-defaults", "--datadir="+data, "--socket="+socket,
		"--bind-address=127.0.0.1", fmt.Sprintf("--port=%d", c.ports.mariadb()), "--pid-file="+c.path("mariadb", "pid"),
		"--init-file="+init, "--skip-name-resolve", "--innodb-buffer-pool-size=64M", innodbLog, c.mariadbTemp(),
		"--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--innodb-lock-wait-timeout=900",
		"--key-buffer-size=1M", "--performance-schema=0")
	if err != nil {
		return err
	}
	return c.waitReady(ctx, "mariadb", func() error {
		_, err := c.Exec(ctx, "root", "mariadb-admin", "--no-defaults", "--socket="+socket, "--user=root", "ping")
		return err
	})
}

func (c *Cluster) startSlurmdbd(ctx context.Context) error {
	if err := c.spawn("slurmdbd", c.slurm, "slurmdbd", "-D"); err != nil {
		return err
	}
	if err := c.waitListening(ctx, "slurmdbd", c.ports.slurmdbd()); err != nil {
		return err
	}
	return c.waitReady(ctx, "slurmdbd", func() error {
		_, err := c.Exec(ctx, "root", "sacctmgr", "--noheader", "show", "cluster")
		return err
	})
}

// StartSlurmctld starts slurmctld and returns when it answers.
func (c *Cluster) StartSlurmctld(ctx context.Context) error {
	// env, which spawn runs, takes settings before the command.
	args := slices.Concat(c.opts.SlurmctldEnv, []string{"slurmctld", "-D", "-f", c.SlurmConf()})
	if err := c.spawn("slurmctld", c.slurm, args...); err != nil {
		return err
	}
	if err := c.waitListening(ctx, "slurmctld", c.ports.slurmctld()); err != nil {
		return err
	}
	return c.waitReady(ctx, "slurmctld", func() error {
		_, err := c.Exec(ctx, "root", "scontrol", "show", "partition")
		return err
	})
}

// StopSlurmctld lets slurmctld save its state and end.
func (c *Cluster) StopSlurmctld() error { return c.end("slurmctld", syscall.SIGTERM) }

// KillSlurmctld ends slurmctld as a crash would.
func (c *Cluster) KillSlurmctld() error { return c.end("slurmctld", syscall.SIGKILL) }

// RestartSlurmctld stops slurmctld and starts it again.
func (c *Cluster) RestartSlurmctld(ctx context.Context) error {
	if err := c.StopSlurmctld(); err != nil {
		return err
	}
	return c.StartSlurmctld(ctx)
}

// SlurmctldPID is slurmctld's process id, 0 if it is not running.
func (c *Cluster) SlurmctldPID() int {
	if d := c.daemon("slurmctld"); d != nil && d.running() {
		return d.cmd.Process.Pid
	}
	return 0
}

// stopSlurmctldForGood tells slurmctld to end if it should be running.
func (c *Cluster) stopSlurmctldForGood() error {
	if c.daemon("slurmctld") == nil {
		return nil
	}
	return c.StopSlurmctld()
}

func (c *Cluster) startSlurmd(node string) error {
	if err := os.MkdirAll(c.path("spool", node), 0o755); err != nil {
		return err
	}
	root := newAccount("root", 0, 0, "/root")
	return c.spawn("slurmd."+node, root, "slurmd", "-D", "-N", node, "-f", c.SlurmConf())
}

// StopSlurmd ends a node's slurmd; its jobs go on.
func (c *Cluster) StopSlurmd(node string) error { return c.end("slurmd."+node, syscall.SIGKILL) }

// StartSlurmd starts it again.
func (c *Cluster) StartSlurmd(node string) error { return c.startSlurmd(node) }

func postgresDir(dir string) string { return dir + "/pg" }

// postgresDSN is fixed by the folder; pgserver names it only once it runs.
func postgresDSN(dir string) string {
	return fmt.Sprintf("host=%s/run port=5432 user=postgres dbname=%s sslmode=disable", postgresDir(dir), database)
}

// StartPostgres starts the database server again after StopPostgres.
func (c *Cluster) StartPostgres(ctx context.Context) error {
	var opts []pgserver.Option
	if c.opts.Detached {
		opts = append(opts, pgserver.Detached())
	}
	server, err := pgserver.Start(ctx, postgresDir(c.dir), opts...)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.postgres = server
	return nil
}

// StopPostgres shuts the database server down, with everybody connected; it is
// no error if it is stopped.
func (c *Cluster) StopPostgres() error { return c.endPostgres((*pgserver.Server).Stop) }

// KillPostgres ends the database server as a crash would.
func (c *Cluster) KillPostgres() error { return c.endPostgres((*pgserver.Server).Kill) }

func (c *Cluster) endPostgres(end func(*pgserver.Server) error) error {
	c.mu.Lock()
	server := c.postgres
	c.postgres = nil
	c.mu.Unlock()
	if server == nil {
		return nil
	}
	return end(server)
}
