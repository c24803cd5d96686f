// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// A preemption is in the spool before it is in the database, outlives the
// process and the database's absence, and is recorded once, with all that was
// known at that moment.
func TestPreemptionsGoThroughTheSpool(t *testing.T) {
	h := hostOn(t)
	h.configure(deadDSN)
	h.start()
	h.pass()
	at := fairshare.At(h.now)
	start := h.now.Add(-2 * time.Hour)
	h.engine.mu.Lock()
	h.engine.contract.preemptions = []Preemption{
		{
			At: at, Rule: fairshare.R3, Requeue: true,
			Victim: Party{JobID: 7, Restart: 1, Account: "physics", User: "alice", GPUs: 4, Allocated: true, MinRuntime: time.Hour,
				StartedAt: start, ProtectedUntil: fairshare.At(start.Add(time.Hour)), QOSPriority: 3, Nice: 5, Ratio: 0.25, Rank: 2},
			Request: Party{JobID: 9, Account: "bio", User: "carol", GPUs: 4, Allocated: true, MinRuntime: 30 * time.Minute, Ratio: math.Inf(1), Rank: 1},
		},
		{At: at + 1, Rule: fairshare.R1, Victim: Party{JobID: 8, Account: "idle", User: "dora", GPUs: 1, StartedAt: start, ProtectedUntil: 5}, Request: Party{JobID: 9}},
	}
	h.engine.mu.Unlock()
	h.engine.recorder.save(false)
	require.Error(t, h.exchange())
	h.kill()

	h.configure(h.dsn)
	h.start()
	h.pass()
	require.NoError(t, h.exchange())
	require.NoError(t, h.exchange())
	got, err := h.usage().Preemptions(context.Background(), "titan", start)
	require.NoError(t, err)
	require.Equal(t, []usage.Preemption{
		{
			Cluster: "titan", At: at.Time(), Rule: "R3", Mode: "requeue", StartedAt: start, ProtectedUntil: new(start.Add(time.Hour)),
			Job: usage.Party{JobID: 7, Restart: 1, Account: "physics", User: "alice", GPUs: 4, Allocated: true, MinRuntime: time.Hour,
				QOSPriority: 3, Nice: 5, Ratio: new(0.25), Rank: 2},
			For: &usage.Party{JobID: 9, Account: "bio", User: "carol", GPUs: 4, Allocated: true, MinRuntime: 30 * time.Minute, Ratio: new(math.Inf(1)), Rank: 1},
		},
		{
			Cluster: "titan", At: (at + 1).Time(), Rule: "R1", Mode: "cancel", StartedAt: start,
			Job: usage.Party{JobID: 8, Account: "idle", User: "dora", GPUs: 1, Ratio: new(0.0)}, For: &usage.Party{JobID: 9, Ratio: new(0.0)},
		},
	}, got)
	h.stop()
}

// What the database has is dropped when the spool is rewritten; what it lacks is
// not.
func TestCompactingKeepsPreemptionsThatAreNotWritten(t *testing.T) {
	s := openSpool(t, t.TempDir())
	record := func(job uint32) spoolRecord {
		return spoolRecord{Preemption: &spoolPreemption{Rule: "R1", Victim: spoolParty{JobID: job}}}
	}
	require.NoError(t, s.append([]spoolRecord{record(1)}))
	require.Len(t, s.drained(t), 1)
	require.NoError(t, s.append([]spoolRecord{record(2)}))
	require.NoError(t, s.compact(s.end().seq, func(runKey) bool { return false }))
	left := s.drained(t)
	require.Len(t, left, 1)
	require.Equal(t, uint32(2), left[0].Preemption.Victim.JobID)
}
