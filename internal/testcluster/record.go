// SPDX-License-Identifier: GPL-2.0-or-later

package testcluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"gpubudget/budgets"
	"gpubudget/fairshare"
	"gpubudget/report"
	"gpubudget/usage"
)

// Run is an ended run of a job with GPUs in Slurm's own record.
type Run struct {
	JobID         uint32
	User, Account string
	State         string
	GPUs          int64
	Start, End    time.Time
	Seconds       int64 // elapsed, without the time suspended
}

// GPUMillis is what the run used.
func (r Run) GPUMillis() fairshare.GPUMillis {
	return fairshare.GPUMillis(r.GPUs * r.Seconds * 1000)
}

// SlurmRuns is what slurmdbd (sacct) says about all runs that have ended.
func (c *Cluster) SlurmRuns(ctx context.Context) ([]Run, error) {
	const yesterday = "now-1days"
	rows, err := c.Rows(ctx, "root", "sacct", "--allusers", "--duplicates", "--allocations", "--noheader", "--parsable2",
		"--starttime="+yesterday, "--format=JobIDRaw,User,Account,State,AllocTRES,Start,End,ElapsedRaw")
	if err != nil {
		return nil, err
	}
	var runs []Run
	for _, row := range rows {
		run, ended, err := parseRun(row)
		if err != nil {
			return nil, fmt.Errorf("sacct printed %q: %w", strings.Join(row, "|"), err)
		}
		if ended && run.GPUs > 0 {
			runs = append(runs, run)
		}
	}
	return runs, nil
}

// parseRun reads a line of sacct; ended is false for what never ran or still
// does.
func parseRun(row []string) (run Run, ended bool, err error) {
	if len(row) != 8 {
		return run, false, fmt.Errorf("%d fields", len(row))
	}
	run.User, run.Account, run.State = row[1], row[2], row[3]
	for _, none := range []string{"Unknown", "None"} {
		if row[5] == none || row[6] == none {
			return run, false, nil
		}
	}
	id, err := strconv.ParseUint(row[0], 10, 32)
	if err != nil {
		return run, false, err
	}
	run.JobID = uint32(id)
	if run.GPUs, err = tresGPUs(row[4]); err != nil {
		return run, false, err
	}
	for field, at := range map[string]*time.Time{row[5]: &run.Start, row[6]: &run.End} {
		if *at, err = time.Parse("2006-01-02T15:04:05", field); err != nil {
			return run, false, err
		}
	}
	run.Seconds, err = strconv.ParseInt(row[7], 10, 64)
	return run, true, err
}

// tresGPUs is the number of GPUs in a list as "cpu=1,gres/gpu=2,node=1".
func tresGPUs(list string) (int64, error) {
	for entry := range strings.SplitSeq(list, ",") {
		if count, ok := strings.CutPrefix(entry, "gres/gpu="); ok {
			return strconv.ParseInt(count, 10, 64)
		}
	}
	return 0, nil
}

// Agreement is how our usage compares with Slurm's own record.
type Agreement struct {
	Runs        int                 // ended runs with GPUs, by Slurm
	Used        fairshare.GPUMillis // by Slurm
	Differences []string            // what each account and user used, where the two differ
}

type accountUser struct{ account, user string }

// Compare adds up what ended runs used, by account and user, from Slurm's
// record and from ours in PostgreSQL: of the named accounts, or of all if none
// is named. The two may differ for a moment after a job has ended.
func (c *Cluster) Compare(ctx context.Context, accounts ...string) (Agreement, error) {
	runs, err := c.SlurmRuns(ctx)
	if err != nil {
		return Agreement{}, err
	}
	asked := func(account string) bool { return len(accounts) == 0 || slices.Contains(accounts, account) }
	var a Agreement
	slurm := map[accountUser]fairshare.GPUMillis{}
	for _, run := range runs {
		if !asked(run.Account) {
			continue
		}
		a.Runs++
		a.Used += run.GPUMillis()
		slurm[accountUser{run.Account, run.User}] += run.GPUMillis()
	}
	ours, err := c.recorded(ctx)
	if err != nil {
		return Agreement{}, err
	}
	keys := slices.Collect(maps.Keys(slurm))
	for key := range ours {
		if _, both := slurm[key]; !both && asked(key.account) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(x, y accountUser) int {
		return cmp.Or(cmp.Compare(x.account, y.account), cmp.Compare(x.user, y.user))
	})
	for _, key := range keys {
		if slurm[key] != ours[key] {
			a.Differences = append(a.Differences, fmt.Sprintf("%s/%s: Slurm %d GPU-ms, gpubudget %d", key.account, key.user, slurm[key], ours[key]))
		}
	}
	return a, nil
}

// Report is how accounts and users stand now, as gshare would print it.
func (c *Cluster) Report(ctx context.Context) (*report.Report, error) {
	conn, err := pgx.Connect(ctx, c.DSN())
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	defer conn.Close(ctx)
	var r *report.Report
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, conn, options, func(tx pgx.Tx) error {
		r, err = report.Build(ctx, budgets.NewStore(tx), usage.NewStore(tx), c.Name(), time.Now(), report.Options{})
		return err
	})
	return r, err
}

// recorded is what ended runs used by our own record, charged or not.
func (c *Cluster) recorded(ctx context.Context) (map[accountUser]fairshare.GPUMillis, error) {
	conn, err := pgx.Connect(ctx, c.DSN())
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	defer conn.Close(ctx)
	now := time.Now()
	day := fairshare.Period{From: fairshare.At(now.Add(-24 * time.Hour)), Until: fairshare.At(now.Add(24 * time.Hour))}
	charged, free, err := usage.NewStore(conn).Charges(ctx, c.Name(), day)
	if err != nil {
		return nil, err
	}
	sums := map[accountUser]fairshare.GPUMillis{}
	for _, charge := range slices.Concat(charged, free) {
		sums[accountUser{charge.Account, charge.User}] += charge.Amount
	}
	return sums, nil
}

// WaitAgreement waits until our record and Slurm's say the same about at least
// one run of the named accounts, or of all if none is named.
func (c *Cluster) WaitAgreement(ctx context.Context, accounts ...string) (Agreement, error) {
	var a Agreement
	err := c.Wait(ctx, "usage to equal Slurm's record", func() (bool, error) {
		var err error
		a, err = c.Compare(ctx, accounts...)
		return a.Runs > 0 && len(a.Differences) == 0, err
	})
	if err != nil {
		return a, fmt.Errorf("%w\n%s", err, strings.Join(a.Differences, "\n"))
	}
	return a, nil
}
