// SPDX-License-Identifier: GPL-2.0-or-later

// Package slurmnode is what can be read on a compute node of Slurm: whose a
// process is, which jobs are alive, and which device gres.conf means by a number.
package slurmnode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Cgroups finds jobs by the control groups that Slurm makes for them, in any of
// its layouts:
//
//	/slurm[_NODE]/uid_U/job_J/step_S                          cgroup/v1
//	/system.slice/[NODE_]slurmstepd.scope/job_J/step_S/...     cgroup/v2
//	/system.slice/[NODE_]slurmstepd.scope/SLUID/step_S/...     from 26.05, without CgroupJobIdPaths=yes
//
// A SLUID says nothing about the job; its slurmstepd does, in its title. It is
// used by one goroutine.
type Cgroups struct {
	Node string // its name, where several slurmds share a host
	Proc string // "/proc" if empty
	Root string // "/sys/fs/cgroup" if empty

	sluids map[string]uint32
	seen   bool // there were groups of this node once
}

func (c *Cgroups) proc(elem ...string) string {
	return filepath.Join(append([]string{orElse(c.Proc, "/proc")}, elem...)...)
}

func (c *Cgroups) root() string { return orElse(c.Root, "/sys/fs/cgroup") }

func orElse(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

// Job is the job that a process belongs to; false if it belongs to none, or has
// ended.
func (c *Cgroups) Job(pid int) (uint32, bool, error) {
	text, err := os.ReadFile(c.proc(strconv.Itoa(pid), "cgroup"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errGone) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("whose process %d is: %w", pid, err)
	}
	for line := range strings.Lines(string(text)) {
		// hierarchy:controllers:path
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		if job, ok := c.jobOfPath(fields[2]); ok {
			return job, true, nil
		}
	}
	return 0, false, nil
}

var (
	jobSegment = regexp.MustCompile(`^job_([1-9][0-9]{0,9})$`)
	sluid      = regexp.MustCompile(`^s[0-9A-Z]{13}$`)
)

// jobOfPath is the job of a control group's path. Only what stands right below
// Slurm's own root counts: users may name groups as they like.
func (c *Cgroups) jobOfPath(path string) (uint32, bool) {
	segments := strings.Split(path, "/")
	for i, segment := range segments {
		rest := segments[i+1:]
		switch {
		case segment == "slurm" || strings.HasPrefix(segment, "slurm_"):
			if len(rest) > 1 && strings.HasPrefix(rest[0], "uid_") {
				return jobNumber(rest[1])
			}
		case strings.HasSuffix(segment, "slurmstepd.scope"):
			if len(rest) == 0 {
				return 0, false
			}
			if sluid.MatchString(rest[0]) {
				return c.jobOfSLUID(filepath.Join(segments[:i+1]...), rest[0])
			}
			return jobNumber(rest[0])
		}
	}
	return 0, false
}

func jobNumber(segment string) (uint32, bool) {
	match := jobSegment.FindStringSubmatch(segment)
	if match == nil {
		return 0, false
	}
	n, err := strconv.ParseUint(match[1], 10, 32)
	return uint32(n), err == nil
}

// stepdTitle is the title of a slurmstepd: "slurmstepd: [123.0]".
var stepdTitle = regexp.MustCompile(`^slurmstepd: \[([1-9][0-9]{0,9})\.`)

// jobOfSLUID asks the titles of the slurmstepds within a job's group. scope is
// relative to the root of the hierarchy.
func (c *Cgroups) jobOfSLUID(scope, id string) (uint32, bool) {
	if job, ok := c.sluids[id]; ok {
		return job, true
	}
	for _, root := range []string{c.root(), filepath.Join(c.root(), "unified")} {
		lists, err := filepath.Glob(filepath.Join(root, scope, id, "step_*", "slurm", "cgroup.procs"))
		if err != nil {
			return 0, false
		}
		for _, list := range lists {
			if job, ok := c.jobOfStepd(list); ok {
				if c.sluids == nil {
					c.sluids = map[string]uint32{}
				}
				c.sluids[id] = job
				return job, true
			}
		}
	}
	return 0, false
}

func (c *Cgroups) jobOfStepd(list string) (uint32, bool) {
	text, err := os.ReadFile(list)
	if err != nil {
		return 0, false
	}
	for pid := range strings.FieldsSeq(string(text)) {
		title, err := os.ReadFile(c.proc(pid, "cmdline"))
		if err != nil {
			continue
		}
		if match := stepdTitle.FindSubmatch(title); match != nil {
			n, err := strconv.ParseUint(string(match[1]), 10, 32)
			return uint32(n), err == nil
		}
	}
	return 0, false
}

// Jobs are the jobs that have a control group on this node. known is false if
// Slurm makes none here, as without proctrack/cgroup: then nothing follows from
// one that is missing.
func (c *Cgroups) Jobs() (jobs map[uint32]bool, known bool) {
	jobs = map[uint32]bool{}
	there := false
	for _, pattern := range []string{"*/slurm", "*/slurm_" + c.Node} { // v1: in each controller's hierarchy
		for _, root := range c.glob(pattern) {
			there = true
			for _, dir := range c.globIn(root, "uid_*/job_*") {
				if job, ok := jobNumber(filepath.Base(dir)); ok {
					jobs[job] = true
				}
			}
		}
	}
	for _, pattern := range []string{
		"system.slice/slurmstepd.scope", "system.slice/" + c.Node + "_slurmstepd.scope",
		"unified/system.slice/slurmstepd.scope", "unified/system.slice/" + c.Node + "_slurmstepd.scope",
	} {
		for _, scope := range c.glob(pattern) {
			there = true
			c.jobsOfScope(scope, jobs)
		}
	}
	c.seen = c.seen || there
	return jobs, c.seen
}

func (c *Cgroups) jobsOfScope(scope string, jobs map[uint32]bool) {
	entries, err := os.ReadDir(scope)
	if err != nil {
		return // it has just gone
	}
	alive := map[string]uint32{}
	relative := strings.TrimPrefix(strings.TrimPrefix(scope, c.root()), "/unified")
	for _, e := range entries {
		name := e.Name()
		job, ok := jobNumber(name)
		if sluid.MatchString(name) {
			if job, ok = c.jobOfSLUID(relative, name); ok {
				alive[name] = job
			}
		}
		if ok {
			jobs[job] = true
		}
	}
	c.sluids = alive
}

func (c *Cgroups) glob(pattern string) []string { return c.globIn(c.root(), pattern) }

// globIn ignores the one error there is, that of a pattern: node names have no
// brackets.
func (c *Cgroups) globIn(dir, pattern string) []string {
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		return nil
	}
	return found
}
