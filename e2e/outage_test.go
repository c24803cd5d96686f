// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stateSaved is how long slurmctld may take to write down what has happened.
const stateSaved = 6 * time.Second

// With PostgreSQL stopped jobs go on being scheduled, in the same order, also
// by a slurmctld that is restarted meanwhile; the log says so once. After it
// has returned the sums equal Slurm's own record exactly.
func TestPostgresAway(t *testing.T) {
	s := begin(t, "away")
	s.use(ann, s.a, 4, 2)
	mark := s.logLength()
	require.NoError(t, s.StopPostgres())

	release := s.hog()
	ofA := s.submit(ann, s.a, 2, "--gpus=8", "--nodes=1")
	ofB := s.submit(bob, s.b, 2, "--gpus=8", "--nodes=1")
	s.waitOrder(ofB, ofA)
	time.Sleep(3 * time.Second) // several attempts to connect
	lines := s.logLines(mark, "Postgres")
	require.Len(t, lines, 1, "one line says that PostgreSQL is away")

	require.NoError(t, s.RestartSlurmctld(s.ctx))
	s.waitOrder(ofB, ofA)
	release()
	s.waitGone(ofA, ofB)

	require.NoError(t, s.StartPostgres(s.ctx))
	s.agree()
	require.NotEmpty(t, s.logLines(mark, "Postgres")[1:], "and one that it is back")
}

// kill -9 of slurmctld loses no charge: neither of a job that ends meanwhile
// nor of one that goes on, and neither if PostgreSQL was away at the time. No job
// ends within stateSaved before: slurmctld would have it run on, for a minute and
// longer, until it finds out that the node doesn't know it.
func TestKilledSlurmctldLosesNoCharge(t *testing.T) {
	s := begin(t, "crash")
	short, endShort := s.submitEndless(ann, s.a, "--gpus=2")
	long, endLong := s.submitEndless(bob, s.b, "--gpus=3")
	s.waitState(long, "R")
	s.waitState(short, "R")
	time.Sleep(stateSaved)
	require.NoError(t, s.KillSlurmctld())
	endShort()
	time.Sleep(2 * time.Second) // it ends with nobody to tell
	require.NoError(t, s.StartSlurmctld(s.ctx))
	s.waitGone(short)
	s.agree()

	require.NoError(t, s.StopPostgres())
	ended := s.submit(ann, s.a, 1, "--gpus=4")
	s.waitGone(ended)
	time.Sleep(stateSaved) // and a pass has seen it
	require.NoError(t, s.KillSlurmctld())
	require.NoError(t, s.StartSlurmctld(s.ctx))
	require.NoError(t, s.StartPostgres(s.ctx))
	endLong()
	s.waitGone(long)
	s.agree()
	require.Equal(t, []int64{4}, s.recordedGPUs(ended))
	require.Equal(t, []int64{2}, s.recordedGPUs(short))
	require.Equal(t, []int64{3}, s.recordedGPUs(long))
}

// submitEndless submits a job that runs until end is called, whether slurmctld is
// there or not.
func (s *scenario) submitEndless(user, account string, args ...string) (id uint32, end func()) {
	s.t.Helper()
	file := filepath.Join(s.Dir(), "end-"+user)
	require.NoError(s.t, os.RemoveAll(file))
	id, err := s.Sbatch(s.ctx, user, append(args, "--account="+account, "--wrap=while [ ! -e "+file+" ]; do sleep 0.1; done")...)
	require.NoError(s.t, err)
	return id, func() {
		s.t.Helper()
		require.NoError(s.t, os.WriteFile(file, nil, 0o600))
	}
}
