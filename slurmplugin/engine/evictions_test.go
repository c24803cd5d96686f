// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

// evicted is a job that was evicted so many times at an instant.
func evicted(times int, at fairshare.Instant) []eviction {
	list := make([]eviction, times)
	for i := range list {
		list[i] = eviction{int64(i), at}
	}
	return list
}

// lastingEvictions is a contest in which a job has been evicted twice, on which
// the database has been told of the first time only, as has the snapshot.
func lastingEvictions(t *testing.T) (c *contested, job *simJob) {
	t.Helper()
	c = contest(t)
	job = c.run(1, "physics", "alice", 600, 8)
	for i := range 2 {
		c.see(600 * time.Second)
		ask := c.request("bio", "carol", 300, 4)
		ask.JobID += uint32(i)
		require.Equal(t, []uint32{job.id}, c.candidates(ask))
		c.engine.Preempted(job.id, ask.JobID, true, c.ms())
		c.slurm.requeue(job)
		c.see(time.Second)
		if i == 0 {
			require.NoError(t, c.exchange())
			c.engine.refresher.save(true)
		}
		c.engine.recorder.save(false)
		c.slurm.clean(job)
		c.slurm.start(job)
	}
	c.see(time.Second)
	return c, job
}

func (c *contested) counted(j *simJob) int {
	c.engine.mu.Lock()
	defer c.engine.mu.Unlock()
	return c.engine.contract.evictions.count(j.id, fairshare.Instant(c.ms()))
}

func (c *contested) lose(file string) {
	c.t.Helper()
	require.NoError(c.t, os.Remove(filepath.Join(c.dir, file)))
}

// R7's limit on the preemptions of a job holds in the day, however often slurmctld
// is restarted in it, and whatever of its files is lost.
func TestARestartForgetsNoEviction(t *testing.T) {
	const spool = spoolName + ".titan"
	for name, test := range map[string]struct {
		lost []string
		away bool // the database
		want int
	}{
		"nothing is lost":              {want: 2},
		"no database":                  {away: true, want: 2},
		"no database and no snapshot":  {lost: []string{snapshotName}, away: true, want: 2},
		"no database and no spool":     {lost: []string{spool}, away: true, want: 1},
		"neither snapshot nor spool":   {lost: []string{snapshotName, spool}, want: 1},
		"no snapshot, but the rest is": {lost: []string{snapshotName}, want: 2},
	} {
		t.Run(name, func(t *testing.T) {
			c, job := lastingEvictions(t)
			require.Equal(t, 2, c.counted(job))
			c.kill()
			for _, file := range test.lost {
				c.lose(file)
			}
			if test.away {
				c.configure(deadDSN)
			}
			c.start()
			if test.away {
				require.Error(t, c.exchange())
			} else {
				require.NoError(t, c.exchange())
			}
			require.Equal(t, test.want, c.counted(job))
			c.later(24 * time.Hour)
			require.Zero(t, c.counted(job), "the next day")
		})
	}
}

// The spool is rewritten when it has grown: what a snapshot has is dropped there.
func TestEvictionsOutliveTheSpoolsRecords(t *testing.T) {
	c, job := lastingEvictions(t)
	require.NoError(t, c.exchange())
	c.engine.refresher.save(true)
	saved := c.engine.refresher.saved
	require.NoError(t, c.engine.recorder.spool.compact(saved.Spooled, func(runKey) bool { return false }))
	c.kill()
	c.configure(deadDSN)
	c.start()
	require.Equal(t, 2, c.counted(job))
}

// Who left a node that was drained gave way to nobody.
func TestLeavingADrainedNodeIsNoEviction(t *testing.T) {
	c := contest(t)
	job := c.run(1, "physics", "alice", 0, 8)
	c.see(time.Second)
	c.engine.Left(job.id, "n1", c.ms())
	c.slurm.requeue(job)
	c.see(time.Second)
	require.NoError(t, c.exchange())
	require.Zero(t, c.counted(job))
	c.kill()
	c.start()
	require.NoError(t, c.exchange())
	require.Zero(t, c.counted(job))
}

// A restarted engine keeps the limit, not only the count.
func TestTheLimitHoldsAfterARestart(t *testing.T) {
	c, job := lastingEvictions(t)
	c.engine.contract.evictions[job.id] = append(c.engine.contract.evictions[job.id], evicted(2, fairshare.Instant(c.ms()))...)
	require.NoError(t, c.exchange())
	c.engine.refresher.save(true)
	c.kill()
	c.start()
	c.see(600 * time.Second)
	ask := c.request("bio", "carol", 300, 4)
	require.Empty(t, c.candidates(ask), "four times a day are enough")
	c.see(24 * time.Hour)
	require.NoError(t, c.exchange())
	c.see(time.Second)
	require.Equal(t, []uint32{job.id}, c.candidates(ask))
}
