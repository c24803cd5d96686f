// SPDX-License-Identifier: GPL-2.0-or-later

package gpucheck

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpubudget/agent"
	"gpubudget/usage/meter"
)

// pretended is the job that is said to hold the GPU at work.
const pretended = 4711

// agent has gpubudget-agent look at the GPU that a process keeps at work, as it
// would on a node of Slurm's: its Prolog is told that a job has got the GPU, its
// look prints what it reads, and after its Epilog the job has it no more.
func (c *check) agent(ctx context.Context, uuid string, pid int) error {
	r, err := c.m.Sample()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(r.GPUs, func(g meter.Reading) bool { return g.UUID == uuid })
	if i < 0 {
		return fmt.Errorf("%s is gone", uuid)
	}
	n, err := c.newNode(r.GPUs, uuid)
	if err != nil {
		c.expectf(false, "agent", "%v", err)
		return nil
	}
	defer os.RemoveAll(n.dir) //nolint:errcheck // a few files of a temporary folder
	if _, err := n.run(ctx, "prolog"); err != nil {
		return err
	}
	text, v, err := n.look(ctx)
	if err != nil {
		return err
	}
	c.printf("what gpubudget-agent --once --json prints, of job %d, pretended to hold %s:\n%s", pretended, uuid, text)
	c.agentSees(v, r.GPUs[i], pid)

	if _, err := n.run(ctx, "epilog"); err != nil {
		return err
	}
	if _, v, err = n.look(ctx); err != nil {
		return err
	}
	held := slices.ContainsFunc(v.GPUs, func(g agent.GPUView) bool { return len(g.Jobs) > 0 })
	c.expectf(!held && len(v.Holdings) == 1 && v.Holdings[0].Until != nil, "agent", "after its Epilog the job holds no GPU")
	return nil
}

// agentSees holds what the agent tells of a GPU against what the meter does.
func (c *check) agentSees(v *agent.View, want meter.Reading, pid int) {
	c.expectf(len(v.Problems) == 0, "agent", "could not see: %s", orNone(strings.Join(v.Problems, "; ")))
	i := slices.IndexFunc(v.GPUs, func(g agent.GPUView) bool { return g.UUID == want.UUID })
	if i < 0 {
		c.expectf(false, "agent", "%s is not among the %d GPUs it shows", want.UUID, len(v.GPUs))
		return
	}
	g := v.GPUs[i]
	c.expectf(g.PCIBusID == want.PCI && g.Model == want.Name && g.Index == want.Index, "agent", "identity: %s, %s, number %d", known(g.Model), known(g.PCIBusID), g.Index)
	c.expectf(slices.Equal(g.Jobs, []uint32{pretended}), "agent", "the GPU is held by jobs %v", g.Jobs)
	others := slices.ContainsFunc(v.GPUs, func(o agent.GPUView) bool { return o.UUID != want.UUID && len(o.Jobs) > 0 })
	c.expectf(!others, "agent", "no other GPU is held")
	c.expectf(g.Percent != nil && *g.Percent >= 95, "agent", "utilisation %s, expected 95%% to 100%%", show(g.Percent, func(p float64) string { return fmt.Sprintf("%.1f%%", p) }))
	listed := slices.ContainsFunc(g.Processes, func(p agent.ProcessView) bool { return p.PID == pid })
	c.expectf(listed, "agent", "process %d is among the %d it lists", pid, len(g.Processes))
}

// slurmNode is a node of Slurm's, as far as gpubudget-agent can tell.
type slurmNode struct {
	program string
	dir     string
	env     []string
}

// newNode is one whose GPUs are all in gres.conf, and where a job got one.
func (c *check) newNode(gpus []meter.Reading, held string) (*slurmNode, error) {
	gres, number, place := "", -1, 0
	for _, g := range gpus {
		if g.Minor == nil {
			continue
		}
		gres += fmt.Sprintf("Name=gpu File=/dev/nvidia%d\n", *g.Minor)
		if g.UUID == held {
			number = place
		}
		place++
	}
	if number < 0 {
		return nil, fmt.Errorf("the device file of %s is not known", held)
	}
	dir, err := os.MkdirTemp("", "gpu-check-")
	if err != nil {
		return nil, err
	}
	conf := fmt.Sprintf("Cluster=gpu-check\nAgentNode=n1\nAgentJobsDir=%[1]s/jobs\nAgentSpoolDir=%[1]s/spool\nAgentSocket=%[1]s/socket\nAgentGresConf=%[1]s/gres.conf\n", dir)
	if c.Library != "" {
		conf += "AgentLibrary=" + c.Library + "\n"
	}
	gpu := strconv.Itoa(number)
	n := &slurmNode{c.Agent, dir, append(os.Environ(), fmt.Sprintf("SLURM_JOB_ID=%d", pretended), "SLURM_JOB_GPUS="+gpu, "CUDA_VISIBLE_DEVICES="+gpu)}
	for name, text := range map[string]string{"gres.conf": gres, "gpubudget.conf": conf} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
	}
	return n, nil
}

// run runs gpubudget-agent and returns what it prints.
func (n *slurmNode) run(ctx context.Context, args ...string) (string, error) {
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, n.program, append([]string{"--conf", filepath.Join(n.dir, "gpubudget.conf")}, args...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = n.env, &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", n.program, strings.Join(args, " "), err, said.String())
	}
	if said.Len() > 0 { // as hooks do, that always succeed
		return "", fmt.Errorf("%s %s: %s", n.program, strings.Join(args, " "), said.String())
	}
	return out.String(), nil
}

// look is what the agent sees now, as it prints it.
func (n *slurmNode) look(ctx context.Context) (string, *agent.View, error) {
	text, err := n.run(ctx, "--once", "--json")
	if err != nil {
		return "", nil, err
	}
	v := new(agent.View)
	if err := json.Unmarshal([]byte(text), v); err != nil {
		return "", nil, fmt.Errorf("what the agent prints: %w", err)
	}
	return text, v, nil
}
