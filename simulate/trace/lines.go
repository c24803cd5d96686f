// SPDX-License-Identifier: GPL-2.0-or-later

package trace

import (
	"bufio"
	"encoding/csv"
	"errors"
	"io"
	"strings"
)

// longestLine is more than any row of a trace has.
const longestLine = 1 << 20

func newLines(in io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 1<<16), longestLine)
	return lines
}

// cut is a line of a table: its fields, and the columns at which they begin. A row
// is one line: a quote that nobody closes spoils its own line and no other.
type cut struct {
	fields []string
	at     []int
}

// line cuts a line. Fields between commas may be quoted as in CSV; sacct quotes
// nothing.
func (c *cut) line(line string, comma rune) error {
	if comma == ',' && strings.Contains(line, `"`) {
		return c.quoted(line)
	}
	c.fields, c.at = c.fields[:0], c.at[:0]
	begin := 0
	for i, letter := range line {
		if letter == comma {
			c.fields, c.at = append(c.fields, line[begin:i]), append(c.at, begin+1)
			begin = i + 1
		}
	}
	c.fields, c.at = append(c.fields, line[begin:]), append(c.at, begin+1)
	return nil
}

// quoted cuts a line with quotes; the error is a csv.ParseError.
func (c *cut) quoted(line string) error {
	r := csv.NewReader(strings.NewReader(line))
	fields, err := r.Read()
	if wrong, ok := errors.AsType[*csv.ParseError](err); ok && wrong.Column > len(line) {
		wrong.Column = strings.LastIndexByte(line, '"') + 1 // it was never closed: where it stands tells more than where the line ends
	}
	if err != nil {
		return err
	}
	c.fields, c.at = fields, c.at[:0]
	for i := range fields {
		_, column := r.FieldPos(i)
		c.at = append(c.at, column)
	}
	return nil
}
