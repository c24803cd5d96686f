// SPDX-License-Identifier: GPL-2.0-or-later

package conf

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseAgent(t *testing.T) {
	c, err := Parse("x", `
AgentNode=n7
AgentJobsDir=/run/%n/jobs
AgentSpoolDir=/var/spool/%n
agentsocket=/run/%n/sock
AgentMappingDir=/var/run/dcgm
AgentGresConf=/etc/gres-%n.conf
AgentLibrary=/opt/libnvidia-ml.so.1
AgentMetrics=localhost:9
AgentKeepConnection=No
AgentInterval=2
AgentWriteInterval=60
`)
	require.NoError(t, err)
	require.Equal(t, Agent{
		Node: "n8", JobsDir: "/run/n8/jobs", SpoolDir: "/var/spool/n8", Socket: "/run/n8/sock", MappingDir: "/var/run/dcgm",
		GresConf: "/etc/gres-n8.conf", Library: "/opt/libnvidia-ml.so.1", Metrics: "localhost:9", Interval: 2 * time.Second, WriteInterval: time.Minute,
	}, c.Agent.ForNode("n8"))

	c, err = Parse("x", "AgentMetrics=no\nAgentKeepConnection=yes\n")
	require.NoError(t, err)
	want := defaultAgent()
	want.Metrics = ""
	require.Equal(t, want, c.Agent)
}
