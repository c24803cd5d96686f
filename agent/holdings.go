// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gpubudget/agent/holding"
	"gpubudget/agent/tally"
	"gpubudget/fairshare"
)

// pin is which device a place in a file was found to mean, once and for all: a
// job keeps the GPU it was given, even if numbers come to mean others.
type pin struct {
	// Before are devices that it was taken for until an instant; mostly none.
	Before []pinned `json:"before,omitempty"`
	UUID   string   `json:"uuid"`
	From   int64    `json:"from"`
}

type pinned struct {
	UUID  string `json:"uuid"`
	From  int64  `json:"from"`
	Until int64  `json:"until"`
}

// records are the files of Prolog and Epilog that tell of this boot. Others are
// removed: what they tell of has ended with the boot before.
func (a *Agent) records(now int64) []*holding.Record {
	records, errs := a.folder.List()
	at := a.o.Clock.Now()
	if len(errs) == 0 {
		a.files.over(a.log, at, "what Prolog and Epilog write can be read again")
	}
	a.unread = map[string]bool{}
	for _, err := range errs {
		if damaged, ok := errors.AsType[*holding.DamagedError](err); ok {
			a.log.Error("a file of Prolog or Epilog is put aside", "dir", a.o.JobsDir, "err", err)
			err = a.folder.Quarantine(damaged.File)
		}
		if unread, ok := errors.AsType[*holding.UnreadableError](err); ok {
			a.unread[unread.File] = true
		}
		if err != nil {
			a.files.met(a.log, at, "what Prolog and Epilog wrote can't be read: it is taken to be as it was", err, "dir", a.o.JobsDir)
		}
	}
	var stale []string
	records = slices.DeleteFunc(records, func(r *holding.Record) bool {
		old := r.BootID != a.o.BootID
		if old {
			stale = append(stale, r.File)
		}
		return old
	})
	if len(stale) > 0 {
		a.log.Info("files of before the node was rebooted are removed", "files", strings.Join(stale, " "))
		a.remove(stale)
	}
	return a.reconcile(records, now)
}

// reconcile ends what no Epilog will end: a run whose job has started anew here,
// and one whose control group was there and has been gone for long.
func (a *Agent) reconcile(records []*holding.Record, now int64) []*holding.Record {
	jobs, known := a.o.Cgroups.Jobs()
	a.grouped = known
	out := make([]*holding.Record, len(records))
	alive, gone := map[string]int64{}, map[string]int64{}
	for i, r := range records {
		out[i] = r
		if r.Until != nil || !known {
			continue
		}
		last, was := a.alive[r.File]
		switch {
		case jobs[r.JobID]:
			alive[r.File] = now
		case was && now-last > patienceMS:
			alive[r.File], gone[r.File] = last, a.goneAt(r)
			out[i] = endedAt(r, gone[r.File])
		case was:
			alive[r.File] = last
		}
	}
	a.alive, a.gone = alive, gone
	for i, r := range out {
		for _, later := range out {
			if r.Until == nil && later.JobID == r.JobID && later.Restart > r.Restart {
				out[i] = endedAt(r, later.From.Boot)
			}
		}
	}
	return out
}

// patienceMS is how long a job may be without its control group until it is
// taken for gone: Epilog runs after the group was removed, and may take its time.
const patienceMS = 5 * 60_000

// goneAt is when a job ended that had no Epilog: as far as it has been counted.
func (a *Agent) goneAt(r *holding.Record) int64 {
	if at, ok := a.gone[r.File]; ok {
		return at
	}
	a.log.Warn("a job has gone without an Epilog: it is counted up to the last look at it", "job", r.JobID, "restart", r.Restart)
	if a.resuming {
		return r.From.Boot // what an agent before this one has counted stays
	}
	return a.last
}

func endedAt(r *holding.Record, boot int64) *holding.Record {
	ended := *r
	boot = max(boot, r.From.Boot)
	ended.Until = &holding.Stamp{Boot: boot, Wall: r.From.Wall + boot - r.From.Boot}
	return &ended
}

// holdings are those that Prolog told of, and which GPUs each of their jobs has.
func (a *Agent) holdings(records []*holding.Record) (all []tally.Holding, told map[uint32][]string) {
	files := map[string]bool{}
	told = map[uint32][]string{}
	for _, r := range records {
		for i, uuid := range a.slots.resolve(r) {
			place := fmt.Sprintf("%s/%d", r.File, i)
			files[place] = true
			all = append(all, a.pinnedHoldings(r, place, uuid)...)
			told[r.JobID] = append(told[r.JobID], a.pins[place].UUID)
		}
	}
	maps.DeleteFunc(a.pins, func(place string, _ pin) bool {
		file, _, _ := strings.Cut(place, "/")
		return !files[place] && !a.unread[file] && !a.unread[""]
	})
	return all, told
}

// pinnedHoldings are what one place of a file says: one holding, or more if the
// GPU came to be known by another name while it was held.
func (a *Agent) pinnedHoldings(r *holding.Record, place, uuid string) (all []tally.Holding) {
	p, ok := a.pins[place]
	switch {
	case !ok:
		p = pin{UUID: uuid, From: max(r.From.Boot, a.countFrom)}
		if strings.HasPrefix(uuid, unknownPrefix) {
			a.log.Warn("the driver does not show which GPU a job holds: it is called by slurmd's number", "job", r.JobID, "gpu", uuid)
		}
	case p.UUID != uuid && !a.there(p.UUID) && a.there(uuid):
		a.log.Info("a GPU that a job holds goes by another UUID now", "job", r.JobID, "was", p.UUID, "is", uuid)
		at := max(p.From, a.tally.UpTo(holdingOf(r, p.UUID, p.From, tally.Open).ID))
		if at > p.From {
			p.Before = append(slices.Clone(p.Before), pinned{p.UUID, p.From, at})
		}
		p.UUID, p.From = uuid, at
	}
	a.pins[place] = p
	until := tally.Open
	if r.Until != nil {
		until = r.Until.Boot
	}
	for _, b := range p.Before {
		all = append(all, holdingOf(r, b.UUID, b.From, min(b.Until, max(until, b.From))))
	}
	return append(all, holdingOf(r, p.UUID, p.From, max(until, p.From)))
}

// there tells whether the driver shows a device.
func (a *Agent) there(uuid string) bool {
	return slices.ContainsFunc(a.devices, func(d device) bool { return d.UUID == uuid })
}

func holdingOf(r *holding.Record, uuid string, from, until int64) tally.Holding {
	h := tally.Holding{
		ID:    tally.ID{GPU: uuid, JobID: r.JobID, Restart: r.Restart, From: from},
		Until: until, Source: tally.FromProlog, User: r.User, Account: r.Account, MPSPercent: r.MPSPercent,
	}
	if r.JobStart > 0 {
		at := fairshare.Instant(r.JobStart * 1000)
		h.JobStarted = &at
	}
	return h
}

// forgetCounted removes the files that have been counted to their end, now that
// this is on disk.
func (a *Agent) forgetCounted(records []*holding.Record) {
	var done []string
	for _, r := range records {
		if r.Until != nil && r.Until.Boot <= a.last {
			done = append(done, r.File)
		}
	}
	a.remove(done)
}

func (a *Agent) remove(files []string) {
	if err := a.folder.Remove(files...); err != nil && a.told.first(err.Error()) {
		a.log.Error("files of Prolog can't be removed: let the agent's user own the folder", "dir", a.o.JobsDir, "err", err)
	}
}
