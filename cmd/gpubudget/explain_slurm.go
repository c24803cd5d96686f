// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"gpubudget/cmd/gpubudget/queue"
	"gpubudget/cmd/gpubudget/shares"
	"gpubudget/conf"
	"gpubudget/explain"
	"gpubudget/internal/nearest"
)

const optShares = "shares"

func sharesFlag() cli.Flag {
	return &cli.StringFlag{Name: optShares, Usage: "by whose `SHARES`: ledger, or slurm, those of slurmdbd's associations (default: as gpubudget.conf says)"}
}

// sharesWanted is whose shares are to be explained.
func sharesWanted(c *cli.Context, config *conf.Conf) (conf.Shares, error) {
	if !c.IsSet(optShares) {
		return config.Shares, nil
	}
	switch wanted := conf.Shares(strings.ToLower(c.String(optShares))); wanted {
	case conf.SharesLedger, conf.SharesSlurm:
		return wanted, nil
	}
	return "", misuse(c, "--%s is ledger or slurm, not %q", optShares, c.String(optShares))
}

// slurmFinding is an explanation by Slurm's shares and what belongs to it. The
// finding has no record: nothing of it is the ledger's.
type slurmFinding struct {
	*finding
	settings shares.Settings
	standing *explain.Slurm
	place    int // of its association, -1 if it has none
	*explain.SlurmExplanation
	shadow string // how to see the ledger's side; "" if there is none
}

// explainSlurm explains by what slurmctld says. It needs no database.
func (p *program) explainSlurm(c *cli.Context, config *conf.Conf, word string) error {
	if c.IsSet(optAt) {
		return misuse(c, "--%s: how things stood by Slurm's shares is recorded nowhere", optAt)
	}
	read, err := shares.Read(c.Context, p.slurm)
	if err != nil {
		return fmt.Errorf("Slurm's shares can't be explained: %w", err) //nolint:staticcheck // a name
	}
	if wanted := c.String(optCluster); wanted != "" && !strings.EqualFold(wanted, read.Cluster) {
		return fmt.Errorf("slurmctld is cluster %s's, not %s's: run this there, or set SLURM_CONF to its slurm.conf", read.Cluster, wanted)
	}
	policy := read.Policy
	policy.TiesApart = config.FairTreeTies == conf.TiesSlurm
	standing, err := explain.NewSlurm(read.Assocs, policy)
	if err != nil {
		return fmt.Errorf("Slurm's shares can't be explained: %w", err) //nolint:staticcheck // a name
	}
	q, err := queue.Read(c.Context, p.slurm)
	if err != nil {
		return err
	}
	f := &slurmFinding{settings: read.Settings, standing: standing}
	if queue.IsJob(word) {
		err = f.job(q, word)
	} else {
		err = f.account(q, word)
	}
	if err != nil {
		return err
	}
	if config.Shadow && config.UsesDatabase() && f.Subject.Account != "" {
		f.shadow = "gpubudget explain " + nameOf(f.Subject) + " --shares ledger"
	}
	p.warnOfShares(config)
	return p.printSlurm(c, f)
}

// nameOf is a subject as a word on the command line.
func nameOf(s explain.Subject) string {
	if s.User != "" || queue.IsJob(s.Account) {
		return s.Account + "/" + s.User
	}
	return s.Account
}

// warnOfShares tells if priorities go by something else.
func (p *program) warnOfShares(config *conf.Conf) {
	if config.Path != "" && config.Shares != conf.SharesSlurm {
		fmt.Fprintf(p.stderr, "gpubudget: %s doesn't say Shares=slurm: priorities go by the ledger; this is how all would stand by Slurm's own shares\n", config.Path)
	}
}

// job explains a job by what Slurm says of it now.
func (f *slurmFinding) job(q *queue.Queue, word string) error {
	jobs := q.Find(word)
	if len(jobs) == 0 {
		return unknownJob(word)
	}
	job := jobs[0]
	of := explain.Subject{Account: job.Account, User: job.User}
	f.finding = &finding{Explanation: &explain.Explanation{Subject: of}, job: job, tasks: jobs, rows: q.FactorsOf(job), live: true}
	var known bool
	if f.place, known = f.standing.Find(of, job.Partition); !known {
		f.place = -1
	}
	if len(f.rows) > 0 {
		mine, all := waiting(q, slurmOwner, job)
		f.SlurmExplanation = f.standing.Job(f.place, mine, all)
	} else {
		f.SlurmExplanation = &explain.SlurmExplanation{Subject: of}
		if known {
			f.Path = f.standing.Path(f.place)
		}
	}
	f.Explanation.Ahead = f.Ahead
	return nil
}

// slurmOwner is whose association a job counts for.
func slurmOwner(j *queue.Job) explain.Subject {
	return explain.Subject{Account: j.Account, User: j.User}
}

// account explains an account or a user in it.
func (f *slurmFinding) account(q *queue.Queue, word string) error {
	account, user, _ := strings.Cut(word, "/")
	of := explain.Subject{Account: strings.ToLower(account), User: user}
	place, known := f.standing.FindAny(of)
	if !known {
		return f.unknown(of)
	}
	f.place = place
	_, all := waiting(q, slurmOwner, &queue.Job{})
	f.SlurmExplanation = f.standing.Waiting(place, all)
	f.finding = &finding{Explanation: &explain.Explanation{Subject: of, Ahead: f.Ahead}, live: true}
	return nil
}

func (f *slurmFinding) unknown(of explain.Subject) error {
	accounts := f.standing.Accounts()
	if _, known := f.standing.FindAny(explain.Subject{Account: of.Account}); known {
		return fmt.Errorf("user %q has no association in account %q", of.User, of.Account)
	}
	if near := nearest.Word(of.Account, accounts); near != "" {
		return fmt.Errorf("Slurm knows no account %q: did you mean %q?", of.Account, near) //nolint:staticcheck // a name
	}
	return fmt.Errorf("Slurm knows no account %q: sacctmgr show account lists them", of.Account) //nolint:staticcheck // a name
}
