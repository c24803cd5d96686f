// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/agent/holding"
	"gpubudget/agent/spool"
	"gpubudget/usage/meter"
)

func TestFromPrologToEpilogToTheMillisecond(t *testing.T) {
	n := newNode(t).withDatabase().start()
	n.driver.busy(50, 0)
	n.rounds(1)
	n.pass(1234 * time.Millisecond)
	n.prolog(7, "0,1").rounds(3)
	n.pass(4321 * time.Millisecond)
	n.epilog(7).rounds(2)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 prolog 34321", "GPU-1 7.0 prolog 34321"}, n.held())
	require.Empty(t, n.files(), "what has been counted is removed")

	got := rows(t, n.dsn, `SELECT format('%s %s %s %s %s %s', gpu, user_name || '/' || account, ended, busy_ms, busy_known_ms,
		held_until = idle_since + held_ms * interval '1ms') FROM gpubudget.gpu_bucket ORDER BY 1`)
	require.Equal(t, []string{"GPU-0 ann/vision t 17160 34321 ", "GPU-1 ann/vision t 0 34321 t"}, got, "half busy, and idle from the beginning")
	require.Equal(t, []string{"2 ok"}, rows(t, n.dsn, "SELECT gpus || ' ' || state FROM gpubudget.agent"))
	require.Equal(t, []string{"GPU-0 0", "GPU-1 1"}, rows(t, n.dsn, "SELECT uuid || ' ' || gres_index FROM gpubudget.gpu ORDER BY 1"))
}

// A job shorter than a round is counted as exactly as any other.
func TestAShortJob(t *testing.T) {
	n := newNode(t).withDatabase().start().rounds(1)
	n.prolog(7, "1")
	n.pass(17 * time.Millisecond)
	n.epilog(7).rounds(1)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-1 7.0 prolog 17"}, n.held())
}

func TestAKilledAgentLosesNothing(t *testing.T) {
	n := newNode(t).withDatabase().start().rounds(1)
	n.prolog(7, "0").rounds(2)
	require.NoError(t, n.send())
	n.rounds(1).kill()
	n.pass(time.Hour) // nobody runs
	n.epilog(7).prolog(8, "0")
	n.pass(time.Minute)
	n.start().rounds(1)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 prolog 3630000", "GPU-0 8.0 prolog 70000"}, n.held())
	require.Equal(t, []string{"0"}, rows(t, n.dsn, `SELECT count(*)::text FROM gpubudget.gpu_bucket a JOIN gpubudget.gpu_bucket b
		USING (gpu, job_id, restart) WHERE a.incarnation < b.incarnation AND a.held_from < b.held_until AND b.held_from < a.held_until`), "no time counts twice")
	known := rows(t, n.dsn, "SELECT sum(energy_known_ms)::text FROM gpubudget.gpu_bucket WHERE job_id = 7")
	require.Equal(t, []string{"30000"}, known, "nobody looked at the GPU meanwhile")
}

func TestARebootEndsItsJobs(t *testing.T) {
	n := newNode(t).withDatabase().start().prolog(7, "0").rounds(3)
	n.kill()
	n.boot = "boot-2"
	n.pass(10 * time.Minute)
	n.mu.Lock()
	n.uptime = 20 * time.Second
	n.mu.Unlock()
	n.start().prolog(8, "0").rounds(1)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 prolog 30000", "GPU-0 8.0 prolog 10000"}, n.held())
	require.Equal(t, []string{"8.0"}, n.files())
	require.Equal(t, 1, n.log.count("jobs of before have ended with it"))
	require.Equal(t, 1, n.log.count("files of before the node was rebooted are removed"))
}

func TestTheClockIsSet(t *testing.T) {
	n := newNode(t).withDatabase().start().prolog(7, "0").rounds(2)
	n.setClock(-90 * time.Minute)
	n.rounds(2)
	n.setClock(2 * time.Minute)
	n.epilog(7).rounds(1)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 prolog 40000"}, n.held())
	require.Equal(t, 2, n.log.count("the clock was set"))
}

// sendAt has the agent write with its clock at a time.
func (n *node) sendAt(at time.Time) error {
	n.t.Helper()
	n.mu.Lock()
	was := n.wall
	n.wall = at
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.wall = was
		n.mu.Unlock()
	}()
	return n.writeAll(n.t.Context(), &written{})
}

func TestNoDriver(t *testing.T) {
	n := newNode(t).withDatabase()
	n.driver.openErr = errors.New("the driver's library is not there")
	n.start().prolog(7, "3").rounds(4)
	require.NoError(t, n.send())
	require.Equal(t, []string{"gres:3 7.0 prolog 40000"}, n.held(), "who holds a GPU is counted all the same")
	require.Equal(t, 1, n.log.count("GPUs are not measured, who holds them is counted all the same"))
	require.Equal(t, 1, n.log.count("the driver does not show which GPU a job holds"))
	require.Equal(t, []string{"the driver's library is not there"}, rows(t, n.dsn, "SELECT state FROM gpubudget.agent"))

	// It is installed at last.
	n.driver.openErr = nil
	n.driver.gpus = gpus(4)
	n.rounds(7)
	require.NoError(t, n.send())
	held := n.held()
	require.Equal(t, 1, n.log.count("GPUs are measured again"))
	require.Equal(t, 1, n.log.count("goes by another UUID now"))
	require.Len(t, held, 2)
	var ms [2]int
	for i, row := range held {
		_, err := fmt.Sscanf(row[strings.LastIndex(row, " "):], "%d", &ms[i])
		require.NoError(t, err)
	}
	require.Equal(t, 110_000, ms[0]+ms[1], "%v", held)
}

func TestNoGPUs(t *testing.T) {
	n := newNode(t).withDatabase()
	n.driver.gpus = nil
	n.start().rounds(3)
	require.NoError(t, n.send())
	require.Equal(t, []string{"0 ok"}, rows(t, n.dsn, "SELECT gpus || ' ' || state FROM gpubudget.agent"))
}

func TestUUIDsThatChange(t *testing.T) {
	n := newNode(t).withDatabase().start().prolog(7, "1").rounds(2)
	n.driver.gpus[1].UUID = "GPU-new"
	n.rounds(1).kill()
	n.start().rounds(1)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-1 7.0 prolog 20000", "GPU-new 7.0 prolog 20000"}, n.held())
	require.Equal(t, 1, n.log.count("goes by another UUID now"))
}

// Two starts in one millisecond, as of a virtual machine that was set back, are two
// incarnations: what the first has counted stays, and the second counts on.
func TestTwoStartsInOneMillisecond(t *testing.T) {
	n := newNode(t).withDatabase().prolog(7, "0").prolog(8, "0")
	n.pass(6600 * time.Millisecond)
	n.start()
	require.NoError(t, n.Round())
	n.kill()
	n.start()
	require.NoError(t, n.Round())
	n.rounds(2).epilog(7).epilog(8).rounds(1)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 prolog 26600", "GPU-0 8.0 prolog 26600"}, n.held())
	require.Zero(t, n.spool.Waiting())
}

// A GPU goes by another name and back again, while a job holds it: whether between two
// looks or within the instant of one.
func TestAUUIDThatChangesBack(t *testing.T) {
	n := newNode(t).withDatabase().start()
	n.driver.busy(100)
	n.rounds(1).prolog(7, "0").rounds(1)
	for _, uuid := range []string{"GPU-new", "GPU-0", "GPU-new", "GPU-0"} {
		n.driver.gpus[0].UUID = uuid
		require.NoError(t, n.Round())
	}
	n.rounds(2)
	for _, uuid := range []string{"GPU-new", "GPU-0"} {
		n.driver.gpus[0].UUID = uuid
		n.rounds(2)
	}
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 prolog 50000", "GPU-new 7.0 prolog 20000"}, n.held())
	require.Equal(t, []string{"GPU-0 50000", "GPU-new 20000"}, rows(t, n.dsn,
		"SELECT format('%s %s', gpu, sum(busy_ms)) FROM gpubudget.gpu_bucket GROUP BY gpu ORDER BY 1"), "all of it was seen")
}

// A GPU goes by another name when an agent starts, whose first look falls between
// Epilog's look at its clock and its file: nothing beyond the end is left to either name.
func TestAUUIDThatChangesAtTheEnd(t *testing.T) {
	n := newNode(t).withDatabase().start().prolog(7, "0").rounds(2)
	n.kill()
	n.driver.gpus[0].UUID = "GPU-new"
	n.pass(5 * time.Second)
	late := n.hooks(jobEnv(7, ""))
	at := late.Now()
	late.Now = func() holding.Stamp { return at }
	n.pass(3 * time.Second)
	n.start()
	require.NoError(t, n.Round())
	require.NoError(t, n.send())
	require.NoError(t, late.Epilog())
	require.NoError(t, n.Round())
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 prolog 20000", "GPU-new 7.0 prolog 5000"}, n.held())
	require.NoFileExists(t, filepath.Join(n.spl, "rejected"))
}

// Prolog's files can't be read for a while, as on a disk with errors: the jobs have
// not ended, and nothing counts twice when they can be read again, whoever reads them.
func TestPrologsFilesCantBeReadForAWhile(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%v", killed), func(t *testing.T) {
			n := newNode(t).withDatabase().start().prolog(7, "0").prolog(8, "1").rounds(2)
			n.driver.gpus[0].UUID = "GPU-new"
			n.rounds(2)
			require.NoError(t, n.send())
			jobs, away := filepath.Join(n.dir, "jobs"), filepath.Join(n.dir, "away")
			require.NoError(t, os.Rename(jobs, away))
			require.NoError(t, os.Symlink(jobs, jobs)) // a loop
			if killed {
				n.kill()
				require.NoError(t, os.Remove(jobs))
				require.NoError(t, os.Rename(away, jobs))
				for _, file := range []string{"7.0", "8.0"} {
					require.NoError(t, os.Rename(filepath.Join(jobs, file), filepath.Join(n.dir, file)))
					require.NoError(t, os.Symlink(filepath.Join(n.dir, file), filepath.Join(jobs, file)))
				}
				n.start()
			}
			n.rounds(3)
			require.NoError(t, n.send())
			require.Equal(t, 1, n.log.count("can't be read: it is taken to be as it was"))
			if killed {
				for _, file := range []string{"7.0", "8.0"} {
					require.NoError(t, os.Rename(filepath.Join(n.dir, file), filepath.Join(jobs, file)))
				}
			} else {
				require.NoError(t, os.Remove(jobs))
				require.NoError(t, os.Rename(away, jobs))
			}
			n.rounds(1)
			require.Equal(t, 1, n.log.count("what Prolog and Epilog write can be read again"))
			n.pass(4321 * time.Millisecond)
			n.epilog(7).epilog(8).rounds(1)
			require.NoError(t, n.send())
			require.Equal(t, []string{"GPU-0 7.0 prolog 20000", "GPU-1 8.0 prolog 84321", "GPU-new 7.0 prolog 64321"}, n.held())
		})
	}
}

// A job keeps the GPU that it was given, also when gres.conf is edited.
func TestNumbersThatChange(t *testing.T) {
	n := newNode(t).withDatabase().start().prolog(7, "0").rounds(1)
	n.gresConf("Name=gpu File=/dev/nvidia1\nName=gpu File=/dev/nvidia0\n")
	require.NoError(t, os.Chtimes(filepath.Join(n.dir, "gres.conf"), time.Time{}, time.Now().Add(time.Minute)))
	n.prolog(8, "0").rounds(1)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 prolog 20000", "GPU-1 8.0 prolog 10000"}, n.held())
	require.Equal(t, []string{"GPU-0 1", "GPU-1 0"}, rows(t, n.dsn, "SELECT uuid || ' ' || gres_index FROM gpubudget.gpu ORDER BY 1"))
}

// A GPU is cut up anew between two jobs, under a running agent: a number means what it
// is now, and what was held before stays what it was.
func TestInstancesAreReconfigured(t *testing.T) {
	n := newNode(t).withDatabase()
	n.driver.gpus = gpus(1)
	n.gresConf("AutoDetect=nvml\n")
	cut := func(on bool, uuids ...string) {
		g := &n.driver.gpus[0]
		g.MIG, g.Instances = &on, nil
		for gi, uuid := range uuids {
			g.Instances = append(g.Instances, meter.InstanceReading{MIG: meter.MIG{UUID: uuid, GPUInstance: &gi, ComputeInstance: new(int)}})
		}
	}
	cut(true, "MIG-a", "MIG-b")
	n.start().rounds(1).prolog(7, "1").rounds(2).epilog(7).rounds(1)
	cut(true, "MIG-c", "MIG-d", "MIG-e")
	n.rounds(1).prolog(8, "1").rounds(1).epilog(8).rounds(1)
	cut(false)
	n.rounds(1).prolog(9, "0").rounds(3)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 9.0 prolog 30000", "MIG-b 7.0 prolog 20000", "MIG-d 8.0 prolog 10000"}, n.held())
	require.Zero(t, n.log.count("goes by another UUID now"))
}

func TestSixtyFourInstancesAreMeasured(t *testing.T) {
	n := newNode(t).withDatabase()
	n.driver.gpus = gpus(8)
	on, slices, memory := true, 7, uint64(10<<30)
	for i := range n.driver.gpus {
		g := &n.driver.gpus[i]
		g.MIG, g.Slices = &on, &slices
		for gi := range 8 {
			one, zero := 1, 0
			g.Instances = append(g.Instances, meter.InstanceReading{
				MIG:   meter.MIG{UUID: fmt.Sprintf("MIG-%d-%d", i, gi), GPUInstance: &gi, ComputeInstance: &zero, Slices: &one, Memory: &memory},
				Usage: meter.Usage{MemoryUsed: &memory, Processes: []meter.Process{}},
			})
		}
	}
	n.gresConf("AutoDetect=nvml\n")
	n.start()
	for job := range 64 {
		n.prolog(job+1, strconv.Itoa(job))
	}
	n.rounds(2)
	require.NoError(t, n.send())
	require.Equal(t, []string{"64 64 1280000"}, rows(t, n.dsn, "SELECT format('%s %s %s', count(DISTINCT gpu), count(DISTINCT job_id), sum(held_ms)) FROM gpubudget.gpu_bucket"))
	require.Equal(t, []string{"MIG-7-7 64 10240"}, rows(t, n.dsn, "SELECT format('%s %s %s', gpu, job_id, memory_max_mib) FROM gpubudget.gpu_bucket ORDER BY job_id DESC LIMIT 1"))
	require.Equal(t, []string{"72 GPU-7 1g.10gb 63"}, rows(t, n.dsn, `SELECT format('%s %s %s %s', count(*), max(parent), max(profile), max(gres_index)) FROM gpubudget.gpu`))
	text, err := os.ReadFile(filepath.Join(n.dir, "dcgm", "7.7"))
	require.NoError(t, err)
	require.Equal(t, "64\n", string(text))
}

func TestAFullDiskUnderTheSpool(t *testing.T) {
	n := newNode(t).withDatabase()
	n.spl = t.TempDir()
	require.NoError(t, syscall.Mount("tmpfs", n.spl, "tmpfs", 0, "size=64k"), "this test mounts a file system: run it as root")
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(n.spl, syscall.MNT_DETACH)) })
	n.start().prolog(7, "0").rounds(1)
	filler := filepath.Join(n.spl, "filler")
	require.Error(t, os.WriteFile(filler, make([]byte, 1<<20), 0o600))
	n.rounds(2).epilog(7).prolog(8, "1").rounds(2)
	require.Equal(t, 1, n.log.count("what was counted is kept in memory only"), "it is said once")
	require.Contains(t, n.log.String(), "no space left on device")
	require.Equal(t, []string{"7.0", "8.0"}, n.files(), "what is not on disk yet is not forgotten")
	require.NoError(t, n.send())
	want := []string{"GPU-0 7.0 prolog 30000", "GPU-1 8.0 prolog 20000"}
	require.Equal(t, want, n.held(), "the database gets it all the same")

	require.NoError(t, os.Remove(filler))
	n.epilog(8).rounds(1)
	require.Equal(t, 1, n.log.count("the spool can be written again"))
	require.Empty(t, n.files())
	require.NoError(t, n.send())
	require.Equal(t, want, n.held())
}

// An agent that is killed while the disk is full starts on it: it counts on from what
// the disk has, and the database gets that.
func TestAnAgentStartsOnAFullDisk(t *testing.T) {
	n := newNode(t).withDatabase()
	n.spl = t.TempDir()
	require.NoError(t, syscall.Mount("tmpfs", n.spl, "tmpfs", 0, "size=64k"), "this test mounts a file system: run it as root")
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(n.spl, syscall.MNT_DETACH)) })
	n.start().prolog(7, "0").rounds(2)
	filler := filepath.Join(n.spl, "filler")
	require.Error(t, os.WriteFile(filler, make([]byte, 1<<20), 0o600))
	n.kill()
	n.start().rounds(2)
	require.Equal(t, 1, n.log.count("what was counted is kept in memory only"), "it is said once")
	require.NoError(t, n.send())
	want := []string{"GPU-0 7.0 prolog 40000"}
	require.Equal(t, want, n.held())

	require.NoError(t, os.Remove(filler))
	n.epilog(7).rounds(1)
	require.Equal(t, 1, n.log.count("the spool can be written again"))
	n.kill()
	n.start().rounds(1)
	require.NoError(t, n.send())
	require.Equal(t, want, n.held(), "nothing twice")
}

// A spool whose state is damaged: what was closed is replayed, and nothing
// counts twice; what nobody can know is left to Slurm's own record.
func TestACorruptSpool(t *testing.T) {
	n := newNode(t).withDatabase().start().prolog(7, "0").prolog(8, "1").rounds(2)
	n.epilog(8).rounds(1)
	require.NoError(t, n.send())
	n.prolog(9, "1").rounds(1).epilog(9).rounds(1).kill()
	require.NoError(t, os.WriteFile(filepath.Join(n.spl, "state"), []byte("rubbish"), 0o600))
	n.start().prolog(10, "1").rounds(1)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 prolog 40000", "GPU-1 10.0 prolog 10000", "GPU-1 8.0 prolog 20000", "GPU-1 9.0 prolog 10000"}, n.held(),
		"of job 7 the 20 s are missing that were counted and not sent")
	require.Equal(t, 1, n.log.count("state of the spool is damaged"))
	require.Equal(t, 1, n.log.count("nobody knows up to when jobs were counted"))
	require.FileExists(t, filepath.Join(n.spl, "state.damaged"))
}

// Postgres refuses the role: a clear line, once; everything waits in the spool
// and comes when the role may.
func TestPostgresRefusesTheRole(t *testing.T) {
	n := newNode(t).withDatabase()
	owner, err := pgx.Connect(t.Context(), n.dsn)
	require.NoError(t, err)
	defer owner.Close(t.Context())
	_, err = owner.Exec(t.Context(), "CREATE ROLE stranger LOGIN")
	require.NoError(t, err)
	defer func() {
		_, err := owner.Exec(t.Context(), "DROP ROLE stranger")
		require.NoError(t, err)
	}()
	n.user = "stranger"
	n.start().prolog(7, "0").rounds(1).epilog(7).rounds(1)
	var w written
	for range 3 {
		n.writeOnce(t.Context(), &w)
	}
	require.Equal(t, 1, n.log.count("the database takes no report: what is counted waits in the spool"))
	require.Contains(t, n.log.String(), "permission denied for schema gpubudget: make the agent's role a member of gpubudget_agent: GRANT gpubudget_agent TO the role")
	require.Equal(t, 1, n.spool.Waiting())
	require.Empty(t, n.held())

	_, err = owner.Exec(t.Context(), "GRANT gpubudget_agent TO stranger")
	require.NoError(t, err)
	n.sendTo(&w)
	require.Equal(t, []string{"GPU-0 7.0 prolog 10000"}, n.held())
	require.Equal(t, 1, n.log.count("the database takes reports again"))
	require.Zero(t, n.spool.Waiting())
}

// An agent whose login is bound to another node waits, and says so, until it is put
// right.
func TestALoginOfAnotherNode(t *testing.T) {
	n := newNode(t).withDatabase()
	owner, err := pgx.Connect(t.Context(), n.dsn)
	require.NoError(t, err)
	defer owner.Close(t.Context())
	_, err = owner.Exec(t.Context(), "INSERT INTO gpubudget.agent_login (cluster, node, role) VALUES ('titan', 'n2', $1)", n.user)
	require.NoError(t, err)
	n.start().prolog(7, "0").rounds(1).epilog(7).rounds(1)
	var w written
	for range 3 {
		n.sendTo(&w)
	}
	require.Equal(t, 1, n.log.count("the database takes no report: what is counted waits in the spool"))
	require.Contains(t, n.log.String(), "may not tell of node n1 of cluster titan: The table gpubudget.agent_login has who may.")
	require.Equal(t, 1, n.spool.Waiting())
	require.Empty(t, rows(t, n.dsn, "SELECT node FROM gpubudget.agent"))

	_, err = owner.Exec(t.Context(), "UPDATE gpubudget.agent_login SET node = 'n1'")
	require.NoError(t, err)
	n.sendTo(&w)
	require.Equal(t, []string{"GPU-0 7.0 prolog 10000"}, n.held())
	require.NoFileExists(t, filepath.Join(n.spl, "rejected"))
}

// A bucket is closed between what the writer takes of those that are open and what it
// takes of the spool: it is in the report twice.
func TestABucketThatIsClosedWhileItIsSent(t *testing.T) {
	n := newNode(t).withDatabase().start().prolog(7, "0").prolog(8, "1").rounds(2)
	open := n.shared.report
	n.pass(4321 * time.Millisecond)
	n.epilog(7).rounds(1)
	n.shared.report = open
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 prolog 24321", "GPU-1 8.0 prolog 20000"}, n.held())
	require.Zero(t, n.spool.Waiting())
}

// sendTo writes with the clock of the database.
func (n *node) sendTo(w *written) {
	n.mu.Lock()
	was := n.wall
	n.wall = time.Now()
	n.mu.Unlock()
	n.writeOnce(n.t.Context(), w)
	n.mu.Lock()
	n.wall = was
	n.mu.Unlock()
}

func TestADatabaseThatIsAway(t *testing.T) {
	n := newNode(t).withDatabase().start()
	n.connect = errAway
	var w written
	for job := 1; job <= 3; job++ {
		n.prolog(job, "0").rounds(2).epilog(job).rounds(1)
		n.sendTo(&w)
		if job == 2 {
			n.kill()
			n.start()
		}
	}
	require.Equal(t, 1, n.log.count("the database takes no report"))
	n.connect = nil
	n.sendTo(&w)
	n.sendTo(&w)
	require.Equal(t, []string{"GPU-0 1.0 prolog 20000", "GPU-0 2.0 prolog 20000", "GPU-0 3.0 prolog 20000"}, n.held())
	require.Equal(t, 1, n.log.count("the database takes reports again"))
}

// A connection that is kept is used again, and replaced if it has gone.
func TestAConnectionThatIsKept(t *testing.T) {
	n := newNode(t).withDatabase().start().prolog(7, "0").rounds(1)
	n.o.KeepConnection = true
	var w written
	defer w.close()
	n.sendTo(&w)
	first := w.db
	require.NotNil(t, first)
	n.rounds(1).sendTo(&w)
	require.Same(t, first, w.db)

	_ = rows(t, n.dsn, "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity WHERE usename = '"+n.user+"'")
	n.rounds(1).sendTo(&w)
	require.Equal(t, []string{"GPU-0 7.0 prolog 30000"}, n.held())
	require.NotSame(t, first, w.db)
	require.NotContains(t, n.log.String(), "the database takes no report")

	n.connect = errAway
	require.NoError(t, w.db.Close(t.Context()))
	n.rounds(1).sendTo(&w)
	require.Nil(t, w.db)
	require.Equal(t, 1, n.log.count("the database takes no report"))
	n.connect = nil
	n.sendTo(&w)
	require.Equal(t, []string{"GPU-0 7.0 prolog 40000"}, n.held())
}

func TestAClockThatIsFarOff(t *testing.T) {
	n := newNode(t).withDatabase().start().prolog(7, "0").rounds(1)
	var w written
	n.mu.Lock()
	n.wall = time.Now().Add(-10 * time.Minute)
	n.mu.Unlock()
	n.writeOnce(t.Context(), &w)
	require.Contains(t, n.log.String(), "s behind that of the database: Set the clock of the one that is wrong; 5 minutes are tolerated.")
	require.Empty(t, n.held())
	n.sendTo(&w)
	require.Equal(t, []string{"GPU-0 7.0 prolog 10000"}, n.held())
}

// One bucket that the database won't have holds up no others.
func TestABucketThatIsRefused(t *testing.T) {
	n := newNode(t).withDatabase().start().prolog(7, "0").prolog(8, "1").rounds(1).epilog(7).epilog(8).rounds(1)
	bad := aBucket(thisHour()+10*3600_000, 1000)
	require.NoError(t, n.save(append(n.tally.Closed(), bad)))
	n.prolog(9, "0").rounds(1)
	var w written
	n.sendTo(&w)
	require.Equal(t, []string{"GPU-0 7.0 prolog 10000", "GPU-0 9.0 prolog 10000", "GPU-1 8.0 prolog 10000"}, n.held())
	require.Equal(t, 1, n.log.count("the database refuses a bucket: it is kept in the file rejected of the spool"))
	text, err := os.ReadFile(filepath.Join(n.spl, "rejected"))
	require.NoError(t, err)
	require.Contains(t, string(text), "is not of the last 35 days")
	require.Zero(t, n.spool.Waiting())
}

// A driver that tells nonsense of a GPU does not keep the jobs from being
// counted.
func TestADeviceThatIsRefused(t *testing.T) {
	n := newNode(t).withDatabase()
	below := -1
	n.driver.gpus[1].Minor = &below
	n.start().prolog(7, "0").rounds(1).epilog(7).prolog(8, "0").rounds(1)
	var w written
	n.sendTo(&w)
	require.Equal(t, []string{"GPU-0 7.0 prolog 10000", "GPU-0 8.0 prolog 10000"}, n.held())
	require.Equal(t, 1, n.log.count("the database refuses what the driver says of the GPUs"))
	require.NoFileExists(t, filepath.Join(n.spl, "rejected"))
}

// A Prolog without SLURM_JOB_GPUS records nothing; the job's processes on a GPU
// are seen all the same, from the first to the last look.
func TestAPrologWithoutGPUs(t *testing.T) {
	n := newNode(t).withDatabase().start().rounds(1)
	var none *holding.NoGPUsError
	require.ErrorAs(t, n.hooks(jobEnv(7, "")).Prolog(), &none)
	n.process(4242, 7)
	mem := uint64(3 << 30)
	n.driver.gpus[0].Processes = []meter.Process{{PID: 4242, Memory: &mem}}
	n.rounds(4)
	n.driver.gpus[0].Processes = []meter.Process{}
	n.rounds(3)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 process 30000"}, n.held())
	require.Equal(t, 1, n.log.count("a job is on a GPU and Prolog did not tell of it"))
	require.Equal(t, []string{"true"}, rows(t, n.dsn, "SELECT ended::text FROM gpubudget.gpu_bucket"))
}

// A wrong order in gres.conf shows when the processes of a job are not where it
// holds a GPU.
func TestAWrongNumberIsSeen(t *testing.T) {
	n := newNode(t).withDatabase()
	n.gresConf("Name=gpu File=/dev/nvidia1\nName=gpu File=/dev/nvidia0\n")
	n.start().prolog(7, "0").rounds(1)
	n.process(4242, 7)
	n.driver.gpus[0].Processes = []meter.Process{{PID: 4242}}
	n.rounds(3)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-1 7.0 prolog 40000"}, n.held(), "Slurm's word holds")
	require.Equal(t, 1, n.log.count("a job has processes on a GPU that Prolog did not name: unless it has GPUs of several types, compare gres.conf"))
	require.Equal(t, []string{"0 30000"}, rows(t, n.dsn, "SELECT process_ms || ' ' || process_known_ms FROM gpubudget.gpu_bucket"))
}

func TestProcessesAndTheirMemory(t *testing.T) {
	n := newNode(t).withDatabase().start().prolog(7, "0").prolog(8, "0")
	n.process(1, 7)
	n.process(2, 7)
	n.process(3, 8)
	two, four := uint64(2<<30), uint64(4<<30)
	n.driver.gpus[0].Processes = []meter.Process{{PID: 1, Memory: &two}, {PID: 2, Memory: &four}, {PID: 3}, {PID: 99, Memory: &four}}
	n.rounds(2)
	require.NoError(t, n.send())
	require.Equal(t, []string{"7 20000 6144 10000 20000", "8 20000  10000 20000"}, rows(t, n.dsn,
		"SELECT format('%s %s %s %s %s', job_id, held_ms, memory_max_mib, part_ms, shared_ms) FROM gpubudget.gpu_bucket ORDER BY 1"))
}

// Where Slurm makes no control groups, processes on a GPU are those of the one
// job that holds it.
func TestWithoutControlGroups(t *testing.T) {
	n := newNode(t).withDatabase().start().rounds(1).prolog(7, "0").prolog(8, "1").prolog(9, "1").rounds(1)
	n.driver.gpus[0].Processes = []meter.Process{{PID: 1}}
	n.driver.gpus[1].Processes = []meter.Process{{PID: 2}}
	n.rounds(1)
	require.NoError(t, n.send())
	require.Equal(t, []string{"7 10000 20000", "8 0 10000", "9 0 10000"}, rows(t, n.dsn,
		"SELECT format('%s %s %s', job_id, process_ms, process_known_ms) FROM gpubudget.gpu_bucket ORDER BY 1"), "whose of two nobody knows")
}

func TestAJobThatGoesWithoutAnEpilog(t *testing.T) {
	n := newNode(t).withDatabase().start().prolog(7, "0").prolog(8, "1")
	n.process(1, 7)
	n.process(2, 8)
	n.rounds(3)
	n.endJob(7)
	n.rounds(60)
	require.Equal(t, 1, n.log.count("a job has gone without an Epilog"))
	require.Equal(t, []string{"8.0"}, n.files())
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 prolog 330000", "GPU-1 8.0 prolog 630000"}, n.held())

	n.kill()
	n.endJob(8)
	n.pass(time.Hour)
	n.start().rounds(1)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 prolog 330000", "GPU-1 8.0 prolog 630000"}, n.held(), "counted up to the last look")
	require.Empty(t, n.files())
}

// Epilog comes late, after the control group was removed: its time is the end.
func TestALateEpilog(t *testing.T) {
	n := newNode(t).withDatabase().start().prolog(7, "0")
	n.process(1, 7)
	n.rounds(3)
	n.endJob(7)
	n.rounds(6)
	n.pass(5 * time.Second)
	n.epilog(7).rounds(1)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 prolog 95000"}, n.held())
}

// A run whose Epilog was lost ends where the job's next run begins.
func TestARequeueWithoutAnEpilog(t *testing.T) {
	n := newNode(t).withDatabase().start().prolog(7, "0").rounds(1)
	n.pass(4 * time.Second)
	env := jobEnv(7, "0")
	env["SLURM_JOB_RESTART_COUNT"] = "1"
	require.NoError(t, n.hooks(env).Prolog())
	n.rounds(2)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 prolog 14000", "GPU-0 7.1 prolog 20000"}, n.held())
	require.Equal(t, []string{"7.1"}, n.files())
}

func TestDamagedFilesOfPrologArePutAside(t *testing.T) {
	n := newNode(t).withDatabase().start().prolog(7, "0")
	require.NoError(t, os.WriteFile(filepath.Join(n.dir, "jobs", "8.0"), []byte("{"), 0o600))
	n.rounds(2)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 prolog 20000"}, n.held())
	require.Equal(t, 1, n.log.count("a file of Prolog or Epilog is put aside"))
	require.Equal(t, []string{".damaged-8.0", "7.0"}, n.files())
}

// A driver that hangs ends the process; what was counted is on disk.
func TestAHangingDriver(t *testing.T) {
	n := newNode(t).withDatabase().start().prolog(7, "0").rounds(2)
	n.driver.err = &meter.HangError{Call: "nvmlDeviceGetPowerUsage", Waited: 30 * time.Second, Purpose: "read the GPUs"}
	n.pass(10 * time.Second)
	err := n.Round()
	var hang *meter.HangError
	require.ErrorAs(t, err, &hang)
	require.Equal(t, 1, n.log.count("nvmlDeviceGetPowerUsage has not returned"))
	n.kill()
	n.driver.err = nil
	n.start().rounds(1)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 prolog 40000"}, n.held())
}

// A driver that was exchanged takes a new process: one that has just begun waits a
// while, so that nobody starts one after the other.
func TestADriverThatWasExchanged(t *testing.T) {
	n := newNode(t).withDatabase().start().prolog(7, "0").rounds(2)
	n.driver.err = fmt.Errorf("read the GPUs: %w", meter.ErrOtherVersion)
	n.rounds(3) // it is not a minute old
	require.Equal(t, 1, n.log.count("GPUs are not measured, who holds them is counted all the same"))
	n.pass(10 * time.Second)
	require.ErrorIs(t, n.Round(), meter.ErrOtherVersion)
	require.Equal(t, 1, n.log.count("it ends, to be started anew"))
	n.kill()
	n.driver.err, n.driver.openErr = nil, meter.ErrOtherVersion // the library on disk is not the new one yet
	n.start().rounds(6)
	n.pass(10 * time.Second)
	require.ErrorIs(t, n.Round(), meter.ErrOtherVersion)
	n.kill()
	n.driver.openErr = nil
	n.start().rounds(1)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 prolog 140000"}, n.held())
}

func TestALostGPU(t *testing.T) {
	n := newNode(t).withDatabase().start().rounds(1).prolog(7, "0,1").rounds(1)
	n.driver.gpus[1].Err = errors.New("the GPU is lost")
	n.driver.gpus[1].Power = nil
	n.rounds(2)
	require.NoError(t, n.send())
	require.Equal(t, []string{"GPU-0 7.0 prolog 30000", "GPU-1 7.0 prolog 30000"}, n.held())
	require.Equal(t, []string{"30000", "10000"}, rows(t, n.dsn, "SELECT energy_known_ms::text FROM gpubudget.gpu_bucket ORDER BY gpu"))
}

func TestMappingFiles(t *testing.T) {
	n := newNode(t)
	dcgm := filepath.Join(n.dir, "dcgm")
	require.NoError(t, os.MkdirAll(dcgm, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dcgm, "5"), []byte("99\n"), 0o600)) // an agent that was killed left it
	require.NoError(t, os.WriteFile(filepath.Join(dcgm, "README"), nil, 0o600))
	n.start().prolog(12, "0").prolog(7, "0").prolog(8, "1").rounds(1)
	content := func() map[string]string {
		files := map[string]string{}
		entries, err := os.ReadDir(dcgm)
		require.NoError(t, err)
		for _, e := range entries {
			text, err := os.ReadFile(filepath.Join(dcgm, e.Name()))
			require.NoError(t, err)
			files[e.Name()] = string(text)
		}
		return files
	}
	require.Equal(t, map[string]string{"0": "7\n12\n", "1": "8\n", "README": ""}, content())
	n.epilog(7).epilog(8).rounds(1)
	require.Equal(t, map[string]string{"0": "12\n", "README": ""}, content())
}

func TestASpoolOfAnotherNode(t *testing.T) {
	n := newNode(t).start().prolog(7, "0").rounds(1)
	n.kill()
	o := n.options()
	o.Node = "n2"
	a, err := New(o)
	require.NoError(t, err)
	defer a.spool.Close()
	require.Equal(t, 1, n.log.count("the spool is of another node or cluster"))
}

func TestOneAgentAtATime(t *testing.T) {
	n := newNode(t).start()
	_, err := New(n.options())
	var locked *spool.LockedError
	require.ErrorAs(t, err, &locked)
}

// What is on disk after a round is all that a later agent needs.
func TestTheStateIsReadable(t *testing.T) {
	n := newNode(t).start().prolog(7, "0,1").rounds(2)
	text, err := os.ReadFile(filepath.Join(n.spl, "state"))
	require.NoError(t, err)
	var state spool.State
	require.NoError(t, json.Unmarshal(text[9:], &state))
	require.Len(t, state.Open, 2)
	require.Len(t, state.Marks, 2)
	require.Less(t, len(text), 4096)
}

// What hooks that were killed have left half written goes when an agent starts, and
// while it runs; what a hook may be writing just now stays.
func TestWhatKilledHooksLeftIsRemoved(t *testing.T) {
	n := newNode(t)
	leave := func(name string, age time.Duration) {
		t.Helper()
		path := filepath.Join(n.dir, "jobs", ".tmp-"+name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(`{"version":1,`), 0o600))
		require.NoError(t, os.Chtimes(path, time.Time{}, n.Now().Add(-age)))
	}
	left := func() (names []string) {
		t.Helper()
		paths, err := filepath.Glob(filepath.Join(n.dir, "jobs", ".tmp-*"))
		require.NoError(t, err)
		for _, path := range paths {
			names = append(names, filepath.Base(path))
		}
		return names
	}
	leave("old", 11*time.Minute)
	leave("new", 9*time.Minute)
	n.prolog(7, "0").start()
	require.Equal(t, []string{".tmp-new"}, left())

	leave("later", 0)
	n.rounds(6 * 59)
	require.Equal(t, []string{".tmp-later", ".tmp-new"}, left(), "it is not looked for at each round")
	n.rounds(6)
	require.Empty(t, left())
	require.FileExists(t, filepath.Join(n.dir, "jobs", "7.0"))
}
