// SPDX-License-Identifier: GPL-2.0-or-later

package shimtest

// #include "../preempt/claims.h"
import "C"

// Claims are het jobs that wait for others to make way.
type Claims struct{ set C.struct_claims }

// ClaimPlace is where a component belongs in the queue.
type ClaimPlace int

// The places.
const (
	NoClaim   = ClaimPlace(C.CLAIM_NONE)
	NeedsRoom = ClaimPlace(C.CLAIM_NEEDS_ROOM)
	HasRoom   = ClaimPlace(C.CLAIM_HAS_ROOM)
)

// MostClaims, ClaimTests and the rest are the limits; times are seconds.
const (
	MostClaims      = int(C.CLAIMS)
	ClaimTests      = int(C.CLAIM_TESTS)
	ClaimPause      = int64(C.CLAIM_PAUSE)
	ClaimDoublings  = int(C.CLAIM_DOUBLINGS)
	ClaimForgotten  = int64(C.CLAIM_FORGOTTEN)
	ClaimComponents = int(C.CLAIM_COMPONENTS)
)

// Test is a look of backfill's at a component; false also if there are too many claims.
func (c *Claims) Test(het, job uint32, needs bool, thread uint64, now int64) bool {
	claim := C.claim_make(&c.set, C.uint32_t(het), C.int64_t(now))
	return claim != nil && bool(C.claim_test(claim, C.uint32_t(job), C.bool(needs), C.uint64_t(thread), C.int64_t(now)))
}

// Sort is where a component belongs.
func (c *Claims) Sort(het, job uint32, thread uint64) ClaimPlace {
	claim := C.claim_find(&c.set, C.uint32_t(het))
	if claim == nil {
		return NoClaim
	}
	return ClaimPlace(C.claim_sort(claim, C.uint32_t(job), C.uint64_t(thread)))
}

// Evicts notes that somebody goes for a het job.
func (c *Claims) Evicts(het uint32, until int64) {
	C.claim_evicts(C.claim_find(&c.set, C.uint32_t(het)), C.int64_t(until))
}

// Pause is for a het job of which a component can't start.
func (c *Claims) Pause(het uint32, now int64) {
	C.claim_pause(C.claim_find(&c.set, C.uint32_t(het)), C.int64_t(now))
}
