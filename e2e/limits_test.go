// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/testcluster"
)

const (
	limitsTimeout = 8 * time.Minute
	// settle is how long slurmctld, slurmdbd and the three clusters may take to
	// agree on a busy machine. What is wrong stays wrong.
	settle = 40 * time.Second
	// apart is by how many seconds what happens by itself may happen earlier on
	// one cluster than on another: the backfill scheduler looks every 2 s.
	apart = 6
	// usualPeriod is PriorityCalcPeriod. With a UsageFactor of 0.5 an even one
	// lets priority/multifactor drop no halves of seconds, unless it is late.
	usualPeriod = 2

	lim1 = "gpub_lim1"
	lim2 = "gpub_lim2"
)

// A side is one of the clusters that are run side by side.
type side struct {
	*testcluster.Cluster

	name string
	dir  string
	base string            // its slurm.conf
	ids  map[string]uint32 // of jobs, by name
	// What its own record of jobs doesn't tell.
	lost  []span
	also  deviation
	slack float64
	saved int64 // when the last period before it saved usage had ended
}

// stock is the side that the others are compared with.
func (s *side) stock() bool { return s.name == "stock" }

// comparison of limits: the same is done to all sides at the same time.
type limits struct {
	t     *testing.T
	ctx   context.Context //nolint:containedctx // it is one test
	sides []*side
	accountant
}

// Limits block the jobs that they block under priority/multifactor, with shares
// from Slurm and with budgets: what associations and QOS have used is what
// slurmdbd knows about their jobs, to the second.
func TestLimitsEqualStock(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limitsTimeout)
	defer cancel()
	l := &limits{t: t, ctx: ctx, accountant: accountant{
		parents:     map[string]string{"bill": "billing"},
		usageFactor: map[string]float64{"zero": 0, "half": 0.5, "twice": 2},
		partQOS:     map[string]string{"limited": "part"},
	}}
	l.step("start", l.start)
	l.step("limits", l.setLimits)
	l.step("use", l.use)
	l.step("probe", l.probe)
	l.step("run minutes", l.runMinutes)
	l.step("changes", l.change)
	l.step("restart", l.restart)
	l.step("site factor", l.siteFactor)
	l.step("kill", l.kill)
	l.step("decay", l.decay)
	l.step("reset", l.reset)
	l.step("timeout", l.timeout)
}

func (l *limits) step(name string, do func()) {
	l.t.Helper()
	began := time.Now()
	do()
	l.t.Logf("%-12s %v", name, time.Since(began).Round(100*time.Millisecond))
}

// ---- the clusters ----

// limitedAccounts have the limits of their names, or none.
var limitedAccounts = []string{
	"cpu", "gpu", "billing", "bill", "mem", "wall", "twice", "half", "zero", "free", "runcpu", "rungpu", "qos", "part",
	"peruser", "peracct1", "peracct2", "served", "starved", "suspended", "resized", "requeued", "longer", "het", "nodecay",
	"decay", "killed",
}

// limitedQOS are all QOS and what sacctmgr sets of each.
var limitedQOS = map[string]string{
	"zero": "UsageFactor=0", "half": "UsageFactor=0.5", "twice": "UsageFactor=2",
	"qcpu": "GrpTRESMins=cpu=62", "qgpu": "GrpTRESMins=gres/gpu=31", "qwall": "GrpWall=1",
	"qruncpu": "GrpTRESRunMins=cpu=110", "qrungpu": "GrpTRESRunMins=gres/gpu=55",
	"peruser": "MaxTRESPerUser=cpu=60 MaxJobsPerUser=2", "peracct": "MaxTRESPerAccount=cpu=60",
	"threshold": "UsageThreshold=0.5 Flags=EnforceUsageThreshold", "nodecay": "Flags=NoDecay",
	"resized": "", "longer": "", "suspended": "",
}

// assocLimits are those of associations.
var assocLimits = []string{
	"user where name=" + lim1 + " account=cpu set GrpTRESMins=cpu=62",
	"account where name=gpu set GrpTRESMins=gres/gpu=31",
	"account where name=billing set GrpTRESMins=billing=75",
	"account where name=mem set GrpTRESMins=mem=312",
	"account where name=wall set GrpWall=1",
	"account where name=twice set GrpTRESMins=cpu=71",
	"account where name=half set GrpTRESMins=cpu=66",
	"account where name=zero set GrpTRESMins=cpu=61",
	"account where name=runcpu set GrpTRESRunMins=cpu=110",
	"account where name=rungpu set GrpTRESRunMins=gres/gpu=55",
	"account where name=killed set GrpTRESMins=cpu=1",
}

func (l *limits) start() {
	l.t.Helper()
	l.sides = []*side{{name: "stock"}, {name: "slurm"}, {name: "ledger"}}
	l.build("hurry", "site_factor_gpubtest")
	l.each(l.startSide)
}

// build compiles C files of testdata into a folder of each side.
func (l *limits) build(names ...string) {
	l.t.Helper()
	for _, s := range l.sides {
		dir, err := testcluster.MakeTempDir()
		require.NoError(l.t, err)
		s.dir = dir
	}
	for _, name := range names {
		first := filepath.Join(l.sides[0].dir, name+".so")
		out, err := exec.CommandContext(l.ctx, "gcc", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-std=gnu11",
			"-isystem", "../build/slurm/obj", "-isystem", "../build/slurm/obj/slurm", "-isystem", "../build/slurm/src",
			"-I", "../slurmplugin/shim", "-pthread", "-o", first, "testdata/"+name+".c").CombinedOutput()
		require.NoError(l.t, err, string(out))
		content, err := os.ReadFile(first)
		require.NoError(l.t, err)
		for _, s := range l.sides {
			require.NoError(l.t, os.WriteFile(filepath.Join(s.dir, name+".so"), content, 0o600))
			require.NoError(l.t, os.Chmod(filepath.Join(s.dir, name+".so"), 0o755))
		}
	}
}

// setPeriod sets PriorityCalcPeriod, in seconds; slurmctld looks every tenth of
// one.
func (s *side) setPeriod(seconds int) error {
	return os.WriteFile(filepath.Join(s.dir, "period"), fmt.Appendln(nil, seconds), 0o644)
}

func (l *limits) startSide(s *side) error {
	if err := s.setPeriod(usualPeriod); err != nil {
		return err
	}
	o := testcluster.Options{
		NoAgents: "jobs are compared by the second at which limits let them start, and Prolog takes a different time each time",
		Dir:      s.dir, Nodes: 3, CPUsPerNode: 1200, GPUsPerNode: 120, Users: []string{lim1, lim2}, Slurmdbd: true,
		Priority: testcluster.Gpubudget, QOS: map[string]int{"part": 0}, Conf: map[string]string{},
		SlurmctldEnv: []string{"LD_PRELOAD=" + filepath.Join(s.dir, "hurry.so"), "HURRY=" + filepath.Join(s.dir, "period")},
		SlurmConf: []string{
			"PartitionName=limited Nodes=ALL QOS=part State=UP",
			"PartitionName=weighted Nodes=ALL TRESBillingWeights=CPU=1,GRES/gpu=2 State=UP",
			"SelectTypeParameters=CR_Core_Memory",
			// slurm.conf must have one of the two; usage begins today.
			"PriorityDecayHalfLife=0", "PriorityUsageResetPeriod=YEARLY",
			"PriorityWeightFairshare=1", "PriorityWeightAge=0", "PriorityWeightQOS=0",
			"AccountingStorageEnforce=associations,limits,qos,safe", "MinJobAge=900",
		},
	}
	for _, name := range limitedAccounts {
		account := testcluster.Account{Name: name, Parent: l.parents[name], Share: "3%", Users: []string{lim1, lim2}}
		if slices.Contains(slices.Collect(maps.Values(l.parents)), name) {
			account.Users = nil
		}
		o.Accounts = append(o.Accounts, account)
	}
	switch s.name {
	case "stock":
		o.Priority = testcluster.Multifactor
	case "slurm":
		o.Conf = map[string]string{"Shares": "slurm", "FairTreeTies": "slurm"}
	}
	var err error
	if s.Cluster, err = testcluster.Start(l.ctx, o); err != nil {
		return err
	}
	l.t.Cleanup(func() {
		if l.t.Failed() {
			s.KeepFiles()
			l.t.Logf("files of %s: %s", s.name, s.Dir())
		}
		if err := s.Stop(); err != nil {
			l.t.Error(err)
		}
	})
	s.ids = map[string]uint32{}
	text, err := os.ReadFile(s.SlurmConf())
	if err != nil {
		return err
	}
	s.base = string(text)
	if s.name == "ledger" {
		return s.LoadBudgets(l.ctx, nil)
	}
	return nil
}

// each does something to all sides at the same time.
func (l *limits) each(do func(*side) error) {
	l.t.Helper()
	var wait sync.WaitGroup
	errs := make([]error, len(l.sides))
	for i, s := range l.sides {
		wait.Go(func() {
			if err := do(s); err != nil {
				errs[i] = fmt.Errorf("%s: %w", s.name, err)
			}
		})
	}
	wait.Wait()
	require.NoError(l.t, errors.Join(errs...))
}

// setLimits sets all limits by sacctmgr.
func (l *limits) setLimits() {
	l.t.Helper()
	names := slices.Sorted(maps.Keys(limitedQOS))
	var qos, limits []string
	for _, name := range names {
		qos = append(qos, "add qos name="+name+" "+limitedQOS[name])
	}
	limits = append(limits, "modify qos where name=part set GrpTRESMins=cpu=82")
	for _, limit := range assocLimits {
		limits = append(limits, "modify "+limit)
	}
	l.each(func(s *side) error {
		// slurmdbd takes a third of a second for each: it is faster with several.
		half := len(qos) / 2
		var wait sync.WaitGroup
		errs := make([]error, 3)
		for i, commands := range [][]string{qos[:half], qos[half:], limits} {
			wait.Go(func() { errs[i] = s.sacctmgr(l.ctx, commands) })
		}
		wait.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		return s.sacctmgr(l.ctx, []string{"modify account where name=root set qos+=" + strings.Join(names, ",")})
	})
}

func (s *side) sacctmgr(ctx context.Context, commands []string) error {
	cmd, err := s.Command(ctx, "root", "sacctmgr", "--immediate")
	if err != nil {
		return err
	}
	var out strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(strings.Join(commands, "\n")+"\n"), &out, &out
	if err := s.Run(cmd); err != nil {
		return fmt.Errorf("%w: %s", err, out.String())
	}
	return nil
}

// ---- jobs ----

// limitedJob is a job that holds CPUs and sleeps.
type limitedJob struct {
	name, user string
	args       string
	seconds    int
}

// submit submits jobs on all sides, in the same order.
func (l *limits) submit(jobs ...limitedJob) {
	l.t.Helper()
	for _, user := range []string{lim1, lim2} {
		var names []string
		var script strings.Builder
		script.WriteString("set -e\n")
		for _, job := range jobs {
			if job.user == user {
				fmt.Fprintf(&script, "sbatch --parsable --output=/dev/null --job-name=%s --nodes=1 --time=1 --mem=1 %s --wrap='sleep %d'\n",
					job.name, job.args, job.seconds)
				names = append(names, job.name)
			}
		}
		if len(names) == 0 {
			continue
		}
		l.each(func(s *side) error {
			out, err := s.Exec(l.ctx, user, "sh", "-c", script.String())
			if err != nil {
				return err
			}
			ids := strings.Fields(out)
			if len(ids) != len(names) {
				return fmt.Errorf("%d jobs were submitted, not %d: %s", len(ids), len(names), out)
			}
			for i, name := range names {
				id, err := strconv.ParseUint(ids[i], 10, 32)
				if err != nil {
					return err
				}
				s.ids[name] = uint32(id)
			}
			return nil
		})
	}
}

// states are squeue's state and reason of each job whose name begins with a
// prefix.
func (s *side) states(ctx context.Context, prefix string) (map[string]string, error) {
	rows, err := s.Rows(ctx, "root", "squeue", "--noheader", "--array", "--format=%j|%t|%r")
	if err != nil {
		return nil, err
	}
	states := map[string]string{}
	for _, row := range rows {
		if strings.HasPrefix(row[0], prefix) {
			states[row[0]] = row[1] + " " + row[2]
		}
	}
	return states, nil
}

// gone waits until no job with such a name is left.
func (l *limits) gone(prefix string) {
	l.t.Helper()
	l.expectStates(prefix, func(*side) map[string]string { return map[string]string{} })
}

// expectStates waits until the jobs stand like this.
func (l *limits) expectStates(prefix string, wanted func(*side) map[string]string) {
	l.t.Helper()
	l.each(func(s *side) error {
		want := wanted(s)
		deadline := time.Now().Add(settle)
		for {
			got, err := s.states(l.ctx, prefix)
			if err != nil {
				return err
			}
			if maps.Equal(got, want) {
				return nil
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("jobs stand like this:\n%s\nand not like this:\n%s", lines(got), lines(want))
			}
			time.Sleep(200 * time.Millisecond)
		}
	})
}

func lines(states map[string]string) string {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(states)) {
		fmt.Fprintf(&text, "%-12s %s\n", name, states[name])
	}
	return text.String()
}

// use has usage for each limit, and jobs that will run on.
func (l *limits) use() {
	l.t.Helper()
	const sixty = " --cpus-per-task=60"
	l.submit(
		// These run on.
		limitedJob{"on-suspended", lim1, "--account=suspended --qos=suspended --time=20" + sixty, 900},
		limitedJob{"on-resized", lim1, "--account=resized --qos=resized --time=20 --nodes=3 --mincpus=60", 900},
		limitedJob{"on-requeued", lim1, "--account=requeued --time=20 --requeue" + sixty, 900},
		limitedJob{"on-longer", lim1, "--account=longer --time=20" + sixty, 900},
		limitedJob{"on-twice", lim1, "--account=longer --qos=twice --time=20" + sixty, 900},
		limitedJob{"on-nodecay", lim1, "--account=nodecay --qos=nodecay --time=20" + sixty, 900},
		limitedJob{"on-part", lim1, "--account=part --partition=limited --time=20" + " --cpus-per-task=1", 900},
		limitedJob{"on-het", lim1, "--account=het --time=20" + sixty + " : --nodes=1 --mem=1 --cpus-per-task=30 --gpus=4", 900},

		limitedJob{"run-cpu1", lim1, "--account=runcpu" + sixty, 50},
		limitedJob{"run-cpu2", lim2, "--account=runcpu" + sixty, 50},
		limitedJob{"run-gpu1", lim1, "--account=rungpu --gpus=30", 50},
		limitedJob{"run-gpu2", lim2, "--account=rungpu --gpus=30", 50},
		limitedJob{"run-qcpu1", lim1, "--account=qos --qos=qruncpu" + sixty, 50},
		limitedJob{"run-qcpu2", lim2, "--account=qos --qos=qruncpu" + sixty, 50},
		limitedJob{"run-qgpu1", lim1, "--account=qos --qos=qrungpu --gpus=30", 50},
		limitedJob{"run-qgpu2", lim2, "--account=qos --qos=qrungpu --gpus=30", 50},

		limitedJob{"use-cpu", lim1, "--account=cpu" + sixty, 5},
		limitedJob{"use-gpu", lim1, "--account=gpu --gpus=30", 5},
		limitedJob{"use-bill", lim1, "--account=bill --partition=weighted --cpus-per-task=40 --gpus=10", 5},
		limitedJob{"use-mem", lim1, "--account=mem --mem=300", 5},
		limitedJob{"use-wall", lim1, "--account=wall --array=1-14", 5},
		limitedJob{"use-twice", lim1, "--account=twice --qos=twice" + sixty, 6},
		limitedJob{"use-half", lim1, "--account=half --qos=half" + sixty, 8},
		limitedJob{"use-zero", lim1, "--account=zero --qos=zero" + sixty, 6},
		limitedJob{"use-free", lim1, "--account=free" + sixty, 5},
		limitedJob{"use-qcpu", lim1, "--account=qos --qos=qcpu" + sixty, 5},
		limitedJob{"use-qgpu", lim1, "--account=qos --qos=qgpu --gpus=30", 5},
		limitedJob{"use-qwall", lim1, "--account=qos --qos=qwall --array=1-14", 5},
		limitedJob{"use-part", lim1, "--account=part --partition=limited --cpus-per-task=59", 5},
		limitedJob{"use-starved", lim1, "--account=starved --cpus-per-task=600", 5},
	)
	l.gone("use-")
	for _, s := range l.sides {
		if s.stock() {
			// Halves of seconds are dropped each period.
			s.also.unsteady = []string{"half/", "half/" + lim1, "half/" + lim2, "qos half", "root/"}
		}
	}
	l.check("after use")
}

// probe submits jobs that limits block, and some that they don't.
func (l *limits) probe() {
	l.t.Helper()
	const sixty = " --cpus-per-task=60"
	l.submit(
		limitedJob{"probe-cpu", lim1, "--account=cpu" + sixty, 300},
		limitedJob{"probe-cpu-less", lim1, "--account=cpu --cpus-per-task=40", 300},
		limitedJob{"probe-gpu", lim2, "--account=gpu --gpus=30", 300},
		limitedJob{"probe-gpu-none", lim2, "--account=gpu", 300},
		limitedJob{"probe-bill", lim2, "--account=bill --partition=weighted --cpus-per-task=40 --gpus=20", 300},
		limitedJob{"probe-mem", lim2, "--account=mem --mem=300", 300},
		limitedJob{"probe-wall", lim2, "--account=wall", 300},
		limitedJob{"probe-twice", lim2, "--account=twice --qos=twice" + sixty, 300},
		limitedJob{"probe-half", lim2, "--account=half --qos=half" + sixty, 300},
		limitedJob{"probe-zero", lim2, "--account=zero --qos=zero" + sixty, 300},
		limitedJob{"probe-free", lim1, "--account=free" + sixty, 300},
		limitedJob{"probe-qcpu", lim2, "--account=qos --qos=qcpu" + sixty, 300},
		limitedJob{"probe-qgpu", lim2, "--account=qos --qos=qgpu --gpus=30", 300},
		limitedJob{"probe-qwall", lim2, "--account=qos --qos=qwall", 300},
		limitedJob{"probe-part", lim2, "--account=part --partition=limited" + sixty, 300},
		limitedJob{"probe-user1", lim1, "--account=peruser --qos=peruser --cpus-per-task=40", 300},
		limitedJob{"probe-user2", lim1, "--account=peruser --qos=peruser --time=20 --cpus-per-task=40", 900},
		limitedJob{"probe-user3", lim2, "--account=peruser --qos=peruser --cpus-per-task=40", 300},
		limitedJob{"probe-acct1", lim1, "--account=peracct1 --qos=peracct --cpus-per-task=40", 300},
		limitedJob{"probe-acct2", lim1, "--account=peracct1 --qos=peracct --time=20 --cpus-per-task=40", 900},
		limitedJob{"probe-acct3", lim1, "--account=peracct2 --qos=peracct --cpus-per-task=40", 300},
		limitedJob{"probe-starved", lim1, "--account=starved --qos=threshold", 300},
		limitedJob{"probe-served", lim1, "--account=served --qos=threshold", 300},
	)
	want := map[string]string{
		"probe-cpu": "PD AssocGrpCPUMinutesLimit", "probe-cpu-less": running,
		"probe-gpu": "PD AssocGrpGRESMinutes", "probe-gpu-none": running,
		"probe-bill": "PD AssocGrpBillingMinutes", "probe-mem": "PD AssocGrpMemMinutes", "probe-wall": "PD AssocGrpWallLimit",
		"probe-twice": "PD AssocGrpCPUMinutesLimit", "probe-half": running, "probe-zero": running, "probe-free": running,
		"probe-qcpu": "PD QOSGrpCPUMinutesLimit", "probe-qgpu": "PD QOSGrpGRESMinutes", "probe-qwall": "PD QOSGrpWallLimit",
		"probe-part":  "PD QOSGrpCPUMinutesLimit",
		"probe-user1": running, "probe-user2": "PD QOSMaxCpuPerUserLimit", "probe-user3": running,
		"probe-acct1": running, "probe-acct2": "PD MaxCpuPerAccount", "probe-acct3": running,
		"probe-starved": "PD QOSUsageThreshold", "probe-served": running,
	}
	l.expectStates("probe-", func(s *side) map[string]string {
		if s.name != "ledger" {
			return want
		}
		// The FAIRSHARE column that it is compared with is no fraction there.
		other := maps.Clone(want)
		other["probe-starved"] = running
		return other
	})
	l.scancel("probe-starved")
	l.gone("probe-starved")
	l.blockHet()
	l.check("with probes")

	// What a job held is given back when it ends.
	l.scancel("probe-user1", "probe-acct1", "probe-cpu-less", "probe-half", "probe-zero", "probe-free", "probe-served")
	l.scancel("probe-gpu-none", "probe-user3", "probe-acct3")
	want = maps.Clone(want)
	maps.DeleteFunc(want, func(name, state string) bool { return state == running || name == "probe-starved" })
	want["probe-user2"], want["probe-acct2"] = running, running
	l.expectStates("probe-", func(*side) map[string]string { return want })
	l.check("after the end of probes")
	l.scancel("het-first")
	l.gone("het-")
}

// blockHet has a limit block a het job, which backfill tries on as a whole.
func (l *limits) blockHet() {
	l.t.Helper()
	l.submit(limitedJob{"het-first", lim1, "--account=cpu --cpus-per-task=60 : " +
		"--account=free --job-name=het-second --nodes=1 --time=1 --mem=1 --cpus-per-task=1", 300})
	deadline := time.Now().Add(settle)
	for {
		shown := make([]map[string]string, len(l.sides))
		l.each(func(s *side) (err error) {
			shown[slices.Index(l.sides, s)], err = s.states(l.ctx, "het-")
			return err
		})
		first := shown[0]["het-first"]
		if strings.HasPrefix(first, "PD Assoc") && maps.Equal(shown[0], shown[1]) && maps.Equal(shown[0], shown[2]) {
			l.t.Logf("a het job: %v", shown[0])
			break
		}
		require.True(l.t, time.Now().Before(deadline), "het jobs stand like %v", shown)
		time.Sleep(200 * time.Millisecond)
	}
	time.Sleep(3 * time.Second) // until it has been tried on once more
	for _, s := range l.sides {
		if s.stock() { // what it may use isn't always taken back
			s.also.unsteady = append(s.also.unsteady, l.keys(piece{account: "cpu", user: lim1, qos: "normal"})...)
			s.also.unsteady = append(s.also.unsteady, "free/", "free/"+lim1)
		}
	}
}

// running is how squeue shows a job that runs.
const running = "R None"

func (l *limits) scancel(names ...string) {
	l.t.Helper()
	l.each(func(s *side) error {
		args := []string{}
		for _, name := range names {
			args = append(args, number0(s.ids[name]))
		}
		_, err := s.Exec(l.ctx, "root", "scancel", args...)
		return err
	})
}

// runMinutes waits for the jobs that were blocked until the others may use
// little enough, which is the same time after the start of those everywhere.
func (l *limits) runMinutes() {
	l.t.Helper()
	pairs := []string{"run-cpu", "run-gpu", "run-qcpu", "run-qgpu"}
	waited := make([]map[string]int64, len(l.sides))
	l.each(func(s *side) error {
		w := map[string]int64{}
		waited[slices.Index(l.sides, s)] = w
		return s.Wait(l.ctx, "jobs to start", func() (bool, error) {
			pieces, err := s.began(l.ctx)
			for _, pair := range pairs {
				first, second := pieces[s.ids[pair+"1"]], pieces[s.ids[pair+"2"]]
				if err != nil || second == 0 {
					return false, err
				}
				w[pair] = second - first
			}
			return true, nil
		})
	})
	for i, w := range waited {
		for _, pair := range pairs {
			// Of two minutes of 60 CPUs the limit leaves 110 CPU minutes.
			require.InDelta(l.t, 10, w[pair], apart, "%s on %s", pair, l.sides[i].name)
			require.GreaterOrEqual(l.t, w[pair], int64(9), "%s on %s", pair, l.sides[i].name)
		}
	}
	l.check("with all running")
	l.scancel("run-cpu1", "run-cpu2", "run-gpu1", "run-gpu2", "run-qcpu1", "run-qcpu2", "run-qgpu1", "run-qgpu2")
	l.gone("run-")
}

// change changes jobs that run: by suspension, a requeue, a time limit, and
// twice within a period the size.
func (l *limits) change() {
	l.t.Helper()
	const period = 8
	l.each(func(s *side) error {
		id := func(name string) string { return number0(s.ids[name]) }
		err := s.scontrol(l.ctx,
			[]string{"suspend", id("on-suspended")},
			[]string{"requeue", id("on-requeued")},
			[]string{"update", "jobid=" + id("on-longer"), "timelimit=30"},
			[]string{"update", "jobid=" + id("on-twice"), "timelimit=30"})
		if err != nil {
			return err
		}
		if err := s.setPeriod(period); err != nil {
			return err
		}
		time.Sleep(500 * time.Millisecond) // until it is known
		ran, err := s.nextPeriod(l.ctx)
		if err != nil {
			return err
		}
		if err := s.scontrol(l.ctx, []string{"update", "jobid=" + id("on-resized"), "numnodes=2"}); err != nil {
			return err
		}
		time.Sleep(1500 * time.Millisecond)
		if err := s.scontrol(l.ctx, []string{"update", "jobid=" + id("on-resized"), "numnodes=1"}); err != nil {
			return err
		}
		if now, _, err := s.lastPeriod(); err != nil || now != ran {
			return fmt.Errorf("a period ended before all was changed, %w", err)
		}
		if err := s.setPeriod(usualPeriod); err != nil {
			return err
		}
		if _, err := s.nextPeriod(l.ctx); err != nil {
			return err
		}
		if s.stock() {
			return l.deviateByChanges(s, ran)
		}
		return nil
	})
	// Its credential must have expired first.
	l.expectStates("on-requeued", func(*side) map[string]string { return map[string]string{"on-requeued": running} })
	l.check("after changes")
}

// scontrol runs it once for each list of arguments.
func (s *side) scontrol(ctx context.Context, commands ...[]string) error {
	for _, args := range commands {
		if _, err := s.Exec(ctx, "root", "scontrol", args...); err != nil {
			return err
		}
	}
	return nil
}

// deviateByChanges: priority/multifactor counts what was used since the last
// period again with each new size, leaves what was used before to be used
// again, and knows of no UsageFactor when the time limit changes.
func (l *limits) deviateByChanges(s *side, ran int64) error {
	var resized []piece
	err := s.Wait(l.ctx, "slurmdbd to know of changes", func() (bool, error) {
		pieces, err := s.pieces(l.ctx)
		resized = slices.DeleteFunc(pieces, func(p piece) bool { return p.account != "resized" })
		return len(resized) == 3, err
	})
	if err != nil {
		return err
	}
	slices.SortFunc(resized, func(x, y piece) int { return int(x.start - y.start) })
	for i := range 2 {
		again := resized[i+1]
		again.start, again.end = ran, resized[i].end
		s.also.pieces = append(s.also.pieces, again)
		s.also.held = append(s.also.held, held{piece: resized[i+1], seconds: float64(ran - resized[0].start)})
	}
	live, err := s.live(l.ctx)
	if err != nil {
		return err
	}
	for _, job := range live {
		if job.qos == "twice" {
			s.also.held = append(s.also.held, held{piece: job.piece, seconds: -10 * 60})
		}
	}
	return nil
}

// nextPeriod waits until a period ends, and returns when.
func (s *side) nextPeriod(ctx context.Context) (ran int64, err error) {
	before, _, err := s.lastPeriod()
	if err != nil {
		return 0, err
	}
	return ran, s.Wait(ctx, "a period to end", func() (bool, error) {
		ran, _, err = s.lastPeriod()
		return ran != before, err
	})
}

// restart has slurmctld count what running jobs may still use anew, by a
// reconfigure and by a restart.
func (l *limits) restart() {
	l.t.Helper()
	l.each(func(s *side) error {
		ran, err := s.within(func() error { return s.reconfigure(l.ctx) })
		if err != nil {
			return err
		}
		if s.stock() {
			return l.deviateByRecount(s, ran)
		}
		return nil
	})
	l.check("after a reconfigure")
	l.each(func(s *side) error {
		if err := s.StopSlurmctld(); err != nil {
			return err
		}
		ran, _, err := s.lastPeriod()
		if err != nil {
			return err
		}
		s.saved = ran
		s.slack = 1 // slurmctld saves whole seconds
		if err := s.configure("PluginDir="+s.value("PluginDir")+":"+s.dir, "PrioritySiteFactorPlugin=site_factor/gpubtest",
			"PrioritySiteFactorParameters="+filepath.Join(s.dir, "site")); err != nil {
			return err
		}
		if err := s.StartSlurmctld(l.ctx); err != nil {
			return err
		}
		if s.stock() {
			return l.deviateByRecount(s, ran)
		}
		return nil
	})
	l.check("after a restart")
	l.each(func(s *side) error {
		return s.scontrol(l.ctx, []string{"resume", number0(s.ids["on-suspended"])})
	})
	l.check("after it was resumed")
}

// deviateByRecount: what other jobs have used is not to be used again once
// slurmctld has counted anew, but for suspended ones it is.
func (l *limits) deviateByRecount(s *side, ran int64) error {
	s.also.held, s.also.unsteady = nil, nil
	live, err := s.live(l.ctx)
	for _, job := range live {
		if job.account == "suspended" {
			s.also.held = append(s.also.held, held{piece: job.piece, seconds: float64(ran - job.start)})
		}
	}
	return err
}

// reconfigure returns when slurmctld has read its configuration.
func (s *side) reconfigure(ctx context.Context) error {
	return s.scontrol(ctx, []string{"reconfigure"})
}

// configure sets lines of slurm.conf, beside those it was started with.
func (s *side) configure(lines ...string) error {
	s.base = withLines(s.base, lines)
	return os.WriteFile(s.SlurmConf(), []byte(s.base), 0o600)
}

// value is what slurm.conf sets a key to.
func (s *side) value(key string) string {
	for line := range strings.Lines(s.base) {
		if value, ok := strings.CutPrefix(line, key+"="); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// siteFactor: a site_factor plugin has its say when a job is submitted and each
// period.
func (l *limits) siteFactor() {
	l.t.Helper()
	l.submit(limitedJob{"probe-site", lim1, "--account=wall", 300})
	l.expectSites(func(_ *side, _ uint32) int { return 1000 })
	l.each(func(s *side) error {
		return os.WriteFile(filepath.Join(s.dir, "site"), []byte("5000\n"), 0o644)
	})
	l.expectSites(func(_ *side, id uint32) int { return 5000 + int(id) })
	l.each(func(s *side) error { return os.Remove(filepath.Join(s.dir, "site")) })
}

// expectSites waits until sprio shows the pending job's SITE. With budgets, in
// strict mode, it is a part of the digit for the rest.
func (l *limits) expectSites(want func(s *side, id uint32) int) {
	l.t.Helper()
	l.each(func(s *side) error {
		if s.name == "ledger" {
			return nil
		}
		id := s.ids["probe-site"]
		return s.Wait(l.ctx, "the site factor", func() (bool, error) {
			rows, err := s.Rows(l.ctx, "root", "sprio", "--noheader", "--jobs="+number0(id), "--format=%i|%S")
			return err == nil && len(rows) == 1 && rows[0][1] == strconv.Itoa(want(s, id)), err
		})
	})
}

// kill ends slurmctld as a crash would. It forgets what was used since it last
// saved that, but not until when it had counted. Then it starts without "safe",
// where jobs start as long as a limit isn't reached.
func (l *limits) kill() {
	l.t.Helper()
	l.each(func(s *side) error {
		if err := s.jobsSaved(l.ctx); err != nil {
			return err
		}
		if err := s.KillSlurmctld(); err != nil {
			return err
		}
		ran, _, err := s.lastPeriod()
		if err != nil {
			return err
		}
		s.lost = []span{{s.saved, ran}}
		s.also.held = nil
		// For the resets to come. There is none without a period.
		if err := s.setLastReset(time.Now().AddDate(-1, -2, 0).Unix()); err != nil {
			return err
		}
		if err := s.configure("AccountingStorageEnforce=associations,limits,qos", "PriorityDecayHalfLife=9999-0",
			"PriorityUsageResetPeriod=NONE"); err != nil {
			return err
		}
		return s.StartSlurmctld(l.ctx)
	})
	l.expectStates("probe-", func(*side) map[string]string {
		return map[string]string{
			"probe-cpu": running, "probe-gpu": running, "probe-bill": running, "probe-mem": running, "probe-twice": running,
			"probe-qcpu": running, "probe-qgpu": running, "probe-part": running, "probe-user2": running, "probe-acct2": running,
			"probe-wall": "PD AssocGrpWallLimit", "probe-qwall": "PD QOSGrpWallLimit", "probe-site": "PD AssocGrpWallLimit",
		}
	})
	l.check("after a kill")
	l.scancel("probe-cpu", "probe-gpu", "probe-bill", "probe-mem", "probe-twice", "probe-qcpu", "probe-qgpu", "probe-part")
}

// jobsSaved waits until slurmctld has saved what has become of jobs, within 5 s.
func (s *side) jobsSaved(ctx context.Context) error {
	begin := time.Now()
	return s.Wait(ctx, "jobs to be saved", func() (bool, error) {
		info, err := os.Stat(filepath.Join(s.Dir(), "state", "job_state"))
		return err == nil && info.ModTime().After(begin) || time.Since(begin) > 6*time.Second, nil
	})
}

// decay has usage decay by half in a minute.
func (l *limits) decay() {
	l.t.Helper()
	l.submit(
		limitedJob{"use-decay", lim1, "--account=decay --cpus-per-task=600", 3},
		limitedJob{"on-killed", lim1, "--account=killed --time=20 --cpus-per-task=100", 900},
	)
	l.gone("use-decay")
	l.check("before decay")
	wait := make([]float64, len(l.sides)) // until the job may run
	l.each(func(s *side) error {
		shown, _, _, err := s.figures(l.ctx)
		if err != nil {
			return err
		}
		used := shown["decay/"].mins["cpu"]
		limit := used * 19 / 20
		wait[slices.Index(l.sides, s)] = math.Log(float64(used)/float64(limit)) / decayRate
		_, err = s.Exec(l.ctx, "root", "sacctmgr", "--immediate", "modify", "account", "where", "name=decay", "set",
			fmt.Sprintf("GrpTRESMins=cpu=%d", limit))
		return err
	})
	l.submit(limitedJob{"late-decay", lim2, "--account=decay", 300})
	l.expectStates("late-", func(*side) map[string]string { return map[string]string{"late-decay": "PD AssocGrpCPUMinutesLimit"} })
	l.each(func(s *side) error {
		ran, err := s.within(func() error {
			if err := s.configure("PriorityDecayHalfLife=1"); err != nil {
				return err
			}
			return s.reconfigure(l.ctx)
		})
		if err != nil {
			return err
		}
		if _, err := s.nextPeriod(l.ctx); err != nil {
			return err
		}
		if err := l.decays(s); err != nil {
			return err
		}
		err = s.Wait(l.ctx, "usage to decay", func() (bool, error) {
			states, err := s.states(l.ctx, "late-")
			return states["late-decay"] == running, err
		})
		if err != nil {
			return err
		}
		began, err := s.began(l.ctx)
		took, want := float64(began[s.ids["late-decay"]]-ran), wait[slices.Index(l.sides, s)]
		if took < want-2*usualPeriod || took > want+2*usualPeriod+apart {
			return errors.Join(err, fmt.Errorf("it ran after %v s, not %v", took, want))
		}
		return err
	})
}

// decayRate is of a half-life of a minute, as Slurm reckons it.
var decayRate = -math.Log(1 - 0.693/60)

// decays compares what a side shows before and after some periods.
func (l *limits) decays(s *side) error {
	before, _, from, err := s.figures(l.ctx)
	if err != nil {
		return err
	}
	for range 2 {
		if _, err := s.nextPeriod(l.ctx); err != nil {
			return err
		}
	}
	pieces, err := s.pieces(l.ctx)
	if err != nil {
		return err
	}
	after, _, until, err := s.figures(l.ctx)
	if err != nil {
		return err
	}
	by := math.Exp(-decayRate * float64(until-from))
	for _, key := range []string{"starved/", "decay/" + lim1, "qos half"} { // nobody uses more now
		b, a := before[key], after[key]
		if math.Abs(a.raw-b.raw*by) > 0.02 || b.raw == 0 || math.Abs(a.wall-b.wall*by) > 0.02 {
			return fmt.Errorf("%s: %v s later %v is %v, a part of %v", key, until-from, b, a, by)
		}
	}
	// This one is used at 60 billed seconds a second, and at 120.
	b, a := before["longer/"], after["longer/"]
	want := b.raw*by + 180*(1-by)/decayRate
	if math.Abs(a.raw-want) > 0.03*want {
		return fmt.Errorf("longer: %v s later %v is %v, not %v", until-from, b.raw, a.raw, want)
	}
	// NoDecay.
	now := l.expect(pieces, nil, until, s.lost, s.also)["qos nodecay"]
	if got := after["qos nodecay"].raw; math.Abs(got-now.raw) > 1 {
		return fmt.Errorf("a QOS without decay has used %v, not %v", got, now.raw)
	}
	return nil
}

// reset goes through all PriorityUsageResetPeriods. The last reset was before
// the last turn of any of them.
func (l *limits) reset() {
	l.t.Helper()
	l.each(func(s *side) error {
		_, before, err := s.lastPeriod()
		if err != nil {
			return err
		}
		if age := time.Since(time.Unix(before, 0)); age < 400*24*time.Hour {
			return fmt.Errorf("without a period there was a reset %v ago", age)
		}
		return s.setPeriod(1) // a quarter each
	})
	l.resetTo("YEARLY", "starved/", "qos threshold")
	// What GrpWall blocks may run now.
	l.expectStates("probe-wall", func(*side) map[string]string { return map[string]string{"probe-wall": running} })
	l.expectStates("probe-qwall", func(*side) map[string]string { return map[string]string{"probe-qwall": running} })
	l.resetTo("QUARTERLY")
	l.resetTo("MONTHLY")
	l.resetTo("WEEKLY")
	l.resetTo("DAILY")
	l.submit(limitedJob{"use-reset", lim1, "--account=free --qos=zero --cpus-per-task=600", 1},
		limitedJob{"use-again", lim1, "--account=free --qos=nodecay --cpus-per-task=600", 1})
	l.gone("use-")
	l.resetTo("NOW", "free/"+lim1)
}

// resetTo sets a period and waits for the resets that are due; of a year's
// quarters there may be several, one a period; of a week's none, as long as the
// month has begun after it. What nobody uses any more is then nothing.
func (l *limits) resetTo(period string, used ...string) {
	l.t.Helper()
	l.each(func(s *side) error {
		shown, _, _, err := s.figures(l.ctx)
		if err != nil {
			return err
		}
		for _, key := range used {
			if shown[key].raw == 0 || shown[key].wall == 0 {
				return fmt.Errorf("%s has no usage to be reset", key)
			}
		}
		_, before, err := s.lastPeriod()
		if err != nil {
			return err
		}
		if err := s.configure("PriorityDecayHalfLife=0", "PriorityUsageResetPeriod="+period); err != nil {
			return err
		}
		began := time.Now()
		if err := s.reconfigure(l.ctx); err != nil {
			return err
		}
		err = s.Wait(l.ctx, period+" reset", func() (bool, error) {
			now := time.Now()
			_, reset, err := s.lastPeriod()
			if period == "NOW" {
				return reset >= began.Unix() && reset <= now.Unix(), err
			}
			return reset == max(before, lastTurn(period, now).Unix()), err
		})
		if err != nil {
			return err
		}
		if shown, _, _, err = s.figures(l.ctx); err != nil {
			return err
		}
		for _, key := range used {
			if f := shown[key]; f.raw != 0 || f.wall != 0 || len(f.mins) > 0 {
				return fmt.Errorf("%s has %v after a reset", key, f)
			}
		}
		return nil
	})
}

// lastTurn is the beginning of the period that a moment is in, as slurm.conf's
// manual page defines them; slurmctld's time zone is UTC.
func lastTurn(period string, now time.Time) time.Time {
	now = now.UTC()
	year, month, day := now.Date()
	switch period {
	case "YEARLY":
		month, day = time.January, 1
	case "QUARTERLY":
		month, day = month-(month-1)%3, 1
	case "MONTHLY":
		day = 1
	case "WEEKLY":
		day -= int(now.Weekday()) // Sunday
	}
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// timeout waits for the job that reached a limit while it ran.
func (l *limits) timeout() {
	l.t.Helper()
	l.each(func(s *side) error {
		return s.Wait(l.ctx, "the limit to end a job", func() (bool, error) {
			rows, err := s.Rows(l.ctx, "root", "squeue", "--noheader", "--states=all", "--jobs="+number0(s.ids["on-killed"]), "--format=%t")
			return err == nil && len(rows) == 1 && rows[0][0] == "TO", err
		})
	})
}

// check waits until what each side shows is what its own record of jobs makes,
// and that what doesn't move is the same on all.
func (l *limits) check(when string) {
	l.t.Helper()
	deadline := time.Now().Add(settle)
	for {
		wrong := l.lookAtAll()
		if len(wrong) == 0 {
			return
		}
		if time.Now().After(deadline) {
			require.Fail(l.t, when, strings.Join(wrong, "\n"))
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func (l *limits) lookAtAll() (wrong []string) {
	l.t.Helper()
	rests, all := make([]string, len(l.sides)), make([][]string, len(l.sides))
	l.each(func(s *side) (err error) {
		i := slices.Index(l.sides, s)
		all[i], rests[i], err = l.look(s)
		return err
	})
	for i, s := range l.sides {
		for _, line := range append(all[i], unlike(rests[0], rests[i])...) {
			wrong = append(wrong, s.name+": "+line)
		}
	}
	return wrong
}

// look is one look at a side: what is wrong there.
func (l *limits) look(s *side) (wrong []string, rest string, err error) {
	pieces, err := s.pieces(l.ctx)
	if err != nil {
		return nil, "", err
	}
	live, err := s.live(l.ctx)
	if err != nil {
		return nil, "", err
	}
	got, rest, ran, err := s.figures(l.ctx)
	if err != nil {
		return nil, "", err
	}
	wrong = differences(got, l.expect(pieces, live, ran, s.lost, s.also), s.slack, s.also.unsteady)
	if len(wrong) > 0 {
		return wrong, rest, nil
	}
	got, ran, err = s.sshare(l.ctx)
	if err != nil {
		return nil, "", err
	}
	want := l.expect(pieces, live, ran, s.lost, s.also)
	maps.DeleteFunc(want, func(key string, _ *seconds) bool { return strings.HasPrefix(key, "qos ") })
	for key, f := range got { // which sshare doesn't print
		if w := want[key]; w != nil {
			f.wall = w.wall / 60
			got[key] = f
		}
	}
	for _, line := range differences(got, want, s.slack+1, s.also.unsteady) {
		wrong = append(wrong, "by sshare "+line)
	}
	return wrong, rest, nil
}

// unlike are the lines that differ.
func unlike(a, b string) (diff []string) {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range max(len(x), len(y)) {
		switch {
		case i >= len(x):
			diff = append(diff, "+"+y[i])
		case i >= len(y):
			diff = append(diff, "-"+x[i])
		case x[i] != y[i]:
			diff = append(diff, "-"+x[i], "+"+y[i])
		}
	}
	return diff
}
