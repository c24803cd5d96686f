// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubudget/agent/tally"
)

// The conversation on the socket: a request is a line, and so is the answer. After
// release may stand which GPU it is for. The driver is released for as long as the
// connection stays open, or until the other side says that all was well.
const (
	requestRelease = "release"
	answerReleased = "released"
	wordDone       = "done"
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
	request, which, _ := strings.Cut(strings.TrimSpace(line), " ")
	if request != requestRelease {
		fmt.Fprintf(conn, "error: unknown request %q\n", request)
		return
	}
	var reopen func() error
	uuid, err := a.free(which)
	if err == nil {
		reopen, err = a.sampler.release()
	}
	if err != nil {
		fmt.Fprintf(conn, "error: %s\n", strings.Join(strings.Fields(err.Error()), " "))
		return
	}
	a.log.Info("the driver is released, as was asked for", "gpu", which)
	fmt.Fprintln(conn, answerReleased)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	end, _ := in.ReadString('\n') // it goes on until the other side hangs up
	stop()
	if uuid != "" && strings.TrimSpace(end) == wordDone {
		a.health.seenTo(uuid, a.o.Clock.Now())
	}
	if err := reopen(); err != nil {
		a.log.Error("the driver can't be opened again yet", "err", err)
		return
	}
	a.log.Info("the driver is taken again")
}

// free refuses to release a GPU that is not there or that jobs hold, and finds its
// UUID. "" is any: then whoever asks knows better.
func (a *Agent) free(which string) (uuid string, err error) {
	if which == "" {
		return "", nil
	}
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	for _, g := range a.shared.views {
		if !g.is(which) {
			continue
		}
		if len(g.jobs) > 0 {
			return "", fmt.Errorf("GPU %s (%s) is held by job %s: drain the node first, or release all without naming a GPU", which, g.uuid, joined(g.jobs))
		}
		return g.uuid, nil
	}
	return "", fmt.Errorf("no GPU is called %q here: gpubudget-agent --once lists them", which)
}

// held is a GPU and the jobs that hold it, or one of its MIG instances.
type held struct {
	uuid, pci string
	index     int
	jobs      []uint32
}

// is tells whether the GPU goes by a name: its UUID, its PCI bus id, or the driver's
// number.
func (h *held) is(name string) bool {
	return strings.EqualFold(name, h.uuid) || strings.EqualFold(name, h.pci) || name == strconv.Itoa(h.index)
}

// views are the whole GPUs, and who holds them.
func views(devices []device, holdings []tally.Holding, now int64) (all []held) {
	parent := map[string]string{}
	for i := range devices {
		d := &devices[i]
		parent[d.UUID] = cmp.Or(d.Parent, d.UUID)
		if d.Parent == "" {
			all = append(all, held{uuid: d.UUID, pci: d.PCIBusID, index: d.Index})
		}
	}
	for i := range holdings {
		h := &holdings[i]
		if h.Until <= now {
			continue
		}
		for n := range all {
			if all[n].uuid == parent[h.GPU] && !slices.Contains(all[n].jobs, h.JobID) {
				all[n].jobs = append(all[n].jobs, h.JobID)
			}
		}
	}
	return all
}

func joined(jobs []uint32) string {
	texts := make([]string, len(jobs))
	for i, job := range jobs {
		texts[i] = strconv.FormatUint(uint64(job), 10)
	}
	return strings.Join(texts, ", ")
}

// Release has the agent that listens at a socket let go of the driver while do
// runs. gpu, unless it is empty, is the one that it is for: by UUID, PCI bus id or the
// driver's number. It is refused if jobs hold that one; if do has no error, what
// happened to it before doesn't count against its health any more.
func Release(ctx context.Context, socket, gpu string, do func() error) error {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	defer conn.Close() //nolint:errcheck // that is what ends it
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if _, err := fmt.Fprintln(conn, strings.TrimSpace(requestRelease+" "+gpu)); err != nil {
		return fmt.Errorf("ask the agent: %w", err)
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the agent does not answer: %w", err)
	}
	if answer = strings.TrimSpace(answer); answer != answerReleased {
		return fmt.Errorf("the agent says: %s", strings.TrimPrefix(answer, "error: "))
	}
	if err := do(); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(conn, wordDone) // an agent that has ended meanwhile has the driver no longer
	return nil
}
