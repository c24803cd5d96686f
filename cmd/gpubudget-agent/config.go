// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/conf"
)

// version is set by the build: -ldflags "-X main.version=1.2.3".
var version string

// buildVersion is the version that the build set, else what the Go tool
// recorded of the module and the commit.
func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(unknown)"
}

// config is the configuration as it is on this node.
func (p *program) config(c *cli.Context) (conf.Conf, error) {
	config, err := conf.Load(c.String(optConf))
	if err != nil {
		return conf.Conf{}, err
	}
	config.Agent = config.Agent.ForNode(p.node(c.String(optNode), config))
	return config, nil
}

// node is the name of this node: what is named, else what the configuration or
// slurmd says, else the host's name.
func (p *program) node(named string, config conf.Conf) string {
	for _, name := range []string{named, config.Agent.Node, p.getenv("SLURMD_NODENAME")} {
		if name != "" {
			return name
		}
	}
	host, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	host, _, _ = strings.Cut(host, ".")
	return host
}

// printConfig prints the settings in the form of the file. A password is not
// shown.
func (p *program) printConfig(c *cli.Context) error {
	config, err := p.config(c)
	if err != nil {
		return err
	}
	database, err := conf.PoolConfig(c.String(optDSN), config)
	if err != nil {
		return err
	}
	file := config.Path
	if file == "" {
		file = conf.DefaultPath + " (there is none)"
	}
	a := config.Agent
	metrics := a.Metrics
	if metrics == "" {
		metrics = "no"
	}
	fmt.Fprintf(p.stdout, "# from %s\n", file)
	for _, line := range [][2]string{
		{"Cluster", config.Cluster}, {"AgentNode", a.Node}, {"AgentJobsDir", a.JobsDir}, {"AgentSpoolDir", a.SpoolDir},
		{"AgentSocket", a.Socket}, {"AgentMappingDir", a.MappingDir}, {"AgentGresConf", a.GresConf}, {"AgentLibrary", a.Library},
		{"AgentMetrics", metrics}, {"AgentKeepConnection", map[bool]string{true: "yes", false: "no"}[a.KeepConnection]}, {"AgentInterval", seconds(a.Interval)}, {"AgentWriteInterval", seconds(a.WriteInterval)},
		{"DebugLevel", config.DebugLevel},
	} {
		if line[1] == "" {
			line[0] = "#" + line[0]
		}
		fmt.Fprintf(p.stdout, "%s=%s\n", line[0], line[1])
	}
	cc := database.ConnConfig
	fmt.Fprintf(p.stdout, "# database: host=%s port=%d dbname=%s user=%s\n", cc.Host, cc.Port, cc.Database, cc.User)
	return nil
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }
