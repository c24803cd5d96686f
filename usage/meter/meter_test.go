// SPDX-License-Identifier: GPL-2.0-or-later

package meter

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stuck is a driver that does not return from one of its calls. What the real
// one does is tested in package usage/nvml, with the simulated library; a call
// of that, once it hangs, would hold up the tests that follow.
type stuck struct {
	in     string
	freed  chan struct{}
	called chan struct{}
}

func (d *stuck) hang(call string) error {
	if d.in == call {
		close(d.called)
		<-d.freed
	}
	return nil
}

func (d *stuck) Open() error                { return d.hang("Open") }
func (d *stuck) Close() error               { return d.hang("Close") }
func (d *stuck) Version() (string, error)   { return "1", nil }
func (d *stuck) Count() (int, error)        { return 0, d.hang("Count") }
func (d *stuck) Device(int) (Device, error) { return nil, ErrUnknown }
func (d *stuck) InCall() string             { return d.in }
func (d *stuck) Watch([]Device) (Events, map[string]error, error) {
	return nil, nil, ErrNotSupported
}

func newStuck(t *testing.T, in string) *stuck {
	t.Helper()
	d := &stuck{in: in, freed: make(chan struct{}), called: make(chan struct{})}
	t.Cleanup(func() { close(d.freed) })
	return d
}

func requireHang(t *testing.T, err error, call, purpose string) {
	t.Helper()
	hang, ok := errors.AsType[*HangError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, HangError{Call: call, Waited: 50 * time.Millisecond, Purpose: purpose}, *hang)
}

func TestHangIsReported(t *testing.T) {
	options := func(d *stuck) Options { return Options{Driver: d, Timeout: 50 * time.Millisecond} }

	t.Run("while it opens", func(t *testing.T) {
		_, err := Open(options(newStuck(t, "Open")))
		requireHang(t, err, "Open", "open it")
	})
	t.Run("in a round", func(t *testing.T) {
		d := newStuck(t, "Count")
		m, err := Open(options(d))
		require.NoError(t, err)
		_, err = m.Sample()
		requireHang(t, err, "Count", "read the GPUs")
		<-d.called
		// Nothing touches the driver again.
		_, err = m.Sample()
		requireHang(t, err, "Count", "read the GPUs")
		requireHang(t, m.Release(), "Count", "read the GPUs")
		requireHang(t, m.Close(), "Count", "read the GPUs")
	})
	t.Run("while it is released", func(t *testing.T) {
		m, err := Open(options(newStuck(t, "Close")))
		require.NoError(t, err)
		requireHang(t, m.Release(), "Close", "release it")
	})
}

// nonsense is a driver whose answer makes the binding panic.
type nonsense struct{ stuck }

func (nonsense) Count() (int, error) {
	rows := make([]int, 1)
	n := 2
	return len(rows[:n]), nil
}

func TestPanicIsAnError(t *testing.T) {
	m, err := Open(Options{Driver: &nonsense{}})
	require.NoError(t, err)
	_, err = m.Sample()
	require.ErrorContains(t, err, "the GPU driver's answer makes no sense: ")
	require.ErrorContains(t, err, "slice bounds out of range")
	require.NoError(t, m.Close())
}

func TestCloseIsForGood(t *testing.T) {
	m, err := Open(Options{Driver: &stuck{}})
	require.NoError(t, err)
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	require.ErrorIs(t, m.Reopen(), ErrClosed)
	_, err = m.Sample()
	require.ErrorIs(t, err, ErrClosed)
}

// TestFloodOfXids keeps the first of them and counts the rest.
func TestFloodOfXids(t *testing.T) {
	var x xids
	for i := range 300 {
		x.add(Xid{Code: uint64(i)})
	}
	seen, dropped := x.take()
	require.Len(t, seen, 256)
	require.Equal(t, uint64(255), seen[255].Code)
	require.Equal(t, 44, dropped)
	seen, dropped = x.take()
	require.Empty(t, seen)
	require.Zero(t, dropped)
}

func TestDriverErrorsHaveTexts(t *testing.T) {
	require.Equal(t, "nvmlDeviceGetPowerUsage: the GPU is lost", (&CallError{"nvmlDeviceGetPowerUsage", ErrLost}).Error())
	require.Equal(t, "NVML error 4711", DriverError(4711).Error())
}
