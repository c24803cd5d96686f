// SPDX-License-Identifier: GPL-2.0-or-later

package testcluster

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A start that sweeps up what others left does not get at a folder that is being
// made.
func TestASweepLeavesNewFoldersAlone(t *testing.T) {
	done := make(chan struct{})
	var sweeping sync.WaitGroup
	sweeping.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				sweep()
			}
		}
	})
	for range 300 {
		dir, err := MakeTempDir()
		require.NoError(t, err)
		lock, err := lockNewDir(dir)
		require.NoError(t, err)
		require.FileExists(t, filepath.Join(dir, "lock"))
		_, err = lockNewDir(dir)
		require.ErrorAs(t, err, new(*RunningError))
		require.NoError(t, os.RemoveAll(dir))
		require.NoError(t, lock.Close())
	}
	close(done)
	sweeping.Wait()
}
