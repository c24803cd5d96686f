// SPDX-License-Identifier: GPL-2.0-or-later

// Package spool keeps on the node's disk what the agent has counted: up to when,
// so that another process goes on from there, and the buckets that the database
// may not have yet. Buckets are totals, so whatever is sent twice does no harm.
//
// Two files: "state" is replaced at every round, whole or not at all; "closed"
// is appended to, and emptied when the database has all of it. Each line begins
// with a checksum. What is damaged is put aside, and costs nothing else.
package spool

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"gpubudget/agent/tally"
)

const (
	stateName    = "state"
	closedName   = "closed"
	rejectedName = "rejected"
	version      = 1

	// mostUnsaved bounds how many buckets are kept in memory while the disk is
	// full: two weeks of a node with 8 GPUs and jobs of half an hour.
	mostUnsaved = 20_000
)

// State is all that a later process needs to go on.
type State struct {
	Version int             `json:"version"`
	Cluster string          `json:"cluster"`
	Node    string          `json:"node"`
	BootID  string          `json:"boot_id"`
	Marks   []tally.Mark    `json:"marks,omitempty"`
	Open    []*tally.Bucket `json:"open,omitempty"`
	Devices json.RawMessage `json:"devices,omitempty"` // as the agent knew them last

	// Damaged is set if there was a state that could not be read; then it says
	// nothing else.
	Damaged bool `json:"-"`
}

// Spool is a folder that one agent at a time works with. It is safe for
// concurrent use.
type Spool struct {
	dir  string
	warn func(error) // of what was damaged or lost

	mu     sync.Mutex
	lock   *os.File
	file   *os.File // closed
	size   int64    // of its whole lines
	sent   int64    // the database has what lies before this
	rows   int      // between the two
	memory []*tally.Bucket
}

// LockedError is another agent that works with the same folder.
type LockedError struct{ Dir string }

func (e *LockedError) Error() string {
	return "another agent works with the spool " + e.Dir
}

// Open takes a folder, making it if need be. The state is nil if there is none.
func Open(dir string, warn func(error)) (*Spool, *State, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make the spool: %w", err)
	}
	s := &Spool{dir: dir, warn: warn}
	if err := s.acquire(); err != nil {
		return nil, nil, err
	}
	state, err := s.loadState()
	if err == nil {
		err = s.loadClosed()
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("read the spool: %w", err), s.Close())
	}
	return s, state, nil
}

func (s *Spool) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Spool) acquire() error {
	f, err := os.OpenFile(s.path("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock the spool: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = &LockedError{s.dir}
		}
		return errors.Join(err, f.Close())
	}
	s.lock = f
	return nil
}

// Close lets go of the folder.
func (s *Spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, f := range []*os.File{s.file, s.lock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	s.file, s.lock = nil, nil
	return errors.Join(errs...)
}

var table = crc32.MakeTable(crc32.Castagnoli)

// encode makes a line of a value.
func encode(to *bytes.Buffer, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	fmt.Fprintf(to, "%08x %s\n", crc32.Checksum(text, table), text)
	return nil
}

// decode reads a line.
func decode(line []byte, v any) error {
	sum, text, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if !ok || err != nil || uint32(want) != crc32.Checksum(text, table) {
		return errors.New("its checksum is wrong")
	}
	return json.Unmarshal(text, v)
}

func (s *Spool) loadState() (*State, error) {
	text, err := os.ReadFile(s.path(stateName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // there is none
	}
	if err != nil {
		return nil, err
	}
	state := new(State)
	err = decode(text, state)
	if err == nil && state.Version != version {
		err = fmt.Errorf("version %d is unknown", state.Version)
	}
	if err != nil {
		return &State{Damaged: true}, s.quarantine(stateName, err)
	}
	return state, nil
}

// quarantine puts a damaged file aside and says so.
func (s *Spool) quarantine(name string, why error) error {
	aside := s.aside(name)
	if err := os.Rename(s.path(name), aside); err != nil {
		return err
	}
	s.warnOf(name, aside, why)
	return nil
}

// aside is a name that is free for a damaged file.
func (s *Spool) aside(name string) string {
	aside := s.path(name) + ".damaged"
	for n := 1; ; n++ {
		if _, err := os.Lstat(aside); errors.Is(err, fs.ErrNotExist) {
			return aside
		}
		aside = fmt.Sprintf("%s.damaged.%d", s.path(name), n)
	}
}

func (s *Spool) warnOf(name, aside string, why error) {
	s.warn(fmt.Errorf("%s of the spool is damaged: %w: it is put aside as %s", name, why, aside))
}

// loadClosed opens the file of closed buckets. If a line is damaged the whole
// file is put aside and the others make a new one.
func (s *Spool) loadClosed() error {
	text, err := os.ReadFile(s.path(closedName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var good bytes.Buffer
	bad := 0
	var first error
	for line := range bytes.Lines(text) {
		err := decode(line, new(tally.Bucket))
		if err == nil && line[len(line)-1] != '\n' {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			if bad++; first == nil {
				first = err
			}
			continue
		}
		good.Write(line)
		s.rows++
	}
	if bad > 0 {
		// There is one with the good lines at any time, also if the disk is full.
		aside := s.aside(closedName)
		if err := os.Link(s.path(closedName), aside); err != nil {
			return err
		}
		if err := s.replace(closedName, good.Bytes()); err != nil {
			return errors.Join(err, os.Remove(aside))
		}
		s.warnOf(closedName, aside, fmt.Errorf("%d of its lines can't be read, %d are kept: %w", bad, s.rows, first))
	}
	s.file, err = os.OpenFile(s.path(closedName), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	s.size = int64(good.Len())
	return err
}

// replace writes a file, whole or not at all, so that it outlives a crash.
func (s *Spool) replace(name string, text []byte) error {
	temp := s.path(name) + ".new"
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temp, s.path(name))
	}
	if err != nil {
		// What lies half written takes room that may be needed.
		return errors.Join(err, os.Remove(temp))
	}
	return nil
}

// Save makes a round durable: first the buckets that are closed, then the state
// that has left them behind. If either can't be written, buckets wait in memory
// and are handed out like the others, and the disk keeps what it had, which
// agrees with itself.
func (s *Spool) Save(state *State, closed []*tally.Bucket) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.memory = append(s.memory, closed...)
	err := s.appendMemory()
	if err == nil {
		err = s.saveState(state)
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("save to the spool %s: %w", s.dir, err)
	if excess := len(s.memory) - mostUnsaved; excess > 0 {
		s.memory = slices.Clone(s.memory[excess:])
		err = fmt.Errorf("%w; %d buckets are lost", err, excess)
	}
	return err
}

func (s *Spool) saveState(state *State) error {
	state.Version = version
	var text bytes.Buffer
	if err := encode(&text, state); err != nil {
		return err
	}
	return s.replace(stateName, text.Bytes())
}

// appendMemory writes what is in memory to the file, all of it or nothing.
func (s *Spool) appendMemory() error {
	if len(s.memory) == 0 {
		return nil
	}
	var text bytes.Buffer
	for _, b := range s.memory {
		if err := encode(&text, b); err != nil {
			return err
		}
	}
	_, err := s.file.Write(text.Bytes())
	if err == nil {
		err = s.file.Sync()
	}
	if err != nil {
		return errors.Join(err, s.file.Truncate(s.size))
	}
	s.size += int64(text.Len())
	s.rows += len(s.memory)
	s.memory = nil
	return nil
}

// Batch are buckets to be sent, the oldest first.
type Batch struct {
	Buckets  []*tally.Bucket
	end      int64 // of the file
	inMemory int
}

// Next are the buckets to send next, at most so many; none if the database has
// all.
func (s *Spool) Next(limit int) (Batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sent == s.size {
		n := min(limit, len(s.memory))
		return Batch{Buckets: slices.Clone(s.memory[:n]), end: s.sent, inMemory: n}, nil
	}
	b := Batch{end: s.sent}
	in := bufio.NewReaderSize(io.NewSectionReader(s.file, s.sent, s.size-s.sent), 1<<16)
	for len(b.Buckets) < limit && b.end < s.size {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return Batch{}, fmt.Errorf("read the spool %s: %w", s.dir, err)
		}
		b.end += int64(len(line))
		bucket := new(tally.Bucket)
		if err := decode(line, bucket); err != nil {
			s.warn(fmt.Errorf("a line of the spool %s is damaged and left out: %w", s.dir, err))
			s.rows--
			continue
		}
		b.Buckets = append(b.Buckets, bucket)
	}
	return b, nil
}

// Sent notes that the database has a batch.
func (s *Spool) Sent(b Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.inMemory > 0 {
		// The file may have taken them up meanwhile: then they are sent again.
		if len(s.memory) >= b.inMemory && s.memory[0] == b.Buckets[0] {
			s.memory = s.memory[b.inMemory:]
		}
		return nil
	}
	s.rows -= len(b.Buckets)
	if s.sent = b.end; s.sent < s.size || s.size == 0 {
		return nil
	}
	if err := s.file.Truncate(0); err != nil {
		return fmt.Errorf("empty the spool %s: %w", s.dir, err)
	}
	s.sent, s.size = 0, 0
	return nil
}

// Waiting is how many buckets the database doesn't have yet.
func (s *Spool) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows + len(s.memory)
}

// Bytes is the size of the files.
func (s *Spool) Bytes() (total int64) {
	for _, name := range []string{stateName, closedName, rejectedName} {
		if info, err := os.Stat(s.path(name)); err == nil {
			total += info.Size()
		}
	}
	return total
}

// Reject keeps a bucket that the database won't have for what is in it, with the
// reason, so that it holds up no others.
func (s *Spool) Reject(b *tally.Bucket, reason error) error {
	text, err := json.Marshal(struct {
		Reason string        `json:"reason"`
		Bucket *tally.Bucket `json:"bucket"`
	}{reason.Error(), b})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(s.path(rejectedName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	return errors.Join(err, f.Close())
}
