// SPDX-License-Identifier: GPL-2.0-or-later

// Package metered reads what the meters on the nodes saw, and holds it against
// Slurm's record of the runs.
//
// Who is charged what is decided by the runs. What a meter covered of a run is
// charged as metered occupancy, what none covered from Slurm's record; what was
// metered outside any run is charged to nobody. Together that is the run, to the
// millisecond: a meter that was away makes nobody's jobs cheaper or dearer.
package metered

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// Store reads the meters' records in Postgres.
type Store struct {
	db usage.DB
}

// NewStore is a store on db, whose schema must be migrated.
func NewStore(db usage.DB) *Store { return &Store{db: db} }

// Startup is how much later than the run a holding may begin without a gap between
// the two. Slurm keeps whole seconds, rounded down, and Prolog, with which the
// holding begins, is a part of starting the job: where it follows so soon, no meter
// was away.
const Startup = 5 * time.Second

// Filter chooses what is read. The zero value is everything.
type Filter struct {
	JobID uint32 // 0: all
	// OpenUntil is up to when open runs count; 0 is the end of the period.
	OpenUntil fairshare.Instant
}

// Reading is what meters saw in a period, beside the runs.
type Reading struct {
	Cluster string
	Period  fairshare.Period
	Runs    []Run     // by job and start; without GPUs only if something was metered
	Outside []Outside // by job, GPU and time
}

// Run is a run and what was metered of it, within the period of the reading.
type Run struct {
	usage.Run

	// Within is the part of the run that lies in the period; an open run ends
	// with it.
	Within fairshare.Period
	// Used is what the run has used there. Covered of it was metered: at no
	// instant more GPUs than the run has. Uncovered was not, and is charged from
	// Slurm's record.
	Used, Covered, Uncovered fairshare.GPUMillis

	Gaps  []Gap // where not all of its GPUs were metered
	Extra []Gap // where more GPUs were metered than it has, and how much more
	GPUs  []GPU // what was metered, by node and GPU
}

// GPUCount is on how many GPUs the run has whole GPUs or parts of some: of one on
// shards at least one on each of its nodes.
func (r *Run) GPUCount() int64 { return gpuCount(&r.Run) }

func gpuCount(r *usage.Run) int64 {
	if r.Parts == 0 {
		return r.GPUs
	}
	return r.GPUs + max((r.Parts+fairshare.Millionths-1)/fairshare.Millionths, int64(len(Nodes(r.Nodes))))
}

// Charge is what the run is charged for, if it is charged: metered occupancy and,
// where no meter was, Slurm's record. What that counts for is another matter.
func (r *Run) Charge() fairshare.GPUMillis { return r.Covered + r.Uncovered }

// GPU is a GPU that a run held by a meter's word.
type GPU struct {
	Node, UUID string
	Held       []fairshare.Period // within the run; ascending, apart from each other
	Shared     bool               // other jobs held it at the same time
	Amounts    Amounts
	// LastBusy is when it was last seen at work for the job; IdleSince from when
	// it is known to have been idle up to the end of what is metered. nil is not
	// known, or never, or not idle.
	LastBusy, IdleSince *fairshare.Instant
	Ended               bool // the holding has ended
}

// HeldMillis is for how long it was held.
func (g *GPU) HeldMillis() int64 { return length(g.Held) }

// Until is the end of what is metered.
func (g *GPU) Until() fairshare.Instant { return g.Held[len(g.Held)-1].Until }

// Idle is for how long it has been idle at the end of what is metered, in
// milliseconds; 0 if it is not known to be.
func (g *GPU) Idle() int64 {
	if g.IdleSince == nil {
		return 0
	}
	return max(0, int64(g.Until()-max(*g.IdleSince, g.Held[0].From)))
}

// Outside is metered time that lies in no run of its job.
type Outside struct {
	fairshare.Period

	JobID, Restart uint32
	Node, GPU      string
	User           string // as Prolog knew it
	Known          bool   // Slurm's record has some run of the job in the period
}

// Read reads what was metered in a period, and the runs in it.
func (s *Store) Read(ctx context.Context, cluster string, w fairshare.Period, f Filter) (*Reading, error) {
	out := &Reading{Cluster: cluster, Period: w}
	if w.Empty() {
		return out, nil
	}
	err := usage.NewStore(s.db).Snapshot(ctx, func(u *usage.Store) error {
		runs, err := runsIn(ctx, u, cluster, w, f.JobID)
		if err != nil {
			return err
		}
		j := joiner{reading: out, runs: map[uint32][]usage.Run{}}
		until := w.Until
		if f.OpenUntil != 0 {
			until = min(until, f.OpenUntil)
		}
		for i := range runs {
			r := &runs[i]
			if r.Open() {
				r.EndedAt = new(later(r.StartedAt, until.Time()))
			}
			j.runs[r.JobID] = append(j.runs[r.JobID], *r)
		}
		if err := NewStore(u.DB()).buckets(ctx, cluster, w, f.JobID, j.add); err != nil {
			return err
		}
		j.finish()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read what was metered in %s: %w", cluster, err)
	}
	return out, nil
}

// runsIn are the runs in a period, or those of one job.
func runsIn(ctx context.Context, u *usage.Store, cluster string, w fairshare.Period, job uint32) ([]usage.Run, error) {
	if job == 0 {
		return u.Runs(ctx, cluster, w)
	}
	runs, err := u.JobRuns(ctx, cluster, job)
	return slices.DeleteFunc(runs, func(r usage.Run) bool { return r.Period(w.Until.Time()).Intersect(w).Empty() }), err
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// joiner puts buckets, which come job by job, together with runs.
type joiner struct {
	reading *Reading
	runs    map[uint32][]usage.Run
	job     uint32
	pending []Bucket // of the job
}

func (j *joiner) add(b *Bucket) {
	if b.JobID != j.job {
		j.flush()
		j.job = b.JobID
	}
	j.pending = append(j.pending, *b)
}

func (j *joiner) flush() {
	if len(j.pending) == 0 {
		return
	}
	j.join(j.runs[j.job], j.pending)
	delete(j.runs, j.job)
	j.pending = j.pending[:0]
}

// finish adds the runs of which nothing was metered, and sorts.
func (j *joiner) finish() {
	j.flush()
	for _, job := range slices.Sorted(maps.Keys(j.runs)) {
		j.join(j.runs[job], nil)
	}
	slices.SortFunc(j.reading.Runs, func(a, b Run) int {
		return cmp.Or(cmp.Compare(a.JobID, b.JobID), a.StartedAt.Compare(b.StartedAt))
	})
}

// join puts the buckets of a job into its runs: those of the same restart, or by
// time alone where the restart is not known. What is left over lies outside.
func (j *joiner) join(runs []usage.Run, buckets []Bucket) {
	type key struct {
		restart   uint32
		node, gpu string
	}
	type left struct {
		periods []fairshare.Period
		user    string
	}
	outside := map[key]*left{}
	inRun := make([][]part, len(runs))
	for i := range buckets {
		b := &buckets[i]
		var mine []fairshare.Period
		for n := range runs {
			r := &runs[n]
			if b.Source == fromProlog && b.Restart != r.Restart {
				continue
			}
			run := r.Period(r.StartedAt)
			p := run.Intersect(b.Held)
			if p.Empty() {
				continue
			}
			mine = append(mine, p)
			inRun[n] = append(inRun[n], part{b, p.Intersect(j.reading.Period), b.begun(p, run.From).Intersect(j.reading.Period)})
		}
		k := key{b.Restart, b.Node, b.GPU}
		for _, p := range without(b.Held.Intersect(j.reading.Period), union(mine)) {
			if outside[k] == nil {
				outside[k] = &left{user: b.User}
			}
			outside[k].periods = append(outside[k].periods, p)
		}
	}
	for n := range runs {
		if r := j.run(&runs[n], inRun[n]); r.GPUCount() > 0 || len(r.GPUs) > 0 {
			j.reading.Runs = append(j.reading.Runs, r)
		}
	}
	keys := slices.SortedFunc(maps.Keys(outside), func(a, b key) int {
		return cmp.Or(cmp.Compare(a.restart, b.restart), cmp.Compare(a.node, b.node), cmp.Compare(a.gpu, b.gpu))
	})
	for _, k := range keys {
		for _, p := range union(outside[k].periods) {
			j.reading.Outside = append(j.reading.Outside, Outside{
				Period: p, JobID: j.job, Restart: k.restart, Node: k.node, GPU: k.gpu, User: outside[k].user, Known: len(runs) > 0,
			})
		}
	}
}

// part is the part of a bucket's holding that lies in a run and in the period.
type part struct {
	*Bucket

	in      fairshare.Period
	covered fairshare.Period // the same, from the run's start on if the holding began soon after it
}

// begun is the part of a holding that lies in a run, from the run's start on if it
// is the beginning of the holding and that follows soon.
func (b *Bucket) begun(p fairshare.Period, start fairshare.Instant) fairshare.Period {
	if late := p.From - start; p.From == b.Held.From && p.From > b.From && late > 0 && late <= fairshare.Instant(Startup.Milliseconds()) {
		p.From = start
	}
	return p
}

// run is a run with its parts, which come by node, GPU and time.
func (j *joiner) run(r *usage.Run, parts []part) Run {
	out := Run{Run: *r, Within: r.Period(r.StartedAt).Intersect(j.reading.Period)}
	for i := range parts {
		p := &parts[i]
		if p.covered.Empty() {
			continue
		}
		n := len(out.GPUs) - 1
		if n < 0 || out.GPUs[n].Node != p.Node || out.GPUs[n].UUID != p.GPU {
			out.GPUs = append(out.GPUs, GPU{Node: p.Node, UUID: p.GPU})
			n++
		}
		g := &out.GPUs[n]
		g.Held = append(g.Held, p.covered)
		amounts := p.Amounts.scaled(p.in.Millis(), p.Held.Millis())
		g.Amounts.Add(&amounts)
		g.Shared = g.Shared || p.Shared > 0
		g.LastBusy, g.IdleSince, g.Ended = p.LastBusy, p.IdleSince, p.Ended
	}
	held := make([][]fairshare.Period, len(out.GPUs))
	for i := range out.GPUs {
		g := &out.GPUs[i]
		g.Held = union(g.Held)
		g.Amounts.within(g.HeldMillis())
		held[i] = g.Held
	}
	c := coverOf(r, out.Within, held)
	out.Covered, out.Uncovered, out.Gaps, out.Extra = c.covered, c.uncovered, c.gaps, c.extra
	out.Used = r.GPUMillis(out.Within.Until.Time()) - r.GPUMillis(out.Within.From.Time())
	return out
}

const fromProlog = "prolog"

// Bucket is what one incarnation of a node's agent counted of one holding in one
// bucket: a row of gpu_bucket.
type Bucket struct {
	fairshare.Period // the bucket

	Node, GPU           string
	JobID, Restart      uint32
	Source              string // "prolog", or "process": the restart is not known
	User, Account       string // as Prolog knew them
	Held                fairshare.Period
	Ended               bool  // the holding ended with Held
	Shared, Part        int64 // milliseconds that others held it too, and the job's part
	Amounts             Amounts
	LastBusy, IdleSince *fairshare.Instant
}

// Buckets are the rows of a job, by node, GPU and time.
func (s *Store) Buckets(ctx context.Context, cluster string, w fairshare.Period, job uint32) ([]Bucket, error) {
	var all []Bucket
	if err := s.buckets(ctx, cluster, w, job, func(b *Bucket) { all = append(all, *b) }); err != nil {
		return nil, fmt.Errorf("read what was metered of job %d: %w", job, err)
	}
	return all, nil
}

// buckets tells of the rows in a period, job by job, and of those of holdings that
// begin soon after it. A bucket is no longer than a day, and so are the partitions
// that are looked into.
func (s *Store) buckets(ctx context.Context, cluster string, w fairshare.Period, job uint32, tell func(*Bucket)) error {
	rows, err := s.db.Query(ctx, `
		SELECT gpubudget.unix_ms(starts_at), gpubudget.unix_ms(ends_at), node, gpu, job_id, restart, source, user_name, account,
			gpubudget.unix_ms(held_from), gpubudget.unix_ms(held_until), ended, shared_ms, part_ms,
			busy_ms, busy_known_ms, memory_mib_ms, memory_known_ms, memory_max_mib,
			energy_mj, energy_known_ms, process_ms, process_known_ms,
			gpubudget.unix_ms(last_busy_at), gpubudget.unix_ms(idle_since)
		FROM gpubudget.gpu_bucket
		WHERE cluster = $1 AND starts_at > $2::timestamptz - interval '1 day' AND starts_at < $3
		  AND held_until > $2 AND held_from < $3 AND ($4::bigint = 0 OR job_id = $4)
		ORDER BY job_id, node, gpu, held_from, held_until, starts_at, restart, incarnation`,
		cluster, w.From.Time(), w.Until.Time().Add(Startup), int64(job))
	if err != nil {
		return err
	}
	var b Bucket
	a := &b.Amounts
	_, err = pgx.ForEachRow(rows, []any{
		&b.From, &b.Until, &b.Node, &b.GPU, &b.JobID, &b.Restart, &b.Source, &b.User, &b.Account,
		&b.Held.From, &b.Held.Until, &b.Ended, &b.Shared, &b.Part,
		&a.Busy, &a.BusyKnown, &a.Memory, &a.MemoryKnown, &a.MemoryMax,
		&a.Energy, &a.EnergyKnown, &a.Process, &a.ProcessKnown,
		&b.LastBusy, &b.IdleSince,
	}, func() error {
		tell(&b)
		return nil
	})
	return err
}
