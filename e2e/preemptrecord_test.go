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
	require.Contains(t, s.exec("root", "gpubudget", "explain", number0(filler)), "it was preempted for job "+number0(request)+" of "+bob+" in "+s.b+" (R1: ")
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
