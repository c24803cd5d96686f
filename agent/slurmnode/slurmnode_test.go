// SPDX-License-Identifier: GPL-2.0-or-later

package slurmnode

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// machine is a /proc and a /sys/fs/cgroup of our own.
type machine struct {
	t    *testing.T
	proc string
	root string
}

func newMachine(t *testing.T) machine {
	t.Helper()
	dir := t.TempDir()
	return machine{t, filepath.Join(dir, "proc"), filepath.Join(dir, "cgroup")}
}

func (m machine) write(text string, elem ...string) {
	m.t.Helper()
	path := filepath.Join(elem...)
	require.NoError(m.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(m.t, os.WriteFile(path, []byte(text), 0o600))
}

// process is a process in control groups.
func (m machine) process(pid int, lines ...string) {
	m.write(strings.Join(lines, "\n")+"\n", m.proc, strconv.Itoa(pid), "cgroup")
}

func (m machine) group(path string) {
	require.NoError(m.t, os.MkdirAll(filepath.Join(m.root, path), 0o755))
}

func (m machine) cgroups(node string) *Cgroups {
	return &Cgroups{Node: node, Proc: m.proc, Root: m.root}
}

func TestWhoseAProcessIs(t *testing.T) {
	for _, tc := range []struct {
		name  string
		lines []string
		job   uint32 // 0: nobody's
	}{
		{"v1", []string{"12:freezer:/slurm/uid_1000/job_4711/step_0", "1:name=systemd:/system.slice/slurmd.service"}, 4711},
		{"v1, several slurmds", []string{"3:cpuset:/slurm_n7/uid_1000/job_4711/step_batch/task_0"}, 4711},
		{"v1, one controller only", []string{"5:memory:/", "4:devices:/slurm/uid_0/job_1/step_extern"}, 1},
		{"v1, between jobs", []string{"4:devices:/slurm/uid_1000"}, 0},
		{"v2", []string{"0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0"}, 12},
		{"v2, several slurmds", []string{"0::/system.slice/n7_slurmstepd.scope/job_12/step_batch/user/task_special"}, 12},
		{"v2, in a container's hierarchy", []string{"0::/machine.slice/node.scope/system.slice/slurmstepd.scope/job_12/step_0"}, 12},
		{"hybrid", []string{"9:freezer:/slurm/uid_5/job_8/step_0", "0::/user.slice"}, 8},
		{"slurmstepd's own", []string{"0::/system.slice/slurmstepd.scope/system"}, 0},
		{"slurmd", []string{"0::/system.slice/slurmd.service"}, 0},
		{"a session", []string{"0::/user.slice/user-1000.slice/session-3.scope"}, 0},
		{"a user's own group of that name", []string{"0::/user.slice/user-1000.slice/job_666/step_0"}, 0},
		{"a job's own group of that name", []string{"0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0/slurm/uid_0/job_666"}, 12},
		{"too large", []string{"0::/system.slice/slurmstepd.scope/job_4294967296/step_0"}, 0},
		{"zero", []string{"0::/system.slice/slurmstepd.scope/job_0/step_0"}, 0},
		{"rubbish", []string{"", ":", "0:", "x"}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMachine(t)
			m.process(42, tc.lines...)
			job, ok, err := m.cgroups("n7").Job(42)
			require.NoError(t, err)
			require.Equal(t, tc.job, job)
			require.Equal(t, tc.job != 0, ok)
		})
	}
}

func TestAProcessThatHasEnded(t *testing.T) {
	_, ok, err := newMachine(t).cgroups("").Job(42)
	require.NoError(t, err)
	require.False(t, ok)
}

// From 26.05 on a job's group has a name that tells nothing; its slurmstepds do.
func TestSLUIDs(t *testing.T) {
	for _, root := range []string{"", "unified"} {
		m := newMachine(t)
		const id = "sEKNKTV3WPV500"
		m.process(42, "0::/system.slice/slurmstepd.scope/"+id+"/step_0/user/task_0")
		c := m.cgroups("n1")
		_, ok, err := c.Job(42)
		require.NoError(t, err)
		require.False(t, ok, "there is nobody to ask yet")

		scope := filepath.Join(m.root, root, "system.slice", "slurmstepd.scope")
		m.write("900\n901\n", scope, id, "step_0", "slurm", "cgroup.procs")
		m.write("sleep\x00infinity\x00", m.proc, "900", "cmdline")
		m.write("slurmstepd: [4711.0]\x00", m.proc, "901", "cmdline")
		m.write("902\n", scope, "sABCDEFGHJKMNP", "step_extern", "slurm", "cgroup.procs")
		m.write("slurmstepd: [4712.extern]\x00", m.proc, "902", "cmdline")
		job, ok, err := c.Job(42)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, uint32(4711), job)
		jobs, known := c.Jobs()
		require.True(t, known)
		require.Equal(t, map[uint32]bool{4711: true, 4712: true}, jobs)

		require.NoError(t, os.RemoveAll(filepath.Join(scope, id)))
		jobs, _ = c.Jobs()
		require.Equal(t, map[uint32]bool{4712: true}, jobs)
	}
}

func TestWhichJobsAreAlive(t *testing.T) {
	m := newMachine(t)
	c := m.cgroups("n7")
	jobs, known := c.Jobs()
	require.False(t, known, "Slurm makes no groups here")
	require.Empty(t, jobs)

	m.group("freezer/slurm/uid_1000/job_1/step_0")
	m.group("cpuset/slurm/uid_1000/job_2")
	m.group("memory/slurm_n7/uid_1000/job_3/step_batch")
	m.group("memory/slurm_n8/uid_1000/job_99/step_batch") // another node's
	m.group("system.slice/slurmstepd.scope/job_4/step_0")
	m.group("system.slice/n7_slurmstepd.scope/job_5")
	m.group("system.slice/n7_slurmstepd.scope/system")
	m.group("system.slice/n8_slurmstepd.scope/job_98")
	jobs, known = c.Jobs()
	require.True(t, known)
	require.Equal(t, map[uint32]bool{1: true, 2: true, 3: true, 4: true, 5: true}, jobs)

	require.NoError(t, os.RemoveAll(m.root))
	jobs, known = c.Jobs()
	require.True(t, known, "they were there, so the jobs have gone")
	require.Empty(t, jobs)
}

func gresOf(t *testing.T, node, text string) Gres {
	t.Helper()
	path := filepath.Join(t.TempDir(), "gres.conf")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	g, err := ReadGres(path, node)
	require.NoError(t, err)
	return g
}

func files(g Gres) (all []string) {
	for _, s := range g.Slots {
		all = append(all, strings.Join(s.Files, "+"))
	}
	return all
}

func TestGresConf(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []string
		auto       bool
	}{
		{"one line", "Name=gpu File=/dev/nvidia[0-2]\n", []string{"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2"}, false},
		{
			"by type, in an order of its own", "NodeName=n[1-4] Name=gpu Type=a100 File=/dev/nvidia[2-3] Cores=0-7\nNodeName=n1 name=GPU type=v100 file=/dev/nvidia[0,1]\n",
			[]string{"/dev/nvidia2", "/dev/nvidia3", "/dev/nvidia0", "/dev/nvidia1"}, false,
		},
		{"other nodes and resources", "NodeName=n2 Name=gpu File=/dev/nvidia9\nName=shard Count=32\nName=nic File=/dev/mlx0\nName=gpu File=/dev/nvidia0 # the only one\n# Name=gpu File=/dev/nvidia1\n", []string{"/dev/nvidia0"}, false},
		{"continued lines", "Name=gpu \\\n File=/dev/nvidia0 \\\n Count=1\n", []string{"/dev/nvidia0"}, false},
		{"found by slurmd", "AutoDetect=nvml\n", nil, true},
		{"found, with lines", "AutoDetect=nvml\nNodeName=n1 Name=gpu Type=a100 File=/dev/nvidia[0-1]\n", []string{"/dev/nvidia0", "/dev/nvidia1"}, true},
		{"not on this node", "AutoDetect=nvml\nNodeName=n1 AutoDetect=off Name=gpu File=/dev/nvidia0\n", []string{"/dev/nvidia0"}, false},
		{
			"MIG by hand", "Name=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22] Type=1g.5gb\nName=gpu MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap30,/dev/nvidia-caps/nvidia-cap31\n",
			[]string{"/dev/nvidia0+/dev/nvidia-caps/nvidia-cap21+/dev/nvidia-caps/nvidia-cap22", "/dev/nvidia0+/dev/nvidia-caps/nvidia-cap30+/dev/nvidia-caps/nvidia-cap31"}, false,
		},
		{"no files", "Name=gpu Count=8\n", nil, false},
		{"empty", "", nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := gresOf(t, "n1", tc.text)
			require.Equal(t, tc.want, files(g))
			require.Equal(t, tc.auto, g.AutoDetect)
		})
	}
}

func TestGresConfOfOtherFiles(t *testing.T) {
	dir := t.TempDir()
	main := filepath.Join(dir, "gres.conf")
	require.NoError(t, os.WriteFile(main, []byte("Include more\nName=gpu File=/dev/nvidia1\n"), 0o600))
	_, err := ReadGres(main, "n1")
	require.ErrorContains(t, err, "more")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "more"), []byte("Name=gpu File=/dev/nvidia0\n"), 0o600))
	g, err := ReadGres(main, "n1")
	require.NoError(t, err)
	require.Equal(t, []string{"/dev/nvidia0", "/dev/nvidia1"}, files(g))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "more"), []byte("include gres.conf\n"), 0o600))
	_, err = ReadGres(main, "n1")
	require.ErrorContains(t, err, "include each other")

	g, err = ReadGres(filepath.Join(dir, "none"), "n1")
	require.NoError(t, err)
	require.Empty(t, g.Slots)
	require.NoError(t, os.WriteFile(main, []byte("Name=gpu File=/dev/nvidia[0\n"), 0o600))
	_, err = ReadGres(main, "n1")
	require.ErrorContains(t, err, "bracket")
}

func TestMinor(t *testing.T) {
	for file, want := range map[string]int{"/dev/nvidia0": 0, "/dev/nvidia12": 12, "/x/gpu07": 7, "/dev/null": -1, "": -1} {
		n, ok := Minor(file)
		require.Equal(t, want >= 0, ok, file)
		if ok {
			require.Equal(t, want, n)
		}
	}
}

func TestMIGPlaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mig-minors")
	places, err := MIGPlaces(path)
	require.NoError(t, err)
	require.Empty(t, places)
	require.NoError(t, os.WriteFile(path, []byte("config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu3/gi11/ci2/access 444\n"), 0o600))
	places, err = MIGPlaces(path)
	require.NoError(t, err)
	require.Equal(t, map[int]Place{13: {0, 1, 0}, 444: {3, 11, 2}}, places)
}
