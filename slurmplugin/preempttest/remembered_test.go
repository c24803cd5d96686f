// SPDX-License-Identifier: GPL-2.0-or-later

// Package preempttest tests the C of the preemption plugin without a slurmctld, but
// with Slurm's own lists, bitmaps and records.
package preempttest

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// build compiles a program of testdata with the plugin's files, under the
// sanitizers.
func build(t *testing.T, sources ...string) (program string) {
	t.Helper()
	libraries, err := filepath.Glob("/usr/lib/*/slurm-wlm/libslurmfull.so")
	require.NoError(t, err)
	require.NotEmpty(t, libraries, "Slurm's library: make provision installs it")
	slurm, err := filepath.Abs("../../build/slurm")
	require.NoError(t, err)
	program = filepath.Join(t.TempDir(), "program")
	args := []string{
		"-g", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-pthread",
		"-isystem", slurm + "/obj", "-isystem", slurm + "/obj/slurm", "-isystem", slurm + "/src", "-I../preempt", "-I../shim", "-o", program,
	}
	args = append(append(args, sources...), libraries[0], "-Wl,-rpath,"+filepath.Dir(libraries[0]))
	out, err := exec.CommandContext(t.Context(), "gcc", args...).CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}

// What the plugin remembers of a run is what it would read anew, whatever has happened
// to jobs and nodes since.
func TestWhatIsRememberedIsWhatIsThere(t *testing.T) {
	program := build(t, "testdata/remembered.c", "testdata/fresh_running.c", "testdata/fresh_placing.c", "../preempt/running.c", "../preempt/placing.c", "../preempt/array.c")
	for seed := range 20 {
		out, err := exec.CommandContext(t.Context(), program, strconv.Itoa(seed+1), "3000").CombinedOutput()
		require.NoError(t, err, "seed %d: %s", seed+1, out)
		var occupants, pieces int
		_, err = fmt.Sscan(string(out), &occupants, &pieces)
		require.NoError(t, err, string(out))
		require.Greater(t, occupants, 3000, "there are jobs to read")
		require.Greater(t, pieces, occupants, "some of several nodes")
	}
}
