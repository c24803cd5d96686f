// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/testcluster"
)

var (
	stockSeed   = flag.Int64("stock.seed", 1, "seed of the comparison with priority/multifactor; 0: of the clock")
	stockSlow   = flag.Bool("stock.slow", false, "compare DEPTH_OBLIVIOUS as well, for which stock Slurm needs more than a minute")
	stockRounds = flag.Int("stock.rounds", 2, "how many random settings it tries beside the fixed ones")
)

// stockTimeout bounds the comparison; it takes a quarter of that.
const stockTimeout = 5 * time.Minute

// likeStock is gpubudget.conf of a site that goes by Slurm's shares to the
// letter, has no database and recalculates as seldom as Slurm does.
const likeStock = "Shares=slurm\nFairTreeTies=slurm\n"

// A comparison is one cluster under both priority plugins in turn. Its usage
// doesn't decay and its nodes are drained once they were used, so that all but
// the age of jobs stands still; and with PriorityMaxAge=0 that is at its limit
// as soon as it counts.
type comparison struct {
	*scenario
	rand     *rand.Rand
	accounts []string
	users    []string
	members  map[string][]string // accounts of a user
	base     string              // slurm.conf without what is compared
	gone     map[string]bool     // ids of jobs that only one of the plugins has seen pending
}

// With Shares=slurm everything that sprio, sshare and squeue show of a queue is
// what they show under priority/multifactor, to the last digit, whatever the
// PriorityFlags: the same slurmctld state, of random accounts, usage and jobs,
// is looked at by each in turn.
func TestSharesFromSlurmEqualStock(t *testing.T) {
	seed := *stockSeed
	if seed == 0 {
		seed = time.Now().UnixNano()
	}
	t.Logf("go test ./e2e -run %s -args -stock.seed=%d", t.Name(), seed)
	ctx, cancel := context.WithTimeout(t.Context(), stockTimeout)
	defer cancel()
	users := []string{"gpub_u1", "gpub_u2", "gpub_u3", "gpub_u4", "gpub_u5", "gpub_u6"}
	c, err := testcluster.Start(ctx, testcluster.Options{
		Nodes: 2, Users: users, Slurmdbd: true, Priority: testcluster.Gpubudget, Conf: map[string]string{"Shares": "slurm"},
		SlurmConf: []string{
			`PartitionName=short Nodes=ALL MaxTime=10 PriorityJobFactor=10 TRESBillingWeights="CPU=2,GRES/gpu=0.7" State=UP`,
			"PartitionName=urgent Nodes=n1 MaxTime=5 PriorityTier=5 PriorityJobFactor=7 State=UP",
			"PartitionName=zero Nodes=n2 PriorityJobFactor=0 State=UP",
			"PriorityDecayHalfLife=0", "PriorityUsageResetPeriod=YEARLY", "PriorityMaxAge=0", "MinJobAge=300", "PriorityCalcPeriod=1",
			"PriorityWeightJobSize=7001", "PriorityWeightPartition=3003", "PriorityWeightAssoc=5005",
			"PriorityWeightTRES=cpu=1500,gres/gpu=2700,node=11",
			"AccountingStorageEnforce=associations,limits,qos,safe",
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			c.KeepFiles()
		}
		require.NoError(t, c.Stop())
	})
	s := &comparison{scenario: &scenario{Cluster: c, t: t, ctx: ctx}, rand: rand.New(rand.NewPCG(uint64(seed), 0)), users: users, gone: map[string]bool{}}
	s.readBase()
	s.plant()
	s.use()
	s.freeze()
	s.queue()
	for _, set := range append(settings(), s.randomSettings(*stockRounds)...) {
		s.compare(set)
	}
}

// setting is one way to configure Slurm's priorities.
type setting struct {
	name  string
	lines []string
	// ages is set where ages go on: then their columns are not compared to the
	// digit.
	ages bool
	// stockNeeds is how long stock Slurm works with what it hasn't worked out
	// yet: with DEPTH_OBLIVIOUS, for one PriorityCalcPeriod, it adds up usage
	// of siblings that is still unknown.
	stockNeeds time.Duration
}

func settings() []setting {
	all := []setting{
		{name: "defaults"},
		{name: "ages", ages: true, lines: []string{"PriorityMaxAge=7-0", "PriorityWeightAge=604800"}},
		{name: "classic", lines: []string{"PriorityFlags=NO_FAIR_TREE"}},
		{name: "raw factors, small first", lines: []string{
			"PriorityFlags=NO_NORMAL_ALL", "PriorityFavorSmall=YES", "PriorityWeightTRES=cpu=1.5,gres/gpu=0.25",
		}},
		{name: "relative to time, running too", lines: []string{"PriorityFlags=SMALL_RELATIVE_TO_TIME,CALCULATE_RUNNING"}},
		{name: "never less", lines: []string{"PriorityFlags=INCR_ONLY", "PriorityWeightFairshare=1000"}},
		// When this flag goes again, slurmctld has ages count anew: the last.
		{name: "classic, damped, accruing", lines: []string{"PriorityFlags=NO_FAIR_TREE,ACCRUE_ALWAYS", "FairShareDampeningFactor=3"}},
	}
	if *stockSlow {
		all = append(all, setting{
			name: "depth oblivious", stockNeeds: 65 * time.Second,
			lines: []string{"PriorityFlags=NO_FAIR_TREE,DEPTH_OBLIVIOUS"},
		})
	}
	return all
}

func (s *comparison) randomSettings(n int) (sets []setting) {
	for range n {
		var flags []string
		for _, flag := range []string{
			"ACCRUE_ALWAYS", "CALCULATE_RUNNING", "NO_FAIR_TREE", "INCR_ONLY", "MAX_TRES", "NO_NORMAL_ASSOC",
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
		for _, kind := range []string{"Age", "Assoc", "Fairshare", "JobSize", "Partition", "QOS"} {
			lines = append(lines, fmt.Sprintf("PriorityWeight%s=%d", kind, s.rand.IntN(2)*s.rand.IntN(1_000_000)))
		}
		if s.rand.IntN(3) == 0 {
			lines = append(lines, "PriorityWeightTRES=")
		}
		sets = append(sets, setting{name: strings.Join(lines, " "), lines: lines})
	}
	return sets
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func (s *comparison) readBase() {
	s.t.Helper()
	text, err := os.ReadFile(s.SlurmConf())
	require.NoError(s.t, err)
	s.base = string(text)
	require.NoError(s.t, os.WriteFile(s.Conf(), []byte(likeStock), 0o600))
}

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
	s.sacctmgr("add", "qos", "starved", "priority=20", "usagethreshold=0.9", "flags=EnforceUsageThreshold")
	s.sacctmgr("add", "qos", "full", "priority=30", "grptresmins=cpu=1")
	s.sacctmgr("modify", "account", "where", "name=root", "set", "qos+=high,low,free,starved,full")
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
	s.exec("root", "scontrol", "update", "nodename="+strings.Join(s.Nodes(), ","), "state=drain", "reason=frozen")
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
	s.job(u[3], "starved", acct(3, 0), "--qos=starved")
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
		s.randomJob(fmt.Sprintf("job%d", i))
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

func (s *comparison) randomJob(name string) {
	s.t.Helper()
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
	if s.rand.IntN(2) == 0 {
		args = append(args, fmt.Sprintf("--time=%d", 1+s.rand.IntN(9)))
	}
	s.job(user, name, args...)
}

// compare looks at the queue under both plugins.
func (s *comparison) compare(set setting) {
	s.t.Helper()
	began := time.Now()
	stock := s.look(testcluster.Multifactor, set)
	mark := s.logLength()
	ours := s.look(testcluster.Gpubudget, set)
	require.Empty(s.t, s.logLines(mark, "error: gpubudget"), set.name)
	require.Equal(s.t, stock["submitted"], ours["submitted"], "priorities of new jobs with %q", set.name)
	for _, view := range views {
		require.Equal(s.t, stock[view.name], ours[view.name], "%s with %q", view.name, set.name)
	}
	if set.ages {
		s.compareAges(stock["ages"], ours["ages"])
	}
	s.t.Logf("%-12s as stock after %v", set.name, time.Since(began).Round(100*time.Millisecond))
}

// compareAges checks that all jobs have aged by the same time between the two
// looks, to the second.
func (s *comparison) compareAges(stock, ours string) {
	s.t.Helper()
	before, after := strings.Fields(stock), strings.Fields(ours)
	require.Len(s.t, after, len(before))
	require.NotEmpty(s.t, before)
	aged := int64(-1)
	for i, line := range before {
		job, seconds, _ := strings.Cut(line, "|")
		jobAfter, secondsAfter, _ := strings.Cut(after[i], "|")
		require.Equal(s.t, job, jobAfter)
		if seconds == "0" && secondsAfter == "0" {
			continue // its age doesn't count yet
		}
		by := number(s.t, secondsAfter) - number(s.t, seconds)
		if aged < 0 {
			aged = by
		}
		require.Positive(s.t, by, "job %s: stock\n%s\nours\n%s", job, stock, ours)
		require.InDelta(s.t, aged, by, 1, "job %s", job)
	}
	require.Positive(s.t, aged, "stock\n%s\nours\n%s", stock, ours)
}

// views are what is compared, beside the priorities that jobs are submitted
// with.
var views = []struct {
	name string
	ages bool // shows ages
	args []string
}{
	{name: "sprio -l", ages: true, args: []string{"sprio", "--long"}},
	{name: "sprio -n", ages: true, args: []string{"sprio", "--norm"}},
	{name: "sprio -w", args: []string{"sprio", "--weights"}},
	{name: "factors", args: []string{"sprio", "--noheader", "--format=%i |%r|%u|%B|%b|%F|%f|%J|%j|%P|%p|%Q|%q|%N|%S|%T|%t"}},
	{name: "sshare -l", args: []string{"sshare", "--all", "--long", "--parsable", "--partition"}},
	{name: "sshare", args: []string{"sshare", "--all", "--partition"}},
	{name: "squeue", ages: true, args: []string{"squeue", "--noheader", "--priority", "--sort=-p,j,i", "--format=%j|%i|%P|%Q|%p|%t|%r"}},
	{name: "reasons", args: []string{"squeue", "--noheader", "--sort=i", "--format=%j|%i|%t|%r"}},
}

// look starts slurmctld with a plugin and returns all views, and one of jobs
// submitted to it.
func (s *comparison) look(plugin string, set setting) map[string]string {
	s.t.Helper()
	require.NoError(s.t, s.StopSlurmctld())
	lines := append([]string{"PriorityType=priority/" + plugin, "PriorityParameters=gpubudget_conf=" + s.Conf()}, set.lines...)
	require.NoError(s.t, os.WriteFile(s.SlurmConf(), []byte(withLines(s.base, lines)), 0o600))
	require.NoError(s.t, s.StartSlurmctld(s.ctx))

	seen := s.settle(set)
	if plugin == testcluster.Multifactor && set.stockNeeds > 0 {
		time.Sleep(set.stockNeeds)
		seen = s.settle(set)
	}
	fresh := []uint32{
		s.job(s.users[0], "fresh1", "--account="+s.members[s.users[0]][0], "--qos=high", "--gpus=1"),
		s.job(s.users[1], "fresh2", "--account="+s.members[s.users[1]][1], "--nice=3", "--partition=gpu,short", "--time=1"),
		s.job(s.users[2], "fresh3", "--account="+s.members[s.users[2]][0], "--exclusive"),
	}
	for _, id := range fresh {
		seen["submitted"] += fmt.Sprintln(s.rows("squeue", "--noheader", "--priority", "--sort=P", "--jobs="+number0(id), "--format=%j|%P|%Q"))
		s.exec("root", "scancel", number0(id))
		s.gone[number0(id)] = true
	}
	return seen
}

// settle waits until all views stay the same.
func (s *comparison) settle(set setting) map[string]string {
	s.t.Helper()
	seen := s.views(set)
	for {
		require.NoError(s.t, s.ctx.Err())
		time.Sleep(300 * time.Millisecond)
		now := s.views(set)
		if maps.Equal(seen, now) {
			return seen
		}
		seen = now
	}
}

func (s *comparison) views(set setting) map[string]string {
	s.t.Helper()
	seen := map[string]string{}
	for _, view := range views {
		if set.ages && view.ages {
			continue
		}
		for line := range strings.Lines(s.exec("root", view.args[0], view.args[1:]...)) {
			if id, _, _ := strings.Cut(strings.TrimLeft(line, " "), " "); !s.gone[id] {
				seen[view.name] += line
			}
		}
	}
	seen["squeue"] = withoutTwins(seen["squeue"])
	if set.ages {
		seen["ages"] = s.exec("root", "sprio", "--noheader", "--format=%i|%A")
	}
	return seen
}

// withoutTwins drops the lines of jobs that have several, one for each of their
// partitions: the priority that squeue shows in all of them is that in the
// partition which the scheduler looked at last.
func withoutTwins(lines string) string {
	id := func(line string) string { return strings.SplitN(line, "|", 3)[1] }
	count := map[string]int{}
	for line := range strings.Lines(lines) {
		count[id(line)]++
	}
	var single strings.Builder
	for line := range strings.Lines(lines) {
		if count[id(line)] == 1 {
			single.WriteString(line)
		}
	}
	return single.String()
}

// withLines is a slurm.conf in which lines replace those of the same key; one
// without a value takes its place away.
func withLines(conf string, lines []string) string {
	for _, line := range lines {
		key, _, _ := strings.Cut(line, "=")
		conf = regexp.MustCompile(`(?mi)^`+key+`=.*\n`).ReplaceAllString(conf, "")
		if !strings.HasSuffix(line, "=") {
			conf += line + "\n"
		}
	}
	return conf
}
