// SPDX-License-Identifier: GPL-2.0-or-later

package usage

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"gpubudget/fairshare"
)

// A History in a file is a row of numbers, of varying length as encoding/binary
// has them: since and at; the owners, each an account and a user; the buckets,
// each with its beginning and end, its owners by how far each is from the one
// before, their amounts, and the runs if it is cut. Texts come behind their
// length.

// Encode writes the history, but for what of the database is in it.
func (h *History) Encode(to io.Writer) error {
	out := bufio.NewWriterSize(to, 1<<16)
	text := binary.AppendVarint(nil, int64(h.since))
	text = binary.AppendVarint(text, int64(h.at))
	text = binary.AppendUvarint(text, uint64(len(h.owners)))
	for _, o := range h.owners {
		text = appendText(appendText(text, o.Account), o.User)
	}
	text = binary.AppendUvarint(text, uint64(len(h.spans)))
	for i := range h.spans {
		if _, err := out.Write(text); err != nil {
			return err
		}
		text = h.spans[i].append(text[:0])
	}
	if _, err := out.Write(text); err != nil {
		return err
	}
	return out.Flush()
}

func appendText(to []byte, s string) []byte {
	return append(binary.AppendUvarint(to, uint64(len(s))), s...)
}

func (s *span) append(to []byte) []byte {
	to = binary.AppendVarint(to, int64(s.From))
	to = binary.AppendVarint(to, int64(s.Until))
	to = binary.AppendUvarint(to, uint64(len(s.owners)))
	last := uint32(0)
	for i, owner := range s.owners {
		to = binary.AppendUvarint(to, uint64(owner-last))
		to = binary.AppendVarint(to, int64(s.amounts[i]))
		last = owner
	}
	if !s.cut {
		return binary.AppendUvarint(to, 0)
	}
	to = binary.AppendUvarint(to, uint64(len(s.pieces))+1)
	for i := range s.pieces {
		p := &s.pieces[i]
		to = binary.AppendUvarint(to, uint64(p.owner))
		to = binary.AppendVarint(to, int64(p.run.From))
		to = binary.AppendVarint(to, int64(p.run.Until))
		to = binary.AppendVarint(to, int64(p.amount))
	}
	return to
}

// errNoHistory: the bytes are none that Encode wrote.
var errNoHistory = errors.New("it is no history of usage")

// DecodeHistory reads a history. It was not read from any database that the next
// one could go on with.
func DecodeHistory(from io.Reader) (*History, error) {
	in, ok := from.(byteReader)
	if !ok {
		in = bufio.NewReader(from)
	}
	d := &decoder{in: in}
	h := &History{since: fairshare.Instant(d.number()), at: fairshare.Instant(d.number())}
	for range d.length() {
		h.owners = append(h.owners, Owner{d.text(), d.text()})
		if d.err != nil {
			break
		}
	}
	for range d.length() {
		h.spans = append(h.spans, d.span(len(h.owners)))
		if n := len(h.spans); d.err != nil || n > 1 && comparePeriods(h.spans[n-2].Period, h.spans[n-1].Period) >= 0 {
			d.fail(errNoHistory)
			break
		}
	}
	if d.err != nil {
		return nil, fmt.Errorf("decode history: %w", d.err)
	}
	return h, nil
}

type byteReader interface {
	io.Reader
	io.ByteReader
}

// decoder reads numbers until something is wrong; then all are 0.
type decoder struct {
	in  byteReader
	err error
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

func (d *decoder) number() int64 {
	if d.err != nil {
		return 0
	}
	n, err := binary.ReadVarint(d.in)
	if err != nil {
		d.fail(err)
		return 0
	}
	return n
}

// most is more than any history has of anything, and less than memory.
const most = 1 << 28

// length is a number that something has of others.
func (d *decoder) length() int {
	if d.err != nil {
		return 0
	}
	n, err := binary.ReadUvarint(d.in)
	if err == nil && n > most {
		err = errNoHistory
	}
	if err != nil {
		d.fail(err)
		return 0
	}
	return int(n) //nolint:gosec // see above
}

func (d *decoder) text() string {
	n := d.length()
	if n > 1<<16 {
		d.fail(errNoHistory)
		return ""
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(d.in, text); err != nil {
		d.fail(err)
		return ""
	}
	return string(text)
}

func (d *decoder) span(owners int) span {
	s := span{Period: d.period()}
	owner := 0
	for i := range d.length() {
		step := d.length()
		owner += step
		if i > 0 && step == 0 || owner >= owners {
			d.fail(errNoHistory)
			break
		}
		s.owners = append(s.owners, uint32(owner)) //nolint:gosec // fewer than most
		s.amounts = append(s.amounts, fairshare.GPUMillis(d.number()))
	}
	pieces := d.length()
	s.cut = pieces > 0
	for range pieces - 1 {
		owner := d.length()
		p := piece{uint32(owner), d.period(), fairshare.GPUMillis(d.number())} //nolint:gosec // as above
		if owner >= owners || d.err != nil {
			d.fail(errNoHistory)
			break
		}
		s.pieces = append(s.pieces, p)
	}
	return s
}

// period is one that is not empty.
func (d *decoder) period() fairshare.Period {
	p := fairshare.Period{From: fairshare.Instant(d.number()), Until: fairshare.Instant(d.number())}
	if p.Empty() {
		d.fail(errNoHistory)
	}
	return p
}
