// SPDX-License-Identifier: GPL-2.0-or-later

package conf

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubudget/internal/nearest"
)

// Limits of the intervals: short enough for tests, never a busy loop.
const (
	shortestInterval = 100 * time.Millisecond
	longestInterval  = 24 * time.Hour
)

// A setting is one key of the file and what its value does.
type setting struct {
	key string
	set func(c *Conf, value string) error
}

// settings are all keys, in the order in which errors list them.
var settings = slices.Concat(generalSettings, agentSettings)

var generalSettings = []setting{
	{"Cluster", func(c *Conf, v string) error { return setName(&c.Cluster, v) }},
	{"DSN", func(c *Conf, v string) error { return setText(&c.DSN, v) }},
	{"RefreshInterval", func(c *Conf, v string) error { return setInterval(&c.RefreshInterval, v) }},
	{"CalcInterval", func(c *Conf, v string) error { return setInterval(&c.CalcInterval, v) }},
	{"SpoolDir", func(c *Conf, v string) error { return setFolder(&c.SpoolDir, v) }},
	{"DebugLevel", func(c *Conf, v string) error { return setDebugLevel(&c.DebugLevel, v) }},
	{"Shares", func(c *Conf, v string) error { return setWord(&c.Shares, v, SharesLedger, SharesSlurm) }},
	{"FairTreeTies", func(c *Conf, v string) error { return setWord(&c.FairTreeTies, v, TiesMerge, TiesSlurm) }},
	{"Shadow", func(c *Conf, v string) error { return setSwitch(&c.Shadow, v) }},
}

// Parse reads the text of a configuration file. Path is named in errors and
// kept in the result.
//
// A line is Key=Value; the key's case does not matter and white space around
// the key and the value is dropped. A value may stand in double quotes, which
// keep white space and # in it. A # at the beginning of a line or after white
// space begins a comment. A key may be set once.
func Parse(path, text string) (Conf, error) {
	c := Defaults()
	c.Path = path

	setAt := map[string]int{}
	for i, line := range strings.Split(text, "\n") {
		key, err := parseLine(&c, line, setAt)
		if err != nil {
			return Conf{}, fmt.Errorf("%s:%d: %w", path, i+1, err)
		}
		if key != "" {
			setAt[key] = i + 1
		}
	}
	return c, nil
}

// parseLine applies one line to c and returns the key it set, "" for none.
func parseLine(c *Conf, line string, setAt map[string]int) (string, error) {
	line, err := stripComment(line)
	if err != nil {
		return "", err
	}
	if line == "" {
		return "", nil
	}
	key, value, ok := strings.Cut(line, "=")
	key = strings.TrimSpace(key)
	if !ok || key == "" {
		return "", fmt.Errorf("%q is not Key=Value", line)
	}
	s, ok := findSetting(key)
	if !ok {
		return "", unknownKey(key)
	}
	if before, ok := setAt[s.key]; ok {
		return "", fmt.Errorf("%s is set a second time (first in line %d): remove one of the two", s.key, before)
	}
	if err := s.set(c, unquote(strings.TrimSpace(value))); err != nil {
		return "", fmt.Errorf("%s: %w", s.key, err)
	}
	return s.key, nil
}

func findSetting(key string) (setting, bool) {
	for _, s := range settings {
		if strings.EqualFold(s.key, key) {
			return s, true
		}
	}
	return setting{}, false
}

func unknownKey(key string) error {
	known := make([]string, len(settings))
	for i, s := range settings {
		known[i] = s.key
	}
	if near := nearest.Word(key, known); near != "" {
		return fmt.Errorf("unknown key %q: did you mean %s?", key, near)
	}
	return fmt.Errorf("unknown key %q: known are %s", key, strings.Join(known, ", "))
}

// stripComment is line without its comment and the white space around it.
func stripComment(line string) (string, error) {
	quoted := false
	for i := range len(line) {
		switch {
		case line[i] == '"':
			quoted = !quoted
		case line[i] == '#' && !quoted && startsComment(line, i):
			return strings.TrimSpace(line[:i]), nil
		}
	}
	if quoted {
		return "", errors.New("a double quote is not closed")
	}
	return strings.TrimSpace(line), nil
}

// startsComment tells whether the # at i begins a comment. Within a word it
// does not: a password may hold one.
func startsComment(line string, i int) bool {
	return i == 0 || line[i-1] == ' ' || line[i-1] == '\t'
}

// unquote drops one pair of double quotes around the whole value.
func unquote(v string) string {
	if len(v) >= 2 && v[0] == '"' && v[len(v)-1] == '"' {
		return v[1 : len(v)-1]
	}
	return v
}

var errEmpty = errors.New("has no value: give one or remove the line")

func setText(to *string, v string) error {
	if v == "" {
		return errEmpty
	}
	*to = v
	return nil
}

// setName sets a cluster's name. Slurm keeps them in lower case.
func setName(to *string, v string) error {
	if strings.ContainsAny(v, " \t\"'") {
		return fmt.Errorf("%q is not a cluster's name: use ClusterName of slurm.conf", v)
	}
	return setText(to, strings.ToLower(v))
}

func setFolder(to *string, v string) error {
	if v != "" && !strings.HasPrefix(v, "/") {
		return fmt.Errorf("%q is not an absolute path", v)
	}
	return setText(to, v)
}

// setInterval sets a time given in seconds, with decimals if need be.
func setInterval(to *time.Duration, v string) error {
	return setIntervalFrom(shortestInterval, to, v)
}

// setIntervalFrom is setInterval with a shortest time of its own.
func setIntervalFrom(shortest time.Duration, to *time.Duration, v string) error {
	if v == "" {
		return errEmpty
	}
	seconds, err := strconv.ParseFloat(v, 64)
	if err != nil {
		return fmt.Errorf("%q is not a number of seconds", v)
	}
	// The comparison is written so that NaN fails it.
	if !(seconds >= shortest.Seconds() && seconds <= longestInterval.Seconds()) {
		return fmt.Errorf("%s seconds: must be from %g to %g", v, shortest.Seconds(), longestInterval.Seconds())
	}
	*to = time.Duration(seconds * float64(time.Second))
	return nil
}

// setWord sets one of the words known, whatever its case.
func setWord[T ~string](to *T, v string, known ...T) error {
	if v == "" {
		return errEmpty
	}
	names := make([]string, len(known))
	for i, word := range known {
		if strings.EqualFold(v, string(word)) {
			*to = word
			return nil
		}
		names[i] = string(word)
	}
	return fmt.Errorf("%q is not known: it is one of %s", v, strings.Join(names, ", "))
}

// setSwitch sets what is on or off, in slurm.conf's words.
func setSwitch(to *bool, v string) error {
	word := ""
	if err := setWord(&word, v, "yes", "no"); err != nil {
		return err
	}
	*to = word == "yes"
	return nil
}

// debugLevels are Slurm's names for its log levels, ascending.
var debugLevels = []string{
	"quiet", "fatal", "error", "info", "verbose",
	"debug", "debug2", "debug3", "debug4", "debug5",
}

// setDebugLevel sets a log level given by name or, as in slurm.conf, by
// number.
func setDebugLevel(to *string, v string) error {
	if v == "" {
		return errEmpty
	}
	for i, name := range debugLevels {
		if strings.EqualFold(v, name) || v == strconv.Itoa(i) {
			*to = name
			return nil
		}
	}
	return fmt.Errorf("%q is not a log level: known are %s", v, strings.Join(debugLevels, ", "))
}
