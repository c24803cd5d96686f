// SPDX-License-Identifier: GPL-2.0-or-later

package fairshare

import (
	"cmp"
	"slices"
)

// Room is an amount of each resource of a node that a request needs and that
// jobs give back: GPUs, CPUs and memory (in any unit).
type Room [3]int64

// The resources of a Room.
const (
	RoomGPUs = iota
	RoomCPUs
	RoomMemory
)

func (a Room) plus(b Room) Room { return Room{add64(a[0], b[0]), add64(a[1], b[1]), add64(a[2], b[2])} }

func (a Room) minus(b Room) Room {
	return Room{add64(a[0], -b[0]), add64(a[1], -b[1]), add64(a[2], -b[2])}
}

func (a Room) covers(b Room) bool { return a[0] >= b[0] && a[1] >= b[1] && a[2] >= b[2] }

func add64(a, b int64) int64 { return int64(add(GPUMillis(a), GPUMillis(b))) }

// Piece is what a running job holds of one node.
type Piece struct {
	Node int
	Held Room
}

// Ask is where a request could run.
type Ask struct {
	Free     []Room // of each node that it may use; negative where more is held than there is
	Nodes    int    // it needs at least so many of them; 0 counts as 1
	MaxNodes int    // and can be spread over at most so many; 0: as it has GPUs
	PerNode  Room   // what it needs on each; no GPUs: only their sum counts
	Spare    int    // how many nodes to offer beyond those that it needs
	Evicted  int64  // GPUs of allocated jobs that were evicted for it before
}

// Offer chooses, of the running jobs that yield to a request, those among which
// the scheduler may choose: indices of occupants, those that are to go first in
// front (R6). pieces are what each of them holds of the nodes of ask.
//
// The scheduler knows more than this does of what may run where. So it is
// offered more nodes than it needs, each with the fewest of its jobs that make
// room, and whichever of them it takes, it evicts no more than R7 allows.
// Nothing is offered if that can't make room for the request.
func (c *Contract) Offer(r *Ranking, now Instant, q *Request, occupants []Occupant, pieces [][]Piece, ask *Ask) []int {
	o := &offer{
		contract: c, q: q, ask: ask, occupants: occupants, pieces: pieces,
		order: evictionOrder(r, now, occupants), taken: make([]bool, len(occupants)), load: make([]int64, len(ask.Free)),
	}
	o.nodes = max(ask.Nodes, 1)
	o.spread = int(max(q.GPUs, 1))
	if ask.MaxNodes > 0 {
		o.spread = min(o.spread, ask.MaxNodes)
	}
	o.spread = max(o.spread, o.nodes)
	for _, n := range o.openings() {
		if o.enough() && o.beyond >= ask.Spare {
			break
		}
		o.add(n)
	}
	if !o.enough() {
		return nil
	}
	return slices.DeleteFunc(o.order, func(i int) bool { return !o.taken[i] })
}

type offer struct {
	contract  *Contract
	q         *Request
	ask       *Ask
	occupants []Occupant
	pieces    [][]Piece
	order     []int // of eviction
	nodes     int   // that are needed
	spread    int   // the most that can be used

	taken  []bool
	load   []int64 // by node: the GPUs that go if it is used, of all allocated jobs on it that were taken
	loaded []int   // nodes with a load
	total  int64   // of all that were taken
	full   int     // nodes with room
	gives  int64   // GPUs there
	beyond int     // nodes added since that is enough
}

// opening is a node, and who has to go from there.
type opening struct {
	node int
	gone []int // places in the order of eviction
	full bool  // there is then all that a node has to give
	gpus int64
}

// openings are the nodes of use, in the order in which they are to be offered:
// first those that have room for a node's part of the request, and of them
// those whose jobs are the first to go.
func (o *offer) openings() []opening {
	holders, all := o.holdersByNode()
	found, gone := make([]opening, 0, len(o.ask.Free)), make([]int, 0, all)
	for n := range o.ask.Free {
		if opening, ok := o.open(n, holders[n], gone); ok {
			used := len(opening.gone)
			found, gone = append(found, opening), gone[used:used]
		}
	}
	slices.SortFunc(found, func(a, b opening) int {
		if a.full != b.full {
			if a.full {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(last(a.gone), last(b.gone)), cmp.Compare(a.node, b.node))
	})
	return found
}

// holder is a job on a node.
type holder struct {
	place int // in the order of eviction, or spared
	held  Room
}

// spared is the place of a job without which there is room on its node, too.
const spared = -1

// holdersByNode are the jobs on each node in the order of eviction, all in one piece
// of memory: there may be thousands of nodes. The number is how many there are.
func (o *offer) holdersByNode() (holders [][]holder, all int) {
	holders = make([][]holder, len(o.ask.Free))
	count := make([]int, len(o.ask.Free))
	for _, pieces := range o.pieces {
		for i := range pieces {
			count[pieces[i].Node]++
			all++
		}
	}
	room := make([]holder, all)
	for n := range holders {
		holders[n], room = room[:0:count[n]], room[count[n]:]
	}
	for place, i := range o.order {
		for _, piece := range o.pieces[i] {
			on := &holders[piece.Node]
			if k := len(*on) - 1; k >= 0 && (*on)[k].place == place { // components of a het job
				(*on)[k].held = (*on)[k].held.plus(piece.Held)
				continue
			}
			*on = append(*on, holder{place, piece.Held})
		}
	}
	return holders, all
}

func last(places []int) int {
	if len(places) == 0 {
		return -1
	}
	return places[len(places)-1]
}

// open finds the fewest jobs that make room on a node, in the order of
// eviction, and puts them into gone, which is empty and has room for all.
func (o *offer) open(node int, holders []holder, gone []int) (opening, bool) {
	need := o.ask.PerNode
	part := (o.q.GPUs + int64(o.nodes) - 1) / int64(o.nodes)
	all := o.ask.Free[node]
	for i := range holders {
		all = all.plus(holders[i].held)
	}
	if need[RoomGPUs] == 0 {
		need[RoomGPUs] = min(part, all[RoomGPUs])
	}
	if need[RoomGPUs] <= 0 || !all.covers(need) {
		return opening{}, false
	}
	found := opening{node: node, gpus: need[RoomGPUs], full: o.ask.PerNode[RoomGPUs] > 0 || need[RoomGPUs] == part}
	room, first := o.ask.Free[node], 0
	for first < len(holders) && !room.covers(need) {
		room = room.plus(holders[first].held)
		first++
	}
	// Of these, the last one is needed. Others may be too much.
	for k := first - 2; k >= 0; k-- {
		if less := room.minus(holders[k].held); less.covers(need) {
			room, holders[k].place = less, spared
		}
	}
	for k := range first {
		if holders[k].place != spared {
			gone = append(gone, holders[k].place)
		}
	}
	found.gone = slices.Clip(gone)
	return found, true
}

// enough tells whether the request has room in what is offered so far.
func (o *offer) enough() bool {
	return o.full >= o.nodes && (o.ask.PerNode[RoomGPUs] > 0 || o.gives >= o.q.GPUs)
}

// add offers a node, unless the scheduler could then evict too much.
func (o *offer) add(n opening) {
	var added []int
	for _, place := range n.gone {
		if i := o.order[place]; !o.taken[i] {
			o.take(i, 1)
			added = append(added, i)
		}
	}
	if len(added) > 0 && !o.withinLimit() {
		for _, i := range added {
			o.take(i, -1)
		}
		return
	}
	if o.enough() {
		o.beyond++
	}
	if n.full || o.ask.PerNode[RoomGPUs] == 0 {
		o.full++
		o.gives = add64(o.gives, n.gpus)
	}
}

// take takes a job, or with -1 gives it back.
func (o *offer) take(i int, sign int64) {
	o.taken[i] = sign > 0
	if !o.occupants[i].Allocated {
		return
	}
	gpus := o.occupants[i].GPUs
	o.total += sign * gpus
	for k, piece := range o.pieces[i] {
		if slices.ContainsFunc(o.pieces[i][:k], func(p Piece) bool { return p.Node == piece.Node }) {
			continue
		}
		if o.load[piece.Node] == 0 {
			o.loaded = append(o.loaded, piece.Node)
		}
		o.load[piece.Node] += sign * gpus
	}
}

// withinLimit is R7 for whatever the scheduler makes of the offer: it evicts no
// more than all, nor than all that stand on as many nodes as it can use.
func (o *offer) withinLimit() bool {
	if o.contract.mayEvict(o.q, add64(o.total, o.ask.Evicted)) {
		return true
	}
	loads := make([]int64, 0, len(o.loaded))
	slices.Sort(o.loaded)
	o.loaded = slices.Compact(o.loaded)
	for _, n := range o.loaded {
		loads = append(loads, o.load[n])
	}
	slices.SortFunc(loads, func(a, b int64) int { return cmp.Compare(b, a) })
	worst := o.ask.Evicted
	for _, load := range loads[:min(o.spread, len(loads))] {
		worst = add64(worst, load)
	}
	return o.contract.mayEvict(o.q, worst)
}
