// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"fmt"
	"math"
	"time"

	"gpubudget/fairshare"
	"gpubudget/usage"
)

// spoolPreemption is a run that had to give way. StartedAt and At are in Unix
// milliseconds.
type spoolPreemption struct {
	At             fairshare.Instant `json:"at"`
	Rule           string            `json:"rule"`
	Mode           string            `json:"mode,omitempty"`
	Node           string            `json:"node,omitempty"`
	Victim         spoolParty        `json:"victim"`
	StartedAt      fairshare.Instant `json:"start"`
	ProtectedUntil fairshare.Instant `json:"protected,omitempty"` // absent: never
	Request        *spoolParty       `json:"request,omitempty"`   // absent: nobody
}

// The modes of a preemption.
const (
	requeues = "requeue"
	cancels  = "cancel"
)

// spoolParty is one of the jobs of a preemption.
type spoolParty struct {
	JobID       uint32  `json:"job"`
	Restart     uint32  `json:"restart,omitempty"`
	Account     string  `json:"account"`
	User        string  `json:"user"`
	GPUs        int64   `json:"gpus"`
	Allocated   bool    `json:"allocated,omitempty"`
	MinRuntime  int64   `json:"min_runtime,omitempty"` // milliseconds
	QOSPriority uint32  `json:"qos,omitempty"`
	Nice        int64   `json:"nice,omitempty"`
	Known       bool    `json:"known,omitempty"` // the ratio is
	Ratio       float64 `json:"ratio,omitempty"`
	Uncharged   bool    `json:"uncharged,omitempty"` // the ratio is infinite, which JSON has no number for
	Rank        int     `json:"rank,omitempty"`
}

func spooledPreemption(p *Preemption) *spoolPreemption {
	request := spooledParty(&p.Request)
	s := &spoolPreemption{
		At: p.At, Rule: fmt.Sprintf("R%d", p.Rule), Mode: cancels, Victim: spooledParty(&p.Victim),
		StartedAt: fairshare.At(p.Victim.StartedAt), Request: &request,
	}
	if p.Requeue {
		s.Mode = requeues
	}
	if p.Victim.Allocated {
		s.ProtectedUntil = p.Victim.ProtectedUntil
	}
	return s
}

func spooledParty(p *Party) spoolParty {
	s := spoolParty{
		JobID: p.JobID, Restart: p.Restart, Account: p.Account, User: p.User, GPUs: p.GPUs, Allocated: p.Allocated,
		MinRuntime: p.MinRuntime.Milliseconds(), QOSPriority: p.QOSPriority, Nice: p.Nice, Known: true, Rank: p.Rank,
	}
	switch {
	case math.IsNaN(p.Ratio):
		s.Known = false
	case math.IsInf(p.Ratio, 0):
		s.Uncharged = true
	default:
		s.Ratio = p.Ratio
	}
	return s
}

// preemption is the row of the database.
func (s *spoolPreemption) preemption(cluster string) usage.Preemption {
	p := usage.Preemption{
		Cluster: cluster, At: s.At.Time(), Rule: s.Rule, Mode: s.Mode, Node: s.Node,
		Job: s.Victim.party(), StartedAt: s.StartedAt.Time(),
	}
	if s.ProtectedUntil != 0 {
		p.ProtectedUntil = new(s.ProtectedUntil.Time())
	}
	if s.Request != nil {
		p.For = new(s.Request.party())
	}
	return p
}

func (s *spoolParty) party() usage.Party {
	p := usage.Party{
		JobID: s.JobID, Restart: s.Restart, Account: s.Account, User: s.User, GPUs: s.GPUs, Allocated: s.Allocated,
		MinRuntime: time.Duration(s.MinRuntime) * time.Millisecond, QOSPriority: s.QOSPriority, Nice: s.Nice, Rank: s.Rank,
	}
	switch {
	case s.Uncharged:
		p.Ratio = new(math.Inf(1))
	case s.Known:
		p.Ratio = &s.Ratio
	}
	return p
}

// gaveWay are the preemptions that the spool has to hear of.
func (e *Engine) gaveWay() []spoolRecord {
	taken := e.takePreemptions()
	var recs []spoolRecord
	for i := range taken {
		recs = append(recs, spoolRecord{Preemption: spooledPreemption(&taken[i])})
	}
	for _, p := range e.takeLeft() {
		recs = append(recs, spoolRecord{Preemption: p})
	}
	return recs
}
