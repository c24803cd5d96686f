// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/internal/testcluster"
)

// Two nodes are drained while jobs run on them. By the default policy nothing
// happens. With drain=requeue what is unallocated goes at once, also if it is
// suspended, what is protected when its minimum runtime has passed, also if it is on
// another node as well; what can't be requeued stays, as do what runs elsewhere and
// what was suspended meanwhile. Who asked for a mail gets one.
func TestJobsMakeRoomForTheRepairOfANode(t *testing.T) {
	t.Parallel() // it mostly waits
	sent := writable(t, "mail")
	s := own(t, testcluster.Options{Nodes: 3, Slurmdbd: true, Preempt: true, SlurmConf: []string{"MinJobAge=300", "MailProg=" + mailProg(t, sent)}})
	protection := 40 * time.Second
	submit := func(user, account string, args ...string) uint32 {
		return s.submit(user, account, 600, append([]string{"--gpus-per-node=1"}, args...)...)
	}
	mail := []string{"--mail-type=REQUEUE", "--mail-user=" + ann}
	free := submit(ann, s.a, append(mail, "--nodelist=n1", "--min-runtime=0", "--requeue")...)
	asleep := submit(ann, s.a, append(mail, "--nodelist=n1", "--min-runtime=0", "--requeue")...)
	stays := submit(ann, s.a, "--nodelist=n1", "--min-runtime=0", "--no-requeue")
	elsewhere := submit(ann, s.a, "--nodelist=n3", "--min-runtime=0", "--requeue")
	protected := submit(bob, s.b, "--nodelist=n1", minRuntime(protection), "--requeue")
	spread := submit(bob, s.b, "--nodes=2", "--nodelist=n1,n2", minRuntime(protection), "--requeue")
	slow := submit(bob, s.b, "--nodelist=n1", minRuntime(protection), "--requeue")
	all := []uint32{free, asleep, stays, elsewhere, protected, spread, slow}
	for _, id := range all {
		s.waitState(id, "R")
	}
	s.wait("the plugin to know them", func() bool { return len(s.openRuns()) == len(all) })
	start := s.start(protected)
	s.exec("root", "scontrol", "suspend", number0(asleep)+","+number0(slow))
	s.exec("root", "scontrol", "update", "nodename=n1,n2", "state=drain", "reason=fan 3 is loud")
	time.Sleep(3 * time.Second) // in which there are looks enough
	require.Empty(t, s.restarted(all...), "they wait")

	s.exec("root", "gpubudget", "policy", "set", "drain", "requeue")
	s.wait("the unallocated jobs to leave", func() bool { return len(s.restarted(free, asleep)) == 2 })
	require.Equal(t, []uint32{free, asleep}, s.restarted(all...))
	require.Less(t, time.Since(start), protection, "the machine is too slow for this test")
	s.wait("the others to leave", func() bool { return len(s.restarted(protected, spread)) == 2 })
	require.Equal(t, []uint32{free, asleep, protected, spread}, s.restarted(all...))
	require.Equal(t, "S", s.state(slow))
	require.Equal(t, "R", s.state(stays))
	require.Equal(t, "R", s.state(elsewhere))

	comment := s.exec("root", "scontrol", "show", "job", number0(protected))
	require.Contains(t, comment, "requeued from node n1, which is drained (fan 3 is loud)")
	lines := s.logLines(0, "is requeued from node")
	require.Len(t, lines, 4, strings.Join(lines, "\n"))
	s.wait("the mails", func() bool {
		text, err := os.ReadFile(sent)
		require.NoError(t, err)
		return strings.Contains(string(text), "Job_id="+number0(free)+" ") && strings.Contains(string(text), "Job_id="+number0(asleep)+" ")
	})
	s.wait("the record", func() bool { return len(s.drained()) == 4 })
	for _, d := range s.drained() {
		require.Equal(t, "n1", d.node)
		if d.job == protected {
			require.GreaterOrEqual(t, d.at.Sub(start), protection)
			require.WithinDuration(t, start.Add(protection), *d.until, time.Second)
		}
	}
}

// A het job leaves as a whole whichever of its components stands on the drained
// node, also if that has no GPUs; or stays as a whole, and nothing is claimed of it.
func TestHetJobsLeaveADrainedNodeAsAWhole(t *testing.T) {
	t.Parallel() // it mostly waits
	s := own(t, testcluster.Options{Nodes: 2, Slurmdbd: true, Preempt: true, SlurmConf: []string{"MinJobAge=300"}})
	s.exec("root", "gpubudget", "policy", "set", "drain", "requeue")
	gpu, none := "--gpus-per-node=1", "--ntasks=1"
	het := func(user, account string, first, second []string) uint32 {
		args := append([]string{"--account=" + account, "--min-runtime=0", "--nodelist=n1"}, first...)
		args = append(args, ":", "--account="+account, "--min-runtime=0", "--nodelist=n2")
		id, err := s.Sbatch(s.ctx, user, append(append(args, second...), "--wrap=sleep 600")...)
		require.NoError(t, err)
		s.waitState(id, "R")
		s.waitState(id+1, "R")
		return id
	}
	one, other := het(ann, s.a, []string{gpu}, []string{gpu}), het(bob, s.b, []string{gpu}, []string{gpu})
	bare := het(ann, s.a, []string{gpu}, []string{none})
	single := het(bob, s.b, []string{gpu}, []string{gpu})
	s.exec("root", "scancel", number0(single+1))
	wait := func(what string, id uint32, field, value string) {
		t.Helper()
		s.wait(what, func() bool { return s.show(id, field) == value })
	}
	wait("the component to end", single+1, "JobState", "CANCELLED")
	kept := het(ann, s.a, []string{gpu}, []string{gpu, "--no-requeue"})
	s.wait("the plugin to know them", func() bool { return len(s.openRuns()) == 8 })
	from := s.logLength()

	s.exec("root", "scontrol", "update", "nodename=n2", "state=drain", "reason=fan 3 is loud")
	leave := []uint32{one, one + 1, other, other + 1, bare, bare + 1}
	for _, id := range leave {
		wait("all components to leave", id, "Restarts", "1")
		require.Contains(t, s.exec("root", "scontrol", "show", "job", number0(id)), "requeued from node n2, which is drained (fan 3 is loud)")
		wait("it to pend", id, "JobState", "PENDING")
	}
	time.Sleep(5 * time.Second) // in which there are looks enough
	lines := s.logLines(from, "which is drained")
	require.Len(t, lines, 3, strings.Join(lines, "\n"))
	for _, id := range []uint32{kept, kept + 1, single} {
		require.Equal(t, "R", s.state(id))
		require.Equal(t, "0", s.show(id, "Restarts"))
		require.NotContains(t, s.exec("root", "scontrol", "show", "job", number0(id)), "requeued from")
	}
	s.wait("the record", func() bool { return len(s.drained()) == 5 })
	var recorded []uint32
	for _, d := range s.drained() {
		require.Equal(t, "n2", d.node)
		recorded = append(recorded, d.job)
	}
	require.ElementsMatch(t, []uint32{one, one + 1, other, other + 1, bare}, recorded, "those with GPUs")

	s.exec("root", "scontrol", "update", "nodename=n1", "state=drain", "reason=fan 4 is loud")
	wait("what is left of the job to leave", single, "Restarts", "1")
	wait("it to be whole again", single+1, "JobState", "PENDING")
	require.Equal(t, "R", s.state(kept))
	s.exec("root", "scontrol", "update", "nodename=n1,n2", "state=resume")
	for _, id := range append(leave, single, single+1) {
		s.waitState(id, "R")
	}
}

// Who would have a grace time if it were preempted has it on a drained node: it is
// told once, by SIGTERM or what it asked for, and requeued when the time is over.
func TestADrainedNodeLeavesTheGraceTime(t *testing.T) {
	t.Parallel() // it mostly waits
	s := graceCluster(t, func(o *testcluster.Options) {
		o.SlurmConf = append(o.SlurmConf, "SlurmctldParameters=preempt_send_user_signal")
	})
	s.exec("root", "gpubudget", "policy", "set", "drain", "requeue")
	leaves := func(l listener, signal, other string) {
		s.wait("the job to be told", func() bool { return len(l.at(signal)) > 0 })
		told := l.at(signal)[0]
		require.Equal(t, "0", s.show(l.id, "Restarts"), "while it has its grace")
		s.wait("it to be requeued", func() bool { return s.show(l.id, "Restarts") == "1" })
		waited := time.Since(told)
		require.GreaterOrEqual(t, waited, grace-time.Second, "in whole seconds")
		require.Less(t, waited, grace+slack)
		for _, at := range append(l.at(signal)[1:], l.at(other)...) { // what ends a job is SIGTERM, too
			require.GreaterOrEqual(t, at.Sub(told), grace-time.Second)
		}
	}
	asks, plain := s.listen("a", "n1", true, "--signal=USR1@60"), s.listen("b", "n2", true)
	s.exec("root", "scontrol", "update", "nodename=n1", "state=drain", "reason=fan 3 is loud")
	leaves(asks, "USR1", "TERM")
	require.Empty(t, plain.at("TERM"), "nobody else is told")
	s.exec("root", "scontrol", "update", "nodename=n2", "state=drain", "reason=fan 4 is loud")
	leaves(plain, "TERM", "USR1")
	require.Len(t, s.logLines(0, "is told to go: it has 6 seconds"), 2)
	require.Len(t, s.logLines(0, "is requeued from node"), 2)
	s.exec("root", "scancel", number0(asks.id), number0(plain.id))

	s.exec("root", "scontrol", "update", "nodename=n1,n2", "state=resume")
	component := func(node string) []string {
		return []string{"--account=none", "--min-runtime=0", "--qos=gentle", "--nodelist=" + node, "--gpus-per-node=1"}
	}
	het, err := s.Sbatch(s.ctx, cem, append(append(append(component("n1"), ":"), component("n2")...), "--wrap=sleep 600")...)
	require.NoError(t, err)
	s.waitState(het, "R")
	s.wait("the plugin to know it", func() bool { return len(s.openRuns()) == 2 })
	began := time.Now()
	s.exec("root", "scontrol", "update", "nodename=n2", "state=drain", "reason=fan 4 is loud")
	for _, id := range []uint32{het, het + 1} {
		s.wait("all components to leave", func() bool { return s.show(id, "Restarts") == "1" })
	}
	require.GreaterOrEqual(t, time.Since(began), grace-time.Second)
	require.Len(t, s.logLines(0, "JobId="+number0(het)+" on node n2, which is drained (fan 4 is loud), is told to go"), 1)
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
