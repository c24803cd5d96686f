// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/urfave/cli/v2"

	"gpubudget/internal/nearest"
)

// arrange brings a command line into the order that the cli package asks for:
// global options, command, its options, arguments. Options may stand anywhere,
// as with Slurm's commands, and short ones may be combined (-nP). Unknown
// commands and options are refused here, with the nearest known one.
func arrange(app *cli.App, args []string) ([]string, error) {
	if len(args) > 1 && args[1] == completeName { // its arguments are half a command line
		return append([]string{args[0], completeName, "--"}, args[2:]...), nil
	}
	a := arranger{commands: app.Commands, global: flagTable(app.Flags)}
	for i := 1; i < len(args); {
		used, err := a.take(args[i:])
		if err != nil {
			return nil, &usageError{command: strings.Join(a.path, " "), err: err}
		}
		i += used
	}
	if err := a.complete(); err != nil {
		return nil, &usageError{command: strings.Join(a.path, " "), err: err}
	}
	out := append([]string{args[0]}, a.globals...)
	out = append(out, a.path...)
	out = append(out, a.options...)
	if len(a.arguments) > 0 {
		out = append(append(out, "--"), a.arguments...)
	}
	return out, nil
}

// arranger is a command line as far as it has been sorted.
type arranger struct {
	commands  []*cli.Command // that may come next
	global    map[string]cli.Flag
	command   *cli.Command // the innermost named so far
	path      []string
	globals   []string
	options   []string
	early     []string // names of options met before the command they belong to
	arguments []string
	onlyArgs  bool // after --
	help      bool
}

// negative is an argument that begins like an option but is a number.
var negative = regexp.MustCompile(`^-[0-9.]`)

// take sorts the first word of rest, with the value of an option that needs
// one, and returns how many words it used.
func (a *arranger) take(rest []string) (int, error) {
	word := rest[0]
	switch {
	case a.onlyArgs:
		a.arguments = append(a.arguments, word)
	case word == "--":
		a.onlyArgs = true
	case len(word) > 1 && word[0] == '-' && !negative.MatchString(word):
		return a.takeOption(rest)
	case len(a.commands) > 0 && len(a.arguments) == 0:
		return 1, a.takeCommand(word)
	default:
		a.arguments = append(a.arguments, word)
	}
	return 1, nil
}

func (a *arranger) takeCommand(word string) error {
	for _, c := range a.commands {
		if c.HasName(word) {
			a.command, a.commands = c, c.Subcommands
			a.path = append(a.path, c.Name)
			return nil
		}
	}
	if word == "help" || word == "h" { // the rest names a command
		a.help = true
		return nil
	}
	names := commandNames(a.commands)
	text := fmt.Sprintf("unknown command %q", strings.Join(append(append([]string(nil), a.path...), word), " "))
	if near := nearest.Word(word, names); near != "" {
		return fmt.Errorf("%s: did you mean %s?", text, near)
	}
	return fmt.Errorf("%s: known are %s", text, strings.Join(names, ", "))
}

func commandNames(commands []*cli.Command) []string {
	var names []string
	for _, c := range commands {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	return names
}

// takeOption sorts an option.
func (a *arranger) takeOption(rest []string) (int, error) {
	name, value, hasValue := strings.Cut(rest[0], "=")
	bare := strings.TrimLeft(name, "-")
	if isHelp(bare) {
		a.help = true
		return 1, nil
	}
	flag, isGlobal := a.find(bare)
	if flag == nil && !strings.HasPrefix(name, "--") && len(bare) > 1 {
		return a.takeCombined(rest)
	}
	if flag == nil {
		return 0, a.unknownOption(name)
	}
	if !takesValue(flag) {
		if hasValue {
			return 0, fmt.Errorf("option %s takes no value", name)
		}
		a.put(isGlobal, name)
		return 1, nil
	}
	if hasValue {
		a.put(isGlobal, name+"="+value)
		return 1, nil
	}
	if len(rest) < 2 {
		return 0, fmt.Errorf("option %s needs a value", name)
	}
	a.put(isGlobal, name+"="+rest[1])
	return 2, nil
}

// takeCombined sorts several short options in one word, or one with its value
// right behind it: -nP, -Mtitan.
func (a *arranger) takeCombined(rest []string) (int, error) {
	letters := rest[0][1:]
	for i, letter := range letters {
		flag, isGlobal := a.find(string(letter))
		if flag == nil {
			return 0, a.unknownOption("-" + string(letter))
		}
		if !takesValue(flag) {
			a.put(isGlobal, "-"+string(letter))
			continue
		}
		after := letters[i+len(string(letter)):]
		if after != "" {
			a.put(isGlobal, "-"+string(letter)+"="+after)
			return 1, nil
		}
		if len(rest) < 2 {
			return 0, fmt.Errorf("option -%c needs a value", letter)
		}
		a.put(isGlobal, "-"+string(letter)+"="+rest[1])
		return 2, nil
	}
	return 1, nil
}

func (a *arranger) put(isGlobal bool, word string) {
	if isGlobal {
		a.globals = append(a.globals, word)
		return
	}
	a.options = append(a.options, word)
}

// find is the option of that name: the command's own goes before a global one.
func (a *arranger) find(name string) (flag cli.Flag, isGlobal bool) {
	if a.command != nil {
		if f, ok := flagTable(a.command.Flags)[name]; ok {
			return f, false
		}
	}
	if f, ok := a.global[name]; ok {
		return f, true
	}
	if f := findBelow(a.commands, name); f != nil {
		a.early = append(a.early, name)
		return f, false
	}
	return nil, false
}

// findBelow is the option of that name of one of the commands that may come.
// Options of the same name are alike in all commands.
func findBelow(commands []*cli.Command, name string) cli.Flag {
	for _, c := range commands {
		if f, ok := flagTable(c.Flags)[name]; ok {
			return f
		}
		if f := findBelow(c.Subcommands, name); f != nil {
			return f
		}
	}
	return nil
}

func (a *arranger) unknownOption(name string) error {
	known := make([]string, 0, len(a.global))
	for n := range a.global {
		known = append(known, n)
	}
	if a.command != nil {
		for n := range flagTable(a.command.Flags) {
			known = append(known, n)
		}
	}
	if near := nearest.Word(strings.TrimLeft(name, "-"), known); len(near) > 1 {
		return fmt.Errorf("unknown option %s: did you mean --%s?", name, near)
	}
	return fmt.Errorf("unknown option %s", name)
}

// complete makes sure that a command was named, and turns a question for help
// into the option that the cli package knows.
func (a *arranger) complete() error {
	if a.help {
		a.options, a.arguments = []string{"--help"}, nil
		if len(a.path) == 0 {
			a.globals, a.options = []string{"--help"}, nil
		}
		return nil
	}
	if a.command != nil && len(a.commands) > 0 {
		return fmt.Errorf("%s needs a command: one of %s", strings.Join(a.path, " "), strings.Join(commandNames(a.commands), ", "))
	}
	for _, name := range a.early {
		if a.command == nil || flagTable(a.command.Flags)[name] == nil {
			return a.unknownOption(dashed(name))
		}
	}
	return nil
}

// dashed is an option's name as it is typed.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

func isHelp(name string) bool { return name == "help" || name == "h" }

// flagTable is flags by each of their names.
func flagTable(flags []cli.Flag) map[string]cli.Flag {
	table := map[string]cli.Flag{}
	for _, f := range flags {
		for _, name := range f.Names() {
			table[name] = f
		}
	}
	return table
}

func takesValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

// commandPath is the command that runs in c, as in "share set".
func commandPath(c *cli.Context) string {
	var path []string
	for _, ctx := range c.Lineage() {
		if ctx.Command != nil && ctx.Command.Name != "" && ctx.Command.Name != c.App.Name {
			path = append([]string{ctx.Command.Name}, path...)
		}
	}
	return strings.Join(path, " ")
}
