// SPDX-License-Identifier: GPL-2.0-or-later

package simnvml_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/simnvml"
	"gpubudget/usage/meter"
	"gpubudget/usage/nvml"
)

// stateVariable makes this test binary open the simulated driver and end, so
// that what the library says is seen.
const stateVariable = "GPUBUDGET_TEST_OPEN"

// TestWrongState has state files with mistakes: a test that makes one shall
// hear of it.
func TestWrongState(t *testing.T) {
	dir := t.TempDir()
	library, err := simnvml.Build(t.Context(), filepath.Join(dir, "lib"))
	require.NoError(t, err)
	path := filepath.Join(dir, "gpus")
	t.Setenv(simnvml.Variable, path)
	t.Setenv("GORACE", "atexit_sleep_ms=0") // the race detector would wait a second at each end
	for _, test := range []struct{ text, want string }{
		{"colour = red", ":1: no such key here, or no such value: 'colour'"},
		{"# fine\n\nhello", ":3: neither [section] nor key = value: 'hello'"},
		{"[gpu]\nminor = -1", ":2: no such key here, or no such value: 'minor'"},
		{"[gpu]\nminor = 1x", ":2: no such key here"},
		{"[gpu]\nutilization = 5:1 4:2", ":2: no such key here"},
		{"[gpu]\necc = 1 2 3", ":2: no such key here"},
		{"[gpu]\nlost = perhaps", ":2: no such key here"},
		{"[instance]", ":1: no such section, or not here, or too many: '[instance]'"},
		{"[gpu]\n[process]\nkind = x", ":3: no such key here"},
		{"fail = nvmlInit_v2", ":1: no such key here"},
		{"hang = nvmlInit_v2 9", ":1: no such key here"},
	} {
		t.Run(test.text, func(t *testing.T) {
			require.NoError(t, os.WriteFile(path, []byte(test.text), 0o600))
			t.Setenv(stateVariable, library)
			out := run(t, os.Args[0])
			require.Contains(t, out, "simnvml: "+path+test.want)
			require.Contains(t, out, "nvmlInit_v2: the kernel driver is not loaded")
		})
	}
}

func TestMain(m *testing.M) {
	if library := os.Getenv(stateVariable); library != "" {
		_, err := meter.Open(meter.Options{Driver: nvml.New(library)})
		fmt.Println(err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestStateBecomesWrong keeps what was there before.
func TestStateBecomesWrong(t *testing.T) {
	dir := t.TempDir()
	library, err := simnvml.Build(t.Context(), filepath.Join(dir, "lib"))
	require.NoError(t, err)
	path := filepath.Join(dir, "gpus")
	t.Setenv(simnvml.Variable, path)
	s := simnvml.State{GPUs: []simnvml.GPU{{UUID: "GPU-1"}}}
	require.NoError(t, s.Write(path))
	m, err := meter.Open(meter.Options{Driver: nvml.New(library)})
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	for _, change := range []func() error{
		func() error { return os.WriteFile(path, []byte("nonsense"), 0o600) },
		func() error { return os.Remove(path) },
	} {
		require.NoError(t, change())
		r, err := m.Sample()
		require.NoError(t, err)
		require.Len(t, r.GPUs, 1)
	}
	s.GPUs = nil
	require.NoError(t, s.Write(path))
	r, err := m.Sample()
	require.NoError(t, err)
	require.Empty(t, r.GPUs)
}
