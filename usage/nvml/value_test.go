// SPDX-License-Identifier: GPL-2.0-or-later

package nvml

import (
	"encoding/binary"
	"math"
	"testing"

	binding "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/stretchr/testify/require"
)

// TestValue reads each type that NVML's union may have. The simulated driver has
// one of them only.
func TestValue(t *testing.T) {
	bytes := func(v any) (b [8]byte) {
		_, err := binary.Encode(b[:], binary.NativeEndian, v)
		require.NoError(t, err)
		return b
	}
	for _, test := range []struct {
		kind binding.ValueType
		v    any
	}{
		{binding.VALUE_TYPE_DOUBLE, float64(42)}, {binding.VALUE_TYPE_UNSIGNED_INT, uint32(42)}, {binding.VALUE_TYPE_SIGNED_INT, int32(42)},
		{binding.VALUE_TYPE_UNSIGNED_LONG, uint64(42)}, {binding.VALUE_TYPE_UNSIGNED_LONG_LONG, uint64(42)},
		{binding.VALUE_TYPE_SIGNED_LONG_LONG, int64(42)}, {binding.VALUE_TYPE_UNSIGNED_SHORT, uint16(42)},
	} {
		b := bytes(test.v)
		if test.kind != binding.VALUE_TYPE_DOUBLE {
			for i := binary.Size(test.v); i < len(b); i++ {
				b[i] = 0xff // what the driver left there
			}
		}
		require.InDelta(t, 42, value(test.kind, b), 0, "%d", test.kind)
	}
	require.Greater(t, value(binding.VALUE_TYPE_SIGNED_INT, bytes(int32(-1))), 100.0)
	require.True(t, math.IsNaN(value(binding.VALUE_TYPE_COUNT, bytes(uint32(42)))))
}
