// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"gpubudget/budgets"
	"gpubudget/cmd/gpubudget/output"
	"gpubudget/explain"
	"gpubudget/internal/amount"
	"gpubudget/usage"
)

// printFinding prints an explanation: as JSON if asked, or as records of all
// kinds with | between fields, or as text with tables in it.
func (p *program) printFinding(c *cli.Context, f *finding) error {
	switch {
	case c.Bool(optJSON):
		return output.JSON(p.stdout, p.findingJSON(f))
	case c.Bool(optParsable2):
		return p.writeRecords(p.parts(f), output.Parsable2, c.Bool(optNoHeader))
	case c.Bool(optParsable):
		return p.writeRecords(p.parts(f), output.Parsable, c.Bool(optNoHeader))
	}
	return p.printText(f, c.Bool(optNoHeader))
}

// printText prints for people to read.
func (p *program) printText(f *finding, noHeader bool) error {
	w := &pages{program: p, noHeader: noHeader}
	w.lines(headline(f)...)
	w.table(pathTable(f))
	if len(f.rows) > 0 {
		w.table(factorsTable(f))
	}
	if said := f.contract.lines(p); len(said) > 0 {
		w.lines(append([]string{"The contract:"}, bullets(said)...)...)
	}
	w.lines(aheadLines(f)...)
	if len(f.Ahead) > 0 {
		w.table(aheadTable(f))
	}
	if changes := p.changeLines(f); len(changes) > 0 {
		w.lines(append([]string{"What would change it:"}, bullets(changes)...)...)
	}
	if !noHeader {
		w.lines(p.source(f))
	}
	return w.err
}

// pages writes parts with an empty line between them, until a write fails.
type pages struct {
	*program
	noHeader bool
	begun    bool
	err      error
}

func (w *pages) separate() {
	if w.begun && w.err == nil {
		_, w.err = fmt.Fprintln(w.stdout)
	}
	w.begun = true
}

func (w *pages) lines(lines ...string) {
	if len(lines) == 0 {
		return
	}
	w.separate()
	for _, line := range lines {
		if w.err == nil {
			_, w.err = fmt.Fprintln(w.stdout, line)
		}
	}
}

func (w *pages) table(t *output.Table) {
	w.separate()
	if w.err == nil {
		w.err = t.Write(w.stdout, output.Wide, w.noHeader)
	}
}

func bullets(lines []string) []string {
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i] = "- " + line
	}
	return out
}

// part is the records of one kind.
type part struct {
	kind  string
	table *output.Table
}

// parts are the records of an explanation.
func (p *program) parts(f *finding) []part {
	var parts []part
	if f.job != nil {
		parts = append(parts, part{"job", jobTable(f)})
	}
	parts = append(parts, part{"path", pathTable(f)})
	if len(f.rows) > 0 {
		parts = append(parts, part{"factors", factorsTable(f)})
	}
	changes := &output.Table{Columns: []output.Column{{Name: "Kind"}, {Name: "Text"}}}
	for i, text := range p.changeLines(f) {
		changes.Add(string(f.Changes[i].Kind), text)
	}
	if said := f.contract.lines(p); len(said) > 0 {
		contract := &output.Table{Columns: []output.Column{{Name: "Text"}}}
		for _, text := range said {
			contract.Add(text)
		}
		parts = append(parts, part{"contract", contract})
	}
	return append(parts, part{"ahead", aheadTable(f)}, part{"change", changes})
}

// writeRecords prints for programs: each line begins with what it is.
func (p *program) writeRecords(parts []part, style output.Style, noHeader bool) error {
	for _, part := range parts {
		t := output.Table{Columns: append([]output.Column{{Name: "Record"}}, part.table.Columns...)}
		for _, row := range part.table.Rows {
			t.Add(append([]string{part.kind, strings.TrimSpace(row[0])}, row[1:]...)...)
		}
		if err := t.Write(p.stdout, style, noHeader); err != nil {
			return err
		}
	}
	return nil
}

// headline says what is explained.
func headline(f *finding) []string {
	var lines []string
	if j := f.job; j != nil {
		state := j.State
		if j.Pending() {
			state += " (" + j.Reason + ")"
		}
		in := ""
		if f.Subject.Account != "" {
			in = " in " + f.Subject.Account
		}
		lines = append(lines, fmt.Sprintf("Job %s of %s%s: %s, %s, partition %s, QOS %s, nice %d.",
			j.ID, j.User, in, state, count(j.GPUs, "GPU"), j.Partition, j.QOS, j.Nice))
		if j.Account == "" && in != "" {
			lines = append(lines, fmt.Sprintf("It has no account: it counts in the first of %s's.", j.User))
		}
		switch n := len(f.tasks); {
		case n > 1 && j.HetJobID != 0:
			lines = append(lines, fmt.Sprintf("It is the first of the %d components of job %d.", n, j.HetJobID))
		case n > 1:
			lines = append(lines, fmt.Sprintf("It is the first of %d tasks in squeue; those that wait stand alike.", n))
		}
	}
	if f.Unallocated {
		lines = append(lines, "It is unallocated: it asks for no minimum runtime (--min-runtime=0), or the policy gives it none. It comes after all "+
			"that is allocated, no budget is charged for it, and it yields to anybody who is allocated.")
	}
	if f.Guest {
		lines = append(lines, fmt.Sprintf("%s is no member of %s: such users come last in it.", f.Subject.User, f.Subject.Account))
	}
	return lines
}

// count is a number of things.
func count(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func jobTable(f *finding) *output.Table {
	t := &output.Table{Columns: []output.Column{{Name: "JobID"}, {Name: "User"}, {Name: "Account"}, {Name: "State"}, {Name: "Reason"},
		{Name: "GPUs"}, {Name: "Partition"}, {Name: "QOS"}, {Name: "Nice"}}}
	j := f.job
	t.Add(j.ID, j.User, f.Subject.Account, j.State, j.Reason, strconv.FormatInt(j.GPUs, 10), j.Partition, j.QOS, strconv.FormatInt(j.Nice, 10))
	return t
}

func pathTable(f *finding) *output.Table {
	t := &output.Table{Columns: []output.Column{{Name: "Account"}, {Name: "User"}, {Name: "Share", Right: true}, {Name: "ShareOfCluster", Right: true},
		{Name: "EntitledH", Right: true}, {Name: "UsedH", Right: true}, {Name: "LevelFS", Right: true}, {Name: "Place", Right: true},
		{Name: "Rank", Right: true}, {Name: "FairShare", Right: true}}}
	for _, l := range f.Path {
		var place, rank, factor string
		if l.Place > 0 {
			place = fmt.Sprintf("%s of %d", ordinal(l.Place), l.Of)
		}
		if l.Rank > 0 && !l.Users {
			rank = strconv.Itoa(l.Rank)
		}
		if l.User != "" {
			factor = fmt.Sprintf("%.6f", l.Factor)
		}
		share, ofCluster := shareTexts(f, l)
		t.Add(strings.Repeat(" ", l.Depth)+l.Account, userText(l.Side), share, ofCluster,
			fmt.Sprintf("%.2f", l.Entitled.Hours()), fmt.Sprintf("%.2f", l.Used.Hours()), levelText(f, l), place, rank, factor)
	}
	return t
}

// shareTexts are a level's shares. The users of an account as one have none, nor
// has a guest.
func shareTexts(f *finding, l explain.Level) (share, ofCluster string) {
	switch {
	case l.Users || l.User != "" && f.Guest:
		return "", ""
	case l.EqualPart:
		return "equal", percent(l.ShareOfCluster)
	}
	return amount.Percent(l.Share), percent(l.ShareOfCluster)
}

// levelText is a level fair share, where there is anybody to compare with.
func levelText(f *finding, l explain.Level) string {
	if l.Depth == 0 || l.User != "" && f.Guest {
		return ""
	}
	return levelFS(l.LevelFS)
}

func levelFS(x float64) string {
	if math.IsInf(x, 1) {
		return "inf"
	}
	return fmt.Sprintf("%.4f", x)
}

func userText(s explain.Side) string {
	if s.Users {
		return "(all)"
	}
	return s.User
}

// ordinal is 1st, 2nd, 3rd, 4th, ...
func ordinal(n int) string {
	suffix := "th"
	if n/10%10 != 1 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return strconv.Itoa(n) + suffix
}

// factorsTable is the columns of sprio.
func factorsTable(f *finding) *output.Table {
	t := &output.Table{Columns: []output.Column{{Name: "Partition"}, {Name: "PRIORITY", Right: true}, {Name: "SITE", Right: true}, {Name: "AGE", Right: true},
		{Name: "ASSOC", Right: true}, {Name: "FAIRSHARE", Right: true}, {Name: "JOBSIZE", Right: true}, {Name: "PARTITION", Right: true},
		{Name: "QOS", Right: true}, {Name: "NICE", Right: true}, {Name: "TRES"}}}
	for _, r := range f.rows {
		var tres []string
		for i, name := range r.TRESNames {
			tres = append(tres, fmt.Sprintf("%s=%.0f", name, r.TRES[i]))
		}
		t.Add(r.In, strconv.FormatUint(uint64(r.Priority), 10), strconv.FormatInt(r.Site, 10), whole(r.Age), whole(r.Assoc), whole(r.Fairshare),
			whole(r.JobSize), whole(r.Partition), whole(r.QOS), strconv.FormatInt(r.Nice, 10), strings.Join(tres, ","))
	}
	return t
}

func whole(x float64) string { return strconv.FormatFloat(x, 'f', 0, 64) }

func aheadTable(f *finding) *output.Table {
	t := &output.Table{Columns: []output.Column{{Name: "Account"}, {Name: "Rank", Right: true}, {Name: "Jobs", Right: true}, {Name: "GPUs", Right: true}, {Name: "Why"}}}
	for i := range f.Ahead {
		r := &f.Ahead[i]
		rank := ""
		if r.Rank > 0 {
			rank = strconv.Itoa(r.Rank)
		}
		t.Add(r.Account, rank, strconv.FormatInt(r.Jobs, 10), strconv.FormatInt(r.GPUs, 10), whyText(f, r))
	}
	return t
}

// aheadLines says how many are ahead, and what holds a job back if that is not
// who is ahead.
func aheadLines(f *finding) []string {
	var jobs, gpus int64
	for _, r := range f.Ahead {
		jobs, gpus = jobs+r.Jobs, gpus+r.GPUs
	}
	if f.job == nil {
		for i := range f.Changes {
			if rival := f.Changes[i].Rival.Account; jobs == 0 && rival != "" {
				return []string{fmt.Sprintf("No pending job is ahead; those of %s would be.", rival)}
			}
		}
		if jobs == 0 {
			return []string{"No pending job is ahead."}
		}
		return []string{fmt.Sprintf("Pending jobs ahead: %d, for %s.", jobs, count(gpus, "GPU"))}
	}
	switch {
	case !f.job.Pending():
		return []string{"It does not wait: nothing is ahead of it."}
	case len(f.rows) == 0:
		return []string{"It has no place among those that wait: " + heldText(f)}
	case jobs == 0:
		return append([]string{fmt.Sprintf("Nothing is ahead of it in partition %s.", f.job.Partition)}, limitLines(f)...)
	}
	return append([]string{fmt.Sprintf("Jobs ahead of it: %d, for %s.", jobs, count(gpus, "GPU"))}, limitLines(f)...)
}

// heldText says what keeps a job from having a priority.
func heldText(f *finding) string {
	switch f.job.Reason {
	case "JobHeldUser", "JobHeldAdmin":
		return fmt.Sprintf("it is held (%s); scontrol release %s lets it go.", f.job.Reason, f.job.ID)
	case "Dependency", "DependencyNeverSatisfied":
		return fmt.Sprintf("it waits for other jobs (%s); squeue -j %s -O dependency names them.", f.job.Reason, f.job.ID)
	case "BeginTime":
		return beginText(f)
	}
	return fmt.Sprintf("Slurm's reason is %s.", f.job.Reason)
}

// beginText says why a job begins later: on request, or since Slurm queued it again.
func beginText(f *finding) string {
	gaveWay := slices.ContainsFunc(f.contract.preemptions, func(e usage.Preemption) bool { return e.For == nil || e.For.JobID != f.job.JobID })
	if !gaveWay {
		return "it was submitted for later, or was requeued lately (BeginTime)."
	}
	text := "it was requeued, and Slurm holds it back until the credential of its last run has expired (BeginTime; cred_expire of AuthInfo in slurm.conf)"
	if f.job.Eligible != "" {
		text += ": until " + f.job.Eligible
	}
	return text + "."
}

// limitLines tells of a reason that has nothing to do with who is ahead.
func limitLines(f *finding) []string {
	switch f.job.Reason {
	case "Priority", "Resources", "None", "":
		return nil
	}
	return []string{fmt.Sprintf("Slurm's reason for it to wait is %s: that may hold it back whatever its priority.", f.job.Reason)}
}

// whyText says why a rival is ahead.
func whyText(f *finding, r *explain.Rival) string {
	why, who := &r.Why, "equal rank: "
	if r.Account == f.Subject.Account {
		who = "same account: "
	}
	if !f.Strict {
		who = ""
	}
	switch why.Cause {
	case explain.SetByHand:
		return "one of the two priorities was set by hand"
	case explain.Allocated:
		return "it is charged to a budget"
	case explain.Funded:
		return fmt.Sprintf("%s has a budget, %s has none", r.Account, f.Subject.Account)
	case explain.Guest:
		return fmt.Sprintf("%s is no member of %s", f.Subject.User, f.Subject.Account)
	case explain.Tree:
		return whereText(f, r)
	case explain.QOS:
		return who + "higher QOS"
	case explain.Nice:
		return who + "lower nice"
	case explain.User:
		return who + partingText(why.Parting)
	case explain.Earlier:
		return who + "same priority, submitted earlier"
	case explain.Column:
	}
	text := fmt.Sprintf("%s%s more of %s", who, whole(why.Points), why.Column)
	if where := whereText(f, r); where != "" {
		text += ", " + where
	}
	return text
}

// whereText says where in the tree a rival is ahead, or by classic fair share how
// both stand; "" if that has nothing to do with it.
func whereText(f *finding, r *explain.Rival) string {
	switch why := &r.Why; {
	case why.Parting != nil:
		return partingText(why.Parting)
	case why.Standing != nil:
		return standingText(f.Subject, r, why.Standing)
	}
	return ""
}

// partingText says where two paths part, and how the two sides stand there.
func partingText(p *explain.Parting) string {
	var text strings.Builder
	fmt.Fprintf(&text, "below %s: ", p.Below)
	for _, tied := range p.Tied {
		fmt.Fprintf(&text, "%s and %s are level at %s, below them ", sideText(tied.Theirs), sideText(tied.Mine), levelFS(tied.Mine.LevelFS))
	}
	if p.Order() == 0 {
		fmt.Fprintf(&text, "%s and %s are level at %s", sideText(p.Theirs), sideText(p.Mine), levelFS(p.Mine.LevelFS))
	} else {
		fmt.Fprintf(&text, "%s has LevelFS %s, %s %s", sideText(p.Theirs), levelFS(p.Theirs.LevelFS), sideText(p.Mine), levelFS(p.Mine.LevelFS))
	}
	return text.String()
}

func sideText(s explain.Side) string {
	switch {
	case s.Users:
		return s.Account + "'s users"
	case s.User != "":
		return s.User
	}
	return s.Account
}

// changeLines is a sentence for each change.
func (p *program) changeLines(f *finding) []string {
	var lines []string
	for i := range f.Changes {
		lines = append(lines, p.changeText(f, &f.Changes[i]))
	}
	return lines
}

func (p *program) changeText(f *finding, c *explain.Change) string {
	mine, has := sideText(c.Mine), "has"
	if c.Mine.Users {
		has = "have"
	}
	switch c.Kind {
	case explain.Allocate:
		return "with a minimum runtime (--min-runtime) it is charged to " + mine + "'s budget and has that account's place"
	case explain.Unfunded:
		return mine + " has no budget: a share or a deposit puts its jobs among those that have one"
	case explain.Balance:
		if c.Amount > 0 {
			return fmt.Sprintf("%s %s used %.2f GPU-hours more than was due in the window", mine, has, c.Amount.Hours())
		}
		return fmt.Sprintf("%s %s used %.2f GPU-hours less than was due in the window; %s got still less of what was due", mine, has, -c.Amount.Hours(), sideText(c.Theirs))
	case explain.Wait:
		return p.waitText(f, c)
	case explain.Share:
		return shareText(f, c)
	case explain.Within:
		if c.Jobs == 0 {
			return fmt.Sprintf("nice and QOS count within %s only, where nothing is ahead of it", mine)
		}
		return fmt.Sprintf("a lower nice or a higher QOS counts within %s only, where %d of the jobs ahead are", mine, c.Jobs)
	case explain.Points, explain.Usage: // the latter is of Slurm's shares only
	}
	return fmt.Sprintf("%d more points pass the next job; a nice that is as much lower gives them", c.Points)
}

// rivalText is who is passed.
func rivalText(c *explain.Change) string {
	if c.Mine.User != "" && c.Rival.User != "" {
		return c.Rival.User
	}
	return c.Rival.Account
}

// subjectText is who passes.
func subjectText(f *finding, c *explain.Change) string {
	if c.Mine.User != "" {
		return c.Mine.User
	}
	return f.Subject.Account
}

func (p *program) waitText(f *finding, c *explain.Change) string {
	text := fmt.Sprintf("if nothing more runs in %s ", c.Mine.Account)
	switch {
	case c.Mine.User != "":
		text = fmt.Sprintf("if %s runs nothing more in %s ", c.Mine.User, c.Mine.Account)
	case c.Mine.Users:
		text = fmt.Sprintf("if %s run nothing more ", sideText(c.Mine))
	}
	if c.At == 0 {
		return fmt.Sprintf("even %swithin %s, %s does not pass %s", text, f.record.Policy.Value(budgets.Lookback), subjectText(f, c), rivalText(c))
	}
	return fmt.Sprintf("%sand what others run goes on, %s passes %s at %s", text, subjectText(f, c), rivalText(c), p.formatTime(c.At.Time()))
}

func shareText(f *finding, c *explain.Change) string {
	of := c.Mine.Account
	if c.Mine.User == "" {
		for _, l := range f.Path {
			if l.Account == c.Mine.Account && l.Depth > 0 {
				of = f.Path[l.Depth-1].Account
				break
			}
		}
	}
	text := fmt.Sprintf("a share of %s of %s throughout the window, not %s, would put %s level with %s",
		amount.Percent(c.Share), of, amount.Percent(c.Has), subjectText(f, c), rivalText(c))
	if c.Share > c.Free {
		text += "; its siblings leave " + amount.Percent(c.Free)
	}
	return text
}

// source says what it all rests on.
func (p *program) source(f *finding) string {
	rec := f.record
	text := fmt.Sprintf("%s, window %s to %s (%s), mode %s", rec.Cluster, p.formatTime(rec.Window.From.Time()), p.formatTime(rec.At),
		rec.Policy.Value(budgets.Lookback), rec.Policy.Mode)
	switch {
	case f.live:
		return text + "; queue as squeue and sprio show it now"
	case rec.QueueSeenAt.IsZero():
		return text + "; no queue was ever seen"
	}
	return text + "; queue as the plugin saw it at " + p.formatTime(rec.QueueSeenAt)
}
