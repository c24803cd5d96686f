// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
)

func TestRunsReachTheDatabase(t *testing.T) {
	h := hostOn(t)
	h.start()
	s := newSlurm(h.now)
	a := s.submit("physics", "alice", 1, 4)
	b := s.submit("idle", "dora", 2, 2)
	h.pass(s.list()...)
	require.NoError(t, h.exchange())
	h.tick(s, 10*time.Second)
	s.start(a)
	s.start(b)
	h.tick(s, 5*time.Second)
	h.pass(s.list()...)
	h.tick(s, 20*time.Second)
	s.complete(a, Complete)
	s.complete(b, Failed)
	h.tick(s, 5*time.Second)
	h.pass(s.list()...)
	require.NoError(t, h.exchange())

	runs, err := h.usage().Runs(context.Background(), "titan", fairshare.Lookback(fairshare.At(h.now), time.Hour))
	require.NoError(t, err)
	require.Len(t, runs, 2)
	require.Equal(t, "physics", runs[0].Account)
	require.Equal(t, "COMPLETED", runs[0].EndState)
	require.True(t, runs[0].Allocated)
	require.Equal(t, fairshare.GPUMillis(4*25*1000), runs[0].GPUMillis(h.now))
	require.Equal(t, "FAILED", runs[1].EndState)
	require.False(t, runs[1].Allocated)
	h.stop()
}
