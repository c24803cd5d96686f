// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"math"
	"slices"
)

// Table is the priorities of one pass as plain numbers, for who has to work
// them out without calling us: the C half of the plugin, in slurmctld. It says
// what Strict or Additive would have said, for any job whatever:
//
//	Strict    priority = Row.Fairshare + QOS digit - nice digit + rest
//	Additive  priority = Row.Fairshare + the other weighted factors - nice
//
// A job that asks to be unallocated has 0 in place of Row.Fairshare; with Strict
// it goes by Slot.Unallocated, unless that is where its account stands anyway. With
// Additive it has at most Band, and jobs of a Row that isn't 0 have more.
//
// where the digits are Amounts of Rises, and the rest is cut from the weighted
// factors, scaled. A property test holds the C beside the Go.
type Table struct {
	Packed  bool    // as Strict has it, not as Additive
	Weights Weights // in force: without any, Strict goes by age
	Size    ClusterSize

	// Of a Strict.
	RestSteps int64   // of the rest; its digit is below this
	RestScale float64 // steps for each point of the weighted sum
	SiteLow   int64   // the site factor that counts nothing
	QOS       []Rise  // the QOS digit, before Slot.QOSUnit
	Nice      []Rise  // the nice digits of all slots
	Slots     []Slot

	Band float64 // of an Additive by a ranking, else 0

	// Unknown is the row of a user of an account that nobody knows.
	Unknown Row
}

// Rise is a part of a function that goes up by steps: values from From to the
// next one's are worth Amount. A value below the first is worth what the first
// is.
type Rise struct{ From, Amount int64 }

// Slot is what the accounts that share a place have in common.
type Slot struct {
	QOSUnit   int64  // that a step of QOS is worth
	NiceFirst uint32 // its steps of nice are Nice[NiceFirst:NiceFirst+NiceCount]
	NiceCount uint32
	// Of jobs of these accounts that ask to be unallocated: the slot, and what is
	// added to the QOS digit.
	Unallocated     uint32
	UnallocatedBase int64
}

// Row is where a user of an account stands.
type Row struct {
	Fairshare float64 // the column of that name
	Slot      uint32  // of Table.Slots; 0 if there are none
}

// Table is s as numbers.
func (s *Strict) Table() *Table {
	t := &Table{
		Packed: true, Weights: s.rest.weights, Size: s.rest.size,
		RestSteps: s.rest.steps, RestScale: s.rest.scale, SiteLow: s.rest.siteLow,
		QOS: s.qos.table(func(step int64) int64 { return step }),
	}
	for _, sl := range s.order {
		nice := sl.nice.table(func(step int64) int64 { return (step - sl.zero) * sl.niceUnit })
		t.Slots = append(t.Slots, Slot{
			QOSUnit: sl.qosUnit, NiceFirst: Length(t.Nice), NiceCount: Length(nice),
			Unallocated: sl.unallocated.index, UnallocatedBase: sl.unallocated.base,
		})
		t.Nice = append(t.Nice, nice...)
	}
	t.Unknown = s.row(s.nowhere, 0)
	return t
}

// Length is the length of a part of a Table. None comes near 2^32: a table is in
// memory, and each of its steps is of a value that jobs have.
func Length[T any](part []T) uint32 { return uint32(min(len(part), math.MaxUint32)) }

// Row is where a user of an account stands; of an account that isn't known,
// Table.Unknown.
func (s *Strict) Row(account, user string) Row { return s.row(s.find(account, user)) }

// RowAt is Row for who knows the seat.
func (s *Strict) RowAt(seat Seat) Row { return s.row(s.at(seat)) }

func (s *Strict) row(sl *slot, user int64) Row {
	return Row{Fairshare: float64(sl.fairshare(user, &s.rest)), Slot: sl.index}
}

// table is l as steps, of which worth makes amounts.
func (l *levels) table(worth func(step int64) int64) []Rise {
	steps := []Rise{{math.MinInt64, worth(l.step(math.MinInt64))}}
	add := func(from int64) {
		if amount := worth(l.step(from)); amount != steps[len(steps)-1].Amount {
			steps = append(steps, Rise{from, amount})
		}
	}
	for _, value := range l.values {
		add(value)
		if value < math.MaxInt64 {
			add(value + 1)
		}
	}
	return slices.Clip(steps)
}

// Table is p as numbers.
func (p *Additive) Table() *Table {
	return &Table{Weights: p.weights, Size: p.size, Band: p.band}
}

// Row is where a user of an account stands; of an account that isn't known,
// Table.Unknown.
func (p *Additive) Row(account, user string) Row {
	if p.ranking == nil {
		return Row{}
	}
	return p.RowAt(p.ranking.Seat(account, user))
}

// RowAt is Row for who knows the seat.
func (p *Additive) RowAt(seat Seat) Row { return Row{Fairshare: p.columnAt(seat)} }

// RowOf is where a user stands whose fair-share factor is known, without a ranking.
func (p *Additive) RowOf(factor float64) Row {
	return Row{Fairshare: float64(p.weights.Fairshare) * finite(factor)}
}
