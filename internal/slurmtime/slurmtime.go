// SPDX-License-Identifier: GPL-2.0-or-later

// Package slurmtime reads and writes points in time the way Slurm's commands
// do, but refuses what can be read in two ways.
package slurmtime

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Layout is how Slurm's commands print a time.
const Layout = "2006-01-02T15:04:05"

// Format is t as Slurm's commands print it, in the zone loc.
func Format(t time.Time, loc *time.Location) string { return t.In(loc).Format(Layout) }

// Forms lists the accepted forms, for error messages and help texts.
const Forms = "YYYY-MM-DD[THH:MM[:SS]], MM/DD/YY, MMDDYY, HH:MM, today, tomorrow, noon, now, now+2days"

// Reader reads times as seen at an instant, in that instant's zone.
type Reader struct {
	// Now is the instant that "now" and "today" mean; its location is the
	// zone in which times are read.
	Now time.Time
	// Past says that times without a day or a year lie in the past, as sacct
	// takes them. Without it such a time is an error if it could as well lie
	// ahead.
	Past bool
}

// AmbiguousError is a time that can be read in more than one way.
type AmbiguousError struct {
	Text     string
	Readings []Reading
}

// Reading is one way to read an ambiguous time: how it was read and the same
// time written in a way that has no other reading.
type Reading struct {
	How, Plain string
}

func (e *AmbiguousError) Error() string {
	ways, plain := make([]string, len(e.Readings)), make([]string, len(e.Readings))
	for i, r := range e.Readings {
		ways[i] = fmt.Sprintf("%s (%s)", r.Plain, r.How)
		plain[i] = r.Plain
	}
	return fmt.Sprintf("time %q can be read in %d ways, %s: write %s",
		e.Text, len(ways), strings.Join(ways, " or "), strings.Join(plain, " or "))
}

// Read is the time that text names.
//
// It knows Slurm's forms: now and now+COUNT[UNIT], today, tomorrow, midnight,
// noon, elevenses, fika, teatime, HH:MM[:SS] with AM or PM, YYYY-MM-DD,
// MM/DD/YY, MM.DD.YY and MMDDYY with or without year and time of day, and
// utsSECONDS; besides those, yesterday and the zones Z and +HH:MM after
// YYYY-MM-DDTHH:MM. A time of day that a change of the clocks skips is an
// error; one that it repeats is ambiguous, as is a date whose day and month
// can be swapped.
func (r Reader) Read(text string) (time.Time, error) {
	s := strings.ToLower(strings.TrimSpace(text))
	switch {
	case s == "":
		return time.Time{}, fmt.Errorf("time is empty: write one as %s", Forms)
	case strings.HasPrefix(s, "now"):
		return r.readNow(text, s[len("now"):])
	case strings.HasPrefix(s, "uts"):
		return r.readUnix(text, s[len("uts"):])
	}
	if t, err := time.Parse(time.RFC3339, strings.ToUpper(s)); err == nil {
		return t.In(r.Now.Location()), nil
	}
	return r.readDayAndClock(text, s)
}

// readUnix reads the seconds after "uts".
func (r Reader) readUnix(text, s string) (time.Time, error) {
	n, err := strconv.ParseInt(s, 10, 40)
	if err != nil || n < 0 {
		return time.Time{}, fmt.Errorf("time %q: uts must be followed by seconds since 1970", text)
	}
	return time.Unix(n, 0).In(r.Now.Location()), nil
}

// units are the words for a length of time, a plural s apart.
var units = map[string]time.Duration{
	"": time.Second, "s": time.Second, "sec": time.Second, "second": time.Second,
	"min": time.Minute, "minute": time.Minute,
	"h": time.Hour, "hour": time.Hour,
	"d": 24 * time.Hour, "day": 24 * time.Hour,
	"w": 7 * 24 * time.Hour, "week": 7 * 24 * time.Hour,
}

// maxCount bounds now+COUNT: a century in seconds.
const maxCount = 100 * 366 * 24 * 3600

// readNow reads what follows "now": nothing, or +COUNT[UNIT] or -COUNT[UNIT].
func (r Reader) readNow(text, s string) (time.Time, error) {
	s = strings.ReplaceAll(s, " ", "")
	if s == "" {
		return r.Now, nil
	}
	bad := fmt.Errorf("time %q: after now comes + or -, a count and seconds, minutes, hours, days or weeks, as in now+2days", text)
	if s[0] != '+' && s[0] != '-' {
		return time.Time{}, bad
	}
	digits := len(s[1:]) - len(strings.TrimLeft(s[1:], "0123456789"))
	n, err := strconv.ParseInt(s[1:1+digits], 10, 64)
	if err != nil {
		return time.Time{}, bad
	}
	unit, ok := unitOf(s[1+digits:])
	if !ok {
		return time.Time{}, bad
	}
	if n > maxCount/int64(unit/time.Second) {
		return time.Time{}, fmt.Errorf("time %q is more than a century away", text)
	}
	if s[0] == '-' {
		n = -n
	}
	return r.Now.Add(time.Duration(n) * unit), nil
}

func unitOf(word string) (time.Duration, bool) {
	if len(word) > 1 {
		word = strings.TrimSuffix(word, "s")
	}
	unit, ok := units[word]
	return unit, ok
}

// clocks are the names of times of day.
var clocks = map[string]clock{
	"midnight": {}, "elevenses": {hour: 11}, "noon": {hour: 12}, "fika": {hour: 15}, "teatime": {hour: 16},
}

// readDayAndClock reads a day, a time of day, or both in this order, with a
// blank, a T or a dash between them.
func (r Reader) readDayAndClock(text, s string) (time.Time, error) {
	if c, ok := readClock(s); ok {
		return r.nextOrLast(text, c)
	}
	for i, letter := range s {
		if !strings.ContainsRune(" t-", letter) {
			continue
		}
		if c, ok := readClock(strings.TrimSpace(s[i+1:])); ok {
			days, err := r.readDay(text, strings.TrimSpace(s[:i]))
			return r.one(text, days, c, err)
		}
	}
	days, err := r.readDay(text, s)
	return r.one(text, days, clock{}, err)
}

// one is the only day of days at c o'clock, or the error that says why there
// is none or more than one.
func (r Reader) one(text string, days []day, c clock, err error) (time.Time, error) {
	if err != nil {
		return time.Time{}, err
	}
	if len(days) > 1 {
		return time.Time{}, &AmbiguousError{Text: text, Readings: readings(days, c)}
	}
	return r.at(text, days[0], c)
}

func readings(days []day, c clock) []Reading {
	out := make([]Reading, len(days))
	for i, d := range days {
		out[i] = Reading{How: d.how, Plain: d.String() + c.suffix()}
	}
	return out
}

// nextOrLast is today at c o'clock. If that has passed it might mean tomorrow
// as well: sacct looks back, sbatch ahead.
func (r Reader) nextOrLast(text string, c clock) (time.Time, error) {
	today := dayOf(r.Now, "today")
	t, err := r.at(text, today, c)
	if err != nil || r.Past || !t.Before(r.Now) {
		return t, err
	}
	days := []day{today, dayOf(r.Now.AddDate(0, 0, 1), "tomorrow")}
	return time.Time{}, &AmbiguousError{Text: text, Readings: readings(days, clock{c.hour, c.minute, c.second, true})}
}

// at is the instant of d at c o'clock in the reader's zone. A wall clock can
// show a time twice or never when it is changed.
func (r Reader) at(text string, d day, c clock) (time.Time, error) {
	wall := time.Date(d.year, d.month, d.day, c.hour, c.minute, c.second, 0, time.UTC)
	var found []time.Time
	for _, around := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		_, offset := wall.Add(around).In(r.Now.Location()).Zone()
		t := wall.Add(-time.Duration(offset) * time.Second).In(r.Now.Location())
		if t.Format(Layout) == wall.Format(Layout) && (len(found) == 0 || !found[0].Equal(t)) {
			found = append(found, t)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return time.Time{}, fmt.Errorf("time %q does not exist: the clocks skip %s on %s", text, wall.Format("15:04"), d)
	}
	e := &AmbiguousError{Text: text}
	for i, how := range []string{"before the clocks change", "after the clocks change"} {
		e.Readings = append(e.Readings, Reading{How: how, Plain: found[i].Format(time.RFC3339)})
	}
	return time.Time{}, e
}
