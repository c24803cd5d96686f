// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"math"
	"math/bits"
)

// extended is a number >= 0 of 64 significant bits, mant * 2^exp, as Slurm's
// long double is on x86. Whether siblings stand equal in Slurm, and so who comes
// before whom, hangs on the last of these bits. Zero has no mant; that of all
// others has its highest bit set.
type extended struct {
	mant uint64
	exp  int
}

const highestBit = 1 << 63

// extend is high+low, where low is what high leaves out of a longer number.
// Whatever is negative, infinite or no number is nothing.
func extend(high, low float64) extended {
	whole := exactly(high)
	x := whole
	if whole.mant == highestBit && low < 0 {
		x = extended{0, whole.exp - 1} // a 1 stands before the 64 bits, until low is taken away
	}
	units := math.Ldexp(low, -x.exp)
	if whole.mant == 0 || !(math.Abs(units) >= 1 && math.Abs(units) <= 1<<11) {
		return whole // low is nothing, or not what it should be
	}
	x.mant += uint64(int64(units))
	return x
}

// exactly is a float without rounding.
func exactly(f float64) extended {
	if !(f > 0) || math.IsInf(f, 0) {
		return extended{}
	}
	fraction, exp := math.Frexp(f) // fraction from 1/2 to 1
	return extended{uint64(fraction * highestBit * 2), exp - 64}
}

// over is the quotient x/y, correctly rounded; y is not zero.
func (x extended) over(y extended) extended {
	if x.mant == 0 {
		return x
	}
	exp := x.exp - y.exp - 64
	high, low := x.mant, uint64(0)
	if high >= y.mant { // the quotient would have a bit too many
		high, low, exp = high>>1, high<<63, exp+1
	}
	quotient, rest := bits.Div64(high, low, y.mant)
	// More than half of y rounds up; just half, to the even neighbour.
	if half := y.mant - rest; rest > half || rest == half && quotient&1 == 1 {
		quotient++
		if quotient == 0 {
			quotient, exp = highestBit, exp+1
		}
	}
	return extended{quotient, exp}
}

// split is x as a float and what that leaves out.
func (x extended) split() (high, low float64) {
	mant := float64(x.mant)
	kept := uint64(0) // of 2^64
	if mant < 1<<64 {
		kept = uint64(mant)
	}
	return math.Ldexp(mant, x.exp), math.Ldexp(float64(int64(x.mant-kept)), x.exp)
}
