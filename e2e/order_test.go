// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An account that was idle is served first when it comes back, before all that
// others had queued long ago.
func TestIdleAccountIsServedFirstWhenItComesBack(t *testing.T) {
	s := begin(t, "comeback")
	running := s.submit(ann, s.a, 3, "--nodes=2", "--gpus-per-node=8")
	s.waitState(running, "R")
	var queued []uint32
	for range 4 {
		queued = append(queued, s.submit(ann, s.a, 2, "--nodes=2", "--gpus-per-node=8"))
	}
	back := s.submit(bob, s.b, 3, "--nodes=2", "--gpus-per-node=8")

	s.waitOrder(append([]uint32{back}, queued...)...)
	s.waitState(back, "R")
	for _, id := range queued {
		require.Equal(t, "PD", s.state(id), "job %d was queued before and is still waiting", id)
	}
}

// A share that is set with "gpubudget share set" changes the order of the
// pending jobs within one refresh: an account that had none gets ahead of one
// that has used GPUs, and a share set from an earlier date on is reckoned with
// as if it had been in force since then.
func TestShareSetReordersPendingJobs(t *testing.T) {
	s := begin(t, "reshare")
	s.use(ann, s.a, 4, 3)
	s.use(bob, s.b, 4, 1)
	s.hog()
	ofA := s.submit(ann, s.a, 1, "--gpus=1")
	ofB := s.submit(bob, s.b, 1, "--gpus=1")
	ofC := s.submit(cem, s.c, 1, "--gpus=1")
	s.waitOrder(ofB, ofA, ofC) // c has no share at all

	s.exec("root", "gpubudget", "-i", "share", "set", s.c, "20%", "--why", "joins")
	took := s.waitOrder(ofC, ofB, ofA)
	t.Logf("the new share counted after %v", took.Round(10*time.Millisecond))

	since := shared.began.Add(time.Second).UTC().Format("2006-01-02T15:04:05Z")
	s.exec("root", "gpubudget", "-i", "share", "set", s.b, "1%", "--from", since)
	s.exec("root", "gpubudget", "-i", "share", "set", s.a, "79%", "--from", since)
	took = s.waitOrder(ofC, ofA, ofB)
	t.Logf("the back-dated shares counted after %v", took.Round(10*time.Millisecond))
}

// In strict mode QOS and nice sort within an account and never get a job ahead
// of an account that is due more. sprio's columns add up to the priority, in
// both modes.
func TestNiceAndQOSSortWithinAnAccount(t *testing.T) {
	s := begin(t, "nice")
	s.use(ann, s.a, 4, 2)
	s.hog()
	plain := s.submit(ann, s.a, 1, "--gpus=1")
	nice := s.submit(ann, s.a, 1, "--gpus=1", "--nice=500")
	urgent := s.submit(ann, s.a, 1, "--gpus=1")
	s.exec("root", "scontrol", "update", "job", number0(urgent), "nice=-100000")
	high := s.submit(ann, s.a, 1, "--gpus=1", "--qos=high")
	other := s.submit(bob, s.b, 1, "--gpus=1")
	otherNice := s.submit(bob, s.b, 1, "--gpus=1", "--nice=20000")

	s.waitOrder(other, otherNice, high, urgent, plain, nice)
	s.requireSum(0)

	s.exec("root", "gpubudget", "-i", "policy", "set", "mode", "additive")
	t.Cleanup(func() { s.exec("root", "gpubudget", "-i", "policy", "set", "mode", "strict") })
	// The weighted sum, where nice counts as much as anything.
	s.wait("the additive mode", func() bool { order := s.order(); return order[0] == urgent && order[5] == otherNice })
	s.requireSum(sprioColumns)
}

// In strict mode a site factor sorts within the last digit: it puts a job ahead of
// others of the same user, and of none that declares less.
func TestASiteFactorSortsLast(t *testing.T) {
	s := begin(t, "site")
	s.use(ann, s.a, 4, 2)
	s.hog()
	first := s.submit(ann, s.a, 1, "--gpus=1")
	second := s.submit(ann, s.a, 1, "--gpus=1")
	nice := s.submit(ann, s.a, 1, "--gpus=1", "--nice=10")
	other := s.submit(bob, s.b, 1, "--gpus=1")
	s.waitOrder(other, first, second, nice)
	for id, factor := range map[uint32]int{first: -7, second: 500_000, nice: 1_000_000} {
		s.exec("root", "scontrol", "update", "job", number0(id), fmt.Sprint("sitefactor=", factor))
	}
	s.waitOrder(other, second, first, nice)
	s.requireSum(0)
	site := func(id uint32) int64 {
		rows := s.rows("sprio", "--noheader", "--jobs="+number0(id), "--format=%S")
		require.Len(t, rows, 1)
		return number(t, rows[0][0])
	}
	s.wait("the highest site factor to count most", func() bool { return site(nice) > site(second) })
	require.Greater(t, site(second), site(first))
	require.Zero(t, site(first), "the lowest")
}

// sprioColumns is how many columns make up a priority; each is printed as a
// whole number.
const sprioColumns = 9

// requireSum checks that in every line of sprio the columns add up to the
// priority, to within as much as they are rounded.
func (s *scenario) requireSum(rounding int64) {
	s.t.Helper()
	const format = "--format=%i|%r|%Y|%S|%A|%B|%F|%J|%P|%Q|%N|%T"
	lines := s.rows("sprio", "--noheader", format)
	require.NotEmpty(s.t, lines)
	for _, line := range lines {
		sum := int64(0)
		for _, column := range line[3:10] {
			sum += number(s.t, column)
		}
		sum -= number(s.t, line[10])
		for tres := range strings.SplitSeq(line[11], ",") {
			if _, value, ok := strings.Cut(tres, "="); ok {
				sum += number(s.t, value)
			}
		}
		// A job that isn't held has a priority of 1 at least, however nice it is.
		require.InDelta(s.t, number(s.t, line[2]), max(sum, 1), float64(rounding), "sprio: %v", line)
	}
}

// A held job stays held until it is released, and a job that names several
// partitions has a priority in each and runs.
func TestHeldAndMultiPartitionJobs(t *testing.T) {
	s := begin(t, "parts")
	release := s.hog()
	held := s.submit(ann, s.a, 1, "--gpus=1", "--hold")
	multi := s.submit(ann, s.a, 1, "--gpus=1", "--partition=gpu,short")
	s.waitOrder(multi, held)
	time.Sleep(2 * time.Second) // two recalculations
	require.Equal(t, "0", s.priorities(held)[0], "held")

	parts := s.rows("sprio", "--noheader", "--jobs="+number0(multi), "--format=%r|%Y")
	require.Len(t, parts, 2)
	require.Equal(t, "gpu", parts[0][0])
	require.Equal(t, "short", parts[1][0])
	require.Greater(t, number(t, parts[1][1]), number(t, parts[0][1]), "short has the higher job factor")
	s.requireSum(0)

	s.exec("root", "scontrol", "release", number0(held))
	s.wait("the released job to have a priority", func() bool { return s.priorities(held)[0] != "0" })
	release()
	s.waitGone(held, multi)
}

func (s *scenario) priorities(id uint32) []string {
	s.t.Helper()
	var found []string
	for _, row := range s.rows("squeue", "--noheader", "--jobs="+number0(id), "--format=%Q") {
		found = append(found, row[0])
	}
	require.NotEmpty(s.t, found)
	return found
}
