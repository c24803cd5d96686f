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
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"

	"gpubudget/internal/simnvml"
)

// agentRole is the agents' role in the database.
const agentRole = "node_agent"

// agentUser is who agents run as: somebody without rights.
const agentUser = "nobody"

// agentConf are the agents' settings.
func (c *Cluster) agentConf() map[string]string {
	return map[string]string{
		"Cluster":            c.opts.Name,
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
	if c.opts.NoAgents != "" {
		return nil
	}
	return []string{"Prolog=" + c.path("bin", "prolog"), "Epilog=" + c.path("bin", "epilog"), "PrologFlags=Alloc"}
}

// prepareAgents makes what agents need: the hooks' scripts, folders, and a
// simulated driver with idle GPUs.
func (c *Cluster) prepareAgents() error {
	if c.opts.NoAgents != "" {
		return nil
	}
	as, err := systemAccount(agentUser)
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.AgentConf(), []byte(confText(c.agentConf())), 0o644); err != nil {
		return err
	}
	for hook, work := range map[string]string{"prolog": `: >"$1"`, "epilog": `rm -f "$1"`} {
		if err := os.WriteFile(c.path("bin", hook), []byte(c.hook(hook, work)), 0o755); err != nil {
			return err
		}
	}
	for _, node := range c.Nodes() {
		dirs := []string{"", "jobs", "spool", "dcgm", "work"}
		for i := range c.opts.GPUsPerNode {
			dirs = append(dirs, fmt.Sprintf("work/%d", i))
		}
		for _, dir := range dirs {
			path := c.path("agent", node, dir)
			if err := os.MkdirAll(path, 0o755); err != nil {
				return err
			}
			if err := os.Chown(path, int(as.uid), int(as.gid)); err != nil {
				return err
			}
		}
		if err := c.WriteGPUs(node, c.WorkingGPUs(node)); err != nil {
			return err
		}
	}
	return nil
}

// hook is the script of a hook. It tells the simulated GPUs that the job begins or
// ends to work on them, by a file for each (those of several jobs that share one
// lie side by side), and the agent, which decides how the hook ends.
func (c *Cluster) hook(name, work string) string {
	return fmt.Sprintf(`#!/bin/sh
IFS=,
for gpu in $SLURM_JOB_GPUS; do
	test -d "%[1]s/$SLURMD_NODENAME/work/$gpu" || continue
	set -- "%[1]s/$SLURMD_NODENAME/work/$gpu/$SLURM_JOB_ID"
	%[2]s
done
exec %[3]s --conf %[4]s %[5]s
`, c.path("agent"), work, c.path("bin", "gpubudget-agent"), c.AgentConf(), name)
}

// AgentConf is the path of the agents' configuration: apart from gpubudget.conf, which
// tests replace.
func (c *Cluster) AgentConf() string { return c.path("etc", "agent.conf") }

// workingPercent is how busy a simulated GPU is while a job holds it, unless a test
// wants it otherwise.
const workingPercent = 90

// WorkingGPUs are a node's simulated GPUs, which work as long as a job holds them.
// GPU i is GPU-NODE-i, device file i, and number i of Slurm.
func (c *Cluster) WorkingGPUs(node string) simnvml.State {
	s := c.IdleGPUs(node)
	for i := range s.GPUs {
		s.GPUs[i].Load, s.GPUs[i].Working = simnvml.Steady(workingPercent), c.path("agent", node, "work", strconv.Itoa(i))
	}
	return s
}

// IdleGPUs are a node's simulated GPUs, which do nothing, whoever holds them. GPU
// i is GPU-NODE-i, device file i.
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
func (c *Cluster) WriteGPUs(node string, s simnvml.State) error { return s.Write(c.GPUState(node)) }

// GPUState is the file that says so.
func (c *Cluster) GPUState(node string) string { return c.path("agent", node, "gpus") }

// AgentSpool is the folder in which a node's agent keeps what it has counted.
func (c *Cluster) AgentSpool(node string) string { return c.path("agent", node, "spool") }

// AgentMapping is the folder in which a node's agent tells dcgm-exporter of jobs.
func (c *Cluster) AgentMapping(node string) string { return c.path("agent", node, "dcgm") }

// AgentJobs is the folder in which Prolog and Epilog of a node write.
func (c *Cluster) AgentJobs(node string) string { return c.path("agent", node, "jobs") }

// startAgents starts an agent on each node.
func (c *Cluster) startAgents(ctx context.Context) error {
	if c.opts.NoAgents != "" {
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
	return c.spawn("agent."+node, as, simnvml.Variable+"="+c.GPUState(node), "gpubudget-agent",
		"--conf", c.AgentConf(), "--node", node, "--dsn", fmt.Sprintf("host=%s/run port=5432 user=%s dbname=%s sslmode=disable", postgresDir(c.dir), agentRole, database))
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
	if c.opts.NoAgents != "" {
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
