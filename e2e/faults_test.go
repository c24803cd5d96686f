// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/testcluster"
)

// faulty is a cluster whose priority plugin gets no memory, or whose library takes
// no settings, while the test says so.
type faulty struct {
	*scenario
	file *os.File
}

// The bytes of the file that testdata/faults.c reads.
const (
	noMemory   = 0
	noSettings = 1
)

func startFaulty(t *testing.T) *faulty {
	t.Helper()
	dir, err := testcluster.MakeTempDir()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	library, path := filepath.Join(dir, "faults.so"), filepath.Join(dir, "faults")
	out, err := exec.CommandContext(t.Context(), "gcc", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-o", library, "testdata/faults.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	file, err := os.Create(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, file.Close()) })
	require.NoError(t, file.Truncate(2))
	require.NoError(t, file.Chmod(0o644)) // slurmctld's user reads it
	require.NoError(t, os.Chmod(library, 0o755))

	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	c, err := testcluster.Start(ctx, testcluster.Options{
		Users: []string{ann, bob, cem}, Slurmdbd: true, Priority: testcluster.Gpubudget,
		Accounts: []testcluster.Account{
			{Name: "hog", Share: "10%", Users: []string{cem}},
			{Name: "fault_a", Share: "40%", Users: []string{ann}},
			{Name: "fault_b", Share: "40%", Users: []string{bob}},
		},
		SlurmConf:    []string{"PriorityWeightTRES=gres/gpu=1000", "PartitionName=short Nodes=ALL MaxTime=10 PriorityJobFactor=10 State=UP"},
		SlurmctldEnv: []string{"LD_PRELOAD=" + library, "FAULTS=" + path},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.LogTails())
		}
		require.NoError(t, c.Stop())
	})
	require.NoError(t, c.LoadBudgets(ctx, nil))
	return &faulty{newScenario(t, c, "fault"), file}
}

func (f *faulty) set(fault int64, on bool) {
	f.t.Helper()
	value := byte(0)
	if on {
		value = 1
	}
	_, err := f.file.WriteAt([]byte{value}, fault)
	require.NoError(f.t, err)
}

// waitLine waits for the log to say something, once.
func (f *faulty) waitLine(from int, text string) {
	f.t.Helper()
	f.wait("the log to say: "+text, func() bool { return len(f.logLines(from, text)) > 0 })
}

// Without memory slurmctld goes on, says once why priorities stay as they were,
// counts what jobs use all the same, and has all in order again when there is some.
func TestWithoutMemoryPrioritiesStay(t *testing.T) {
	f := startFaulty(t)
	release := f.hog()
	ofA, ofB := f.submit(ann, f.a, 1, "--gpus=1"), f.submit(bob, f.b, 1, "--gpus=1")
	f.waitOrder(ofA, ofB)

	from := f.logLength()
	f.set(noMemory, true)
	f.waitLine(from, "out of memory: priorities stay as they were")
	multi := f.submit(ann, f.a, 1, "--gpus=1", "--partition=gpu,short")
	later := f.submit(bob, f.b, 1, "--gpus=1")
	for _, id := range []uint32{multi, later} {
		require.NotEqual(t, "0", f.priorities(id)[0])
	}
	f.exec("root", "sprio", "--long")
	f.exec("root", "sshare", "--all")
	f.exec("root", "scontrol", "update", "job", number0(ofA), "nice=5")
	f.exec("root", "scontrol", "reconfigure")
	release()
	f.waitGone(ofA, ofB, multi, later)
	f.set(noMemory, false)
	f.waitLine(from, "priorities are given again")
	require.Len(t, f.logLines(from, "priorities stay as they were"), 1)

	f.hog()
	ofB = f.submit(bob, f.b, 1, "--gpus=1")
	nice := f.submit(bob, f.b, 1, "--gpus=1", "--nice=100")
	f.wait("both in order", func() bool { order := f.order(); return len(order) == 2 && order[0] == ofB && order[1] == nice })
	f.requireSum(0)
	f.wait("the use of a to be recorded", func() bool { return f.used(f.a) > 0 })
}

// Settings that the library does not take are not in force, and are once it does.
func TestSettingsThatAreNotTakenAreTriedAgain(t *testing.T) {
	f := startFaulty(t)
	f.hog()
	ofA := f.submit(ann, f.a, 1, "--gpus=1")
	weight := func() string {
		rows := f.rows("sprio", "--noheader", "--jobs="+number0(ofA), "--format=%i|%T")
		require.Len(t, rows, 1)
		return rows[0][1]
	}
	f.waitOrder(ofA)
	f.requireSum(0)
	before := weight()
	require.Contains(t, before, "gres/gpu=")

	from := f.logLength()
	f.set(noSettings, true)
	conf, err := os.ReadFile(f.SlurmConf())
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(f.SlurmConf(), []byte(withLines(string(conf), []string{"PriorityWeightTRES="})), 0o600))
	f.exec("root", "scontrol", "reconfigure")
	const refused = "the priority settings of slurm.conf were not taken over: those before stay in force, and every pass tries again"
	f.waitLine(from, refused)
	second := f.submit(ann, f.a, 1, "--gpus=1")
	f.waitOrder(ofA, second)
	f.requireSum(0)
	require.Equal(t, before, weight())
	require.Len(t, f.logLines(from, refused), 1)

	f.set(noSettings, false)
	f.waitLine(from, "the priority settings of slurm.conf are taken over now")
	f.wait("a pass by the new ones", func() bool { return weight() == "" })
	f.requireSum(0)
}
