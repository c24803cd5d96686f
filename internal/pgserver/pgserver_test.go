// SPDX-License-Identifier: GPL-2.0-or-later

package pgserver_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/internal/pgserver"
)

// childDir names the directory in which this binary, run as its own child,
// starts a server.
const childDir = "PGSERVER_TEST_CHILD_DIR"

var ctx = context.Background()

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		runAsChild(dir)
		return
	}
	os.Exit(m.Run())
}

// runAsChild starts a server, says so, and waits to be killed.
func runAsChild(dir string) {
	s, err := pgserver.Start(ctx, dir, pgserver.Temporary())
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(s.PID())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// tempDir is a directory that the server's user can get through.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpubudget-pgserver-") //nolint:usetesting // t.TempDir lets nobody else through
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func exec1(t *testing.T, s *pgserver.Server, sql string) {
	t.Helper()
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	require.NoError(t, err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	require.NoError(t, err)
}

// One server's life, in one directory.
func TestServer(t *testing.T) {
	dir := tempDir(t)
	_, err := pgserver.Attach(dir)
	require.ErrorIs(t, err, os.ErrNotExist)

	s, err := pgserver.Start(ctx, dir)
	require.NoError(t, err)
	exec1(t, s, "CREATE TABLE kept (n int)")
	require.NoError(t, s.Stop())
	require.NoError(t, s.Stop(), "once more does no harm")
	_, err = pgx.Connect(ctx, s.DSN("postgres"))
	require.Error(t, err)

	_, err = pgserver.Start(ctx, dir, pgserver.Setting("work_mem", "much"))
	require.ErrorContains(t, err, `invalid value for parameter "work_mem": "much"`)

	s, err = pgserver.Start(ctx, dir)
	require.NoError(t, err)
	exec1(t, s, "INSERT INTO kept VALUES (1)")
	require.NoError(t, s.Kill())

	s, err = pgserver.Start(ctx, dir, pgserver.Detached())
	require.NoError(t, err)
	exec1(t, s, "SELECT 1 / (SELECT count(*) FROM kept)")
	other, err := pgserver.Attach(dir)
	require.NoError(t, err)
	require.Equal(t, s.PID(), other.PID())
	require.Equal(t, s.DSN("x"), other.DSN("x"))
	require.NoError(t, other.Stop())
	_, err = pgserver.Attach(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// However the process that started a server dies, the server goes with it and a
// temporary directory too.
func TestServerDiesWithItsProcess(t *testing.T) {
	dir := filepath.Join(tempDir(t), "server")
	child := exec.CommandContext(t.Context(), os.Args[0])
	child.Env = append(os.Environ(), childDir+"="+dir)
	stdout, err := child.StdoutPipe()
	require.NoError(t, err)
	stdin, err := child.StdinPipe()
	require.NoError(t, err)
	defer stdin.Close()
	require.NoError(t, child.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	var pid int
	_, err = fmt.Sscan(line, &pid)
	require.NoError(t, err, line)
	require.NoError(t, syscall.Kill(pid, 0))

	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait(), "it was killed")
	gone := func() bool {
		_, err := os.Stat(dir)
		return errors.Is(err, os.ErrNotExist) && !running(pid)
	}
	require.Eventually(t, gone, 15*time.Second, 20*time.Millisecond)
}

// running tells whether a process is there and not merely unreaped.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}
