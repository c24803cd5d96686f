// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
)

const (
	spoolName    = "gpubudget_spool"
	spoolVersion = 1
	// mostUnsaved bounds how many records are kept in memory while the spool
	// can't be written.
	mostUnsaved = 200_000
	// slack is how many lines more than necessary the spool may have before it
	// is compacted.
	slack = 1000
)

// spool is an append-only file of records: what was seen goes there first, in
// one write for each batch, and from there to the database. It outlives the
// process. The last record about a run that is still open stays in it, so that
// a new process knows what the old one knew.
//
// It is safe for concurrent use. None of its users is a Slurm thread.
type spool struct {
	path    string
	cluster string
	warn    func(error) // of what was damaged or lost

	mu      sync.Mutex
	lock    *os.File
	file    *os.File
	size    int64 // of whole lines
	lines   int
	kept    int    // lines after the last compaction
	seq     uint64 // the last given
	unsaved []spoolRecord
	sent    int // so many of them the database has

	written mark // the database has all before this
}

// mark is a place in the spool.
type mark struct {
	offset int64
	seq    uint64
}

type spoolHeader struct {
	Version int    `json:"gpubudget_spool"`
	Cluster string `json:"cluster"`
}

// errLocked: another process works with the spool.
var errLocked = errors.New("another process has it locked")

// newSpool is the spool in a folder. It takes records at once, but writes none
// before open.
func newSpool(dir, cluster string, warn func(error)) *spool {
	return &spool{path: dir + "/" + spoolName + "." + cluster, cluster: cluster, warn: warn}
}

// open locks the file, shows all its records and makes it ready for more.
func (s *spool) open(show func(spoolRecord)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.acquire(); err != nil {
		return fmt.Errorf("lock spool %s: %w", s.path, err)
	}
	if err := s.load(show); err != nil {
		s.release()
		return fmt.Errorf("open spool %s: %w", s.path, err)
	}
	return nil
}

// acquire takes the lock, on a file of its own: the spool itself is replaced
// when it is compacted. Where the file system has no locks it does without.
func (s *spool) acquire() error {
	if s.lock != nil {
		return nil
	}
	f, err := os.OpenFile(s.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errors.Join(errLocked, f.Close())
	}
	s.lock = f
	return nil
}

// release gives the file up. What is in it was synced as it was written, so
// that closing has nothing to tell.
func (s *spool) release() {
	for _, f := range []*os.File{s.file, s.lock} {
		if f != nil {
			_ = f.Close()
		}
	}
	s.file, s.lock = nil, nil
}

// close ends the work with the file. What could not be saved is lost; its
// number is returned.
func (s *spool) close() (lost int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release()
	return len(s.unsaved)
}

// after has the records to come numbered from beyond seq: if the file was lost,
// none may have a number again that a snapshot knows.
func (s *spool) after(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq = max(s.seq, seq)
}

// load reads the file, cuts off a last line that is torn, and leaves it open.
func (s *spool) load(show func(spoolRecord)) error {
	f, err := os.OpenFile(s.path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	size, lines, err := s.replay(f, show)
	if errors.Is(err, errForeign) {
		s.warn(fmt.Errorf("spool %s: %w: it is put aside as %s.damaged", s.path, err, s.path))
		if err := errors.Join(f.Close(), os.Rename(s.path, s.path+".damaged")); err != nil {
			return err
		}
		return s.load(show)
	}
	if err == nil {
		err = f.Truncate(size)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	s.file, s.size, s.lines, s.kept, s.written = f, size, lines, lines, mark{}
	if size == 0 {
		return s.writeHeader()
	}
	return nil
}

// errForeign: the file is none that this version can read.
var errForeign = errors.New("not a spool of this version and cluster")

// replay shows the records of f and returns the length of its whole lines.
func (s *spool) replay(f *os.File, show func(spoolRecord)) (size int64, lines int, err error) {
	in := bufio.NewReaderSize(io.NewSectionReader(f, 0, 1<<62), 1<<16)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			if len(line) > 0 {
				s.warn(fmt.Errorf("spool %s: its last line was not written whole and is dropped", s.path))
			}
			return size, lines, nil
		}
		if err != nil {
			return 0, 0, err
		}
		if lines == 0 {
			if err := s.checkHeader(line); err != nil {
				return 0, 0, err
			}
		} else if rec, ok := s.parse(line, lines); ok {
			s.seq = max(s.seq, rec.Seq)
			show(rec)
		}
		size += int64(len(line))
		lines++
	}
}

func (s *spool) checkHeader(line []byte) error {
	var h spoolHeader
	if json.Unmarshal(line, &h) != nil || h.Version != spoolVersion || h.Cluster != s.cluster {
		return errForeign
	}
	return nil
}

// parse reads a line. A damaged one is skipped: the others count no less.
func (s *spool) parse(line []byte, number int) (rec spoolRecord, ok bool) {
	if err := json.Unmarshal(line, &rec); err != nil {
		s.warn(fmt.Errorf("spool %s: line %d is damaged and left out: %w", s.path, number+1, err))
		return spoolRecord{}, false
	}
	return rec, true
}

func (s *spool) writeHeader() error {
	line, err := json.Marshal(spoolHeader{Version: spoolVersion, Cluster: s.cluster})
	if err != nil {
		return err
	}
	return s.write(append(line, '\n'), 1)
}

// append adds records. If they can't be saved they are kept in memory, are
// handed out like the others and are saved later; the error says why.
func (s *spool) append(recs []spoolRecord) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range recs {
		s.seq++
		recs[i].Seq = s.seq
	}
	s.unsaved = append(s.unsaved, recs...)
	if len(s.unsaved) == 0 {
		return nil
	}
	if s.file == nil {
		return s.bound(errors.New("it is not open"))
	}
	text, err := encode(s.unsaved)
	if err == nil {
		err = s.write(text, len(s.unsaved))
	}
	if err != nil {
		return s.bound(err)
	}
	s.unsaved, s.sent = s.unsaved[:0], 0
	return nil
}

// bound drops the oldest records if there are too many in memory.
func (s *spool) bound(err error) error {
	err = fmt.Errorf("write spool %s: %w", s.path, err)
	if excess := len(s.unsaved) - mostUnsaved; excess > 0 {
		s.unsaved = append([]spoolRecord(nil), s.unsaved[excess:]...)
		if lost := excess - s.sent; lost > 0 {
			err = fmt.Errorf("%w; %d records are lost", err, lost)
		}
		s.sent = max(0, s.sent-excess)
	}
	return err
}

func encode(recs []spoolRecord) ([]byte, error) {
	var text bytes.Buffer
	out := json.NewEncoder(&text)
	for i := range recs {
		if err := out.Encode(&recs[i]); err != nil {
			return nil, err
		}
	}
	return text.Bytes(), nil
}

// write adds whole lines with one write, or nothing.
func (s *spool) write(text []byte, lines int) error {
	if _, err := s.file.Write(text); err != nil {
		return errors.Join(err, s.file.Truncate(s.size))
	}
	s.size += int64(len(text))
	s.lines += lines
	return s.file.Sync()
}

// end is the place behind all records so far.
func (s *spool) end() mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return mark{s.size, s.seq}
}

// drain shows the records that the database doesn't have yet, up to a mark, in
// batches. What show took without an error isn't shown again.
func (s *spool) drain(to mark, batch int, show func([]spoolRecord) error) error {
	s.mu.Lock()
	unsaved := append([]spoolRecord(nil), s.unsaved[s.sent:]...)
	file, from := s.file, s.written.offset
	s.mu.Unlock()
	if file != nil {
		if err := s.drainFile(file, from, to.offset, batch, show); err != nil {
			return err
		}
	}
	for len(unsaved) > 0 {
		n := min(batch, len(unsaved))
		if err := show(unsaved[:n]); err != nil {
			return err
		}
		s.sentTo(unsaved[n-1].Seq)
		unsaved = unsaved[n:]
	}
	return nil
}

// sentTo notes that the database has what is in memory, up to seq. Once it is
// in the file it is shown again: writes are idempotent.
func (s *spool) sentTo(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.sent < len(s.unsaved) && s.unsaved[s.sent].Seq <= seq {
		s.sent++
	}
}

// drainFile is drain for what is in the file. Only compact moves what is in it,
// and the two are never called at once.
func (s *spool) drainFile(file *os.File, from, to int64, batch int, show func([]spoolRecord) error) error {
	in := bufio.NewReaderSize(io.NewSectionReader(file, from, max(0, to-from)), 1<<16)
	recs := make([]spoolRecord, 0, batch)
	for at := from; ; {
		line, done, err := nextLine(in)
		if err != nil {
			return fmt.Errorf("read spool %s: %w", s.path, err)
		}
		if !done {
			if rec, ok := s.record(line, at == 0); ok {
				recs = append(recs, rec)
			}
			at += int64(len(line))
		}
		if len(recs) == batch || done && len(recs) > 0 {
			if err := show(recs); err != nil {
				return err
			}
			s.wrote(mark{at, recs[len(recs)-1].Seq})
			recs = recs[:0]
		}
		if done {
			return nil
		}
	}
}

// nextLine reads a line; done tells that there is no more.
func nextLine(in *bufio.Reader) (line []byte, done bool, err error) {
	line, err = in.ReadBytes('\n')
	if errors.Is(err, io.EOF) {
		return nil, true, nil
	}
	return line, false, err
}

func (s *spool) wrote(to mark) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written = to
}

// pending tells how many records are in memory only.
func (s *spool) pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.unsaved)
}

// record reads a line that replay has warned of if it is damaged.
func (s *spool) record(line []byte, header bool) (rec spoolRecord, ok bool) {
	return rec, !header && json.Unmarshal(line, &rec) == nil
}
