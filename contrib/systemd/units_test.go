// SPDX-License-Identifier: GPL-2.0-or-later

// Package systemd has no code: it is what a test needs to read the units beside it.
package systemd

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/conf"
)

// settings are those that units here may have, by section, and what each takes. A
// name that systemd does not know it leaves out with a warning in its log: then a
// service would run without what was meant to hold it.
var settings = map[string]map[string]string{
	"Unit": {"Description": text, "Documentation": text, "After": units, "Wants": units},
	"Service": {
		"Type": `oneshot`, "ExecStart": `/usr/bin/(gpubudget|gpubudget-agent)( .*)?`, "Restart": `always`, "RestartSec": span, "TimeoutStartSec": span,
		"TimeoutStopSec": span, "User": name, "Group": name, "RuntimeDirectory": `[a-z-]+( [a-z-]+(/[a-z-]+)*)*`, "RuntimeDirectoryMode": `0[0-7]{3}`,
		"RuntimeDirectoryPreserve": yes, "StateDirectory": name, "StateDirectoryMode": `0700`, "NoNewPrivileges": yes, "CapabilityBoundingSet": ``,
		"AmbientCapabilities": ``, "ProtectSystem": `strict`, "ProtectHome": yes, "PrivateTmp": yes, "PrivateDevices": yes, "ProtectClock": yes,
		"ProtectHostname": yes, "ProtectKernelLogs": yes, "ProtectKernelModules": yes, "ProtectKernelTunables": yes, "ProtectControlGroups": yes,
		"RestrictAddressFamilies": `AF_[A-Z0-9]+( AF_[A-Z0-9]+)*`, "RestrictNamespaces": yes, "RestrictRealtime": yes, "RestrictSUIDSGID": yes,
		"LockPersonality": yes, "RemoveIPC": yes, "UMask": `0[0-7]{3}`, "SystemCallArchitectures": `native`, "SystemCallFilter": `@system-service`,
		"SystemCallErrorNumber": `EPERM`, "DevicePolicy": `closed`, "DeviceAllow": `char-nvidia[a-z-]* rw`, "Nice": `\d+`, "MemoryHigh": `\d+M`,
		"MemoryMax": `\d+M`, "TasksMax": `\d+`,
	},
	"Timer":   {"OnCalendar": `\*-\*-\* (\*|\d\d):\d\d`, "RandomizedDelaySec": span, "Persistent": `true`},
	"Install": {"WantedBy": `(multi-user|timers)\.target`},
}

const (
	text  = `.+`
	yes   = `yes`
	name  = `[a-z][a-z0-9-]*`
	units = `[a-z0-9@-]+\.(target|service)( [a-z0-9@-]+\.(target|service))*`
	span  = `\d+(s|min)?`
)

// several are the settings that may stand more than once.
var several = []string{"DeviceAllow"}

// read takes a unit apart: section, name and value of each line.
func read(t *testing.T, file string) map[string]map[string][]string {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	unit, section := map[string]map[string][]string{}, ""
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Scan() {
		line := lines.Text()
		require.Equal(t, strings.TrimSpace(line), line)
		require.False(t, strings.HasSuffix(line, `\`), "%s: %s", file, line)
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			section = strings.Trim(line, "[]")
			require.Equal(t, "["+section+"]", line)
			require.NotContains(t, unit, section, "%s: twice", file)
			unit[section] = map[string][]string{}
		default:
			key, value, ok := strings.Cut(line, "=")
			require.True(t, ok, "%s: %s", file, line)
			require.Contains(t, settings[section], key, "%s: [%s]", file, section)
			require.Regexp(t, `^(?:`+settings[section][key]+`)$`, value, "%s: %s", file, line)
			if !slices.Contains(several, key) {
				require.NotContains(t, unit[section], key, "%s: %s twice", file, key)
			}
			unit[section][key] = append(unit[section][key], value)
		}
	}
	require.NoError(t, lines.Err())
	return unit
}

// Units are well-formed, have settings that there are, and name programs, options,
// users and units that there are.
func TestUnits(t *testing.T) {
	files, err := filepath.Glob("*.*")
	require.NoError(t, err)
	user := regexp.MustCompile(`(?m)^u ([a-z]+) - `).FindSubmatch(must(os.ReadFile("gpubudget-agent.sysusers")))
	require.NotNil(t, user)
	var seen []string
	for _, file := range files {
		kind := filepath.Ext(file)
		if kind == ".go" || kind == ".sysusers" {
			continue
		}
		seen = append(seen, file)
		u := read(t, file)
		require.NotEmpty(t, u["Unit"]["Description"], file)
		switch kind {
		case ".service":
			service := u["Service"]
			command := strings.Fields(service["ExecStart"][0])
			require.DirExists(t, filepath.Join("..", "..", "cmd", filepath.Base(command[0])))
			require.Equal(t, []string{string(user[1])}, service["User"], file)
			require.Equal(t, []string{string(user[1])}, service["Group"], file)
			for _, must := range []string{"NoNewPrivileges", "CapabilityBoundingSet", "ProtectSystem", "ProtectHome", "PrivateTmp", "SystemCallFilter"} {
				require.Contains(t, service, must, file)
			}
		case ".timer":
			require.FileExists(t, strings.TrimSuffix(file, kind)+".service")
			require.Equal(t, []string{"timers.target"}, u["Install"]["WantedBy"])
		default:
			t.Fatalf("%s: what is it?", file)
		}
	}
	require.Equal(t, []string{"gpubudget-agent.service", "gpubudget-prune.service", "gpubudget-prune.timer",
		"gpubudget-refund.service", "gpubudget-refund.timer"}, seen)
}

// What the agent's unit grants is what the agent uses by default.
func TestTheAgentsUnitIsTheAgents(t *testing.T) {
	service := read(t, "gpubudget-agent.service")["Service"]
	runtime := strings.Fields(service["RuntimeDirectory"][0])
	require.Equal(t, []string{filepath.Dir(conf.DefaultAgentSocket), conf.DefaultAgentJobsDir}, []string{"/run/" + runtime[0], "/run/" + runtime[1]})
	require.Equal(t, conf.DefaultAgentSpoolDir, "/var/lib/"+service["StateDirectory"][0])
	require.Equal(t, []string{"always"}, service["Restart"], "it ends to be started anew where the driver hangs or was exchanged")
	require.Equal(t, []string{"yes"}, service["RuntimeDirectoryPreserve"], "what Prolog wrote outlives a restart")
	require.NotContains(t, service, "PrivateDevices", "it would hide the driver's")
	require.NotContains(t, service, "ProtectProc", "it looks at all processes' control groups")
}

func must(content []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return content
}
