// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"gpubudget/slurmplugin/engine"
)

// version is set by the linker: -X main.version=...
var version = "dev"

// maxProcs bounds how many threads run Go code at once: slurmctld's host is
// there for slurmctld, and one refresh beside one pass is all we ever do.
const maxProcs = 4

// gcPercent is how much garbage may lie beside what is in use, by default:
// memory is slurmctld's, and there is time to collect it.
const gcPercent = 40

var errABI = errors.New("bridge.h of the shim and of libgpubudget.so differ: install both from one build")

// running is the engine between gpub_start and gpub_stop.
var running atomic.Pointer[engine.Engine]

// start replaces the engine by a new one: slurmctld may init, fini and init a
// plugin in one process.
func start(h engine.Host) error {
	if n := min(maxProcs, runtime.NumCPU()); runtime.GOMAXPROCS(0) > n {
		runtime.GOMAXPROCS(n)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if err := stop(); err != nil {
		return err
	}
	e, err := engine.Start(h)
	if err != nil {
		return err
	}
	running.Store(e)
	return nil
}

// stop stops the engine, if there is one.
func stop() error {
	e := running.Swap(nil)
	if e == nil {
		return nil
	}
	return e.Stop()
}

// withEngine is guard for calls that need a running engine.
func withEngine(call string, do func(*engine.Engine) error) int {
	return guard(call, func() error {
		e := running.Load()
		if e == nil {
			return errors.New("not started")
		}
		return do(e)
	})
}

// guard runs do and turns its outcome into an enum gpub_rc. A panic or an error
// is logged once of its kind: these calls come many times a second. A fault on
// the host's memory is a panic as well, and not the end of slurmctld.
func guard(call string, do func() error) (rc int) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			logOnce(fmt.Sprintf("%s: panic: %v", call, p), string(debug.Stack()))
			rc = engine.Panicked
		}
	}()
	switch err := do(); {
	case err == nil:
		return engine.OK
	case errors.Is(err, errABI):
		logOnce(fmt.Sprintf("%s: %v", call, err), "")
		return engine.ABIMismatch
	default:
		logOnce(fmt.Sprintf("%s: %v", call, err), "")
		return engine.Error
	}
}

// hostLog is where log lines go. It is held for reading while a line is
// written, so that no line comes after setLog(nil) has returned: by then Slurm
// may unload the shim.
var hostLog struct {
	sync.RWMutex
	write  func(level int, message string)
	logged map[string]bool
}

// mostKinds bounds how many different faults are logged.
const mostKinds = 100

// setLog sends log lines to write; nil ends logging.
func setLog(write func(level int, message string)) {
	hostLog.Lock()
	defer hostLog.Unlock()
	hostLog.write = write
	hostLog.logged = map[string]bool{}
}

// log writes one line into slurmctld.log.
func log(level engine.Level, message string) {
	hostLog.RLock()
	defer hostLog.RUnlock()
	if hostLog.write != nil {
		hostLog.write(int(level), message)
	}
}

// logOnce logs an error unless the same was logged since the last start.
func logOnce(message, detail string) {
	hostLog.Lock()
	known := hostLog.logged[message] || len(hostLog.logged) >= mostKinds
	if !known && hostLog.logged != nil {
		hostLog.logged[message] = true
	}
	hostLog.Unlock()
	if known {
		return
	}
	if detail != "" {
		message += "\n" + detail
	}
	log(engine.LogError, message)
}
