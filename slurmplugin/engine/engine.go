// SPDX-License-Identifier: GPL-2.0-or-later

// Package engine is the plugin without Slurm and without C: it is shown every
// job of the cluster, pass after pass, answers with priorities, and keeps the
// record of what ran.
package engine

import (
	"errors"
	"fmt"
	"time"

	"gpubudget/conf"
)

// Level is the weight of a log line, enum gpub_log_level of bridge.h.
type Level int

// The log levels.
const (
	LogError Level = iota
	LogInfo
	LogVerbose
	LogDebug
)

// Host is the process the engine lives in.
type Host struct {
	Cluster      string // ClusterName
	SlurmVersion string
	ConfPath     string // gpubudget.conf, "" for its default place
	StateDir     string // StateSaveLocation
	Version      string // of gpubudget
	Log          func(Level, string)
}

// Weights are slurm.conf's priority settings; Flags are those of bridge.h.
type Weights struct {
	Age, Assoc, Fairshare, JobSize, Partition, QOS uint32
	MaxAge                                         uint32 // seconds
	Flags                                          uint32
	FavorSmall                                     bool
	DampFactor                                     uint32
	TRES                                           []float64
}

// Engine is a running engine.
type Engine struct {
	host Host
	conf conf.Conf
}

// Start reads the configuration and starts the engine. It does not wait for
// Postgres.
func Start(h Host) (*Engine, error) {
	c, err := conf.Load(h.ConfPath)
	if err != nil {
		return nil, err
	}
	e := &Engine{host: h, conf: c}
	h.Log(LogInfo, fmt.Sprintf("gpubudget %s: started for cluster %s", h.Version, h.Cluster))
	return e, nil
}

// Stop ends the engine.
func (e *Engine) Stop() error { return nil }

// Configure takes new weights.
func (e *Engine) Configure(Weights) {}

// CalcInterval is the time between two passes, 0 to use PriorityCalcPeriod.
func (e *Engine) CalcInterval() time.Duration { return e.conf.CalcInterval }

// BeginPass begins a pass at nowMS, in Unix milliseconds.
func (e *Engine) BeginPass(nowMS int64, c Cluster) {}

// Observe shows jobs to the pass.
func (e *Engine) Observe(jobs []Job) {}

// Prioritize gives jobs their priorities.
func (e *Engine) Prioritize(jobs []Job, out []Factors) error {
	if len(jobs) != len(out) {
		return errors.New("jobs and factors differ in number")
	}
	for i := range jobs {
		byArrival(&jobs[i], &out[i])
	}
	return nil
}

// EndPass ends the pass.
func (e *Engine) EndPass() error { return nil }

// Set gives one job its priority.
func (e *Engine) Set(job *Job, nowMS int64, out *Factors) error {
	byArrival(job, out)
	return nil
}

// Sight shows one job between passes.
func (e *Engine) Sight(job *Job, nowMS int64) {}

// Standings fills in what sshare shows.
func (e *Engine) Standings(assocs []Assoc) {
	for i := range assocs {
		assocs[i].Known = 0
	}
}

// byArrival is first come, first served.
func byArrival(j *Job, out *Factors) {
	p := uint32(max(1, 4_000_000_000-j.Submit))
	*out = Factors{Age: float64(p), TRES: out.TRES, Priority: p}
	for i := range j.parts() {
		j.parts()[i].Priority = p
	}
}
