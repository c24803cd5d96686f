// SPDX-License-Identifier: GPL-2.0-or-later

package slurmtime

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// clock is a time of day. shown asks for it in error messages even if it is
// midnight.
type clock struct {
	hour, minute, second int
	shown                bool
}

func (c clock) suffix() string {
	if c == (clock{}) {
		return ""
	}
	return fmt.Sprintf("T%02d:%02d:%02d", c.hour, c.minute, c.second)
}

var clockForm = regexp.MustCompile(`^(\d{1,2}):(\d{2})(?::(\d{2}))?\s*([ap]m)?$`)

// readClock reads a name of a time of day or HH:MM[:SS][AM|PM].
func readClock(s string) (clock, bool) {
	if c, ok := clocks[s]; ok {
		return c, true
	}
	m := clockForm.FindStringSubmatch(s)
	if m == nil {
		return clock{}, false
	}
	c := clock{hour: number(m[1]), minute: number(m[2]), second: number(m[3])}
	if m[4] != "" {
		if c.hour < 1 || c.hour > 12 {
			return clock{}, false
		}
		c.hour %= 12
		if m[4] == "pm" {
			c.hour += 12
		}
	}
	return c, c.hour < 24 && c.minute < 60 && c.second < 60
}

// day is a day of the calendar and how its text was read.
type day struct {
	year  int
	month time.Month
	day   int
	how   string
}

func (d day) String() string { return fmt.Sprintf("%04d-%02d-%02d", d.year, d.month, d.day) }

func dayOf(t time.Time, how string) day {
	y, m, d := t.Date()
	return day{y, m, d, how}
}

// exists tells whether the calendar has such a day.
func (d day) exists() bool {
	t := time.Date(d.year, d.month, d.day, 0, 0, 0, 0, time.UTC)
	return t.Year() == d.year && t.Month() == d.month && t.Day() == d.day
}

var (
	isoForm    = regexp.MustCompile(`^(\d{4})-(\d{1,2})-(\d{1,2})$`)
	markedForm = regexp.MustCompile(`^(\d{1,2})([/.])(\d{1,2})(?:([/.])(\d{4}|\d{2}))?$`)
	digitsForm = regexp.MustCompile(`^(\d{2})(\d{2})(\d{2})?$`)
)

// readDay is every way to read s as a day; without an error there is at least
// one. text is the whole input, for errors.
func (r Reader) readDay(text, s string) ([]day, error) {
	switch s {
	case "yesterday":
		return []day{dayOf(r.Now.AddDate(0, 0, -1), s)}, nil
	case "today":
		return []day{dayOf(r.Now, s)}, nil
	case "tomorrow":
		return []day{dayOf(r.Now.AddDate(0, 0, 1), s)}, nil
	}
	if m := isoForm.FindStringSubmatch(s); m != nil {
		d := day{number(m[1]), time.Month(number(m[2])), number(m[3]), "year-month-day"}
		return existing(text, []day{d})
	}
	if m := markedForm.FindStringSubmatch(s); m != nil && (m[4] == "" || m[4] == m[2]) {
		return r.readParts(text, m[1], m[3], m[5], m[2])
	}
	if m := digitsForm.FindStringSubmatch(s); m != nil {
		return r.readParts(text, m[1], m[2], m[3], "")
	}
	return nil, fmt.Errorf("time %q is not understood: write one as %s", text, Forms)
}

// readParts is every way to read two or three numbers as a day. Slurm reads
// month, day, year; others write the day first, or, without marks between
// them, the year.
func (r Reader) readParts(text, a, b, c, mark string) ([]day, error) {
	if c == "" {
		return r.withoutYear(text, a, b)
	}
	x, y, z := number(a), number(b), number(c)
	ways := []day{
		{century(z), time.Month(x), y, "month/day/year"},
		{century(z), time.Month(y), x, "day/month/year"},
	}
	if mark == "" {
		ways = append(ways, day{century(x), time.Month(y), z, "year/month/day"})
	}
	if !ways[0].exists() {
		return existing(text, ways[:1])
	}
	return existing(text, ways)
}

// withoutYear reads month and day. sacct takes the last such day, sbatch the
// next.
func (r Reader) withoutYear(text, a, b string) ([]day, error) {
	year := r.Now.Year()
	month, date := number(a), number(b)
	first := []day{{year, time.Month(month), date, "month/day"}, {year, time.Month(date), month, "day/month"}}
	if !first[0].exists() {
		return existing(text, first[:1])
	}
	days, err := existing(text, first)
	if err != nil || len(days) > 1 {
		return days, err
	}
	return existing(text, r.whichYear(days[0]))
}

// whichYear is d in this year and, if it could as well be meant, in the year
// before or after.
func (r Reader) whichYear(d day) []day {
	today := dayOf(r.Now, "")
	last, next := d, d
	switch {
	case d.String() > today.String():
		last.year--
	default:
		next.year++
	}
	last.how, next.how = "the last one", "the next one"
	if r.Past {
		return []day{last}
	}
	return []day{last, next}
}

// existing is the days of the calendar among ways, each once.
func existing(text string, ways []day) ([]day, error) {
	var out []day
	seen := map[string]bool{}
	for _, d := range ways {
		if d.exists() && !seen[d.String()] {
			seen[d.String()] = true
			out = append(out, d)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("time %q: there is no day %s (read as %s): write it as YYYY-MM-DD", text, ways[0], ways[0].how)
	}
	return out, nil
}

// century is a year given with two digits or four.
func century(year int) int {
	if year < 100 {
		return 2000 + year
	}
	return year
}

// number is the value of a run of at most four digits, 0 for an empty one.
func number(digits string) int {
	n, _ := strconv.Atoi(strings.TrimLeft(digits, "0")) // "" and "0" are 0
	return n
}
