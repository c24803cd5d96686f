// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestArrange(t *testing.T) {
	app := (&program{}).app()
	for _, tc := range []struct{ line, want string }{
		{"", ""},
		{"tree", "tree"},
		{"tree --at now vision", "tree --at=now -- vision"},
		{"-n tree -P", "-n -P tree"},
		{"tree -nP", "-n -P tree"},
		{"tree -nMtitan", "-n -M=titan tree"},
		{"tree -nM titan vision", "-n -M=titan tree -- vision"},
		{"share set vision 30% --from 2026-01-01 -i", "-i share set --from=2026-01-01 -- vision 30%"},
		{"share -i set vision", "-i share set -- vision"},
		{"share set vision --user=ann --cluster=titan 5", "--cluster=titan share set --user=ann -- vision 5"},
		{"deposit vision -5", "deposit -- vision -5"},
		{"deposit vision -.5h", "deposit -- vision -.5h"},
		{"deposit -- vision -x", "deposit -- vision -x"},
		{"apply -f -", "apply -f=-"},
		{"import sacctmgr -", "import sacctmgr -- -"},
		{"--why x -i share --user ann set vision 5", "-i share set --why=x --user=ann -- vision 5"},
		{"--prune apply -f x", "apply --prune -f=x"},
		{"ledger --actor ann", "ledger --actor=ann"},
		{"--actor ann ledger", "--actor=ann ledger"},
		{"help", "--help"},
		{"help share set", "share set --help"},
		{"share set --help vision", "share set --help"},
		{"share -h", "share --help"},
		{"account list list", "account list -- list"},
		{"__complete tree --at", "__complete -- tree --at"},
	} {
		t.Run(tc.line, func(t *testing.T) {
			got, err := arrange(app, append([]string{"gpubudget"}, strings.Fields(tc.line)...))
			require.NoError(t, err)
			require.Equal(t, strings.TrimSpace("gpubudget "+tc.want), strings.Join(got, " "))
		})
	}
}

// Every command has a page with examples that the program understands.
func TestEveryCommandHasExamples(t *testing.T) {
	app := (&program{}).app()
	pages := 0
	var visit func(path string, commands []string)
	visit = func(path string, commands []string) {
		for _, name := range commands {
			c := app.Command(strings.Fields(path + " " + name)[0])
			for _, word := range strings.Fields(path + " " + name)[1:] {
				for _, sub := range c.Subcommands {
					if sub.Name == word {
						c = sub
						break
					}
				}
			}
			_, after, found := strings.Cut(c.Description, "EXAMPLES:\n")
			require.True(t, found, "%s %s", path, name)
			require.NotEmpty(t, c.Usage)
			pages++
			for line := range strings.SplitSeq(after, "\n") {
				checkExample(t, line)
			}
			visit(strings.TrimSpace(path+" "+name), commandNames(c.Subcommands))
		}
	}
	visit("", commandNames(app.Commands))
	require.Greater(t, pages, 25)
}

// checkExample makes sure that the options and commands of an example exist.
func checkExample(t *testing.T, line string) {
	t.Helper()
	_, after, found := strings.Cut(line, "gpubudget ")
	if !found || strings.HasPrefix(strings.TrimSpace(line), "createdb") {
		return
	}
	for _, stop := range []string{" |", " >", " &&", ")"} {
		after, _, _ = strings.Cut(after, stop)
	}
	words := splitWords(t, after)
	_, err := arrange((&program{}).app(), append([]string{"gpubudget"}, words...))
	require.NoError(t, err, "%s", line)
}
