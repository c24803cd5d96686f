// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The conversation on the socket: a request is a line, and so is the answer. The
// driver is released for as long as the connection stays open.
const (
	requestRelease = "release"
	answerReleased = "released"
)

// longestRelease bounds how long one request can keep the driver.
const longestRelease = time.Hour

// listen takes requests until the context ends.
func (a *Agent) listen(ctx context.Context) {
	listener, err := openSocket(ctx, a.o.Socket)
	if err != nil {
		a.log.Error("gpubudget-agent release will not work", "err", err)
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() == nil {
				a.log.Error("gpubudget-agent release does not work any more", "err", err)
			}
			return
		}
		go a.serve(ctx, conn)
	}
}

// openSocket makes the socket. One that an agent left behind that was killed is
// replaced. Only the agent's user and group may use it.
func openSocket(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // Prolog's folder may lie in it
		return nil, err
	}
	if conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path); err == nil {
		return nil, errors.Join(fmt.Errorf("another agent listens at %s", path), conn.Close())
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o660); err != nil { //nolint:gosec // the group administers the node
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// serve answers one request.
func (a *Agent) serve(ctx context.Context, conn net.Conn) {
	defer conn.Close() //nolint:errcheck // whoever asked has gone
	_ = conn.SetDeadline(a.o.Clock.Now().Add(longestRelease))
	in := bufio.NewReader(io.LimitReader(conn, 1<<10))
	line, err := in.ReadString('\n')
	if err != nil {
		return
	}
	if request := strings.TrimSpace(line); request != requestRelease {
		fmt.Fprintf(conn, "error: unknown request %q\n", request)
		return
	}
	reopen, err := a.sampler.release()
	if err != nil {
		fmt.Fprintf(conn, "error: %s\n", strings.Join(strings.Fields(err.Error()), " "))
		return
	}
	a.log.Info("the driver is released, as was asked for")
	fmt.Fprintln(conn, answerReleased)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	_, _ = in.ReadByte() // it goes on until the other side hangs up
	stop()
	if err := reopen(); err != nil {
		a.log.Error("the driver can't be opened again yet", "err", err)
		return
	}
	a.log.Info("the driver is taken again")
}

// Release has the agent that listens at a socket let go of the driver while do
// runs.
func Release(ctx context.Context, socket string, do func() error) error {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	defer conn.Close() //nolint:errcheck // that is what ends it
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if _, err := fmt.Fprintln(conn, requestRelease); err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the agent does not answer: %w", err)
	}
	if answer = strings.TrimSpace(answer); answer != answerReleased {
		return fmt.Errorf("the agent says: %s", strings.TrimPrefix(answer, "error: "))
	}
	return do()
}
