// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"gpubudget/explain"
	"gpubudget/fairshare"
	"gpubudget/report"
	"gpubudget/usage"
)

// contractView is what the contract says of a job, and what came of it.
type contractView struct {
	job         uint32
	run         *usage.Run     // of a job that runs
	offer       *explain.Offer // to a job that waits
	preemptions []usage.Preemption
}

// evictionDay is the time in which preemptions of a job count for R7.
const evictionDay = 24 * time.Hour

func (db *database) contractOf(ctx context.Context, rec *report.Record, f *finding) (*contractView, error) {
	v := &contractView{job: f.job.JobID}
	var err error
	if v.preemptions, err = db.usage.PreemptionsOf(ctx, rec.Cluster, f.job.JobID); err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(rec.Open, func(r usage.Run) bool { return r.JobID == f.job.JobID }); i >= 0 && !f.job.Pending() {
		v.run = &rec.Open[i]
	}
	if !f.job.Pending() || f.job.GPUs == 0 || len(f.rows) == 0 {
		return v, nil
	}
	recent, err := db.usage.Preemptions(ctx, rec.Cluster, rec.At.Add(-evictionDay))
	if err != nil {
		return nil, err
	}
	times := map[uint32]int{}
	for _, p := range recent {
		if p.Rule != usage.Drain {
			times[p.Job.JobID]++
		}
	}
	offer := explain.OfferTo(rec, requestOf(rec, f), func(job uint32) int { return times[job] })
	v.offer = &offer
	return v, nil
}

// requestOf is a job that waits as the contract sees it. Its minimum runtime is
// what its account's jobs have by default, for want of a command that shows it.
func requestOf(rec *report.Record, f *finding) fairshare.Request {
	last := f.Path[len(f.Path)-1]
	funded := last.Funded
	for _, l := range f.Path {
		if l.Account == f.Subject.Account && l.User == "" {
			funded = funded || l.Funded
		}
	}
	terms := fairshare.Terms{Default: rec.Policy.MinRuntime, Cap: rec.Policy.MinRuntimeCap, Accounts: rec.MinRuntimes}
	terms = terms.Of(f.Subject.Account, func(account string) string {
		for i := 1; i < len(f.Path); i++ {
			if f.Path[i].Account == account && f.Path[i-1].Account != account {
				return f.Path[i-1].Account
			}
		}
		return ""
	})
	return fairshare.Request{
		Account: f.Subject.Account, GPUs: f.job.GPUs, Allocated: funded && !f.Unallocated,
		MinRuntime: terms.MinRuntime(fairshare.NotAsked, 0), Nice: f.job.Nice,
	}
}

// lines are the view for people, one for each thing it says.
func (v *contractView) lines(p *program, rec *report.Record) []string {
	if v == nil {
		return nil
	}
	var lines []string
	if v.run != nil {
		lines = append(lines, p.runLine(v.run, rec))
	}
	if v.offer != nil {
		lines = append(lines, p.offerLines(v.offer)...)
	}
	for i := range v.preemptions {
		lines = append(lines, p.preemptionLine(&v.preemptions[i], v.job))
	}
	return lines
}

func (p *program) runLine(r *usage.Run, rec *report.Record) string {
	began := "it runs since " + p.formatTime(r.StartedAt)
	until, protected := r.ProtectedUntil(rec.UsedUntil)
	switch {
	case !r.Allocated:
		return began + " unallocated: it is charged to nobody, and yields to any allocated job at once (R1)"
	case !protected:
		return began + ", and for how long it is protected isn't known: an older release has recorded its beginning"
	case rec.UsedUntil.Before(until):
		return fmt.Sprintf("%s, and is protected until %s (R2); then it yields to jobs of accounts that are further behind than %s (R3), and of its own with a higher declared priority (R4)",
			began, p.formatTime(until), r.Account)
	}
	return fmt.Sprintf("%s, and was protected until %s: now it yields to jobs of accounts that are further behind than %s (R3), and of its own with a higher declared priority (R4)",
		began, p.formatTime(until), r.Account)
}

func (p *program) offerLines(o *explain.Offer) []string {
	if !o.Request.Allocated {
		return []string{"it preempts nobody: it is unallocated (R5)"}
	}
	free, ahead := 0, 0
	for _, y := range o.Yields {
		if y.Rule == fairshare.R1 {
			free++
		} else {
			ahead++
		}
	}
	lines := make([]string, 0, 2)
	switch others := o.Protected + o.Ahead; {
	case len(o.Yields) == 0 && others == 0: // nobody else runs
	case len(o.Yields) == 0:
		lines = append(lines, fmt.Sprintf("none of the running jobs of other accounts (%d) would yield to it now: protected (R2) %d, of accounts that %s is not far enough behind (R3) %d",
			others, o.Protected, o.Request.Account, o.Ahead))
	default:
		lines = append(lines, fmt.Sprintf("%s on %s would yield to it now: %d unallocated (R1), %d of accounts that are ahead of %s (R3)",
			count(int64(len(o.Yields)), "running job"), count(o.GPUs, "GPU"), free, ahead, o.Request.Account))
	}
	if o.Next != nil {
		lines = append(lines, fmt.Sprintf("the next protection to end of a job that will yield to it is that of job %d of %s in %s, at %s",
			o.Next.Run.JobID, o.Next.Run.User, o.Next.Run.Account, p.formatTime(o.Next.ProtectedUntil)))
	}
	return lines
}

func (p *program) preemptionLine(e *usage.Preemption, job uint32) string {
	at := p.formatTime(e.At)
	switch {
	case e.For == nil:
		return fmt.Sprintf("at %s it was requeued from node %s, which was drained: %s", at, e.Node, p.protection(e))
	case e.For.JobID == job:
		return fmt.Sprintf("at %s job %d of %s in %s made way for it (%s: %s); %s, %s", at, e.Job.JobID, e.Job.User, e.Job.Account, e.Rule, explain.Rules[e.Rule],
			standing(e.For), standing(&e.Job))
	}
	return fmt.Sprintf("at %s it was preempted for job %d of %s in %s (%s: %s); %s, %s; %s", at, e.For.JobID, e.For.User, e.For.Account, e.Rule, explain.Rules[e.Rule],
		standing(e.For), standing(&e.Job), p.protection(e))
}

func (p *program) protection(e *usage.Preemption) string {
	if e.ProtectedUntil == nil {
		return "that run was unallocated and never protected"
	}
	return "that run was protected until " + p.formatTime(*e.ProtectedUntil)
}

// standing is how an account stood at a preemption.
func standing(p *usage.Party) string {
	text := p.Account
	switch {
	case p.Ratio == nil:
	case math.IsInf(*p.Ratio, 1):
		text += " was charged nothing"
	default:
		text += " was due " + strconv.FormatFloat(*p.Ratio, 'f', 2, 64) + " of what it was charged"
	}
	if p.Rank > 0 {
		text += ", rank " + strconv.Itoa(p.Rank)
	}
	return text
}

// goneJob is the error of a job that squeue does not list, with what is known of
// it.
func (p *program) goneJob(ctx context.Context, db *database, cluster, word string) error {
	err := fmt.Errorf("unknown job %s: squeue does not list it; one that has ended is shown by sacct -j %s", word, word)
	job, parseErr := strconv.ParseUint(word, 10, 32)
	if parseErr != nil {
		return err
	}
	known, readErr := db.usage.PreemptionsOf(ctx, cluster, uint32(job))
	if readErr != nil || len(known) == 0 {
		return err
	}
	return fmt.Errorf("%w; %s", err, p.preemptionLine(&known[len(known)-1], uint32(job)))
}

// The JSON of a contractView.
type (
	contractJSON struct {
		StartedAt      *time.Time       `json:"started_at,omitempty"`
		Allocated      *bool            `json:"allocated,omitempty"` // of the run, or the request
		ProtectedUntil *time.Time       `json:"protected_until,omitempty"`
		Protected      *bool            `json:"protected,omitempty"`
		YieldingJobs   []uint32         `json:"yielding_jobs,omitempty"`
		YieldingGPUs   *int64           `json:"yielding_gpus,omitempty"`
		NextEnd        *time.Time       `json:"next_protection_ends,omitempty"`
		NextJob        uint32           `json:"next_job,omitempty"`
		Preemptions    []preemptionJSON `json:"preemptions,omitempty"`
		Text           []string         `json:"text"`
	}
	preemptionJSON struct {
		At             time.Time  `json:"at"`
		Rule           string     `json:"rule"`
		Node           string     `json:"node,omitempty"`
		Job            partyJSON  `json:"job"`
		StartedAt      time.Time  `json:"started_at"`
		ProtectedUntil *time.Time `json:"protected_until"`
		For            *partyJSON `json:"for"`
	}
	partyJSON struct {
		JobID         uint32   `json:"job_id"`
		Account       string   `json:"account"`
		User          string   `json:"user"`
		GPUs          int64    `json:"gpus"`
		Allocated     bool     `json:"allocated"`
		Ratio         *float64 `json:"ratio"` // due by charged
		RatioInfinite bool     `json:"ratio_infinite"`
		Rank          *int     `json:"rank"`
	}
)

func (v *contractView) json(p *program, rec *report.Record) *contractJSON {
	if v == nil {
		return nil
	}
	out := &contractJSON{Text: append([]string{}, v.lines(p, rec)...)}
	if r := v.run; r != nil {
		out.StartedAt, out.Allocated = &r.StartedAt, &r.Allocated
		if until, ok := r.ProtectedUntil(rec.UsedUntil); ok {
			out.ProtectedUntil, out.Protected = &until, new(rec.UsedUntil.Before(until))
		}
	}
	if o := v.offer; o != nil {
		out.Allocated, out.YieldingGPUs = &o.Request.Allocated, &o.GPUs
		for _, y := range o.Yields {
			out.YieldingJobs = append(out.YieldingJobs, y.Run.JobID)
		}
		if o.Next != nil {
			out.NextEnd, out.NextJob = &o.Next.ProtectedUntil, o.Next.Run.JobID
		}
	}
	for i := range v.preemptions {
		e := &v.preemptions[i]
		row := preemptionJSON{At: e.At, Rule: e.Rule, Node: e.Node, Job: partyOf(&e.Job), StartedAt: e.StartedAt, ProtectedUntil: e.ProtectedUntil}
		if e.For != nil {
			row.For = new(partyOf(e.For))
		}
		out.Preemptions = append(out.Preemptions, row)
	}
	return out
}

func partyOf(p *usage.Party) partyJSON {
	out := partyJSON{JobID: p.JobID, Account: p.Account, User: p.User, GPUs: p.GPUs, Allocated: p.Allocated}
	if p.Ratio != nil {
		if out.RatioInfinite = math.IsInf(*p.Ratio, 1); !out.RatioInfinite {
			out.Ratio = p.Ratio
		}
	}
	if p.Rank > 0 {
		out.Rank = &p.Rank
	}
	return out
}
