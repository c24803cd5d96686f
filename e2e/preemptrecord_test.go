// SPDX-License-Identifier: GPL-2.0-or-later

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/internal/testcluster"
	"gpubudget/report"
)

// An unallocated job gives way to an allocated one: the database has who, for
// whom and by which rule, scontrol shows its owner a line about it, and explain
// tells both sides.
func TestAPreemptionIsRecordedAndExplained(t *testing.T) {
	s := own(t, testcluster.Options{Slurmdbd: true, Preempt: true, SlurmConf: []string{"MinJobAge=300"}})
	filler := s.submit(ann, s.a, 600, "--gpus=8", "--min-runtime=0", "--requeue")
	s.waitState(filler, "R")
	s.wait("the plugin to know it", func() bool { return len(s.openRuns()) == 1 })
	request := s.submit(bob, s.b, 600, "--gpus=8")
	s.waitState(request, "R")

	var rule, account, other string
	var by uint32
	s.wait("the record", func() bool {
		s.query(`SELECT rule, account, for_account, for_job_id FROM gpubudget.preemption`, func(rows pgx.Rows) error {
			return rows.Scan(&rule, &account, &other, &by)
		})
		return rule != ""
	})
	require.Equal(t, []string{"R1", s.a, s.b}, []string{rule, account, other})
	require.Equal(t, request, by)
	require.Contains(t, s.exec("root", "scontrol", "show", "job", number0(filler)), "preempted for JobId="+number0(request)+" of account "+s.b)
	for _, user := range []string{"root", ann} { // the job's owner may ask, too
		told := s.exec(user, "gpubudget", "explain", number0(filler))
		require.Contains(t, told, "it was preempted for job "+number0(request)+" of "+bob+" in "+s.b+" (R1: ")
		require.Contains(t, told, "that run was unallocated and never protected")
	}
	s.wait("explain to know of the run", func() bool { return len(s.openRuns()) == 1 })
	told := s.exec("root", "gpubudget", "explain", number0(request))
	require.Contains(t, told, "and is protected until ")
	require.Contains(t, told, "job "+number0(filler)+" of "+ann+" in "+s.a+" made way for it (R1: ")

	// Of one that waits, its own minimum runtime and since when it waits.
	s.exec("root", "gpubudget", "-Q", "policy", "set", "patient_gpus", "8")
	waits := s.submit(bob, s.b, 600, "--gpus=8", "--min-runtime=17m")
	s.wait("explain to know what it asks for", func() bool {
		told = s.exec("root", "gpubudget", "explain", number0(waits))
		return strings.Contains(told, "once it runs it is protected for 00:17:00 (R2): as it asks")
	})
	_, after, found := strings.Cut(told, "if it still waits at ")
	require.True(t, found, told)
	at, err := time.ParseInLocation("2006-01-02T15:04:05", after[:19], time.Local)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(time.Hour), at, testTimeout)
}

// preemptedParty is the record of one party of a preemption.
type preemptedParty struct {
	job           uint32
	account, user string
	gpus          int64
	minRuntime    int64 // in milliseconds
	ratio         float64
	rank          int
}

// What is recorded of both jobs of a preemption is what the cluster says of them
// otherwise: how their accounts stood by the report, and until when the one that ran was
// protected by the start that Slurm gives. Its owner is told so.
func TestAPreemptionsRecordAgreesWithTheReport(t *testing.T) {
	const protected = 10 * time.Second
	s := own(t, testcluster.Options{Slurmdbd: true, Preempt: true, SlurmConf: []string{"MinJobAge=300"}})
	s.use(bob, s.b, 1, 2)
	victim := s.submit(ann, s.a, 600, fmt.Sprintf("--gpus=%d", s.GPUs()), minRuntime(protected), "--requeue")
	s.waitState(victim, "R")
	until := s.start(victim).Add(protected)
	request := s.submit(bob, s.b, 600, fmt.Sprintf("--gpus=%d", s.GPUs()), minRuntime(2*time.Second))
	// The ranking that decides is a second or two old, or as old as this machine is slow.
	time.Sleep(time.Until(until.Add(-soakLag)))
	before, err := s.Report(s.ctx)
	require.NoError(t, err)

	var ran, waited preemptedParty
	var rule string
	var at, protectedUntil time.Time
	s.wait("the record", func() bool {
		s.query(`SELECT at, rule, protected_until, job_id, account, user_name, gpus, min_runtime_ms, ratio, rank,
				for_job_id, for_account, for_user_name, for_gpus, for_min_runtime_ms, for_ratio, for_rank
			FROM gpubudget.preemption`, func(rows pgx.Rows) error {
			return rows.Scan(&at, &rule, &protectedUntil, &ran.job, &ran.account, &ran.user, &ran.gpus, &ran.minRuntime, &ran.ratio, &ran.rank,
				&waited.job, &waited.account, &waited.user, &waited.gpus, &waited.minRuntime, &waited.ratio, &waited.rank)
		})
		return rule != ""
	})
	after, err := s.Report(s.ctx)
	require.NoError(t, err)
	require.Equal(t, "R3", rule)
	require.True(t, until.Equal(protectedUntil), "protected until %v by Slurm's start, and %v by the record", until, protectedUntil)
	require.False(t, at.Before(until), "preempted at %v, within its protection until %v", at, until)

	all := int64(s.GPUs())
	require.Equal(t, preemptedParty{victim, s.a, ann, all, protected.Milliseconds(), ran.ratio, rowOf(t, before, s.a).Rank}, ran)
	require.Equal(t, preemptedParty{request, s.b, bob, all, 2000, waited.ratio, rowOf(t, before, s.b).Rank}, waited)
	require.Equal(t, []int{2, 1}, []int{ran.rank, waited.rank})
	// For the one that ran more is counted in advance; the other hasn't begun.
	began, ended := rowOf(t, before, s.a), rowOf(t, after, s.a)
	ahead := fairshare.GPUMillis(soakAhead.Milliseconds() * all)
	requireBetween(t, ran.ratio, quotient(began.Entitled, ended.Used+ahead), quotient(ended.Entitled, began.Used+ahead))
	began, ended = rowOf(t, before, s.b), rowOf(t, after, s.b)
	requireBetween(t, waited.ratio, quotient(began.Entitled, began.Used), quotient(ended.Entitled, began.Used))

	told := s.exec(ann, "gpubudget", "explain", number0(victim))
	require.Contains(t, told, fmt.Sprintf("%s was due %.2f times what it was charged, rank 1, %s was due %.2f times what it was charged, rank 2", s.b, waited.ratio, s.a, ran.ratio))
	require.Contains(t, told, "that run was protected until "+until.Format("2006-01-02T15:04:05"))
}

func rowOf(t *testing.T, r *report.Report, account string) report.Row {
	t.Helper()
	row, ok := r.Account(account)
	require.True(t, ok, account)
	return *row
}

func quotient(entitled, charged fairshare.GPUMillis) float64 {
	return float64(entitled) / float64(charged)
}

func requireBetween(t *testing.T, value, least, most float64) {
	t.Helper()
	t.Logf("%v is recorded, and by the report it was %v to %v", value, least, most)
	require.GreaterOrEqual(t, value, least)
	require.LessOrEqual(t, value, most)
}
