// SPDX-License-Identifier: GPL-2.0-or-later

// Package output prints tables as sacctmgr does, and JSON.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Style is how a table is laid out.
type Style int

const (
	// Wide aligns columns below a header and a line of dashes.
	Wide Style = iota
	// Parsable ends every field with a |.
	Parsable
	// Parsable2 puts a | between fields.
	Parsable2
)

// Column is one column of a table.
type Column struct {
	Name  string
	Right bool // numbers stand at the right
}

// Table is what a listing prints.
type Table struct {
	Columns []Column
	Rows    [][]string // each as long as Columns
}

// Add appends a row.
func (t *Table) Add(fields ...string) { t.Rows = append(t.Rows, fields) }

// Write prints the table, with the columns' names above unless noHeader is
// set.
func (t *Table) Write(w io.Writer, style Style, noHeader bool) error {
	var lines []string
	if style == Wide {
		lines = t.wide(noHeader)
	} else {
		lines = t.parsable(style, noHeader)
	}
	for _, line := range lines {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return fmt.Errorf("write table: %w", err)
		}
	}
	return nil
}

// plainRows is the names, unless left out, and the rows, each of which stays
// one line whatever its text holds. White space at the beginning is kept: it
// is how a tree shows its levels.
func (t *Table) plainRows(noHeader bool) [][]string {
	var rows [][]string
	if !noHeader {
		names := make([]string, len(t.Columns))
		for i, c := range t.Columns {
			names[i] = c.Name
		}
		rows = append(rows, names)
	}
	oneLine := strings.NewReplacer("\r\n", " ", "\n", " ", "\r", " ", "\t", " ")
	for _, row := range t.Rows {
		plain := make([]string, len(row))
		for i, field := range row {
			plain[i] = oneLine.Replace(field)
		}
		rows = append(rows, plain)
	}
	return rows
}

func (t *Table) wide(noHeader bool) []string {
	rows := t.plainRows(noHeader)
	widths := make([]int, len(t.Columns))
	for _, row := range rows {
		for i, field := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(field))
		}
	}
	lines := make([]string, 0, len(rows)+1)
	for i, row := range rows {
		lines = append(lines, t.align(row, widths))
		if i == 0 && !noHeader {
			lines = append(lines, dashes(widths))
		}
	}
	return lines
}

// align is one row with its fields padded; nothing follows the last one.
func (t *Table) align(row []string, widths []int) string {
	padded := make([]string, len(row))
	for i, field := range row {
		pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(field))
		if t.Columns[i].Right {
			padded[i] = pad + field
		} else {
			padded[i] = field + pad
		}
	}
	return strings.TrimRight(strings.Join(padded, " "), " ")
}

func dashes(widths []int) string {
	line := make([]string, len(widths))
	for i, w := range widths {
		line[i] = strings.Repeat("-", w)
	}
	return strings.Join(line, " ")
}

func (t *Table) parsable(style Style, noHeader bool) []string {
	rows := t.plainRows(noHeader)
	lines := make([]string, len(rows))
	for i, row := range rows {
		for j, field := range row {
			row[j] = strings.ReplaceAll(field, "|", "/")
		}
		lines[i] = strings.Join(row, "|")
		if style == Parsable {
			lines[i] += "|"
		}
	}
	return lines
}

// JSON prints v, indented, with a newline at its end.
func JSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}
