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

JOB is 12, a task of an array (12_3) or a component of a het job (12+1). An
account whose name is a number is written with a slash: 12/.`,
			"gpubudget explain 4711",
			"gpubudget explain vision",
			"gpubudget explain vision/ann",
			"gpubudget explain 4711 -nP | grep ^ahead",
			"gpubudget explain vision --json"),
		Flags:  []cli.Flag{atFlag()},
		Action: p.explain,
	}
}

func (p *program) explain(c *cli.Context) error {
	if err := wantArguments(c, 1); err != nil {
		return err
	}
	word := c.Args().First()
	if strings.Contains(word, "_[") {
		return misuse(c, "%q is several tasks of an array: name one, as in %s_1, or the array", word, word[:strings.Index(word, "_[")])
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
		rec, err := db.record(c.Context, cluster, at)
		if err != nil {
			return err
		}
		var found *finding
		if queue.IsJob(word) {
			found, err = p.findJob(c, db, rec, word)
		} else {
			found, err = findAccount(c, db, rec, word)
		}
		if err != nil {
			return err
		}
		p.warnOfAge(db, rec)
		return p.printFinding(c, found)
	})
}

// record is all that ledger and usage have to say at an instant.
func (db *database) record(ctx context.Context, cluster string, at time.Time) (rec *report.Record, err error) {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, db.pool, options, func(tx pgx.Tx) error {
		rec, err = report.Read(ctx, budgets.NewStore(tx), usage.NewStore(tx), cluster, at, report.Options{})
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
	record *report.Record
	job    *queue.Job // nil if it is about an account
	tasks  []*queue.Job
	rows   []queue.Factors // of the job that waits
	live   bool            // who is ahead was asked of Slurm
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

// findJob explains a job by what Slurm says of it now.
func (p *program) findJob(c *cli.Context, db *database, rec *report.Record, word string) (*finding, error) {
	if db.conf.Shares == conf.SharesSlurm {
		return nil, fmt.Errorf("job %s: %s says Shares=slurm, so its priority goes by Slurm's own shares: see sprio -l -j %s and sshare -l", word, db.conf.Path, word)
	}
	q, err := queue.Read(c.Context, p.slurm)
	if err != nil {
		return nil, fmt.Errorf("job %s can't be explained: %w: try where squeue works, or explain its account: gpubudget explain ACCOUNT", word, err)
	}
	if err := checkCluster(c, db, q); err != nil {
		return nil, err
	}
	jobs := q.Find(word)
	if len(jobs) == 0 {
		return nil, fmt.Errorf("unknown job %s: squeue does not list it; one that has ended is shown by sacct -j %s", word, word)
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
		mine, all := waiting(q, ranking, job)
		f.Explanation, ok = explain.Job(rec, mine, all)
	} else {
		f.Explanation, ok = explain.Path(rec, owner)
	}
	if !ok {
		return nil, fmt.Errorf("account %q of job %s does not stand below root", owner.Account, job.ID)
	}
	return f, nil
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

// waiting is all jobs that wait, and among them the rows of one.
func waiting(q *queue.Queue, r *fairshare.Ranking, job *queue.Job) (mine, all []explain.Pending) {
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
		row := explain.Pending{JobID: f.JobID, Owner: countsFor(r, j), Partition: f.In, Tasks: tasks[f.JobID], GPUs: j.GPUs, Factors: f.Factors}
		all = append(all, row)
		if f.JobID == job.JobID {
			mine = append(mine, row)
		}
	}
	return mine, all
}
