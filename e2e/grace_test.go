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
// in which run. The shell of its step gets them.
type listener struct {
	s    *scenario
	id   uint32
	file string
}

const listening = `note() { echo "$1 $(date +%s)" >>FILE; }
trap 'note TERM' TERM; trap 'note USR1' USR1; trap 'note CONT' CONT
note run; while :; do sleep 0.2; done
`

func (s *scenario) listen(name string, args ...string) listener {
	s.t.Helper()
	l := listener{s: s, file: filepath.Join(s.t.TempDir(), name)}
	require.NoError(s.t, os.WriteFile(l.file, nil, 0o666)) // the job's user writes it
	for dir := filepath.Dir(l.file); dir != os.TempDir(); dir = filepath.Dir(dir) {
		require.NoError(s.t, os.Chmod(dir, 0o755)) // and gets there
	}
	require.NoError(s.t, os.Chmod(l.file, 0o666)) // whatever the umask
	script := l.file + ".sh"
	require.NoError(s.t, os.WriteFile(script, []byte(strings.ReplaceAll(listening, "FILE", l.file)), 0o644)) // as above
	args = append([]string{"--account=none", "--min-runtime=0", "--qos=gentle", "--gpus=4", "--nodes=1", "--ntasks=1", "--requeue", "--time=10"}, args...)
	id, err := s.Sbatch(s.ctx, cem, append(args, "--wrap=srun --ntasks=1 bash "+script)...)
	require.NoError(s.t, err)
	l.id = id
	s.waitState(id, "R")
	s.wait("its step to run", func() bool { return len(l.at("run")) == 1 })
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

// evicts submits a request for one of the two nodes, both full, and waits for it
// to run. Of those that listen one is told by a signal, has its grace and is
// requeued; all others stay.
func (s *scenario) evicts(signal string, all []listener) {
	s.t.Helper()
	request := s.submit(ann, "due", 600, "--gpus=4", "--nodes=1", minRuntime(window))
	var told []listener
	s.wait("somebody to be told", func() bool {
		told = nil
		for _, l := range all {
			if len(l.at(signal)) > 0 {
				told = append(told, l)
			}
		}
		return len(told) > 0
	})
	require.Len(s.t, told, 1)
	gone := told[0]
	require.NotEmpty(s.t, gone.at("CONT"), "it is woken up first")
	require.True(s.t, s.start(request).IsZero(), "while the job has its grace")
	require.Equal(s.t, "R", s.state(gone.id))
	s.waitRuns(request)
	waited := s.start(request).Sub(gone.at(signal)[0])
	require.GreaterOrEqual(s.t, waited, grace-time.Second, "Slurm counts in whole seconds")
	require.Less(s.t, waited, grace+2*slack)
	s.wait("it to be requeued", func() bool { return s.show(gone.id, "Restarts") == "1" })
	for _, l := range all {
		if l.id != gone.id {
			require.Equal(s.t, "R", s.state(l.id))
			require.Equal(s.t, "0", s.show(l.id, "Restarts"))
			require.Empty(s.t, l.at(signal), "nobody else is told")
		}
	}
}

// A job whose QOS has a grace time is sent SIGCONT and SIGTERM, and goes on for so
// long before it is requeued; meanwhile nobody else has to go for the same request.
func TestPreemptionLeavesTheGraceTime(t *testing.T) {
	s := graceCluster(t, nil)
	all := []listener{s.listen("a", "--signal=USR1@60"), s.listen("b", "--signal=USR1@60")}
	s.evicts("TERM", all)
}

// With preempt_send_user_signal it is what the job asked for with --signal.
func TestPreemptionSendsTheUsersSignal(t *testing.T) {
	s := graceCluster(t, func(o *testcluster.Options) {
		o.SlurmConf = append(o.SlurmConf, "SlurmctldParameters=preempt_send_user_signal")
	})
	s.evicts("USR1", []listener{s.listen("a", "--signal=USR1@60"), s.listen("b", "--signal=USR1@60")})
}
