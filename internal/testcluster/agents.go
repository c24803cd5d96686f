// SPDX-License-Identifier: GPL-2.0-or-later

package testcluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/jackc/pgx/v5"

	"gpubudget/internal/simnvml"
)

// agentRole is the agents' role in the database.
const agentRole = "node_agent"

// agentUser is who agents run as: somebody without rights.
const agentUser = "nobody"

// agentConf are the agents' settings in gpubudget.conf.
func (c *Cluster) agentConf() map[string]string {
	if !c.opts.Agents {
		return nil
	}
	return map[string]string{
		"AgentJobsDir":       c.path("agent", "%n", "jobs"),
		"AgentSpoolDir":      c.path("agent", "%n", "spool"),
		"AgentSocket":        c.path("agent", "%n", "sock"),
		"AgentMappingDir":    c.path("agent", "%n", "dcgm"),
		"AgentGresConf":      c.path("etc", "gres.conf"),
		"AgentLibrary":       c.path("lib", "libnvidia-ml.so.1"),
		"AgentMetrics":       "no",
		"AgentInterval":      "1",
		"AgentWriteInterval": "1",
	}
}

// agentHooks are the lines of slurm.conf that tell agents of jobs.
func (c *Cluster) agentHooks() []string {
	if !c.opts.Agents {
		return nil
	}
	return []string{"Prolog=" + c.path("bin", "prolog"), "Epilog=" + c.path("bin", "epilog"), "PrologFlags=Alloc"}
}

// prepareAgents makes what agents need: the hooks' scripts, folders, and a
// simulated driver with idle GPUs.
func (c *Cluster) prepareAgents() error {
	if !c.opts.Agents {
		return nil
	}
	as, err := systemAccount(agentUser)
	if err != nil {
		return err
	}
	for _, hook := range []string{"prolog", "epilog"} {
		script := fmt.Sprintf("#!/bin/sh\nexec %s --conf %s %s\n", c.path("bin", "gpubudget-agent"), c.Conf(), hook)
		if err := os.WriteFile(c.path("bin", hook), []byte(script), 0o755); err != nil {
			return err
		}
	}
	for _, node := range c.Nodes() {
		for _, dir := range []string{"", "jobs", "spool", "dcgm"} {
			path := c.path("agent", node, dir)
			if err := os.MkdirAll(path, 0o755); err != nil {
				return err
			}
			if err := os.Chown(path, int(as.uid), int(as.gid)); err != nil {
				return err
			}
		}
		if err := c.WriteGPUs(node, c.IdleGPUs(node)); err != nil {
			return err
		}
	}
	return nil
}

// IdleGPUs are a node's simulated GPUs, with nobody on them. GPU i is
// GPU-NODE-i, device file i.
func (c *Cluster) IdleGPUs(node string) simnvml.State {
	var s simnvml.State
	for i := range c.opts.GPUsPerNode {
		power, used := int64(70_000), uint64(0)
		s.GPUs = append(s.GPUs, simnvml.GPU{
			UUID: fmt.Sprintf("GPU-%s-%d", node, i), PCI: fmt.Sprintf("0000:%02x:00", i+1), Name: "Simulated", Minor: &i,
			Memory: 80 << 30, MemoryUsed: &used, Power: &power, Load: simnvml.Steady(0),
		})
	}
	return s
}

// WriteGPUs sets what a node's GPUs are and do from now on.
func (c *Cluster) WriteGPUs(node string, s simnvml.State) error { return s.Write(c.gpuState(node)) }

func (c *Cluster) gpuState(node string) string { return c.path("agent", node, "gpus") }

// AgentSpool is the folder in which a node's agent keeps what it has counted.
func (c *Cluster) AgentSpool(node string) string { return c.path("agent", node, "spool") }

// AgentJobs is the folder in which Prolog and Epilog of a node write.
func (c *Cluster) AgentJobs(node string) string { return c.path("agent", node, "jobs") }

// startAgents starts an agent on each node.
func (c *Cluster) startAgents(ctx context.Context) error {
	if !c.opts.Agents {
		return nil
	}
	conn, err := pgx.Connect(ctx, c.DSN())
	if err != nil {
		return fmt.Errorf("make the agents' role: %w", err)
	}
	_, err = conn.Exec(ctx, fmt.Sprintf("CREATE ROLE %s LOGIN IN ROLE gpubudget_agent", agentRole))
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		return fmt.Errorf("make the agents' role: %w", err)
	}
	for _, node := range c.Nodes() {
		if err := c.StartAgent(node); err != nil {
			return err
		}
	}
	return nil
}

// StartAgent starts the agent of a node.
func (c *Cluster) StartAgent(node string) error {
	as, err := systemAccount(agentUser)
	if err != nil {
		return err
	}
	return c.spawn("agent."+node, as, simnvml.Variable+"="+c.gpuState(node), "gpubudget-agent", "--node", node,
		"--dsn", fmt.Sprintf("host=%s/run port=5432 user=%s dbname=%s sslmode=disable", postgresDir(c.dir), agentRole, database))
}

// StopAgent ends a node's agent, which writes what it has before.
func (c *Cluster) StopAgent(node string) error { return c.end("agent."+node, syscall.SIGTERM) }

// KillAgent ends it as a crash would.
func (c *Cluster) KillAgent(node string) error { return c.end("agent."+node, syscall.SIGKILL) }

// AgentPID is the process id of a node's agent, 0 if it is not running.
func (c *Cluster) AgentPID(node string) int {
	if d := c.daemon("agent." + node); d != nil && d.running() {
		return d.cmd.Process.Pid
	}
	return 0
}

// agentBuild are the files that agents need, to be copied into the cluster.
func (c *Cluster) agentBuild() map[string]string {
	if !c.opts.Agents {
		return nil
	}
	return map[string]string{
		filepath.Join(c.opts.BinDir, "gpubudget-agent"):   c.path("bin", "gpubudget-agent"),
		filepath.Join(c.opts.SimDir, "libnvidia-ml.so.1"): c.path("lib", "libnvidia-ml.so.1"),
	}
}

// copyAll copies programs and libraries, by where they are to go to.
func copyAll(copies map[string]string) error {
	for _, from := range slices.Sorted(maps.Keys(copies)) {
		content, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("%w (make build makes it)", err)
		}
		if err := os.WriteFile(copies[from], content, 0o755); err != nil {
			return err
		}
	}
	return nil
}
