// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"fmt"
	"sync"
)

// Level is the weight of a log line, enum gpub_log_level of bridge.h.
type Level int

// The log levels.
const (
	LogError Level = iota
	LogInfo
	LogVerbose
	LogDebug
)

// levels are the log levels by Slurm's names, which DebugLevel uses.
var levels = map[string]Level{
	"quiet": LogError - 1, "fatal": LogError - 1, "error": LogError, "info": LogInfo, "verbose": LogVerbose,
}

// levelOf is the level of a DebugLevel; all that aren't in levels are debug.
func levelOf(name string) Level {
	if level, ok := levels[name]; ok {
		return level
	}
	return LogDebug
}

// logf writes a line into the host's log, if DebugLevel lets it through.
func (e *Engine) logf(level Level, format string, args ...any) {
	if level <= levelOf(e.conf.Load().DebugLevel) {
		e.host.Log(level, fmt.Sprintf(format, args...))
	}
}

// trouble is something that can go wrong again and again. It is told of once
// when it begins, once when its cause changes, and once when it has ended.
type trouble struct {
	mu    sync.Mutex
	cause string
}

// met is whether a failure is to be logged.
func (t *trouble) met(cause string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	again := t.cause == cause
	t.cause = cause
	return !again
}

// over is whether the end of a failure is to be logged.
func (t *trouble) over() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	was := t.cause != ""
	t.cause = ""
	return was
}
