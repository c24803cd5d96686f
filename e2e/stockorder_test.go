// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// planFresh are jobs to submit once all else has settled. The last two are
// altered.
func (s *comparison) planFresh() []planned {
	u, acct := s.users, func(i, n int) string { return "--account=" + s.members[s.users[i]][n] }
	return []planned{
		{u[0], "fresh1", []string{acct(0, 0), "--qos=high", "--gpus=1"}},
		{u[1], "fresh2", []string{acct(1, 1), "--nice=3", "--partition=gpu,short", "--time=1"}},
		s.randomJob("fresh3"),
		{u[2], "fresh4", []string{acct(2, 0), "--exclusive"}},
		{u[3], "fresh5", []string{acct(3, 1), "--array=1-4", "--gpus=2"}},
	}
}

// alterations are what is done to a job that waits, and to an array.
func (s *comparison) alterations(job, array string) [][]string {
	update := func(what string) []string { return []string{"update", "job", job, what} }
	return [][]string{
		update("nice=50"), update("qos=high"), update("timelimit=4"), update("partition=short"), update("priority=777"),
		update("nice=7"), {"hold", job}, {"release", job}, update("numnodes=2"), update("partition=zero,gpu"),
		update("account=" + s.members[s.users[2]][1]), update("qos=low"), update("partition=gpu"), update("numcpus=9"),
		{"update", "job", array + "_2", "nice=9"}, {"hold", array + "_3"}, {"update", "job", array, "qos=high"}, {"release", array + "_3"},
	}
}

// submitFresh submits jobs and tells the priorities that they have at once, and
// if they are altered those after each alteration.
func (s *comparison) submitFresh(set setting) string {
	s.t.Helper()
	var told strings.Builder
	var ids []string
	for _, p := range set.fresh {
		id := number0(s.submitPlanned(p))
		ids = append(ids, id)
		fmt.Fprintln(&told, p.name, s.priorities(id))
	}
	job, array := ids[len(ids)-2], ids[len(ids)-1]
	if set.alter {
		for _, how := range s.alterations(job, array) {
			s.exec("root", "scontrol", how...)
			id := job
			if slices.ContainsFunc(how, func(word string) bool { return strings.HasPrefix(word, array) }) {
				id = array
			}
			what := strings.ReplaceAll(strings.ReplaceAll(strings.Join(how, " "), job, "JOB"), array, "ARRAY")
			fmt.Fprintln(&told, what, s.priorities(id))
		}
	}
	s.exec("root", "scancel", ids...)
	for _, row := range s.rows("squeue", "--noheader", "--states=all", "--format=%A|%j") {
		if strings.HasPrefix(row[1], "fresh") {
			s.gone[row[0]] = true
		}
	}
	return told.String()
}

// priorities are those of one job, or of all tasks of an array, as squeue and
// sprio show them; of a job in several partitions only sprio's: squeue's is that
// in the partition which the scheduler looked at last.
func (s *comparison) priorities(id string) string {
	s.t.Helper()
	rows := s.rows("squeue", "--noheader", "--priority", "--array", "--jobs="+id, "--format=%K|%P|%Q|%p")
	if len(rows) > 1 && rows[0][1] != rows[1][1] {
		rows = nil
	}
	held := len(rows) > 0 && rows[0][2] == "0"
	// Until the scheduler has seen that it waits for nothing sprio doesn't list it.
	s.wait("sprio to list job "+id, func() bool {
		return held || !strings.Contains(s.exec("root", "sprio", "--noheader", "--jobs="+id), "Unable")
	})
	return fmt.Sprint(rows, s.rows("sprio", "--noheader", "--jobs="+id, "--format=%r|%Y|%A|%B|%F|%J|%P|%Q|%N|%S|%T"))
}

// planLine are jobs of one CPU each, some with a GPU, to start one after the
// other. They count for nothing, so that all stand as they stood when they have
// run.
func (s *comparison) planLine() {
	for i := range 14 {
		user := pick(s.rand, s.users...)
		account := pick(s.rand, s.members[user]...)
		partition := pick(s.rand, "line", "line", "line-fast", "line-first", "line,line-fast", "line-first,line")
		if account == s.members[s.users[0]][0] {
			partition = "line" // Slurm refuses several where an association is of one
		}
		s.line = append(s.line, planned{user, fmt.Sprintf("line%d", i), []string{
			"--account=" + account, "--partition=" + partition, "--qos=" + pick(s.rand, "free", "free-high", "free-low"),
			fmt.Sprintf("--gpus=%d", i%2), "--wrap=true", fmt.Sprintf("--nice=%d", s.rand.IntN(2)*s.rand.IntN(5000)),
		}})
	}
	own := func(i, n int) string { return "--account=" + s.members[s.users[i]][n] }
	s.line = append(s.line,
		planned{s.users[3], "line-array", []string{own(3, 1), "--partition=line", "--qos=free", "--gpus=1", "--wrap=true", "--array=1-3"}},
		planned{s.users[4], "line-held", []string{own(4, 0), "--partition=line", "--qos=free-high", "--gpus=1", "--hold"}},
		planned{s.users[2], "line-limit", []string{own(2, 1), "--partition=line-first", "--qos=free-high", "--gpus=1"}},
	)
}

// inLine are what the line is ordered by: by usage and QOS first, and by size.
var inLine = []setting{atRest, {name: "in line by size", lines: []string{
	"PriorityFlags=CALCULATE_RUNNING,NO_NORMAL_PART", "PriorityFavorSmall=YES", "PriorityWeightAge=0", "PriorityWeightFairshare=0",
	"PriorityWeightQOS=10", "PriorityWeightPartition=100", "PriorityWeightTRES=cpu=10,gres/gpu=2000",
}}}

func (s *comparison) startOrders() (orders [][]string) {
	s.t.Helper()
	for _, set := range inLine {
		orders = append(orders, s.startOrder(set))
	}
	return orders
}

// startOrder lets all jobs of the line wait for a job that holds the last CPUs,
// ends that, and returns their names in the order in which slurmctld starts
// them, and of those that go on to wait.
func (s *comparison) startOrder(set setting) (order []string) {
	s.t.Helper()
	began := time.Now()
	s.configure(set)
	hold := func(cpus, gpus int) string {
		id := s.job("root", "hog", "--partition=line-first", "--qos=free", // it has no limits
			fmt.Sprintf("--cpus-per-task=%d", cpus), fmt.Sprintf("--gpus=%d", gpus), "--wrap=sleep 1000")
		s.waitState(id, "R")
		return number0(id)
	}
	hogs := []string{hold(14, 6), hold(2, 2)}
	names := map[string]string{}
	for _, p := range s.line {
		names[number0(s.submitPlanned(p))] = p.name
	}
	s.configure(set) // and work out priorities anew

	waiting := s.exec("root", "squeue", "--noheader", "--states=PENDING", "--partition=line,line-fast,line-first", "--priority", "--sort=-p,i", "--format=%j %A %P %Q %r")
	mark := s.logLength()
	s.exec("root", "scancel", hogs[1])
	var left []string
	s.wait("the line to have run", func() bool {
		left = nil
		for _, row := range s.rows("squeue", "--noheader", "--states=PENDING,RUNNING,COMPLETING", "--format=%A|%j|%r") {
			if name, reason := names[row[0]], row[2]; name == "" {
				continue
			} else if !strings.HasPrefix(reason, "Assoc") && !strings.HasPrefix(reason, "JobHeld") {
				return false
			}
			left = append(left, names[row[0]]+" ("+row[2]+")")
		}
		return true
	})
	started := regexp.MustCompile(`(?:Allocate|Started) JobId=([0-9]+)`)
	for _, line := range s.logLines(mark, "JobId=") {
		if found := started.FindStringSubmatch(line); found != nil && names[found[1]] != "" {
			order = append(order, names[found[1]])
		}
	}
	slices.Sort(left)
	require.NotEmpty(s.t, order)
	order = append(order, left...)
	for _, row := range s.rows("squeue", "--noheader", "--states=all", "--format=%A|%j") {
		if strings.HasPrefix(row[1], "line") || row[1] == "hog" {
			s.gone[row[0]] = true
		}
	}
	s.exec("root", "scancel", append(hogs[:1], slices.Sorted(maps.Keys(names))...)...)
	s.t.Logf("%s: %s: the line has run after %v: %s\n%s%s", s.plugin, set.name, time.Since(began).Round(100*time.Millisecond), strings.Join(order, " "),
		waiting, strings.Join(s.logLines(mark, "JobId="), "\n"))
	return order
}

// meter runs a job of 3 CPUs and 2 GPUs in a partition where a CPU counts 2 and
// a GPU 0.7, by MAX_TRES, and checks that its association is charged for the
// CPUs alone: 6 a second, to the second.
func (s *comparison) meter(plugin string) {
	s.t.Helper()
	s.plugin = plugin
	s.restart(setting{lines: []string{"PriorityFlags=MAX_TRES"}})
	const rate = 6
	before := s.usageOfRoot()
	id := s.job("root", "metered", "--partition=line-weighed", "--cpus-per-task=3", "--gpus=2", "--wrap=sleep 2")
	s.waitGone(id)
	var elapsed float64
	s.wait("sacct to list the job", func() bool {
		rows := s.rows("sacct", "--allocations", "--noheader", "--parsable2", "--state=COMPLETED", "--starttime=now-1hour", "--endtime=now", "--jobs="+number0(id), "--format=ElapsedRaw")
		if len(rows) == 1 {
			elapsed = float64(number(s.t, rows[0][0]))
		}
		return len(rows) == 1
	})
	charged := s.usageOfRoot() - before
	s.t.Logf("%s: charged %g for %g seconds", plugin, charged, elapsed)
	assert.InDelta(s.t, math.Round(charged/rate)*rate, charged, 0.02, "%s: a multiple of the rate", plugin)
	assert.InDelta(s.t, elapsed, charged/rate, 1, "%s: the job's time", plugin)
}

// usageOfRoot is RawUsage of the user root in the account root.
func (s *comparison) usageOfRoot() float64 {
	s.t.Helper()
	shown := s.exec("root", "scontrol", "show", "assoc_mgr", "users=root", "accounts=root", "flags=assoc")
	found := regexp.MustCompile(`(?s)UserName=root\(0\).*?UsageRaw/Norm/Efctv=([0-9.]+)`).FindStringSubmatch(shown)
	require.NotEmpty(s.t, found, shown)
	usage, err := strconv.ParseFloat(found[1], 64)
	require.NoError(s.t, err)
	return usage
}
