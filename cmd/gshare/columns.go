// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpubudget/fairshare"
	"gpubudget/internal/nearest"
	"gpubudget/report"
)

// column is a field of the table.
type column struct {
	name  string
	width int // negative: the text stands at the left
	about string
	value func(r *report.Report, row *report.Row) cell
}

// cell is a text, or a number with its unit that gets fewer decimals where it
// is too wide.
type cell struct {
	text     string
	number   float64
	decimals int
	unit     string
	isNumber bool
}

// columns are all fields there are, by name. docs/gshare.md gives each one's
// unit and formula.
var columns = []column{
	{"Account", -20, "account, indented by its level in the tree", func(_ *report.Report, row *report.Row) cell {
		return text(strings.Repeat(" ", row.Depth) + orNone(row.Account))
	}},
	{"BusyH", 11, "GPU-hours at work, as far as meters know", func(_ *report.Report, row *report.Row) cell {
		busy := row.Metered.Amounts.Busy
		if busy == nil {
			return unknown
		}
		return hours(fairshare.GPUMillis(*busy))
	}},
	{"Cluster", 10, "cluster", func(r *report.Report, _ *report.Row) cell { return text(r.Cluster) }},
	{"Delivered%", 10, "delivered of what was owed, over the window", func(_ *report.Report, row *report.Row) cell {
		percent, ok := row.Percent()
		return numberIf(ok, percent, 2, "")
	}},
	{"DeliveredH", 11, "GPU-hours delivered: charged in the window", func(_ *report.Report, row *report.Row) cell {
		return hours(row.Delivered)
	}},
	{"EntitledH", 11, "GPU-hours due in the window", func(_ *report.Report, row *report.Row) cell {
		return hoursIf(row.Place != report.Unbudgeted, row.Entitled)
	}},
	{"FairShare", 10, "a user's fair-share factor, (0,1]", func(_ *report.Report, row *report.Row) cell {
		return numberIf(row.IsUser() && row.Factor > 0, row.Factor, 6, "")
	}},
	{"LevelFS", 10, "share by usage, compared to siblings; above 1: under-served", func(_ *report.Report, row *report.Row) cell {
		return numberIf(hasLevelFS(row), row.LevelFS, 6, "")
	}},
	{"Meter%", 7, "metered of what was used in the window", func(_ *report.Report, row *report.Row) cell {
		percent, ok := row.Metered.Percent()
		if !ok {
			return unknown
		}
		return numberIf(true, percent, 2, "")
	}},
	{"NoBudgetH", 11, "of UnallocH, used by jobs whose account had no budget or nothing left", func(_ *report.Report, row *report.Row) cell {
		return hours(row.NoBudget)
	}},
	{"NoMinH", 11, "of UnallocH, used by jobs without a minimum runtime", func(_ *report.Report, row *report.Row) cell {
		return hours(row.NoMinRuntime)
	}},
	{"OwedH", 11, "GPU-hours owed: what was due and asked for", func(_ *report.Report, row *report.Row) cell {
		return hoursIf(!row.IsUser() && row.Place != report.Unbudgeted, row.Owed)
	}},
	{"Partition", 12, "always empty: budgets hold for all partitions", func(*report.Report, *report.Row) cell { return cell{} }},
	{"Pending", 8, "GPUs that jobs wait for which can run", func(_ *report.Report, row *report.Row) cell {
		return text(strconv.FormatInt(row.PendingGPUs, 10))
	}},
	{"Rank", 5, "1 is served first; accounts among accounts, users among users", func(_ *report.Report, row *report.Row) cell {
		if row.Rank == 0 {
			return cell{}
		}
		return text(strconv.Itoa(row.Rank))
	}},
	{"Ratio", 8, "used by entitled", func(_ *report.Report, row *report.Row) cell {
		ratio, ok := row.Ratio()
		return numberIf(ok, ratio, 2, "")
	}},
	{"Running", 8, "GPUs that jobs run on", func(_ *report.Report, row *report.Row) cell {
		return text(strconv.FormatInt(row.RunningGPUs, 10))
	}},
	{"Share", 9, "share of the account above", func(_ *report.Report, row *report.Row) cell {
		return numberIf(row.Place == report.InTree, percentOf(row.Share), 2, "%")
	}},
	{"ShareOfCluster", 14, "share of the whole cluster", func(_ *report.Report, row *report.Row) cell {
		return numberIf(row.Place == report.InTree, 100*row.ShareOfCluster, 2, "%")
	}},
	{"State", 10, "unfunded, guest, closed or unbudgeted; else empty", func(_ *report.Report, row *report.Row) cell {
		return text(state(row))
	}},
	{"Strict%", 8, "as Delivered%, but no bucket makes up for another", func(_ *report.Report, row *report.Row) cell {
		percent, ok := row.StrictPercent()
		return numberIf(ok, percent, 2, "")
	}},
	{"UnallocH", 11, "GPU-hours used in the window and not charged", func(_ *report.Report, row *report.Row) cell {
		return hours(row.Unallocated)
	}},
	{"UsedH", 11, "GPU-hours charged in the window", func(_ *report.Report, row *report.Row) cell { return hours(row.Used) }},
	{"User", 10, "user; empty in an account's own row", func(_ *report.Report, row *report.Row) cell { return text(row.User) }},
	{"Util%", 7, "mean utilisation while it is known", func(_ *report.Report, row *report.Row) cell {
		utilisation, known := row.Metered.Amounts.Utilisation()
		if !known {
			return unknown
		}
		return numberIf(true, 100*utilisation, 2, "")
	}},
}

var (
	usualColumns = []string{"Account", "User", "Share", "EntitledH", "UsedH", "Ratio", "Delivered%", "FairShare", "Rank", "Pending", "Running"}
	longColumns  = []string{
		"Account", "User", "Share", "ShareOfCluster", "EntitledH", "UsedH", "Ratio", "OwedH", "DeliveredH", "Delivered%", "Strict%",
		"UnallocH", "NoMinH", "NoBudgetH", "BusyH", "Util%", "Meter%", "LevelFS", "FairShare", "Rank", "Pending", "Running", "State",
	}
)

// meteredColumns are made from what meters saw, which is read only if one of them
// is to be shown.
var meteredColumns = []string{"BusyH", "Util%", "Meter%"}

// whyColumns are made from the runs that are not charged, likewise.
var whyColumns = []string{"NoMinH", "NoBudgetH"}

// unknown stands for what no meter knows: that is not 0.
var unknown = text("-")

func text(s string) cell { return cell{text: s} }

// orNone is an account's name, also for jobs that had none.
func orNone(name string) string {
	if name == "" {
		return "(none)"
	}
	return name
}

// numberIf is a number, or nothing.
func numberIf(ok bool, number float64, decimals int, unit string) cell {
	if !ok {
		return cell{}
	}
	return cell{number: number, decimals: decimals, unit: unit, isNumber: true}
}

func hours(g fairshare.GPUMillis) cell { return hoursIf(true, g) }

func hoursIf(ok bool, g fairshare.GPUMillis) cell { return numberIf(ok, g.Hours(), 2, "") }

// percentOf is a share in percent.
func percentOf(s fairshare.Share) float64 { return 100 * float64(s) / float64(fairshare.Whole) }

// hasLevelFS tells whether the row has siblings to be compared to.
func hasLevelFS(row *report.Row) bool { return row.Place == report.InTree && row.Depth > 0 }

// state is what is out of the ordinary about a row.
func state(row *report.Row) string {
	switch {
	case row.Place == report.Guest:
		return "guest"
	case row.Place == report.Closed:
		return "closed"
	case row.Place == report.Unbudgeted:
		return "unbudgeted"
	case !row.IsUser() && !row.Funded:
		return "unfunded"
	}
	return ""
}

// fit is the cell's text for a column of that width, 0 for any. A text that is
// too long is cut and ends in +; of a number decimals are left out, but never
// digits before the point.
func (c cell) fit(width int) string {
	if !c.isNumber {
		return cut(c.text, width)
	}
	if math.IsInf(c.number, 0) {
		return "inf"
	}
	for decimals := c.decimals; ; decimals-- {
		s := strconv.FormatFloat(c.number, 'f', decimals, 64) + c.unit
		if width == 0 || len(s) <= width || decimals == 0 {
			return s
		}
	}
}

// cut shortens a text to a width: first by what it is indented, so that names
// far down the tree can be read, and then at its end.
func cut(s string, width int) string {
	runes := []rune(s)
	for width > 0 && len(runes) > width && runes[0] == ' ' {
		runes = runes[1:]
	}
	if width > 0 && len(runes) > width {
		return string(runes[:width-1]) + "+"
	}
	return string(runes)
}

// chooseColumns are the columns that --format asks for, else the usual ones or
// with long set all; partition adds that column after User.
func chooseColumns(format []string, long, partition bool) ([]column, error) {
	names := usualColumns
	if long {
		names = longColumns
	}
	if partition {
		names = slices.Insert(slices.Clone(names), 2, "Partition")
	}
	if given := words(format); len(given) > 0 {
		names = given
	}
	var chosen []column
	for _, name := range names {
		c, err := findColumn(name)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, c)
	}
	return chosen, nil
}

// findColumn reads a field of --format: a name or its beginning, in any case,
// and maybe %WIDTH. Of a name that ends in % the % may be left out.
func findColumn(field string) (column, error) {
	name, width, err := splitWidth(field)
	if err != nil {
		return column{}, err
	}
	bare := func(s string) string { return strings.ToLower(strings.TrimSuffix(s, "%")) }
	var begun []column
	for _, c := range columns {
		switch {
		case strings.EqualFold(c.name, name), bare(c.name) == bare(name):
			return c.widened(width), nil
		case strings.HasPrefix(strings.ToLower(c.name), strings.ToLower(name)):
			begun = append(begun, c)
		}
	}
	switch {
	case len(begun) == 1:
		return begun[0].widened(width), nil
	case len(begun) > 1:
		return column{}, usagef("field %q could be %s", name, strings.Join(namesOf(begun), ", "))
	}
	if near := nearest.Word(name, namesOf(columns)); near != "" {
		return column{}, usagef("invalid field requested: %q: did you mean %s?", name, near)
	}
	return column{}, usagef("invalid field requested: %q: list the fields with: gshare -e", name)
}

// splitWidth takes %WIDTH off a field; the width is 0 if there is none.
func splitWidth(field string) (name string, width int, err error) {
	i := strings.LastIndex(field, "%")
	if i < 0 || i == len(field)-1 {
		return field, 0, nil
	}
	width, err = strconv.Atoi(field[i+1:])
	if err != nil || width == 0 || width > 1000 || width < -1000 {
		return "", 0, usagef("field %q: the width after %% must be a number from 1 to 1000, or negative to stand at the left", field)
	}
	return field[:i], width, nil
}

func (c column) widened(width int) column {
	if width != 0 {
		c.width = width
	}
	return c
}

func namesOf(columns []column) []string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	return names
}

// printFields lists all fields as sshare does, four to a line.
func (p *program) printFields() error {
	var b strings.Builder
	for i, c := range columns {
		switch {
		case i%4 != 0:
			b.WriteString(" ")
		case i > 0:
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%-17s", c.name)
	}
	b.WriteString("\n")
	_, err := fmt.Fprint(p.stdout, b.String())
	return err
}
