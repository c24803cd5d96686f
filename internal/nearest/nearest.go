// SPDX-License-Identifier: GPL-2.0-or-later

// Package nearest finds the known word that a mistyped one most likely meant,
// for error messages that name it.
package nearest

import (
	"sort"
	"strings"
)

// Word is the one of candidates that word most likely meant, or "" if none is
// near: a candidate is near if at most a third of the longer word's letters
// (one at the least) differ, or if one of the two begins the other. Case is
// ignored. Among equals the first by name wins.
func Word(word string, candidates []string) string {
	sorted := append([]string(nil), candidates...)
	sort.Strings(sorted)

	best, bestDistance := "", -1
	for _, c := range sorted {
		d, near := compare(strings.ToLower(word), strings.ToLower(c))
		if near && (bestDistance < 0 || d < bestDistance) {
			best, bestDistance = c, d
		}
	}
	return best
}

// compare is the distance of a and b and whether they are near each other.
func compare(a, b string) (int, bool) {
	ra, rb := []rune(a), []rune(b)
	if len(ra) == 0 || len(rb) == 0 {
		return 0, false
	}
	d := distance(ra, rb)
	limit := max(1, max(len(ra), len(rb))/3)
	return d, d <= limit || prefixed(a, b)
}

// prefixed tells whether one word begins the other; a single letter is too
// little to go by.
func prefixed(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	return len(a) > 1 && strings.HasPrefix(b, a)
}

// distance is the number of letters to insert, delete, replace or swap with
// their neighbour to turn a into b (optimal string alignment).
func distance(a, b []rune) int {
	before := make([]int, len(b)+1)
	last := make([]int, len(b)+1)
	row := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
