// SPDX-License-Identifier: GPL-2.0-or-later

package health_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/agent/health"
	"gpubudget/usage/meter"
)

var begin = time.Date(2026, 10, 12, 9, 0, 0, 0, time.Local)

func after(d time.Duration) time.Time { return begin.Add(d) }

// look is a round that reads two GPUs and finds errors.
func look(at time.Time, change func(*meter.Round), xids ...meter.Xid) *meter.Round {
	r := &meter.Round{At: at, Xids: xids, GPUs: []meter.Reading{
		{GPU: meter.GPU{UUID: "GPU-a", PCI: "0000:01:00.0", Index: 0}, ECC: &meter.ECC{}},
		{GPU: meter.GPU{UUID: "GPU-b", PCI: "0000:02:00.0", Index: 1}, ECC: &meter.ECC{}},
	}}
	if change != nil {
		change(r)
	}
	return r
}

func texts(found []health.Finding) (texts []string) {
	for _, f := range found {
		texts = append(texts, f.Text)
	}
	return texts
}

func TestFindings(t *testing.T) {
	xid := func(code uint64) meter.Xid { return meter.Xid{At: begin, UUID: "GPU-b", Code: code} }
	lost := func(r *meter.Round) { r.GPUs[0].Err, r.GPUs[0].ECC = errors.New("the GPU is lost"), nil }
	tests := []struct {
		name string
		do   func(s *health.State)
		want []string
	}{
		{"well", func(*health.State) {}, nil},
		{"errors of programs", func(s *health.State) {
			s.Read(look(begin, nil, xid(13), xid(31), xid(43), xid(45), xid(63), xid(94)), true)
		}, nil},
		{"an Xid of nobody", func(s *health.State) { s.Read(look(begin, nil, meter.Xid{At: begin, Code: 79}), true) }, nil},
		{"a fatal one", func(s *health.State) { s.Read(look(begin, nil, xid(79)), true) },
			[]string{"GPU 1 (0000:02:00.0) Xid 79 (fallen off the bus) at 2026-10-12T09:00:00"}},
		{"it stands, after looks without it", func(s *health.State) {
			s.Read(look(begin, nil, xid(48)), true)
			s.Read(look(after(time.Hour), nil), true)
		}, []string{"GPU 1 (0000:02:00.0) Xid 48 (uncorrectable memory error) at 2026-10-12T09:00:00"}},
		{"lost", func(s *health.State) {
			s.Read(look(begin, lost), true)
			s.Read(look(after(time.Hour), lost), true)
		}, []string{"GPU 0 (0000:01:00.0) lost since 2026-10-12T09:00:00: the GPU is lost"}},
		{"found again", func(s *health.State) {
			s.Read(look(begin, lost), true)
			s.Read(look(after(time.Hour), nil), true)
		}, nil},
		{"not listed any more", func(s *health.State) {
			s.Read(look(begin, nil), true)
			s.Read(look(after(time.Minute), func(r *meter.Round) { r.GPUs = r.GPUs[:1] }), true)
		}, []string{"GPU 1 (0000:02:00.0) lost since 2026-10-12T09:01:00: the driver does not list it any more"}},
		{"memory errors", func(s *health.State) {
			s.Read(look(begin, func(r *meter.Round) { r.GPUs[1].ECC.Uncorrected = 2; r.GPUs[0].ECC.Corrected = 99 }), true)
			s.Read(look(after(time.Minute), func(r *meter.Round) { r.GPUs[1].ECC = nil }), true) // not read each time
		}, []string{"GPU 1 (0000:02:00.0) 2 uncorrected memory errors, the last by 2026-10-12T09:00:00"}},
		{"reset after memory errors", func(s *health.State) {
			s.Read(look(begin, func(r *meter.Round) { r.GPUs[1].ECC.Uncorrected, r.GPUs[1].ECC.Corrected = 2, 3 }, xid(48), xid(95)), true)
			s.Read(look(after(time.Minute), nil), true)
		}, nil},
		{"reset, and one error since", func(s *health.State) {
			s.Read(look(begin, func(r *meter.Round) { r.GPUs[1].ECC.Corrected = 3 }, xid(48)), true)
			s.Read(look(after(time.Minute), func(r *meter.Round) { r.GPUs[1].ECC.Uncorrected = 1 }, meter.Xid{At: after(time.Minute), UUID: "GPU-b", Code: 95}), true)
		}, []string{
			"GPU 1 (0000:02:00.0) Xid 95 (memory error that was not contained) at 2026-10-12T09:01:00",
			"GPU 1 (0000:02:00.0) 1 uncorrected memory errors, the last by 2026-10-12T09:01:00",
		}},
		{"fell off the bus, and is back", func(s *health.State) {
			s.Read(look(begin, func(r *meter.Round) { r.GPUs[1].Err, r.GPUs[1].ECC = meter.ErrLost, nil }, xid(79), meter.Xid{At: begin, UUID: "GPU-a", Code: 48}), true)
			s.Read(look(after(time.Minute), nil), true)
		}, []string{"GPU 0 (0000:01:00.0) Xid 48 (uncorrectable memory error) at 2026-10-12T09:00:00"}},
		{"seen to by somebody", func(s *health.State) {
			s.Read(look(begin, nil, xid(119), meter.Xid{At: begin, UUID: "GPU-a", Code: 119}), true)
			s.Reset("GPU-b", after(time.Minute))
			s.Reset("GPU-c", after(time.Minute))
		}, []string{"GPU 0 (0000:01:00.0) Xid 119 (GSP does not answer) at 2026-10-12T09:00:00"}},
		{"and it happened again", func(s *health.State) {
			s.Read(look(after(2*time.Minute), nil, meter.Xid{At: after(2 * time.Minute), UUID: "GPU-b", Code: 119}), true)
			s.Reset("GPU-b", after(time.Minute))
		}, []string{"GPU 1 (0000:02:00.0) Xid 119 (GSP does not answer) at 2026-10-12T09:02:00"}},
		{"the driver is away for a moment", func(s *health.State) {
			s.Unread(begin, "no driver", true)
			s.Unread(after(59*time.Second), "no driver", true)
		}, nil},
		{"and for long", func(s *health.State) {
			s.Unread(begin, "no driver", true)
			s.Unread(after(time.Minute), "the driver hangs", true)
		}, []string{"the driver has not answered since 2026-10-12T09:00:00: the driver hangs"}},
		{"and back", func(s *health.State) {
			s.Unread(begin, "no driver", true)
			s.Unread(after(time.Minute), "no driver", true)
			s.Read(look(after(2*time.Minute), nil), true)
		}, nil},
		{"of a node without GPUs", func(s *health.State) {
			s.Unread(begin, "no driver", false)
			s.Unread(after(time.Hour), "no driver", false)
		}, nil},
		{"released", func(s *health.State) {
			s.Unread(begin, "no driver", true)
			s.Unread(after(time.Hour), "", true)
			s.Unread(after(2*time.Hour), "", true)
		}, nil},
		{"the gravest first", func(s *health.State) { s.Read(look(begin, lost, xid(79), xid(48)), true) }, []string{
			"GPU 0 (0000:01:00.0) lost since 2026-10-12T09:00:00: the GPU is lost",
			"GPU 1 (0000:02:00.0) Xid 48 (uncorrectable memory error) at 2026-10-12T09:00:00",
			"GPU 1 (0000:02:00.0) Xid 79 (fallen off the bus) at 2026-10-12T09:00:00",
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "health")
			s, err := health.Resume(path, "n1", "boot")
			require.NoError(t, err)
			test.do(s)
			require.NoError(t, s.Save(path))
			again, err := health.Resume(path, "n1", "boot")
			require.NoError(t, err)
			require.Equal(t, test.want, texts(again.Findings()), "as the file has it")
		})
	}
}

// What happened before the node was rebooted is over, and another node's state is
// none of ours.
func TestANewBootBeginsAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "health")
	s, err := health.Resume(path, "n1", "boot")
	require.NoError(t, err)
	s.Read(look(begin, nil, meter.Xid{At: begin, UUID: "GPU-a", Code: 79}), true)
	require.NoError(t, s.Save(path))
	for _, other := range [][2]string{{"n1", "next"}, {"n2", "boot"}} {
		s, err := health.Resume(path, other[0], other[1])
		require.NoError(t, err)
		require.Empty(t, s.Findings())
	}
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	s, err = health.Resume(path, "n1", "boot")
	require.Error(t, err)
	require.Equal(t, "n1", s.Node, "it goes on all the same")
}

// For an error that is known the node is drained once; for the next one of its
// kind again, and for what lasts as long as it does.
func TestToldOnce(t *testing.T) {
	dir := t.TempDir()
	s, err := health.Resume(health.Path(dir), "n1", "boot")
	require.NoError(t, err)
	s.Read(look(begin, func(r *meter.Round) { r.GPUs[0].Err = errors.New("lost") }, meter.Xid{At: begin, UUID: "GPU-b", Code: 79}), true)
	told, err := health.LoadTold(dir, "boot")
	require.NoError(t, err)
	require.Len(t, told.New(s.Findings()), 2)
	require.NoError(t, told.Add(dir, s.Findings()))

	told, err = health.LoadTold(dir, "boot")
	require.NoError(t, err)
	require.Equal(t, []string{"GPU 0 (0000:01:00.0) lost since 2026-10-12T09:00:00: lost"}, texts(told.New(s.Findings())))
	s.Read(look(after(time.Hour), nil, meter.Xid{At: after(time.Hour), UUID: "GPU-b", Code: 79}), true)
	require.Equal(t, []string{"GPU 1 (0000:02:00.0) Xid 79 (fallen off the bus) at 2026-10-12T10:00:00"}, texts(told.New(s.Findings())))
	told, err = health.LoadTold(dir, "next boot")
	require.NoError(t, err)
	require.Empty(t, told.Keys)
}
