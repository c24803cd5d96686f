// SPDX-License-Identifier: GPL-2.0-or-later

// Package pgserver runs a private PostgreSQL server from the machine's own
// binaries, for tests and for the test cluster. It listens on a Unix socket in
// its own directory and on no TCP port, so that any number of servers run side
// by side and none meets the machine's own.
//
// Its durability is that of a process, not of a machine: fsync is off, so what
// was committed survives the server's death (kill -9 too) but not a power cut.
package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	superuser    = "postgres"
	port         = 5432 // names the socket's file only; no TCP port is opened
	startTimeout = 30 * time.Second
	stopTimeout  = 10 * time.Second
	pollInterval = 10 * time.Millisecond
	logTailBytes = 2000
)

// settings suit many short tests on a small machine.
var settings = []string{
	"listen_addresses=",
	"fsync=off",
	"full_page_writes=off",
	"max_connections=200",
	"shared_buffers=64MB",
	"max_wal_size=256MB",
	"jit=off",
	"timezone=UTC",
	"log_timezone=UTC",
}

// Option changes how Start starts a server.
type Option func(*options)

type options struct {
	detached  bool
	temporary bool
	settings  []string
}

// Detached lets the server outlive the process that started it; Attach finds
// it again. Without it the server ends with that process, however it ends.
func Detached() Option { return func(o *options) { o.detached = true } }

// Temporary has the directory removed when the process that started the server
// has ended without stopping it.
func Temporary() Option { return func(o *options) { o.temporary = true } }

// Setting adds a line of postgresql.conf for this start.
func Setting(name, value string) Option {
	return func(o *options) { o.settings = append(o.settings, name+"="+value) }
}

// Server is a running PostgreSQL server.
type Server struct {
	dir      string
	pid      int
	exited   <-chan struct{} // nil if another process started the server
	watchdog io.Closer       // nil if detached
}

// Start starts a server whose files lie in dir, which is made if it is not
// there; a database cluster that is already there is used again. When run as
// root the server runs as the user postgres, who must be able to reach dir. The
// context bounds the start only.
func Start(ctx context.Context, dir string, opts ...Option) (*Server, error) {
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	own, err := installed()
	if err != nil {
		return nil, err
	}
	if err := own.makeDirs(dir); err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := own.initialize(ctx, dir); err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	s, err := own.launch(dir, o)
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	if err := s.waitReady(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start PostgreSQL: %w; its log ends:\n%s", err, logTail(dir)), s.Kill())
	}
	return s, nil
}

// Attach is the server that runs in dir, started by whichever process. The
// error wraps os.ErrNotExist if none runs there.
func Attach(dir string) (*Server, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("attach to PostgreSQL: %w", err)
	}
	pid, err := readPID(dir)
	if err != nil {
		return nil, fmt.Errorf("attach to PostgreSQL in %s: %w", dir, err)
	}
	if !alive(pid) {
		return nil, fmt.Errorf("attach to PostgreSQL in %s: process %d has ended: %w", dir, pid, os.ErrNotExist)
	}
	return &Server{dir: dir, pid: pid}, nil
}

// Dir is the directory the server was started in.
func (s *Server) Dir() string { return s.dir }

// PID is the process id of the server's first process.
func (s *Server) PID() int { return s.pid }

// LogPath is the file the server logs to.
func (s *Server) LogPath() string { return logPath(s.dir) }

// DSN is how to connect to a database of the server as its superuser, from
// any local user, without a password.
func (s *Server) DSN(database string) string {
	return fmt.Sprintf("host=%s port=%d user=%s dbname=%s sslmode=disable", runDir(s.dir), port, superuser, database)
}

// Stop shuts the server down: sessions end, nothing committed is lost. It is
// no error if the server has ended already.
func (s *Server) Stop() error { return s.end(syscall.SIGINT) }

// Kill ends the server at once, as a crash would; a later Start recovers from
// its log.
func (s *Server) Kill() error { return s.end(syscall.SIGQUIT) }

func (s *Server) end(sig syscall.Signal) error {
	for _, sig := range []syscall.Signal{sig, syscall.SIGQUIT, syscall.SIGKILL} {
		if err := s.signal(sig); err != nil {
			return fmt.Errorf("stop PostgreSQL: %w", err)
		}
		if s.waitExit(stopTimeout) {
			return s.closeWatchdog()
		}
	}
	return fmt.Errorf("stop PostgreSQL: process %d does not end", s.pid)
}

func (s *Server) signal(sig syscall.Signal) error {
	if s.hasExited() {
		return nil
	}
	err := syscall.Kill(s.pid, sig)
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal process %d: %w", s.pid, err)
	}
	return nil
}

func (s *Server) hasExited() bool {
	if s.exited == nil {
		return !alive(s.pid)
	}
	select {
	case <-s.exited:
		return true
	default:
		return false
	}
}

func (s *Server) waitExit(limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for !s.hasExited() {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(pollInterval)
	}
	return true
}

// closeWatchdog lets the watchdog go; it finds no server left to end.
func (s *Server) closeWatchdog() error {
	if s.watchdog == nil {
		return nil
	}
	if err := s.watchdog.Close(); err != nil {
		return fmt.Errorf("stop PostgreSQL: end its watchdog: %w", err)
	}
	return nil
}

func (s *Server) waitReady(ctx context.Context) error {
	for {
		conn, err := pgx.Connect(ctx, s.DSN("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		if s.hasExited() {
			return errors.New("the server ended at once")
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server does not answer: %w", err)
		case <-time.After(pollInterval):
		}
	}
}

func dataDir(dir string) string { return filepath.Join(dir, "data") }
func runDir(dir string) string  { return filepath.Join(dir, "run") }
func logPath(dir string) string { return filepath.Join(dir, "log") }
func pidPath(dir string) string { return filepath.Join(dataDir(dir), "postmaster.pid") }

func readPID(dir string) (int, error) {
	text, err := os.ReadFile(pidPath(dir))
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("%s holds no process id: %q", pidPath(dir), line)
	}
	return pid, nil
}

func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// logTail is the end of the server's log, or why it can't be read.
func logTail(dir string) string {
	text, err := os.ReadFile(logPath(dir))
	if err != nil {
		return err.Error()
	}
	if len(text) > logTailBytes {
		text = text[len(text)-logTailBytes:]
	}
	return string(bytes.TrimSpace(text))
}

// initialize makes the database cluster unless there is one.
func (in installation) initialize(ctx context.Context, dir string) error {
	if _, err := os.Stat(filepath.Join(dataDir(dir), "PG_VERSION")); err == nil {
		return nil
	}
	cmd := exec.CommandContext(ctx, in.bin("initdb"), "--pgdata", dataDir(dir), "--username", superuser,
		"--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions")
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: in.credential}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, bytes.TrimSpace(out))
	}
	return nil
}

// launch starts the server's process and, unless detached, its watchdog.
func (in installation) launch(dir string, o options) (*Server, error) {
	out, err := os.OpenFile(logPath(dir), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close() //nolint:errcheck // only the server writes to it

	args := []string{"-D", dataDir(dir), "-k", runDir(dir), "-p", strconv.Itoa(port)}
	for _, setting := range slices.Concat(settings, o.settings) {
		args = append(args, "-c", setting)
	}
	cmd := exec.Command(in.bin("postgres"), args...) //nolint:noctx // it outlives the call
	cmd.Dir = dir
	cmd.Stdout, cmd.Stderr = out, out
	// A session of its own, so that a Ctrl-C meant for the tests does not end
	// the server before they have cleaned up.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: in.credential, Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		// How it ended is in its log; that it ended is what callers ask for.
		_ = cmd.Wait()
	}()
	s := &Server{dir: dir, pid: cmd.Process.Pid, exited: exited}
	if o.detached {
		return s, nil
	}
	if s.watchdog, err = watch(s, o.temporary); err != nil {
		return nil, errors.Join(err, s.Kill())
	}
	return s, nil
}

// watch starts a process that kills the server, and removes its directory if it
// is temporary, when this process has ended without stopping it. It waits for
// the end of its standard input, which the kernel closes however this process
// dies, and knows the server by its id and its time of birth.
func watch(s *Server, temporary bool) (io.Closer, error) {
	const script = `trap '' HUP INT TERM
born() { cut -d ' ' -f 22 "/proc/$pid/stat" 2>/dev/null; }
pid=$1 dir=$2
was=$(born)
read -r stopped && exit 0
if test -n "$was" && test "$(born)" = "$was"; then
	kill -QUIT "$pid"
	while test "$(born)" = "$was" && test "$(cut -d ' ' -f 3 "/proc/$pid/stat")" != Z; do sleep 0.05; done
fi
test -z "$dir" || rm -rf "$dir"
`
	remove := ""
	if temporary {
		remove = s.dir
	}
	cmd := exec.Command("sh", "-c", script, "sh", strconv.Itoa(s.pid), remove) //nolint:noctx // it outlives the call
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("watchdog: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("watchdog: %w", err)
	}
	go func() { _ = cmd.Wait() }()
	return watchdog{stdin}, nil
}

// watchdog is told by Close that the server has been stopped.
type watchdog struct{ stdin io.WriteCloser }

// Close finds the pipe closed where the watchdog has ended already, by itself or
// between the two steps: that is what was wanted.
func (w watchdog) Close() error {
	_, err := io.WriteString(w.stdin, "stopped\n")
	for _, err := range []error{err, w.stdin.Close()} {
		if err != nil && !errors.Is(err, os.ErrClosed) && !errors.Is(err, syscall.EPIPE) {
			return err
		}
	}
	return nil
}
