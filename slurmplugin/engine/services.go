// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"context"
	"runtime/debug"
	"sync"
	"time"
)

// afterPanic is how long a service rests that has panicked.
const afterPanic = 5 * time.Second

// services are goroutines that run until they are stopped together.
type services struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	// panicked is told of a panic: it must not end the process.
	panicked func(name string, value any, stack []byte)
}

func newServices(panicked func(name string, value any, stack []byte)) *services {
	s := &services{panicked: panicked}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// start runs a service. One that panics is started again after a rest.
func (s *services) start(name string, run func(context.Context)) {
	s.wg.Go(func() {
		for s.ctx.Err() == nil {
			if s.survives(name, run) {
				sleep(s.ctx, afterPanic)
			}
		}
	})
}

// survives runs a service and tells whether it panicked.
func (s *services) survives(name string, run func(context.Context)) (panicked bool) {
	defer func() {
		if value := recover(); value != nil {
			panicked = true
			s.panicked(name, value, debug.Stack())
		}
	}()
	run(s.ctx)
	return false
}

// stop ends all services and waits for them, but no longer than timeout.
func (s *services) stop(timeout time.Duration) (ended bool) {
	s.cancel()
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return true
	case <-time.After(timeout):
		return false
	}
}

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
