// SPDX-License-Identifier: GPL-2.0-or-later

package spool

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/agent/tally"
)

// lab is a spool with what it said.
type lab struct {
	*Spool
	state    *State
	warnings []string
}

func open(t require.TestingT, dir string) *lab {
	l := &lab{}
	var err error
	l.Spool, l.state, err = Open(dir, func(err error) { l.warnings = append(l.warnings, err.Error()) })
	require.NoError(t, err)
	return l
}

func bucket(job uint32) *tally.Bucket {
	return &tally.Bucket{GPU: "G", JobID: job, Source: tally.FromProlog, From: 1, Until: 5, Part: 4}
}

func buckets(jobs ...uint32) (all []*tally.Bucket) {
	for _, job := range jobs {
		all = append(all, bucket(job))
	}
	return all
}

// drained are the jobs of all that the database would get, which says yes.
func (l *lab) drained(t require.TestingT, limit int) (jobs []uint32) {
	for {
		b, err := l.Next(limit)
		require.NoError(t, err)
		if len(b.Buckets) == 0 {
			require.Zero(t, l.Waiting())
			return jobs
		}
		require.LessOrEqual(t, len(b.Buckets), limit)
		for _, bucket := range b.Buckets {
			jobs = append(jobs, bucket.JobID)
		}
		require.NoError(t, l.Sent(b))
	}
}

func TestTheSpoolOutlivesTheProcess(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir)
	require.Nil(t, a.state)
	state := &State{
		Cluster: "titan", Node: "n1", BootID: "b", Open: buckets(9), Devices: []byte(`[1]`),
		Marks: []tally.Mark{{ID: tally.ID{GPU: "G", JobID: 9, From: 3}, UpTo: 7}},
	}
	require.NoError(t, a.Save(state, buckets(1, 2)))
	require.NoError(t, a.Save(state, buckets(3)))
	require.NoError(t, a.Close()) // or the process dies

	b := open(t, dir)
	require.Equal(t, state, b.state)
	require.Equal(t, 3, b.Waiting())
	require.Equal(t, []uint32{1, 2, 3}, b.drained(t, 2))
	require.NoError(t, b.Save(state, buckets(4)))
	require.Equal(t, []uint32{4}, b.drained(t, 2))
	require.NoError(t, b.Close())

	c := open(t, dir)
	require.Empty(t, c.drained(t, 2), "the file is empty when the database has all")
	require.Empty(t, append(b.warnings, c.warnings...))
}

func TestWhatWasNotSentComesAgain(t *testing.T) {
	l := open(t, t.TempDir())
	require.NoError(t, l.Save(&State{}, buckets(1, 2, 3)))
	first, err := l.Next(2)
	require.NoError(t, err)
	again, err := l.Next(2)
	require.NoError(t, err)
	require.Equal(t, first, again)
	require.NoError(t, l.Sent(again))
	require.NoError(t, l.Save(&State{}, buckets(4)))
	require.Equal(t, []uint32{3, 4}, l.drained(t, 10))
}

func TestOneAgentAtATime(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir)
	_, _, err := Open(dir, nil)
	var locked *LockedError
	require.ErrorAs(t, err, &locked)
	require.NoError(t, a.Close())
	require.NoError(t, open(t, dir).Close())
}

// Whatever byte of a file is hit, the other lines are there, the damaged file is
// kept, and somebody hears of it.
func TestDamageCostsNothingElse(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir)
	require.NoError(t, a.Save(&State{BootID: "b"}, buckets(1, 2, 3)))
	require.NoError(t, a.Close())
	text, err := os.ReadFile(filepath.Join(dir, closedName))
	require.NoError(t, err)
	lines := bytes.SplitAfter(text, []byte("\n"))
	for at := range text {
		damaged := bytes.Clone(text)
		damaged[at] ^= 0x08
		inLine := 0
		for passed := len(lines[0]); at >= passed; passed += len(lines[inLine]) {
			inLine++
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, closedName), damaged, 0o600))
		b := open(t, dir)
		got := b.drained(t, 10)
		for job := uint32(1); job <= 3; job++ {
			spoilt := int(job) == inLine+1
			joined := at == len(lines[0])-1 && job == 2 || at == len(lines[0])+len(lines[1])-1 && job == 3 // its newline has gone
			if !spoilt && !joined {
				require.Contains(t, got, job, "byte %d", at)
			}
		}
		require.Len(t, b.warnings, 1)
		require.Contains(t, b.warnings[0], "closed of the spool is damaged")
		aside, err := filepath.Glob(filepath.Join(dir, "closed.damaged*"))
		require.NoError(t, err)
		require.Len(t, aside, 1)
		kept, err := os.ReadFile(aside[0])
		require.NoError(t, err)
		require.Equal(t, damaged, kept)
		require.NoError(t, os.Remove(aside[0]))
		require.NotNil(t, b.state)
		require.NoError(t, b.Close())
	}
}

func TestATornLastLineCostsOnlyItself(t *testing.T) {
	dir := t.TempDir()
	a := open(t, dir)
	require.NoError(t, a.Save(&State{}, buckets(1, 2)))
	require.NoError(t, a.Close())
	text, err := os.ReadFile(filepath.Join(dir, closedName))
	require.NoError(t, err)
	for cut := 1; cut < 20; cut++ {
		require.NoError(t, os.WriteFile(filepath.Join(dir, closedName), text[:len(text)-cut], 0o600))
		b := open(t, dir)
		require.Equal(t, []uint32{1}, b.drained(t, 10))
		require.Len(t, b.warnings, 1)
		require.NoError(t, b.Close())
	}
	aside, err := filepath.Glob(filepath.Join(dir, "closed.damaged*"))
	require.NoError(t, err)
	require.Len(t, aside, 19, "none replaces another")
}

func TestADamagedStateIsPutAside(t *testing.T) {
	for _, text := range []string{"", "x", "00000000 {}\n", strings.Repeat("\x00", 4096)} {
		dir := t.TempDir()
		a := open(t, dir)
		require.NoError(t, a.Save(&State{}, buckets(1)))
		require.NoError(t, a.Close())
		require.NoError(t, os.WriteFile(filepath.Join(dir, stateName), []byte(text), 0o600))
		b := open(t, dir)
		require.Equal(t, &State{Damaged: true}, b.state)
		require.Len(t, b.warnings, 1)
		require.Contains(t, b.warnings[0], "state of the spool is damaged")
		require.Equal(t, []uint32{1}, b.drained(t, 10), "the rest is replayed")
	}
}

// smallDisk is a file system of a few pages. It needs root.
func smallDisk(t *testing.T) (dir string, fill, free func()) {
	t.Helper()
	dir = t.TempDir()
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"), "this test mounts a file system: run it as root")
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	filler := filepath.Join(dir, "filler")
	fill = func() {
		f, err := os.Create(filler)
		require.NoError(t, err)
		defer f.Close()
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		require.ErrorIs(t, err, syscall.ENOSPC)
	}
	return dir, fill, func() { require.NoError(t, os.Remove(filler)) }
}

func TestAFullDisk(t *testing.T) {
	dir, fill, free := smallDisk(t)
	l := open(t, dir)
	require.NoError(t, l.Save(&State{BootID: "before"}, nil))
	fill()
	err := l.Save(&State{BootID: "after"}, buckets(1, 2))
	require.ErrorContains(t, err, "no space left on device")
	require.Equal(t, 2, l.Waiting())
	require.Equal(t, []uint32{1}, func() (jobs []uint32) { // the database gets them all the same
		b, err := l.Next(1)
		require.NoError(t, err)
		require.NoError(t, l.Sent(b))
		return []uint32{b.Buckets[0].JobID}
	}())
	require.Error(t, l.Save(&State{BootID: "after"}, buckets(3)))

	free()
	require.NoError(t, l.Save(&State{BootID: "after"}, buckets(4)))
	require.NoError(t, l.Close())
	again := open(t, dir)
	require.Equal(t, "after", again.state.BootID)
	require.Equal(t, []uint32{2, 3, 4}, again.drained(t, 10))
	require.Empty(t, again.warnings)
}

// A damaged file on a full disk stays as it is, and what can be read of it is there when
// the disk has room.
func TestADamagedSpoolOnAFullDisk(t *testing.T) {
	dir, fill, free := smallDisk(t)
	l := open(t, dir)
	require.NoError(t, l.Save(&State{}, buckets(1, 2, 3)))
	require.NoError(t, l.Close())
	path := filepath.Join(dir, closedName)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	text[len(text)/2]++ // of the second
	require.NoError(t, os.WriteFile(path, text, 0o600))
	fill()
	for range 2 {
		_, _, err = Open(dir, func(error) { t.Error("nothing was put aside") })
		require.ErrorContains(t, err, "no space left on device")
		require.NoFileExists(t, path+".damaged")
	}
	free()
	again := open(t, dir)
	require.Len(t, again.warnings, 1)
	require.FileExists(t, path+".damaged")
	require.Equal(t, []uint32{1, 3}, again.drained(t, 10))
}

// The disk never says more of what was counted than it has buckets for.
func TestAFullDiskAndAKilledAgent(t *testing.T) {
	dir, fill, free := smallDisk(t)
	l := open(t, dir)
	require.NoError(t, l.Save(&State{BootID: "before", Open: buckets(1)}, nil))
	fill()
	require.Error(t, l.Save(&State{BootID: "after"}, buckets(1)))
	require.NoError(t, l.Close()) // it is killed
	free()
	again := open(t, dir)
	require.Equal(t, "before", again.state.BootID)
	require.Len(t, again.state.Open, 1)
	require.Empty(t, again.drained(t, 10))
}

func TestMemoryIsBounded(t *testing.T) {
	dir, fill, _ := smallDisk(t)
	l := open(t, dir)
	fill()
	many := make([]*tally.Bucket, mostUnsaved)
	for i := range many {
		many[i] = bucket(uint32(i))
	}
	require.NotContains(t, l.Save(&State{}, many).Error(), "lost")
	require.ErrorContains(t, l.Save(&State{}, buckets(1, 2, 3)), "3 buckets are lost")
	require.Equal(t, mostUnsaved, l.Waiting())
}

func TestRejectedBucketsAreKept(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	require.NoError(t, l.Reject(bucket(1), os.ErrInvalid))
	require.NoError(t, l.Reject(bucket(2), os.ErrInvalid))
	text, err := os.ReadFile(filepath.Join(dir, rejectedName))
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(text), `{"reason":"invalid argument","bucket":{`))
}

// Whatever is saved is sent at least once, in whatever order things happen and
// however often the process dies.
func TestNothingIsLost(t *testing.T) {
	root := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		dir := filepath.Join(root, string(rune('a'+n%26))+strings.Repeat("x", n/26))
		l := open(t, dir)
		defer func() { require.NoError(t, l.Close()) }()
		saved, sent := uint32(0), map[uint32]bool{}
		take := func(limit int) {
			b, err := l.Next(limit)
			require.NoError(t, err)
			if rapid.Bool().Draw(t, "refused") {
				return
			}
			for _, bucket := range b.Buckets {
				sent[bucket.JobID] = true
			}
			require.NoError(t, l.Sent(b))
		}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				var closed []*tally.Bucket
				for range rapid.IntRange(0, 5).Draw(t, "closed") {
					saved++
					closed = append(closed, bucket(saved))
				}
				require.NoError(t, l.Save(&State{}, closed))
			case 1, 2:
				take(rapid.IntRange(1, 4).Draw(t, "limit"))
			case 3:
				require.NoError(t, l.Close())
				l = open(t, dir)
				require.Empty(t, l.warnings)
			}
		}
		for _, job := range l.drained(t, 3) {
			sent[job] = true
		}
		require.Len(t, sent, int(saved))
	})
}
