// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// systemLog is a log in the place of the system's.
func (h *host) systemLog(t *testing.T) *net.UnixConn {
	t.Helper()
	log, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: h.logSocket, Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, log.Close()) })
	return log
}

// logged is the next line of a log that has been written to; "" if there is none.
func logged(t *testing.T, log *net.UnixConn) string {
	t.Helper()
	line := make([]byte, 4096)
	require.NoError(t, log.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	n, err := log.Read(line)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ""
	}
	require.NoError(t, err)
	return string(line[:n])
}

// slurmd does not log what a hook says that has succeeded: the system's log does.
func TestWhatGoesWrongInAHookIsInTheSystemsLog(t *testing.T) {
	const info, failure = "30", "27" // daemon's, of level info and error
	for _, tc := range []struct {
		name string
		env  map[string]string
		gpus bool // on the node
		want string
	}{
		{"a job without GPUs on a node that has some", map[string]string{"SLURM_JOB_ID": "7"}, true,
			"^<" + info + `>.* gpubudget-agent\[\d+\]: prolog: job 7: no SLURM_JOB_GPUS: it holds no GPU on this node, or gres.conf names no File`},
		{"a job on a node without GPUs", map[string]string{"SLURM_JOB_ID": "7"}, false, "^$"},
		{"no job", nil, false, "^<" + failure + `>.* gpubudget-agent\[\d+\]: prolog: SLURM_JOB_ID="" is not a job's number`},
		{"a job with GPUs", map[string]string{"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0"}, true, "^$"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHost(t)
			h.env = tc.env
			log := h.systemLog(t)
			if tc.gpus {
				require.NoError(t, os.WriteFile(filepath.Join(h.dir, "nvidia0"), nil, 0o600))
			}
			require.Equal(t, exitOK, h.run(t.Context(), []string{"gpubudget-agent", "--conf", h.conf(), "prolog"}))
			require.Regexp(t, tc.want, logged(t, log))
			require.Empty(t, logged(t, log), "one line")
		})
	}
}

// Who reads the system's log may have stopped: then the socket is full, and who
// writes waits.
func TestAHookGivesUpOnALogThatHangs(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.systemLog(t)
	full, err := new(net.Dialer).DialContext(t.Context(), "unixgram", h.logSocket)
	require.NoError(t, err)
	defer full.Close()
	for err == nil {
		require.NoError(t, full.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
		_, err = full.Write([]byte("a line"))
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	began := time.Now()
	require.Equal(t, exitOK, h.run(t.Context(), []string{"gpubudget-agent", "--conf", h.conf(), "prolog"}))
	require.Less(t, time.Since(began), 2*logPatience)
	require.GreaterOrEqual(t, time.Since(began), logPatience, "the log did not hang")
	require.Contains(t, h.stderr.String(), "is not a job's number")
}
