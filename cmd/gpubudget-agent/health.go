// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/agent/health"
)

const (
	cmdHealth = "health"
	optDryRun = "dry-run"
)

const (
	// healthPatience bounds the whole check: slurmd waits for it, for a minute at
	// most.
	healthPatience = 20 * time.Second
	// staleHealth is how old the agent's last look may be.
	staleHealth = 5 * time.Minute
	// longestReason is how much of the findings a node's reason holds.
	longestReason = 300
)

// reasonMark is how the reason of a node begins that was drained by us.
const reasonMark = "gpubudget: "

// errUnfit ends a check that has found something, and has printed it.
var errUnfit = errors.New("unfit")

func (p *program) healthCommand() *cli.Command {
	return &cli.Command{
		Name: cmdHealth, Usage: "drain this node if a GPU is not fit for jobs; for HealthCheckProgram= of slurm.conf", HideHelpCommand: true,
		Description: "Reads what the agent on this node has seen, without asking the driver. If all is\n" +
			"   well it is silent and succeeds. Else it prints what is wrong, has scontrol drain\n" +
			"   the node with that as the reason, unless it is drained or down already, and exits\n" +
			"   with 1. It never puts a node back into service, and does not drain it again for an\n" +
			"   error that it was drained for before. A link named ...-health is this command.",
		Flags:  []cli.Flag{&cli.BoolFlag{Name: optDryRun, Usage: "only print what is wrong", DisableDefaultText: true}},
		Action: p.health,
	}
}

// asHealth is a command line by the name of the health check as one with its
// command: slurmd gives it no arguments.
func asHealth(args []string) []string {
	if !strings.HasSuffix(filepath.Base(args[0]), "-"+cmdHealth) {
		return args
	}
	return append([]string{args[0], cmdHealth}, args[1:]...)
}

func (p *program) health(c *cli.Context) error {
	ctx, cancel := context.WithTimeout(c.Context, healthPatience)
	defer cancel()
	done := make(chan error, 1) // a file may hang as well
	go func() { done <- p.checkHealth(ctx, c) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("gave up after %s: a disk or slurmctld does not answer", healthPatience)
	}
}

func (p *program) checkHealth(ctx context.Context, c *cli.Context) error {
	config, err := p.config(c)
	if err != nil {
		return err
	}
	dir, node := config.Agent.SpoolDir, config.Agent.Node
	state, told, err := p.readHealth(dir)
	if err != nil {
		return err
	}
	found := told.New(state.Findings())
	if len(found) == 0 {
		return nil
	}
	for _, f := range found {
		fmt.Fprintln(p.stdout, f.Text)
	}
	if c.Bool(optDryRun) {
		return errUnfit
	}
	drained, err := p.drain(ctx, node, found)
	if err != nil {
		return err
	}
	if drained {
		if err := told.Add(dir, found); err != nil {
			return err
		}
	}
	return errUnfit
}

// readHealth is what the agent has seen, and what was done about it.
func (p *program) readHealth(dir string) (*health.State, *health.Told, error) {
	state, err := health.Load(health.Path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("no agent has written %s: is gpubudget-agent running on this node?", health.Path(dir))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("what the agent has seen: %w", err)
	}
	boot, err := bootID()
	if err != nil {
		return nil, nil, err
	}
	if age := time.Since(state.At); state.BootID != boot || age > staleHealth {
		return nil, nil, fmt.Errorf("the agent has not looked at the GPUs since %s: is gpubudget-agent running on this node?", state.At.Local().Format(time.DateTime))
	}
	told, err := health.LoadTold(dir, boot)
	return state, told, err
}

// drain drains the node unless it takes no jobs already.
func (p *program) drain(ctx context.Context, node string, found []health.Finding) (bool, error) {
	shown, err := p.scontrol(ctx, "show", "node", node, "--oneliner")
	if err != nil {
		return false, err
	}
	for word := range strings.FieldsSeq(shown) {
		state, ok := strings.CutPrefix(word, "State=")
		if ok && (strings.Contains(state, "DRAIN") || strings.Contains(state, "DOWN")) {
			return false, nil
		}
	}
	texts := make([]string, len(found))
	for i, f := range found {
		texts[i] = f.Text
	}
	reason := reasonMark + strings.Join(texts, "; ")
	if len(reason) > longestReason {
		reason = reason[:longestReason-3] + "..."
	}
	_, err = p.scontrol(ctx, "update", "nodename="+node, "state=drain", "reason="+strings.ToValidUTF8(reason, ""))
	return err == nil, err
}

// scontrol runs scontrol. slurmd gives the check next to no environment.
func (p *program) scontrol(ctx context.Context, args ...string) (string, error) {
	if os.Getenv("PATH") == "" {
		if err := os.Setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"); err != nil {
			return "", err
		}
	}
	command := exec.CommandContext(ctx, "scontrol", args...)
	command.WaitDelay = time.Second
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("scontrol %s: %w: %s", args[0], err, strings.Join(strings.Fields(stderr.String()), " "))
	}
	return string(out), nil
}
