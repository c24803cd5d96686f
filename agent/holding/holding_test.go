// SPDX-License-Identifier: GPL-2.0-or-later

package holding

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hooksOf are hooks of a node with a clock that goes on by a second at each look.
func hooksOf(dir string, env map[string]string) *Hooks {
	at := int64(0)
	return &Hooks{
		Dir: dir, BootID: "boot-1", Getenv: func(name string) string { return env[name] },
		Now: func() Stamp { at += 1000; return Stamp{Boot: at, Wall: 1_700_000_000_000 + at} },
	}
}

func list(t *testing.T, dir string) []*Record {
	t.Helper()
	records, errs := NewFolder(dir).List()
	require.Empty(t, errs)
	return records
}

func TestPrologAndEpilog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "jobs")
	env := map[string]string{
		"SLURM_JOB_ID": "4711", "SLURM_JOB_GPUS": "0,3", "CUDA_VISIBLE_DEVICES": "0,3", "SLURM_JOB_UID": "61000", "SLURM_JOB_USER": "ann",
		"SLURM_JOB_ACCOUNT": "vision", "SLURM_JOB_RESTART_COUNT": "2", "SLURMD_NODENAME": "n1", "SLURM_JOB_START_TIME": "1700000000",
	}
	h := hooksOf(dir, env)
	require.NoError(t, h.Prolog())
	want := &Record{
		Version: 1, JobID: 4711, Restart: 2, UID: 61000, User: "ann", Account: "vision", Node: "n1", GPUs: "0,3", Visible: "0,3",
		JobStart: 1_700_000_000, BootID: "boot-1", From: Stamp{1000, 1_700_000_001_000}, File: "4711.2",
	}
	require.Equal(t, []*Record{want}, list(t, dir))

	require.NoError(t, h.Prolog(), "a second Prolog of the same run")
	require.Equal(t, []*Record{want}, list(t, dir))

	delete(env, "SLURM_JOB_RESTART_COUNT") // Epilog may lack what the credential said
	require.NoError(t, h.Epilog())
	want.Until = &Stamp{3000, 1_700_000_003_000}
	require.Equal(t, []*Record{want}, list(t, dir))
	require.NoError(t, h.Epilog(), "a second Epilog moves no end")
	require.Equal(t, []*Record{want}, list(t, dir))
}

func TestEpilogEndsItsOwnJobOnly(t *testing.T) {
	dir := t.TempDir()
	for _, job := range []string{"4", "47", "471"} {
		require.NoError(t, hooksOf(dir, map[string]string{"SLURM_JOB_ID": job, "SLURM_JOB_GPUS": "1"}).Prolog())
	}
	require.NoError(t, hooksOf(dir, map[string]string{"SLURM_JOB_ID": "47"}).Epilog())
	for _, r := range list(t, dir) {
		require.Equal(t, r.JobID == 47, r.Until != nil, "job %d", r.JobID)
	}
	require.NoError(t, hooksOf(dir, map[string]string{"SLURM_JOB_ID": "99"}).Epilog(), "a job without GPUs")
}

func TestARunThatComesBackToTheNodeHasAFileOfItsOwn(t *testing.T) {
	dir := t.TempDir()
	h := hooksOf(dir, map[string]string{"SLURM_JOB_ID": "5", "SLURM_JOB_GPUS": "1"})
	for range 3 {
		require.NoError(t, h.Prolog())
		require.NoError(t, h.Epilog())
	}
	var files []string
	for _, r := range list(t, dir) {
		files = append(files, fmt.Sprintf("%s %d-%d", r.File, r.From.Boot, r.Until.Boot))
	}
	require.Equal(t, []string{"5.0 1000-2000", "5.0.1 3000-4000", "5.0.2 5000-6000"}, files)
}

func TestAFileOfBeforeARebootIsReplacedAndNotEnded(t *testing.T) {
	dir := t.TempDir()
	env := map[string]string{"SLURM_JOB_ID": "5", "SLURM_JOB_GPUS": "1"}
	require.NoError(t, hooksOf(dir, env).Prolog())
	after := hooksOf(dir, env)
	after.BootID = "boot-2"
	require.NoError(t, after.Epilog())
	require.Nil(t, list(t, dir)[0].Until)
	require.NoError(t, after.Prolog())
	require.Equal(t, "boot-2", list(t, dir)[0].BootID)
}

func TestPrologWithoutGPUs(t *testing.T) {
	dir := t.TempDir()
	err := hooksOf(dir, map[string]string{"SLURM_JOB_ID": "5"}).Prolog()
	var none *NoGPUsError
	require.ErrorAs(t, err, &none)
	require.ErrorContains(t, err, "job 5: no SLURM_JOB_GPUS: it holds no GPU on this node")
	require.Empty(t, list(t, dir))
}

func TestHooksOutsideOfSlurmSaySo(t *testing.T) {
	for _, id := range []string{"", "x", "-1", "0", "4294967296", "../etc"} {
		h := hooksOf(t.TempDir(), map[string]string{"SLURM_JOB_ID": id, "SLURM_JOB_GPUS": "0"})
		require.ErrorContains(t, h.Prolog(), "is not a job's number", id)
		require.ErrorContains(t, h.Epilog(), "is not a job's number", id)
	}
}

func TestOddVariablesDoNoHarm(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, hooksOf(dir, map[string]string{
		"SLURM_JOB_ID": "5", "SLURM_JOB_GPUS": "0", "SLURM_JOB_UID": "x", "SLURM_JOB_RESTART_COUNT": "-1", "SLURM_RESTART_COUNT": "3",
		"SLURM_JOB_START_TIME": "soon", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "250", "SLURM_JOB_USER": "a\x00\xff\n\"",
	}).Prolog())
	r := list(t, dir)[0]
	require.Equal(t, uint32(3), r.Restart)
	require.Zero(t, r.MPSPercent)
	require.Zero(t, r.JobStart)
}

// A disk that is full leaves no half a file behind, and says so.
func TestPrologOnAFullDisk(t *testing.T) {
	dir := fullDisk(t)
	h := hooksOf(dir, map[string]string{"SLURM_JOB_ID": "5", "SLURM_JOB_GPUS": "0"})
	require.ErrorContains(t, h.Prolog(), "no space left on device")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "only what fills it")
}

func TestDamagedFilesCostNoOthers(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, hooksOf(dir, map[string]string{"SLURM_JOB_ID": "5", "SLURM_JOB_GPUS": "0"}).Prolog())
	for name, text := range map[string]string{
		"6.0": "", "7.0": "{", "8.0": `{"version":2}`, "9.0": `{"version":1,"job_id":9}`,
		"10.0": `{"version":1,"job_id":10,"gpus":"0","boot_id":"b","from":{"boot_ms":5,"wall_ms":5},"until":{"boot_ms":4,"wall_ms":9}}`,
		"11.0": strings.Repeat("x", 2*mostBytes),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, "12.0")))
	f := NewFolder(dir)
	records, errs := f.List()
	require.Len(t, records, 1)
	require.Len(t, errs, 7)
	for _, err := range errs {
		if damaged, ok := errors.AsType[*DamagedError](err); ok {
			require.NoError(t, f.Quarantine(damaged.File))
		}
	}
	_, errs = f.List()
	require.Len(t, errs, 1, "the link")

	h := hooksOf(dir, map[string]string{"SLURM_JOB_ID": "12", "SLURM_JOB_GPUS": "0"})
	require.Error(t, h.Prolog(), "root follows no link of the agent's user")
}

// What can't be read for a while is taken to say what it said before: it may be
// Epilog's end that can't be read yet, but not that the job was never there.
func TestFilesThatCantBeReadForAWhile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "jobs")
	h := hooksOf(dir, map[string]string{"SLURM_JOB_ID": "5", "SLURM_JOB_GPUS": "0"})
	require.NoError(t, h.Prolog())
	f := NewFolder(dir)
	require.Len(t, first(f.List()), 1)
	unreadable := func(file string) {
		t.Helper()
		for range 2 {
			records, errs := f.List()
			require.Len(t, records, 1)
			require.Nil(t, records[0].Until)
			require.Len(t, errs, 1)
			var unread *UnreadableError
			require.ErrorAs(t, errs[0], &unread)
			require.Equal(t, file, unread.File)
		}
	}
	require.NoError(t, h.Epilog())
	path, away := filepath.Join(dir, "5.0"), filepath.Join(t.TempDir(), "away")
	require.NoError(t, os.Rename(path, away))
	require.NoError(t, os.Symlink(away, path))
	unreadable("5.0")
	require.NoError(t, os.Rename(away, path))
	require.NoError(t, os.Rename(dir, away))
	require.NoError(t, os.WriteFile(dir, nil, 0o600))
	unreadable("")
	require.NoError(t, os.Remove(dir))
	require.NoError(t, os.Rename(away, dir))
	records, errs := f.List()
	require.Empty(t, errs)
	require.NotNil(t, records[0].Until)
}

// A file is read again exactly when it has changed.
func TestFolderSeesChanges(t *testing.T) {
	dir := t.TempDir()
	h := hooksOf(dir, map[string]string{"SLURM_JOB_ID": "5", "SLURM_JOB_GPUS": "0"})
	f := NewFolder(dir)
	require.Empty(t, first(f.List()))
	require.NoError(t, h.Prolog())
	before := first(f.List())
	require.Len(t, before, 1)
	require.Same(t, before[0], first(f.List())[0])
	require.NoError(t, h.Epilog())
	require.NotNil(t, first(f.List())[0].Until)
	require.NoError(t, f.Remove("5.0", "5.0"))
	require.Empty(t, first(f.List()))
}

func TestSweepRemovesWhatKilledHooksLeft(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, temporary+"1"), nil, 0o600))
	f := NewFolder(dir)
	require.NoError(t, f.Sweep(Stamp{Wall: 1}))
	require.Len(t, mustReadDir(t, dir), 1, "it may be written just now")
	require.NoError(t, f.Sweep(Stamp{Wall: 1 << 50}))
	require.Empty(t, mustReadDir(t, dir))
}

func first(records []*Record, _ []error) []*Record { return records }

func mustReadDir(t *testing.T, dir string) []os.DirEntry {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	return entries
}
