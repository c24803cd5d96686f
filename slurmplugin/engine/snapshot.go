// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/usage"
)

// Snapshot is all that the engine knows from the database, as it was at ReadAt.
// It is never changed after it was made. However old it gets, it is used: the
// window slides on over it.
type Snapshot struct {
	Cluster string
	ReadAt  fairshare.Instant
	Ledger  int64 // version of the ledger
	Policy  budgets.Policy
	// MinRuntimes are those of accounts that have one of their own.
	MinRuntimes map[string]time.Duration
	// Budget reaches as far into the future as the ledger does. Its capacity
	// ends at ReadAt: what came after is the tracker's to know.
	Budget *fairshare.Budget
	// Weights are what GPUs count for.
	Weights fairshare.GPUWeights
	// History is what the runs were charged that had ended and were written by
	// then.
	History *usage.History
	// Spooled is the last record of the spool that is in History, and in Evictions.
	Spooled uint64
	// Evictions are what the engine knew of as the snapshot was made, for the one
	// that will find it on disk.
	Evictions evictions
}

// Lookback is the window that ends now.
func (s *Snapshot) Lookback(now fairshare.Instant) fairshare.Period {
	return fairshare.Lookback(now, s.Policy.Lookback)
}

// Snapshots are kept in a file: a line that names the format, a checksum, the gob
// of the snapshotHead, and the History.
const (
	snapshotName   = "gpubudget_snapshot"
	snapshotFormat = "gpubudget snapshot 2\n"
	// olderFormat is that of releases before there was a History.
	olderFormat = "gpubudget snapshot 1\n"
)

// snapshotHead is a Snapshot but for its History. Charges are in older files only.
type snapshotHead struct {
	Cluster string
	ReadAt  fairshare.Instant
	Ledger  int64
	Policy  budgets.Policy
	Budget  *fairshare.Budget
	Weights fairshare.GPUWeights
	Charges []fairshare.Charge
	Spooled uint64
	// Contract tells that the policy has one: gob leaves out what is zero, and
	// older releases knew of none.
	Contract bool
	// MinRuntimes are none in files of older releases.
	MinRuntimes map[string]time.Duration
	Evictions   evictions // likewise
}

// errNoSnapshot: none was ever saved.
var errNoSnapshot = errors.New("there is none")

// saveSnapshot replaces the snapshot in a folder. A crash leaves the old one or
// the new one, whole.
func saveSnapshot(dir string, s *Snapshot) error {
	err := replaceFile(filepath.Join(dir, snapshotName), func(f *os.File) error { return encodeSnapshot(f, s) })
	if err != nil {
		return fmt.Errorf("save snapshot: %w", err)
	}
	return nil
}

// encodeSnapshot writes the snapshot piece by piece: it may be large, and
// slurmctld's memory is not ours to fill.
func encodeSnapshot(f *os.File, s *Snapshot) error {
	sum := sha256.New()
	if _, err := f.Write(append([]byte(snapshotFormat), make([]byte, sha256.Size)...)); err != nil {
		return err
	}
	body := bufio.NewWriterSize(io.MultiWriter(f, sum), 1<<16)
	head := snapshotHead{Cluster: s.Cluster, ReadAt: s.ReadAt, Ledger: s.Ledger, Policy: s.Policy, Budget: s.Budget,
		Weights: s.Weights, Spooled: s.Spooled, Contract: true, MinRuntimes: s.MinRuntimes, Evictions: s.Evictions}
	if err := gob.NewEncoder(body).Encode(head); err != nil {
		return err
	}
	if err := s.History.Encode(body); err != nil {
		return err
	}
	if err := body.Flush(); err != nil {
		return err
	}
	_, err := f.WriteAt(sum.Sum(nil), int64(len(snapshotFormat)))
	return err
}

// replaceFile writes a file beside path and moves it there.
func replaceFile(path string, write func(*os.File) error) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// loadSnapshot reads the snapshot of a cluster from a folder. The error says
// why there is none to use.
func loadSnapshot(dir, cluster string) (*Snapshot, error) {
	path := filepath.Join(dir, snapshotName)
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoSnapshot
	}
	if err != nil {
		return nil, fmt.Errorf("load snapshot: %w", err)
	}
	s, err := decodeSnapshot(text)
	if err != nil {
		return nil, fmt.Errorf("load snapshot %s: %w", path, err)
	}
	if s.Cluster != cluster {
		return nil, fmt.Errorf("load snapshot %s: it is of cluster %q", path, s.Cluster)
	}
	return s, nil
}

func decodeSnapshot(text []byte) (*Snapshot, error) {
	rest, current := bytes.CutPrefix(text, []byte(snapshotFormat))
	older := false
	if !current {
		rest, older = bytes.CutPrefix(text, []byte(olderFormat))
	}
	if !current && !older {
		return nil, errors.New("it is of another format")
	}
	if len(rest) < sha256.Size {
		return nil, errors.New("it is cut short")
	}
	body := rest[sha256.Size:]
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], rest[:sha256.Size]) {
		return nil, errors.New("it is damaged")
	}
	in := bytes.NewReader(body)
	var head snapshotHead
	if err := gob.NewDecoder(in).Decode(&head); err != nil {
		return nil, err
	}
	if !head.Contract {
		head.Policy.Contract = budgets.DefaultPolicy.Contract
	}
	s := &Snapshot{
		Cluster: head.Cluster, ReadAt: head.ReadAt, Ledger: head.Ledger, Policy: head.Policy, Budget: head.Budget,
		Weights: head.Weights, Spooled: head.Spooled, MinRuntimes: head.MinRuntimes, Evictions: head.Evictions,
	}
	if older {
		s.History = usage.NewHistory(s.Lookback(s.ReadAt).From, s.ReadAt, head.Charges)
		return s, nil
	}
	var err error
	s.History, err = usage.DecodeHistory(in)
	return s, err
}
