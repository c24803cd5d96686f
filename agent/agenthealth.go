// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"sync"
	"time"

	"gpubudget/agent/health"
	"gpubudget/usage/meter"
)

// healthBox is what gpubudget-agent health goes by.
type healthBox struct {
	state  *health.State
	path   string
	saving trouble

	mu     sync.Mutex
	resets []reset // not in state yet
}

// reset is a GPU that somebody has seen to.
type reset struct {
	uuid string
	at   time.Time
}

// seenTo has the next round forget what happened to a GPU so far.
func (b *healthBox) seenTo(uuid string, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resets = append(b.resets, reset{uuid, at})
}

// takeResets hands over, once, what seenTo has noted.
func (b *healthBox) takeResets() []reset {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.resets
	b.resets = nil
	return taken
}

func (a *Agent) resumeHealth() {
	a.health.path = health.Path(a.o.SpoolDir)
	var err error
	if a.health.state, err = health.Resume(a.health.path, a.o.Node, a.o.BootID); err != nil {
		a.log.Warn("what was known of the GPUs' health can't be read", "err", err)
	}
}

// noteHealth keeps what a round says of the GPUs' health, for whoever asks.
func (a *Agent) noteHealth(seen *meter.Round, hang error) {
	s, now := a.health.state, a.o.Clock.Now()
	expected := len(a.slots.uuids) > 0
	switch {
	case seen != nil:
		s.Read(seen, expected)
	case hang != nil:
		s.Unread(now, hang.Error(), expected)
	case a.state.is(meter.ErrReleased):
		s.Unread(now, "", expected)
	default:
		s.Unread(now, a.state.text(), expected)
	}
	for _, r := range a.health.takeResets() {
		s.Reset(r.uuid, r.at)
	}
	if err := s.Save(a.health.path); err != nil {
		a.health.saving.met(a.log, now, "gpubudget-agent health does not learn of the GPUs", err)
	} else {
		a.health.saving.over(a.log, now, "gpubudget-agent health learns of the GPUs again")
	}
}

// is tells whether it is this that is wrong.
func (t *trouble) is(err error) bool { return t.text() == err.Error() }
