// SPDX-License-Identifier: GPL-2.0-or-later

package trace

import (
	"fmt"
	"time"

	"gpubudget/simulate"
)

// Record is a run that gpubudget has on record.
type Record struct {
	Account, User, Partition, QOS string
	Start                         time.Time
	Ran                           time.Duration // so far
	Running                       bool
	GPUs                          int64
	Unallocated                   bool
	MinRuntime                    *time.Duration // nil if it isn't known
}

// Pending is jobs of one user that wait now, as the plugin counts them.
type Pending struct {
	Account, User string
	Jobs, GPUs    int64
}

// Queue is what was to be seen of the queue, and when.
type Queue struct {
	Seen    time.Time // zero if it never was
	Pending []Pending
}

// Recorded makes a trace of runs and of the queue now. When runs were submitted
// and what their time limits were is not on record. For how long a job goes on
// that runs or waits now is drawn from what ran, the user's own runs if there are
// any, or else his account's or all.
func Recorded(records []Record, q Queue, o Options) *Trace {
	r := newReader(o, "recorded runs")
	r.Notes = append(r.Notes, "submissions: runs are taken to have been submitted when they started")
	p := newPast(records)
	running := 0
	for i := range records {
		record := &records[i]
		x := row{
			line: i + 1, account: record.Account, user: record.User, partition: record.Partition, qos: record.QOS,
			submit: record.Start.Unix(), run: int64(record.Ran / time.Second), gpus: record.GPUs, minRuntime: simulate.Undeclared,
		}
		switch {
		case record.Unallocated:
			x.minRuntime = 0
		case record.MinRuntime != nil && *record.MinRuntime > 0:
			x.minRuntime = int64(*record.MinRuntime / time.Second)
		}
		if record.Running && !q.Seen.IsZero() {
			running++
			x.run = p.goesOn(r, record)
		}
		if record.User == "" {
			x.fail(RowError{Kind: "no user", Want: fmt.Sprintf("run %d has none", i+1)})
		}
		r.add(&x)
	}
	waiting := r.pending(p, q)
	if running+waiting > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf(
			"queue: %d jobs ran and %d waited at %s; how long they take is drawn from what ran, and a user's waiting jobs are taken to be of one size (seed %d)",
			running, waiting, q.Seen.In(r.options.Zone).Format("2006-01-02T15:04:05"), o.Seed))
	}
	for i := range r.Jobs {
		r.Jobs[i].Line = 0 // nobody has the lines before him
	}
	r.firstLate = 0
	return r.finish()
}

// pending adds the jobs that wait.
func (r *reader) pending(p *past, q Queue) (jobs int) {
	for _, w := range q.Pending {
		for i := range w.Jobs {
			like := p.like(r, w.Account, w.User, 0)
			gpus := w.GPUs / w.Jobs
			if i < w.GPUs%w.Jobs {
				gpus++
			}
			jobs++
			r.add(&row{
				line: jobs, account: w.Account, user: w.User, partition: like.Partition, submit: q.Seen.Unix(),
				run: int64(like.Ran / time.Second), gpus: gpus, minRuntime: simulate.Undeclared, queued: true,
			})
		}
	}
	return jobs
}

// past is the runs that have ended, by whom they resemble.
type past struct {
	byUser    map[simulate.Owner][]*Record
	byAccount map[string][]*Record
	all       []*Record
}

func newPast(records []Record) *past {
	p := &past{byUser: make(map[simulate.Owner][]*Record), byAccount: make(map[string][]*Record)}
	for i := range records {
		record := &records[i]
		if record.Running || record.GPUs == 0 {
			continue
		}
		owner := simulate.Owner{Account: record.Account, User: record.User}
		p.byUser[owner] = append(p.byUser[owner], record)
		p.byAccount[record.Account] = append(p.byAccount[record.Account], record)
		p.all = append(p.all, record)
	}
	return p
}

// like draws a run that took longer than some time, of those that say most. If
// none did it is an hour more.
func (p *past) like(r *reader, account, user string, longer time.Duration) Record {
	for _, of := range [][]*Record{p.byUser[simulate.Owner{Account: account, User: user}], p.byAccount[account], p.all} {
		var fit []*Record
		for _, record := range of {
			if record.Ran > longer {
				fit = append(fit, record)
			}
		}
		if len(fit) > 0 {
			return *fit[r.rng.IntN(len(fit))]
		}
	}
	return Record{Ran: longer + time.Hour}
}

// goesOn is for how long a job runs in all that has run for a while.
func (p *past) goesOn(r *reader, record *Record) int64 {
	return int64(p.like(r, record.Account, record.User, record.Ran).Ran / time.Second)
}
