// SPDX-License-Identifier: GPL-2.0-or-later

package main

import (
	"errors"
	"fmt"
	"log/syslog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"gpubudget/agent/holding"
	"gpubudget/conf"
	"gpubudget/usage/meter"
)

// The hooks.
const (
	hookProlog = "prolog"
	hookEpilog = "epilog"
)

// hookPatience is how long a hook may take: after it, the job goes on without.
// logPatience is how long the system's log may take to be told then.
const (
	hookPatience = 5 * time.Second
	logPatience  = time.Second
)

// gpuFiles are the device files of a node that has GPUs.
const gpuFiles = "/dev/nvidia[0-9]*"

// hookCommand is the page of a hook in the help; hooks themselves are run
// before the command line is taken apart.
func (p *program) hookCommand(name, usage string) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, HideHelpCommand: true,
		Description: "Writes a file of a few hundred bytes into AgentJobsDir and ends. It always\n" +
			"   succeeds, as far as Slurm is concerned: what goes wrong is in the system's log.",
		Action: cli.ShowSubcommandHelp,
	}
}

// runHook runs a hook. Its exit code is 0 whatever happens: a job must not fail
// for the sake of a meter.
func (p *program) runHook(hook string, args []string) int {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if v := recover(); v != nil {
				done <- fmt.Errorf("panic: %v", v)
			}
		}()
		done <- p.hook(hook, args)
	}()
	select {
	case err := <-done:
		p.tell(hook, err)
	case <-time.After(hookPatience):
		p.tell(hook, fmt.Errorf("the disk has not answered for %s: nothing is recorded", hookPatience))
	}
	return exitOK
}

func (p *program) hook(hook string, args []string) error {
	config, confErr := conf.Load(option(args, optConf))
	if confErr != nil {
		config = conf.Defaults()
		confErr = fmt.Errorf("%w: the default folder is used", confErr)
	}
	boot, err := bootID()
	if err != nil {
		return errors.Join(confErr, err)
	}
	clock := meter.SystemClock{}
	h := &holding.Hooks{
		Dir: config.Agent.ForNode(p.node(option(args, optNode), config)).JobsDir, Getenv: p.getenv, BootID: boot,
		Now: func() holding.Stamp {
			return holding.Stamp{Boot: clock.Boot().Milliseconds(), Wall: clock.Now().UnixMilli()}
		},
	}
	if hook == hookProlog {
		return errors.Join(confErr, h.Prolog())
	}
	return errors.Join(confErr, h.Epilog())
}

// option is the value of an option in a command line that may be wrong in any
// other way.
func option(args []string, name string) string {
	for i, arg := range args[1:] {
		arg = strings.TrimPrefix(arg, "-")
		switch {
		case arg == "-"+name && i+2 < len(args):
			return args[i+2]
		case strings.HasPrefix(arg, "-"+name+"="):
			return strings.TrimPrefix(arg, "-"+name+"=")
		}
	}
	return ""
}

// tell says what went wrong, if anything did, to slurmd and to the system's log.
// slurmd logs what a hook that succeeded says at debug2 only, so that the system's
// log is where it is seen.
func (p *program) tell(hook string, err error) {
	if err == nil {
		return
	}
	text := strings.Join(strings.Fields(err.Error()), " ")
	fmt.Fprintf(p.stderr, "gpubudget-agent %s: %s\n", hook, text)
	priority := syslog.LOG_ERR
	if _, ok := errors.AsType[*holding.NoGPUsError](err); ok {
		if !p.hasGPUs() {
			return // no job holds any here
		}
		priority = syslog.LOG_INFO // mostly a job that asked for none
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.logLine(priority, hook+": "+text)
	}()
	select {
	case <-done:
	case <-time.After(logPatience): // a log that does not take lines holds up no job
	}
}

// hasGPUs tells whether there are GPUs on this node. It asks no driver.
func (p *program) hasGPUs() bool {
	files, err := filepath.Glob(p.gpuFiles)
	return err == nil && len(files) > 0
}

// logLine writes to the system's log, if there is one.
func (p *program) logLine(priority syslog.Priority, text string) {
	network := "unixgram"
	if p.logSocket == "" {
		network = "" // the system's, wherever it is
	}
	log, err := syslog.Dial(network, p.logSocket, priority|syslog.LOG_DAEMON, "gpubudget-agent")
	if err != nil {
		return
	}
	_, _ = log.Write([]byte(text))
	_ = log.Close()
}

// bootID tells one boot of the machine from another.
func bootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("which boot this is: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
