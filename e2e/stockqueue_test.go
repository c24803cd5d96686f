// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// setting is one way to configure Slurm's priorities.
type setting struct {
	name  string
	lines []string
	// ages is set where ages go on: then their columns are not compared to the
	// digit.
	ages bool
	// fresh are submitted under it, and if alter is set some of them altered.
	// Then age has no weight: it begins to count when the scheduler has seen them.
	fresh []planned
	alter bool
}

func (s setting) has(flag string) bool { return strings.Contains(strings.Join(s.lines, " "), flag) }

// classic is classic fair share, without Fair Tree.
func (s setting) classic() bool { return s.has("NO_FAIR_TREE") || s.has("DEPTH_OBLIVIOUS") }

// anew is the setting without INCR_ONLY, which keeps what was before.
func (s setting) anew() setting {
	lines := slices.Clone(s.lines)
	for i := range lines {
		lines[i] = strings.Replace(lines[i], "INCR_ONLY", "CALCULATE_RUNNING", 1)
	}
	return setting{name: "anew", lines: lines}
}

// passes is how often stock Slurm must work priorities out until they are what
// they stay. Without Fair Tree it does so once in a second, and first works out
// accounts and only then users; with DEPTH_OBLIVIOUS it adds up before what
// siblings have used that is only known after.
func (s setting) passes() int {
	switch {
	case s.has("DEPTH_OBLIVIOUS"):
		return 3
	case s.classic():
		return 2
	default:
		return 1
	}
}

// atRest brings the priority of the running job up to date, and gives age no
// weight: it begins to count when the scheduler has seen a job.
var atRest = setting{name: "at rest", lines: []string{"PriorityFlags=CALCULATE_RUNNING", "PriorityWeightAge=0"}}

// settings are all settings, those with ACCRUE_ALWAYS apart, and those without
// Fair Tree last.
func (s *comparison) settings() (plain, accruing []setting) {
	fixed := []setting{
		{name: "defaults"},
		{name: "ages", ages: true, lines: []string{"PriorityMaxAge=7-0", "PriorityWeightAge=604800"}},
		{name: "classic", alter: true, lines: []string{"PriorityFlags=NO_FAIR_TREE", "PriorityWeightAge=0"}},
		{name: "depth oblivious", lines: []string{"PriorityFlags=DEPTH_OBLIVIOUS,MAX_TRES"}},
		{name: "raw factors, small first", alter: true, lines: []string{
			"PriorityFlags=NO_NORMAL_ALL", "PriorityFavorSmall=YES", "PriorityWeightAge=0", "PriorityWeightTRES=cpu=1.5,gres/gpu=0.25",
		}},
		{name: "relative to time, running too", lines: []string{"PriorityFlags=SMALL_RELATIVE_TO_TIME,CALCULATE_RUNNING"}},
		{name: "never less", lines: []string{"PriorityFlags=INCR_ONLY", "PriorityWeightFairshare=1000"}},
		{name: "classic, damped, accruing", lines: []string{"PriorityFlags=NO_FAIR_TREE,ACCRUE_ALWAYS", "FairShareDampeningFactor=3"}},
	}
	for _, set := range append(fixed, s.randomSettings(*stockRounds)...) {
		set.fresh = s.planFresh()
		if set.has("ACCRUE_ALWAYS") {
			accruing = append(accruing, set)
		} else {
			plain = append(plain, set)
		}
	}
	fairTreeFirst := func(x, y setting) int {
		switch {
		case x.classic() == y.classic():
			return 0
		case y.classic():
			return -1
		default:
			return 1
		}
	}
	slices.SortStableFunc(plain, fairTreeFirst)
	slices.SortStableFunc(accruing, fairTreeFirst)
	return plain, accruing
}

func (s *comparison) randomSettings(n int) (sets []setting) {
	for range n {
		var flags []string
		for _, flag := range []string{
			"ACCRUE_ALWAYS", "CALCULATE_RUNNING", "NO_FAIR_TREE", "DEPTH_OBLIVIOUS", "INCR_ONLY", "MAX_TRES", "NO_NORMAL_ASSOC",
			"NO_NORMAL_PART", "NO_NORMAL_QOS", "NO_NORMAL_TRES", "SMALL_RELATIVE_TO_TIME",
		} {
			if s.rand.IntN(2) == 0 {
				flags = append(flags, flag)
			}
		}
		lines := []string{"PriorityFavorSmall=" + pick(s.rand, "YES", "NO")}
		if len(flags) > 0 {
			lines = append(lines, "PriorityFlags="+strings.Join(flags, ","))
		}
		for _, kind := range []string{"Age", "Assoc", "JobSize", "Partition", "QOS"} {
			lines = append(lines, fmt.Sprintf("PriorityWeight%s=%d", kind, s.rand.IntN(2)*s.rand.IntN(1_000_000)))
		}
		// Where a usage threshold is to be checked slurmctld itself puts a factor
		// in the place of a column that is 0.
		lines = append(lines, fmt.Sprintf("PriorityWeightFairshare=%d", 1+s.rand.IntN(1_000_000)))
		if s.rand.IntN(3) == 0 {
			lines = append(lines, "PriorityWeightTRES=")
		}
		sets = append(sets, setting{name: strings.Join(lines, " "), lines: lines})
	}
	return sets
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// plant makes a random tree of accounts and users, QOS and limits.
func (s *comparison) plant() {
	s.t.Helper()
	var text strings.Builder
	text.WriteString("Cluster - 'gpub':Fairshare=1\nParent - 'root'\nUser - 'root':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1\n")
	parents := []string{"root"}
	for i := range 9 {
		name := fmt.Sprintf("acct%d", i)
		fmt.Fprintf(&text, "Parent - '%s'\nAccount - '%s':Description='x':Organization='x':Fairshare=%s\n",
			pick(s.rand, parents...), name, pick(s.rand, "1", "1", "2", "3", "5", "10", "0", "parent"))
		parents = append(parents, name)
	}
	s.accounts = parents[1:]
	s.members = map[string][]string{}
	for i, user := range s.users {
		places := s.rand.Perm(len(s.accounts))[:2+i%3]
		for n, place := range places {
			name := s.accounts[place]
			s.members[user] = append(s.members[user], name)
			fmt.Fprintf(&text, "Parent - '%s'\nUser - '%s'", name, user)
			if n == 0 {
				fmt.Fprintf(&text, ":DefaultAccount='%s'", name)
			}
			fmt.Fprintf(&text, ":Fairshare=%s:Priority=%d\n", pick(s.rand, "1", "1", "1", "2", "7", "0", "parent"), s.rand.IntN(50))
		}
	}
	file := s.Dir() + "/etc/random-accounts"
	require.NoError(s.t, os.WriteFile(file, []byte(text.String()), 0o600))
	s.sacctmgr("load", "file="+file)
	s.sacctmgr("add", "qos", "high", "priority=100")
	s.sacctmgr("add", "qos", "low", "priority=7")
	s.sacctmgr("add", "qos", "free", "priority=50", "usagefactor=0")
	s.sacctmgr("add", "qos", "free-high", "priority=100", "usagefactor=0")
	s.sacctmgr("add", "qos", "free-low", "priority=3", "usagefactor=0")
	s.sacctmgr("add", "qos", "starved", "priority=20", "usagethreshold=0.9", "flags=EnforceUsageThreshold")
	s.sacctmgr("add", "qos", "full", "priority=30", "grptresmins=cpu=1")
	s.sacctmgr("modify", "account", "where", "name=root", "set", "qos+=high,low,free,free-high,free-low,starved,full")
	first := s.users[0]
	s.sacctmgr("add", "user", first, "account="+s.members[first][0], "partition=short", "fairshare=4")
	s.sacctmgr("modify", "account", "where", "name="+s.members[s.users[1]][0], "set", "grptresmins=gres/gpu=0")
	s.sacctmgr("modify", "user", "where", "name="+s.users[2], "account="+s.members[s.users[2]][1], "set", "maxjobs=0")
}

func (s *comparison) sacctmgr(args ...string) {
	s.t.Helper()
	s.exec("root", "sacctmgr", append([]string{"--immediate"}, args...)...)
}

// use runs jobs of random sizes for a few seconds.
func (s *comparison) use() {
	s.t.Helper()
	for range 14 {
		user := pick(s.rand, s.users...)
		_, err := s.Sbatch(s.ctx, user, "--account="+pick(s.rand, s.members[user]...), "--time=1",
			fmt.Sprintf("--cpus-per-task=%d", 1+s.rand.IntN(4)), fmt.Sprintf("--gpus=%d", s.rand.IntN(3)),
			"--partition="+pick(s.rand, "gpu", "short"), fmt.Sprintf("--wrap=sleep %d", 1+s.rand.IntN(3)))
		require.NoError(s.t, err)
	}
	deadline := time.Now().Add(15 * time.Second)
	s.wait("the jobs to have run", func() bool {
		rows := s.rows("squeue", "--noheader", "--states=all", "--format=%t|%r")
		return !slices.ContainsFunc(rows, func(row []string) bool {
			return row[0] == "R" || row[0] == "CG" || row[0] == "PD" && !strings.HasPrefix(row[1], "Assoc") && time.Now().Before(deadline)
		})
	})
	require.NoError(s.t, s.CancelAll(s.ctx))
}

// freeze leaves one job running, which is charged for nothing, and lets no other
// begin.
func (s *comparison) freeze() {
	s.t.Helper()
	user := s.users[3]
	id, err := s.Sbatch(s.ctx, user, "--account="+s.members[user][0], "--qos=free", "--cpus-per-task=3", "--job-name=running", "--wrap=sleep 1000")
	require.NoError(s.t, err)
	s.waitState(id, "R")
	s.exec("root", "scontrol", "update", "nodename=n1,n2", "state=drain", "reason=frozen")
}

// queue submits jobs of all kinds.
func (s *comparison) queue() {
	s.t.Helper()
	u, acct := s.users, func(i, n int) string { return "--account=" + s.members[s.users[i]][n] }
	s.job(u[0], "part-assoc", acct(0, 0), "--partition=short")
	s.job(u[0], "multi", acct(0, 1), "--partition=zero,short,urgent,gpu", "--time=3", "--gpus=1")
	s.job(u[1], "limited", acct(1, 0), "--gpus=2")
	s.job(u[2], "maxjobs", acct(2, 1))
	s.job(u[2], "held", acct(2, 0), "--hold")
	s.job(u[3], "array", acct(3, 1), "--array=1-4%2", "--nice=17")
	s.job(u[3], "starved", acct(3, 0), "--qos=starved", "--partition=alone") // where the main scheduler always looks at it
	s.job(u[4], "full", acct(4, 0), "--qos=full")
	s.job(u[4], "nice", acct(4, 1), "--nice=1000000000") // priority 1
	s.job(u[4], "multi-nice", acct(4, 1), "--nice=1000000000", "--partition=gpu,short", "--time=2")
	s.job(u[5], "later", acct(5, 0), "--begin=now+1hour")
	before := s.job(u[5], "before", acct(5, 1), "--qos=high")
	s.job(u[5], "after", acct(5, 1), "--dependency=afterok:"+number0(before))
	_, err := s.Sbatch(s.ctx, u[5], "--job-name=het", acct(5, 0), "--ntasks=3", "--time=9", ":", "--ntasks=1", "--gpus=3", "--wrap=true")
	require.NoError(s.t, err)
	byHand := s.job(u[1], "by-hand", acct(1, 1))
	s.exec("root", "scontrol", "update", "job", number0(byHand), "priority=12345")
	for i := range 20 {
		s.submitPlanned(s.randomJob(fmt.Sprintf("job%d", i)))
	}
	s.waitAccruing()
}

// waitAccruing waits until the scheduler has begun to count the age of all jobs
// whose age it will.
func (s *comparison) waitAccruing() {
	s.t.Helper()
	const quiet = 3 * time.Second // longer than bf_interval
	missing, since := -1, time.Now()
	s.wait("the jobs' ages to count", func() bool {
		if now := strings.Count(s.exec("root", "scontrol", "show", "jobs"), "AccrueTime=Unknown"); now != missing {
			missing, since = now, time.Now()
		}
		return time.Since(since) > quiet
	})
}

func (s *comparison) job(user, name string, args ...string) uint32 {
	s.t.Helper()
	args = append([]string{"--job-name=" + name, "--wrap=sleep 1"}, args...)
	id, err := s.Sbatch(s.ctx, user, args...)
	require.NoError(s.t, err)
	return id
}

// planned is a job to submit, under both plugins or with the others.
type planned struct {
	user, name string
	args       []string
}

func (s *comparison) submitPlanned(p planned) uint32 {
	s.t.Helper()
	return s.job(p.user, p.name, p.args...)
}

func (s *comparison) randomJob(name string) planned {
	user := pick(s.rand, s.users...)
	account := pick(s.rand, s.members[user]...)
	partition := pick(s.rand, "gpu", "gpu", "short", "gpu,short", "short,gpu")
	if account == s.members[s.users[0]][0] {
		partition = "gpu" // Slurm refuses several where an association is of one
	}
	args := []string{
		"--account=" + account, "--partition=" + partition, "--qos=" + pick(s.rand, "normal", "normal", "high", "low", "free"),
		fmt.Sprintf("--nodes=%d", 1+s.rand.IntN(2)), fmt.Sprintf("--ntasks=%d", 2+s.rand.IntN(6)),
		fmt.Sprintf("--cpus-per-task=%d", 1+s.rand.IntN(2)), fmt.Sprintf("--nice=%d", s.rand.IntN(3)*s.rand.IntN(2000)),
		fmt.Sprintf("--gpus=%d", s.rand.IntN(2)*(2+s.rand.IntN(7))),
	}
	// Without a limit of its own a job in several partitions has that of the one
	// which the scheduler looked at last, by which SMALL_RELATIVE_TO_TIME goes.
	if strings.Contains(partition, ",") || s.rand.IntN(2) == 0 {
		args = append(args, fmt.Sprintf("--time=%d", 1+s.rand.IntN(9)))
	}
	return planned{user, name, args}
}
