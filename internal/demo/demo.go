// SPDX-License-Identifier: GPL-2.0-or-later

// Package demo shows on a real Slurm cluster that budgets are kept: users of
// three teams ask for far more than there is, each team in other amounts than
// its budget, and get what their budget says. Every number it prints comes from
// the run.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"gpubudget/internal/testcluster"
)

const (
	lookback  = 3 * time.Minute
	tolerance = 5.0 // points off its budget that a team may be

	startTimeout = 2 * time.Minute
	drainTimeout = time.Minute
	sampleEvery  = time.Second
	lineEvery    = 15 * time.Second // unless the line is redrawn
)

// Options is how to run the demonstration.
type Options struct {
	Length   time.Duration // how long users submit jobs: DefaultLength if 0
	Terminal bool          // out is a terminal: redraw the live line
}

// DefaultLength is a bit longer than the lookback window, so that the first
// jobs, started when nobody had used anything, have slid out of it.
const DefaultLength = 200 * time.Second

// VerdictError is the verdict that budgets were not kept.
type VerdictError struct{ Verdict string }

func (e *VerdictError) Error() string { return e.Verdict }

// Run runs the demonstration and writes what happens to out. It returns a
// *VerdictError if a team that had demand all the time is too far off its budget or
// if our record of what was used differs from Slurm's.
func Run(ctx context.Context, out io.Writer, o Options) (err error) {
	if o.Length == 0 {
		o.Length = DefaultLength
	}
	fmt.Fprintf(out, "demo: starting Slurm (%d nodes with %d GPUs each), PostgreSQL, the plugin, and on each node an agent on a simulated NVIDIA driver\n",
		nodes, gpusPerNode)
	began := time.Now()
	c, err := start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	if err := c.LoadBudgets(ctx, map[string]string{"lookback": lookback.String(), "bucket": "10s"}); err != nil {
		return err
	}
	fmt.Fprintf(out, "demo: up after %.1f s; budgets: %s\n", time.Since(began).Seconds(), budgetsLine())
	fmt.Fprintf(out, "demo: %d users submit jobs of %d to %d seconds with sbatch for %.0f s; shares are those of the last %.0f s\n",
		len(users()), minSeconds, maxSeconds, o.Length.Seconds(), lookback.Seconds())

	m := newMeter(c)
	final, err := observe(ctx, c, m, out, o)
	if err != nil {
		return err
	}
	table, err := c.Exec(ctx, "root", "gshare", "--all")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%s\n", table)
	return judge(ctx, c, m, final, out)
}

func start(ctx context.Context) (*testcluster.Cluster, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return testcluster.Start(ctx, testcluster.Options{
		Name: "demo", Nodes: nodes, GPUsPerNode: gpusPerNode,
		Users: users(), Slurmdbd: true, Accounts: accounts,
		Priority: testcluster.Gpubudget,
	})
}

// observe has users submit jobs and shows how the teams stand, until the time
// is over. It returns the last sample.
func observe(ctx context.Context, c *testcluster.Cluster, m *meter, out io.Writer, o Options) (sample, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := newFeeder(c)
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		if err := f.run(ctx); err != nil {
			cancel(err)
		}
	}()
	defer func() { cancel(nil); <-fed }()
	if err := f.waitFilled(ctx); err != nil {
		return sample{}, err
	}

	began := time.Now()
	nextLine := began.Add(lineEvery)
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return sample{}, context.Cause(ctx)
		case <-ticker.C:
		}
		s, err := m.sample(ctx, f)
		if err != nil {
			return sample{}, err
		}
		elapsed := time.Since(began)
		over := elapsed >= o.Length
		line := fmt.Sprintf("%4.0f s  %s", elapsed.Seconds(), s)
		switch {
		case o.Terminal:
			fmt.Fprintf(out, "\r%s\x1b[K", line)
		case over || time.Now().After(nextLine):
			nextLine = nextLine.Add(lineEvery)
			fmt.Fprintln(out, line)
		}
		if over {
			if o.Terminal {
				fmt.Fprintln(out)
			}
			return s, nil
		}
	}
}

// judge lets the last jobs end, compares with Slurm's record and says how it
// went.
func judge(ctx context.Context, c *testcluster.Cluster, m *meter, final sample, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	if err := c.CancelPending(ctx); err != nil {
		return err
	}
	if err := c.WaitNoJobs(ctx); err != nil {
		return err
	}
	record, err := c.WaitAgreement(ctx)
	if err != nil {
		return err
	}
	if err := tellMetered(ctx, c, record, out); err != nil {
		return err
	}
	worst, judged := final.worst(m)
	var verdict strings.Builder
	fmt.Fprintf(&verdict, "max share error %.1f points (%s); %d jobs of %d users, %.0f%% of %d GPUs busy (Slurm fills a gap within a second); usage equals sacct: %.0f GPU-seconds",
		worst, final.shares(), record.Runs, len(users()), 100*final.occupancy(), c.GPUs(), float64(record.Used)/1000)
	for _, team := range m.idleTeams() {
		fmt.Fprintf(&verdict, "; %s, at times without demand, is not judged", team)
	}
	if judged == 0 || worst > tolerance {
		return &VerdictError{"demo: FAIL " + verdict.String()}
	}
	fmt.Fprintln(out, "demo: OK "+verdict.String())
	return nil
}
