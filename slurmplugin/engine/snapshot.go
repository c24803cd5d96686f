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

	"gpubudget/budgets"
	"gpubudget/fairshare"
)

// Snapshot is all that the engine knows from the database, as it was at ReadAt.
// It is never changed after it was made. However old it gets, it is used: the
// window slides on over it.
type Snapshot struct {
	Cluster string
	ReadAt  fairshare.Instant
	Ledger  int64 // version of the ledger
	Policy  budgets.Policy
	// Budget reaches as far into the future as the ledger does. Its capacity
	// ends at ReadAt: what came after is the tracker's to know.
	Budget *fairshare.Budget
	// Charges are those of the runs that had ended and were written by then.
	Charges []fairshare.Charge
	// Spooled is the last record of the spool that is in Charges.
	Spooled uint64
}

// Lookback is the window that ends now.
func (s *Snapshot) Lookback(now fairshare.Instant) fairshare.Period {
	return fairshare.Lookback(now, s.Policy.Lookback)
}

// roles is a ranking without usage: it tells who is funded and where users are
// at home.
func (s *Snapshot) roles() *fairshare.Ranking {
	return fairshare.Rank(fairshare.Input{Budget: s.Budget, Window: s.Lookback(s.ReadAt)})
}

// Snapshots are kept in a file: a line that names the format, a checksum, and
// the gob of the Snapshot.
const (
	snapshotName   = "gpubudget_snapshot"
	snapshotFormat = "gpubudget snapshot 1\n"
)

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
	if err := gob.NewEncoder(body).Encode(s); err != nil {
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
	rest, ok := bytes.CutPrefix(text, []byte(snapshotFormat))
	if !ok {
		return nil, errors.New("it is of another format")
	}
	if len(rest) < sha256.Size {
		return nil, errors.New("it is cut short")
	}
	body := rest[sha256.Size:]
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], rest[:sha256.Size]) {
		return nil, errors.New("it is damaged")
	}
	s := &Snapshot{}
	if err := gob.NewDecoder(bytes.NewReader(body)).Decode(s); err != nil {
		return nil, err
	}
	return s, nil
}
