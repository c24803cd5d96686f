// SPDX-License-Identifier: GPL-2.0-or-later

package shimtest

// #include "../shim/parts.h"
import "C"

// PartsOf is a job's part of GPUs, of whose shares it has so many, in millionths.
func PartsOf(count, shares, gpus uint64) uint64 {
	return uint64(C.parts_of(C.uint64_t(count), C.uint64_t(shares), C.uint64_t(gpus)))
}

// SharesOn is how many of a job's shares lie on the nth of its GPUs.
func SharesOn(count, gpus, nth uint64) uint64 {
	return uint64(C.shares_on(C.uint64_t(count), C.uint64_t(gpus), C.uint64_t(nth)))
}
