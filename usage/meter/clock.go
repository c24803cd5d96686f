// SPDX-License-Identifier: GPL-2.0-or-later

package meter

import (
	"time"

	"golang.org/x/sys/unix"
)

// Clock tells the time in two ways.
type Clock interface {
	// Now is the wall clock, which can be set.
	Now() time.Time
	// Boot is the time since the boot, suspension included. Durations are
	// measured by it.
	Boot() time.Duration
}

// SystemClock is the machine's.
type SystemClock struct{}

// Now implements Clock.
func (SystemClock) Now() time.Time { return time.Now() }

// Boot implements Clock.
func (SystemClock) Boot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("meter: no CLOCK_BOOTTIME: " + err.Error()) // Linux has it since 2.6.39
	}
	return time.Duration(t.Nano())
}
