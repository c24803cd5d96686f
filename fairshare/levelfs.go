// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import "math"

// levelFS is Slurm's level fair share S/U, where S is what an account or user
// is due and U what it used, each as a fraction of its level, that is of all
// its siblings together. Above 1 it is under-served, below 1 over-served. With
// nothing due it is 0 whatever was used; with something due and nothing used
// it is +Inf. It is never NaN.
func levelFS(due, levelDue float64, used, levelUsed GPUMillis) float64 {
	if !(due > 0) || !(levelDue > 0) {
		return 0
	}
	if used <= 0 || levelUsed <= 0 {
		return math.Inf(1)
	}
	s := due / levelDue
	u := float64(used) / float64(levelUsed)
	return comparable40(s / u)
}

// comparable40 rounds x >= 0 to 40 significant bits, about 12 digits. Level
// fair shares that come from equal budgets and usage by different roads differ
// in their last bits; rounded, they are the same number, and so tie. Rounding
// keeps the order: it can make two values equal but never swaps them.
func comparable40(x float64) float64 {
	const dropped = 52 - 40
	if math.IsInf(x, 0) {
		return x
	}
	const half = 1 << (dropped - 1)
	return math.Float64frombits((math.Float64bits(x) + half) &^ (1<<dropped - 1))
}
