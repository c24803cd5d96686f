// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/slurmplugin/engine"
)

// run runs a command that must succeed and returns what it printed.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s\n%s", name, strings.Join(args, " "), out)
	return string(out)
}

// The library as it is installed, in a host written in C.
func TestTheLibraryInAHost(t *testing.T) {
	dir := t.TempDir()
	library, host, conf := filepath.Join(dir, "libgpubudget.so"), filepath.Join(dir, "host"), filepath.Join(dir, "gpubudget.conf")
	run(t, "go", "build", "-buildvcs=false", "-buildmode=c-shared", "-o", library, ".")
	run(t, "gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-o", host, "testdata/host.c", "-ldl", "-lpthread")
	require.NoError(t, os.WriteFile(conf, []byte("DSN=host=127.0.0.1 port=1 connect_timeout=1\nCalcInterval=2.5\n"), 0o600))

	pass := `begin 0
observe 0
end 0
rank 0
fill without room -1
fill 0, generation 3
standings 0 known 0
the older job is first: 1
partitions have priorities: 1
columns add up: 1
sighting 0
shares 0, slurm's 0 0.75 0.25
wanted 0
`
	life := "start 0\nconfigure 0\ninterval 2500\n" + pass + "silent after stop: 1\n"
	want := "abi 10, job 1\nbefore start: -1 0\nstart with another ABI: -3\n" + life + life +
		"start 0\nshort-lived threads served: 200\n" +
		"SIGTERM and SIGCHLD reach the host: 1 1\nSIGPIPE is ignored: 1\n" +
		"fault near NULL: -2\nfault near NULL: -2\nfault near NULL: -2\nfault elsewhere: -2\nNULL jobs: -2\n" +
		"panics logged: 2\n" + pass + "alive\n"
	require.Equal(t, want, run(t, host, library, conf, dir))
}

func TestGuardTurnsPanicsAndErrorsIntoCodes(t *testing.T) {
	var lines []string
	setLog(func(level int, message string) {
		lines = append(lines, fmt.Sprint(level, " ", strings.SplitN(message, "\n", 2)[0]))
	})
	defer setLog(nil)
	for range 3 {
		require.Equal(t, engine.OK, guard("fine", func() error { return nil }))
		require.Equal(t, engine.Error, guard("bad", func() error { return errors.New("no") }))
		require.Equal(t, engine.Panicked, guard("awful", func() error { panic("ouch") }))
		require.Equal(t, engine.ABIMismatch, guard("start", func() error { return errABI }))
	}
	require.Equal(t, []string{"0 bad: no", "0 awful: panic: ouch", "0 start: " + errABI.Error()}, lines)
}

func TestFaultsLoggedAreBounded(t *testing.T) {
	n := 0
	setLog(func(int, string) { n++ })
	defer setLog(nil)
	for i := range 10 * mostKinds {
		guard("call", func() error { return fmt.Errorf("error %d", i) })
	}
	require.Equal(t, mostKinds, n)
}
