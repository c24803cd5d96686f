// SPDX-License-Identifier: GPL-2.0-or-later

package nvml_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/simnvml"
	"gpubudget/usage/meter"
)

// xids reads rounds until as many events have come as are wanted.
func (n *node) xids(want int) (got []meter.Xid) {
	n.t.Helper()
	require.Eventually(n.t, func() bool {
		r, err := n.meter.Sample()
		require.NoError(n.t, err)
		got = append(got, r.Xids...)
		return len(got) >= want
	}, 10*time.Second, 10*time.Millisecond)
	return got
}

// happen lets Xid errors happen.
func (n *node) happen(xids ...simnvml.Xid) {
	n.t.Helper()
	n.change(func(s *simnvml.State) {
		for _, x := range xids {
			x.Number = uint64(len(s.Xids)) + 1
			s.Xids = append(s.Xids, x)
		}
	})
}

func TestXids(t *testing.T) {
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{a100(0), h100(1)}})
	n.happen(simnvml.Xid{GPU: uuid(0), Code: 13}) // before the meter came
	n.open()
	require.Empty(t, n.after(time.Second).Xids)
	n.happen(simnvml.Xid{GPU: uuid(1), Code: 31, GI: new(2), CI: new(0)}, simnvml.Xid{GPU: uuid(0), Code: 48})
	got := n.xids(2)
	at := n.clock.Now()
	require.Equal(t, []meter.Xid{
		{At: at, UUID: uuid(1), GPUInstance: new(2), ComputeInstance: new(0), Code: 31}, {At: at, UUID: uuid(0), Code: 48},
	}, got)
	time.Sleep(50 * time.Millisecond)
	require.Empty(t, n.after(time.Second).Xids, "each is told once")
}

// TestXidOfLostGPU is told although the GPU does not even tell its UUID any
// more. From then on, waiting for events of this GPU fails, which must not make
// the meter deaf to the others.
func TestXidOfLostGPU(t *testing.T) {
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{a100(0), a100(1)}}).open()
	n.after(time.Second)
	n.state.GPUs[0].Lost = true
	n.happen(simnvml.Xid{GPU: uuid(0), Code: 79})
	got := n.xids(1)
	require.Equal(t, uuid(0), got[0].UUID)
	require.Equal(t, uint64(79), got[0].Code)

	time.Sleep(50 * time.Millisecond) // until waiting fails
	require.ErrorIs(t, n.after(time.Second).GPUs[0].Err, meter.ErrLost)
	n.happen(simnvml.Xid{GPU: uuid(1), Code: 31})
	got = n.xids(1)
	require.Equal(t, uuid(1), got[0].UUID)

	n.change(func(s *simnvml.State) { s.GPUs[0].Lost = false })
	n.after(time.Second)
	n.happen(simnvml.Xid{GPU: uuid(0), Code: 13})
	got = n.xids(1)
	require.Equal(t, uuid(0), got[0].UUID, "and it is heard again when it is back")
}

// TestXidOfNewGPU watches a GPU that came while the meter ran, and one that was
// lost when it began.
func TestXidOfNewGPU(t *testing.T) {
	lost := a100(1)
	lost.Lost = true
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{a100(0), lost}}).open()
	n.after(time.Second)
	n.change(func(s *simnvml.State) {
		s.GPUs[1].Lost = false
		s.GPUs = append(s.GPUs, a100(2))
	})
	n.after(time.Second)
	n.happen(simnvml.Xid{GPU: uuid(0), Code: 1}, simnvml.Xid{GPU: uuid(1), Code: 2}, simnvml.Xid{GPU: uuid(2), Code: 3})
	got := n.xids(3)
	require.Equal(t, []string{uuid(0), uuid(1), uuid(2)}, []string{got[0].UUID, got[1].UUID, got[2].UUID})
}

// TestXidsAroundRelease are kept until the next round.
func TestXidsAroundRelease(t *testing.T) {
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{a100(0)}}).open()
	n.after(time.Second)
	n.happen(simnvml.Xid{GPU: uuid(0), Code: 13})
	require.NoError(t, n.meter.Release())
	require.NoError(t, n.meter.Reopen())
	got := n.xids(1)
	require.Equal(t, uint64(13), got[0].Code)
}

// TestXidsOfSomeGPUs has one GPU that can't be watched.
func TestXidsOfSomeGPUs(t *testing.T) {
	g := a100(0)
	g.NoEvents = true
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{g, a100(1)}}).open()
	n.after(time.Second)
	require.Equal(t, []string{
		`level=INFO msg="not known" gpu=` + uuid(0) + ` what="Xid errors" err="nvmlDeviceGetSupportedEventTypes: not supported"`,
	}, n.log.lines())
	n.happen(simnvml.Xid{GPU: uuid(1), Code: 5})
	got := n.xids(1)
	require.Equal(t, uuid(1), got[0].UUID)
}

// TestFailingWait must not turn in circles: a lost GPU makes the call fail at
// once.
func TestFailingWait(t *testing.T) {
	n := newNode(t, simnvml.State{GPUs: []simnvml.GPU{a100(0)}, Faults: []simnvml.Fault{{Function: "nvmlEventSetWait_v2", Code: 15}}}).open()
	n.after(time.Second)
	n.change(func(s *simnvml.State) { s.Faults = nil })
	n.happen(simnvml.Xid{GPU: uuid(0), Code: 8})
	got := n.xids(1)
	require.Equal(t, uint64(8), got[0].Code)
}
