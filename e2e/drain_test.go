// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/internal/testcluster"
)

// Two nodes are drained while jobs run on them. By the default policy nothing
// happens. With drain=requeue what is unallocated goes at once, what is protected
// when its minimum runtime has passed, also if it is on another node as well; what
// can't be requeued stays, as does what runs elsewhere.
func TestJobsMakeRoomForTheRepairOfANode(t *testing.T) {
	s := own(t, testcluster.Options{Nodes: 3, Slurmdbd: true, Preempt: true, SlurmConf: []string{"MinJobAge=300"}})
	protection := 40 * time.Second
	submit := func(user, account string, args ...string) uint32 {
		return s.submit(user, account, 600, append([]string{"--gpus-per-node=1"}, args...)...)
	}
	free := submit(ann, s.a, "--nodelist=n1", "--min-runtime=0", "--requeue")
	stays := submit(ann, s.a, "--nodelist=n1", "--min-runtime=0", "--no-requeue")
	elsewhere := submit(ann, s.a, "--nodelist=n3", "--min-runtime=0", "--requeue")
	protected := submit(bob, s.b, "--nodelist=n1", minRuntime(protection), "--requeue")
	spread := submit(bob, s.b, "--nodes=2", "--nodelist=n1,n2", minRuntime(protection), "--requeue")
	all := []uint32{free, stays, elsewhere, protected, spread}
	for _, id := range all {
		s.waitState(id, "R")
	}
	s.wait("the plugin to know them", func() bool { return len(s.openRuns()) == len(all) })
	start := s.start(protected)
	s.exec("root", "scontrol", "update", "nodename=n1,n2", "state=drain", "reason=fan 3 is loud")
	time.Sleep(3 * time.Second) // in which there are looks enough
	require.Empty(t, s.restarted(all...), "they wait")

	s.exec("root", "gpubudget", "policy", "set", "drain", "requeue")
	s.wait("the unallocated job to leave", func() bool { return len(s.restarted(free)) == 1 })
	require.Equal(t, []uint32{free}, s.restarted(all...))
	require.Less(t, time.Since(start), protection, "the machine is too slow for this test")
	s.wait("the others to leave", func() bool { return len(s.restarted(protected, spread)) == 2 })
	require.Equal(t, []uint32{free, protected, spread}, s.restarted(all...))
	require.Equal(t, "R", s.state(stays))
	require.Equal(t, "R", s.state(elsewhere))

	comment := s.exec("root", "scontrol", "show", "job", number0(protected))
	require.Contains(t, comment, "requeued from node n1, which is drained (fan 3 is loud)")
	lines := s.logLines(0, "is requeued from node")
	require.Len(t, lines, 3, strings.Join(lines, "\n"))
	s.wait("the record", func() bool { return len(s.drained()) == 3 })
	for _, d := range s.drained() {
		require.Equal(t, "n1", d.node)
		if d.job == protected {
			require.GreaterOrEqual(t, d.at.Sub(start), protection)
			require.WithinDuration(t, start.Add(protection), *d.until, time.Second)
		}
	}
}

// openRuns are the jobs that the plugin has recorded as running.
func (s *scenario) openRuns() (jobs []uint32) {
	s.t.Helper()
	s.query(`SELECT job_id FROM gpubudget.job_run WHERE ended_at IS NULL`, func(rows pgx.Rows) error {
		var job uint32
		err := rows.Scan(&job)
		jobs = append(jobs, job)
		return err
	})
	return jobs
}

// drainRecord is what is recorded of a job that left a drained node.
type drainRecord struct {
	job   uint32
	node  string
	at    time.Time
	until *time.Time
}

func (s *scenario) drained() (records []drainRecord) {
	s.t.Helper()
	s.query(`SELECT job_id, node, at, protected_until FROM gpubudget.preemption WHERE rule = 'drain' ORDER BY at`, func(rows pgx.Rows) error {
		var r drainRecord
		err := rows.Scan(&r.job, &r.node, &r.at, &r.until)
		records = append(records, r)
		return err
	})
	return records
}

// query calls each for every row.
func (s *scenario) query(sql string, each func(pgx.Rows) error) {
	s.t.Helper()
	conn, err := pgx.Connect(s.ctx, s.DSN())
	require.NoError(s.t, err)
	defer conn.Close(s.ctx)
	rows, err := conn.Query(s.ctx, sql)
	require.NoError(s.t, err)
	defer rows.Close()
	for rows.Next() {
		require.NoError(s.t, each(rows))
	}
	require.NoError(s.t, rows.Err())
}
