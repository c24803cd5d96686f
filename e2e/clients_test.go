// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/testcluster"
)

// loginNode is what a login node of the cluster has: slurm.conf and the C
// plugin. It has no Go library, no gpubudget.conf, and no PostgreSQL, and its
// users' memory is limited.
type loginNode struct {
	*scenario
	conf, loaded string
}

// addressSpace is what ulimit -v is set to, in KiB: the Go runtime does not
// start within it.
const addressSpace = 1_000_000

func (s *scenario) loginNode() *loginNode {
	s.t.Helper()
	dir := filepath.Join(s.Dir(), "login")
	require.NoError(s.t, os.MkdirAll(filepath.Join(dir, "plugins"), 0o755))
	require.NoError(s.t, os.MkdirAll(filepath.Join(dir, "loaded"), 0o777))
	require.NoError(s.t, os.Chmod(filepath.Join(dir, "loaded"), 0o777))
	const plugin = "priority_gpubudget.so"
	library, err := os.ReadFile(filepath.Join(s.Dir(), "plugins", plugin))
	require.NoError(s.t, err)
	require.NoError(s.t, os.WriteFile(filepath.Join(dir, "plugins", plugin), library, 0o755))
	conf, err := os.ReadFile(s.SlurmConf())
	require.NoError(s.t, err)
	text := strings.Replace(string(conf), filepath.Join(s.Dir(), "plugins"), filepath.Join(dir, "plugins"), 1)
	require.NotEqual(s.t, string(conf), text)
	text = withLines(text, []string{"PriorityParameters="})
	n := &loginNode{scenario: s, conf: filepath.Join(dir, "slurm.conf"), loaded: filepath.Join(dir, "loaded")}
	require.NoError(s.t, os.WriteFile(n.conf, []byte(text), 0o644))
	return n
}

// run runs a command there and returns what it prints, and the files that it
// had the dynamic linker load.
func (n *loginNode) run(user string, args ...string) (out string, loaded string) {
	n.t.Helper()
	script := fmt.Sprintf(`ulimit -v %d; exec env --ignore-environment PATH="$PATH" TZ=UTC SLURM_CONF=%s LD_DEBUG=files LD_DEBUG_OUTPUT=%s "$@"`,
		addressSpace, n.conf, filepath.Join(n.loaded, "of"))
	out = n.exec(user, "bash", append([]string{"-c", script, "bash"}, args...)...)
	files, err := filepath.Glob(filepath.Join(n.loaded, "of.*"))
	require.NoError(n.t, err)
	require.NotEmpty(n.t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(n.t, err)
		require.NoError(n.t, os.Remove(file))
		loaded += string(text)
	}
	return out, loaded
}

// same checks that a command prints there what it prints beside slurmctld, and
// returns that. Usage and ages go on from second to second: what is beside
// slurmctld is asked for before and after, until it is the same.
func (n *loginNode) same(user string, args ...string) string {
	n.t.Helper()
	var before, there, after, loaded string
	for range 50 {
		before = n.exec(user, args[0], args[1:]...)
		there, loaded = n.run(user, args...)
		if after = n.exec(user, args[0], args[1:]...); before == after {
			break
		}
	}
	require.Equal(n.t, before, after, "%v does not keep still", args)
	require.Equal(n.t, before, there, "%v", args)
	require.NotContains(n.t, loaded, "libgpubudget", "%v", args)
	return before
}

// classic has sshare work out factors by itself, as it does without Fair Tree:
// it loads the priority plugin for that, and prints what it does with stock
// Slurm's.
func (n *loginNode) classic() {
	n.t.Helper()
	conf, err := os.ReadFile(n.conf)
	require.NoError(n.t, err)
	show := func(plugin string) (out, loaded string) {
		text := withLines(string(conf), []string{"PriorityFlags=NO_FAIR_TREE", "PriorityType=priority/" + plugin})
		require.NoError(n.t, os.WriteFile(n.conf, []byte(text), 0o644))
		return n.run(ann, "sshare", "--all", "--parsable2", "--format=account,user,fairshare")
	}
	ours, loaded := show(testcluster.Gpubudget)
	require.Contains(n.t, loaded, "priority_gpubudget.so", "else this shows nothing")
	require.NotContains(n.t, loaded, "libgpubudget")
	stock, loaded := show(testcluster.Multifactor)
	require.Contains(n.t, loaded, "priority_multifactor.so")
	require.Equal(n.t, stock, ours)
	require.Contains(n.t, ours, ann+"|0.")
	require.NoError(n.t, os.WriteFile(n.conf, conf, 0o644))
}

// Slurm's own commands work under our PriorityType as ever, on a login node as
// well, for users who may have little memory: and they agree with each other.
func TestSlurmsCommandsOnALoginNode(t *testing.T) {
	s := begin(t, "clients")
	hour := time.Now().UTC().Truncate(time.Hour)
	s.use(ann, s.a, 2, 2)
	release := s.hog()
	plain := s.submit(ann, s.a, 1, "--gpus=2", "--job-name=plain")
	both := s.submit(bob, s.b, 1, "--gpus=1", "--partition=gpu,short", "--nice=10", "--qos=high", "--job-name=both")
	s.wait("both to be listed", func() bool { return len(s.rows("sprio", "--noheader", "--format=%i")) == 3 })
	n := s.loginNode()

	n.priorities(plain)
	require.Len(t, strings.Split(strings.TrimSpace(n.same(ann, "sprio", "--noheader", "--jobs="+number0(both), "--long")), "\n"), 2)
	require.Contains(t, n.same(ann, "sprio", "--weights"), "Weights")
	require.Contains(t, n.same(ann, "sprio", "--norm"), number0(plain))
	shares := n.same(ann, "sshare", "--all", "--long", "--parsable2")
	require.Regexp(t, fmt.Sprintf(`(?m)^ +%s\|%s\|1\|[0-9.]+\|[0-9]+\|[0-9.]+\|[0-9.]+\|0\.[0-9]*[1-9][0-9]*\|[0-9.]+\|`, s.a, ann), shares, "share, usage, factor and level")
	require.Contains(t, n.same(ann, "sshare", "--users="+ann, "--accounts="+s.a), ann)
	require.Regexp(t, `Account=`+s.a+` UserName=`+ann+`\([0-9]+\)`, n.same(ann, "scontrol", "show", "assoc_mgr", "flags=assoc"))
	require.Contains(t, n.same(ann, "scontrol", "show", "assoc_mgr", "flags=qos"), "QOS=high")

	release()
	n.classic()
	s.waitGone(plain, both)
	s.agree()
	n.accounting(hour)
}

// priorities checks that every command shows the same priority of a job in one
// partition.
func (n *loginNode) priorities(id uint32) {
	n.t.Helper()
	job := "--jobs=" + number0(id)
	queued := strings.Split(strings.TrimSpace(n.same(ann, "squeue", "--noheader", job, "--format=%Q|%p|%t|%r")), "|")
	require.Equal(n.t, "PD", queued[2])
	priority := number(n.t, queued[0])
	require.Positive(n.t, priority)
	part, err := strconv.ParseFloat(queued[1], 64)
	require.NoError(n.t, err)
	require.InDelta(n.t, float64(priority)/math.MaxUint32, part, 1e-9)

	// An age may go on between two of them.
	n.wait("all to show the same priority", func() bool {
		shown := regexp.MustCompile(`Priority=([0-9]+)`).FindStringSubmatch(n.same(ann, "scontrol", "show", "job", number0(id)))
		require.NotEmpty(n.t, shown)
		factors := strings.TrimSpace(n.same(ann, "sprio", "--noheader", job, "--format=%Y"))
		queued := strings.TrimSpace(n.same(ann, "squeue", "--noheader", job, "--format=%Q"))
		return shown[1] == factors && factors == queued
	})
}

// accounting checks that sreport counts what sacct lists. It shows whole hours,
// which are added up here and now.
func (n *loginNode) accounting(hour time.Time) {
	n.t.Helper()
	from, until := hour.Format("2006-01-02T15:04:05"), hour.Add(2*time.Hour).Format("2006-01-02T15:04:05")
	var seconds int64
	jobs := n.same("root", "sacct", "--allusers", "--allocations", "--noheader", "--parsable2", "--starttime="+from,
		"--format=JobIDRaw,User,Account,Priority,ElapsedRaw,AllocTRES,State")
	for line := range strings.Lines(jobs) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if f[1] != ann || f[2] != n.a {
			continue
		}
		require.Positive(n.t, number(n.t, f[3]), "its priority, in %s", line)
		require.Contains(n.t, f[5], "gres/gpu=2")
		seconds += 2 * number(n.t, f[4])
	}
	require.GreaterOrEqual(n.t, seconds, int64(2*2))

	sreport := func(words ...string) string {
		args := append([]string{"sreport", "--noheader", "--parsable2", "-t", "seconds", "--tres=gres/gpu"}, words...)
		return n.same("root", append(args, "start="+from, "end="+until)...)
	}
	// What slurmdbd learns of while it adds up an hour is in the next sum.
	n.wait("sreport to count what sacct lists", func() bool {
		n.exec("root", "sacctmgr", "--immediate", "rollup", from, until)
		top := sreport("user", "top", "TopCount=50", "format=login,account,tresname,used")
		return strings.Contains(top, fmt.Sprintf("%s|%s|gres/gpu|%d\n", ann, n.a, seconds))
	})
	used := sreport("cluster", "utilization", "format=cluster,tresname,allocated,reported")
	cluster := strings.Split(strings.TrimSpace(used), "|")
	require.Equal(n.t, []string{n.Name(), "gres/gpu"}, cluster[:2], used)
	require.GreaterOrEqual(n.t, number(n.t, cluster[2]), seconds, used)
	require.GreaterOrEqual(n.t, number(n.t, cluster[3]), number(n.t, cluster[2]), used)
	byAccount := sreport("cluster", "AccountUtilizationByUser", "format=account,login,tresname,used")
	require.Contains(n.t, byAccount, fmt.Sprintf("%s|%s|gres/gpu|%d\n", n.a, ann, seconds))
}
