// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"gpubudget/internal/testcluster"
)

// told is a cluster whose clients know --min-runtime, and which notes what
// slurmctld tells the prolog of each job about it.
type told struct {
	*scenario
	dir   string // that anybody may read
	stack string // plugstack.conf
	note  string // "JOB NAME SECONDS" a line
}

func startTold(t *testing.T) *told {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpubudget-told-") //nolint:usetesting // of a folder of the test no other user may read
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	stack, prolog, note := filepath.Join(dir, "plugstack.conf"), filepath.Join(dir, "prolog"), filepath.Join(dir, "note")
	require.NoError(t, os.WriteFile(stack, []byte(toldStack(t, "cap=4:00:00")), 0o600))
	require.NoError(t, os.Chmod(stack, 0o644))
	script := "#!/bin/sh\necho \"$SLURM_JOB_ID $SLURM_JOB_NAME ${SPANK_GPUBUDGET_MIN_RUNTIME-none}\" >>" + note + "\n"
	require.NoError(t, os.WriteFile(prolog, []byte(script), 0o600))
	require.NoError(t, os.Chmod(prolog, 0o755))
	require.NoError(t, os.WriteFile(note, nil, 0o600))
	require.NoError(t, os.Chmod(note, 0o666))

	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	c, err := testcluster.Start(ctx, testcluster.Options{
		Nodes: 3, Users: []string{ann}, Priority: testcluster.Gpubudget, CPUsPerNode: 64,
		SlurmConf: []string{"PlugStackConfig=" + stack, "PrologSlurmctld=" + prolog, "MinJobAge=300",
			"ScronParameters=enable", "SchedulerParameters=bf_interval=1,batch_sched_delay=0,sched_min_interval=0"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	return &told{scenario: newScenario(t, c, "told"), dir: dir, stack: stack, note: note}
}

// toldStack is a plugstack.conf.
func toldStack(t *testing.T, arguments string) string {
	t.Helper()
	plugin, err := filepath.Abs("../build/plugins/spank_gpubudget.so")
	require.NoError(t, err)
	return "required " + plugin + " " + arguments + "\n"
}

// file is one in the cluster's folder that anybody may run, with some lines.
func (s *told) file(name string, lines ...string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	require.NoError(s.t, os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	require.NoError(s.t, os.Chmod(path, 0o755))
	return path
}

// told is what the prologs have noted: by job, its name and seconds.
func (s *told) told() map[string][2]string {
	s.t.Helper()
	text, err := os.ReadFile(s.note)
	require.NoError(s.t, err)
	jobs := map[string][2]string{}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		require.Len(s.t, fields, 3, line)
		jobs[fields[0]] = [2]string{fields[1], fields[2]}
	}
	return jobs
}

// seconds is what slurmctld knows of the minimum runtime of a job that has
// started.
func (s *told) seconds(id uint32) string {
	s.t.Helper()
	var found [2]string
	s.wait(fmt.Sprintf("the prolog of job %d", id), func() (ok bool) {
		found, ok = s.told()[number0(id)]
		return ok
	})
	return found[1]
}

// job is the id of the first job of that name, which has started.
func (s *told) job(name string) uint32 {
	s.t.Helper()
	var found []uint32
	s.wait("the prolog of job "+name, func() bool {
		for id, job := range s.told() {
			if job[0] == name {
				found = append(found, uint32(number(s.t, id)))
			}
		}
		return len(found) > 0
	})
	return slices.Min(found)
}

func TestMinRuntime(t *testing.T) {
	s := startTold(t)
	for _, test := range []struct {
		name string
		run  func(*told)
	}{
		{"reaches slurmctld", (*told).arrives},
		{"ranks as --time does", (*told).ranksAsTime},
		{"of an empty variable", (*told).emptyVariable},
		{"of a job is not that of jobs from within", (*told).nested},
		{"is checked where it is typed", (*told).isChecked},
		{"is not taken by scrontab, which would forget it", (*told).scrontab},
		{"of a plugstack.conf that can't be", (*told).badStack},
	} {
		t.Run(test.name, func(t *testing.T) {
			of := *s
			of.scenario = newScenario(t, s.Cluster, "told")
			test.run(&of)
		})
	}
}

// submitted is the id of a batch job that was submitted with variables
// ("NAME=VALUE").
func (s *told) submitted(variables []string, args ...string) uint32 {
	s.t.Helper()
	args = append([]string{"sbatch", "--parsable", "--output=/dev/null"}, args...)
	return uint32(number(s.t, strings.TrimSpace(s.exec(ann, "env", append(variables, args...)...))))
}

// In each of Slurm's formats and each of ours, and it stays with the job when
// slurmctld restarts.
func (s *told) arrives() {
	ids := map[string]uint32{}
	for text := range times {
		ids[text] = s.submitted(nil, "--min-runtime="+text, "--wrap=true")
	}
	plain := s.submitted(nil, "--wrap=true")
	kept := s.submitted(nil, "--min-runtime=17m", "--begin=now+3600", "--wrap=true")
	for text, want := range times {
		require.Equal(s.t, want, s.seconds(ids[text]), "--min-runtime=%s", text)
	}
	require.Equal(s.t, "none", s.seconds(plain))

	require.NoError(s.t, s.RestartSlurmctld(s.ctx))
	s.exec("root", "scontrol", "update", fmt.Sprintf("JobId=%d", kept), "StartTime=now")
	require.Equal(s.t, "1020", s.seconds(kept))
}

var times = map[string]string{
	"0": "0", "7": "420", "7:30": "450", "1:30:00": "5400", "0-4": "14400", "0-3:30": "12600", "0-1:02:03": "3723",
	"90s": "90", "5m": "300", "2h": "7200", "0d": "0",
}

// said is who says a time, and --time with it; of a het job by component, with
// colons between them.
type said struct {
	command                string
	variable, script, line string
	want                   string
}

// The command line before the environment before the script. What a component of a
// het job does not say it has from the one before, and the environment is for each.
// Slurm's own --time, which says the same, always ends as the minimum runtime does.
func (s *told) ranksAsTime() {
	all := []said{
		{"sbatch", "", "", "", "none"},
		{"sbatch", "", "3", "", "3"},
		{"sbatch", "10", "", "", "10"},
		{"sbatch", "10", "3", "", "10"},
		{"sbatch", "", "3", "20", "20"},
		{"sbatch", "10", "", "20", "20"},
		{"sbatch", "10", "3", "20", "20"},
		{"sbatch", "", "", "5 : ", "5 5"},
		{"sbatch", "", "", " : 5", "none 5"},
		{"sbatch", "", "", "5 : : 3", "5 5 3"},
		{"sbatch", "7", "", "5 : ", "5 7"},
		{"sbatch", "7", "", " : 5", "7 5"},
		{"sbatch", "", "5 : 3", "", "5 3"},
		{"sbatch", "", "5 : ", "", "5 5"},
		{"sbatch", "", " : 5", "", "none 5"},
		{"sbatch", "7", "5 : 3", "", "7 7"},
		{"sbatch", "", "5 : 3", "4", "4 4"},
		{"salloc", "", "", "", "none"},
		{"salloc", "10", "", "", "10"},
		{"salloc", "10", "", "20", "20"},
		{"salloc", "", "", "5 : ", "5 5"},
		{"salloc", "", "", " : 5", "none 5"},
		{"salloc", "7", "", "5 : ", "5 7"},
		{"srun", "", "", "", "none"},
		{"srun", "10", "", "", "10"},
		{"srun", "10", "", "20", "20"},
		{"srun", "", "", "5 : ", "5 5"},
		{"srun", "", "", " : 5", "none 5"},
		{"srun", "7", "", "5 : ", "5 7"},
	}
	var group errgroup.Group
	group.SetLimit(8)
	for i := range all {
		command := s.says(&all[i], fmt.Sprintf("said%d", i))
		group.Go(func() error {
			_, err := s.Exec(s.ctx, ann, "env", command...)
			return err
		})
	}
	require.NoError(s.t, group.Wait())
	for i := range all {
		id := s.job(fmt.Sprintf("said%d", i))
		for n, minutes := range strings.Fields(all[i].want) {
			component := id + uint32(n)
			if minutes == "none" { // Slurm makes no limit the shortest of the other components, or a year
				require.Equal(s.t, "none", s.seconds(component), "component %d of %+v", n, all[i])
				continue
			}
			require.Equal(s.t, strconv.FormatInt(60*number(s.t, minutes), 10), s.seconds(component), "component %d of %+v", n, all[i])
			limits := s.rows("squeue", "--noheader", "--states=all", "--jobs="+number0(id), "--format=%A|%l")
			require.Contains(s.t, limits, []string{number0(component), minutes + ":00"}, "%+v", all[i])
		}
	}
}

// says is the command that starts a job as it is said, under a name.
func (s *told) says(what *said, name string) []string {
	s.t.Helper()
	command := append(what.variables(), what.command, "--job-name="+name)
	if what.command != "sbatch" {
		return slices.Concat(command, options(what.line), []string{"true"})
	}
	return slices.Concat(command, []string{"--output=/dev/null"}, options(what.line), []string{s.file(name, what.lines()...)})
}

func (w *said) variables() []string {
	if w.variable == "" {
		return nil
	}
	return []string{
		"GPUBUDGET_MIN_RUNTIME=" + w.variable,
		"SBATCH_TIMELIMIT=" + w.variable, "SALLOC_TIMELIMIT=" + w.variable, "SLURM_TIMELIMIT=" + w.variable,
	}
}

// lines are those of the script.
func (w *said) lines() []string {
	lines := []string{"#!/bin/sh"}
	for i, component := range strings.Split(w.script, ":") {
		if i > 0 {
			lines = append(lines, "#SBATCH hetjob")
		}
		lines = append(lines, "#SBATCH --ntasks=1 "+strings.Join(options(component), " "))
	}
	return append(lines, "true")
}

// options are those of a command line of components.
func options(line string) []string {
	var args []string
	for i, component := range strings.Split(line, ":") {
		if i > 0 {
			args = append(args, ":")
		}
		if minutes := strings.TrimSpace(component); minutes != "" {
			args = append(args, "--time="+minutes, "--min-runtime="+minutes)
		}
	}
	return args
}

// It counts as none.
func (s *told) emptyVariable() {
	script := s.file("empty", "#!/bin/sh", "#SBATCH --min-runtime=3:00", "true")
	empty := []string{"GPUBUDGET_MIN_RUNTIME="}
	for want, id := range map[string]uint32{
		"none": s.submitted(empty, "--wrap=true"),
		"180":  s.submitted(empty, script),
		"1200": s.submitted(empty, "--min-runtime=20", script),
	} {
		require.Equal(s.t, want, s.seconds(id))
	}
	for _, command := range []string{"srun", "salloc"} {
		s.exec(ann, "env", "GPUBUDGET_MIN_RUNTIME=", command, "--job-name=empty-"+command, "true")
		require.Equal(s.t, "none", s.seconds(s.job("empty-"+command)))
	}
}

// What a job asks for is its own: whatever is submitted from within it, be it a
// batch script or the shell of salloc, asks for itself, and the job's steps for
// nothing. The variable is for all who see it, as Slurm's are.
func (s *told) nested() {
	asks := s.file("inner", "#!/bin/sh", "#SBATCH --min-runtime=3:00", "true")
	silent := s.file("silent", "#!/bin/sh", "true")
	outer := s.file("outer", "#!/bin/sh", "set -e",
		"sbatch --output=/dev/null --job-name=$1-asks "+asks,
		"sbatch --output=/dev/null --job-name=$1-silent "+silent,
		"(unset SLURM_JOB_ID SLURM_JOBID; srun --job-name=$1-srun true)",
		"GPUBUDGET_MIN_RUNTIME=junk srun true",
		"GPUBUDGET_MIN_RUNTIME=5h srun true",
		"sbatch --output=/dev/null --job-name=$1-end "+silent,
	)
	s.submitted(nil, "--min-runtime=2h", outer, "batch")
	s.submitted([]string{"GPUBUDGET_MIN_RUNTIME=10"}, outer, "exported")
	s.submitted([]string{"GPUBUDGET_MIN_RUNTIME=10"}, "--min-runtime=2h", outer, "both")
	s.exec(ann, "salloc", "--min-runtime=2h", outer, "shell")
	for job, want := range map[string]string{"batch": "none", "shell": "none", "exported": "600", "both": "600"} {
		require.Equal(s.t, want, s.seconds(s.job(job+"-silent")), job)
		require.Equal(s.t, want, s.seconds(s.job(job+"-srun")), job)
		if want == "none" {
			want = "180"
		}
		require.Equal(s.t, want, s.seconds(s.job(job+"-asks")), job)
		s.job(job + "-end")
	}
}

// What isn't a time, or longer than the cap, is refused where it is typed, with
// what would do. Of the variable it is said that it is the variable's.
func (s *told) isChecked() {
	submitted := func() [][]string { return s.rows("squeue", "--noheader", "--states=all", "--sort=i", "--format=%A|%j") }
	before := submitted()
	for text, want := range map[string]string{
		"4:00:01": "the longest minimum runtime is 04:00:00 here", "1-0": "the longest minimum runtime is 04:00:00 here",
		"-1": "not a time", "2x": "not a time", "": "not a time", "1:2:3:4": "not a time", "1-": "not a time", "1-2h": "not a time",
		"1.5h": "not a time", "5,": "not a time", "2h3": "not a time", "UNLIMITED": "not a time",
		"99999999999999999999999": "not a time", "18446744073709551616": "not a time",
	} {
		_, err := s.Exec(s.ctx, ann, "sbatch", "--min-runtime="+text, "--wrap=true")
		require.ErrorContains(s.t, err, want, "--min-runtime=%s", text)
		require.ErrorContains(s.t, err, "--min-runtime="+text)
		if text == "" {
			continue
		}
		for _, command := range [][]string{{"sbatch", "--wrap=true"}, {"srun", "true"}, {"salloc", "true"}, {"sbatch", "--min-runtime=5", "--wrap=true"}} {
			_, err := s.Exec(s.ctx, ann, "env", append([]string{"GPUBUDGET_MIN_RUNTIME=" + text}, command...)...)
			require.ErrorContains(s.t, err, "error: GPUBUDGET_MIN_RUNTIME="+text+": "+want, command)
		}
	}
	require.Equal(s.t, before, submitted(), "nothing was queued")
	for _, command := range []string{"sbatch", "srun", "salloc"} {
		require.Contains(s.t, s.exec(ann, command, "--help"), "--min-runtime=time", command)
	}
}

// What an administrator writes behind the plugin's name is a cap or an error.
func (s *told) badStack() {
	defer s.file(filepath.Base(s.stack), strings.TrimSpace(toldStack(s.t, "cap=4:00:00")))
	for _, argument := range []string{"cap=0", "cap=x", "cap=", "cap=-1", "cap=2h,", "cap", "foo", "foo=1", "caps=2h"} {
		s.file(filepath.Base(s.stack), strings.TrimSpace(toldStack(s.t, "cap=2h "+argument)))
		for _, command := range [][]string{{"sbatch", "--wrap=true"}, {"srun", "true"}, {"salloc", "true"}} {
			_, err := s.Exec(s.ctx, ann, command[0], command[1:]...)
			require.ErrorContains(s.t, err, fmt.Sprintf("spank_gpubudget.so: %q: cap=TIME is all there is to say", argument), command)
		}
	}
	for argument, longest := range map[string]string{"": "08:00:00", "cap=1-2:03": "1-02:03:00", "CAP=90s": "00:01:30"} {
		s.file(filepath.Base(s.stack), strings.TrimSpace(toldStack(s.t, argument)))
		_, err := s.Exec(s.ctx, ann, "sbatch", "--min-runtime=30-0", "--wrap=true")
		require.ErrorContains(s.t, err, "the longest minimum runtime is "+longest+" here", argument)
	}
}

// scrontab knows plugins' options and has no place for what they say of a job, so
// there it is none. Debian has no scrontab: this one is built here.
func (s *told) scrontab() {
	scrontab := s.buildScrontab()
	accepted := s.file("accepted", "#SCRON --time=5", "0 0 1 1 * /bin/true")
	s.exec(ann, scrontab, accepted)
	require.Contains(s.t, s.exec(ann, scrontab, "-l"), "--time=5")
	_, err := s.Exec(s.ctx, ann, scrontab, s.file("refused", "#SCRON --min-runtime=2h", "0 0 1 1 * /bin/true"))
	require.ErrorContains(s.t, err, "min-runtime")
	require.NotContains(s.t, s.exec(ann, scrontab, "-l"), "min-runtime", "it is as it was")
	s.exec(ann, "env", "GPUBUDGET_MIN_RUNTIME=junk", scrontab, accepted)
}

// buildScrontab is a scrontab from the source of the installed Slurm.
func (s *told) buildScrontab() string {
	s.t.Helper()
	slurm, err := filepath.Abs("../build/slurm")
	require.NoError(s.t, err)
	private, err := filepath.Glob("/usr/lib/*/slurm-wlm/libslurmfull.so")
	require.NoError(s.t, err)
	require.Len(s.t, private, 1)
	texts, scrontab := filepath.Join(s.dir, "texts.o"), filepath.Join(s.dir, "scrontab")
	for _, command := range [][]string{
		{"ld", "-r", "-b", "binary", "-z", "noexecstack", "-o", texts, "usage.txt", "default_crontab.txt"},
		{
			"gcc", "-w", "-I" + slurm + "/obj", "-I" + slurm + "/obj/slurm", "-I" + slurm + "/src", "-o", scrontab,
			"scrontab.c", "opt.c", "parse.c", "env.c", texts, private[0], "-Wl,--export-dynamic", "-Wl,-rpath," + filepath.Dir(private[0]),
		},
	} {
		cmd := exec.CommandContext(s.ctx, command[0], command[1:]...)
		cmd.Dir = slurm + "/src/src/scrontab"
		out, err := cmd.CombinedOutput()
		require.NoError(s.t, err, "%s", out)
	}
	return scrontab
}
