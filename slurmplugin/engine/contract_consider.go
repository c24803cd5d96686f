// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"cmp"
	"iter"
	"slices"

	"gpubudget/fairshare"
)

// considered are the jobs that yield to a request. The components of a het job
// are one.
type considered struct {
	occupants []fairshare.Occupant
	pieces    [][]fairshare.Piece
	whole     []whole
	next      []int32
}

// members are places among Placing.Occupants.
func (c *considered) members(i int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for m := c.whole[i].first; m != none; m = c.next[m] {
			if !yield(int(m)) {
				return
			}
		}
	}
}

// some tells whether any of the members is so.
func (c *considered) some(i int, is func(member int) bool) bool {
	for m := range c.members(i) {
		if is(m) {
			return true
		}
	}
	return false
}

// consider asks the rules about all that run. What it returns is valid until the
// next time.
func (e *Engine) consider(r *fairshare.Ranking, q *fairshare.Request, p *Placing, now fairshare.Instant) considered {
	occupants := array(p.Occupants, p.OccupantCount)
	wholes := &e.contract.wholes
	wholes.begin(occupants)
	rules := e.rules()
	judge := rules.Judge(r, now, q)
	recent := &e.contract.recent
	recent.begin()
	for i := range occupants {
		rec := recent.record(e.tracker, occupants[i].JobID)
		if wholes.keeps(i) {
			continue
		}
		run, ok := rec.runningAs(&occupants[i])
		if !ok {
			wholes.keep(i)
			continue
		}
		if run == nil { // a component without GPUs
			wholes.join(i)
			continue
		}
		o := e.occupantOf(run, &occupants[i], now, judge)
		if judge.Protects(&o) {
			wholes.keep(i)
			continue
		}
		if occupants[i].HetJobID != 0 {
			wholes.components = append(wholes.components, component{i, o})
			continue
		}
		if d := judge.Decide(&o); d.Yields {
			wholes.add(i, &o, d.Rule)
		}
	}
	wholes.decide(judge)
	return wholes.considered(array(p.Pieces, p.PieceCount))
}

// recent finds the records of jobs by the order in which they were asked for the
// time before: Slurm's list hardly changes, and a map of many jobs lies all over
// memory.
type recent struct {
	before, now []*job
	at          int // in before
}

// mostGone is how many of those asked for the time before may be missing in a row.
const mostGone = 8

func (r *recent) begin() { r.before, r.now, r.at = r.now, r.before[:0], 0 }

// record is nil if nothing is known of the job.
func (r *recent) record(t *tracker, id uint32) *job {
	rec := r.next(id)
	if rec == nil {
		rec = t.jobs[id]
	}
	if rec != nil {
		r.now = append(r.now, rec)
	}
	return rec
}

func (r *recent) next(id uint32) *job {
	for i := r.at; i < min(r.at+mostGone, len(r.before)); i++ {
		if rec := r.before[i]; rec.id == id && !rec.forgotten {
			r.at = i + 1
			return rec
		}
	}
	return nil
}

// wholes are jobs, the components of a het job put together. Of those that keep
// their GPUs nothing is kept, but for components of het jobs.
type wholes struct {
	asked     []Occupant
	place     []int32              // by occupant: its place in all, or none
	next      []int32              // by occupant: another component of the same job, or none
	all       []whole              // and of each
	occupants []fairshare.Occupant // what the rules see
	moved     []int32              // its place among those that yield, or none
	het       map[uint32]int32     // places of het jobs

	components []component // of het jobs, about which the rules are asked once all are known
	together   []fairshare.Occupant

	pieces [][]fairshare.Piece
	held   []fairshare.Piece
}

// component is an occupant that is one of several of a job.
type component struct {
	i        int
	occupant fairshare.Occupant
}

// none is no place: an occupant that keeps its GPUs or wasn't considered yet.
const none = -1

// whole is a job with all its components, all of which have to yield.
type whole struct {
	first  int32 // component
	pieces int32 // how many
	any    bool  // there is an occupant
	keeps  bool  // one of them keeps its GPUs
	rule   fairshare.Rule
}

// sized is room for n, of which nobody knows what is in it.
func sized[T any](room []T, n int) []T {
	if room == nil || cap(room) < n {
		return make([]T, n, n+n/4)
	}
	return room[:n]
}

func (w *wholes) begin(occupants []Occupant) {
	w.asked = occupants
	w.place, w.next = sized(w.place, len(occupants)), sized(w.next, len(occupants))
	for i := range w.place {
		w.place[i], w.next[i] = none, none
	}
	w.all, w.occupants, w.components = w.all[:0], w.occupants[:0], w.components[:0]
	if w.het == nil {
		w.het = make(map[uint32]int32)
	}
	clear(w.het)
}

// keeps tells whether another component of the job is known to keep its GPUs.
func (w *wholes) keeps(i int) bool {
	return w.asked[i].HetJobID != 0 && w.of(i).keeps
}

// keep notes that an occupant keeps its GPUs, and with it the whole of its job.
func (w *wholes) keep(i int) {
	if w.asked[i].HetJobID != 0 {
		w.of(i).keeps = true
	}
}

// decide asks the rules about the het jobs.
func (w *wholes) decide(judge *fairshare.Judge) {
	jobOf := func(c component) uint32 { return w.asked[c.i].HetJobID }
	slices.SortStableFunc(w.components, func(x, y component) int { return cmp.Compare(jobOf(x), jobOf(y)) })
	for rest := w.components; len(rest) > 0; {
		n := 1
		for n < len(rest) && jobOf(rest[n]) == jobOf(rest[0]) {
			n++
		}
		w.decideWhole(judge, rest[:n])
		rest = rest[n:]
	}
}

// decideWhole asks about the components of a het job, all of which have to yield.
func (w *wholes) decideWhole(judge *fairshare.Judge, components []component) {
	w.together = w.together[:0]
	for i := range components {
		w.together = append(w.together, components[i].occupant)
	}
	fairshare.Together(w.together)
	for i := range components {
		c := &components[i]
		d := judge.Decide(&w.together[i])
		if !d.Yields {
			w.keep(c.i)
		}
		if w.keeps(c.i) {
			return
		}
		w.add(c.i, &c.occupant, d.Rule)
	}
}

// of is the job of an occupant that may yield.
func (w *wholes) of(i int) *whole {
	if w.place[i] != none {
		return &w.all[w.place[i]]
	}
	id := w.asked[i].HetJobID
	place, known := w.het[id] // never of 0
	if !known {
		place = int32(len(w.all)) //nolint:gosec // there are fewer jobs
		w.all, w.occupants = append(w.all, whole{first: none}), append(w.occupants, fairshare.Occupant{})
	}
	if id != 0 {
		w.het[id] = place
	}
	w.place[i] = place
	return &w.all[place]
}

// join adds an occupant to its job, as one that doesn't matter to the rules.
func (w *wholes) join(i int) *whole {
	j := w.of(i)
	w.next[i], j.first = j.first, int32(i) //nolint:gosec // there are fewer jobs
	return j
}

// add adds a component. Together they are as their worst.
func (w *wholes) add(i int, o *fairshare.Occupant, rule fairshare.Rule) {
	j := w.join(i)
	sum := &w.occupants[w.place[i]]
	if !j.any {
		*sum, j.rule, j.any = *o, rule, true
		return
	}
	sum.GPUs += o.GPUs
	sum.Ahead += o.Ahead
	sum.ProtectedUntil = max(sum.ProtectedUntil, o.ProtectedUntil)
	if o.Allocated && !sum.Allocated {
		sum.Allocated, j.rule = true, rule
	}
}

// considered are those that yield, with what they hold.
func (w *wholes) considered(pieces []Piece) considered {
	w.asked = nil // it is the caller's
	w.shrink(w.count(pieces))
	for i := range pieces {
		if k := w.yields(&pieces[i]); k != none {
			w.pieces[k] = append(w.pieces[k], fairshare.Piece{Node: int(pieces[i].Node), Held: pieces[i].Held})
		}
	}
	return considered{occupants: w.occupants, pieces: w.pieces, whole: w.all, next: w.next}
}

// count counts the pieces of those that yield.
func (w *wholes) count(pieces []Piece) (all int) {
	for i := range pieces {
		place := w.place[pieces[i].Occupant]
		if place == none {
			continue
		}
		if j := &w.all[place]; j.any && !j.keeps {
			j.pieces++
			all++
		}
	}
	return all
}

// shrink leaves out who doesn't yield or holds nothing that matters, and makes room
// for the pieces of the others, all in one piece of memory.
func (w *wholes) shrink(held int) {
	w.moved, w.held = sized(w.moved, len(w.all)), sized(w.held, held)
	w.pieces = w.pieces[:0]
	room := w.held
	for i := range w.all {
		k, n := len(w.pieces), w.all[i].pieces
		if n == 0 {
			w.moved[i] = none
			continue
		}
		w.moved[i] = int32(k) //nolint:gosec // there are fewer jobs
		if k != i {
			w.all[k], w.occupants[k] = w.all[i], w.occupants[i]
		}
		w.pieces, room = append(w.pieces, room[:0:n]), room[n:]
	}
	w.all, w.occupants = w.all[:len(w.pieces)], w.occupants[:len(w.pieces)]
}

// yields is where the holder of a piece stands among those that yield.
func (w *wholes) yields(p *Piece) int32 {
	place := w.place[p.Occupant]
	if place == none {
		return none
	}
	return w.moved[place]
}
