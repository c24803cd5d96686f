// SPDX-License-Identifier: GPL-2.0-or-later

package conf

import (
	"fmt"
	"net"
	"strings"
	"time"
)

// Defaults of the agent.
const (
	DefaultAgentJobsDir       = "/run/gpubudget/jobs"
	DefaultAgentSpoolDir      = "/var/lib/gpubudget-agent"
	DefaultAgentSocket        = "/run/gpubudget/agent.sock"
	DefaultAgentGresConf      = "/etc/slurm/gres.conf"
	DefaultAgentMetrics       = ":9838"
	DefaultAgentInterval      = 10 * time.Second
	DefaultAgentWriteInterval = 30 * time.Second
)

// shortestAgentInterval lets many rounds pass in a short time, to see what an agent
// takes.
const shortestAgentInterval = 5 * time.Millisecond

// Agent is what the file says about the agent on a node. In paths %n stands for
// the node's name.
type Agent struct {
	// Node is the node's name in Slurm; "" leaves it to the program.
	Node string
	// JobsDir is where Prolog and Epilog tell who holds which GPU.
	JobsDir string
	// SpoolDir is where the agent keeps what it has counted.
	SpoolDir string
	// Socket is where the agent takes requests.
	Socket string
	// MappingDir is where files are written that tell dcgm-exporter whose a GPU
	// is; "" writes none.
	MappingDir string
	// GresConf is Slurm's gres.conf.
	GresConf string
	// Library is the driver's library; "" finds it as the linker does.
	Library string
	// Metrics is the address at which metrics are served; "" serves none.
	Metrics string
	// KeepConnection keeps the connection to the database open between writes.
	KeepConnection bool
	// Interval is the time between two looks at the GPUs, WriteInterval that
	// between two writes to the database; both from 100 ms to a day.
	Interval, WriteInterval time.Duration
}

func defaultAgent() Agent {
	return Agent{
		JobsDir: DefaultAgentJobsDir, SpoolDir: DefaultAgentSpoolDir, Socket: DefaultAgentSocket, GresConf: DefaultAgentGresConf,
		Metrics: DefaultAgentMetrics, Interval: DefaultAgentInterval, WriteInterval: DefaultAgentWriteInterval, KeepConnection: true,
	}
}

// ForNode is a as it is on a node: with its name for %n.
func (a Agent) ForNode(node string) Agent {
	a.Node = node
	for _, path := range []*string{&a.JobsDir, &a.SpoolDir, &a.Socket, &a.MappingDir, &a.GresConf, &a.Library} {
		*path = strings.ReplaceAll(*path, "%n", node)
	}
	return a
}

// agentSettings are the keys of the agent.
var agentSettings = []setting{
	{"AgentNode", func(c *Conf, v string) error { return setText(&c.Agent.Node, v) }},
	{"AgentJobsDir", func(c *Conf, v string) error { return setNeededFolder(&c.Agent.JobsDir, v) }},
	{"AgentSpoolDir", func(c *Conf, v string) error { return setNeededFolder(&c.Agent.SpoolDir, v) }},
	{"AgentSocket", func(c *Conf, v string) error { return setNeededFolder(&c.Agent.Socket, v) }},
	{"AgentMappingDir", func(c *Conf, v string) error { return setFolder(&c.Agent.MappingDir, v) }},
	{"AgentGresConf", func(c *Conf, v string) error { return setNeededFolder(&c.Agent.GresConf, v) }},
	{"AgentLibrary", func(c *Conf, v string) error { return setFolder(&c.Agent.Library, v) }},
	{"AgentMetrics", func(c *Conf, v string) error { return setAddress(&c.Agent.Metrics, v) }},
	{"AgentKeepConnection", func(c *Conf, v string) error { return setSwitch(&c.Agent.KeepConnection, v) }},
	{"AgentInterval", func(c *Conf, v string) error { return setIntervalFrom(shortestAgentInterval, &c.Agent.Interval, v) }},
	{"AgentWriteInterval", func(c *Conf, v string) error {
		return setIntervalFrom(shortestAgentInterval, &c.Agent.WriteInterval, v)
	}},
}

func setNeededFolder(to *string, v string) error {
	if v == "" {
		return errEmpty
	}
	return setFolder(to, v)
}

// setAddress sets HOST:PORT or :PORT, or nothing for "no".
func setAddress(to *string, v string) error {
	switch {
	case v == "":
		return errEmpty
	case strings.EqualFold(v, "no"):
		*to = ""
		return nil
	}
	if _, _, err := net.SplitHostPort(v); err != nil {
		return fmt.Errorf("%q is no address: give HOST:PORT, :PORT or no", v)
	}
	*to = v
	return nil
}
