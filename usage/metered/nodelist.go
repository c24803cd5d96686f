// SPDX-License-Identifier: GPL-2.0-or-later

package metered

import (
	"slices"
	"strings"

	"gpubudget/internal/hostlist"
)

// Nodes are the names that a node list of Slurm's stands for, in its order:
// "gpu[01-03,7],login1" is gpu01, gpu02, gpu03, gpu7 and login1. A list that can't
// be read stands for itself.
func Nodes(list string) []string {
	names, err := hostlist.Expand(list)
	if err != nil || slices.ContainsFunc(names, noNode) {
		return []string{list}
	}
	return names
}

// noNode tells that a name is left of a list that is damaged.
func noNode(name string) bool { return name == "" || strings.Contains(name, "]") }
