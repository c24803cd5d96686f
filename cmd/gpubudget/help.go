// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"strings"

	"github.com/urfave/cli/v2"
)

// appHelp is the page of gpubudget itself.
const appHelp = `NAME:
   {{.Name}} - {{.Usage}}

USAGE:
   {{.UsageText}}

DESCRIPTION:
   {{.Description}}

COMMANDS:{{range .VisibleCommands}}
   {{printf "%-12s" .Name}} {{.Usage}}{{end}}

OPTIONS, before or after the command:{{range .VisibleFlags}}
   {{.}}{{end}}

EXAMPLES:
   gpubudget db migrate
   gpubudget account add vision --share 30%
   gpubudget user add ann,bob vision
   gpubudget share set vision 40% --from 2026-07-01 --why "plan for the third quarter"
   gpubudget tree

   gpubudget COMMAND --help tells more about a command.
`

// commandHelp is the page of a command or a group of commands.
const commandHelp = `NAME:
   {{.HelpName}} - {{.Usage}}

USAGE:
   {{.HelpName}}{{if .VisibleCommands}} COMMAND{{end}}{{if .VisibleFlags}} [OPTIONS]{{end}}{{if .ArgsUsage}} {{.ArgsUsage}}{{end}}
{{if .VisibleCommands}}
COMMANDS:{{range .VisibleCommands}}
   {{printf "%-10s" .Name}} {{.Usage}}{{end}}
{{end}}{{if .Description}}
DESCRIPTION:
   {{.Description}}
{{end}}{{if .VisibleFlags}}
OPTIONS:{{range .VisibleFlags}}
   {{.}}{{end}}
{{end}}
   gpubudget --help lists the options that all commands take.
`

// groupText describes a command that is a group of others.
const groupText = "Each of its commands has a page of its own: add --help."

// firstExamples is the first example of each command.
func firstExamples(commands []*cli.Command) []string {
	var examples []string
	for _, c := range commands {
		_, after, _ := strings.Cut(c.Description, "EXAMPLES:\n")
		first, _, _ := strings.Cut(after, "\n")
		examples = append(examples, strings.TrimSpace(first))
	}
	return examples
}

// describe is a command's description with its examples below it. Lines are
// given without indentation.
func describe(text string, examples ...string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	lines = append(lines, "", "EXAMPLES:")
	lines = append(lines, examples...)
	for i, line := range lines {
		switch {
		case i == 0 || line == "":
		case line == "EXAMPLES:":
		default:
			lines[i] = "   " + line
		}
	}
	return strings.Join(lines, "\n")
}
