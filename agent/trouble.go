// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"errors"
	"log/slog"
	"sync"
	"syscall"
	"time"
)

// trouble is something that can go wrong again and again. It is told of when it
// begins, when its cause changes, and when it is over; not in between.
type trouble struct {
	mu    sync.Mutex
	cause string
	said  string
	since time.Time
}

// met tells of a failure unless that is known.
func (t *trouble) met(log *slog.Logger, now time.Time, what string, err error, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	cause := causeOf(err)
	if t.cause == cause {
		log.Debug(what, append(args, "err", err)...)
		return
	}
	if t.cause == "" {
		t.since = now
	}
	t.cause, t.said = cause, err.Error()
	log.Error(what, append(args, "err", err)...)
}

// over tells that it is over, if it was.
func (t *trouble) over(log *slog.Logger, now time.Time, what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cause == "" {
		return
	}
	t.cause, t.said = "", ""
	log.Info(what, "after", now.Sub(t.since).Round(time.Second))
}

// text is what is wrong, "" if nothing is.
func (t *trouble) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.said
}

// causeOf is what tells one failure from another: what the system says, whichever
// file or address it says it of.
func causeOf(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno.Error()
	}
	return err.Error()
}

// once tells of each of many things a single time. What is not mentioned any
// more is forgotten.
type once struct{ said, next map[string]bool }

// first reports whether a text is new.
func (o *once) first(text string) bool {
	if o.next == nil {
		o.next = map[string]bool{}
	}
	known := o.said[text] || o.next[text]
	o.next[text] = true
	return !known
}

// turn ends a round.
func (o *once) turn() { o.said, o.next = o.next, nil }
