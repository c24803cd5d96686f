// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/budgets"
	"gpubudget/fairshare"
)

// submit judges a job of an account and a user.
func (h *host) submit(account, user string, change func(*Submission)) (verdict Verdict, granted int64, message string) {
	s := Submission{UserID: 1000, GPUs: 1, MinRuntime: -1, TimeLimit: 3600}
	if account != "" {
		s.Account = NewCString(account)
	}
	if user != "" {
		s.User = NewCString(user)
	}
	if change != nil {
		change(&s)
	}
	s.Message[0], s.Message[messageRoom-1] = 'x', 'x' // as it may come
	h.engine.Submit(&s)
	text, _, ended := bytes.Cut(s.Message[:], []byte{0})
	require.True(h.t, ended)
	return s.Verdict, s.Granted, string(text)
}

func TestSubmissionsOfAccountsWithNothingLeft(t *testing.T) {
	h := warm(t)
	s := newSlurm(h.now)
	note := budgets.Note{Actor: "t", From: begin.Add(-time.Hour), Until: new(begin.Add(time.Hour))}
	_, err := budgets.NewStore(h.pool).Deposit(context.Background(), "titan", "idle", fairshare.GPUHour, note)
	require.NoError(t, err)
	h.set(budgets.Unfunded, budgets.Unallocated)
	require.NoError(t, h.exchange())
	h.pass()
	for _, account := range []string{"physics", "idle", "nowhere"} {
		verdict, _, message := h.submit(account, "alice", nil)
		require.Equal(t, Accepted, verdict, account)
		require.Empty(t, message)
	}

	h.set(budgets.Unfunded, budgets.Refuse)
	require.NoError(t, h.exchange())
	for _, tt := range []struct {
		name, account, user string
		change              func(*Submission)
		want                string // "": accepted
	}{
		{"a share", "physics", "alice", nil, ""},
		{"an account in other letters", "PHYSICS", "alice", nil, ""},
		{"a deposit", "idle", "dora", nil, ""},
		{"root", "root", "alice", nil, ""},
		{"unknown", "nowhere", "alice", nil, "account nowhere has no budget, it is not open in the ledger: submit it to another account"},
		{"unknown, without GPUs", "nowhere", "alice", func(s *Submission) { s.GPUs = 0 }, ""},
		{"unknown, unallocated", "nowhere", "alice", func(s *Submission) { s.MinRuntime = 0 }, ""},
		{"unknown, asks for some", "nowhere", "alice", func(s *Submission) { s.MinRuntime = 60 }, "account nowhere has no budget"},
		{"no account: the user's first", "", "alice", nil, ""},
		{"nobody knows whose", "", "", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			verdict, _, message := h.submit(tt.account, tt.user, tt.change)
			require.Equal(t, tt.want != "", verdict == Refused)
			require.Contains(t, message, tt.want)
			require.Equal(t, tt.want == "", message == "")
		})
	}

	// The deposit is used up: by what runs, before it has ended.
	j := s.submit("idle", "dora", 7, 8)
	s.start(j)
	h.tick(s, time.Second)
	h.pass(s.list()...)
	require.True(t, h.engine.tracker.jobs[j.id].run.Allocated)
	verdict, _, _ := h.submit("idle", "dora", nil)
	require.Equal(t, Accepted, verdict)
	h.tick(s, 8*time.Minute)
	h.pass(s.list()...)
	verdict, _, message := h.submit("idle", "dora", nil)
	require.Equal(t, Refused, verdict)
	require.Contains(t, message, "account idle has nothing left of its budget, 1.1 GPU-hours of ")
	again := s.submit("idle", "dora", 7, 1)
	s.start(again)
	require.NoError(t, h.exchange()) // a new snapshot knows of it too
	h.tick(s, time.Second)
	h.look(s.list()...)
	require.False(t, h.engine.tracker.jobs[again.id].run.Allocated, "it started too late")
	require.True(t, h.engine.tracker.jobs[j.id].run.Allocated, "that stays as it was")
	require.Less(t, len(message), messageRoom)
	h.stop()
}

func TestSubmissionsThatAskForTooMuch(t *testing.T) {
	h := warm(t)
	h.pass()
	for _, tt := range []struct {
		name         string
		asked, limit int64
		verdict      Verdict
		granted      int64
		want         string
	}{
		{"the cap", 8 * 3600, 0, Accepted, 8 * 3600, ""},
		{"beyond it", 30 * 3600, 0, Capped, 8 * 3600, "the longest minimum runtime is 08:00:00 here: the job gets that, not 1-06:00:00"},
		{"the time limit", 3600, 3600, Accepted, 3600, ""},
		{"beyond it", 7200, 3600, Accepted, 7200, "a minimum runtime of 02:00:00 is more than the time limit: the job is protected for 01:00:00"},
		{"nothing said", -1, 60, Accepted, -1, ""},
		{"none", 0, 60, Accepted, 0, ""},
		{"no end", 1 << 62, 0, Capped, 8 * 3600, "the job gets that, not 36500-00:00:00"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			verdict, granted, message := h.submit("physics", "alice", func(s *Submission) { s.MinRuntime, s.TimeLimit = tt.asked, tt.limit })
			require.Equal(t, tt.verdict, verdict)
			require.Equal(t, tt.granted, granted)
			require.Contains(t, message, tt.want)
			require.Equal(t, tt.want == "", message == "")
		})
	}
	h.stop()
}

// Without a snapshot, and by Slurm's shares, every job passes; a name of any length
// fits.
func TestSubmissionsThatNobodyCanJudge(t *testing.T) {
	h := warm(t)
	h.set(budgets.Unfunded, budgets.Refuse)
	require.NoError(t, h.exchange())
	h.pass()
	verdict, _, message := h.submit(strings.Repeat("a", 2*messageRoom), "alice", nil)
	require.Equal(t, Refused, verdict)
	require.Len(t, message, messageRoom-1)
	h.configure(h.dsn, "Shares=slurm")
	h.engine.refresher.reconfigure()
	require.NoError(t, h.exchange())
	h.pass()
	verdict, _, _ = h.submit("nowhere", "alice", func(s *Submission) { s.MinRuntime = 1 << 40 })
	require.Equal(t, Accepted, verdict)
	h.stop()

	fresh := &host{t: t, dir: t.TempDir(), cluster: "titan", now: begin}
	fresh.configure(deadDSN)
	fresh.start()
	fresh.pass()
	verdict, _, _ = fresh.submit("nowhere", "alice", nil)
	require.Equal(t, Accepted, verdict)
	fresh.stop()
}
