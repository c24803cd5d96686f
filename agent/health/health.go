// SPDX-License-Identifier: GPL-2.0-or-later

// Package health is what an agent knows of the health of its node's GPUs since the
// boot, as a file, and what of it makes the node unfit for jobs. Whoever reads the
// file need not ask the driver, which may hang.
package health

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"gpubudget/usage/meter"
)

// State is the health of a node's GPUs since the boot.
type State struct {
	Node   string    `json:"node"`
	BootID string    `json:"boot_id"`
	At     time.Time `json:"at"` // of the last look
	// Driver is why the GPUs could not be read in the last look, "" if they were,
	// or nobody wanted to: they were released. Since is when that began.
	Driver string     `json:"driver,omitempty"`
	Since  *time.Time `json:"since,omitempty"`
	// Expected tells that the node has GPUs, by gres.conf or by what was seen.
	Expected bool  `json:"expected"`
	GPUs     []GPU `json:"gpus"` // by UUID
}

// GPU is what is known of one.
type GPU struct {
	UUID  string `json:"uuid"`
	PCI   string `json:"pci,omitempty"`
	Index int    `json:"index"` // the driver's number when it was seen last
	// Lost is why it can't be read, "" if it can; LostSince when that began.
	Lost      string     `json:"lost,omitempty"`
	LostSince *time.Time `json:"lost_since,omitempty"`
	// Uncorrected are the memory errors since the driver was loaded, or the GPU was
	// reset, that were not corrected; UncorrectedAt is when their number last rose.
	Corrected     uint64     `json:"corrected,omitempty"`
	Uncorrected   uint64     `json:"uncorrected,omitempty"`
	UncorrectedAt *time.Time `json:"uncorrected_at,omitempty"`
	Xids          []Xid      `json:"xids,omitempty"` // by code
}

// Xid is how often an error was reported, and when last.
type Xid struct {
	Code  uint64    `json:"code"`
	Count int       `json:"count"`
	At    time.Time `json:"at"`
}

// fileName is the state's in the folder of an agent.
const fileName = "health"

// Path is where the agent whose folder it is writes the state.
func Path(spoolDir string) string { return filepath.Join(spoolDir, fileName) }

// Load reads a state. The error is fs.ErrNotExist if no agent has written any.
func Load(path string) (*State, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s := new(State)
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// Resume is the state that an agent goes on with: the one that was written, if it
// is of this boot.
func Resume(path, node, bootID string) (*State, error) {
	s, err := Load(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if s == nil || s.Node != node || s.BootID != bootID {
		s = &State{Node: node, BootID: bootID}
	}
	return s, err
}

// Save writes the state beside and renames.
func (s *State) Save(path string) error { return write(path, s) }

func write(path string, content any) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", text, 0o644); err != nil { //nolint:gosec // who administers the node reads it
		return err
	}
	return os.Rename(path+".new", path)
}

// Unread notes a look in which the GPUs could not be read, and why; "" if they
// were released on request.
func (s *State) Unread(at time.Time, why string, expected bool) {
	s.At, s.Expected = at, s.Expected || expected
	switch {
	case why == "":
		s.Driver, s.Since = "", nil
	case s.Since == nil:
		s.Since = &at
		fallthrough
	default:
		s.Driver = why
	}
}

// Read notes a look at the GPUs.
func (s *State) Read(r *meter.Round, expected bool) {
	s.At, s.Driver, s.Since = r.At, "", nil
	s.Expected = s.Expected || expected || len(r.GPUs) > 0
	present := map[string]bool{}
	for i := range r.GPUs {
		g := &r.GPUs[i]
		if g.UUID == "" {
			continue // lost before anybody knew its name: gres.conf misses it
		}
		present[g.UUID] = true
		s.gpu(g.UUID).read(g, r.At)
	}
	for i := range s.GPUs {
		if g := &s.GPUs[i]; !present[g.UUID] {
			g.lose("the driver does not list it any more", r.At)
		}
	}
	for _, x := range r.Xids {
		if x.UUID != "" {
			s.gpu(x.UUID).met(x.Code, x.At)
		}
	}
}

// gpu is the entry of a GPU, which may be new.
func (s *State) gpu(uuid string) *GPU {
	i, known := slices.BinarySearchFunc(s.GPUs, uuid, func(g GPU, uuid string) int {
		switch {
		case g.UUID < uuid:
			return -1
		case g.UUID > uuid:
			return 1
		}
		return 0
	})
	if !known {
		s.GPUs = slices.Insert(s.GPUs, i, GPU{UUID: uuid, Index: -1})
	}
	return &s.GPUs[i]
}

func (g *GPU) read(r *meter.Reading, at time.Time) {
	g.Index = r.Index
	if r.PCI != "" {
		g.PCI = r.PCI
	}
	if r.Err != nil {
		g.lose(r.Err.Error(), at)
		return
	}
	if g.wasReset(r) {
		g.reset(at)
	}
	g.Lost, g.LostSince = "", nil
	if r.ECC == nil {
		return
	}
	if r.ECC.Uncorrected > g.Uncorrected {
		g.UncorrectedAt = &at
	}
	g.Corrected, g.Uncorrected = r.ECC.Corrected, r.ECC.Uncorrected
}

// wasReset tells whether the GPU, which can be read, must have been reset since: it
// was lost, or its counts of memory errors began anew.
func (g *GPU) wasReset(r *meter.Reading) bool {
	return g.Lost != "" || r.ECC != nil && (r.ECC.Uncorrected < g.Uncorrected || r.ECC.Corrected < g.Corrected)
}

// reset forgets what happened to the GPU up to an instant: that is over.
func (g *GPU) reset(at time.Time) {
	g.Xids = slices.DeleteFunc(g.Xids, func(x Xid) bool { return !x.At.After(at) })
	g.Corrected, g.Uncorrected, g.UncorrectedAt = 0, 0, nil
}

// Reset notes that somebody has reset a GPU, or seen to it otherwise, by an instant.
// A GPU of which nothing is known has nothing to be forgotten.
func (s *State) Reset(uuid string, at time.Time) {
	for i := range s.GPUs {
		if s.GPUs[i].UUID == uuid {
			s.GPUs[i].reset(at)
		}
	}
}

func (g *GPU) lose(why string, at time.Time) {
	g.Lost = why
	if g.LostSince == nil {
		g.LostSince = &at
	}
}

func (g *GPU) met(code uint64, at time.Time) {
	for i := range g.Xids {
		if g.Xids[i].Code == code {
			g.Xids[i].Count++
			g.Xids[i].At = at
			return
		}
	}
	g.Xids = append(g.Xids, Xid{code, 1, at})
	slices.SortFunc(g.Xids, func(x, y Xid) int { return int(x.Code) - int(y.Code) }) //nolint:gosec // codes are small
}
