// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/internal/testcluster"
)

// explained checks that gpubudget explains a queue by what sprio and sshare show, to
// the digit, and that what it works out by itself leads to the same. There is no
// ledger. Each time it takes other jobs, and another account and user.
func (s *comparison) explained(set setting) {
	s.t.Helper()
	waiting := s.waiting()
	// With CALCULATE_RUNNING sprio lists the job that runs, too.
	rows := slices.DeleteFunc(s.rows("sprio", "--noheader", "--format=%i|%r|%Y|%S|%A|%B|%F|%J|%P|%Q|%N|%T"), func(row []string) bool {
		return waiting[row[0]].tasks == 0
	})
	shares := s.shownShares(set)
	s.looked++
	for n := range 2 {
		id := rows[(s.looked*7+n*5)%len(rows)][0]
		records := s.explain(id)
		s.requirePath(set, shares, records["path"])
		s.requireFactors(rows, waiting, id, records)
	}
	user := s.users[s.looked%len(s.users)]
	account := s.members[user][0]
	s.requirePath(set, shares, s.explain(account)["path"])
	s.requirePath(set, shares, s.explain(account + "/" + user)["path"])
	// Nothing has changed since the last pass, so of all associations that must
	// follow which slurmctld shows.
	require.NotContains(s.t, s.exec("root", "gpubudget", "explain", account), "have changed", "%s with %q", s.plugin, set.name)
}

// waiting is the jobs that pend, by id.
func (s *comparison) waiting() map[string]waitingJob {
	s.t.Helper()
	jobs := map[string]waitingJob{}
	for _, row := range s.rows("squeue", "--array", "--noheader", "--states=PENDING", "--Format=JobID:0|,Account:0") {
		job := jobs[row[0]]
		job.account = row[1]
		job.tasks++
		jobs[row[0]] = job
	}
	return jobs
}

// explain is what gpubudget explains, by kind.
func (s *comparison) explain(what string) map[string][][]string {
	s.t.Helper()
	args := []string{"GPUBUDGET_CONF=" + s.Conf(), "gpubudget", "explain", what, "-nP"}
	if s.looked%2 == 0 { // as on a login node, which needn't have a gpubudget.conf
		args = []string{"--unset=GPUBUDGET_CONF", "gpubudget", "explain", what, "--shares=slurm", "-nP"}
	}
	records := map[string][][]string{}
	for line := range strings.Lines(s.exec("root", "env", args...)) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "|")
		records[fields[0]] = append(records[fields[0]], fields[1:])
	}
	return records
}

// shownShares is what sshare shows of associations, by account and user: shares
// and usage, level fair share, factor.
func (s *comparison) shownShares(set setting) map[string][]string {
	s.t.Helper()
	shown := map[string][]string{}
	for _, row := range s.rows("sshare", "--all", "--noheader", "--parsable2", "--partition",
		"--format=Account,User,Partition,RawShares,NormShares,RawUsage,NormUsage,EffectvUsage,LevelFS,FairShare") {
		user := row[1]
		if row[2] != "" {
			user += " (" + row[2] + ")"
		}
		if set.classic() {
			row[8] = ""
		}
		if row[0] = strings.TrimSpace(row[0]); row[0] == "root" && user == "" {
			row[9] = ""
		}
		shown[row[0]+"|"+user] = row[3:]
	}
	return shown
}

func (s *comparison) requirePath(set setting, shares map[string][]string, path [][]string) {
	s.t.Helper()
	require.GreaterOrEqual(s.t, len(path), 2)
	for _, f := range path {
		shown := slices.Concat(f[2:8], f[10:])
		require.Equal(s.t, shares[f[0]+"|"+f[1]], shown, "%s: %v with %q", s.plugin, f[:2], set.name)
	}
}

// requireFactors compares with sprio the columns of a job and who is ahead of it.
func (s *comparison) requireFactors(rows [][]string, waiting map[string]waitingJob, id string, records map[string][][]string) {
	s.t.Helper()
	var want [][]string
	first := map[string]bool{}
	for _, mine := range rows {
		if mine[0] != id {
			continue
		}
		row := slices.Clone(mine[1:])
		want = append(want, row)
		for _, theirs := range rows {
			gap := number(s.t, theirs[2]) - number(s.t, mine[2])
			if theirs[0] != id && theirs[1] == mine[1] && (gap > 0 || gap == 0 && number(s.t, theirs[0]) < number(s.t, id)) {
				first[theirs[0]] = true
			}
		}
	}
	require.Equal(s.t, want, records["factors"], "%s: job %s", s.plugin, id)
	sums, got := map[string]int64{}, map[string]int64{}
	for theirs := range first {
		sums[waiting[theirs].account] += waiting[theirs].tasks
	}
	for _, f := range records["ahead"] {
		got[f[0]] += number(s.t, f[1])
	}
	require.Equal(s.t, sums, got, "%s: ahead of job %s: %v", s.plugin, id, records["ahead"])
}

// slurmExplanation is what gpubudget explain --json says by Slurm's shares, as far as
// it is looked at.
type slurmExplanation struct {
	Behind  bool `json:"behind"`
	Changes []struct {
		Kind      string `json:"kind"`
		Rival     string `json:"rival_account"`
		RivalUser string `json:"rival_user"`
		Has       int    `json:"has_raw_shares"`
		Text      string `json:"text"`
	} `json:"changes"`
}

// changed does what an explanation says would change it: then it is so.
func (s *comparison) changed() {
	s.t.Helper()
	done := 0
	for _, user := range s.users {
		account := s.members[user][1]
		var e slurmExplanation
		require.NoError(s.t, json.Unmarshal([]byte(s.exec("root", "gpubudget", "explain", account+"/"+user, "--json")), &e))
		for _, c := range e.Changes {
			if c.Kind != "share" || done == 2 {
				continue
			}
			done++
			factor := func(account, user string) string {
				shown := s.shownShares(atRest)[account+"|"+user]
				require.NotEmpty(s.t, shown, "%s of %s", user, account)
				return shown[len(shown)-1]
			}
			require.Less(s.t, factor(account, user), factor(c.Rival, c.RivalUser))
			_, command, _ := strings.Cut(c.Text, ": ")
			s.exec("root", "sacctmgr", append([]string{"--immediate"}, strings.Fields(command)[1:]...)...)
			s.pass()
			require.GreaterOrEqual(s.t, factor(account, user), factor(c.Rival, c.RivalUser), c.Text)
			set := strings.Fields(command)
			set[len(set)-1] = fmt.Sprintf("fairshare=%d", c.Has)
			s.exec("root", "sacctmgr", append([]string{"--immediate"}, set[1:]...)...)
			s.pass()
		}
	}
	require.Positive(s.t, done, "nobody could pass anybody by a share")
}

// pass has our plugin work out everything anew.
func (s *comparison) pass() {
	s.t.Helper()
	mark := s.logLength()
	s.exec("root", "scontrol", "reconfigure")
	s.wait("a pass", func() bool { return len(s.logLines(mark, "gpubudget: pass of")) > 0 })
}

// migrate walks through docs/migrate.md, from Slurm's shares by way of the shadow to
// budgets, and back: wherever Slurm's shares are in force nothing has changed.
func (s *comparison) migrate() {
	s.t.Helper()
	began := time.Now()
	s.configure(setting{name: "at rest", lines: append([]string{"DebugFlags=Priority"}, atRest.lines...)})
	const bySlurm = "Shares=slurm\nFairTreeTies=slurm\nCalcInterval=1\n"
	plain := s.settle(atRest)
	byBudgets := func() bool {
		return slices.ContainsFunc(s.rows("sprio", "--noheader", "--format=%Y"), func(row []string) bool { return number(s.t, row[0]) > 10_000_000 })
	}
	same := func(step, conf string) {
		s.t.Helper()
		s.useConf(conf)
		// The file is read once a refresh is done that is under way.
		s.wait("Slurm's shares", func() bool { return !byBudgets() })
		now := s.settle(atRest)
		for _, view := range views {
			require.Equal(s.t, plain[view.name], now[view.name], "%s: %s", step, view.name)
		}
	}
	s.exec("root", "gpubudget", "--dsn", s.DSN(), "-Q", "import", "sacctmgr", "--new-cluster")
	database := "RefreshInterval=1\nDSN=" + s.DSN() + "\n"
	account := s.members[s.users[3]][0] // a job of it runs

	mark := s.logLength()
	same("shadow", bySlurm+database+"Shadow=yes\n")
	s.wait("the shadow", func() bool {
		return len(s.logLines(mark, "gpubudget: shadow: by the ledger account "+account+" has rank ")) > 0
	})
	require.Contains(s.t, s.logLines(mark, "shadow: by the ledger account "+account)[0], "; by Slurm's shares it has level fair share")
	said := s.exec("root", "gpubudget", "explain", account)
	require.Contains(s.t, said, "NormShares")
	require.Contains(s.t, said, "By the ledger, which is in the shadow (Shadow=yes): gpubudget explain "+account+" --shares ledger")
	require.Contains(s.t, s.exec("root", "gpubudget", "explain", account, "--shares", "ledger"), "EntitledH")

	mark = s.logLength()
	s.useConf("Shares=ledger\nCalcInterval=1\n" + database)
	s.wait("budgets", byBudgets)
	require.Contains(s.t, s.exec("root", "gpubudget", "explain", account), "EntitledH")
	require.NotEmpty(s.t, s.written(mark))
	same("back", bySlurm+database)
	require.Empty(s.t, s.written(s.logLength()), "nothing has changed")
	same("back without a database", bySlurm)
	s.start(testcluster.Multifactor, atRest)
	s.configure(atRest)
	same("back with priority/multifactor", bySlurm)
	s.t.Logf("to budgets and back: %v", time.Since(began).Round(100*time.Millisecond))
}

// written is of which jobs that pend in one partition the passes from a line of the
// log to the next two have written a priority, with DebugFlags=Priority. Of those in
// several slurmctld itself changes it.
func (s *comparison) written(mark int) (ids []string) {
	s.t.Helper()
	single := map[string]bool{}
	for _, row := range s.rows("squeue", "--noheader", "--states=PENDING", "--Format=JobID:0|,Partition:0") {
		single[row[0]] = !strings.Contains(row[1], ",")
	}
	from := len(s.logLines(mark, "gpubudget: pass of"))
	s.wait("two passes", func() bool { return len(s.logLines(mark, "gpubudget: pass of")) >= from+2 })
	for _, line := range s.logLines(mark, "PRIO: gpubudget: JobId=") {
		_, id, _ := strings.Cut(line, "JobId=")
		if id, _, _ = strings.Cut(id, " "); single[id] {
			ids = append(ids, id)
		}
	}
	return ids
}

func (s *comparison) useConf(text string) {
	s.t.Helper()
	require.NoError(s.t, os.WriteFile(s.Conf(), []byte(text), 0o600))
	if s.plugin == testcluster.Gpubudget {
		s.pass()
	}
}
