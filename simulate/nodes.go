// SPDX-License-Identifier: GPL-2.0-or-later

package simulate

// class is what a node's free GPUs may be used for.
type class = uint8

const (
	open class = iota // anybody
	held              // the job they are held for, and who is gone before it starts
	away              // nobody: the node is down or drained
)

// nodes is how many GPUs are free where. Nodes of a partition with as many GPUs
// free are linked, so that finding the fullest one on which a job fits takes a
// few steps however many nodes there are.
type nodes struct {
	parts []nodePart
	free  []int16
	loose []int16 // GPUs of jobs that yield at once, to any that is charged
	part  []int16
	class []class
	next  []int32
	prev  []int32

	question ifGone
	delta    []int16 // GPUs that would be free as well
	touched  []int32 // nodes that have some
}

type nodePart struct {
	per   int16
	lists [2][]nodeList // by class, by free GPUs
	soon  [2][]int32    // by class, by free and loose GPUs: how many nodes
	first int32         // its nodes are first to last
	last  int32
	idle  int // free GPUs, open or held
	up    int // GPUs of nodes that are not away
	ends  int // GPUs of nodes that are away which jobs hold to their end
}

type nodeList struct {
	head  int32 // -1 if empty
	count int32
}

func newNodes(c *Cluster) *nodes {
	n := c.Nodes()
	ns := &nodes{
		free: make([]int16, n), loose: make([]int16, n), part: make([]int16, n), class: make([]class, n),
		next: make([]int32, n), prev: make([]int32, n), delta: make([]int16, n),
	}
	at := int32(0)
	for i, p := range c.Partitions {
		np := nodePart{per: int16(p.GPUsPerNode), first: at, last: at + int32(p.Nodes)}
		for cl := range np.lists {
			np.lists[cl] = make([]nodeList, p.GPUsPerNode+1)
			np.soon[cl] = make([]int32, p.GPUsPerNode+1)
			for f := range np.lists[cl] {
				np.lists[cl][f].head = -1
			}
		}
		ns.parts = append(ns.parts, np)
		for node := np.last - 1; node >= np.first; node-- {
			ns.part[node], ns.free[node] = int16(i), np.per
			ns.link(node)
		}
		ns.parts[i].idle, ns.parts[i].up = p.Nodes*p.GPUsPerNode, p.Nodes*p.GPUsPerNode
		at = np.last
	}
	return ns
}

func (ns *nodes) list(node int32) *nodeList {
	return &ns.parts[ns.part[node]].lists[ns.class[node]][ns.free[node]]
}

func (ns *nodes) link(node int32) {
	if ns.class[node] == away {
		return
	}
	l := ns.list(node)
	ns.next[node], ns.prev[node] = l.head, -1
	if l.head >= 0 {
		ns.prev[l.head] = node
	}
	l.head = node
	l.count++
	*ns.soon(node)++
}

// soon is the count of nodes with as many free and loose GPUs as a node has.
func (ns *nodes) soon(node int32) *int32 {
	return &ns.parts[ns.part[node]].soon[ns.class[node]][ns.free[node]+ns.loose[node]]
}

func (ns *nodes) unlink(node int32) {
	if ns.class[node] == away {
		return
	}
	l := ns.list(node)
	if ns.prev[node] >= 0 {
		ns.next[ns.prev[node]] = ns.next[node]
	} else {
		l.head = ns.next[node]
	}
	if ns.next[node] >= 0 {
		ns.prev[ns.next[node]] = ns.prev[node]
	}
	l.count--
	*ns.soon(node)--
}

// move gives a node another class.
func (ns *nodes) move(node int32, to class) {
	ns.unlink(node)
	p := &ns.parts[ns.part[node]]
	if was := ns.class[node]; was == away && to != away {
		p.idle += int(ns.free[node])
		p.up += int(p.per)
		p.ends -= int(p.per - ns.free[node])
	} else if was != away && to == away {
		p.idle -= int(ns.free[node])
		p.up -= int(p.per)
		p.ends += int(p.per - ns.free[node])
	}
	ns.class[node] = to
	ns.link(node)
}

// take takes GPUs of a node, or gives them back if there are fewer than none.
func (ns *nodes) take(node int32, gpus int16) {
	ns.unlink(node)
	ns.free[node] -= gpus
	p := &ns.parts[ns.part[node]]
	if ns.class[node] == away {
		p.ends += int(gpus)
	} else {
		p.idle -= int(gpus)
	}
	ns.link(node)
}

func (ns *nodes) takeAll(pieces []Piece) {
	for _, p := range pieces {
		ns.take(p.Node, p.GPUs)
	}
}

func (ns *nodes) giveBack(pieces []Piece) {
	for _, p := range pieces {
		ns.take(p.Node, -p.GPUs)
	}
}

// loosen tells that jobs which yield at once have more GPUs of some nodes, or
// fewer.
func (ns *nodes) loosen(pieces []Piece, sign int16) {
	for _, p := range pieces {
		away := ns.class[p.Node] == away
		if !away {
			*ns.soon(p.Node)--
		}
		ns.loose[p.Node] += sign * p.GPUs
		if !away {
			*ns.soon(p.Node)++
		}
	}
}

// classes is how many of the classes may be used: open only, or held, too.
func classes(withHeld bool) int {
	if withHeld {
		return 2
	}
	return 1
}

// split is how many whole nodes a job takes and how many GPUs of another.
func (p *nodePart) split(gpus int32) (whole int32, rest int16) {
	if gpus <= int32(p.per) {
		return 0, int16(gpus)
	}
	return gpus / int32(p.per), int16(gpus % int32(p.per))
}

// fits tells whether a job could be placed now.
func (ns *nodes) fits(part int16, gpus int32, withHeld bool) bool {
	p := &ns.parts[part]
	if int(gpus) > p.idle {
		return false
	}
	whole, rest := p.split(gpus)
	n := classes(withHeld)
	if whole > 0 {
		var empty int32
		for cl := range n {
			empty += p.lists[cl][p.per].count
		}
		if empty < whole {
			return false
		}
		if rest == 0 || empty > whole {
			return true
		}
	}
	for cl := range n {
		for f := rest; f <= p.per; f++ {
			if p.lists[cl][f].count > 0 && (whole == 0 || f < p.per) {
				return true
			}
		}
	}
	return false
}

// place finds nodes for a job that fits, open ones first, the fullest first, and
// appends them to pieces. The GPUs are not taken yet.
func (ns *nodes) place(part int16, gpus int32, withHeld bool, pieces []Piece) []Piece {
	p := &ns.parts[part]
	whole, rest := p.split(gpus)
	after := int32(-1) // the next empty node
	from := 0
	for cl := 0; cl < classes(withHeld) && whole > 0; cl++ {
		from = cl
		for after = p.lists[cl][p.per].head; after >= 0 && whole > 0; after = ns.next[after] {
			pieces = append(pieces, Piece{after, p.per})
			whole--
		}
	}
	if rest == 0 {
		return pieces
	}
	for cl := range classes(withHeld) {
		for f := rest; f < p.per; f++ {
			if node := p.lists[cl][f].head; node >= 0 {
				return append(pieces, Piece{node, rest})
			}
		}
		if node := ns.emptyOne(p, cl, from, after, len(pieces) > 0); node >= 0 {
			return append(pieces, Piece{node, rest})
		}
	}
	return pieces
}

// emptyOne is an empty node of a class that no piece is on yet.
func (ns *nodes) emptyOne(p *nodePart, cl, from int, after int32, some bool) int32 {
	switch {
	case !some || cl > from:
		return p.lists[cl][p.per].head
	case cl == from:
		return after
	}
	return -1
}

// ifGone is the question whether a job could be placed if, beyond what is free,
// some pieces were. There is one at a time.
type ifGone struct {
	part     int16
	whole    int32 // nodes that the job takes
	rest     int16 // and GPUs of another
	withHeld bool
	loose    bool  // who yields at once is taken for gone
	empty    int32 // nodes that are free
	some     int32 // nodes that are not, and have room for the rest
}

// ask begins a question. It ends with forget.
func (ns *nodes) ask(part int16, gpus int32, withHeld bool) {
	p, q := &ns.parts[part], &ns.question
	*q = ifGone{part: part, withHeld: withHeld}
	q.whole, q.rest = p.split(gpus)
	for cl := range classes(withHeld) {
		q.empty += p.lists[cl][p.per].count
		for f := q.rest; f < p.per; f++ {
			q.some += p.lists[cl][f].count
		}
	}
}

// askLoosely begins the question of what could be placed if all that yield at
// once were gone, and some pieces of others besides.
func (ns *nodes) askLoosely(part int16, gpus int32, withHeld bool) {
	p, q := &ns.parts[part], &ns.question
	*q = ifGone{part: part, withHeld: withHeld, loose: true}
	q.whole, q.rest = p.split(gpus)
	for cl := range classes(withHeld) {
		q.empty += p.soon[cl][p.per]
		for f := q.rest; f < p.per; f++ {
			q.some += p.soon[cl][f]
		}
	}
}

// wouldBeFree is how many of a node's GPUs are, by the question.
func (ns *nodes) wouldBeFree(node int32) int16 {
	free := ns.free[node] + ns.delta[node]
	if ns.question.loose {
		free += ns.loose[node]
	}
	return free
}

// without adds pieces that would be free.
func (ns *nodes) without(pieces []Piece) {
	q := &ns.question
	per := ns.parts[q.part].per
	for _, x := range pieces {
		if ns.part[x.Node] != q.part || ns.class[x.Node] == away || ns.class[x.Node] == held && !q.withHeld {
			continue
		}
		if ns.delta[x.Node] == 0 {
			ns.touched = append(ns.touched, x.Node)
		}
		before := ns.wouldBeFree(x.Node)
		ns.delta[x.Node] += x.GPUs
		if before >= q.rest {
			q.some--
		}
		switch free := before + x.GPUs; {
		case free == per:
			q.empty++
		case free >= q.rest:
			q.some++
		}
	}
}

// room is the answer.
func (ns *nodes) room() bool {
	q := &ns.question
	return q.empty >= q.whole && (q.rest == 0 || q.some > 0 || q.empty > q.whole)
}

// forget ends the question.
func (ns *nodes) forget() {
	for _, node := range ns.touched {
		ns.delta[node] = 0
	}
	ns.touched = ns.touched[:0]
}

// helps tells whether there would be room on a piece's node for a part of the job.
func (ns *nodes) helps(x Piece) bool {
	q := &ns.question
	free := ns.wouldBeFree(x.Node)
	return free == ns.parts[q.part].per || q.rest > 0 && free >= q.rest
}
