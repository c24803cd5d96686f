// SPDX-License-Identifier: GPL-2.0-or-later

package nvml_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
)

// logLines keeps what is logged.
type logLines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logLines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// lines returns what was logged since it was called last.
func (l *logLines) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.TrimSpace(l.buf.String())
	l.buf.Reset()
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}
