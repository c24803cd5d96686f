// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gpubudget/internal/testcluster"
)

var (
	stockSeed   = flag.Int64("stock.seed", 1, "seed of the comparison with priority/multifactor; 0: of the clock")
	stockRounds = flag.Int("stock.rounds", 2, "how many random settings it tries beside the fixed ones")
)

// stockTimeout bounds the comparison. It takes an eighth of that if the machine
// has nothing else to do.
const stockTimeout = 10 * time.Minute

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
	plugin   string              // the one that is running
	classic  bool                // that is what it was started with
	passes   *passes
	gone     map[string]bool // ids of jobs that only one of the plugins has seen pending
	line     []planned       // what startOrder submits
	began    time.Time
	looked   int // how often explain has been asked about a queue
}

// With Shares=slurm everything that sprio, sshare, squeue and scontrol show of a
// queue is what they show under priority/multifactor, to the last digit,
// whatever the PriorityFlags; jobs get the same priorities when they are
// submitted and altered, and start in the same order: the same slurmctld state,
// of random accounts, usage and jobs, is looked at by each in turn. And gpubudget
// explain shows the same numbers, under both.
func TestSharesFromSlurmEqualStock(t *testing.T) {
	seed := *stockSeed
	if seed == 0 {
		seed = time.Now().UnixNano()
	}
	t.Logf("go test ./e2e -run %s -args -stock.seed=%d -stock.rounds=%d", t.Name(), seed, *stockRounds)
	s := startComparison(t, rand.New(rand.NewPCG(uint64(seed), 0)))
	s.plant()
	s.use()
	s.freeze()
	s.queue()
	s.planLine()
	plain, accruing := s.settings()
	s.t.Logf("set up in %v", time.Since(s.began).Round(time.Second))

	// When ACCRUE_ALWAYS goes again slurmctld has ages count anew, so what has
	// it comes last, and the plugin that came first comes second there.
	s.start(testcluster.Multifactor, atRest)
	stockOrder := s.startOrders()
	stock := s.looks(plain)
	s.start(testcluster.Gpubudget, atRest)
	oursOrder := s.startOrders()
	ours := s.looks(plain)
	anew := accruing[0].anew()
	s.configure(anew)
	ours = append(ours, s.looks(accruing)...)
	s.start(testcluster.Multifactor, anew)
	s.configure(anew)
	stock = append(stock, s.looks(accruing)...)

	for i, set := range slices.Concat(plain, accruing) {
		s.compare(set, stock[i], ours[i])
	}
	assert.Equal(t, stockOrder, oursOrder, "order in which jobs start")
	s.meter(testcluster.Multifactor)
	s.meter(testcluster.Gpubudget)
	s.changed()
	s.migrate()
}

func startComparison(t *testing.T, random *rand.Rand) *comparison {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), stockTimeout)
	t.Cleanup(cancel)
	users := []string{"gpub_u1", "gpub_u2", "gpub_u3", "gpub_u4", "gpub_u5", "gpub_u6"}
	passes := newPasses(t)
	c, err := testcluster.Start(ctx, testcluster.Options{
		NoAgents: "the order in which jobs start is compared, and Prolog takes a different time each time",
		Nodes:    3, Users: users, Slurmdbd: true, Priority: testcluster.Gpubudget, Conf: map[string]string{"Shares": "slurm"},
		SlurmctldEnv: passes.environment(),
		SlurmConf: []string{
			`PartitionName=short Nodes=n[1-2] MaxTime=10 PriorityJobFactor=10 TRESBillingWeights="CPU=2,GRES/gpu=0.7" State=UP`,
			"PartitionName=urgent Nodes=n1 MaxTime=5 PriorityTier=5 PriorityJobFactor=7 State=UP",
			"PartitionName=zero Nodes=n2 PriorityJobFactor=0 State=UP",
			"PartitionName=alone Nodes=n1 State=UP",
			"PartitionName=line Nodes=n3 PriorityJobFactor=3 State=UP",
			"PartitionName=line-fast Nodes=n3 PriorityJobFactor=9 State=UP",
			"PartitionName=line-first Nodes=n3 PriorityTier=9 State=UP",
			`PartitionName=line-weighed Nodes=n3 TRESBillingWeights="CPU=2,GRES/gpu=0.7" State=UP`,
			"PriorityDecayHalfLife=0", "PriorityUsageResetPeriod=YEARLY", "PriorityMaxAge=0", "MinJobAge=300", "PriorityCalcPeriod=1",
			"PriorityWeightJobSize=7001", "PriorityWeightPartition=3003", "PriorityWeightAssoc=5005",
			"PriorityWeightTRES=cpu=1500,gres/gpu=2700,node=11",
			"AccountingStorageEnforce=associations,limits,qos,safe",
			"SlurmctldDebug=debug",
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			c.KeepFiles()
		}
		require.NoError(t, c.Stop())
	})
	s := &comparison{
		scenario: &scenario{Cluster: c, t: t, ctx: ctx},
		rand:     random, users: users, passes: passes, plugin: testcluster.Gpubudget, gone: map[string]bool{}, began: began,
	}
	s.readBase()
	return s
}

func (s *comparison) readBase() {
	s.t.Helper()
	text, err := os.ReadFile(s.SlurmConf())
	require.NoError(s.t, err)
	const all, own = "PartitionName=gpu Nodes=ALL", "PartitionName=gpu Nodes=n[1-2]"
	require.Contains(s.t, string(text), all)
	s.base = strings.Replace(string(text), all, own, 1) // n3 is the line's
	require.NoError(s.t, os.WriteFile(s.SlurmConf(), []byte(s.base), 0o600))
	require.NoError(s.t, os.WriteFile(s.Conf(), []byte(likeStock), 0o600))
	s.exec("root", "scontrol", "reconfigure")
}

// passes has stock Slurm recalculate when it is asked to, and not only once in a
// PriorityCalcPeriod, which is a minute at least.
type passes struct {
	library, path string
	file          *os.File
	asked         uint32
}

func newPasses(t *testing.T) *passes {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755)) // slurmctld's user reads it
	p := &passes{library: filepath.Join(dir, "passes.so"), path: filepath.Join(dir, "passes")}
	out, err := exec.CommandContext(t.Context(), "gcc", "-O2", "-shared", "-fPIC", "-o", p.library, "testdata/passes.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	p.file, err = os.Create(p.path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.file.Close()) })
	require.NoError(t, p.file.Truncate(8))
	require.NoError(t, p.file.Chmod(0o666)) // slurmctld writes to it
	return p
}

func (p *passes) environment() []string {
	return []string{"LD_PRELOAD=" + p.library, "GPUB_PASSES=" + p.path}
}

// ask has a pass begin; done tells whether it has ended.
func (p *passes) ask() error {
	p.asked++
	_, err := p.file.WriteAt(binary.NativeEndian.AppendUint32(nil, p.asked), 0)
	return err
}

func (p *passes) done() bool {
	var number [4]byte
	_, err := p.file.ReadAt(number[:], 4)
	return err == nil && binary.NativeEndian.Uint32(number[:]) == p.asked
}

// start starts slurmctld with a plugin.
func (s *comparison) start(plugin string, set setting) {
	s.t.Helper()
	began := time.Now()
	s.plugin = plugin
	s.restart(set)
	s.t.Logf("%s: started in %v", plugin, time.Since(began).Round(100*time.Millisecond))
}

func (s *comparison) restart(set setting) {
	s.t.Helper()
	require.NoError(s.t, s.StopSlurmctld())
	s.writeConf(set)
	require.NoError(s.t, s.StartSlurmctld(s.ctx))
	s.classic = set.classic()
}

// looks has slurmctld go by one setting after the other.
func (s *comparison) looks(sets []setting) (all []map[string]string) {
	s.t.Helper()
	for _, set := range sets {
		began := time.Now()
		if set.classic() != s.classic {
			s.restart(set) // until then stock Slurm goes by the other's shares
		}
		s.configure(set)
		seen := s.settle(set)
		if !set.ages {
			s.explained(set)
		}
		seen["submitted"] = s.submitFresh(set)
		all = append(all, seen)
		s.t.Logf("%s: %s: looked at in %v", s.plugin, set.name, time.Since(began).Round(100*time.Millisecond))
	}
	return all
}

func (s *comparison) writeConf(set setting) {
	s.t.Helper()
	lines := append([]string{"PriorityType=priority/" + s.plugin, "PriorityParameters=gpubudget_conf=" + s.Conf()}, set.lines...)
	require.NoError(s.t, os.WriteFile(s.SlurmConf(), []byte(withLines(s.base, lines)), 0o600))
}

// configure has slurmctld go by a setting, and all priorities worked out by it.
func (s *comparison) configure(set setting) {
	s.t.Helper()
	const ourPass = "gpubudget: pass of"
	mark := s.logLength()
	s.writeConf(set)
	s.exec("root", "scontrol", "reconfigure")
	if set.alter {
		defer s.schedule() // by what the pass has left
	}
	if s.plugin == testcluster.Gpubudget {
		// It recalculates by itself, within no time.
		s.wait("a pass", func() bool { return len(s.logLines(mark, ourPass)) > 0 })
		require.Empty(s.t, s.logLines(mark, "error: gpubudget"), set.name)
		return
	}
	time.Sleep(100 * time.Millisecond) // the plugin may hear of it after scontrol does
	if set.has("ACCRUE_ALWAYS") {
		// It takes ages from the record, which has none until the scheduler
		// has looked at the job.
		s.wait("ages to count", func() bool {
			return !strings.Contains(s.exec("root", "squeue", "--noheader", "--states=PENDING", "--Format=AccrueTime"), "N/A")
		})
	}
	for n := range set.passes() {
		if n > 0 {
			time.Sleep(1050 * time.Millisecond)
		}
		s.recalculate()
	}
}

// schedule has the main scheduler look at the whole queue.
func (s *comparison) schedule() {
	s.t.Helper()
	mark := s.logLength()
	s.exec("root", "scancel", number0(s.job("root", "nudge", "--hold")))
	s.wait("the main scheduler", func() bool { return len(s.logLines(mark, "Running job scheduler")) > 0 })
}

// recalculate has stock Slurm recalculate.
func (s *comparison) recalculate() {
	s.t.Helper()
	require.NoError(s.t, s.passes.ask())
	s.wait("a pass", s.passes.done)
}

// compare compares what was seen under both plugins.
func (s *comparison) compare(set setting, stock, ours map[string]string) {
	s.t.Helper()
	assert.Equal(s.t, stock["submitted"], ours["submitted"], "priorities of new and of altered jobs with %q", set.name)
	for _, view := range views {
		assert.Equal(s.t, stock[view.name], ours[view.name], "%s with %q", view.name, set.name)
	}
	if set.ages {
		s.compareAges(stock["ages"], ours["ages"])
	}
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
	skip *regexp.Regexp // lines of what has been rather than is
}{
	{name: "sprio -l", ages: true, args: []string{"sprio", "--long"}},
	{name: "sprio -n", ages: true, args: []string{"sprio", "--norm"}},
	{name: "sprio -w", args: []string{"sprio", "--weights"}},
	{name: "factors", args: []string{"sprio", "--noheader", "--format=%i |%r|%u|%B|%b|%F|%f|%J|%j|%P|%p|%Q|%q|%N|%S|%T|%t"}},
	{name: "sshare -l", args: []string{"sshare", "--all", "--long", "--parsable", "--partition"}},
	{name: "sshare", args: []string{"sshare", "--all", "--partition"}},
	{name: "scontrol show assoc_mgr", args: []string{"scontrol", "show", "assoc_mgr", "flags=assoc,qos,users"}, skip: regexp.MustCompile("^      ")},
	{name: "squeue", ages: true, args: []string{"squeue", "--noheader", "--states=PENDING", "--priority", "--sort=-p,j,i", "--format=%j|%i|%P|%Q|%p|%t|%r"}},
	{name: "reasons", args: []string{"squeue", "--noheader", "--sort=i", "--format=%j|%i|%t|%r"}},
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
	const end = "end of view"
	var script strings.Builder
	for _, view := range views {
		fmt.Fprintf(&script, "'%s' && echo %s\n", strings.Join(view.args, "' '"), end)
	}
	shown := strings.Split(s.exec("root", "sh", "-ec", script.String()), end+"\n")
	require.Len(s.t, shown, len(views)+1)
	seen := map[string]string{}
	for i, view := range views {
		if set.ages && view.ages {
			continue
		}
		for line := range strings.Lines(shown[i]) {
			if id, _, _ := strings.Cut(strings.TrimLeft(line, " "), " "); !s.gone[id] && (view.skip == nil || !view.skip.MatchString(line)) {
				line = waits.ReplaceAllString(line, "waits")
				if !set.alter {
					// It says how the pass before left it.
					line = strings.Replace(line, "QOSUsageThreshold", "waits", 1)
				}
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

// waits are reasons of the schedulers': which of them a job has depends on
// whether the main or the backfill scheduler has looked at it last, in which of
// its partitions, and after whom. What comes of it is compared by startOrder.
var waits = regexp.MustCompile(`(?m)(None|Priority|Resources|ReqNodeNotAvail.*|Nodes required for job are .*)$`)

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
