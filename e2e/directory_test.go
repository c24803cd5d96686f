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
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/internal/testcluster"
)

// nssModule is a user directory that does not answer slurmctld about the
// cluster's users as long as a file named hang lies beside it. It notes which
// thread of slurmctld asks; the answer itself comes from the next service.
const nssModule = `
#define _GNU_SOURCE
#include <errno.h>
#include <nss.h>
#include <pwd.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum nss_status _nss_gpubslow_getpwuid_r(uid_t uid, struct passwd *pw, char *buffer, size_t size, int *error)
{
	char thread[16] = "";
	FILE *log;

	(void)pw, (void)buffer, (void)size;
	*error = ENOENT;
	if (uid < 61000 || uid > 61999 || strcmp(program_invocation_short_name, "slurmctld"))
		return NSS_STATUS_NOTFOUND;
	pthread_getname_np(pthread_self(), thread, sizeof(thread));
	if ((log = fopen(FOLDER "/asked", "a"))) {
		fprintf(log, "%s %u\n", thread, uid);
		fclose(log);
	}
	while (!access(FOLDER "/hang", F_OK))
		usleep(20000);
	return NSS_STATUS_NOTFOUND;
}
`

// directory is a user directory that hangs when told to.
type directory struct {
	t   *testing.T
	dir string
}

func newDirectory(t *testing.T) *directory {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpub-nss-") //nolint:usetesting // of a folder of the test no other user may read
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o777))
	d := &directory{t, dir}
	d.write("module.c", nssModule)
	d.write("nsswitch.conf", "passwd: gpubslow files\ngroup: files\nhosts: files dns\n")
	out, err := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-DFOLDER=\""+dir+"\"",
		"-o", filepath.Join(dir, "libnss_gpubslow.so.2"), filepath.Join(dir, "module.c")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return d
}

func (d *directory) write(name, text string) {
	d.t.Helper()
	require.NoError(d.t, os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o644))
}

func (d *directory) hang() { d.write("hang", "") }

func (d *directory) answer() {
	d.t.Helper()
	require.NoError(d.t, os.Remove(filepath.Join(d.dir, "hang")))
}

// asked are the threads of slurmctld that asked, and the uids they asked for.
func (d *directory) asked() []string {
	d.t.Helper()
	text, err := os.ReadFile(filepath.Join(d.dir, "asked"))
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(d.t, err)
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// A user directory that hangs holds up nobody but the thread that asks it: jobs
// are submitted, ordered by their accounts and run. When it answers, who ran
// them is put right, and what they used counts where it belongs.
func TestAUserDirectoryThatHangsHoldsUpNobody(t *testing.T) {
	d := newDirectory(t)
	s := d.cluster()
	d.hang()
	require.NoError(t, s.RestartSlurmctld(s.ctx))
	require.NoError(t, s.WaitNodesIdle(s.ctx))
	log := s.logLength()

	s.swift(func() { s.submit(ann, s.a, 1, "--gpus=1", mail) })
	s.wait("the directory to be asked", func() bool { return len(d.asked()) > 0 })
	hog := s.submit(cem, "hog", 1000, "--gpus=8", mail)
	s.waitState(hog, "R")
	var ofA, ofB uint32
	s.swift(func() { ofA = s.submit(ann, s.a, 1, "--gpus=2", mail) })
	s.swift(func() { ofB = s.submit(bob, s.b, 1, "--gpus=3", mail) })
	s.swift(func() { s.exec("root", "scontrol", "ping") })
	s.swift(func() { s.exec("root", "sprio") })
	noAccount, err := s.Sbatch(s.ctx, bob, "--gpus=1", mail, "--wrap=sleep 1")
	require.NoError(t, err)
	require.Less(t, s.place(ofB), s.place(ofA), "b is owed more")
	s.exec("root", "scancel", number0(hog))
	s.waitGone(ofA, ofB, noAccount)
	require.Len(t, d.asked(), 1, "one is asked at a time")
	s.wait("the log to tell", func() bool { return len(s.logLines(log, "nobody has answered")) == 1 })
	s.wait("runs of uids", func() bool {
		users := s.runUsers()
		return slices.Contains(users, "plain_a/"+s.uid(ann)) && slices.Contains(users, "/"+s.uid(bob))
	})

	d.answer()
	s.wait("the names", func() bool {
		return !slices.ContainsFunc(s.runUsers(), func(user string) bool {
			return user != "hog/"+cem && user != "plain_a/"+ann && user != "plain_b/"+bob
		})
	})
	s.wait("the log to tell", func() bool { return len(s.logLines(log, "answered again")) == 1 })
	s.wait("what b used", func() bool {
		return int64(s.used(s.b)) == 1000*(3*s.elapsed(ofB)+s.elapsed(noAccount))
	})
	d.stopWhileItHangs(s)
	for _, line := range d.asked() {
		require.Equal(t, "gpub_names", strings.Fields(line)[0], "nobody else asks: %s", line)
	}
}

// mail spares slurmctld the question whom it is to write to.
const mail = "--mail-user=root@localhost"

// cluster starts a cluster without slurmdbd whose slurmctld asks d.
func (d *directory) cluster() *scenario {
	t := d.t
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	c, err := testcluster.Start(ctx, testcluster.Options{
		Users: []string{ann, bob, cem}, Priority: testcluster.Gpubudget,
		Accounts: []testcluster.Account{
			{Name: "hog", Share: "10%", Users: []string{cem}},
			{Name: "plain_a", Share: "10%", Users: []string{ann}},
			{Name: "plain_b", Share: "40%", Users: []string{bob}},
		},
		// With a Prolog, and otherwise for their groups, slurmctld itself asks for the
		// users of the jobs that it starts.
		NoAgents:     "where there is a Prolog, slurmctld itself asks the directory",
		SlurmConf:    []string{"MinJobAge=300", "LaunchParameters=disable_send_gids"},
		SlurmctldEnv: []string{"LD_LIBRARY_PATH=" + d.dir},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	require.NoError(t, c.LoadBudgets(ctx, nil))
	s := newScenario(t, c, "plain")
	s.exec("root", "mount", "--bind", filepath.Join(d.dir, "nsswitch.conf"), "/etc/nsswitch.conf")
	return s
}

// stopWhileItHangs shows that slurmctld ends while d is being asked.
func (d *directory) stopWhileItHangs(s *scenario) {
	t := d.t
	t.Helper()
	d.hang()
	before := len(d.asked())
	require.NoError(t, s.RestartSlurmctld(s.ctx))
	s.swift(func() { s.submit(ann, s.a, 1, "--gpus=1", mail) })
	s.wait("the directory to be asked", func() bool { return len(d.asked()) > before })
	began := time.Now()
	require.NoError(t, s.StopSlurmctld())
	require.Less(t, time.Since(began), 6*time.Second)
	d.answer()
	require.NoError(t, s.StartSlurmctld(s.ctx))
}

// swift does what must not wait for anything.
func (s *scenario) swift(do func()) {
	s.t.Helper()
	began := time.Now()
	do()
	require.Less(s.t, time.Since(began), 2*time.Second)
}

// place is where a job stands among those that pend.
func (s *scenario) place(id uint32) int {
	s.t.Helper()
	for i, other := range s.order() {
		if other == id {
			return i
		}
	}
	require.Fail(s.t, fmt.Sprintf("job %d does not pend", id))
	return 0
}

func (s *scenario) uid(user string) string {
	s.t.Helper()
	uid, err := s.UID(user)
	require.NoError(s.t, err)
	return strconv.FormatUint(uint64(uid), 10)
}

// runUsers is whose the recorded runs are, as account/user.
func (s *scenario) runUsers() []string {
	s.t.Helper()
	conn, err := pgx.Connect(s.ctx, s.DSN())
	require.NoError(s.t, err)
	defer conn.Close(s.ctx)
	rows, err := conn.Query(s.ctx, `SELECT account || '/' || user_name FROM gpubudget.job_run`)
	require.NoError(s.t, err)
	users, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(s.t, err)
	return users
}
