// SPDX-License-Identifier: GPL-2.0-or-later

package slurmtime

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func berlin(t require.TestingT) *time.Location {
	loc, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	return loc
}

// reader reads times on Wednesday 2026-03-11 at 10:30:15 in Berlin.
func reader(t require.TestingT) Reader {
	return Reader{Now: time.Date(2026, 3, 11, 10, 30, 15, 0, berlin(t))}
}

func TestRead(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"now", "2026-03-11T10:30:15+01:00"},
		{"NOW", "2026-03-11T10:30:15+01:00"},
		{"now+90", "2026-03-11T10:31:45+01:00"},
		{"now+1hour", "2026-03-11T11:30:15+01:00"},
		{"now-2days", "2026-03-09T10:30:15+01:00"},
		{"now + 3 weeks", "2026-04-01T11:30:15+02:00"}, // 21 times 24 hours
		{"today", "2026-03-11T00:00:00+01:00"},
		{"tomorrow", "2026-03-12T00:00:00+01:00"},
		{"yesterday", "2026-03-10T00:00:00+01:00"},
		{"tomorrow-noon", "2026-03-12T12:00:00+01:00"},
		{"tomorrow teatime", "2026-03-12T16:00:00+01:00"},
		{"todayT08:00", "2026-03-11T08:00:00+01:00"},
		{"noon", "2026-03-11T12:00:00+01:00"},
		{"fika", "2026-03-11T15:00:00+01:00"},
		{"elevenses", "2026-03-11T11:00:00+01:00"},
		{"10:31", "2026-03-11T10:31:00+01:00"},
		{"4PM", ""},
		{"4:05 pm", "2026-03-11T16:05:00+01:00"},
		{"12:30:10pm", "2026-03-11T12:30:10+01:00"},
		{"2026-03-04", "2026-03-04T00:00:00+01:00"},
		{"2026-3-4", "2026-03-04T00:00:00+01:00"},
		{"2026-07-04T12:34", "2026-07-04T12:34:00+02:00"},
		{"2026-07-04 12:34:56", "2026-07-04T12:34:56+02:00"},
		{"2026-07-04T12:34:56Z", "2026-07-04T14:34:56+02:00"},
		{"2026-07-04T12:34:56+05:00", "2026-07-04T09:34:56+02:00"},
		{"03/25/26", "2026-03-25T00:00:00+01:00"},
		{"3/25/2026", "2026-03-25T00:00:00+01:00"},
		{"03.25.26-08:00", "2026-03-25T08:00:00+01:00"},
		{"03/03/26", "2026-03-03T00:00:00+01:00"}, // both ways the same day
		{"032526", "2026-03-25T00:00:00+01:00"},
		{"uts1700000000", "2023-11-14T23:13:20+01:00"},
	} {
		t.Run(tc.text, func(t *testing.T) {
			got, err := reader(t).Read(tc.text)
			if tc.want == "" {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, got.Format(time.RFC3339))
		})
	}
}

func TestReadInThePast(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"08:00", "2026-03-11T08:00:00+01:00"},
		{"midnight", "2026-03-11T00:00:00+01:00"},
		{"01/25", "2026-01-25T00:00:00+01:00"},
		{"12/25", "2025-12-25T00:00:00+01:00"},
		{"1225", "2025-12-25T00:00:00+01:00"},
		{"3/11", ""}, // or the 3rd of November
	} {
		t.Run(tc.text, func(t *testing.T) {
			r := reader(t)
			r.Past = true
			got, err := r.Read(tc.text)
			if tc.want == "" {
				require.Error(t, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.want, got.Format(time.RFC3339))
		})
	}
}

func TestReadRefuses(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"03/04/26", `time "03/04/26" can be read in 2 ways, 2026-03-04 (month/day/year) or 2026-04-03 (day/month/year): write 2026-03-04 or 2026-04-03`},
		{"03.04.26-08:00", `time "03.04.26-08:00" can be read in 2 ways, 2026-03-04T08:00:00 (month/day/year) or 2026-04-03T08:00:00 (day/month/year): write 2026-03-04T08:00:00 or 2026-04-03T08:00:00`},
		{"010203", `time "010203" can be read in 3 ways, 2003-01-02 (month/day/year) or 2003-02-01 (day/month/year) or 2001-02-03 (year/month/day): write 2003-01-02 or 2003-02-01 or 2001-02-03`},
		{"08:00", `time "08:00" can be read in 2 ways, 2026-03-11T08:00:00 (today) or 2026-03-12T08:00:00 (tomorrow): write 2026-03-11T08:00:00 or 2026-03-12T08:00:00`},
		{"midnight", `time "midnight" can be read in 2 ways, 2026-03-11T00:00:00 (today) or 2026-03-12T00:00:00 (tomorrow): write 2026-03-11T00:00:00 or 2026-03-12T00:00:00`},
		{"12/25", `time "12/25" can be read in 2 ways, 2025-12-25 (the last one) or 2026-12-25 (the next one): write 2025-12-25 or 2026-12-25`},
		{"2026-10-25T02:30", `time "2026-10-25T02:30" can be read in 2 ways, 2026-10-25T02:30:00+02:00 (before the clocks change) or 2026-10-25T02:30:00+01:00 (after the clocks change): write 2026-10-25T02:30:00+02:00 or 2026-10-25T02:30:00+01:00`},
		{"2026-03-29T02:30", `time "2026-03-29T02:30" does not exist: the clocks skip 02:30 on 2026-03-29`},
		{"25/03/26", `time "25/03/26": there is no day 2026-25-03 (read as month/day/year): write it as YYYY-MM-DD`},
		{"2026-02-30", `time "2026-02-30": there is no day 2026-02-30 (read as year-month-day): write it as YYYY-MM-DD`},
		{"2026-02-30T12:00", `time "2026-02-30T12:00": there is no day 2026-02-30 (read as year-month-day): write it as YYYY-MM-DD`},
		{"02/29/26", `time "02/29/26": there is no day 2026-02-29 (read as month/day/year): write it as YYYY-MM-DD`},
		{"2026-03-04T25:00", `time "2026-03-04T25:00" is not understood: write one as ` + Forms},
		{"next week", `time "next week" is not understood: write one as ` + Forms},
		{"now+2months", `time "now+2months": after now comes + or -, a count and seconds, minutes, hours, days or weeks, as in now+2days`},
		{"now+", `time "now+": after now comes + or -, a count and seconds, minutes, hours, days or weeks, as in now+2days`},
		{"now+99999999999999999999", `time "now+99999999999999999999": after now comes + or -, a count and seconds, minutes, hours, days or weeks, as in now+2days`},
		{"now+9999999days", `time "now+9999999days" is more than a century away`},
		{"uts-5", `time "uts-5": uts must be followed by seconds since 1970`},
		{" ", `time is empty: write one as ` + Forms},
	} {
		t.Run(tc.text, func(t *testing.T) {
			_, err := reader(t).Read(tc.text)
			require.EqualError(t, err, tc.want)
		})
	}
}

// What an error proposes to write instead is itself understood, in one way.
func TestEveryReadingProposedCanBeRead(t *testing.T) {
	r := reader(t)
	for _, text := range []string{"03/04/26", "010203", "08:00", "12/25", "midnight", "2026-10-25T02:30"} {
		_, err := r.Read(text)
		var ambiguous *AmbiguousError
		require.ErrorAs(t, err, &ambiguous)
		for _, reading := range ambiguous.Readings {
			_, err := r.Read(reading.Plain)
			require.NoError(t, err, "%q", reading.Plain)
		}
	}
}

// A time as it is printed reads back as itself, unless the clock shows it
// twice that day.
func TestFormatReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := reader(t)
		want := time.Unix(rapid.Int64Range(946684800, 4102444800).Draw(t, "unix"), 0)
		got, err := r.Read(Format(want, r.Now.Location()))
		var ambiguous *AmbiguousError
		if err != nil {
			require.ErrorAs(t, err, &ambiguous)
			return
		}
		require.True(t, want.Equal(got))
	})
}

func FuzzRead(f *testing.F) {
	for _, s := range []string{"now+1day", "03/04/26", "2026-03-04T12:00", "tomorrow noon", "1:2", "uts1", "T", "--", "now-"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r := reader(t)
		got, err := r.Read(s)
		require.True(t, err == nil || got.IsZero())
	})
}
