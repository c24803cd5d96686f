// SPDX-License-Identifier: GPL-2.0-or-later

package nvml_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/simnvml"
	"gpubudget/usage/meter"
	"gpubudget/usage/nvml"
)

func TestNoLibrary(t *testing.T) {
	path := filepath.Join(t.TempDir(), nvml.Library)
	_, err := meter.Open(meter.Options{Driver: nvml.New(path)})
	require.ErrorIs(t, err, meter.ErrNoLibrary)
	require.EqualError(t, err, "the driver's library is not there (is the NVIDIA driver installed on this node?): "+path+
		": cannot open shared object file: No such file or directory")
}

func TestOtherLibrary(t *testing.T) {
	_, err := meter.Open(meter.Options{Driver: nvml.New("libm.so.6")})
	require.ErrorIs(t, err, meter.ErrNoFunction)
	require.EqualError(t, err, "libm.so.6 is too old or no NVIDIA driver: nvmlInit_v2: the driver does not have this function")
}

func TestBrokenLibrary(t *testing.T) {
	path := filepath.Join(t.TempDir(), nvml.Library)
	require.NoError(t, os.WriteFile(path, []byte("no library"), 0o600))
	_, err := meter.Open(meter.Options{Driver: nvml.New(path)})
	require.ErrorIs(t, err, meter.ErrNoLibrary)
}

// TestDriverDoesNotStart has the library, but not what it needs.
func TestDriverDoesNotStart(t *testing.T) {
	for code, text := range map[int]string{
		9: "the kernel driver is not loaded", 18: "the driver's library and kernel module are of different versions", 4: "no permission",
	} {
		n := newNode(t, simnvml.State{Faults: []simnvml.Fault{{Function: "nvmlInit_v2", Code: code}}})
		_, err := meter.Open(n.options())
		require.ErrorIs(t, err, meter.DriverError(code))
		require.EqualError(t, err, "open the NVIDIA driver ("+library+"): nvmlInit_v2: "+text)
	}
}

// TestVersionIsUnknown is no reason to give up.
func TestVersionIsUnknown(t *testing.T) {
	n := newNode(t, simnvml.State{Faults: []simnvml.Fault{{Function: "nvmlSystemGetDriverVersion", Code: 999}}}).open()
	require.Empty(t, n.meter.Version())
	require.Len(t, n.log.lines(), 1)
}
