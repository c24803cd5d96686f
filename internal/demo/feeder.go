// SPDX-License-Identifier: GPL-2.0-or-later

package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"gpubudget/internal/testcluster"
)

const (
	minSeconds = 2 // of a job
	maxSeconds = 5
	feedEvery  = 500 * time.Millisecond
)

// job is one that was submitted.
type job struct {
	user, account string
	gpus          int64
	pending       bool
}

// feeder plays the users: it keeps each one's part of the queue filled.
type feeder struct {
	cluster *testcluster.Cluster
	random  *rand.Rand

	mu     sync.Mutex
	jobs   map[uint32]*job // in the queue or running
	filled chan struct{}   // closed once every user's jobs are in the queue
}

func newFeeder(c *testcluster.Cluster) *feeder {
	const seed = 50_30_20                       // any: the same jobs in every run
	random := rand.New(rand.NewPCG(seed, seed)) //nolint:gosec // nobody guesses at it
	return &feeder{cluster: c, random: random, jobs: map[uint32]*job{}, filled: make(chan struct{})}
}

// run submits jobs until the context ends.
func (f *feeder) run(ctx context.Context) error {
	ticker := time.NewTicker(feedEvery)
	defer ticker.Stop()
	for first := true; ; first = false {
		err := f.look(ctx)
		if err == nil {
			err = f.fill(ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if first {
			close(f.filled)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (f *feeder) waitFilled(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-f.filled:
		return nil
	}
}

// look asks Slurm which jobs wait and which are gone.
func (f *feeder) look(ctx context.Context) error {
	f.mu.Lock()
	before := len(f.jobs)
	f.mu.Unlock()
	if before == 0 {
		return nil
	}
	rows, err := f.cluster.Rows(ctx, "root", "squeue", "--noheader", "--format=%A|%t")
	if err != nil {
		return err
	}
	states := make(map[uint32]string, len(rows))
	for _, row := range rows {
		id, err := strconv.ParseUint(row[0], 10, 32)
		if err != nil {
			return fmt.Errorf("squeue printed job id %q: %w", row[0], err)
		}
		states[uint32(id)] = row[1]
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for id, j := range f.jobs {
		state, there := states[id]
		if !there {
			delete(f.jobs, id)
			continue
		}
		j.pending = state == "PD"
	}
	return nil
}

// fill submits what is missing, user by user in turn.
func (f *feeder) fill(ctx context.Context) error {
	for more := true; more; {
		more = false
		for _, a := range accounts {
			for _, user := range a.Users {
				if f.waitingOf(user) >= waiting[user] {
					continue
				}
				more = true
				if err := f.submit(ctx, user, a.Name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (f *feeder) waitingOf(user string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	var gpus int64
	for _, j := range f.jobs {
		if j.pending && j.user == user {
			gpus += j.gpus
		}
	}
	return gpus
}

// submit submits a job: GPUs are asked for in each of the ways there are.
func (f *feeder) submit(ctx context.Context, user, account string) error {
	gpus := []int64{1, 1, 2, 2, 4}[f.random.IntN(5)]
	option := []string{"--gpus=%d", "--gres=gpu:%d", "--gpus-per-node=%d"}[f.random.IntN(3)]
	seconds := minSeconds + f.random.IntN(maxSeconds-minSeconds+1)
	id, err := f.cluster.Sbatch(ctx, user, "--account="+account, fmt.Sprintf(option, gpus), "--nodes=1", "--time=1",
		fmt.Sprintf("--wrap=sleep %d", seconds))
	if err != nil {
		return errors.Join(ctx.Err(), err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.jobs[id] = &job{user: user, account: account, gpus: gpus, pending: true}
	return nil
}

// queue is how many GPUs the jobs of each team wait for, and how many are in
// use, as last seen.
func (f *feeder) queue() (waiting map[string]int64, busy int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	waiting = map[string]int64{}
	for _, j := range f.jobs {
		if j.pending {
			waiting[teamOf(j.account)] += j.gpus
		} else {
			busy += j.gpus
		}
	}
	return waiting, busy
}
