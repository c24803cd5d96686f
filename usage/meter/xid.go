// SPDX-License-Identifier: GPL-2.0-or-later

package meter

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// keptXids is how many are kept from one round to the next.
const keptXids = 256

// xids are those seen since the last round.
type xids struct {
	mu      sync.Mutex
	seen    []Xid
	dropped int
}

func (x *xids) add(xid Xid) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.seen) == keptXids {
		x.dropped++
		return
	}
	x.seen = append(x.seen, xid)
}

func (x *xids) take() (seen []Xid, dropped int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	seen, dropped = x.seen, x.dropped
	x.seen, x.dropped = nil, 0
	return seen, dropped
}

// watcher waits for Xid errors in a goroutine of its own.
type watcher struct {
	uuids  []string // of the GPUs watched
	events Events   // nil if none can be watched
	to     *xids
	clock  Clock
	length time.Duration // of one wait
	stop   chan struct{}
	done   chan struct{}
	lost   atomic.Bool // a GPU that is watched is lost, which keeps the others from being heard
}

// rewatch watches devices, if those that are watched are not the right ones any
// more. What happens meanwhile is not seen.
func (m *Meter) rewatch(devices []Device, uuids []string) {
	if m.watch != nil && m.watch.fits(uuids, m.known) {
		return
	}
	m.note("", "Xid errors", m.unwatch())
	w := &watcher{uuids: uuids, to: &m.xids, clock: m.o.Clock, length: m.o.XidWait, stop: make(chan struct{}), done: make(chan struct{})}
	m.watch = w
	if len(devices) == 0 {
		return
	}
	events, unwatched, err := m.o.Driver.Watch(devices)
	if !m.note("", "Xid errors", err) {
		return
	}
	for _, uuid := range uuids {
		m.note(uuid, "Xid errors", unwatched[uuid])
	}
	w.events = events
	go w.run()
}

// fits tells whether every GPU that is there is watched, and none that is gone
// or makes waiting fail. One that is lost stays watched until then: the reason may
// be an Xid that is still to come.
func (w *watcher) fits(present []string, known map[string]*gpu) bool {
	if w.lost.Load() {
		return false
	}
	for _, uuid := range present {
		if !slices.Contains(w.uuids, uuid) {
			return false
		}
	}
	for _, uuid := range w.uuids {
		if known[uuid] == nil {
			return false
		}
	}
	return true
}

// unwatch ends the watcher.
func (m *Meter) unwatch() error {
	w := m.watch
	m.watch = nil
	if w == nil || w.events == nil {
		return nil
	}
	close(w.stop)
	<-w.done
	return w.events.Close()
}

func (w *watcher) run() {
	defer close(w.done)
	for {
		select {
		case <-w.stop:
			_ = w.wait(0) // what came meanwhile; then it ends in any case
			return
		default:
		}
		err := w.wait(w.length)
		if errors.Is(err, ErrLost) {
			w.lost.Store(true)
		}
		if !errors.Is(err, ErrTimeout) {
			w.pause() // it may fail at once, over and over
		}
	}
}

// wait takes events as long as there are any.
func (w *watcher) wait(timeout time.Duration) error {
	for range keptXids {
		xid, err := w.events.Wait(timeout)
		if err != nil {
			return err
		}
		xid.At = w.clock.Now()
		w.to.add(xid)
	}
	return ErrTimeout
}

func (w *watcher) pause() {
	timer := time.NewTimer(w.length)
	defer timer.Stop()
	select {
	case <-w.stop:
	case <-timer.C:
	}
}
