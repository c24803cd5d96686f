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
	InNeed   bool   // nothing is offered if there is room without anybody's going
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
	return new(Offers).Offer(c, r, now, q, occupants, pieces, ask)
}

// Offers makes one offer after the other and uses its memory again. It is not safe
// for concurrent use.
type Offers struct {
	offer     offer
	evictions evictions
}

// Offer is Contract.Offer; what it returns is valid until the next one.
func (m *Offers) Offer(c *Contract, r *Ranking, now Instant, q *Request, occupants []Occupant, pieces [][]Piece, ask *Ask) []int {
	o := &m.offer
	o.begin(c, q, ask, occupants, pieces)
	defer o.end()
	o.order = m.evictions.order(r, now, occupants)
	for _, n := range o.openings() {
		if o.enough() && o.beyond >= ask.Spare {
			break
		}
		o.add(n)
		if ask.InNeed && o.enough() && !slices.Contains(o.taken, true) {
			return nil
		}
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
	loads  []int64 // those that aren't 0, ascending
	total  int64   // of all that were taken
	full   int     // nodes with room
	gives  int64   // GPUs there
	beyond int     // nodes added since that is enough

	room offerRoom
}

// offerRoom is memory that is used again.
type offerRoom struct {
	count   []int      // by node
	holders [][]holder // by node
	held    []holder
	found   []opening
	gone    []int
	added   []int
}

// begin is an offer of nobody yet.
func (o *offer) begin(c *Contract, q *Request, ask *Ask, occupants []Occupant, pieces [][]Piece) {
	*o = offer{
		contract: c, q: q, ask: ask, occupants: occupants, pieces: pieces,
		taken: sized(o.taken, len(occupants)), load: sized(o.load, len(ask.Free)), loads: o.loads[:0], room: o.room,
	}
	clear(o.taken)
	clear(o.load)
	o.nodes = max(ask.Nodes, 1)
	o.spread = int(max(q.GPUs, 1))
	if ask.MaxNodes > 0 {
		o.spread = min(o.spread, ask.MaxNodes)
	}
	o.spread = max(o.spread, o.nodes)
}

// end keeps nothing of what the offer was made from.
func (o *offer) end() { *o = offer{taken: o.taken, load: o.load, loads: o.loads, room: o.room} }

// opening is a node, and who has to go from there.
type opening struct {
	node int
	gone []int // places in the order of eviction
	last int   // of them; -1 if nobody has to
	full bool  // there is then all that a node has to give
	gpus int64
}

// openings are the nodes of use, in the order in which they are to be offered:
// first those that have room for a node's part of the request, and of them
// those whose jobs are the first to go.
func (o *offer) openings() []opening {
	holders, all := o.holdersByNode()
	o.room.gone = sized(o.room.gone, all)
	found, gone := o.room.found[:0], o.room.gone[:0]
	for n := range o.ask.Free {
		if opening, ok := o.open(n, holders[n], gone); ok {
			used := len(opening.gone)
			found, gone = append(found, opening), gone[used:used]
		}
	}
	slices.SortFunc(found, func(a, b opening) int {
		switch {
		case a.full && !b.full:
			return -1
		case b.full && !a.full:
			return 1
		case a.last != b.last:
			return cmp.Compare(a.last, b.last)
		}
		return cmp.Compare(a.node, b.node)
	})
	o.room.found = found
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
	count := sized(o.room.count, len(o.ask.Free))
	clear(count)
	for _, pieces := range o.pieces {
		for i := range pieces {
			count[pieces[i].Node]++
		}
		all += len(pieces)
	}
	o.room.count, o.room.held, o.room.holders = count, sized(o.room.held, all), sized(o.room.holders, len(o.ask.Free))
	holders = o.room.holders
	room := o.room.held
	for n := range holders {
		holders[n], room = room[:0:count[n]], room[count[n]:]
	}
	for place, i := range o.order {
		pieces := o.pieces[i]
		for k := range pieces {
			on := &holders[pieces[k].Node]
			if last := len(*on) - 1; last >= 0 && (*on)[last].place == place { // components of a het job
				(*on)[last].held = (*on)[last].held.plus(pieces[k].Held)
				continue
			}
			*on = append(*on, holder{place, pieces[k].Held})
		}
	}
	return holders, all
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
	found := opening{node: node, last: -1, gpus: need[RoomGPUs], full: o.ask.PerNode[RoomGPUs] > 0 || need[RoomGPUs] == part}
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
	if len(gone) > 0 {
		found.last = gone[len(gone)-1]
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
	added := o.room.added[:0]
	for _, place := range n.gone {
		if i := o.order[place]; !o.taken[i] {
			o.take(i, 1)
			added = append(added, i)
		}
	}
	o.room.added = added
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
	gpus := sign * o.occupants[i].GPUs
	o.total += gpus
	for k, piece := range o.pieces[i] {
		if slices.ContainsFunc(o.pieces[i][:k], func(p Piece) bool { return p.Node == piece.Node }) {
			continue
		}
		o.reload(piece.Node, gpus)
	}
}

// reload changes the load of a node.
func (o *offer) reload(node int, by int64) {
	if old := o.load[node]; old != 0 {
		at, _ := slices.BinarySearch(o.loads, old)
		o.loads = slices.Delete(o.loads, at, at+1)
	}
	o.load[node] += by
	if load := o.load[node]; load != 0 {
		at, _ := slices.BinarySearch(o.loads, load)
		o.loads = slices.Insert(o.loads, at, load)
	}
}

// withinLimit is R7 for whatever the scheduler makes of the offer: it evicts no
// more than all, nor than all that stand on as many nodes as it can use.
func (o *offer) withinLimit() bool {
	if o.contract.mayEvict(o.q, add64(o.total, o.ask.Evicted)) {
		return true
	}
	worst := o.ask.Evicted
	for _, load := range o.loads[max(len(o.loads)-o.spread, 0):] {
		worst = add64(worst, load)
	}
	return o.contract.mayEvict(o.q, worst)
}
