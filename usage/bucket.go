// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"time"

	"gpubudget/fairshare"
)

// DefaultBucket is the length of a bucket where the cluster's policy names none.
const DefaultBucket = time.Hour

// Bucket is the bucket of the given length that holds at. Buckets lie edge to
// edge from the beginning of 1970, UTC. A length below a millisecond counts as
// DefaultBucket.
func Bucket(at fairshare.Instant, length time.Duration) fairshare.Period {
	ms := length.Milliseconds()
	if ms <= 0 {
		ms = DefaultBucket.Milliseconds()
	}
	n := int64(at) / ms
	if int64(at)%ms < 0 {
		n--
	}
	return fairshare.Period{From: fairshare.Instant(n * ms), Until: fairshare.Instant((n + 1) * ms)}
}
