// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"math/bits"
	"regexp"
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

// migType is a type that ends in a MIG profile, as in a100_1g.10gb or 1g.10gb+me:
// the model before it, if any, and the profile.
var migType = regexp.MustCompile(`(?s)^(?:(.+)[-_:.])?(([1-7])g\.([0-9]{1,4})gb(?:[-+.][a-z.]+)?)$`)

// migProfile is the MIG profile at the end of a type, and what of a GPU an
// instance of it has: parts of its compute slices and of its memory.
type migProfile struct {
	model, profile  string
	compute, memory int64 // in parts of migWhole
}

// migWhole is a GPU, in the unit in which parts of the compute slices (of seven) and
// of the memory (of eight) both are whole numbers.
const migWhole = 7 * 8

// profileOf finds the MIG profile at the end of a type in lower case.
func profileOf(name string) (p migProfile, ok bool) {
	if !strings.Contains(name, "g.") {
		return p, false
	}
	found := migType.FindStringSubmatch(name)
	if found == nil {
		return p, false
	}
	p = migProfile{model: found[1], profile: found[2]}
	memory, _ := strconv.Atoi(found[4]) // four digits at most
	p.compute, p.memory = migParts(p.model, int64(found[3][0]-'0'), memory)
	return p, true
}

// migParts are the parts of the compute slices and of the memory of a GPU that a
// profile of so many slices and GB stands for. PostgreSQL has the same list, in
// gpubudget.mig_parts; docs/weights.md says of which GPUs they are.
func migParts(model string, slices int64, gb int) (compute, memory int64) {
	type profile struct {
		slices int64
		gb     int
	}
	switch (profile{slices, gb}) {
	case profile{1, 6}, profile{2, 12}, profile{4, 24}, profile{2, 48}, profile{4, 96}: // GPUs of four slices
		return slices * migWhole / 4, slices * migWhole / 4
	case profile{1, 16}, profile{2, 32}: // of two
		return slices * migWhole / 2, slices * migWhole / 2
	}
	twice := false // as much memory as an instance of two slices
	switch (profile{slices, gb}) {
	case profile{1, 20}, profile{1, 36}, profile{1, 45}, profile{1, 47}, profile{1, 67}, profile{1, 70}:
		twice = true
	case profile{1, 10}:
		twice = strings.Contains(model, "40gb")
	case profile{1, 24}:
		twice = !strings.Contains(model, "gb200")
	case profile{1, 35}:
		twice = !strings.Contains(model, "gb300")
	}
	switch {
	case twice:
		memory = 2
	case slices == 3:
		memory = 4
	case slices == 7:
		memory = 8
	default:
		memory = slices
	}
	return slices * migWhole / 7, memory * migWhole / 8
}

// Unit is what a GPU of a type counts for.
type Unit struct {
	weight          int64 // of a whole one, in millionths
	compute, memory int64 // what an instance is of it, in parts of migWhole
	isPart          bool  // an instance that counts by what it is of its model
	model           string
}

// UnitAt is what a GPU of a type counts for at an instant: what is said of the type;
// else, of a MIG instance, what is said of its profile, or its part of what its
// model counts for; else what is said of all other types, or 1.
func (w GPUWeights) UnitAt(name string, at Instant) Unit {
	name = strings.ToLower(name)
	if known, ok := w.said(name, at); ok {
		return Unit{weight: known, compute: migWhole, memory: migWhole}
	}
	p, isMIG := profileOf(name)
	if !isMIG {
		return Unit{weight: w.other(at), compute: migWhole, memory: migWhole}
	}
	if known, ok := w.said(p.profile, at); ok {
		return Unit{weight: known, compute: migWhole, memory: migWhole}
	}
	whole, ok := w.said(p.model, at)
	if !ok {
		whole = w.other(at)
	}
	return Unit{weight: whole, compute: p.compute, memory: p.memory, isPart: true, model: p.model}
}

// Of is what an amount of such GPUs, in millionths, counts for, in millionths of a
// GPU of weight 1. Instances count by the greater of their part of the compute
// slices and of the memory.
func (u Unit) Of(amount int64) int64 {
	return u.of(amount*u.compute, amount*u.memory)
}

func (u Unit) of(compute, memory int64) int64 {
	q, _ := mulDiv(uint64(max(compute, memory)), uint64(u.weight), migWhole*Millionths)
	return int64(q)
}

// At is what a GPU of a type counts for at an instant, in millionths.
func (w GPUWeights) At(name string, at Instant) int64 {
	return w.UnitAt(name, at).Of(Millionths)
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
// weight 1: the sum of what its types do. But instances of GPUs of one model, which
// may be of one GPU, count by the greater of what they have of its compute slices
// together and of its memory together: so those of N GPUs never count for more than N.
func (w GPUWeights) RateAt(h Holding, at Instant) int64 {
	var sum int64
	var pools []pool
	for _, part := range h.parts() {
		u := w.UnitAt(part.name, at)
		if !u.isPart {
			sum += u.Of(part.amount)
			continue
		}
		i := slices.IndexFunc(pools, func(p pool) bool { return p.model == u.model })
		if i < 0 {
			i, pools = len(pools), append(pools, pool{Unit: u})
		}
		pools[i].compute += part.amount * u.compute
		pools[i].memory += part.amount * u.memory
	}
	for _, p := range pools {
		sum += p.of(p.compute, p.memory)
	}
	return sum
}

// pool is the instances of GPUs of one model, in millionths of parts of migWhole.
type pool struct {
	Unit
	compute, memory int64
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
