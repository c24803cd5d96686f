// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpubudget/cmd/gpubudget/queue"
	"gpubudget/explain"
	"gpubudget/fairshare"
	"gpubudget/internal/slurmtime"
	"gpubudget/report"
	"gpubudget/usage"
)

// contractView is what the contract says of a job, and what came of it.
type contractView struct {
	job         uint32
	running     *running // of a job that runs
	request     *request // of a job that waits
	preemptions []usage.Preemption
}

// running is a job that runs as the contract sees it.
type running struct {
	run        *usage.Run
	protection usage.Protection // with all components of a het job
	at         time.Time
	spared     time.Time // until when R7 spares it, as it was preempted so often; zero if it doesn't
	rules      fairshare.Contract
}

// request is a job that waits as the contract sees it, and what it is offered.
type request struct {
	offer explain.Offer
	asked time.Duration // fairshare.NotAsked
	since time.Time     // since when it could start; zero if that is not known
	vain  vain
	terms fairshare.Terms
	rules fairshare.Contract
}

// vain is how often others were evicted for a request that doesn't run yet.
type vain struct {
	rounds int
	last   time.Time
	until  time.Time // from when on others may be again; zero if they may be now
}

// vainOf goes by the record. The components of a het job start together or not at all,
// and so are one. Of arrays it can't be told how many tasks wait.
func vainOf(recent []usage.Preemption, q *queue.Queue, job *queue.Job, since, now time.Time) (v vain) {
	if strings.Contains(job.ID, "_") {
		return v
	}
	at := map[uint32][]fairshare.Instant{job.JobID: nil}
	for i := range q.Jobs {
		if other := &q.Jobs[i]; job.HetJobID != 0 && other.HetJobID == job.HetJobID {
			at[other.JobID] = nil
		}
	}
	for i := range recent {
		e := &recent[i]
		if e.For == nil || e.At.Before(since) {
			continue
		}
		if _, mine := at[e.For.JobID]; mine {
			at[e.For.JobID] = append(at[e.For.JobID], fairshare.At(e.At))
		}
	}
	for _, evictions := range at {
		if len(evictions) > 0 {
			v.rounds = max(v.rounds, fairshare.Rounds(evictions))
			v.last = latest(v.last, evictions[len(evictions)-1].Time())
		}
	}
	if until := v.last.Add(time.Duration(fairshare.PauseAfter(v.rounds)) * time.Millisecond); until.After(now) {
		v.until = until
	}
	return v
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// evictionDay is the time in which preemptions of a job count for R7.
const evictionDay = 24 * time.Hour

func (p *program) contractOf(ctx context.Context, db *database, rec *report.Record, q *queue.Queue, f *finding) (*contractView, error) {
	v := &contractView{job: f.job.JobID}
	var err error
	if v.preemptions, err = db.usage.PreemptionsOf(ctx, rec.Cluster, f.job.JobID); err != nil {
		return nil, err
	}
	if !f.job.Pending() {
		v.running = runningOf(rec, f.job, v.preemptions)
		return v, nil
	}
	if f.job.GPUs == 0 || len(f.rows) == 0 {
		return v, nil
	}
	recent, err := db.usage.Preemptions(ctx, rec.Cluster, rec.At.Add(-evictionDay))
	if err != nil {
		return nil, err
	}
	asked, said, err := db.usage.Asked(ctx, rec.Cluster, f.job.JobID)
	if err != nil {
		return nil, err
	}
	if !said {
		asked = fairshare.NotAsked
	}
	prices, err := db.prices(ctx, rec)
	if err != nil {
		return nil, err
	}
	v.request = p.requestOf(rec, f, asked, prices)
	v.request.vain = vainOf(recent, q, f.job, v.request.since, rec.At)
	v.request.offer = explain.OfferTo(rec, v.request.offer.Request, newQueuedJobs(q, f.job, recent))
	return v, nil
}

// runningOf is a job that runs, nil if the recorder knows of no run on GPUs. A
// component of a het job that has none is where its siblings are.
func runningOf(rec *report.Record, job *queue.Job, preemptions []usage.Preemption) *running {
	for _, components := range usage.Jobs(rec.Open) {
		i := slices.IndexFunc(components, func(r *usage.Run) bool { return r.JobID == job.JobID })
		if i < 0 && (job.HetJobID == 0 || components[0].HetJobID != job.HetJobID) {
			continue
		}
		return &running{
			run: components[max(i, 0)], protection: usage.ProtectionOf(components, rec.UsedUntil), at: rec.UsedUntil,
			spared: sparedUntil(preemptions, job.JobID, rec.At, rec.Policy.Contract.PerDay), rules: rec.Policy.Contract,
		}
	}
	return nil
}

// sparedUntil is until when a job has been preempted so often within a day that it
// keeps its GPUs, by its preemptions, oldest first; zero if it hasn't.
func sparedUntil(preemptions []usage.Preemption, job uint32, now time.Time, perDay int) time.Time {
	var recent []time.Time
	for i := range preemptions {
		if e := &preemptions[i]; e.Job.JobID == job && e.Rule != usage.Drain && now.Sub(e.At) < evictionDay {
			recent = append(recent, e.At)
		}
	}
	if perDay <= 0 || len(recent) < perDay {
		return time.Time{}
	}
	return recent[len(recent)-perDay].Add(evictionDay)
}

// prices are what requests count for as the record was made.
func (db *database) prices(ctx context.Context, rec *report.Record) (*fairshare.Prices, error) {
	at := fairshare.At(rec.At)
	weights, err := db.weightsAt(ctx, rec.Cluster, at)
	if err != nil {
		return nil, err
	}
	gpus, _, err := db.usage.Schedulable(ctx, rec.Cluster, rec.At)
	if err != nil {
		return nil, err
	}
	prices := new(fairshare.Prices)
	prices.Set(weights, gpus, at)
	return prices, nil
}

// requestOf is a job that waits as the contract sees it.
func (p *program) requestOf(rec *report.Record, f *finding, asked time.Duration, prices *fairshare.Prices) *request {
	funded := f.Path[len(f.Path)-1].Funded
	for _, l := range f.Path {
		if l.Account == f.Subject.Account && l.User == "" {
			funded = funded || l.Funded
		}
	}
	r := &request{asked: asked, rules: rec.Policy.Contract}
	r.terms = fairshare.Terms{Default: rec.Policy.MinRuntime, Cap: rec.Policy.MinRuntimeCap, Accounts: rec.MinRuntimes}.Of(f.Subject.Account, parents(f.Path))
	r.offer.Request = fairshare.Request{
		Account: f.Subject.Account, GPUs: f.job.GPUs, Rate: prices.RateOf(fairshare.Holding{Type: f.job.GPUType, GPUs: f.job.GPUs}),
		Allocated:  funded && !f.Unallocated && !r.terms.Unallocated(asked),
		MinRuntime: r.terms.MinRuntime(asked, f.job.TimeLimit), Nice: f.job.Nice,
	}
	if since, err := time.ParseInLocation(slurmtime.Layout, f.job.Eligible, p.zone); err == nil {
		r.since, r.offer.Request.Waited = since, max(0, rec.At.Sub(since))
	}
	return r
}

// parents finds the account above another on a path from root down.
func parents(path []explain.Level) func(account string) string {
	return func(account string) string {
		for i := 1; i < len(path); i++ {
			if path[i].Account == account && path[i-1].Account != account {
				return path[i-1].Account
			}
		}
		return ""
	}
}

// queuedJobs answers explain.Queued.
type queuedJobs struct {
	times map[uint32]int
	qos   string
	jobs  map[uint32]*queue.Job
}

func newQueuedJobs(q *queue.Queue, request *queue.Job, recent []usage.Preemption) *queuedJobs {
	out := &queuedJobs{times: map[uint32]int{}, qos: request.QOS, jobs: map[uint32]*queue.Job{}}
	for i := range recent {
		if recent[i].Rule != usage.Drain {
			out.times[recent[i].Job.JobID]++
		}
	}
	for i := range q.Jobs {
		out.jobs[q.Jobs[i].JobID] = &q.Jobs[i]
	}
	return out
}

func (q *queuedJobs) Preempted(job uint32) int { return q.times[job] }

func (q *queuedJobs) Nice(job uint32) (nice int64, sameQOS bool) {
	j := q.jobs[job]
	if j == nil || j.QOS != q.qos {
		return 0, false
	}
	return j.Nice, true
}

// lines are the view for people, one for each thing it says.
func (v *contractView) lines(p *program) []string {
	if v == nil {
		return nil
	}
	var lines []string
	if v.running != nil {
		lines = append(lines, p.runLine(v.running))
	}
	if v.request != nil {
		lines = append(lines, p.requestLines(v.request)...)
	}
	for i := range v.preemptions {
		lines = append(lines, p.preemptionLine(&v.preemptions[i], v.job))
	}
	return lines
}

// runLine is what the owner of a running job may count on.
func (p *program) runLine(r *running) string {
	began := "it runs since " + p.formatTime(r.run.StartedAt)
	if !r.run.Allocated {
		began += " unallocated, " + whyUnallocated[r.run.Unallocated()] + ": it is charged to nobody"
	}
	until := p.formatTime(r.protection.Until)
	switch {
	case r.protection.GPUs == 0:
		return began + ", on parts of GPUs: it is preempted for nobody"
	case r.protection.Unknown:
		return began + ", and for how long it is protected isn't known, as an older release has recorded its beginning: it keeps its GPUs until that is known"
	case !r.protection.Allocated:
		return began + ", and yields to any allocated job at once (R1)"
	case r.at.Before(r.protection.Until):
		return began + ", and is protected until " + until + " (R2); then " + p.yieldsTo(r)
	case r.protection.Until.IsZero():
		return began + ", resized after its minimum runtime had passed: now " + p.yieldsTo(r)
	}
	return began + ", and was protected until " + until + ": now " + p.yieldsTo(r)
}

// whyUnallocated is why a run is charged to nobody.
var whyUnallocated = map[usage.Unallocated]string{
	usage.NoMinRuntime: "as it has no minimum runtime", usage.NoBudget: "as its account had no budget left when it began",
	usage.WhyUnknown: "for a reason that isn't known",
}

// yieldsTo is whom a job yields to that nothing protects.
func (p *program) yieldsTo(r *running) string {
	account := r.run.Account
	text := fmt.Sprintf("it yields to jobs of accounts that are further behind than %s by more than %s", account, percent(r.rules.Margin))
	if r.rules.PatientGPUs > 0 {
		text += fmt.Sprintf(", to larger ones for %d GPUs or more that have waited for %s also where it is by less", r.rules.PatientGPUs, spanOf(r.rules.Patience.Milliseconds()))
	}
	text += " (R3)"
	if r.rules.WithinAccount {
		text += fmt.Sprintf(", and to those of %s itself with a higher declared priority (R4)", account)
	}
	if r.spared.After(r.at) {
		text += fmt.Sprintf("; but not before %s, as it was preempted %d times within a day (R7)", p.formatTime(r.spared), r.rules.PerDay)
	}
	return text
}

// requestLines say what a job that waits may count on, and from whom.
func (p *program) requestLines(r *request) []string {
	q := &r.offer.Request
	if !q.Allocated {
		return []string{"it preempts nobody: it is unallocated (R5); once it runs it is charged to nobody, and yields to any allocated job at once (R1)"}
	}
	lines := []string{fmt.Sprintf("once it runs it is protected for %s (R2): %s", spanOf(q.MinRuntime.Milliseconds()), r.because())}
	if v := &r.vain; !v.until.IsZero() {
		lines = append(lines, fmt.Sprintf("others made way for it %d times, the last time at %s, and it could not start: before %s nobody else has to",
			v.rounds, p.formatTime(v.last), p.formatTime(v.until)))
	}
	lines = append(lines, p.offerLines(&r.offer)...)
	lines = append(lines, r.marginLine())
	if line := r.withinLine(); line != "" {
		lines = append(lines, line)
	}
	if line := p.patienceLine(r); line != "" {
		lines = append(lines, line)
	}
	return lines
}

// because is why the minimum runtime is what it is.
func (r *request) because() string {
	got := r.offer.Request.MinRuntime
	switch {
	case r.asked < 0 && got < r.terms.Default:
		return "its time limit; it asks for none, and would have " + spanOf(r.terms.Default.Milliseconds()) + " by the policy"
	case r.asked < 0:
		return "it asks for none, so that is the policy's for its account"
	case got == r.asked:
		return "as it asks"
	case got == r.terms.Cap:
		return "it asks for " + spanOf(r.asked.Milliseconds()) + ", and that is the longest there is"
	}
	return "it asks for " + spanOf(r.asked.Milliseconds()) + ", and that is its time limit"
}

// marginLine is R3 for the request.
func (r *request) marginLine() string {
	q := &r.offer.Request
	return fmt.Sprintf("of other accounts, it preempts jobs only where %s is further behind by more than %s, the %.2f GPU-hours for which it will be protected counted in (R3)",
		q.Account, percent(r.rules.Margin), q.Promised().Hours())
}

// withinLine is R4 for the request.
func (r *request) withinLine() string {
	o := &r.offer
	switch {
	case o.Same == 0:
		return ""
	case !r.rules.WithinAccount:
		return fmt.Sprintf("jobs of %s itself keep their GPUs: so says the policy preempt_within_account (R4)", o.Request.Account)
	}
	text := fmt.Sprintf("of %s itself, it preempts only jobs of a lower declared priority, by QOS and then by nice (R4)", o.Request.Account)
	if o.OtherQOS > 0 {
		text += fmt.Sprintf("; %s of another QOS would yield if that is the lower", count(int64(o.OtherQOS), "job"))
	}
	return text
}

// patienceLine is what becomes of a large request that waits.
func (p *program) patienceLine(r *request) string {
	q := &r.offer.Request
	if r.rules.PatientGPUs <= 0 || q.GPUs < r.rules.PatientGPUs || r.since.IsZero() {
		return ""
	}
	size := fmt.Sprintf("a request for %d GPUs or more", r.rules.PatientGPUs)
	if q.Waited >= r.rules.Patience {
		return fmt.Sprintf("it waits since %s, which is long for %s: jobs of other accounts that are smaller than it yield to it without that margin (R3: patience)",
			p.formatTime(r.since), size)
	}
	return fmt.Sprintf("if it still waits at %s, which is long for %s, jobs of other accounts that are smaller than it yield to it without that margin (R3: patience)",
		p.formatTime(r.since.Add(r.rules.Patience)), size)
}

func (p *program) offerLines(o *explain.Offer) []string {
	var lines []string
	if text := offerLine(o); text != "" {
		lines = append(lines, text)
	}
	if o.Next != nil {
		run := o.Next.Name()
		lines = append(lines, fmt.Sprintf("the next protection to end of a job that will yield to it is that of job %d of %s in %s, at %s",
			run.JobID, run.User, run.Account, p.formatTime(o.Next.ProtectedUntil)))
	}
	return lines
}

// offerLine is how many running jobs would yield, or why none does; "" if none runs.
func offerLine(o *explain.Offer) string {
	account := o.Request.Account
	if len(o.Yields) > 0 {
		var by [fairshare.R7 + 1]int
		for _, y := range o.Yields {
			by[y.Rule]++
		}
		text := fmt.Sprintf("%s on %s would yield to it now: %d unallocated (R1), %d of accounts that are ahead of %s (R3)",
			count(int64(len(o.Yields)), "running job"), count(o.GPUs, "GPU"), by[fairshare.R1], by[fairshare.R3], account)
		if by[fairshare.R4] > 0 {
			text += fmt.Sprintf(", %d of %s itself (R4)", by[fairshare.R4], account)
		}
		return text
	}
	keep := []struct {
		jobs int
		text string
	}{
		{o.Protected, "protected (R2)"},
		{o.Ahead, "of accounts that " + account + " is not far enough behind (R3)"},
		{o.Same, "of " + account + " itself (R4)"},
		{o.Spared, "preempted too often or too large for it (R7)"},
		{o.Unknown, "of unknown minimum runtime"},
	}
	var jobs int
	var why []string
	for _, k := range keep {
		if jobs += k.jobs; k.jobs > 0 {
			why = append(why, fmt.Sprintf("%d %s", k.jobs, k.text))
		}
	}
	if jobs == 0 {
		return ""
	}
	return fmt.Sprintf("none of the running jobs (%d) would yield to it now: %s", jobs, strings.Join(why, ", "))
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
	switch {
	case e.ProtectedUntil != nil:
	case e.Job.Allocated:
		return "that run began by a resize, after the job's minimum runtime"
	default:
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
		text += " was due " + strconv.FormatFloat(*p.Ratio, 'f', 2, 64) + " times what it was charged"
	}
	if p.Rank > 0 {
		text += ", rank " + strconv.Itoa(p.Rank)
	}
	return text
}

func unknownJob(word string) error {
	return fmt.Errorf("unknown job %s: squeue does not list it; one that has ended is shown by sacct -j %s", word, word)
}

// goneJob is the error of a job that squeue does not list, with what is known of
// it.
func (p *program) goneJob(ctx context.Context, db *database, cluster, word string) error {
	err := unknownJob(word)
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
		MinRuntime     *float64         `json:"min_runtime_seconds,omitempty"` // of the request
		Asked          *float64         `json:"asked_seconds,omitempty"`       // absent: it asks for none
		Margin         *float64         `json:"margin,omitempty"`
		PatientFrom    *time.Time       `json:"patient_from,omitempty"` // of large requests
		PausedUntil    *time.Time       `json:"paused_until,omitempty"` // nobody is evicted for it
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

func (v *contractView) json(p *program) *contractJSON {
	if v == nil {
		return nil
	}
	out := &contractJSON{Text: append([]string{}, v.lines(p)...)}
	if r := v.running; r != nil {
		out.StartedAt, out.Allocated = &r.run.StartedAt, &r.run.Allocated
		if until := r.protection.Until; !until.IsZero() && !r.protection.Unknown {
			out.ProtectedUntil, out.Protected = &until, new(r.at.Before(until))
		}
	}
	if r := v.request; r != nil {
		o := &r.offer
		r.describe(out)
		out.Allocated, out.YieldingGPUs = &o.Request.Allocated, &o.GPUs
		for _, y := range o.Yields {
			for _, run := range y.Runs {
				out.YieldingJobs = append(out.YieldingJobs, run.JobID)
			}
		}
		if o.Next != nil {
			out.NextEnd, out.NextJob = &o.Next.ProtectedUntil, o.Next.Name().JobID
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

// describe fills in what the rules say of a request.
func (r *request) describe(out *contractJSON) {
	q := &r.offer.Request
	if r.asked >= 0 {
		out.Asked = new(r.asked.Seconds())
	}
	if !q.Allocated {
		return
	}
	out.MinRuntime, out.Margin = new(q.MinRuntime.Seconds()), &r.rules.Margin
	if !r.vain.until.IsZero() {
		out.PausedUntil = &r.vain.until
	}
	if r.rules.PatientGPUs > 0 && q.GPUs >= r.rules.PatientGPUs && !r.since.IsZero() {
		out.PatientFrom = new(r.since.Add(r.rules.Patience))
	}
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
