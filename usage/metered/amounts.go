// SPDX-License-Identifier: GPL-2.0-or-later

package metered

// Amounts are what a GPU did while it was held. What nobody knows is nil, never
// 0; beside each amount stands for how many milliseconds it is known.
type Amounts struct {
	Busy      *int64 // utilisation times time, milliseconds
	BusyKnown int64

	Memory      *int64 // memory in use times time, MiB-milliseconds
	MemoryKnown int64
	MemoryMax   *int64 // MiB

	Energy      *int64 // millijoules
	EnergyKnown int64

	Process      *int64 // while the job had a process on the GPU, milliseconds
	ProcessKnown int64
}

// Utilisation is how much of the time that is known the GPU was at work, 0 to 1;
// false if nothing is known.
func (a *Amounts) Utilisation() (u float64, known bool) {
	if a.Busy == nil || a.BusyKnown <= 0 {
		return 0, false
	}
	return float64(*a.Busy) / float64(a.BusyKnown), true
}

// Watts is the mean power over the time that is known; false if nothing is.
func (a *Amounts) Watts() (w float64, known bool) {
	if a.Energy == nil || a.EnergyKnown <= 0 {
		return 0, false
	}
	return float64(*a.Energy) / float64(a.EnergyKnown), true
}

// Add adds what was done at another time, or by another GPU.
func (a *Amounts) Add(b *Amounts) {
	a.Busy, a.BusyKnown = sum(a.Busy, b.Busy), a.BusyKnown+b.BusyKnown
	a.Memory, a.MemoryKnown = sum(a.Memory, b.Memory), a.MemoryKnown+b.MemoryKnown
	a.Energy, a.EnergyKnown = sum(a.Energy, b.Energy), a.EnergyKnown+b.EnergyKnown
	a.Process, a.ProcessKnown = sum(a.Process, b.Process), a.ProcessKnown+b.ProcessKnown
	if b.MemoryMax != nil && (a.MemoryMax == nil || *a.MemoryMax < *b.MemoryMax) {
		a.MemoryMax = new(*b.MemoryMax)
	}
}

func sum(a, b *int64) *int64 {
	switch {
	case b == nil:
		return a
	case a == nil:
		return new(*b)
	}
	return new(*a + *b)
}

// scaled is the part of the amounts that falls into part of a time, as if they
// lay evenly in it, rounded down.
func (a *Amounts) scaled(part, whole int64) Amounts {
	if part >= whole {
		return *a
	}
	out := Amounts{MemoryMax: a.MemoryMax}
	out.Busy, out.BusyKnown = scale(a.Busy, a.BusyKnown, part, whole)
	out.Memory, out.MemoryKnown = scale(a.Memory, a.MemoryKnown, part, whole)
	out.Energy, out.EnergyKnown = scale(a.Energy, a.EnergyKnown, part, whole)
	out.Process, out.ProcessKnown = scale(a.Process, a.ProcessKnown, part, whole)
	if out.MemoryKnown == 0 {
		out.MemoryMax = nil
	}
	return out
}

func scale(amount *int64, known, part, whole int64) (*int64, int64) {
	known = mulDiv(known, part, whole)
	if amount == nil || known == 0 {
		return nil, 0
	}
	return new(mulDiv(*amount, part, whole)), known
}

// within makes sure that nothing is known of more time than there was, as where
// two incarnations have counted the same.
func (a *Amounts) within(held int64) {
	limit := func(amount *int64, known int64) (*int64, int64) {
		if known <= held {
			return amount, known
		}
		return scale(amount, known, held, known)
	}
	a.Busy, a.BusyKnown = limit(a.Busy, a.BusyKnown)
	a.Memory, a.MemoryKnown = limit(a.Memory, a.MemoryKnown)
	a.Energy, a.EnergyKnown = limit(a.Energy, a.EnergyKnown)
	a.Process, a.ProcessKnown = limit(a.Process, a.ProcessKnown)
}
