// SPDX-License-Identifier: GPL-2.0-or-later

package metered

import (
	"fmt"
	"strconv"
	"strings"
)

// maxNodes bounds what a node list may stand for.
const maxNodes = 1 << 16

// Nodes are the names that a node list of Slurm's stands for, in its order:
// "gpu[01-03,7],login1" is gpu01, gpu02, gpu03, gpu7 and login1. A list that can't
// be read stands for itself.
func Nodes(list string) []string {
	var names []string
	for _, word := range splitList(list) {
		expanded, ok := expand(word)
		if !ok || len(names)+len(expanded) > maxNodes {
			return []string{list}
		}
		names = append(names, expanded...)
	}
	return names
}

// splitList splits at the commas outside of brackets.
func splitList(list string) []string {
	var words []string
	depth, begin := 0, 0
	for i, r := range list {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth == 0 {
				words = append(words, list[begin:i])
				begin = i + 1
			}
		}
	}
	return append(words, list[begin:])
}

// expand is a name with the numbers that stand in its brackets, the last ones
// changing fastest.
func expand(word string) ([]string, bool) {
	before, rest, found := strings.Cut(word, "[")
	if !found {
		return []string{word}, word != "" && !strings.Contains(word, "]")
	}
	inside, after, closed := strings.Cut(rest, "]")
	if !closed {
		return nil, false
	}
	tails := []string{""}
	if after != "" {
		var ok bool
		if tails, ok = expand(after); !ok {
			return nil, false
		}
	}
	var names []string
	for item := range strings.SplitSeq(inside, ",") {
		numbers, ok := numbersOf(item)
		if !ok || len(names)+len(numbers)*len(tails) > maxNodes {
			return nil, false
		}
		for _, number := range numbers {
			for _, tail := range tails {
				names = append(names, before+number+tail)
			}
		}
	}
	return names, true
}

// numbersOf are the numbers of "7" or "01-03", as wide as they are written.
func numbersOf(item string) ([]string, bool) {
	low, high, isRange := strings.Cut(item, "-")
	first, err := strconv.ParseUint(low, 10, 32)
	if err != nil {
		return nil, false
	}
	if !isRange {
		return []string{low}, true
	}
	last, err := strconv.ParseUint(high, 10, 32)
	if err != nil || last < first || last-first >= maxNodes {
		return nil, false
	}
	var numbers []string
	for n := first; n <= last; n++ {
		numbers = append(numbers, fmt.Sprintf("%0*d", len(low), n))
	}
	return numbers, true
}
