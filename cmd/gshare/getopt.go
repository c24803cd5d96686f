// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"gpubudget/internal/nearest"
)

// expand brings a command line into the form that the cli package reads, full
// names with = before a value, from all forms that getopt_long knows and
// sshare's users type: short options combined (-nP), a value right behind its
// option (-Aphysics), long options cut short (--form=Account). gshare takes no
// arguments; a stray one is refused.
func expand(flags []cli.Flag, args []string) ([]string, error) {
	e := expander{flags: flags}
	for len(args) > 0 {
		word := args[0]
		var used int
		var err error
		switch {
		case word == "--" && len(args) == 1:
			used = 1
		case strings.HasPrefix(word, "--") && word != "--":
			used, err = e.long(args)
		case strings.HasPrefix(word, "-") && word != "-" && word != "--":
			used, err = e.short(args)
		default:
			err = usagef("unexpected argument %q: name accounts with -A and users with -u", args[len(args)-1])
		}
		if err != nil {
			return nil, err
		}
		args = args[used:]
	}
	return e.out, nil
}

type expander struct {
	flags []cli.Flag
	out   []string
}

// long takes a long option, and its value from the next word if it needs one.
func (e *expander) long(args []string) (used int, err error) {
	name, value, hasValue := strings.Cut(strings.TrimPrefix(args[0], "--"), "=")
	flag, err := e.find(name)
	if err != nil {
		return 0, err
	}
	switch {
	case !takesValue(flag) && hasValue:
		return 0, usagef("option --%s takes no value", flag.Names()[0])
	case !takesValue(flag):
		e.put(flag)
		return 1, nil
	case hasValue:
		e.put(flag, value)
		return 1, nil
	case len(args) < 2:
		return 0, usagef("option --%s needs a value", flag.Names()[0])
	}
	e.put(flag, args[1])
	return 2, nil
}

func (e *expander) put(flag cli.Flag, value ...string) {
	e.out = append(e.out, strings.Join(append([]string{"--" + flag.Names()[0]}, value...), "="))
}

// short takes a word of short options.
func (e *expander) short(args []string) (used int, err error) {
	letters := strings.TrimPrefix(args[0], "-")
	for i, letter := range letters {
		name := string(letter)
		flag := e.named(name)
		if flag == nil {
			return 0, usagef("unknown option -%s", name)
		}
		if !takesValue(flag) {
			e.put(flag)
			continue
		}
		if value := letters[i+len(name):]; value != "" {
			e.put(flag, value)
			return 1, nil
		}
		if len(args) < 2 {
			return 0, usagef("option -%s needs a value", name)
		}
		e.put(flag, args[1])
		return 2, nil
	}
	return 1, nil
}

// find is the long option of that name, or the only one that it begins.
func (e *expander) find(name string) (cli.Flag, error) {
	if flag := e.named(name); flag != nil && len(name) > 1 {
		return flag, nil
	}
	var known, begun []string
	for _, flag := range e.flags {
		for _, n := range flag.Names() {
			if len(n) == 1 {
				continue
			}
			known = append(known, n)
			if strings.HasPrefix(n, name) && !slices.ContainsFunc(begun, flagHas(flag)) {
				begun = append(begun, n)
			}
		}
	}
	slices.Sort(begun)
	switch {
	case len(begun) == 1:
		return e.named(begun[0]), nil
	case len(begun) > 1 && name != "":
		return nil, usagef("option --%s could be --%s", name, strings.Join(begun, " or --"))
	}
	if near := nearest.Word(name, known); near != "" {
		return nil, usagef("unknown option --%s: did you mean --%s?", name, near)
	}
	return nil, usagef("unknown option --%s", name)
}

func (e *expander) named(name string) cli.Flag {
	for _, flag := range e.flags {
		if slices.Contains(flag.Names(), name) {
			return flag
		}
	}
	return nil
}

// flagHas tells of a name whether it is one of the flag's.
func flagHas(flag cli.Flag) func(string) bool {
	return func(name string) bool { return slices.Contains(flag.Names(), name) }
}

func takesValue(flag cli.Flag) bool {
	d, ok := flag.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}
