// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/testcluster"
)

// told is a cluster whose clients know --min-runtime, and which notes what
// slurmctld tells the prolog of each job about it.
type told struct {
	*scenario
	note string // "JOB SECONDS" a line
}

func startTold(t *testing.T) *told {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpubudget-told-") //nolint:usetesting // of a folder of the test no other user may read
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	plugin, err := filepath.Abs("../build/plugins/spank_gpubudget.so")
	require.NoError(t, err)
	stack, prolog, note := filepath.Join(dir, "plugstack.conf"), filepath.Join(dir, "prolog"), filepath.Join(dir, "note")
	require.NoError(t, os.WriteFile(stack, []byte("required "+plugin+" cap=4:00:00\n"), 0o600))
	require.NoError(t, os.Chmod(stack, 0o644))
	script := "#!/bin/sh\necho \"$SLURM_JOB_ID ${SPANK_GPUBUDGET_MIN_RUNTIME-none}\" >>" + note + "\n"
	require.NoError(t, os.WriteFile(prolog, []byte(script), 0o600))
	require.NoError(t, os.Chmod(prolog, 0o755))
	require.NoError(t, os.WriteFile(note, nil, 0o600))
	require.NoError(t, os.Chmod(note, 0o666))

	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	c, err := testcluster.Start(ctx, testcluster.Options{
		Users: []string{ann}, Priority: testcluster.Gpubudget, CPUsPerNode: 64,
		SlurmConf: []string{"PlugStackConfig=" + stack, "PrologSlurmctld=" + prolog, "MinJobAge=300"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	return &told{scenario: newScenario(t, c, "told"), note: note}
}

// seconds is what slurmctld knows of the minimum runtime of a job that has
// started.
func (s *told) seconds(id uint32) string {
	s.t.Helper()
	var found string
	s.wait(fmt.Sprintf("the prolog of job %d", id), func() bool {
		text, err := os.ReadFile(s.note)
		require.NoError(s.t, err)
		for line := range strings.Lines(string(text)) {
			if of, seconds, ok := strings.Cut(strings.TrimSpace(line), " "); ok && of == number0(id) {
				found = seconds
			}
		}
		return found != ""
	})
	return found
}

func TestMinRuntime(t *testing.T) {
	s := startTold(t)
	t.Run("reaches slurmctld", s.minRuntimeArrives)
	t.Run("is checked where it is typed", s.minRuntimeIsChecked)
}

// From the command line, the script and the environment, in this order, and it
// stays with the job when slurmctld restarts.
func (s *told) minRuntimeArrives(t *testing.T) {
	submit := func(args ...string) uint32 {
		id, err := s.Sbatch(s.ctx, ann, args...)
		require.NoError(t, err)
		return id
	}
	script := filepath.Join(filepath.Dir(s.note), "job")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\n#SBATCH --min-runtime=3:00\ntrue\n"), 0o600))
	require.NoError(t, os.Chmod(script, 0o644))

	for want, id := range map[string]uint32{
		"none":  submit("--wrap=true"),
		"7200":  submit("--min-runtime=2h", "--wrap=true"),
		"0":     submit("--min-runtime=0", "--wrap=true"),
		"180":   submit(script),
		"5400":  submit("--min-runtime=1:30:00", script),
		"14400": submit("--min-runtime=0-4", "--wrap=true"),
	} {
		require.Equal(t, want, s.seconds(id))
	}

	env := func(variable string, args ...string) string {
		return s.exec(ann, "env", append([]string{"GPUBUDGET_MIN_RUNTIME=" + variable, "sbatch", "--parsable", "--output=/dev/null"}, args...)...)
	}
	id := uint32(number(t, strings.TrimSpace(env("10", "--wrap=true"))))
	require.Equal(t, "600", s.seconds(id))
	id = uint32(number(t, strings.TrimSpace(env("10", "--min-runtime=20", "--wrap=true"))))
	require.Equal(t, "1200", s.seconds(id))

	s.exec(ann, "srun", "--min-runtime=90s", "true")
	s.exec(ann, "salloc", "--min-runtime=91s", "true")
	text, err := os.ReadFile(s.note)
	require.NoError(t, err)
	require.Contains(t, string(text), " 90\n")
	require.Contains(t, string(text), " 91\n")

	id = submit("--min-runtime=17m", "--begin=now+3600", "--wrap=true")
	require.NoError(t, s.RestartSlurmctld(s.ctx))
	s.exec("root", "scontrol", "update", fmt.Sprintf("JobId=%d", id), "StartTime=now")
	require.Equal(t, "1020", s.seconds(id))
}

// What isn't a time, or longer than the cap, is refused where it is typed, with
// what would do.
func (s *told) minRuntimeIsChecked(t *testing.T) {
	submitted := func() [][]string { return s.rows("squeue", "--noheader", "--states=all", "--sort=i", "--format=%A|%j") }
	before := submitted()
	for text, want := range map[string]string{
		"4:00:01": "the longest minimum runtime is 04:00:00 here", "1-0": "the longest minimum runtime is 04:00:00 here",
		"-1": "not a time", "2x": "not a time", "": "not a time", "1:2:3:4": "not a time", "1-": "not a time", "1-2h": "not a time",
		"1.5h": "not a time", "5,": "not a time", "2h3": "not a time", "UNLIMITED": "not a time",
		"99999999999999999999999": "not a time", "18446744073709551616": "not a time",
	} {
		_, err := s.Exec(s.ctx, ann, "sbatch", "--min-runtime="+text, "--wrap=true")
		require.ErrorContains(t, err, want, "--min-runtime=%s", text)
		require.ErrorContains(t, err, "--min-runtime="+text)
	}
	_, err := s.Exec(s.ctx, ann, "env", "GPUBUDGET_MIN_RUNTIME=5h", "sbatch", "--wrap=true")
	require.ErrorContains(t, err, "GPUBUDGET_MIN_RUNTIME=5h: the longest minimum runtime is 04:00:00 here")
	require.Equal(t, before, submitted(), "nothing was queued")
	require.Contains(t, s.exec(ann, "sbatch", "--help"), "--min-runtime=time")
}
