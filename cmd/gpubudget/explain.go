// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/urfave/cli/v2"

	"gpubudget/budgets"
	"gpubudget/cmd/gpubudget/queue"
	"gpubudget/conf"
	"gpubudget/explain"
	"gpubudget/fairshare"
	"gpubudget/report"
	"gpubudget/usage"
)

func (p *program) explainCommand() *cli.Command {
	return &cli.Command{
		Name:      "explain",
		Usage:     "say why a job, an account or a user stands where it does",
		ArgsUsage: "JOB|ACCOUNT|ACCOUNT/USER",
		Description: describe(`
Shows the path from root down with what each level was due and used, who is
ahead and at which level of the tree the two paths part, and what would change
that. Of a job also the factors of its priority, as sprio has them; jobs are
asked of squeue and sprio, which must be on the PATH. Of an account the jobs
ahead are those that the plugin has last seen. All figures are those that
priorities are made from.

With Shares=slurm in gpubudget.conf, or --shares slurm, priorities are explained by
the shares and the usage of slurmdbd's associations, as scontrol and sshare show
them. That needs no database.

JOB is 12, a task of an array (12_3) or a component of a het job (12+1). An
account whose name is a number is written with a slash: 12/.`,
			"gpubudget explain 4711",
			"gpubudget explain vision",
			"gpubudget explain vision/ann",
			"gpubudget explain 4711 -nP | grep ^ahead",
			"gpubudget explain 4711 --shares slurm",
			"gpubudget explain vision --json"),
		Flags:  []cli.Flag{atFlag(), sharesFlag()},
		Action: p.explain,
	}
}

func (p *program) explain(c *cli.Context) error {
	if err := wantArguments(c, 1); err != nil {
		return err
	}
	word := c.Args().First()
	if array, _, several := strings.Cut(word, "_["); several {
		return misuse(c, "%q is several tasks of an array: name one, as in %s_1, or the array", word, array)
	}
	config, err := conf.Load(c.String(optConf))
	if err != nil {
		return err
	}
	wanted, err := sharesWanted(c, &config)
	switch {
	case err != nil:
		return err
	case wanted == conf.SharesSlurm:
		return p.explainSlurm(c, &config, word)
	case config.Shares == conf.SharesSlurm && queue.IsJob(word):
		return fmt.Errorf("job %s: %s says Shares=slurm, so the ledger has no part in its priority: explain its account by the ledger, as in gpubudget explain ACCOUNT --shares ledger",
			word, config.Path)
	}
	return p.withDatabase(c, func(db *database) error {
		cluster, err := db.cluster(c)
		if err != nil {
			return err
		}
		at, err := p.at(c, db)
		if err != nil {
			return err
		}
		q, err := p.readQueue(c, db, word)
		if err != nil {
			return err
		}
		look := func(rec *report.Record) (*finding, error) {
			if q != nil {
				return p.findJob(c, db, rec, q, word)
			}
			return findAccount(c, db, rec, word)
		}
		found, err := db.examine(c.Context, cluster, at, look)
		if err != nil {
			return err
		}
		p.warnOfAge(db, found.record)
		return p.printFinding(c, found)
	})
}

// pieces is into how many pieces the usage of the window is split in any case,
// and a piece where it matters.
const pieces = 60

// examine looks at the record of an instant, and looks again with the usage that
// leaves the window about when somebody passes split more finely.
func (db *database) examine(ctx context.Context, cluster string, at time.Time, look func(*report.Record) (*finding, error)) (*finding, error) {
	rec, err := db.record(ctx, cluster, at, nil)
	if err != nil {
		return nil, err
	}
	found, err := look(rec)
	if err != nil {
		return nil, err
	}
	cuts := found.cuts()
	if len(cuts) == 0 {
		return found, nil
	}
	if rec, err = db.record(ctx, cluster, at, cuts); err != nil {
		return nil, err
	}
	return look(rec)
}

// cuts are instants about a lookback window before somebody passes.
func (f *finding) cuts() []fairshare.Instant {
	policy := f.record.Policy
	piece := min(policy.Bucket, policy.Lookback/pieces).Milliseconds()
	step := max(piece/pieces, time.Second.Milliseconds())
	var cuts []fairshare.Instant
	for _, c := range f.Changes {
		if c.Kind != explain.Wait || c.At == 0 {
			continue
		}
		tail := int64(c.At) - policy.Lookback.Milliseconds()
		for at := tail - piece; at <= tail+piece; at += step {
			cuts = append(cuts, fairshare.Instant(at/step*step))
		}
	}
	return cuts
}

// record is all that ledger and usage have to say at an instant, with usage
// split at cuts.
func (db *database) record(ctx context.Context, cluster string, at time.Time, cuts []fairshare.Instant) (rec *report.Record, err error) {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, db.pool, options, func(tx pgx.Tx) error {
		rec, err = report.Read(ctx, budgets.NewStore(tx), usage.NewStore(tx), cluster, at, report.Options{Pieces: pieces, Cuts: cuts})
		return err
	})
	return rec, err
}

// warnOfAge tells if what is shown is not what the scheduler goes by.
func (p *program) warnOfAge(db *database, rec *report.Record) {
	if db.conf.Shares == conf.SharesSlurm {
		fmt.Fprintf(p.stderr, "gpubudget: %s says Shares=slurm: priorities go by Slurm's own shares (see sshare); this is how all would stand by the ledger\n", db.conf.Path)
	}
	switch {
	case rec.Recorder.SeenAt.IsZero():
		fmt.Fprintf(p.stderr, "gpubudget: nothing was ever recorded of cluster %s: is the plugin loaded there?\n", rec.Cluster)
	case rec.Stale:
		fmt.Fprintf(p.stderr, "gpubudget: the plugin was last heard of at %s: what happened since is not in this\n", p.formatTime(rec.Recorder.SeenAt))
	}
}

// finding is an explanation and what belongs to it.
type finding struct {
	*explain.Explanation
	record   *report.Record
	job      *queue.Job // nil if it is about an account
	tasks    []*queue.Job
	rows     []queue.Factors // of the job that waits
	contract *contractView   // of the job
	live     bool            // who is ahead was asked of Slurm
}

// findAccount explains an account or a user in it.
func findAccount(c *cli.Context, db *database, rec *report.Record, word string) (*finding, error) {
	account, user, _ := strings.Cut(word, "/")
	tree := rec.Budget.Tree(rec.Window.Until)
	node, err := db.node(c.Context, rec.Cluster, tree, account)
	if err != nil {
		return nil, err
	}
	e, ok := explain.Account(rec, explain.Subject{Account: node.Name, User: user})
	if !ok {
		return nil, fmt.Errorf("account %q does not stand below root", node.Name)
	}
	if e.Guest && e.Path[len(e.Path)-1].Used == 0 && !queued(rec, e.Subject) {
		_, err := member(node, user, rec.At)
		return nil, err
	}
	return &finding{Explanation: e, record: rec}, nil
}

// queued tells whether the plugin has last seen jobs of a user in an account.
func queued(rec *report.Record, s explain.Subject) bool {
	return slices.ContainsFunc(rec.Queue, func(q usage.Queue) bool { return q.Account == s.Account && q.User == s.User })
}

// readQueue asks Slurm for its queue if a word names a job, else it is nil.
func (p *program) readQueue(c *cli.Context, db *database, word string) (*queue.Queue, error) {
	if !queue.IsJob(word) {
		return nil, nil //nolint:nilnil // nothing is asked for, and nothing is wrong
	}
	q, err := queue.Read(c.Context, p.slurm)
	if err != nil {
		return nil, fmt.Errorf("job %s can't be explained: %w: try where squeue works, or explain its account: gpubudget explain ACCOUNT", word, err)
	}
	return q, checkCluster(c, db, q)
}

// findJob explains a job by what Slurm says of it now.
func (p *program) findJob(c *cli.Context, db *database, rec *report.Record, q *queue.Queue, word string) (*finding, error) {
	jobs := q.Find(word)
	if len(jobs) == 0 {
		return nil, p.goneJob(c.Context, db, rec.Cluster, word)
	}
	job := jobs[0]
	ranking := fairshare.Rank(rec.Input())
	owner, err := ownerOf(c, db, rec, ranking, job)
	if err != nil {
		return nil, err
	}
	f := &finding{record: rec, job: job, tasks: jobs, rows: q.FactorsOf(job), live: true}
	var ok bool
	if len(f.rows) > 0 {
		mine, all := waiting(q, func(j *queue.Job) explain.Subject { return countsFor(ranking, j) }, job)
		f.Explanation, ok = explain.Job(rec, mine, all)
	} else {
		f.Explanation, ok = explain.Path(rec, owner)
	}
	if !ok {
		return nil, fmt.Errorf("account %q of job %s does not stand below root", owner.Account, job.ID)
	}
	f.contract, err = p.contractOf(c.Context, db, rec, q, f)
	return f, err
}

// checkCluster makes sure that a cluster that was named is the one that squeue
// talks to.
func checkCluster(c *cli.Context, db *database, q *queue.Queue) error {
	if wanted := db.wantedCluster(c); !c.IsSet(optCluster) || q.Cluster == "" || wanted == db.conf.Cluster || wanted == strings.ToLower(q.Cluster) {
		return nil
	}
	return fmt.Errorf("squeue talks to cluster %s, not %s: run this there, or set SLURM_CONF to its slurm.conf", q.Cluster, db.wantedCluster(c))
}

// ownerOf is whose budget a job counts for. Its account must be in the tree.
func ownerOf(c *cli.Context, db *database, rec *report.Record, r *fairshare.Ranking, job *queue.Job) (explain.Subject, error) {
	s := countsFor(r, job)
	if s.Account == "" {
		return s, fmt.Errorf("job %s has no account, and user %q is in none of the ledger of %s: submit it with --account, or run: gpubudget user add %s ACCOUNT",
			job.ID, job.User, rec.Cluster, job.User)
	}
	if _, ok := r.Account(s.Account); ok {
		return s, nil
	}
	_, err := db.node(c.Context, rec.Cluster, rec.Budget.Tree(rec.Window.Until), s.Account)
	if err == nil {
		err = errors.New("it is not in the tree")
	}
	return s, fmt.Errorf("job %s comes after those of all accounts of the ledger: %w", job.ID, err)
}

// countsFor is whose budget the plugin counts a job for: where Slurm knows no
// account, that is the user's first by name.
func countsFor(r *fairshare.Ranking, job *queue.Job) explain.Subject {
	s := explain.Subject{Account: job.Account, User: job.User}
	if s.Account == "" {
		s.Account, _ = r.DefaultAccount(job.User)
	}
	return s
}

// waiting is all jobs that wait, by whom they count for, and among them the rows of
// one.
func waiting(q *queue.Queue, owner func(*queue.Job) explain.Subject, job *queue.Job) (mine, all []explain.Pending) {
	first, tasks := map[uint32]*queue.Job{}, map[uint32]int64{}
	for i := range q.Jobs {
		if j := &q.Jobs[i]; j.Pending() {
			if first[j.JobID] == nil {
				first[j.JobID] = j
			}
			tasks[j.JobID]++
		}
	}
	for _, f := range q.Factors {
		j := first[f.JobID]
		if j == nil {
			continue // it has started meanwhile
		}
		row := explain.Pending{JobID: f.JobID, Owner: owner(j), Partition: f.In, Tasks: tasks[f.JobID], GPUs: j.GPUs, Nice: j.Nice, Factors: f.Factors}
		all = append(all, row)
		if f.JobID == job.JobID {
			mine = append(mine, row)
		}
	}
	return mine, all
}
