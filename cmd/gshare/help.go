// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"
)

const helpBegin = `Usage: gshare [OPTIONS]

Shows what share of the GPUs accounts and users are due over the lookback
window, what they got, and who is served next. Without -a or -u it shows your
own accounts and those above them, or all accounts if you are in none.

Options:
`

const helpEnd = `
Hours are GPU-hours within the window. Ratio is used by entitled: at each level
of the tree the account that has the lowest is served next.

Examples:
  gshare                       your own accounts
  gshare -a                    everybody
  gshare -la                   everybody, all columns
  gshare -aA vision,nlp        two accounts and their users
  gshare -Uu ada               one user's own rows
  gshare -anPo Acc,User,UsedH,EntitledH
                               for a script
  gshare -a -o account%-30,used%14,ratio
                               columns of your own choice and width
  gshare -a --jobs             what runs, and until when it is protected
  gshare -a --json             everything, in full precision

Exit status: 0, 1 on an error, 2 if the command line is wrong.
Environment: GPUBUDGET_CONF names the configuration file; PG* variables,
pg_service.conf and the password file are libpq's.
`

const (
	helpWidth  = 80
	helpIndent = 28 // where the options' texts begin
)

// printHelp prints what --help asks for.
func (p *program) printHelp() error {
	var b strings.Builder
	b.WriteString(helpBegin)
	for _, flag := range flags() {
		writeOption(&b, flag.(cli.DocGenerationFlag), flag.Names())
	}
	b.WriteString(helpEnd)
	_, err := fmt.Fprint(p.stdout, b.String())
	return err
}

// writeOption writes an option as sshare does, its text at the right.
func writeOption(b *strings.Builder, flag cli.DocGenerationFlag, names []string) {
	value, about := unquote(flag.GetUsage())
	var short, long []string
	for _, name := range names {
		if len(name) == 1 {
			short = append(short, "-"+name)
		} else {
			long = append(long, "--"+name)
		}
	}
	if value != "" {
		long[0] += "=" + value
	}
	line := "  " + strings.Join(append(short, long[0]), ", ")
	if len(short) == 0 {
		line = "      " + long[0]
	}
	for i, text := range wrap(about, helpWidth-helpIndent) {
		switch {
		case i == 0 && len(line) < helpIndent:
			fmt.Fprintf(b, "%-*s%s\n", helpIndent, line, text)
		case i == 0:
			fmt.Fprintf(b, "%s\n%*s%s\n", line, helpIndent, "", text)
		default:
			fmt.Fprintf(b, "%*s%s\n", helpIndent, "", text)
		}
	}
}

// unquote takes the name of an option's value, which stands in backquotes, out
// of its text.
func unquote(usage string) (value, about string) {
	parts := strings.SplitN(usage, "`", 3)
	if len(parts) < 3 {
		return "", usage
	}
	return parts[1], strings.Join(parts, "")
}

// wrap breaks a text into lines of at most width letters.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) > width:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}
