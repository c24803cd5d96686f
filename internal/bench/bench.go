// SPDX-License-Identifier: GPL-2.0-or-later

// Package bench measures gpubudget's priority plugin beside Slurm's own on two
// real slurmctlds in one run: the same slurm.conf but for PriorityType, the
// same users, accounts and pending jobs; and what its preempt plugin adds to an
// attempt to place a job, the agents to a node and a database. docs/performance.md
// tells what the numbers mean and what they were.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// Options is how much is measured.
type Options struct {
	Jobs     []int // pending jobs, ascending: measured at each of these
	Users    int
	Accounts int
	Passes   int // that are measured at each number of jobs; with 0 submissions alone are
	Clients  int // that submit at a time
	// Tools is the folder with probe.so and submit.
	Tools string
}

// blocks is how many turns each side takes to submit the jobs between two
// sizes: what else the machine does then bears on both alike.
const blocks = 10

// Run measures and prints lines "bench: NAME VALUE UNIT" as it goes.
func Run(ctx context.Context, out io.Writer, opts Options) (err error) {
	if err := opts.check(); err != nil {
		return err
	}
	var sides []*side
	defer func() {
		for _, s := range sides {
			err = errors.Join(err, s.stop())
		}
	}()
	for _, priority := range kinds {
		s, err := startSide(ctx, priority, opts)
		if err != nil {
			return err
		}
		sides = append(sides, s)
	}
	if err := wait(ctx, settled); err != nil {
		return err
	}
	p := &printer{out: out}
	have := 0
	for _, n := range opts.Jobs {
		if err := fill(ctx, p, sides, have, n, opts); err != nil {
			return err
		}
		have = n
		if opts.Passes == 0 {
			continue
		}
		if err := measure(ctx, p, sides, n, opts); err != nil {
			return err
		}
	}
	p.growth(opts.Jobs)
	return p.err
}

// settled is how long a cluster takes to come to rest: our plugin reads a week of
// usage when it has just been written.
const settled = 20 * time.Second

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (o Options) check() error {
	switch {
	case len(o.Jobs) == 0 || !slices.IsSorted(o.Jobs) || o.Jobs[0] < blocks:
		return fmt.Errorf("numbers of jobs: %v: name some, ascending, %d at the least", o.Jobs, blocks)
	case o.Accounts < 1 || o.Users < o.Accounts:
		return fmt.Errorf("%d users in %d accounts: each account needs one", o.Users, o.Accounts)
	case o.Passes < 0 || o.Clients < 1:
		return errors.New("no fewer passes than none are measured, and at least one client submits")
	}
	return nil
}

// fill submits jobs to both sides, in turns, until each has n.
func fill(ctx context.Context, p *printer, sides []*side, have, n int, opts Options) error {
	seconds := make(map[*side]float64)
	var ratios []float64
	for _, s := range sides {
		s.probe.forgetSets()
	}
	for b := range blocks {
		from, to := have+(n-have)*b/blocks, have+(n-have)*(b+1)/blocks
		took := make(map[*side]float64)
		order := slices.Clone(sides)
		if b%2 == 1 {
			slices.Reverse(order) // neither always has the machine first
		}
		for _, s := range order {
			t, err := s.submit(ctx, from, to-from, opts.Clients)
			if err != nil {
				return err
			}
			took[s] = t
			seconds[s] += t
		}
		ratios = append(ratios, took[sides[stock]]/took[sides[ours]])
	}
	for _, s := range sides {
		p.side(s.name, "submit-rate", n, float64(n-have)/seconds[s], "jobs/s")
		sets := s.probe.sets()
		if len(sets) == 0 {
			return fmt.Errorf("%s: no call of priority_p_set was seen", s.name)
		}
		p.side(s.name, "set-p50", n, quantile(sets, 0.50)/1000, "us")
		p.side(s.name, "set-p99", n, quantile(sets, 0.99)/1000, "us")
	}
	p.ratio("submit-rate", n, median(ratios))
	return nil
}

// measure measures passes at rest: every job is submitted, and slurmdbd knows
// of them all. Both sides are watched at a time: a pass a minute leaves room.
func measure(ctx context.Context, p *printer, sides []*side, n int, opts Options) error {
	for _, s := range sides {
		if err := s.settle(ctx); err != nil {
			return err
		}
	}
	all, looks := make([][]pass, len(sides)), make([][]pass, len(sides))
	errs := make([]error, len(sides))
	var group sync.WaitGroup
	for i, s := range sides {
		group.Go(func() { all[i], looks[i], errs[i] = s.passes(ctx, opts.Passes) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, m := range measures {
		var medians []float64
		for i, s := range sides {
			v := median(collect(all[i], m.of))
			medians = append(medians, v)
			p.side(s.name, m.name, n, v, "ms")
		}
		p.ratio(m.name, n, medians[ours]/medians[stock])
	}
	if mine := looks[ours]; len(mine) > 0 {
		p.side(sides[ours].name, "look-cpu", n, median(collect(mine, func(p pass) float64 { return milliseconds(p.cpu) })), "ms")
		p.side(sides[ours].name, "look-lock", n, median(collect(mine, func(p pass) float64 { return milliseconds(p.held(readLock)) })), "ms")
	}
	return memory(p, sides, n)
}

// memory compares the resident memory of the two slurmctlds.
func memory(p *printer, sides []*side, n int) error {
	var mib []float64
	for _, s := range sides {
		bytes, err := residentMemory(s.pid)
		if err != nil {
			return err
		}
		mib = append(mib, float64(bytes)/(1<<20))
		p.side(s.name, "memory", n, mib[len(mib)-1], "MiB")
	}
	p.line("memory-added", n, mib[ours]-mib[stock], "MiB")
	return nil
}

// measures are what is made of each pass.
var measures = []struct {
	name string
	of   func(pass) float64
}{
	{"pass-cpu", func(p pass) float64 { return milliseconds(p.cpu) }},
	{"write-lock", func(p pass) float64 { return milliseconds(p.held(writeLock)) }},
	{"write-lock-cpu", func(p pass) float64 { return milliseconds(p.heldCPU(writeLock)) }},
	{"any-lock", func(p pass) float64 { return milliseconds(p.held(readLock) + p.held(writeLock)) }},
	{"longest-hold", func(p pass) float64 { return milliseconds(p.longest()) }},
}

func collect(passes []pass, of func(pass) float64) []float64 {
	var values []float64
	for _, p := range passes {
		values = append(values, of(p))
	}
	return values
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
