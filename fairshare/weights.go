// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Weight is what one GPU counts for, in thousandths of a GPU of weight 1.
type Weight int64

// Weights of note.
const (
	// OneGPU is the weight of a GPU of which nothing is said.
	OneGPU Weight = 1000
	// MaxWeight is the greatest there is.
	MaxWeight Weight = 1_000_000
	// DefaultWeight takes back what was said of a type: it counts as if nothing
	// was.
	DefaultWeight Weight = -1
)

// OtherTypes stands for all types of GPUs that nothing else is said of.
const OtherTypes = "*"

// Millionths is a whole, where parts of GPUs and what they count for are in
// millionths.
const Millionths = 1_000_000

// GPUWeights are what GPUs of each type count for over time: by their type in lower
// case, as Slurm names it in Gres, or OtherTypes. They are not changed once they
// are in use. PostgreSQL works them out alike, in gpubudget.weight_at.
type GPUWeights map[string][]Step[Weight]

// Holding is GPUs, and parts of GPUs in millionths beside whole ones, of a type.
// Of several types it lists how many of each, as in "a100:2,h100:0.5": then only
// that counts.
type Holding struct {
	Type        string
	GPUs, Parts int64
}

// Rate is what a holding counts for from an instant on, in millionths of a GPU of
// weight 1.
type Rate struct {
	Since      Instant
	Millionths int64
}

// held is a part of a holding that is of one type, in millionths.
type held struct {
	name   string
	amount int64
}

// Millionths is how much of GPUs it is, whatever they count for.
func (h Holding) Millionths() int64 { return h.GPUs*Millionths + h.Parts }

// Split takes a holding apart into one for each type, in the order of the list.
func (h Holding) Split() []Holding {
	parts := h.parts()
	all := make([]Holding, len(parts))
	for i, p := range parts {
		all[i] = Holding{Type: p.name, GPUs: p.amount / Millionths, Parts: p.amount % Millionths}
	}
	return all
}

// parts takes a holding apart by type. What can't be read of a list counts as none.
func (h Holding) parts() []held {
	if !strings.Contains(h.Type, ":") {
		return []held{{strings.ToLower(h.Type), h.Millionths()}}
	}
	var all []held
	for item := range strings.SplitSeq(h.Type, ",") {
		name, count, _ := strings.Cut(item, ":")
		all = append(all, held{strings.ToLower(name), decimal(count)})
	}
	return all
}

// decimal is a number such as 2 or 0.125, in millionths; 0 if it is none.
func decimal(text string) int64 {
	whole, rest, _ := strings.Cut(text, ".")
	if len(rest) > 6 {
		rest = rest[:6]
	}
	n, err := strconv.ParseInt(whole+rest+strings.Repeat("0", 6-len(rest)), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// migProfile is the MIG profile at the end of a type: the model before it, its
// compute slices and its memory in GB.
type migProfile struct {
	model, profile string
	slices, memory int64
}

// profileOf finds the MIG profile at the end of a type in lower case, as in
// a100_1g.10gb or 1g.10gb+me.
func profileOf(name string) (p migProfile, ok bool) {
	dot := strings.LastIndex(name, "g.")
	if dot < 1 {
		return p, false
	}
	at := dot - 1
	if name[at] < '1' || name[at] > '7' {
		return p, false
	}
	digits, more, found := strings.Cut(name[dot+2:], "gb")
	memory, err := strconv.ParseUint(digits, 10, 16)
	if !found || err != nil || len(digits) > 4 || !isSuffix(more) {
		return p, false
	}
	p = migProfile{profile: name[at:], slices: int64(name[at] - '0'), memory: int64(memory)}
	if at > 0 {
		if at < 2 || !strings.ContainsRune("-_:.", rune(name[at-1])) {
			return p, false
		}
		p.model = name[:at-1]
	}
	return p, true
}

// isSuffix tells whether a profile may go on so: with nothing, or as in +me.
func isSuffix(text string) bool {
	if text == "" {
		return true
	}
	if text[0] != '+' && text[0] != '.' || len(text) < 2 {
		return false
	}
	return strings.Trim(text[1:], "abcdefghijklmnopqrstuvwxyz.") == ""
}

// part is the part of a GPU that an instance of the profile is, in millionths: the
// greater of its part of the compute slices and of the memory. GPUs of four slices
// have profiles of their own.
func (p migProfile) part() int64 {
	switch {
	case slices.Contains([]migProfile{{slices: 1, memory: 6}, {slices: 2, memory: 12}, {slices: 4, memory: 24},
		{slices: 2, memory: 48}, {slices: 4, memory: 96}}, migProfile{slices: p.slices, memory: p.memory}):
		return p.slices * Millionths / 4
	case p.slices == 1 && slices.Contains([]int64{20, 24, 35, 45}, p.memory): // twice the memory
		return Millionths / 4
	case p.slices == 3:
		return Millionths / 2
	}
	return p.slices * Millionths / 7
}

// At is what a GPU of a type counts for at an instant, in millionths: what is said
// of the type; else, of a MIG instance, what is said of its profile, or its part of
// what its model counts for; else what is said of all other types, or 1.
func (w GPUWeights) At(name string, at Instant) int64 {
	name = strings.ToLower(name)
	if known, ok := w.said(name, at); ok {
		return known
	}
	p, isMIG := profileOf(name)
	if !isMIG {
		return w.other(at)
	}
	if known, ok := w.said(p.profile, at); ok {
		return known
	}
	if known, ok := w.said(p.model, at); ok {
		return known * p.part() / Millionths
	}
	return w.other(at) * p.part() / Millionths
}

func (w GPUWeights) other(at Instant) int64 {
	if known, ok := w.said(OtherTypes, at); ok {
		return known
	}
	return Millionths
}

// said is what is said of exactly this type at an instant.
func (w GPUWeights) said(name string, at Instant) (millionths int64, ok bool) {
	for _, step := range w[name] {
		if step.Contains(at) {
			return int64(step.Value) * (Millionths / int64(OneGPU)), step.Value != DefaultWeight
		}
	}
	return 0, false
}

// RateAt is what a holding counts for at an instant, in millionths of a GPU of
// weight 1.
func (w GPUWeights) RateAt(h Holding, at Instant) int64 {
	var sum int64
	for _, part := range h.parts() {
		q, _ := mulDiv(uint64(part.amount), uint64(w.At(part.name, at)), Millionths)
		sum += int64(q)
	}
	return sum
}

// Rates is what a holding counts for in a period, from its beginning on and
// whenever that changes. It is nil if all the time that is what it holds.
func (w GPUWeights) Rates(h Holding, p Period) []Rate {
	if h.Millionths() == 0 || len(w) == 0 && !strings.Contains(h.Type, ".") {
		return nil
	}
	rates := []Rate{{p.From, w.RateAt(h, p.From)}}
	for _, at := range w.points(h, p) {
		if r := w.RateAt(h, at); r != rates[len(rates)-1].Millionths {
			rates = append(rates, Rate{at, r})
		}
	}
	if len(rates) == 1 && rates[0].Millionths == h.Millionths() {
		return nil
	}
	return rates
}

// points are the instants within a period at which what a holding counts for may
// change, in ascending order.
func (w GPUWeights) points(h Holding, p Period) []Instant {
	var points []Instant
	add := func(name string) {
		for _, step := range w[name] {
			for _, at := range []Instant{step.From, step.Until} {
				if at > p.From && at < p.Until {
					points = append(points, at)
				}
			}
		}
	}
	add(OtherTypes)
	for _, part := range h.parts() {
		add(part.name)
		if mig, ok := profileOf(part.name); ok {
			add(mig.profile)
			add(mig.model)
		}
	}
	slices.Sort(points)
	return slices.Compact(points)
}

// Capacity counts GPUs that can be scheduled, as steps that follow each other,
// by what they count for.
func (w GPUWeights) Capacity(holdings []Step[Holding]) []Step[MilliGPUs] {
	out := make([]Step[MilliGPUs], 0, len(holdings))
	for _, step := range holdings {
		h := step.Value
		rates := w.Rates(h, step.Period)
		if rates == nil {
			rates = []Rate{{step.From, h.Millionths()}}
		}
		for i, r := range rates {
			p := Period{From: r.Since, Until: step.Until}
			if i+1 < len(rates) {
				p.Until = rates[i+1].Since
			}
			gpus := MilliGPUs(r.Millionths / (Millionths / int64(GPU)))
			if n := len(out); n > 0 && out[n-1].Until == p.From && out[n-1].Value == gpus {
				out[n-1].Until = p.Until
				continue
			}
			out = append(out, Step[MilliGPUs]{Period: p, Value: gpus})
		}
	}
	return out
}

// Charged is what a rate comes to over so many milliseconds, rounded down. Beyond
// 64 bits it stops at their end.
func Charged(millionths, ms int64) GPUMillis {
	if millionths <= 0 || ms <= 0 {
		return 0
	}
	q, _ := mulDiv(uint64(millionths), uint64(ms), Millionths)
	if bits.Len64(q) > 63 {
		return 1<<63 - 1
	}
	return GPUMillis(q)
}
