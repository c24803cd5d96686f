// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/testcluster"
)

// hetLate is how long after its submission a het request may start: a pass of backfill to
// find that somebody has to go, one to have them go, KillWait, and one to start, each
// as late as a busy machine makes it.
const hetLate = 20 * time.Second

// A het job that needs the GPUs of others, on a cluster where whoever waits takes what
// is free at once. What happened is read in Slurm's accounting.
func TestHetRequest(t *testing.T) { //nolint:tparallel // its cases have one cluster, one after the other
	t.Parallel() // it mostly waits
	s := graceCluster(t, func(o *testcluster.Options) { o.Nodes = 3 })
	const (
		head, gpu, gpus = "--nodelist=n1 --ntasks=1", "--nodelist=n1 --gpus-per-node=1", "--nodelist=n2 --gpus-per-node=2"
		free, past      = "--account=none --min-runtime=0", "--account=over --min-runtime=1s"
		ends, stays     = "sleep 600", "trap '' TERM; while :; do sleep 1; done"
	)
	for _, test := range []struct {
		name       string
		components []string
		victims    string // what they are submitted with
		script     string
		most       int // of them that go
	}{
		{"each component has others evicted", []string{gpu, gpus}, free, ends, 3},
		{"the smaller component comes last", []string{gpus, gpu}, free, ends, 3},
		{"a component without GPUs has room", []string{head, gpus}, free, ends, 2},
		{"components that could do with each other's nodes", []string{"--nodes=1 --gpus-per-node=1", "--nodes=1 --gpus-per-node=2"}, free, ends, 3},
		{"a component with GPUs has room", []string{gpu, gpus}, free + " --exclude=n1", ends, 2},
		{"a component without GPUs, and two anywhere", []string{head, "--nodes=1 --gpus-per-node=1", "--nodes=1 --gpus-per-node=3"}, free, ends, 4},
		{"allocated jobs past their minimum runtime", []string{gpu, gpus}, past, ends, 3},
		{"jobs that have to be killed", []string{gpu, gpus}, free, stays, 3},
		{"jobs with a grace time, which they use", []string{gpu, gpus}, free + " --qos=gentle", stays, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := s.on(t)
			began := time.Now()
			running := 12
			if strings.Contains(test.victims, "--exclude=n1") {
				running = 8
			}
			s.crowd(test.script, running, strings.Fields(test.victims)...)
			id := s.submitHet(ann, "due", test.components...)
			s.waitState(id, "R")
			waited := s.waited(id, len(test.components))
			late := hetLate
			if strings.Contains(test.victims, "--qos=gentle") {
				late += 30 * time.Second // Slurm looks so often whether a grace time is over
			}
			require.Less(t, waited, late)
			evicted := s.evictedSince(began)
			t.Logf("it ran after %v, and %d runs were evicted", waited, evicted)
			require.LessOrEqual(t, evicted, test.most)
		})
	}
	t.Run("a het job has to go for a het job", func(t *testing.T) {
		s := s.on(t)
		began := time.Now()
		victim, err := s.Sbatch(s.ctx, cem, "--account=none", "--min-runtime=0", "--nodelist=n1", "--gpus-per-node=4", ":",
			"--account=none", "--min-runtime=0", "--nodelist=n2", "--gpus-per-node=4", "--wrap=sleep 600")
		require.NoError(t, err)
		s.waitState(victim+1, "R")
		s.crowd(ends, 2+4, strings.Fields(free)...)
		id := s.submitHet(ann, "due", gpu, gpus)
		s.waitState(id, "R")
		require.Less(t, s.waited(id, 2), hetLate)
		require.Equal(t, 2, s.evictedSince(began), "its components, and nobody else")
	})
	t.Run("nobody goes for a part of it", func(t *testing.T) {
		s := s.on(t)
		began := time.Now()
		protected := s.submit(bob, "over", 600, "--nodelist=n2", "--gpus-per-node=4", minRuntime(10*time.Minute))
		s.waitState(protected, "R")
		s.crowd(ends, 1+8, strings.Fields(free+" --exclude=n2")...)
		s.stays(s.submitHet(ann, "due", gpu, gpus), "PD", 15*time.Second)
		require.Zero(t, s.evictedSince(began))
	})
}

// crowd takes every GPU it may, until so many jobs run, and has more wait for each.
func (s *scenario) crowd(script string, running int, args ...string) {
	s.t.Helper()
	user := cem
	if slices.Contains(args, "--account=over") {
		user = bob
	}
	for range 3 * 12 {
		_, err := s.Sbatch(s.ctx, user, append([]string{"--gpus=1", "--time=60", "--wrap=" + script}, args...)...)
		require.NoError(s.t, err)
	}
	s.wait("all GPUs to be in use", func() bool {
		return len(s.rows("squeue", "--noheader", "--states=RUNNING", "--format=%A")) == running
	})
	time.Sleep(3 * time.Second) // their minimum runtime, and a pass that sees them
}

// submitHet submits a het job with an allocated component for each of args.
func (s *scenario) submitHet(user, account string, components ...string) uint32 {
	s.t.Helper()
	var args []string
	for i, component := range components {
		if i > 0 {
			args = append(args, ":")
		}
		args = append(args, "--account="+account, minRuntime(window), "--time=60")
		args = append(args, strings.Fields(component)...)
	}
	id, err := s.Sbatch(s.ctx, user, append(args, "--wrap=sleep 600")...)
	require.NoError(s.t, err)
	return id
}

// waited is for how long the last component of a het job did, each of which began once.
func (s *scenario) waited(id uint32, components int) (longest time.Duration) {
	s.t.Helper()
	time.Sleep(5 * time.Second) // for who would go in vain, and for slurmdbd
	rows := s.rows("sacct", "--duplicates", "--allocations", "--noheader", "--parsable2", "--jobs="+number0(id), "--format=Submit,Start,State")
	require.Len(s.t, rows, components, "none was taken back")
	for _, row := range rows {
		require.Equal(s.t, "RUNNING", row[2])
		var at [2]time.Time
		for i := range at {
			var err error
			at[i], err = time.ParseInLocation("2006-01-02T15:04:05", row[i], time.Local)
			require.NoError(s.t, err)
		}
		longest = max(longest, at[1].Sub(at[0]))
	}
	return longest
}

// evictedSince counts, by sacct, the runs that were preempted.
func (s *scenario) evictedSince(began time.Time) int {
	s.t.Helper()
	return len(s.rows("sacct", "--allusers", "--duplicates", "--allocations", "--noheader", "--parsable2", "--state=PREEMPTED",
		"--endtime=now", "--starttime="+began.Local().Format("2006-01-02T15:04:05"), "--format=JobIDRaw"))
}
