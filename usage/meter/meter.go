// SPDX-License-Identifier: GPL-2.0-or-later

// Package meter reads what the GPUs of a node are and do, round by round. It
// keeps to two rules: what is not known is nil, never zero; and a driver that
// hangs is reported instead of being waited for.
//
// The driver itself is behind an interface; package usage/nvml has NVIDIA's.
package meter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// ErrReleased is returned by Sample between Release and Reopen.
var ErrReleased = errors.New("the GPU driver is released, for a reset or a change of MIG instances")

// ErrClosed is returned by a Meter that was closed.
var ErrClosed = errors.New("the meter is closed")

// Options of a Meter. All but Driver have defaults.
type Options struct {
	Driver Driver
	// Timeout is how long a round, or opening or closing the driver, may take
	// before the driver counts as hung. The default is 30 s: the first contact
	// with a GPU that no one uses takes seconds.
	Timeout time.Duration
	// ECCEvery is how often memory errors are read, which is slow. The default
	// is a minute.
	ECCEvery time.Duration
	// XidWait is how long one call waits for Xid errors, and so how long Release
	// may take. The default is half a second.
	XidWait time.Duration
	// Log gets a line when something can't be read, once, and when it can be
	// read again.
	Log   *slog.Logger
	Clock Clock
	// Alive tells whether a process exists.
	Alive func(pid int) bool
}

func (o *Options) fill() {
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.ECCEvery == 0 {
		o.ECCEvery = time.Minute
	}
	if o.XidWait == 0 {
		o.XidWait = time.Second / 2
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = SystemClock{}
	}
	if o.Alive == nil {
		o.Alive = alive
	}
}

// Meter reads GPUs. Its methods may be called from several goroutines; they
// wait for each other.
type Meter struct {
	o Options

	mu       sync.Mutex // held by the methods
	released bool
	closed   bool
	hung     *HangError

	version atomic.Pointer[string] // the driver's
	xids    xids                   // seen since the last round

	// The rest belongs to whoever runs within work; after a hang, to nobody.
	known     map[string]*gpu // by UUID
	slots     []string        // UUIDs by the driver's index, as last seen
	rounds    uint64
	lastRound time.Duration
	began     bool // there was a round since the driver was opened
	badLists  bool // the driver's lists of processes are not to be trusted
	problems  map[problem]string
	watch     *watcher
	samples   []Sample     // reused
	rows      []ProcessRow // reused
}

// HangError says that the driver did not answer. What was called can't be
// cancelled, so the Meter is of no use any more: the process should end, and be
// started anew by its supervisor.
type HangError struct {
	Call    string // the library's function
	Waited  time.Duration
	Purpose string // what it was called for
}

func (e *HangError) Error() string {
	call := e.Call
	if call == "" {
		call = "a call"
	}
	return fmt.Sprintf("the GPU driver hangs: %s has not returned for %s (to %s)", call, e.Waited, e.Purpose)
}

// Open connects to the driver. Its error holds a DriverError: ErrNoLibrary and
// ErrDriverNotLoaded where there is no driver, ErrNoFunction where it is too old. A
// node without GPUs is no error.
func Open(o Options) (*Meter, error) {
	o.fill()
	m := &Meter{o: o}
	if err := m.work("open it", m.open); err != nil {
		return nil, err
	}
	return m, nil
}

// Version is the driver's version, "" if it does not tell.
func (m *Meter) Version() string {
	if v := m.version.Load(); v != nil {
		return *v
	}
	return ""
}

// Sample reads all GPUs. The error is ErrReleased, ErrClosed, a *HangError, or
// what keeps the driver as a whole from answering; what is wrong with a single
// GPU is in its Reading. After a *HangError, or an error that is ErrOtherVersion
// (the driver was exchanged, but a library once loaded stays loaded), only
// another process can go on.
func (m *Meter) Sample() (*Round, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return nil, ErrClosed
	case m.released:
		return nil, ErrReleased
	}
	var round *Round
	err := m.work("read the GPUs", func() error {
		var err error
		round, err = m.round()
		return err
	})
	if err != nil {
		return nil, err
	}
	return round, nil
}

// Release disconnects from the driver: as long as a process is connected, no
// GPU can be reset and MIG mode can't be changed. It returns when the driver
// is free, after XidWait or so.
func (m *Meter) Release() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.released {
		return nil
	}
	if err := m.work("release it", m.release); err != nil {
		return err
	}
	m.released = true
	return nil
}

// Reopen connects again after Release. If it fails, the driver stays released
// and Reopen may be tried again.
func (m *Meter) Reopen() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return ErrClosed
	case !m.released:
		return nil
	}
	if err := m.work("open it again", m.open); err != nil {
		return err
	}
	m.released = false
	return nil
}

// Close disconnects for good.
func (m *Meter) Close() error {
	err := m.Release()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return err
}

// work runs what calls the driver, in a goroutine of its own, and waits no
// longer than Timeout. It is called with mu held, except in Open.
func (m *Meter) work(purpose string, do func() error) error {
	if m.hung != nil {
		return m.hung
	}
	done := make(chan error, 1)
	go func() { done <- recovered(do) }()
	timer := time.NewTimer(m.o.Timeout)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		m.hung = &HangError{Call: m.o.Driver.InCall(), Waited: m.o.Timeout, Purpose: purpose}
		return m.hung
	}
}

// recovered turns a panic into an error: a driver that says there are more rows
// than it has room for makes the binding panic.
func recovered(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the GPU driver's answer makes no sense: %v", p)
		}
	}()
	return do()
}

func (m *Meter) open() error {
	if err := m.o.Driver.Open(); err != nil {
		return err
	}
	m.known, m.slots, m.problems, m.began = map[string]*gpu{}, nil, map[problem]string{}, false
	version, err := m.o.Driver.Version()
	m.note("", "the driver's version", err)
	if err != nil {
		version = ""
	}
	m.version.Store(&version)
	m.badLists = hasBadLists(version)
	if m.badLists {
		m.o.Log.Warn("processes are known only of GPUs with one process: "+errBadLists.Error(), "driver", version)
	}
	return nil
}

// release leaves nothing open. If the driver refuses to be closed, the next round
// begins as the first one does.
func (m *Meter) release() error {
	errs := m.unwatch()
	for _, g := range m.known {
		errs = errors.Join(errs, g.forget())
	}
	m.known, m.slots, m.began = map[string]*gpu{}, nil, false
	m.note("", "the release", errs)
	return m.o.Driver.Close()
}

// problem is something that can't be read.
type problem struct{ uuid, what string }

// note logs what can't be read when that is new, and when it has passed. It
// reports whether err is nil.
func (m *Meter) note(uuid, what string, err error) bool {
	if err == nil {
		if len(m.problems) == 0 {
			return true
		}
		p := problem{uuid, what}
		if _, was := m.problems[p]; was {
			delete(m.problems, p)
			m.o.Log.Info("known again", "gpu", uuid, "what", what)
		}
		return true
	}
	p, text := problem{uuid, what}, err.Error()
	if m.problems[p] == text {
		return false
	}
	m.problems[p] = text
	level := slog.LevelWarn
	if errors.Is(err, ErrNotSupported) || errors.Is(err, ErrNoFunction) {
		level = slog.LevelInfo // that's how it is, nothing is wrong
	}
	m.o.Log.Log(context.Background(), level, "not known", "gpu", uuid, "what", what, "err", text)
	return false
}
