// SPDX-License-Identifier: GPL-2.0-or-later

package tally

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"

	"gpubudget/fairshare"
)

// Open is the end of a holding that has none yet.
const Open = int64(math.MaxInt64)

// ID names a holding: a run of a job on one GPU. From is part of it, since a job
// that shrinks and grows may hold a GPU twice.
type ID struct {
	GPU     string `json:"gpu"` // UUID of the GPU or of the MIG instance
	JobID   uint32 `json:"job_id"`
	Restart uint32 `json:"restart,omitempty"`
	// From is when it began, in milliseconds since the boot.
	From int64 `json:"from"`
}

func (a ID) compare(b ID) int {
	return cmp.Or(cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.JobID, b.JobID), cmp.Compare(a.Restart, b.Restart), cmp.Compare(a.From, b.From))
}

// Holding is a job that holds a GPU.
type Holding struct {
	ID
	// Until is when it ended, in milliseconds since the boot, or Open.
	Until      int64
	Source     Source
	User       string
	Account    string
	JobStarted *fairshare.Instant // by Slurm; nil if it did not say
	MPSPercent int                // 0 if there is none
}

// Look is what was seen of a GPU at the end of a round. What is nil is not
// known.
type Look struct {
	// From is since when Busy counts and from when on what was seen at the end
	// is taken to have been so, in milliseconds since the boot. Before it
	// nothing is known.
	From int64
	// Busy is how long the GPU was at work since From, and BusyKnown for how
	// much of that time this is known, in microseconds; 0: not known.
	Busy, BusyKnown int64
	Memory          *int64 // MiB in use
	Power           *int64 // milliwatts
	// Jobs are the jobs that have processes there, nil if that is not known.
	Jobs map[uint32]JobLook
}

// JobLook is what was seen of a job on a GPU.
type JobLook struct {
	Memory *int64 // MiB its processes hold
}

// Round is the time since the last round.
type Round struct {
	Now      int64 // milliseconds since the boot
	Holdings []Holding
	Looks    map[string]Look // by the UUID of the GPU
}

// Mark is up to when a holding has been counted, so that another process can go
// on from there, and knows with whom those shared the GPU that are found late.
type Mark struct {
	ID
	UpTo       int64 `json:"up_to"` // milliseconds since the boot
	MPSPercent int   `json:"mps_percent,omitempty"`
}

// remembered is how long a holding is remembered after its end: one that is
// found late may have shared the GPU with it.
const remembered = 15 * 60_000

// rememberedAtMost is how long it is if others that held the GPU can't be read.
const rememberedAtMost = 24 * 3600_000

// retractable is for how long it is known piece by piece what a holding was given:
// the database lets no more than this be taken back.
const retractable = 60_000

// Tally counts one node's holdings, for one incarnation of its agent. It is used
// by one goroutine.
type Tally struct {
	incarnation string
	length      int64 // of a bucket, milliseconds
	offset      int64 // from the clock since the boot to the wall clock, milliseconds
	seq         int64
	now         int64 // of the last round

	counts map[ID]*count
	closed []*Bucket
}

// count is a holding as far as it has been counted.
type count struct {
	Holding
	noted  int64 // seq of the last round it was in
	unseen bool  // another process has counted it; this one was not told of it yet
	ended  int   // how often it has: one that was not told of in a round may come back
	upTo   int64
	bucket *Bucket // nil: none is open
	last   *Bucket // that was open before
	pieces []piece // what was counted last, ascending

	busy, busyKnown             int64 // of the bucket while nobody else held the GPU, in microseconds
	sharedBusy, sharedBusyKnown int64 // and while others did
	energy                      int64 // of the bucket, in microjoules
	lastBusy                    *fairshare.Instant
	idleSince                   *fairshare.Instant
}

// piece is what a holding was given of a stretch.
type piece struct{ from, until, part int64 }

// before is the part of the piece that lies before an instant.
func (p piece) before(at int64) int64 {
	if at >= p.until {
		return p.part
	}
	return mulDiv(p.part, at-p.from, p.until-p.from)
}

// New is a tally that goes on where the marks end. incarnation tells it from any
// other tally there ever was; length is that of a bucket and divides a day, and
// offset leads from the clock since the boot to the wall clock, all in
// milliseconds.
func New(incarnation string, length, offset int64, marks []Mark) *Tally {
	t := &Tally{incarnation: incarnation, length: length, offset: offset, counts: map[ID]*count{}}
	for _, m := range marks {
		t.counts[m.ID] = &count{Holding: Holding{ID: m.ID, Until: m.UpTo, MPSPercent: m.MPSPercent}, unseen: true, upTo: m.UpTo}
	}
	return t
}

// Rebase goes on under another incarnation after the wall clock was set. What
// has been counted keeps the times it has.
func (t *Tally) Rebase(incarnation string, offset int64) {
	t.seq++
	shift := fairshare.Instant(offset - t.offset)
	for _, id := range t.sorted() {
		c := t.counts[id]
		t.close(c)
		c.lastBusy, c.idleSince = moved(c.lastBusy, shift), moved(c.idleSince, shift)
	}
	t.incarnation, t.offset = incarnation, offset
}

func moved(at *fairshare.Instant, by fairshare.Instant) *fairshare.Instant {
	if at == nil {
		return nil
	}
	to := *at + by
	return &to
}

// Add counts a round. Holdings that are open or ended since the last round must
// all be in it; those that ended long ago may be, and count once. One that is
// missing has ended, nobody knows when: it is counted up to the last round. A
// round that does not lie after the last one counts nothing.
func (t *Tally) Add(r Round) {
	t.seq++
	if r.Now > t.now {
		t.now = r.Now
	}
	byGPU := map[string][]*count{}
	for i := range r.Holdings {
		t.note(&r.Holdings[i])
	}
	for _, id := range t.sorted() {
		c := t.counts[id]
		if c.noted < t.seq {
			c.Until = min(c.Until, c.upTo)
		}
		byGPU[id.GPU] = append(byGPU[id.GPU], c)
	}
	for _, gpu := range slices.Sorted(maps.Keys(byGPU)) {
		look, seen := r.Looks[gpu]
		t.addGPU(byGPU[gpu], look, seen)
	}
	t.finish()
}

// note takes up what is said of a holding. Epilog may have looked at its clock
// just before a round and written its file just after: what was counted beyond
// the end is taken back.
func (t *Tally) note(h *Holding) {
	c, ok := t.counts[h.ID]
	if !ok {
		c = &count{upTo: h.From}
		t.counts[h.ID] = c
	}
	c.Holding, c.noted, c.unseen = *h, t.seq, false
	c.Until = max(c.Until, c.From)
	if c.bucket != nil && c.Until < c.upTo {
		t.takeBack(c)
	}
}

// takeBack takes back what was counted beyond the end. If a bucket has ended in
// between, it is closed anew.
func (t *Tally) takeBack(c *count) {
	t.cut(c, c.bucket)
	if last := c.last; last != nil && last.Incarnation == c.bucket.Incarnation && last.Until > t.wall(c.Until) {
		anew := *last // as it was it may be on its way
		t.cut(c, &anew)
		anew.Ended, anew.Seq = true, t.seq
		t.closed = append(t.closed, &anew)
	}
	c.upTo, c.pieces = c.Until, nil
}

// cut ends one of a holding's buckets where the holding ends. Of a GPU that was shared
// no more is taken back than was given: else all would keep what they had.
func (t *Tally) cut(c *count, b *Bucket) {
	for _, p := range c.pieces {
		if t.wall(p.from) >= b.From && t.wall(p.until) <= b.Until {
			b.Part -= p.part - p.before(c.Until)
		}
	}
	b.cut(t.wall(c.Until))
}

func (t *Tally) sorted() []ID {
	return slices.SortedFunc(maps.Keys(t.counts), ID.compare)
}

// addGPU counts all holdings of a GPU from one cut to the next, so that in
// between nothing changes.
func (t *Tally) addGPU(holders []*count, look Look, seen bool) {
	if seen {
		look.From = min(max(look.From, 0), t.now)
	} else {
		look.From = t.now
	}
	cuts := t.cuts(holders, look.From)
	for i := 1; i < len(cuts); i++ {
		s := stretch{from: cuts[i-1], until: cuts[i], look: look, now: t.now}
		for _, c := range holders {
			switch {
			case c.From > s.from:
			case c.upTo > s.from: // also if it is known by now to have ended before
				s.counted = append(s.counted, c)
			case c.Until > s.from:
				s.held = append(s.held, c)
			}
		}
		t.addStretch(&s)
	}
}

// cuts are all instants at which something changes, ascending.
func (t *Tally) cuts(holders []*count, lookFrom int64) []int64 {
	first := t.now
	at := []int64{t.now}
	for _, c := range holders {
		if c.upTo < c.Until {
			first = min(first, c.upTo)
		}
		at = append(at, c.From, c.upTo, c.Until)
	}
	at = append(at, first, lookFrom)
	for edge := t.starts(first) + t.length; edge-t.offset < t.now; edge += t.length {
		at = append(at, edge-t.offset)
	}
	at = slices.DeleteFunc(at, func(v int64) bool { return v < first || v > t.now })
	slices.Sort(at)
	return slices.Compact(at)
}

// starts is the beginning of the bucket of an instant since the boot, by the
// wall clock.
func (t *Tally) starts(boot int64) int64 {
	wall := boot + t.offset
	return wall - wall%t.length
}

func (t *Tally) wall(boot int64) fairshare.Instant { return fairshare.Instant(boot + t.offset) }

// addStretch counts a stretch for those who hold the GPU all through it.
func (t *Tally) addStretch(s *stretch) {
	parts := s.parts()
	for i, c := range s.held {
		b := t.bucketAt(c, s.from)
		b.Seq = t.seq
		b.Until = t.wall(s.until)
		b.Part += parts[i]
		if len(s.held)+len(s.counted) > 1 {
			b.Shared += s.length()
		}
		c.upTo = s.until
		c.pieces = slices.DeleteFunc(append(c.pieces, piece{s.from, s.until, parts[i]}), func(p piece) bool { return p.until < t.now-retractable })
		s.measure(c, parts[i], t.wall)
	}
}

// bucketAt is the bucket that is open for a holding at an instant.
func (t *Tally) bucketAt(c *count, at int64) *Bucket {
	starts := fairshare.Instant(t.starts(at))
	if c.bucket != nil && c.bucket.Starts == starts {
		return c.bucket
	}
	t.close(c)
	c.bucket = &Bucket{
		Starts: starts, Ends: starts + fairshare.Instant(t.length), GPU: c.GPU, JobID: c.JobID, Restart: c.Restart,
		Incarnation: derive(t.incarnation, c.From, c.ended), Source: c.Source, User: c.User, Account: c.Account, JobStarted: c.JobStarted,
		From: t.wall(at), LastBusy: c.lastBusy,
	}
	if c.MPSPercent > 0 {
		percent := c.MPSPercent
		c.bucket.MPSPercent = &percent
	}
	c.busy, c.busyKnown, c.sharedBusy, c.sharedBusyKnown, c.energy = 0, 0, 0, 0, 0
	return c.bucket
}

// close hands out the bucket that is open for a holding.
func (t *Tally) close(c *count) {
	if c.bucket != nil {
		t.closed = append(t.closed, c.bucket)
		c.last, c.bucket = c.bucket, nil
	}
}

// finish closes the buckets of holdings that have ended and forgets those that
// ended long ago.
func (t *Tally) finish() {
	awaited := t.awaited()
	for _, id := range t.sorted() {
		c := t.counts[id]
		if c.upTo < c.Until {
			continue
		}
		if c.bucket != nil {
			c.bucket.Ended, c.bucket.Seq = true, t.seq
			t.close(c)
			c.ended++
		}
		since, ok := awaited[id.GPU]
		if !ok {
			since = t.now - remembered
		}
		if c.noted < t.seq && !c.unseen && c.upTo < since {
			delete(t.counts, id)
		}
	}
}

// awaited are the GPUs of holdings that are to be counted on when this process is
// told of them, and since when: whoever held the GPU since then may have shared it.
func (t *Tally) awaited() map[string]int64 {
	since := map[string]int64{}
	for id, c := range t.counts {
		if !c.unseen {
			continue
		}
		at, ok := since[id.GPU]
		if !ok {
			at = t.now - remembered
		}
		since[id.GPU] = max(min(at, c.upTo), t.now-rememberedAtMost)
	}
	return since
}

// Closed hands out the buckets that won't change any more, once.
func (t *Tally) Closed() []*Bucket {
	closed := t.closed
	t.closed = nil
	return closed
}

// Buckets are those that will change, as they are now.
func (t *Tally) Buckets() []*Bucket {
	var open []*Bucket
	for _, id := range t.sorted() {
		if b := t.counts[id].bucket; b != nil {
			copied := *b
			open = append(open, &copied)
		}
	}
	return open
}

// Marks are up to when each holding has been counted.
func (t *Tally) Marks() []Mark {
	marks := make([]Mark, 0, len(t.counts))
	for id, c := range t.counts {
		marks = append(marks, Mark{id, c.upTo, c.MPSPercent})
	}
	slices.SortFunc(marks, func(a, b Mark) int { return a.compare(b.ID) })
	return marks
}

// UpTo is up to when a holding has been counted, 0 if it has not.
func (t *Tally) UpTo(id ID) int64 {
	if c, ok := t.counts[id]; ok {
		return c.upTo
	}
	return 0
}

// Forget takes holdings that another process has counted and that this one was
// never told of for ended: they are remembered as long as others that have.
func (t *Tally) Forget() {
	for _, c := range t.counts {
		c.unseen = false
	}
}

// Counted tells whether a holding has ended and all of it has been counted.
func (t *Tally) Counted(id ID) bool {
	c, ok := t.counts[id]
	return ok && c.upTo >= c.Until
}

// derive is the incarnation of one holding, a UUID: of a job that comes back to
// a GPU within the hour, or that had been taken for gone, no second bucket may
// replace the first.
func derive(incarnation string, from int64, ended int) string {
	return UUID(fmt.Sprintf("%s/%d/%d", incarnation, from, ended))
}

// UUID is a UUID that is made of a text.
func UUID(text string) string {
	sum := sha256.Sum256([]byte(text))
	sum[6] = sum[6]&0x0f | 0x80 // version 8: made in a way of our own
	sum[8] = sum[8]&0x3f | 0x80
	h := hex.EncodeToString(sum[:16])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
