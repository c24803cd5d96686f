// SPDX-License-Identifier: GPL-2.0-or-later

// Package hostlist reads lists in the notation that Slurm has for names with
// numbers in them, of nodes and of files.
package hostlist

import (
	"fmt"
	"strconv"
	"strings"
)

// mostNames bounds what a list may stand for.
const mostNames = 1 << 16

// Expand is what a list stands for, in its order: "n[1-3,07],m" is n1, n2, n3, n07
// and m. Numbers are as wide as the first of their range is written; of several
// brackets in a name the last changes fastest. It is an error if a bracket is not
// closed, holds something else than numbers and ranges, or if the list stands for
// more than 65,536 names.
func Expand(list string) ([]string, error) {
	var names []string
	for _, item := range splitOutside(list) {
		expanded, err := expandItem(item)
		if err != nil {
			return nil, err
		}
		if names = append(names, expanded...); len(names) > mostNames {
			return nil, fmt.Errorf("%q stands for too many", list)
		}
	}
	return names, nil
}

// splitOutside splits at commas that stand outside of brackets.
func splitOutside(list string) (items []string) {
	depth, begin := 0, 0
	for i, r := range list {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth <= 0 {
				items = append(items, list[begin:i])
				begin = i + 1
			}
		}
	}
	return append(items, list[begin:])
}

func expandItem(item string) ([]string, error) {
	before, rest, ok := strings.Cut(item, "[")
	if !ok {
		return []string{item}, nil
	}
	inside, after, ok := strings.Cut(rest, "]")
	if !ok {
		return nil, fmt.Errorf("%q has a bracket that is not closed", item)
	}
	tails, err := expandItem(after)
	if err != nil {
		return nil, err
	}
	var names []string
	for r := range strings.SplitSeq(inside, ",") {
		numbers, err := expandRange(r)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", item, err)
		}
		if len(names)+len(numbers)*len(tails) > mostNames {
			return nil, fmt.Errorf("%q stands for too many", item)
		}
		for _, n := range numbers {
			for _, tail := range tails {
				names = append(names, before+n+tail)
			}
		}
	}
	return names, nil
}

// expandRange is a number or two of them with a dash; zeros in front are kept.
func expandRange(r string) ([]string, error) {
	low, high, ok := strings.Cut(r, "-")
	if !ok {
		high = low
	}
	first, err := strconv.ParseUint(low, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%q is no number", low)
	}
	last, err := strconv.ParseUint(high, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%q is no number", high)
	}
	if last < first || last-first >= mostNames {
		return nil, fmt.Errorf("%s is no range", r)
	}
	var numbers []string
	for n := first; n <= last; n++ {
		numbers = append(numbers, fmt.Sprintf("%0*d", len(low), n))
	}
	return numbers, nil
}
