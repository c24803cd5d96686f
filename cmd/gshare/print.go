// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"gpubudget/fairshare"
	"gpubudget/internal/slurmtime"
	"gpubudget/report"
)

// print prints the selected rows of the reports.
func (p *program) print(reports []*report.Report, o options) error {
	if err := o.show.check(reports); err != nil {
		return err
	}
	chosen := make([][]report.Row, len(reports))
	for i, r := range reports {
		chosen[i] = o.show.rows(r)
	}
	if o.verbose {
		p.explain(o)
	}
	if o.layout == asJSON {
		return printJSON(p.stdout, reports, chosen)
	}
	var b strings.Builder
	for i, r := range reports {
		if i > 0 {
			b.WriteString("\n")
		}
		if o.named {
			fmt.Fprintf(&b, "CLUSTER: %s\n", r.Cluster)
		}
		writeTable(&b, r, chosen[i], o)
		if o.layout == wide && !o.noHeader {
			p.writeFooter(&b, r)
		}
	}
	_, err := io.WriteString(p.stdout, b.String())
	return err
}

// explain says what was asked for, as sshare -v does.
func (p *program) explain(o options) {
	list := func(title string, names []string) {
		if len(names) == 0 {
			names = []string{"all"}
		}
		fmt.Fprintf(p.stderr, "%s requested:\n\t: %s\n", title, strings.Join(names, "\n\t: "))
	}
	list("Users", o.show.users)
	list("Accounts", o.show.accounts)
}

func writeTable(b *strings.Builder, r *report.Report, rows []report.Row, o options) {
	if !o.noHeader {
		writeHeader(b, o)
	}
	for i := range rows {
		fields := make([]string, len(o.columns))
		for j, c := range o.columns {
			fields[j] = field(c, c.value(r, &rows[i]), o.layout)
		}
		writeLine(b, fields, o.layout)
	}
}

func writeHeader(b *strings.Builder, o options) {
	names, dashes := make([]string, len(o.columns)), make([]string, len(o.columns))
	for i, c := range o.columns {
		names[i], dashes[i] = c.name, strings.Repeat("-", abs(c.width))
		if o.layout == wide {
			// A name that is too long loses its end without a mark, as in sshare.
			names[i] = pad(c.name[:min(len(c.name), abs(c.width))], c.width)
		}
	}
	writeLine(b, names, o.layout)
	if o.layout == wide {
		writeLine(b, dashes, o.layout)
	}
}

// field is what a cell looks like in its column.
func field(c column, v cell, l layout) string {
	if l == wide {
		return pad(v.fit(abs(c.width)), c.width)
	}
	return strings.ReplaceAll(v.fit(0), "|", "/")
}

// pad brings a text to a width: it stands at the right, at the left if the
// width is negative.
func pad(s string, width int) string {
	blanks := strings.Repeat(" ", max(0, abs(width)-utf8.RuneCountInString(s)))
	if width < 0 {
		return s + blanks
	}
	return blanks + s
}

func writeLine(b *strings.Builder, fields []string, l layout) {
	switch l {
	case parsable:
		b.WriteString(strings.Join(fields, "|") + "|")
	case parsable2:
		b.WriteString(strings.Join(fields, "|"))
	default:
		b.WriteString(strings.TrimRight(strings.Join(fields, " "), " "))
	}
	b.WriteString("\n")
}

func abs(n int) int { return max(n, -n) }

// writeFooter tells what the figures cover and how old they are.
func (p *program) writeFooter(b *strings.Builder, r *report.Report) {
	fmt.Fprintf(b, "\nWindow:   %s to %s (%s), mode %s\n",
		p.time(r.Window.From.Time()), p.time(r.Window.Until.Time()), r.Policy.Value("lookback"), r.Policy.Mode)
	fmt.Fprintf(b, "Capacity: %s GPUs, %.2f GPU-hours in the window\n", gpus(r.Capacity), r.CapacityTime.Hours())
	switch {
	case r.SeenAt.IsZero():
		b.WriteString("Data:     none: no recorder has written for this cluster yet; is PriorityType=priority/gpubudget set?\n")
	case r.Stale:
		fmt.Fprintf(b, "Data:     OLD: the recorder was last seen %s ago (%s); running jobs count up to then. Is slurmctld up?\n",
			age(r.At.Sub(r.SeenAt)), p.time(r.SeenAt))
	default:
		fmt.Fprintf(b, "Data:     recorder seen %s ago%s, queue %s\n", age(r.At.Sub(r.SeenAt)), lag(r.Lag), p.queueAge(r))
	}
}

func (p *program) queueAge(r *report.Report) string {
	if r.QueueSeenAt.IsZero() {
		return "not seen yet"
	}
	return "seen " + age(r.At.Sub(r.QueueSeenAt)) + " ago"
}

// lag tells of records that had not been written; seconds are nothing unusual.
func lag(d time.Duration) string {
	if d < time.Minute {
		return ""
	}
	return ", " + age(d) + " behind with its records"
}

func (p *program) time(t time.Time) string { return slurmtime.Format(t, p.zone) }

// age is a duration in its largest units, to the second.
func age(d time.Duration) string {
	d = max(0, d.Truncate(time.Second))
	if d >= 48*time.Hour {
		return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	}
	return d.String()
}

// gpus is a number of GPUs, with a fraction only if there is one.
func gpus(m fairshare.MilliGPUs) string {
	return strconv.FormatFloat(float64(m)/float64(fairshare.GPU), 'f', -1, 64)
}
