// SPDX-License-Identifier: GPL-2.0-or-later

package holding

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// fullDisk is a small file system without any room. It needs root, as Slurm's
// Prolog has it.
func fullDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"), "this test mounts a file system: run it as root")
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	f, err := os.Create(filepath.Join(dir, ".filler"))
	require.NoError(t, err)
	defer f.Close()
	block := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(block)
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	return dir
}
