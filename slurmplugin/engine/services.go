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

// service is a goroutine that runs until its context ends.
type service struct {
	name string
	run  func(context.Context)
}

// services are goroutines that run until they are stopped together.
type services struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup
	// panicked is told of a panic: it must not end the process.
	panicked func(name string, value any, stack []byte)
}

// startServices runs services. One that panics is started again after a rest.
func startServices(panicked func(name string, value any, stack []byte), all ...service) *services {
	ctx, cancel := context.WithCancel(context.Background())
	s := &services{cancel: cancel, panicked: panicked}
	for _, one := range all {
		s.wg.Go(func() {
			for ctx.Err() == nil {
				if s.panics(ctx, one) {
					sleep(ctx, afterPanic)
				}
			}
		})
	}
	return s
}

// panics runs a service and tells whether it panicked.
func (s *services) panics(ctx context.Context, one service) (panicked bool) {
	defer func() {
		if value := recover(); value != nil {
			panicked = true
			s.panicked(one.name, value, debug.Stack())
		}
	}()
	one.run(ctx)
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
