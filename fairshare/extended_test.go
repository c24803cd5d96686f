// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// long is a number of 64 bits in the arithmetic that x86 processors have built
// in, by the standard library.
func long() *big.Float { return new(big.Float).SetPrec(64).SetMode(big.ToNearestEven) }

func (x extended) big() *big.Float {
	mant := long().SetUint64(x.mant)
	return long().SetMantExp(mant, x.exp)
}

func drawLong(t *rapid.T, label string) *big.Float {
	mant := rapid.OneOf(
		rapid.Uint64Min(1),
		rapid.Map(rapid.IntRange(0, 63), func(n int) uint64 { return 1 << n }),
		rapid.Map(rapid.Uint64Range(1, 4096), func(n uint64) uint64 { return -n }),
	).Draw(t, label)
	return long().SetMantExp(long().SetUint64(mant), rapid.IntRange(-80, 20).Draw(t, label+" exponent"))
}

// parts is what crosses the bridge of a long number.
func parts(x *big.Float) (high, low float64) {
	high, _ = x.Float64()
	low, _ = long().Sub(x, long().SetFloat64(high)).Float64()
	return high, low
}

func TestExtendedIsExactAndItsQuotientsAreTheProcessors(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, y := drawLong(t, "x"), drawLong(t, "y")
		ex, ey := extend(parts(x)), extend(parts(y))
		require.Zero(t, x.Cmp(ex.big()), "%v came over as %v", x, ex.big())

		want := long().Quo(x, y)
		got := ex.over(ey)
		require.Zero(t, want.Cmp(got.big()), "%v / %v = %v, not %v", x, y, want, got.big())

		high, low := got.split()
		wantHigh, wantLow := parts(want)
		require.Equal(t, wantHigh, high)
		require.Equal(t, wantLow, low)
	})
}

func TestExtendOfWhatIsNoNumber(t *testing.T) {
	for _, high := range []float64{0, -1, math.Inf(1), math.Inf(-1), math.NaN()} {
		for _, low := range []float64{0, 1, -1, math.Inf(1), math.NaN()} {
			require.Zero(t, extend(high, low).mant, "%v %v", high, low)
		}
	}
	for _, low := range []float64{0, 1, -1, 1e-40, -1e-40, math.Inf(1), math.Inf(-1), math.NaN()} {
		require.Equal(t, exactly(1), extend(1, low), "%v is no rest of 1", low)
	}
}
