// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/budgets"
	"gpubudget/cmd/gpubudget/output"
	"gpubudget/fairshare"
	"gpubudget/internal/amount"
	"gpubudget/internal/slurmtime"
	"gpubudget/usage"
)

const (
	optNodeFailures = "node-failures"
	optSince        = "since"
	optLost         = "lost"
	optRun          = "run"
)

func (p *program) refundCommand() *cli.Command {
	return &cli.Command{
		Name:      "refund",
		Usage:     "give back what was charged for a run that was lost",
		ArgsUsage: "JOB",
		Description: describe(`
The account and the user then stand as if the run had not been charged: a refund
lies where the charge lies, and takes it out of every window. A run is refunded
once; the entry of the ledger names the job. The run that is meant is the last
one that a node failure ended, if none did the last that has ended, unless --run
names another by its start. With --lost only the end of it is given back: what
followed its last checkpoint.

With --node-failures all runs are refunded that a node failure has ended, and that
are not refunded yet; sacct is asked for those that Slurm has queued again at once.
It can be run as often as one likes: a timer once an hour will do.

JOB is 12, or a task of an array (12_3).`,
			"gpubudget refund 4711 --why 'gpu07 lost power'",
			"gpubudget refund 4711 --lost 40m",
			"gpubudget refund --node-failures --dry-run",
			"gpubudget refund --node-failures --since now-30days"),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: optNodeFailures, Usage: "refund all runs that a node failure has ended"},
			&cli.StringFlag{Name: optSince, Usage: "with --node-failures, those that ended at `TIME` or later (default: within the lookback window)"},
			&cli.StringFlag{Name: optRun, Usage: "the run that began at `TIME`"},
			&cli.DurationFlag{Name: optLost, Usage: "only the last `DURATION` of the run was lost (default: all of it)"},
			&cli.StringFlag{Name: optWhy, Usage: "record the `REASON` (default: how the run ended, and where)"},
			&cli.BoolFlag{Name: optDryRun, Usage: "only show what would be refunded"},
		},
		Action: p.refund,
	}
}

func (p *program) refund(c *cli.Context) error {
	if err := checkRefund(c); err != nil {
		return err
	}
	if c.Bool(optNodeFailures) {
		return p.refundFailures(c)
	}
	if err := wantArguments(c, 1); err != nil {
		return err
	}
	if !isJobWord(c.Args().First()) {
		return notAJob(c, c.Args().First())
	}
	return p.withDatabase(c, func(db *database) error {
		cluster, err := db.cluster(c)
		if err != nil {
			return err
		}
		job, err := db.jobID(c, cluster, c.Args().First())
		if err != nil {
			return err
		}
		run, err := p.lostRun(c, db, cluster, job)
		if err != nil {
			return err
		}
		r, err := p.newRefund(c, run)
		if err != nil {
			return err
		}
		return p.writeRefunds(c, db, cluster, []refund{r})
	})
}

// checkRefund refuses options that don't go together.
func checkRefund(c *cli.Context) error {
	all := c.Bool(optNodeFailures)
	switch {
	case all && c.Args().Present():
		return misuse(c, "--%s goes without JOB", optNodeFailures)
	case all && (c.IsSet(optLost) || c.IsSet(optRun)):
		return misuse(c, "--%s and --%s go with JOB", optLost, optRun)
	case !all && c.IsSet(optSince):
		return misuse(c, "--%s goes with --%s", optSince, optNodeFailures)
	case c.IsSet(optLost) && c.Duration(optLost) <= 0:
		return misuse(c, "--%s %s: must be positive", optLost, c.Duration(optLost))
	}
	return nil
}

// lostRun is the run of a job that the options mean.
func (p *program) lostRun(c *cli.Context, db *database, cluster string, job uint32) (usage.Run, error) {
	runs, err := db.usage.JobRuns(c.Context, cluster, job)
	if err != nil {
		return usage.Run{}, err
	}
	if len(runs) == 0 {
		return usage.Run{}, fmt.Errorf("nothing is recorded of job %s on GPUs of %s: sacct -j %s shows what Slurm knows of it",
			c.Args().First(), cluster, c.Args().First())
	}
	if c.IsSet(optRun) {
		return p.runThatBegan(c, runs)
	}
	var lost *usage.Run
	for i := range runs { // by start
		r := &runs[i]
		if !r.Open() && (lost == nil || r.EndState == usage.NodeFail || lost.EndState != usage.NodeFail) {
			lost = r
		}
	}
	if lost == nil {
		return usage.Run{}, &budgets.RefundError{Job: job, Start: runs[0].StartedAt, Problem: budgets.RefundRunning}
	}
	return *lost, nil
}

func (p *program) runThatBegan(c *cli.Context, runs []usage.Run) (usage.Run, error) {
	start, err := p.readTime(c, optRun, true)
	if err != nil {
		return usage.Run{}, err
	}
	starts := make([]string, len(runs))
	for i, r := range runs {
		if r.StartedAt.Truncate(time.Second).Equal(start.Truncate(time.Second)) {
			return r, nil
		}
		starts[i] = p.formatTime(r.StartedAt)
	}
	return usage.Run{}, fmt.Errorf("--%s %s: no run of the job began then, but at %s", optRun, c.String(optRun), strings.Join(starts, ", "))
}

// refund is a refund that is to be written.
type refund struct {
	lost     budgets.Lost
	from, to time.Time
	why      string
}

func (p *program) newRefund(c *cli.Context, run usage.Run) (refund, error) {
	problem := &budgets.RefundError{Job: run.JobID, Start: run.StartedAt}
	switch {
	case run.Open():
		problem.Problem = budgets.RefundRunning
		return refund{}, problem
	case !run.Allocated:
		problem.Problem = budgets.RefundUnallocated
		return refund{}, problem
	}
	r := refund{from: run.StartedAt, to: *run.EndedAt, why: c.String(optWhy)}
	if lost := c.Duration(optLost); lost > 0 {
		if r.from = r.to.Add(-lost); r.from.Before(run.StartedAt) {
			return refund{}, fmt.Errorf("--%s %s: the run lasted %s only", optLost, lost, r.to.Sub(run.StartedAt))
		}
	}
	if r.why == "" {
		r.why = run.EndState
		if run.Nodes != "" {
			r.why += " on " + run.Nodes
		}
	}
	r.lost = budgets.Lost{Job: run.JobID, Start: run.StartedAt, Account: run.Account, User: run.User,
		Amount: run.Charged(r.to) - run.Charged(r.from)}
	if r.lost.Amount <= 0 {
		return refund{}, fmt.Errorf("job %d, started %s, was charged nothing: there is nothing to refund", run.JobID, p.formatTime(run.StartedAt))
	}
	return r, nil
}

func (p *program) refundFailures(c *cli.Context) error {
	since, err := p.readTime(c, optSince, true)
	if err != nil {
		return err
	}
	return p.withDatabase(c, func(db *database) error {
		cluster, err := db.cluster(c)
		if err != nil {
			return err
		}
		if since.IsZero() {
			if since, err = db.windowBegin(c.Context, cluster); err != nil {
				return err
			}
		}
		runs, err := p.failedRuns(c, db, cluster, since)
		if err != nil {
			return err
		}
		refunds, err := p.dueRefunds(c, db, cluster, runs)
		if err != nil {
			return err
		}
		if len(refunds) == 0 {
			if c.Bool(optJSON) {
				return output.JSON(p.stdout, entriesJSON(nil))
			}
			p.sayf(c, "No run that a node failure ended since %s is left to be refunded.", p.formatTime(since))
			return nil
		}
		return p.writeRefunds(c, db, cluster, refunds)
	})
}

// windowBegin is when the present lookback window begins.
func (db *database) windowBegin(ctx context.Context, cluster string) (time.Time, error) {
	now, err := db.now(ctx)
	if err != nil {
		return time.Time{}, err
	}
	policy, err := db.ledger.Policy(ctx, cluster, now)
	return now.Add(-policy.Lookback), err
}

// failedRuns are the runs that node failures have ended, by the recorder's word
// and by sacct's.
func (p *program) failedRuns(c *cli.Context, db *database, cluster string, since time.Time) ([]usage.Run, error) {
	runs, err := db.usage.FailedRuns(c.Context, cluster, since)
	if err != nil {
		return nil, err
	}
	failures, err := p.askSacct(c.Context, since)
	if err != nil {
		fmt.Fprintf(p.stderr, "gpubudget: sacct can't be asked for jobs that were queued again: %s\n", p.message(err))
	}
	for _, f := range failures {
		of, err := db.usage.JobRuns(c.Context, cluster, f.job)
		if err != nil {
			return nil, err
		}
		for _, r := range of {
			if !r.Open() && r.StartedAt.Unix() == f.start.Unix() && r.EndState != usage.NodeFail {
				r.EndState = usage.NodeFail
				runs = append(runs, r)
			}
		}
	}
	slices.SortFunc(runs, func(x, y usage.Run) int {
		return cmp.Or(x.EndedAt.Compare(*y.EndedAt), cmp.Compare(x.JobID, y.JobID), x.StartedAt.Compare(y.StartedAt))
	})
	return runs, nil
}

// failure is a run of which Slurm's accounting says that its node failed.
type failure struct {
	job   uint32
	start time.Time
}

func (p *program) askSacct(ctx context.Context, since time.Time) ([]failure, error) {
	text, err := p.slurm(ctx, "sacct", "--allusers", "--allocations", "--duplicates", "--noheader", "--parsable2",
		"--state="+usage.NodeFail, "--starttime="+slurmtime.Format(since, p.zone), "--endtime=now", "--format=JobIDRaw,Start")
	if err != nil {
		return nil, err
	}
	var failures []failure
	for line := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n") {
		id, start, _ := strings.Cut(strings.TrimSpace(line), "|")
		job, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			continue // no job, or a component of a cluster that has merged
		}
		at, err := time.ParseInLocation(slurmtime.Layout, start, p.zone)
		if err != nil {
			continue // Unknown: it never started
		}
		failures = append(failures, failure{uint32(job), at})
	}
	return failures, nil
}

// dueRefunds are those of the runs that were charged anything and are not
// refunded yet.
func (p *program) dueRefunds(c *cli.Context, db *database, cluster string, runs []usage.Run) ([]refund, error) {
	entries, err := db.ledger.Ledger(c.Context, budgets.Filter{Cluster: cluster, Kinds: []budgets.Kind{budgets.Refund}})
	if err != nil {
		return nil, err
	}
	type key struct {
		job   uint32
		start int64
	}
	done := make(map[key]bool, len(entries))
	for _, e := range entries {
		done[key{e.Job, e.JobStart.UnixMilli()}] = true
	}
	var refunds []refund
	for _, run := range runs {
		if done[key{run.JobID, run.StartedAt.UnixMilli()}] || !run.Allocated || run.Charged(*run.EndedAt) <= 0 {
			continue
		}
		r, err := p.newRefund(c, run)
		if err != nil {
			return nil, err
		}
		refunds = append(refunds, r)
	}
	return refunds, nil
}

// writeRefunds shows refunds and writes them, all or none.
func (p *program) writeRefunds(c *cli.Context, db *database, cluster string, refunds []refund) error {
	w := work{cluster: cluster, entries: len(refunds)}
	var sum fairshare.GPUMillis
	for _, r := range refunds {
		sum += r.lost.Amount
		w.lines = append(w.lines, fmt.Sprintf("+ %s GPU-hours back to %s in %s for job %d, from %s until %s: %s", amount.Hours(r.lost.Amount),
			r.lost.User, r.lost.Account, r.lost.Job, p.formatTime(r.from), p.formatTime(r.to), r.why))
	}
	if len(refunds) > 1 {
		w.lines = append(w.lines, fmt.Sprintf("%s GPU-hours for %d runs.", amount.Hours(sum), len(refunds)))
	}
	note, err := p.note(c)
	if err != nil {
		return err
	}
	w.write = func(ctx context.Context, ledger *budgets.Store, progress func()) ([]budgets.Entry, error) {
		var entries []budgets.Entry
		for _, r := range refunds {
			n := note
			n.Why, n.From, n.Until = r.why, r.from, &r.to
			e, err := ledger.Refund(ctx, cluster, r.lost, n)
			if err != nil {
				return nil, err
			}
			if entries = append(entries, e); progress != nil {
				progress()
			}
		}
		return entries, nil
	}
	if c.Bool(optDryRun) {
		return p.dryRun(c, db, w)
	}
	err = p.commit(c, db, w)
	if refused, is := errors.AsType[*budgets.RefundError](err); is && refused.Problem == budgets.RefundUnknown {
		err = fmt.Errorf("%w: the plugin's recorder may not have written it yet", err)
	}
	return err
}
