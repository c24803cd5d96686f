// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"gpubudget/fairshare"
)

// oversized tells whether compacting the spool is worth while.
func (s *spool) oversized() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.file != nil && s.lines > 2*s.kept+slack
}

// compact rewrites the spool without the records that nobody needs any more:
// those replaced by later ones, and those the database has and the snapshot on
// disk holds, which are those up to safe. It keeps those of runs that are open
// or listed. A listed run is one whose job Slurm still shows; without its record
// it would be taken for new.
func (s *spool) compact(safe uint64, listed func(runKey) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == nil {
		return nil
	}
	keep, err := s.needed(min(safe, s.written.seq), listed)
	if err == nil {
		err = s.rewrite(keep)
	}
	if err != nil {
		return fmt.Errorf("compact spool %s: %w", s.path, err)
	}
	return nil
}

type demandKey struct {
	incarnation string
	period      fairshare.Period
}

// needed are the sequence numbers of the records to keep.
func (s *spool) needed(safe uint64, listed func(runKey) bool) (map[uint64]bool, error) {
	runs := make(map[runKey]spoolRecord)
	demands := make(map[demandKey]spoolRecord)
	keep := make(map[uint64]bool)
	var demand, capacity spoolRecord
	_, _, err := s.replay(s.file, func(rec spoolRecord) {
		switch {
		case rec.Run != nil:
			runs[rec.Run.key()] = spoolRecord{Seq: rec.Seq, Run: &spoolRun{End: rec.Run.End}}
		case rec.Demand != nil:
			d := rec.Demand
			demands[demandKey{d.Incarnation, fairshare.Period{From: d.From, Until: d.Until}}] = spoolRecord{Seq: rec.Seq}
			if demand.Demand == nil || d.Seen >= demand.Demand.Seen {
				demand = spoolRecord{Seq: rec.Seq, Demand: &spoolDemand{Seen: d.Seen}}
			}
		case rec.Capacity != nil:
			capacity = rec
			keep[rec.Seq] = rec.Seq > safe
		case rec.Preemption != nil:
			keep[rec.Seq] = rec.Seq > safe
		}
	})
	if err != nil {
		return nil, err
	}
	for key, rec := range runs {
		keep[rec.Seq] = rec.Seq > safe || rec.Run.End == nil || listed(key)
	}
	for _, rec := range demands {
		keep[rec.Seq] = rec.Seq > safe
	}
	// These say how far things were counted, and what the capacity was.
	keep[demand.Seq], keep[capacity.Seq] = true, true
	return keep, nil
}

// rewrite replaces the file by one with the chosen records only.
func (s *spool) rewrite(keep map[uint64]bool) error {
	temp := s.path + ".new"
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	size, written, lines, err := s.copyLines(f, keep)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(temp, s.path)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	_ = s.file.Close() // its lines are in the new one
	s.file, s.size, s.lines, s.kept = f, size, lines, lines
	s.written.offset = written
	return nil
}

// copyLines copies the header and the records to keep. written is the length of
// those that the database has.
func (s *spool) copyLines(to *os.File, keep map[uint64]bool) (size, written int64, lines int, err error) {
	in := bufio.NewReaderSize(io.NewSectionReader(s.file, 0, s.size), 1<<16)
	out := bufio.NewWriterSize(to, 1<<16)
	for {
		line, done, err := nextLine(in)
		if done {
			return size, written, lines, out.Flush()
		}
		if err != nil {
			return 0, 0, 0, err
		}
		var rec struct {
			Seq uint64 `json:"seq"`
		}
		if lines > 0 && (json.Unmarshal(line, &rec) != nil || !keep[rec.Seq]) {
			continue
		}
		if _, err := out.Write(line); err != nil {
			return 0, 0, 0, err
		}
		size += int64(len(line))
		lines++
		if rec.Seq <= s.written.seq {
			written = size
		}
	}
}
