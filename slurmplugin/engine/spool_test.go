// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"gpubudget/fairshare"
)

// spoolLab is a spool with what it said.
type spoolLab struct {
	*spool
	shown    []spoolRecord
	warnings []string
}

func openSpool(t require.TestingT, dir string) *spoolLab {
	l := &spoolLab{}
	l.spool = newSpool(dir, "titan", func(err error) { l.warnings = append(l.warnings, err.Error()) })
	require.NoError(t, l.open(func(rec spoolRecord) { l.shown = append(l.shown, rec) }))
	return l
}

func runRecord(job uint32, ended bool) spoolRecord {
	r := &spoolRun{JobID: job, Account: "physics", User: "alice", GPUs: 1, Start: begin.Unix(), Origin: begin.Unix()}
	if ended {
		end := begin.Unix() + 10
		r.End, r.EndState = &end, "COMPLETED"
	}
	return spoolRecord{Run: r}
}

// drained is what the database would be given.
func (l *spoolLab) drained(t require.TestingT) (recs []spoolRecord) {
	require.NoError(t, l.drain(l.end(), 2, func(batch []spoolRecord) error {
		recs = append(recs, batch...)
		return nil
	}))
	return recs
}

func jobsOf(recs []spoolRecord) (jobs []uint32) {
	for _, rec := range recs {
		jobs = append(jobs, rec.Run.JobID)
	}
	return jobs
}

func TestTheSpoolOutlivesTheProcess(t *testing.T) {
	dir := t.TempDir()
	a := openSpool(t, dir)
	require.NoError(t, a.append([]spoolRecord{runRecord(1, false), runRecord(2, true)}))
	require.NoError(t, a.append([]spoolRecord{runRecord(3, false)}))
	a.release() // the process dies

	b := openSpool(t, dir)
	require.Equal(t, []uint32{1, 2, 3}, jobsOf(b.shown))
	require.Equal(t, []uint32{1, 2, 3}, jobsOf(b.drained(t)), "nobody knows whether the database has them")
	require.NoError(t, b.append([]spoolRecord{runRecord(4, false)}))
	require.Equal(t, []uint32{4}, jobsOf(b.drained(t)))
	require.Equal(t, uint64(4), b.end().seq)
	require.Empty(t, b.warnings)
}

func TestAFailedWriteIsGivenAgain(t *testing.T) {
	s := openSpool(t, t.TempDir())
	require.NoError(t, s.append([]spoolRecord{runRecord(1, false), runRecord(2, false), runRecord(3, false)}))
	away := errors.New("away")
	n := 0
	err := s.drain(s.end(), 2, func([]spoolRecord) error {
		if n++; n == 2 {
			return away
		}
		return nil
	})
	require.ErrorIs(t, err, away)
	require.Equal(t, []uint32{3}, jobsOf(s.drained(t)))
}

func TestATornLastLineIsDropped(t *testing.T) {
	dir := t.TempDir()
	a := openSpool(t, dir)
	require.NoError(t, a.append([]spoolRecord{runRecord(1, false), runRecord(2, false)}))
	a.release()
	text, err := os.ReadFile(a.path)
	require.NoError(t, err)
	for cut := 1; cut < 40; cut++ {
		require.NoError(t, os.WriteFile(a.path, text[:len(text)-cut], 0o600))
		b := openSpool(t, dir)
		require.Equal(t, []uint32{1}, jobsOf(b.shown), "%d bytes are missing", cut)
		require.Len(t, b.warnings, 1)
		require.NoError(t, b.append([]spoolRecord{runRecord(3, false)}))
		b.release()
		c := openSpool(t, dir)
		require.Equal(t, []uint32{1, 3}, jobsOf(c.shown))
		require.Empty(t, c.warnings)
		c.release()
	}
}

func TestADamagedLineCostsNoOther(t *testing.T) {
	dir := t.TempDir()
	a := openSpool(t, dir)
	require.NoError(t, a.append([]spoolRecord{runRecord(1, false), runRecord(2, false), runRecord(3, false)}))
	a.release()
	text, err := os.ReadFile(a.path)
	require.NoError(t, err)
	damaged := strings.Replace(string(text), `"job":2`, `"job:2,`, 1)
	require.NotEqual(t, string(text), damaged)
	require.NoError(t, os.WriteFile(a.path, []byte(damaged), 0o600))
	b := openSpool(t, dir)
	require.Equal(t, []uint32{1, 3}, jobsOf(b.shown))
	require.Equal(t, []uint32{1, 3}, jobsOf(b.drained(t)))
	require.Len(t, b.warnings, 1)
	require.Contains(t, b.warnings[0], "line 3 is damaged")
}

func TestAForeignSpoolIsPutAside(t *testing.T) {
	for _, text := range []string{
		"rubbish\n", `{"gpubudget_spool":2,"cluster":"titan"}` + "\n", `{"gpubudget_spool":1,"cluster":"other"}` + "\n",
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, spoolName+".titan")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		s := openSpool(t, dir)
		require.Empty(t, s.shown)
		require.Len(t, s.warnings, 1)
		kept, err := os.ReadFile(path + ".damaged")
		require.NoError(t, err)
		require.Equal(t, text, string(kept))
		require.NoError(t, s.append([]spoolRecord{runRecord(1, false)}))
	}
}

func TestOneProcessAtATimeWorksWithASpool(t *testing.T) {
	dir := t.TempDir()
	a := openSpool(t, dir)
	b := newSpool(dir, "titan", func(error) {})
	require.ErrorIs(t, b.open(func(spoolRecord) {}), errLocked)
	require.Error(t, b.append([]spoolRecord{runRecord(1, false)}))
	unsaved := b.pending()
	require.Equal(t, 1, unsaved)
	a.release()
	require.NoError(t, b.open(func(spoolRecord) {}))
	require.NoError(t, b.append(nil))
	unsaved = b.pending()
	require.Zero(t, unsaved)
}

// A disk that is full costs nothing as long as the process lives.
func TestWhatCannotBeSavedIsWrittenToTheDatabaseAllTheSame(t *testing.T) {
	dir := t.TempDir()
	s := openSpool(t, dir)
	require.NoError(t, s.append([]spoolRecord{runRecord(1, false)}))
	good := s.file
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	require.NoError(t, err)
	defer full.Close()
	s.file = full
	require.ErrorContains(t, s.append([]spoolRecord{runRecord(2, false)}), "no space left")
	s.file = good
	require.Equal(t, []uint32{1, 2}, jobsOf(s.drained(t)))
	require.Empty(t, s.drained(t))
	require.NoError(t, s.append([]spoolRecord{runRecord(3, false)}))
	require.Equal(t, []uint32{2, 3}, jobsOf(s.drained(t)), "the second comes again now that it is in the file")
	s.release()
	require.Equal(t, []uint32{1, 2, 3}, jobsOf(openSpool(t, dir).shown))
}

func TestMemoryForWhatCannotBeSavedIsBounded(t *testing.T) {
	s := &spoolLab{spool: newSpool(t.TempDir(), "titan", func(error) {})}
	recs := make([]spoolRecord, mostUnsaved)
	require.Error(t, s.append(recs))
	require.ErrorContains(t, s.append(make([]spoolRecord, 5)), "5 records are lost")
	unsaved := s.pending()
	require.Equal(t, mostUnsaved, unsaved)

	s.drained(t)
	require.NotContains(t, s.append(make([]spoolRecord, 5)).Error(), "lost", "the database has them")
}

// Compacting forgets only what a new process would not miss: what the database
// has, the snapshot covers and Slurm shows no more.
func TestCompactingKeepsWhatIsNeeded(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) { compactAtRandom(rt, t.TempDir()) })
}

func compactAtRandom(t *rapid.T, dir string) {
	s := openSpool(t, dir)
	latest := map[uint32]spoolRecord{}
	listed := map[runKey]bool{}
	var written, safe uint64
	for range rapid.IntRange(1, 30).Draw(t, "records") {
		rec := runRecord(rapid.Uint32Range(1, 10).Draw(t, "job"), rapid.Bool().Draw(t, "ended"))
		recs := []spoolRecord{rec}
		require.NoError(t, s.append(recs))
		latest[rec.Run.JobID] = recs[0]
		if rapid.IntRange(0, 4).Draw(t, "write") == 0 {
			s.drained(t)
			written = s.end().seq
		}
		if rapid.IntRange(0, 4).Draw(t, "save the snapshot") == 0 {
			safe = written
		}
		if rapid.Bool().Draw(t, "listed") {
			listed[rec.Run.key()] = true
		}
		if rapid.IntRange(0, 5).Draw(t, "compact") == 0 {
			require.NoError(t, s.compact(safe, func(k runKey) bool { return listed[k] }))
		}
	}
	require.NoError(t, s.compact(safe, func(k runKey) bool { return listed[k] }))
	var want []uint64
	for _, rec := range latest {
		if rec.Seq > written {
			want = append(want, rec.Seq)
		}
	}
	var got []uint64
	for _, rec := range s.drained(t) {
		got = append(got, rec.Seq)
	}
	require.Subset(t, got, want, "the database has yet to get these")
	s.release()
	again := openSpool(t, dir)
	kept := map[uint64]bool{}
	for _, rec := range again.shown {
		kept[rec.Seq] = true
	}
	for _, rec := range latest {
		needed := rec.Seq > safe || rec.Run.End == nil || listed[rec.Run.key()]
		require.Equal(t, needed, kept[rec.Seq], "job %d", rec.Run.JobID)
	}
	require.Empty(t, again.warnings)
	again.release()
}

func TestCompactingKeepsDemandThatIsNotWrittenAndHowFarItWentOn(t *testing.T) {
	dir := t.TempDir()
	s := openSpool(t, dir)
	demand := func(hour, seen fairshare.Instant) spoolRecord {
		return spoolRecord{Demand: &spoolDemand{Incarnation: "a", From: hour * 3600, Until: (hour + 1) * 3600, Seen: seen,
			Accounts: map[string]demandAmounts{"physics": {Pending: 1, Running: 2}}}}
	}
	capacity := func(at fairshare.Instant) spoolRecord {
		return spoolRecord{Capacity: &spoolCapacity{At: at, GPUs: fairshare.MilliGPUs(at)}}
	}
	require.NoError(t, s.append([]spoolRecord{demand(1, 10), demand(1, 20), capacity(1), demand(2, 30), capacity(2)}))
	s.drained(t)
	require.NoError(t, s.compact(s.end().seq, func(runKey) bool { return false }))
	require.NoError(t, s.append([]spoolRecord{demand(2, 40), demand(3, 50), capacity(3)}))
	s.release()
	var kept []string
	for _, rec := range openSpool(t, dir).shown {
		if rec.Demand != nil {
			kept = append(kept, fmt.Sprintf("demand seen %d", rec.Demand.Seen))
		} else {
			kept = append(kept, fmt.Sprintf("capacity %d", rec.Capacity.At))
		}
	}
	require.Equal(t, []string{"demand seen 30", "capacity 2", "demand seen 40", "demand seen 50", "capacity 3"}, kept)
}
