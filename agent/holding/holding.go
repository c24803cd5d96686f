// SPDX-License-Identifier: GPL-2.0-or-later

// Package holding keeps the files by which Prolog and Epilog tell the node's
// agent who holds which GPUs: one file for each run of a job on this node, from
// the moment its Prolog ran until the agent has counted it.
//
// The hooks run for every job and must never hold one up: they write a file,
// whole or not at all, and need neither the driver, nor a network, nor an agent
// that runs.
package holding

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

const version = 1

// Stamp is an instant by two clocks, in milliseconds: since the node booted,
// time asleep included, and since 1970. Lengths are taken from the first, which
// nobody sets.
type Stamp struct {
	Boot int64 `json:"boot_ms"`
	Wall int64 `json:"wall_ms"`
}

// Record is what a file says.
type Record struct {
	Version int    `json:"version"`
	JobID   uint32 `json:"job_id"`
	Restart uint32 `json:"restart"`
	UID     uint32 `json:"uid"`
	User    string `json:"user,omitempty"`
	Account string `json:"account,omitempty"`
	Node    string `json:"node,omitempty"`
	// GPUs is SLURM_JOB_GPUS: places in gres.conf, separated by commas.
	GPUs string `json:"gpus"`
	// Visible is CUDA_VISIBLE_DEVICES of Prolog: the same, or UUIDs.
	Visible string `json:"visible,omitempty"`
	// MPSPercent is CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, 0 if there was none.
	MPSPercent int `json:"mps_percent,omitempty"`
	// JobStart is when Slurm started the job, in seconds since 1970; 0 if Slurm
	// did not say (before 23.02).
	JobStart int64 `json:"job_start,omitempty"`

	BootID string `json:"boot_id"`
	From   Stamp  `json:"from"`
	Until  *Stamp `json:"until,omitempty"` // nil until Epilog has run

	// File is the name of the file, within its folder.
	File string `json:"-"`
}

// Hooks are Prolog and Epilog of a node.
type Hooks struct {
	Dir    string
	Getenv func(string) string
	BootID string
	Now    func() Stamp
}

// NoGPUsError is a Prolog of a job that holds no GPU here, as far as Slurm says.
type NoGPUsError struct{ JobID uint32 }

func (e *NoGPUsError) Error() string {
	return fmt.Sprintf("job %d: no SLURM_JOB_GPUS: it holds no GPU on this node, or gres.conf names no File for its GPUs; nothing is recorded", e.JobID)
}

// Prolog writes the file of the job that the environment tells about. A Prolog
// that runs a second time for the same run changes nothing. The error is a
// *NoGPUsError if there is nothing to write.
func (h *Hooks) Prolog() error {
	r, err := h.record()
	if err != nil {
		return err
	}
	name, err := h.freeName(r)
	if err != nil || name == "" {
		return err
	}
	if err := write(h.Dir, name, r); err != nil {
		return fmt.Errorf("job %d: %w", r.JobID, err)
	}
	return nil
}

// Epilog notes the end in each file of the job that has none. There may be none:
// the job held no GPU.
func (h *Hooks) Epilog() error {
	job, err := h.number("SLURM_JOB_ID")
	if err != nil {
		return err
	}
	now := h.Now()
	records, errs := read(h.Dir, func(name string) bool { return strings.HasPrefix(name, fmt.Sprintf("%d.", job)) })
	for _, r := range records {
		if r.Until != nil || r.BootID != h.BootID {
			continue
		}
		r.Until = &now
		if err := write(h.Dir, r.File, &r); err != nil {
			errs = append(errs, fmt.Errorf("job %d: %w", job, err))
		}
	}
	return errors.Join(errs...)
}

// record is what the environment says.
func (h *Hooks) record() (*Record, error) {
	job, err := h.number("SLURM_JOB_ID")
	if err != nil {
		return nil, err
	}
	gpus := h.Getenv("SLURM_JOB_GPUS")
	if gpus == "" {
		return nil, &NoGPUsError{job}
	}
	r := &Record{
		Version: version, JobID: job, GPUs: gpus, Visible: h.Getenv("CUDA_VISIBLE_DEVICES"),
		User: h.Getenv("SLURM_JOB_USER"), Account: h.Getenv("SLURM_JOB_ACCOUNT"), Node: h.Getenv("SLURMD_NODENAME"),
		BootID: h.BootID, From: h.Now(),
	}
	r.Restart = h.optional("SLURM_JOB_RESTART_COUNT", "SLURM_RESTART_COUNT")
	r.UID = h.optional("SLURM_JOB_UID", "SLURM_UID")
	if percent := h.optional("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"); percent <= 100 {
		r.MPSPercent = int(percent)
	}
	if at, err := strconv.ParseInt(h.Getenv("SLURM_JOB_START_TIME"), 10, 64); err == nil && at > 0 {
		r.JobStart = at
	}
	return r, nil
}

// number is a variable that must be there.
func (h *Hooks) number(name string) (uint32, error) {
	n, err := strconv.ParseUint(h.Getenv(name), 10, 32)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%s=%q is not a job's number: this is to be run by slurmd as Prolog and Epilog", name, h.Getenv(name))
	}
	return uint32(n), nil
}

// optional is the first of the variables that is a number, else 0.
func (h *Hooks) optional(names ...string) uint32 {
	for _, name := range names {
		if n, err := strconv.ParseUint(h.Getenv(name), 10, 32); err == nil {
			return uint32(n)
		}
	}
	return 0
}

// freeName is the file to write. It is "" if there is one already that tells of
// this run. A job that shrank and grew again comes a second time to a node: it
// gets another file if the agent has not counted the first one yet.
func (h *Hooks) freeName(r *Record) (string, error) {
	if err := os.MkdirAll(h.Dir, 0o755); err != nil { //nolint:gosec // the agent, another user, reads it
		return "", err
	}
	base := fmt.Sprintf("%d.%d", r.JobID, r.Restart)
	name := base
	for n := 1; ; n++ {
		old, err := load(h.Dir, name)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.As(err, new(*DamagedError)):
			return name, nil
		case err != nil:
			return "", fmt.Errorf("job %d: %w", r.JobID, err)
		case old.BootID != r.BootID:
			return name, nil // of before a reboot
		case old.Until == nil:
			return "", nil
		}
		name = fmt.Sprintf("%s.%d", base, n)
	}
}

// temporary is how names of files begin that are being written.
const temporary = ".tmp-"

// write makes or replaces a file, whole or not at all. It needs no sync: what a
// crash of the node takes, it takes from the job as well.
func write(dir, name string, r *Record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, temporary)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// DamagedError is a file that says nothing that could be understood.
type DamagedError struct {
	File string
	Err  error
}

func (e *DamagedError) Error() string { return fmt.Sprintf("%s is damaged: %v", e.File, e.Err) }
func (e *DamagedError) Unwrap() error { return e.Err }

// UnreadableError is a file that can't be read, which may pass. File is "" if none
// can: the folder is not to be read.
type UnreadableError struct {
	File string
	Err  error
}

func (e *UnreadableError) Error() string { return e.Err.Error() }
func (e *UnreadableError) Unwrap() error { return e.Err }

// mostBytes is far more than a file has.
const mostBytes = 1 << 16

// load reads one file. It does not follow links: the folder is the agent's, and
// the hooks are root.
func load(dir, name string) (*Record, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	text := make([]byte, mostBytes)
	n, err := f.Read(text)
	switch {
	case errors.Is(err, io.EOF):
		return nil, &DamagedError{name, errors.New("it is empty")}
	case err != nil:
		return nil, err
	}
	r := new(Record)
	if err := json.Unmarshal(bytes.TrimSpace(text[:n]), r); err != nil {
		return nil, &DamagedError{name, err}
	}
	if err := r.check(); err != nil {
		return nil, &DamagedError{name, err}
	}
	r.File = name
	return r, nil
}

func (r *Record) check() error {
	switch {
	case r.Version != version:
		return fmt.Errorf("version %d is unknown", r.Version)
	case r.JobID == 0 || r.GPUs == "" || r.BootID == "" || r.From.Boot < 0:
		return errors.New("it names no job, no GPUs or no time")
	case r.Until != nil && r.Until.Boot < r.From.Boot:
		return errors.New("it ends before it begins")
	}
	return nil
}

// read loads the files whose names are wanted, in the order of their names. What
// vanishes meanwhile is left out.
func read(dir string, wanted func(name string) bool) (records []Record, errs []error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, []error{err}
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || !wanted(e.Name()) {
			continue
		}
		r, err := load(dir, e.Name())
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			errs = append(errs, err)
		default:
			records = append(records, *r)
		}
	}
	return records, errs
}

// Folder is the agent's view of the files.
type Folder struct {
	dir  string
	seen map[string]cached
}

// cached is a file as it was read, and how to tell that it has not changed. Its error
// is a *DamagedError; of a file that could never be read there is no record either.
type cached struct {
	inode   uint64
	changed int64
	record  *Record
	err     error
}

// NewFolder is the view of a folder, which need not exist yet.
func NewFolder(dir string) *Folder { return &Folder{dir: dir, seen: map[string]cached{}} }

// List is what the files say, in the order of their names, and what is wrong
// with others: *DamagedError and *UnreadableError. What can't be read is taken to say
// what it said before: a job has not ended for that. A file that has not changed is
// not read again.
func (f *Folder) List() (records []*Record, errs []error) {
	entries, err := os.ReadDir(f.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		entries = nil
	case err != nil:
		return f.records(), []error{&UnreadableError{Err: err}}
	}
	seen := make(map[string]cached, len(entries))
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		c, err := f.look(e)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, &UnreadableError{e.Name(), err})
			c = f.seen[e.Name()]
		}
		if c.err != nil {
			errs = append(errs, c.err)
		}
		seen[e.Name()] = c
	}
	f.seen = seen
	return f.records(), errs
}

// records are those of the files as they are known.
func (f *Folder) records() (all []*Record) {
	for _, name := range slices.Sorted(maps.Keys(f.seen)) {
		if r := f.seen[name].record; r != nil {
			all = append(all, r)
		}
	}
	return all
}

// look is a file as it is now, or as it was read when it was the same. Its error is
// one that may pass.
func (f *Folder) look(e fs.DirEntry) (cached, error) {
	info, err := e.Info()
	if err != nil {
		return cached{}, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return cached{}, fmt.Errorf("%s has no inode", e.Name())
	}
	old, known := f.seen[e.Name()]
	if known && old.inode == stat.Ino && old.changed == info.ModTime().UnixNano() {
		return old, nil
	}
	c := cached{inode: stat.Ino, changed: info.ModTime().UnixNano()}
	c.record, c.err = load(f.dir, e.Name())
	if c.err != nil && !errors.As(c.err, new(*DamagedError)) {
		return cached{}, c.err
	}
	return c, nil
}

// Remove removes files whose records have been counted. One that is gone is no
// error.
func (f *Folder) Remove(names ...string) error {
	var errs []error
	for _, name := range names {
		if err := os.Remove(filepath.Join(f.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Quarantine moves a damaged file out of the way, beside the others, and keeps
// it.
func (f *Folder) Quarantine(name string) error {
	return os.Rename(filepath.Join(f.dir, name), filepath.Join(f.dir, ".damaged-"+name))
}

// Sweep removes what hooks that were killed left half written before an instant.
func (f *Folder) Sweep(before Stamp) error {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return nil //nolint:nilerr // List tells of it
	}
	var old []string
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), temporary) && info.ModTime().UnixMilli() < before.Wall {
			old = append(old, e.Name())
		}
	}
	return f.Remove(slices.Clip(old)...)
}
