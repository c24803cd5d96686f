// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"errors"
	"sync"
	"time"

	"gpubudget/usage/meter"
)

// reopenAfter is how long the driver is left alone after it could not be opened.
const reopenAfter = time.Minute

// otherVersionAfter is for how long a process runs at least until it ends because
// the driver's library is not of the kernel module's version: that may last, and
// whoever starts it anew shall not do so all the time.
const otherVersionAfter = time.Minute

// samplerBox is the driver, or the lack of one. Requests to release it come from
// another goroutine.
type samplerBox struct {
	mu       sync.Mutex
	sampler  Sampler // nil: it could not be opened
	released bool    // by request
	tried    time.Duration
	attempts int
}

// sample reads the GPUs. It returns nil if nothing could be read, which is told
// of once; an error if the driver hangs or was exchanged: only another process can
// go on then.
func (a *Agent) sample() (*meter.Round, error) {
	round, err := a.sampler.sample(a.o.Open, a.o.Clock.Boot())
	now := a.o.Clock.Now()
	if hang, ok := errors.AsType[*meter.HangError](err); ok {
		a.log.Error("this process ends, to be started anew", "err", hang)
		return nil, hang
	}
	switch {
	case errors.Is(err, meter.ErrOtherVersion) && a.o.Clock.Boot()-time.Duration(a.started)*time.Millisecond >= otherVersionAfter:
		a.log.Error("the driver was exchanged, and its library stays loaded as long as this process runs: it ends, to be started anew", "err", err)
		return nil, err
	case errors.Is(err, errNotYet):
		return nil, nil //nolint:nilnil // it was told of
	case errors.Is(err, meter.ErrReleased):
		a.state.met(a.log, now, "GPUs are not measured meanwhile", err)
		return nil, nil //nolint:nilnil // what is counted goes on
	case err != nil:
		a.state.met(a.log, now, "GPUs are not measured, who holds them is counted all the same", err)
		return nil, nil //nolint:nilnil // what is counted goes on
	}
	a.state.over(a.log, now, "GPUs are measured again")
	at := round.At.UnixMilli()
	a.samples = &at
	return round, nil
}

// errNotYet: the last attempt to open the driver failed not long ago.
var errNotYet = errors.New("the driver is tried again later")

func (b *samplerBox) sample(open func() (Sampler, error), now time.Duration) (*meter.Round, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.released {
		return nil, meter.ErrReleased
	}
	if b.sampler == nil {
		if b.attempts > 0 && now-b.tried < reopenAfter {
			return nil, errNotYet
		}
		b.tried = now
		b.attempts++
		s, err := open()
		if err != nil {
			return nil, err
		}
		b.sampler, b.attempts = s, 0
	}
	round, err := b.sampler.Sample()
	if errors.Is(err, meter.ErrReleased) { // it could not be reopened
		if err := b.sampler.Reopen(); err != nil {
			return nil, err
		}
		round, err = b.sampler.Sample()
	}
	return round, err
}

// release lets go of the driver until the function it returns is called.
func (b *samplerBox) release() (reopen func() error, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.released {
		return nil, errors.New("it is released already")
	}
	if b.sampler != nil {
		if err := b.sampler.Release(); err != nil {
			return nil, err
		}
	}
	b.released = true
	return b.reopen, nil
}

// reopen ends a release. If the driver can't be opened, the next rounds try
// again.
func (b *samplerBox) reopen() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.released = false
	if b.sampler == nil {
		b.attempts = 0
		return nil
	}
	return b.sampler.Reopen()
}

func (b *samplerBox) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sampler == nil {
		return nil
	}
	return b.sampler.Close()
}
