// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/internal/testcluster"
	"gpubudget/migrations"
)

var badSlow = flag.Bool("badinput.slow", false, "meet more bad input: 50,000 associations, extreme weights beside priority/multifactor, larger jumps of the clock")

const (
	stray = "gpub_stray" // is in no account, neither of Slurm nor of the ledger

	// badTimeout bounds all cases together, caseTimeout each.
	badTimeout  = 5 * time.Minute
	caseTimeout = 40 * time.Second
	saidWithin  = 12 * time.Second
	// nowhere is what sprio shows as the fair share of jobs of whom the ledger
	// knows nothing, if no job has another nice than 0: they have the lowest of
	// places, from priority 1 on, and there one step of nice is below theirs.
	nowhere = 1 + 1_000_000
)

// clockModule has slurmctld's C code tell the time by a clock of its own, which
// is ahead of the machine's by the seconds that a file holds. (Go's runtime asks
// the kernel itself: the Go library goes on by the machine's clock.)
const clockModule = `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void begin(void)
{
	int fd = open(FOLDER "/offset", O_RDONLY | O_CLOEXEC);
	void *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*offset), PROT_READ, MAP_SHARED, fd, 0);

	if (map != MAP_FAILED)
		offset = map;
}

static int64_t ahead(void) { return offset ? *offset : 0; }

int clock_gettime(clockid_t clock, struct timespec *t)
{
	int rc = syscall(SYS_clock_gettime, clock, t);

	if (!rc && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		t->tv_sec += ahead();
	return rc;
}

time_t time(time_t *t)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	if (t)
		*t = now.tv_sec;
	return now.tv_sec;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
	struct timespec now;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &now);
	t->tv_sec = now.tv_sec;
	t->tv_usec = now.tv_nsec / 1000;
	return 0;
}

/* Whoever waits until a time of the day, and not since the machine's start,
 * reckons by the clock above. */
int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, const struct timespec *restrict until)
{
	static int (*wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
	struct timespec t = *until;

	if (!wait && !(wait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2")))
		wait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
	if (t.tv_sec > 1000000000)
		t.tv_sec -= ahead();
	return wait(cond, mutex, &t);
}
`

// ownClock is slurmctld's clock.
type ownClock struct{ dir string }

func newOwnClock(t *testing.T) *ownClock {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpub-clock-") //nolint:usetesting // slurmctld must reach it
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	source := filepath.Join(dir, "clock.c")
	require.NoError(t, os.WriteFile(source, []byte(clockModule), 0o644))
	c := &ownClock{dir}
	c.set(t, 0)
	out, err := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-DFOLDER=\""+dir+"\"",
		"-o", c.library(), source, "-ldl").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return c
}

func (c *ownClock) library() string { return filepath.Join(c.dir, "clock.so") }

// set has the clock go ahead of the machine's by d, which may be negative.
func (c *ownClock) set(t *testing.T, d time.Duration) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(c.dir, "offset"), os.O_CREATE|os.O_WRONLY, 0o644)
	require.NoError(t, err)
	// In place: slurmctld has it mapped.
	_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(int64(d.Seconds()))), 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// ill is a cluster to which bad things happen, one after the other. After each
// all must be right again.
type ill struct {
	*scenario
	clock *ownClock
	conf  []string       // gpubudget.conf
	slurm string         // slurm.conf
	told  map[string]int // how many lines with these texts the log is to have, in the end
}

// Whatever is wrong with what the plugin is given, a line of the log says so,
// once, every job has a defined priority, slurmctld goes on, and when the cause
// is gone all is right again.
func TestBadInput(t *testing.T) {
	b := newIll(t)
	for _, c := range []struct {
		name string
		do   func(*ill)
	}{
		{"account unknown to the ledger", (*ill).unknownAccount},
		{"user removed from the ledger", (*ill).removedUser},
		{"account deleted while its job pends", (*ill).deletedAccount},
		{"configuration at reconfigure", (*ill).confAtReconfigure},
		{"database that is not ours", (*ill).otherDatabase},
		{"schema of another release", (*ill).otherSchema},
		{"what is met at start", (*ill).atStart},
		{"weights", (*ill).weights},
		{"job without association", (*ill).noAssociation},
		{"deep tree", (*ill).deepTree},
		{"clock", (*ill).clockJumps},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer b.within(t)()
			began := time.Now()
			c.do(b)
			b.alive()
			t.Logf("took %v", time.Since(began).Round(100*time.Millisecond))
		})
	}
	b.requireTold()
}

func newIll(t *testing.T) *ill {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), badTimeout)
	t.Cleanup(cancel)
	clock := newOwnClock(t)
	dir, err := testcluster.MakeTempDir()
	require.NoError(t, err)
	accounts := []testcluster.Account{
		{Name: "hog", Share: "10%", Users: []string{cem}},
		{Name: "ill_a", Share: "30%", Users: []string{ann, cem}},
		{Name: "ill_b", Share: "30%", Users: []string{bob}},
		{Name: "doomed", Share: "5%", Users: []string{bob}},
		{Name: "ill_c", Share: "0%", Users: []string{ann}},
	}
	c, err := testcluster.Start(ctx, testcluster.Options{
		Dir: dir, Nodes: 2, Users: []string{ann, bob, cem, stray}, Accounts: accounts, Slurmdbd: true, Priority: testcluster.Gpubudget,
		SlurmConf: []string{
			"PartitionName=quick Nodes=n2 State=UP", "MinJobAge=300",
			// slurmd tells the time by the machine's clock: don't let that matter.
			"SlurmdTimeout=0",
			"AuthInfo=socket=" + dir + "/munge/socket,cred_expire=1000000",
		},
		SlurmctldEnv: []string{"LD_PRELOAD=" + clock.library()},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			c.KeepFiles()
			t.Logf("the cluster's files stay in %s", c.Dir())
		}
		require.NoError(t, c.Stop())
	})
	b := &ill{
		scenario: &scenario{Cluster: c, t: t, ctx: ctx, a: "ill_a", b: "ill_b"}, clock: clock, told: map[string]int{},
		conf: []string{"Cluster=" + c.Name(), "DSN=" + c.DSN(), "RefreshInterval=1", "CalcInterval=1"},
	}
	text, err := os.ReadFile(c.SlurmConf())
	require.NoError(t, err)
	b.slurm = string(text)
	for _, a := range accounts {
		b.gpubudget("-M", c.Name(), "account", "add", a.Name, "--share", a.Share, "--from", longAgo)
		b.gpubudget("user", "add", strings.Join(a.Users, ","), a.Name, "--from", longAgo)
	}
	b.blockNode()
	return b
}

// longAgo is before anything that happens here, whatever the clock says.
const longAgo = "now-30days"

// within has failures reported for a case.
func (b *ill) within(t *testing.T) (done func()) {
	t.Helper()
	whole, ctx := b.t, b.ctx
	var cancel context.CancelFunc
	b.t = t
	b.ctx, cancel = context.WithTimeout(ctx, caseTimeout)
	return func() {
		cancel()
		b.t, b.ctx = whole, ctx
		require.NoError(t, b.CancelPending(ctx))
	}
}

// blockNode keeps jobs that want all of node n1 waiting, without any other being
// kept from node n2.
func (b *ill) blockNode() {
	b.t.Helper()
	b.waitState(b.submit(cem, "hog", 10_000, "--nodelist=n1", "--gpus=1"), "R")
}

// pend submits a job that can't start.
func (b *ill) pend(user, account string, args ...string) uint32 {
	b.t.Helper()
	return b.submit(user, account, 1, append([]string{"--nodelist=n1", "--nodes=1", "--gpus=8"}, args...)...)
}

// alive shows that slurmctld goes on to run jobs.
func (b *ill) alive() {
	b.t.Helper()
	id := b.submit(bob, b.b, 0, "--partition=quick", "--gpus=1", "--time=1")
	b.wait("a job to run", func() bool {
		out := b.exec("root", "scontrol", "--oneliner", "show", "job", number0(id))
		return strings.Contains(out, "JobState=COMPLETED")
	})
}

// says waits until the log has one more line with a text than before, and
// returns it.
func (b *ill) says(text string) string {
	b.t.Helper()
	b.told[text]++
	var lines []string
	ctx, cancel := context.WithTimeout(b.ctx, saidWithin)
	defer cancel()
	require.NoError(b.t, b.Wait(ctx, fmt.Sprintf("the log to say %q", text), func() (bool, error) {
		lines = b.logLines(0, text)
		return len(lines) >= b.told[text], nil
	}))
	return lines[len(lines)-1]
}

// requireTold checks that each thing was said as often as it happened, and
// nothing went wrong that was not meant to.
func (b *ill) requireTold() {
	b.t.Helper()
	for text, n := range b.told {
		require.Len(b.t, b.logLines(0, text), n, "lines with %q", text)
	}
	for _, line := range slices.Concat(b.logLines(0, "error: gpubudget:"), b.logLines(0, "panic")) {
		require.True(b.t, slices.ContainsFunc(b.meant(), func(text string) bool { return strings.Contains(line, text) }), "%s", line)
	}
}

func (b *ill) meant() (texts []string) {
	for text := range b.told {
		texts = append(texts, text)
	}
	return texts
}

// configure writes gpubudget.conf, with lines in place of those of the same key,
// and has it read.
func (b *ill) configure(lines ...string) {
	b.t.Helper()
	b.writeConf(withLines(strings.Join(b.conf, "\n")+"\n", lines))
	b.exec("root", "scontrol", "reconfigure")
}

func (b *ill) writeConf(lines ...string) {
	b.t.Helper()
	require.NoError(b.t, os.WriteFile(b.Conf(), []byte(strings.Join(lines, "\n")+"\n"), 0o644))
}

// restart restarts slurmctld, with lines of slurm.conf in place of others.
func (b *ill) restart(lines ...string) {
	b.t.Helper()
	require.NoError(b.t, b.StopSlurmctld())
	b.slurmConf(lines...)
	require.NoError(b.t, b.StartSlurmctld(b.ctx))
}

// slurmConf writes slurm.conf, with lines in place of those of the same key.
func (b *ill) slurmConf(lines ...string) {
	b.t.Helper()
	require.NoError(b.t, os.WriteFile(b.SlurmConf(), []byte(withLines(b.slurm, lines)), 0o644))
}

// priority is a job's in squeue.
func (b *ill) priority(id uint32) int64 {
	b.t.Helper()
	return number(b.t, b.priorities(id)[0])
}

// fairshare is what a job's place contributes to its priority; -1 if sprio
// doesn't list it.
func (b *ill) fairshare(id uint32) int64 {
	b.t.Helper()
	for _, row := range b.rows("sprio", "--noheader", "--format=%i|%F") {
		if row[0] == number0(id) {
			return number(b.t, row[1])
		}
	}
	return -1
}

func (b *ill) waitFairshare(id uint32, what string, ok func(int64) bool) {
	b.t.Helper()
	var last int64
	err := b.Wait(b.ctx, what, func() (bool, error) { last = b.fairshare(id); return ok(last), nil })
	require.NoError(b.t, err, "job %d has %d", id, last)
}

func (b *ill) cancel(ids ...uint32) {
	b.t.Helper()
	for _, id := range ids {
		b.exec("root", "scancel", number0(id))
	}
	b.waitGone(ids...)
}

func (b *ill) sacctmgr(args ...string) {
	b.t.Helper()
	b.exec("root", "sacctmgr", append([]string{"--immediate"}, args...)...)
}

func (b *ill) gpubudget(args ...string) string {
	b.t.Helper()
	return b.exec("root", "gpubudget", append([]string{"-i"}, args...)...)
}

// sql runs a statement in a database of the cluster's server.
func (b *ill) sql(dsn, statement string) {
	b.t.Helper()
	conn, err := pgx.Connect(b.ctx, dsn)
	require.NoError(b.t, err)
	_, err = conn.Exec(b.ctx, statement)
	require.NoError(b.t, err)
	require.NoError(b.t, conn.Close(b.ctx))
}

// An account that Slurm has and the ledger doesn't, or has closed: its jobs have
// the lowest of all places, until it is opened.
func (b *ill) unknownAccount() {
	const line = "account late has jobs but is not open in the ledger"
	b.sacctmgr("add", "account", "late", "parent=root")
	b.sacctmgr("add", "user", ann, "account=late")
	var late uint32
	b.wait("the account", func() bool {
		var err error
		late, err = b.Sbatch(b.ctx, ann, "--account=late", "--nodelist=n1", "--nodes=1", "--gpus=8", "--wrap=true")
		return err == nil
	})
	known := b.pend(ann, b.a)
	b.says(line)
	b.requireNowhere(late)
	b.waitOrder(known, late)

	b.gpubudget("account", "add", "late", "--share", "5%")
	b.waitFairshare(late, "a place", func(f int64) bool { return f > nowhere })
	b.gpubudget("account", "close", "late")
	b.says(line)
	b.waitOrder(known, late)
	b.requireNowhere(late)
	b.cancel(late, known)
	b.sacctmgr("delete", "account", "late")
}

// A user who is taken out of his account while his job pends comes after its
// members, and before all of worse-placed accounts.
func (b *ill) removedUser() {
	of, member := b.pend(ann, b.a), b.pend(cem, b.a)
	other := b.pend(ann, "ill_c") // no share
	b.gpubudget("user", "remove", ann, b.a)
	b.says("user " + ann + " has jobs in account ill_a but is no member")
	const step = 1_000_000
	b.wait("one step of users between them, as cem is the only member", func() bool { return b.fairshare(member)-b.fairshare(of) == step })
	b.waitOrder(member, of, other)
	b.gpubudget("user", "add", ann, b.a)
	b.waitFairshare(of, "the same place", func(f int64) bool { return f == b.fairshare(member) })
	b.cancel(of, member, other)
}

// An account that is deleted in Slurm while its job pends: slurmctld takes the
// job's association away and starts it no more. By the ledger it keeps its
// place; by Slurm's shares it has none. When the account is back so is the job's
// association. (waits is of an account without a share.)
func (b *ill) deletedAccount() {
	waits := b.pend(ann, "ill_c")
	for _, shares := range []string{"ledger", "slurm"} {
		b.configure("Shares=" + shares)
		b.wait("shares by "+shares, func() bool { return (b.priority(waits) <= 100_000) == (shares == "slurm") })
		// Once slurmdbd knows of the job sacctmgr doesn't delete its account any
		// more: mostly that takes a moment.
		var id uint32
		b.wait("the account to be deleted", func() bool {
			id = b.pend(bob, "doomed", "--begin=now+1hour")
			_, err := b.Exec(b.ctx, "root", "sacctmgr", "--immediate", "delete", "account", "doomed")
			if err != nil {
				b.cancel(id)
			}
			return err == nil
		})
		b.says("user:" + bob + ", held 1 jobs")
		b.wait("the reason", func() bool { return b.reason(id) == "InvalidAccount" })
		if shares == "slurm" {
			b.says("1 pending jobs have no association, such as JobId=" + number0(id))
			b.wait("the least priority", func() bool { return b.priority(id) == 1 })
		} else {
			b.wait("the place of the account", func() bool { return b.priority(id) > b.priority(waits) })
		}
		b.sacctmgr("add", "account", "doomed", "parent=root")
		b.sacctmgr("add", "user", bob, "account=doomed")
		b.wait("the association", func() bool { return b.reason(id) != "InvalidAccount" })
		b.wait("the place of the account", func() bool { return b.priority(id) >= b.priority(waits) })
		b.cancel(id)
	}
	b.cancel(waits)
	b.configure()
}

// reason is why a job pends.
func (b *ill) reason(id uint32) string {
	b.t.Helper()
	return b.rows("squeue", "--noheader", "--jobs="+number0(id), "--format=%r")[0][0]
}

// twoJobs submits one job of an account without a share and one of an account
// with, which comes first as long as the ledger is known, and returns them in
// this order.
func (b *ill) twoJobs() (second, first uint32) {
	b.t.Helper()
	second, first = b.pend(ann, "ill_c"), b.pend(bob, b.b)
	b.waitOrder(first, second)
	return second, first
}

// A gpubudget.conf that is gone, or says what it must not, changes nothing at a
// reconfigure: the log names the line.
func (b *ill) confAtReconfigure() {
	second, first := b.twoJobs()
	for _, c := range []struct{ lines, says string }{
		{"", b.Conf() + ": no such file or directory: the settings stay as they were"},
		{"Clutser=gpub", b.Conf() + `:1: unknown key "Clutser": did you mean Cluster?: the settings stay as they were`},
		{"Cluster=gpub\nwhatever\n", b.Conf() + ":2: "},
		{"RefreshInterval=soon", b.Conf() + ":1: RefreshInterval: "},
	} {
		b.writeConf(c.lines)
		if c.lines == "" {
			require.NoError(b.t, os.Remove(b.Conf()))
		}
		b.exec("root", "scontrol", "reconfigure")
		b.says(c.says)
		require.Equal(b.t, []uint32{first, second}, b.order())
	}
	b.configure()
	b.waitOrder(first, second)
	b.cancel(first, second)
}

// otherDSN is DSN with another database.
func (b *ill) otherDSN(name string) string {
	return strings.Replace(b.DSN(), "dbname=gpubudget", "dbname="+name, 1)
}

// A DSN that leads nowhere, or to a database that is not ours: scheduling goes
// on with the snapshot, and nothing is written there.
func (b *ill) otherDatabase() {
	second, first := b.twoJobs()
	b.sql(b.DSN(), "CREATE DATABASE bare")
	b.sql(b.DSN(), "CREATE DATABASE other")
	config, err := pgx.ParseConfig(b.otherDSN("other"))
	require.NoError(b.t, err)
	require.NoError(b.t, migrations.Up(b.ctx, config, nil))
	for _, c := range []struct{ dsn, says string }{
		{b.otherDSN("nosuch"), `database "nosuch" does not exist: create it with: createdb nosuch`},
		{"host=127.0.0.1 port=1 dbname=gpubudget user=postgres", "connection refused: check that the server runs"},
		{"nonsense", "neither key=value pairs nor a URL"},
		{b.otherDSN("bare"), "no gpubudget schema at"},
		{b.otherDSN("other"), `database "other" has no ledger of cluster gpub, but there was one`},
	} {
		b.configure("DSN=" + c.dsn)
		b.says(c.says)
		require.Equal(b.t, []uint32{first, second}, b.order())
		b.configure()
		b.says("Postgres is back")
	}
	b.sql(b.DSN(), "DROP DATABASE bare")
	b.sql(b.DSN(), "DROP DATABASE other")
	b.waitOrder(first, second)
	b.cancel(first, second)
}

// schemaBefore is the version before the newest; numbers may be left out.
func (b *ill) schemaBefore() (version int64) {
	b.t.Helper()
	conn, err := pgx.Connect(b.ctx, b.DSN())
	require.NoError(b.t, err)
	const before = `SELECT max(version_id) FROM gpubudget.schema_version WHERE version_id < $1`
	require.NoError(b.t, conn.QueryRow(b.ctx, before, migrations.Newest()).Scan(&version))
	require.NoError(b.t, conn.Close(b.ctx))
	return version
}

// A schema that is older or newer than the plugin, met while it runs and at a
// start: it goes on with the snapshot until one of them is brought up to date.
func (b *ill) otherSchema() {
	second, first := b.twoJobs()
	newest, before := migrations.Newest(), b.schemaBefore()
	for _, c := range []struct {
		spoil, mend, says string
		restart           bool
	}{
		{
			fmt.Sprintf("DELETE FROM gpubudget.schema_version WHERE version_id = %d", newest),
			fmt.Sprintf("INSERT INTO gpubudget.schema_version (version_id, is_applied) VALUES (%d, true)", newest),
			fmt.Sprintf("is version %d and this program needs %d: run: gpubudget db migrate", before, newest), true,
		},
		{
			fmt.Sprintf("INSERT INTO gpubudget.schema_version (version_id, is_applied) VALUES (%d, true)", newest+1),
			fmt.Sprintf("DELETE FROM gpubudget.schema_version WHERE version_id = %d", newest+1),
			"this plugin is too old for the database, install both of its libraries anew and restart slurmctld", false,
		},
	} {
		b.sql(b.DSN(), c.spoil)
		b.says(c.says)
		require.Equal(b.t, []uint32{first, second}, b.order())
		if c.restart {
			b.restart()
			b.says(c.says)
			b.waitOrder(first, second)
		}
		b.sql(b.DSN(), c.mend)
		b.says("Postgres is back")
	}
	b.cancel(first, second)
}

// With a gpubudget.conf that is gone or wrong slurmctld doesn't start, as with a
// slurm.conf that it can't read, and says why. With a Cluster that the ledger
// doesn't know nobody has a place of his own. And files in StateSaveLocation that
// are damaged are told of and not used.
func (b *ill) atStart() {
	second, first := b.twoJobs()
	require.NoError(b.t, b.StopSlurmctld())
	for _, c := range []struct{ lines, says string }{
		{"", "gpub_start: read configuration: open " + b.Conf() + ": no such file or directory"},
		{"Clutser=gpub", "gpub_start: " + b.Conf() + `:1: unknown key "Clutser": did you mean Cluster?`},
	} {
		b.writeConf(c.lines)
		if c.lines == "" {
			require.NoError(b.t, os.Remove(b.Conf()))
		}
		require.ErrorContains(b.t, b.StartSlurmctld(b.ctx), "slurmctld ended while starting")
		b.says(c.says)
		b.says("libgpubudget.so did not start (-1): see the lines above, and check " + b.Conf())
	}

	b.writeConf(withLines(strings.Join(b.conf, "\n")+"\n", []string{"Cluster=gbup"}))
	require.NoError(b.t, b.StartSlurmctld(b.ctx))
	b.says(`gpubudget_snapshot: it is of cluster "gpub": until Postgres is read, no account is funded`)
	b.says("there is no ledger of cluster gbup, only of gpub: no account is funded; check Cluster in " + b.Conf())
	b.requireNowhere(first, second)

	require.NoError(b.t, b.StopSlurmctld())
	require.NoError(b.t, b.StopPostgres())
	b.damage()
	b.writeConf(b.conf...)
	require.NoError(b.t, b.StartSlurmctld(b.ctx))
	b.says("gpubudget_snapshot: it is damaged: until Postgres is read, no account is funded")
	b.says("scheduling goes on without any snapshot: no account is funded")
	b.says("priority_last_decay_ran in StateSaveLocation holds a time that is yet to come, or none at all")
	b.requireNowhere(first, second)
	b.alive()
	require.NoError(b.t, b.StartPostgres(b.ctx))
	b.says("Postgres is back")
	b.waitOrder(first, second)
	b.cancel(first, second)
}

// damage damages the plugin's files in StateSaveLocation.
func (b *ill) damage() {
	b.t.Helper()
	state := filepath.Join(b.Dir(), "state")
	snapshot, err := os.OpenFile(filepath.Join(state, "gpubudget_snapshot"), os.O_RDWR, 0)
	require.NoError(b.t, err)
	_, err = snapshot.WriteAt([]byte("damage"), 100)
	require.NoError(b.t, err)
	require.NoError(b.t, snapshot.Close())
	// Times that are none: long after the world ends, and long before it began.
	times := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, math.MaxUint64/3), 1<<63+12345)
	require.NoError(b.t, os.WriteFile(filepath.Join(state, "priority_last_decay_ran"), times, 0o600))
}

// requireNowhere waits until jobs have the lowest of all places.
func (b *ill) requireNowhere(ids ...uint32) {
	b.t.Helper()
	for _, id := range ids {
		b.waitFairshare(id, "the lowest place", func(f int64) bool { return f == nowhere })
		require.Positive(b.t, b.priority(id))
	}
}

// Weights at both ends of their range: with all at 0 there is an order in strict
// mode, and the least priority of allocated jobs otherwise; with all at their most nothing wraps
// round, and by Slurm's shares all is as under priority/multifactor.
func (b *ill) weights() {
	second, first := b.twoJobs()
	nice := b.pend(bob, b.b, "--nice=10")
	bySlurm := map[string]string{}
	for _, c := range []struct {
		weight string
		sum    int64
	}{{"0", 1_000_001}, {"4294967295", math.MaxUint32}} {
		b.slurmConf(weightLines(c.weight)...)
		b.configure()
		b.waitOrder(first, nice, second)
		b.requireSum(0)
		b.gpubudget("policy", "set", "mode", "additive")
		for _, id := range []uint32{first, nice} {
			b.wait("the end of the range", func() bool { return b.priority(id) == c.sum })
		}
		b.requireSum(sprioColumns)
		b.gpubudget("policy", "set", "mode", "strict")
		b.configure("Shares=slurm", "FairTreeTies=slurm")
		bySlurm[c.weight] = b.settledPriorities()
	}

	if *badSlow {
		b.likeStock(bySlurm)
	}
	b.slurmConf()
	b.configure()
	b.waitOrder(first, nice, second)
	b.cancel(first, nice, second)
}

// likeStock shows that priorities by Slurm's shares, by the weight of all, are
// those of priority/multifactor.
func (b *ill) likeStock(bySlurm map[string]string) {
	b.t.Helper()
	stock := []string{"PriorityType=priority/multifactor", "PriorityParameters="}
	for weight, ours := range bySlurm {
		b.restart(append(stock, weightLines(weight)...)...)
		require.Equal(b.t, b.settledPriorities(), ours)
	}
	b.restart()
}

// weightLines are lines of slurm.conf that give all weights the same value.
func weightLines(value string) (lines []string) {
	for _, kind := range []string{"Age", "Assoc", "Fairshare", "JobSize", "Partition", "QOS"} {
		lines = append(lines, "PriorityWeight"+kind+"="+value)
	}
	return append(lines, fmt.Sprintf("PriorityWeightTRES=cpu=%[1]s,gres/gpu=%[1]s", value))
}

// settledPriorities are those of squeue as soon as a recalculation has made
// them, and no age changes them.
func (b *ill) settledPriorities() string {
	b.t.Helper()
	time.Sleep(1500 * time.Millisecond) // a PriorityCalcPeriod, and then some
	return b.exec("root", "squeue", "--noheader", "--states=PENDING", "--sort=i", "--format=%i|%Q")
}

// A job without association, of a user who is in no account. Where Slurm wants
// associations it refuses it. Where it doesn't, the job has the lowest of places
// by the ledger, until the ledger knows the user, and by Slurm's shares no
// fair-share factor.
func (b *ill) noAssociation() {
	_, err := b.Sbatch(b.ctx, stray, "--wrap=true")
	require.ErrorContains(b.t, err, "Invalid account")

	const enforce = "AccountingStorageEnforce="
	b.restart(enforce)
	second, first := b.twoJobs()
	job := func(args ...string) uint32 {
		args = append([]string{"--nodelist=n1", "--nodes=1", "--gpus=8", "--wrap=true"}, args...)
		id, err := b.Sbatch(b.ctx, stray, args...)
		require.NoError(b.t, err)
		return id
	}
	without, foreign := job(), job("--account=ill_b")
	b.says("user " + stray + " has jobs that name no account, and is in none of the ledger")
	b.says("user " + stray + " has jobs in account ill_b but is no member")
	b.requireNowhere(without)
	b.waitOrder(first, foreign, second, without)
	b.gpubudget("user", "add", stray, "ill_b")
	b.waitFairshare(without, "a place", func(f int64) bool { return f > nowhere })
	b.gpubudget("user", "remove", stray, "ill_b")
	b.says("user " + stray + " has jobs in account ill_b but is no member")

	b.configure("Shares=slurm", "DSN=")
	b.says("2 pending jobs have no association, such as JobId=" + number0(without))
	for _, id := range []uint32{without, foreign} {
		b.wait("the least priority", func() bool { return b.priority(id) == 1 })
	}
	require.Greater(b.t, b.priority(first), int64(1))
	b.cancel(without, foreign, first, second)
	b.writeConf(b.conf...)
	b.restart()
}

// A clock that is set back, or ahead, and right again: a line says so, jobs keep
// their order and none has an age of aeons, new ones get a priority and run, and
// what is charged is what Slurm's own record says.
func (b *ill) clockJumps() {
	b.c = "ill_b"
	running := b.submit(bob, b.b, 10_000, "--partition=quick", "--gpus=2")
	b.waitState(running, "R")
	second, first := b.twoJobs()
	for _, c := range []struct {
		to           time.Duration
		says, shares string
		restart      bool
	}{
		{-time.Hour, "the clock was set back by 1h0m0s", "ledger", true},
		{0, "the clock was set ahead by 1h0m0s", "slurm", false},
		{24 * time.Hour, "the clock was set ahead by 24h0m0s", "ledger", false},
		{-24 * time.Hour, "the clock was set back by 48h0m0s", "slurm", false},
		{0, "the clock was set ahead by 24h0m0s", "slurm", true},
	} {
		if c.to.Abs() > time.Hour && !*badSlow {
			break
		}
		b.configure("Shares=" + c.shares)
		b.clock.set(b.t, c.to)
		b.says(c.says)
		b.wait("the shares", func() bool { return (b.priority(first) < 10_000_000) == (c.shares == "slurm") })
		if c.shares == "ledger" {
			b.waitOrder(first, second)
		}
		require.Positive(b.t, b.priority(second))
		if c.to >= 0 { // sprio doesn't show jobs that were submitted in the future
			b.requireSum(sprioColumns)
			of := map[string]float64{"ledger": 1e6, "slurm": 1e3}[c.shares]
			require.InDelta(b.t, of*c.to.Seconds()/week.Seconds(), b.age(first), aged)
		}
		if c.restart {
			// slurmctld's own scheduler starts nothing before its old time has come
			// again, or it is restarted.
			b.restart()
			b.alive()
		}
		if c.to >= 0 && !c.restart {
			b.alive()
		}
	}
	b.says("priority_last_decay_ran in StateSaveLocation holds a time that is yet to come, or none at all")
	b.configure()
	b.waitOrder(first, second)
	usage := b.exec("root", "sshare", "--all", "--long", "--parsable2")
	require.NotRegexp(b.t, `(?i)nan|\|-[0-9]`, usage)
	b.cancel(running, first, second)
	b.agree()
}

// age is what a job's age contributes to its priority.
func (b *ill) age(id uint32) int64 {
	b.t.Helper()
	rows := b.rows("sprio", "--noheader", "--jobs="+number0(id), "--format=%i|%A")
	require.Len(b.t, rows, 1)
	return number(b.t, rows[0][1])
}

// week is PriorityMaxAge: when an age has reached it, it adds a million to a
// strict priority, and in Slurm's sum its weight.
const week = 7 * 24 * time.Hour

// aged is more than what the time that a test takes adds to a priority.
const aged = 500

// depth is how many accounts stand one under the other in the deep tree.
const depth = 60

// deepName is the account of a level of the deep tree, from 1 on.
func deepName(level int) string { return fmt.Sprintf("deep%d", level) }

// A tree that is 60 accounts deep, in each of which a tenth of what the one above
// has is given on: at the bottom there is less than a millisecond a week. Jobs
// are ordered and all programs show it, by the ledger and by Slurm's shares.
func (b *ill) deepTree() {
	var dump, yaml strings.Builder
	dump.WriteString("Cluster - 'gpub':Fairshare=1\n")
	yaml.WriteString("cluster: gpub\n")
	account := func(level int, name, parent, user string) {
		fmt.Fprintf(&dump, "Parent - '%s'\nAccount - '%s':Description='x':Organization='x':Fairshare=1\n", parent, name)
		if user != "" {
			fmt.Fprintf(&dump, "Parent - '%s'\nUser - '%s':Fairshare=1\n", name, user)
		}
		indent := strings.Repeat("    ", level)
		fmt.Fprintf(&yaml, "%s%s:\n%s  share: 10%%\n", indent[2:], name, indent[2:])
		if user != "" {
			fmt.Fprintf(&yaml, "%s  users: [%s]\n", indent[2:], user)
		}
	}
	parent := "root"
	for level := 1; level <= depth; level++ {
		fmt.Fprintf(&yaml, "%saccounts:\n", strings.Repeat("    ", level-1))
		user := map[int]string{depth / 2: cem, depth: ann}[level]
		if level == depth {
			account(level, "deepest", parent, bob)
		}
		account(level, deepName(level), parent, user)
		parent = deepName(level)
	}
	dir := filepath.Join(b.Dir(), "etc")
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, "deep.dump"), []byte(dump.String()), 0o600))
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, "deep.yaml"), []byte(yaml.String()), 0o600))
	b.sacctmgr("load", "file="+filepath.Join(dir, "deep.dump"))
	b.gpubudget("apply", "-f", filepath.Join(dir, "deep.yaml"), "--from", longAgo)

	var used uint32
	b.wait("the accounts", func() bool {
		var err error
		used, err = b.Sbatch(b.ctx, ann, "--account="+deepName(depth), "--partition=quick", "--gpus=1", "--wrap=sleep 1")
		return err == nil
	})
	b.waitGone(used)
	last, middle, sister := b.pend(ann, deepName(depth)), b.pend(cem, deepName(depth/2)), b.pend(bob, "deepest")
	for _, shares := range []string{"ledger", "slurm"} {
		b.configure("Shares=" + shares)
		b.wait("shares by "+shares, func() bool { return (b.priority(last) <= 100_000) == (shares == "slurm") })
		b.waitOrder(middle, sister, last)
		b.requireSum(sprioColumns)
		for _, row := range b.rows("sshare", "--all", "--parsable2", "--noheader", "--format=Account,User,FairShare,LevelFS,NormShares") {
			if row[1] == "" || !strings.HasPrefix(row[0], "deep") {
				continue
			}
			factor, err := strconv.ParseFloat(row[2], 64)
			require.NoError(b.t, err, "%v", row)
			require.True(b.t, factor > 0 && factor <= 1, "%v", row)
		}
	}
	b.configure()
	for _, args := range [][]string{
		{"gshare", "--all"}, {"gpubudget", "tree"}, {"gpubudget", "explain", deepName(depth)}, {"gpubudget", "explain", number0(last)},
	} {
		shown := b.exec("root", args[0], args[1:]...)
		for _, level := range []int{1, depth / 2, depth} {
			require.Contains(b.t, shown, deepName(level), "%v", args)
		}
	}
	b.cancel(last, middle, sister)
}

// 50,000 associations, in 500 accounts, all of them known to the ledger as well:
// passes go on, and give every job a priority, whatever shares they go by. How
// long they take is logged.
func TestManyAssociations(t *testing.T) {
	if !*badSlow {
		t.Skip("takes minutes: -args -badinput.slow")
	}
	const accounts, users = 500, 100
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	names := make([]string, users)
	for i := range names {
		names[i] = fmt.Sprintf("gpub_m%d", i)
	}
	c, err := testcluster.Start(ctx, testcluster.Options{
		Users: names, Slurmdbd: true, Priority: testcluster.Gpubudget,
		SlurmConf: []string{"SlurmctldDebug=debug", "MessageTimeout=60"}, Conf: map[string]string{"CalcInterval": "5"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	s := &scenario{Cluster: c, t: t, ctx: ctx}
	require.NoError(t, c.StopSlurmctld())
	plantMany(s, accounts, users)
	began := time.Now()
	require.NoError(t, c.StartSlurmctld(ctx))
	t.Logf("slurmctld answers after %v", time.Since(began).Round(time.Millisecond))
	require.NoError(t, c.WaitNodesIdle(ctx))
	for i, name := range names {
		s.submit(name, fmt.Sprintf("m%d", i), 1, "--gpus=8", "--begin=now", "--exclusive")
	}
	for _, shares := range []string{"ledger", "slurm"} {
		conf := fmt.Sprintf("Cluster=%s\nDSN=%s\nRefreshInterval=1\nCalcInterval=2\nShares=%s\n", c.Name(), c.DSN(), shares)
		require.NoError(t, os.WriteFile(c.Conf(), []byte(conf), 0o644))
		s.exec("root", "scontrol", "reconfigure")
		from := s.logLength()
		s.wait("three passes", func() bool { return len(s.logLines(from, "gpubudget: pass of ")) >= 3 })
		t.Logf("Shares=%s:\n%s", shares, strings.Join(s.logLines(from, "gpubudget: pass of "), "\n"))
		for _, row := range s.rows("squeue", "--noheader", "--states=PENDING", "--format=%Q") {
			require.Positive(t, number(t, row[0]))
		}
		// sshare itself takes minutes for all of them.
		rows := s.rows("sshare", "--all", "--accounts=m7", "--parsable2", "--noheader", "--format=Account,User,FairShare")
		require.Len(t, rows, users+1)
	}
	began = time.Now()
	require.Contains(t, s.exec("root", "gpubudget", "explain", "m7/"+names[7]), "m7")
	t.Logf("gpubudget explain takes %v", time.Since(began).Round(time.Millisecond))
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.SlurmctldPID()))
	require.NoError(t, err)
	t.Log(regexp.MustCompile(`VmRSS.*`).FindString(string(status)))
}

// plantMany puts associations straight into slurmdbd's tables, which sacctmgr
// would take hours to do, and memberships into the ledger.
func plantMany(s *scenario, accounts, users int) {
	s.t.Helper()
	file := filepath.Join(s.Dir(), "etc", "many.sql")
	each := 2*users + 2
	sql := fmt.Sprintf(`SELECT rgt INTO @b FROM gpub_assoc_table WHERE acct = 'root' AND user = '';
INSERT INTO acct_table (creation_time, name, description, organization) SELECT 1, CONCAT('m', seq), 'x', 'x' FROM seq_0_to_%[1]d;
INSERT INTO user_table (creation_time, name) SELECT 1, CONCAT('gpub_m', seq) FROM seq_0_to_%[2]d;
INSERT INTO gpub_assoc_table (creation_time, mod_time, acct, parent_acct, lft, rgt)
	SELECT 1, 1, CONCAT('m', seq), 'root', @b + seq * %[3]d, @b + seq * %[3]d + %[3]d - 1 FROM seq_0_to_%[1]d;
INSERT INTO gpub_assoc_table (creation_time, mod_time, user, acct, is_def, lft, rgt)
	SELECT 1, 1, CONCAT('gpub_m', u.seq), CONCAT('m', a.seq), a.seq = u.seq, @b + a.seq * %[3]d + 1 + 2 * u.seq, @b + a.seq * %[3]d + 2 + 2 * u.seq
	FROM seq_0_to_%[1]d a, seq_0_to_%[2]d u;
UPDATE gpub_assoc_table SET rgt = @b + %[4]d WHERE acct = 'root' AND user = '';
`, accounts-1, users-1, each, each*accounts)
	require.NoError(s.t, os.WriteFile(file, []byte(sql), 0o600))
	began := time.Now()
	s.exec("root", "mariadb", "--no-defaults", "--socket="+filepath.Join(s.Dir(), "mariadb", "socket"), "--user=root", "slurm_acct", "--execute=source "+file)
	s.t.Logf("slurmdbd's tables took %v", time.Since(began).Round(time.Millisecond))

	members := make([]string, users)
	for i := range members {
		members[i] = fmt.Sprintf("gpub_m%d", i)
	}
	var tree strings.Builder
	tree.WriteString("cluster: gpub\naccounts:\n")
	for i := range accounts {
		fmt.Fprintf(&tree, "  m%d:\n    share: 0.2%%\n    users: [%s]\n", i, strings.Join(members, ", "))
	}
	file = filepath.Join(s.Dir(), "etc", "many.yaml")
	require.NoError(s.t, os.WriteFile(file, []byte(tree.String()), 0o600))
	began = time.Now()
	s.exec("root", "gpubudget", "-i", "apply", "-f", file)
	s.t.Logf("the ledger took %v", time.Since(began).Round(time.Millisecond))
}
