// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

// A scheduler may evict jobs for a request and not be able to start it after all, for
// reasons of its own. Evictions for one request that are no more than OneRound apart
// make room for it together, and are one round.
const (
	OneRound Instant = 5 * 1000

	freeRounds = 2 // may follow each other at once: the first, and another one if it was in vain
	firstPause = 2 * 60 * 1000
	mostPause  = 60 * 60 * 1000
)

// PauseAfter is for how long nobody is evicted for a request, in milliseconds, after so
// many rounds of evictions without its having started: two minutes after the second,
// twice as long after each more, an hour at most.
func PauseAfter(rounds int) Instant {
	if rounds < freeRounds {
		return 0
	}
	d := Instant(firstPause)
	for n := freeRounds; n < rounds && d < mostPause; n++ {
		d *= 2
	}
	return min(d, mostPause)
}

// Rounds are how many rounds evictions at these instants are, the earliest first.
func Rounds(evictions []Instant) (rounds int) {
	for i := range evictions {
		if i == 0 || evictions[i]-evictions[i-1] > OneRound {
			rounds++
		}
	}
	return rounds
}
