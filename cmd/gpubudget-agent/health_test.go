// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/agent/health"
	"gpubudget/usage/meter"
)

// saw writes what an agent has seen: one GPU, and the errors it reported.
func (h *host) saw(t *testing.T, at time.Time, codes ...uint64) {
	t.Helper()
	boot, err := bootID()
	require.NoError(t, err)
	dir := filepath.Join(h.dir, "spool")
	require.NoError(t, os.MkdirAll(dir, 0o750))
	s := &health.State{Node: "n3", BootID: boot}
	r := &meter.Round{At: at, GPUs: []meter.Reading{{GPU: meter.GPU{UUID: "GPU-a", Index: 3}}}}
	for _, code := range codes {
		r.Xids = append(r.Xids, meter.Xid{At: at, UUID: "GPU-a", Code: code})
	}
	s.Read(r, true)
	require.NoError(t, s.Save(health.Path(dir)))
}

// scontrol is a script in the place of Slurm's: it notes how it is called and
// prints the node.
func (h *host) scontrol(t *testing.T, state string) (calls func() string) {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\necho \"$@\" >>" + dir + "/calls\necho NodeName=n3 State=" + state + " Reason=none\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "scontrol"), []byte(script), 0o755))
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	return func() string {
		text, err := os.ReadFile(filepath.Join(dir, "calls"))
		if !os.IsNotExist(err) {
			require.NoError(t, err)
		}
		return string(text)
	}
}

func TestHealth(t *testing.T) {
	now := time.Now()
	for _, tc := range []struct {
		name   string
		saw    func(h *host)
		args   []string
		node   string
		code   int
		stdout string // of which it is to contain
		stderr string
		calls  string // likewise
	}{
		{"well", func(h *host) { h.saw(t, now, 31) }, []string{"gpubudget-agent", "--conf", "CONF", "health"}, "IDLE", exitOK, "", "", ""},
		{"unfit", func(h *host) { h.saw(t, now, 79) }, []string{"gpubudget-agent", "--conf", "CONF", "health"}, "MIXED", exitError, "GPU 3 (GPU-a) Xid 79", "",
			"update nodename=n3 state=drain reason=gpubudget: GPU 3 (GPU-a) Xid 79 (fallen off the bus)"},
		{"only told", func(h *host) { h.saw(t, now, 79) }, []string{"gpubudget-agent", "--conf", "CONF", "health", "--dry-run"}, "IDLE", exitError, "Xid 79", "", ""},
		{"an operator drained it", func(h *host) { h.saw(t, now, 79) }, []string{"gpubudget-agent", "--conf", "CONF", "health"}, "IDLE+DRAIN", exitError, "Xid 79", "", "show node n3"},
		{"no agent", func(*host) {}, []string{"gpubudget-agent", "--conf", "CONF", "health"}, "IDLE", exitError, "", "is gpubudget-agent running", ""},
		{"an agent that looks no more", func(h *host) { h.saw(t, now.Add(-time.Hour), 79) }, []string{"gpubudget-agent", "--conf", "CONF", "health"}, "IDLE", exitError, "", "has not looked at the GPUs since", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHost(t)
			h.env["SLURMD_NODENAME"] = "n3"
			tc.saw(h)
			calls := h.scontrol(t, tc.node)
			args := make([]string, len(tc.args))
			for i, arg := range tc.args {
				if args[i] = arg; arg == "CONF" {
					args[i] = h.conf()
				}
			}
			require.Equal(t, tc.code, h.run(t.Context(), args), h.stderr.String())
			require.Contains(t, h.stdout.String(), tc.stdout)
			require.Contains(t, h.stderr.String(), tc.stderr)
			require.Contains(t, calls(), tc.calls)
			if tc.calls == "" || tc.node == "IDLE+DRAIN" {
				require.NotContains(t, calls(), "update")
			}
		})
	}
}

// slurmd gives HealthCheckProgram no arguments: a link tells what is meant.
func TestHealthByTheNameOfALink(t *testing.T) {
	require.Equal(t, []string{"/etc/slurm/gpubudget-health", "health"}, asHealth([]string{"/etc/slurm/gpubudget-health"}))
	require.Equal(t, []string{"gpubudget-agent", "--once"}, asHealth([]string{"gpubudget-agent", "--once"}))
}
