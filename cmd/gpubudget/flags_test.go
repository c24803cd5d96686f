// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"
)

// An option met before its command is read without knowing which command comes.
func TestOptionsOfTheSameNameAreAlike(t *testing.T) {
	value := map[string]bool{}
	var visit func(commands []*cli.Command)
	visit = func(commands []*cli.Command) {
		for _, c := range commands {
			for name, f := range flagTable(c.Flags) {
				if before, ok := value[name]; ok {
					require.Equal(t, before, takesValue(f), "--%s of %s", name, c.Name)
				}
				value[name] = takesValue(f)
			}
			visit(c.Subcommands)
		}
	}
	visit((&program{}).app().Commands)
	require.Greater(t, len(value), 20)
}
