// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/testcluster"
)

// grace is how long a job of the QOS "gentle" is left to itself after it was told
// to go.
const grace = 6 * time.Second

// graceCluster is a contractCluster with such a QOS.
func graceCluster(t *testing.T, change func(*testcluster.Options)) *scenario {
	t.Helper()
	s := contractCluster(t, func(o *testcluster.Options) {
		o.QOS = map[string]int{"gentle": 0}
		if change != nil {
			change(o)
		}
	})
	s.exec("root", "sacctmgr", "--immediate", "modify", "qos", "where", "name=gentle", "set", fmt.Sprintf("gracetime=%d", int(grace.Seconds())))
	return s
}

// listener is a job of unallocated GPUs that notes when which signal arrives, and
// in which run. The shell of its step gets them, or the batch script.
type listener struct {
	s    *scenario
	id   uint32
	file string
	step bool
}

const listening = `note() { now=$(date +%s) && echo "$1 $now" >>FILE; }
trap 'note TERM' TERM; trap 'note USR1' USR1; trap 'note CONT' CONT
note run; while :; do sleep 0.2; done
`

// writable is an empty file that any user of the cluster can write.
func writable(t *testing.T, name string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, nil, 0o666))
	for dir := filepath.Dir(file); dir != os.TempDir(); dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755)) // others get there
	}
	require.NoError(t, os.Chmod(file, 0o666)) // whatever the umask
	return file
}

func (s *scenario) listen(name, node string, step bool, args ...string) listener {
	s.t.Helper()
	l := listener{s: s, file: writable(s.t, name), step: step}
	script := l.file + ".sh"
	require.NoError(s.t, os.WriteFile(script, []byte(strings.ReplaceAll(listening, "FILE", l.file)), 0o644)) // as above
	args = append([]string{"--account=none", "--min-runtime=0", "--qos=gentle", "--gpus=4", "--nodes=1", "--nodelist=" + node, "--ntasks=1", "--requeue", "--time=10"}, args...)
	wrap := "--wrap=. " + script
	if step {
		wrap = "--wrap=srun --ntasks=1 bash " + script
	}
	id, err := s.Sbatch(s.ctx, cem, append(args, wrap)...)
	require.NoError(s.t, err)
	l.id = id
	s.waitState(id, "R")
	s.wait("it to listen", func() bool { return len(l.at("run")) == 1 })
	return l
}

// at is when the job noted something.
func (l listener) at(what string) []time.Time {
	l.s.t.Helper()
	text, err := os.ReadFile(l.file)
	require.NoError(l.s.t, err)
	var found []time.Time
	for line := range strings.Lines(string(text)) {
		word, seconds, _ := strings.Cut(strings.TrimSpace(line), " ")
		if word != what {
			continue
		}
		at, err := strconv.ParseInt(seconds, 10, 64)
		require.NoError(l.s.t, err, line)
		found = append(found, time.Unix(at, 0))
	}
	return found
}

// evicts submits a request for the node of one listener, and waits for it to run.
// That one is told once, by that signal and no other, has its grace and is requeued;
// the others stay.
func (s *scenario) evicts(signal, node string, gone listener, others ...listener) {
	s.t.Helper()
	request := s.submit(ann, "due", 600, "--gpus=4", "--nodes=1", "--nodelist="+node, minRuntime(window))
	s.wait("the job to be told", func() bool { return len(gone.at(signal)) > 0 })
	told := gone.at(signal)[0]
	if gone.step {
		// SIGCONT is sent first, but the shell's traps run in the order of their numbers.
		s.wait("it to be woken up, too", func() bool { return len(gone.at("CONT")) > 0 })
	}
	require.True(s.t, s.start(request).IsZero(), "while the job has its grace")
	require.Equal(s.t, "R", s.state(gone.id))
	s.waitRuns(request)
	waited := s.start(request).Sub(told)
	require.GreaterOrEqual(s.t, waited, grace-time.Second, "Slurm counts in whole seconds")
	require.Less(s.t, waited, grace+2*slack)
	s.wait("it to be requeued", func() bool { return s.show(gone.id, "Restarts") == "1" })

	// What ends a job that is requeued is SIGTERM as well, to all of it.
	within := func(l listener, signal string) (n int) {
		for _, at := range l.at(signal) {
			if at.Before(told.Add(grace - time.Second)) {
				n++
			}
		}
		return n
	}
	for _, each := range []string{"TERM", "USR1"} {
		want := 0
		if each == signal {
			want = 1
		}
		require.Equal(s.t, want, within(gone, each), each)
		for _, other := range others {
			require.Empty(s.t, other.at(each), "nobody else is told: %s", each)
		}
	}
	if signal != "USR1" {
		require.Empty(s.t, gone.at("USR1"), "nobody has asked for it")
	}
	for _, other := range others {
		require.Equal(s.t, "R", s.state(other.id))
		require.Equal(s.t, "0", s.show(other.id, "Restarts"))
	}
}

// A job whose QOS has a grace time is sent SIGCONT and SIGTERM, once, and goes on for
// so long before it is requeued; meanwhile nobody else has to go for the same request.
func TestPreemptionLeavesTheGraceTime(t *testing.T) {
	t.Parallel() // it mostly waits
	s := graceCluster(t, nil)
	a, b := s.listen("a", "n1", true), s.listen("b", "n2", true)
	s.evicts("TERM", "n1", a, b)
}

// With preempt_send_user_signal it is what the job asked for with --signal: its steps
// get it, or with B: its batch script.
func TestPreemptionSendsTheUsersSignal(t *testing.T) {
	t.Parallel() // it mostly waits
	s := graceCluster(t, func(o *testcluster.Options) {
		o.SlurmConf = append(o.SlurmConf, "SlurmctldParameters=preempt_send_user_signal")
	})
	a, b := s.listen("a", "n1", true, "--signal=USR1@60"), s.listen("b", "n2", false, "--signal=B:USR1@60")
	s.evicts("USR1", "n1", a, b)
	s = s.on(t) // with time of its own
	b.s = s
	s.evicts("USR1", "n2", b)
}
