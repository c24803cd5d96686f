// SPDX-License-Identifier: GPL-2.0-or-later

// Package agent is the meter of a node: it turns what Prolog and Epilog wrote
// into exact times, looks at what the GPUs do meanwhile, keeps both on disk and
// hands them to the database.
//
// Who holds a GPU is Slurm's word, and goes on being counted while the driver,
// the database or the disk are away.
package agent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"gpubudget/agent/holding"
	"gpubudget/agent/slurmnode"
	"gpubudget/agent/spool"
	"gpubudget/agent/tally"
	"gpubudget/usage/meter"
)

// BucketLength is the length of the buckets, milliseconds. Readers can cut them
// anywhere, since they hold exact times: it is a matter of numbers of rows only.
const BucketLength = 3_600_000

// Sampler reads the GPUs: a *meter.Meter.
type Sampler interface {
	Sample() (*meter.Round, error)
	// Release lets go of the driver, Reopen takes it again.
	Release() error
	Reopen() error
	Close() error
}

// Options are what an agent works with. All but MappingDir, Connect and Socket
// are needed.
type Options struct {
	Cluster, Node, Version string

	JobsDir    string // what Prolog and Epilog write
	SpoolDir   string
	MappingDir string // dcgm-exporter's; "" for none
	Socket     string // for requests; "" for none
	GresConf   string
	MIGMinors  string // the driver's list of capabilities

	Interval, WriteInterval time.Duration

	// Open connects to the driver. It is tried again until it succeeds.
	Open func() (Sampler, error)
	// Connect connects to the database: for one write, or, with KeepConnection,
	// for as long as it lasts.
	Connect        func(ctx context.Context) (Database, error)
	KeepConnection bool
	Cgroups        *slurmnode.Cgroups
	Clock          meter.Clock
	BootID         string
	Log            *slog.Logger
}

// Agent is the meter of a node.
type Agent struct {
	o       Options
	log     *slog.Logger
	folder  *holding.Folder
	spool   *spool.Spool
	tally   *tally.Tally
	mapping *mapping
	metrics *metrics

	started  int64  // by the clock since the boot, ms
	name     string // of this start: no other has it
	epoch    int    // how often the clock was set
	offset   int64  // of the wall clock, ms
	last     int64  // the last round, by the clock since the boot, ms
	swept    int64  // when the folder of Prolog and Epilog was, by the same
	now      int64  // this one
	resuming bool   // what an agent before this one counted is not all seen yet
	// countFrom is from when on holdings are counted: since the boot, unless
	// nobody knows how far they have been counted already.
	countFrom int64

	devices []device
	slots   slotMap
	gresAt  time.Time             // of the last change of gres.conf
	pins    map[string]pin        // by file and place within it
	seen    map[jobOnGPU]*sighted // jobs without a Prolog
	alive   map[string]int64      // files of jobs whose control group was there, and when it last was
	grouped bool                  // Slurm makes control groups here
	gone    map[string]int64      // files of jobs that went without an Epilog, and when
	unread  map[string]bool       // files that can't be read now; "": none can

	sampler samplerBox
	samples *int64 // when the last sample was taken, wall clock ms; nil: none yet

	state  trouble // of the driver
	saving trouble
	files  trouble
	gres   trouble
	told   once

	health healthBox
	shared shared
}

// shared is what the goroutine that writes to the database takes from the one
// that measures.
type shared struct {
	mu      sync.Mutex
	report  Report
	devices []GPU
	changed int    // how often devices have changed
	views   []held // for those who ask for a GPU to be released
}

// New takes up the node's records and goes on where the agent before this one
// stopped.
func New(o Options) (*Agent, error) {
	a := &Agent{
		o: o, log: o.Log, folder: holding.NewFolder(o.JobsDir), pins: map[string]pin{}, seen: map[jobOnGPU]*sighted{}, alive: map[string]int64{},
		metrics: newMetrics(o.Version), mapping: newMapping(o.MappingDir),
	}
	if err := os.MkdirAll(o.JobsDir, 0o755); err != nil { //nolint:gosec // Prolog, another user, writes there
		return nil, fmt.Errorf("make the folder for Prolog and Epilog: %w", err)
	}
	var state *spool.State
	var err error
	a.spool, state, err = spool.Open(o.SpoolDir, func(err error) { a.log.Error("the spool", "err", err) })
	if err != nil {
		return nil, err
	}
	a.resumeHealth()
	a.started, a.offset, a.name = a.boot(), a.wallOffset(), rand.Text()
	a.last = a.started
	a.sweep()
	a.resume(state)
	return a, nil
}

func (a *Agent) boot() int64 { return a.o.Clock.Boot().Milliseconds() }

func (a *Agent) wallOffset() int64 {
	return a.o.Clock.Now().UnixMilli() - a.boot()
}

// incarnation names this agent's counting: of one start, and from one setting of
// the clock to the next. An instant does not tell two starts apart: they may fall
// into one millisecond, and a virtual machine that is set back lives through the
// same ones again.
func (a *Agent) incarnation() string {
	return tally.UUID(fmt.Sprintf("%s/%d", a.name, a.epoch))
}

// keptInMemory is what is said while the spool can't be written.
const keptInMemory = "what was counted is kept in memory only"

// kept is what the state on disk holds of this package's.
type kept struct {
	Devices []device         `json:"devices"`
	Pins    map[string]pin   `json:"pins,omitempty"`
	Alive   map[string]int64 `json:"alive,omitempty"`
}

// resume takes up what another agent has left.
func (a *Agent) resume(state *spool.State) {
	var marks []tally.Mark
	switch {
	case state == nil:
	case state.Damaged:
		a.log.Warn("nobody knows up to when jobs were counted: those that run are counted from now on")
		a.countFrom = a.started
	case state.Cluster != a.o.Cluster || state.Node != a.o.Node:
		a.log.Warn("the spool is of another node or cluster: what it has counted is not gone on with", "cluster", state.Cluster, "node", state.Node)
	default:
		var k kept
		if err := json.Unmarshal(state.Devices, &k); err != nil && len(state.Devices) > 0 {
			a.log.Warn("the devices in the spool can't be read", "err", err)
		}
		a.devices = k.Devices
		if state.BootID == a.o.BootID {
			marks, a.resuming = state.Marks, true
			maps.Copy(a.pins, k.Pins)
			maps.Copy(a.alive, k.Alive)
		} else if len(state.Marks) > 0 {
			a.log.Info("the node was rebooted: jobs of before have ended with it, and are counted up to the last look at them", "holdings", len(state.Marks))
		}
	}
	a.tally = tally.New(a.incarnation(), BucketLength, a.offset, marks)
	a.readSlots()
	if state == nil || len(state.Open) == 0 {
		return
	}
	// Those that were open are final: another incarnation counts on. If the disk is
	// full they wait in memory, and on it as what they were.
	if err := a.save(state.Open); err != nil {
		a.saving.met(a.log, a.o.Clock.Now(), keptInMemory, err)
	}
}

// save makes what has been counted durable.
func (a *Agent) save(closed []*tally.Bucket) error {
	text, err := json.Marshal(kept{a.devices, a.pins, a.alive})
	if err != nil {
		return err
	}
	return a.spool.Save(&spool.State{
		Cluster: a.o.Cluster, Node: a.o.Node, BootID: a.o.BootID, Marks: a.tally.Marks(), Open: a.tally.Buckets(), Devices: text,
	}, closed)
}

// What hooks that were killed left half written is removed now and then. A hook
// takes milliseconds, and a disk that hangs minutes at the most: what is older than
// leftOver nobody is writing any more.
const (
	sweepEvery = 3_600_000 // ms
	leftOver   = 600_000   // ms
)

func (a *Agent) sweep() {
	a.swept = a.boot()
	before := a.swept - leftOver
	if err := a.folder.Sweep(holding.Stamp{Boot: before, Wall: before + a.offset}); err != nil {
		a.log.Warn("what killed hooks left can't be removed", "err", err)
	}
}

// Run measures until the context ends, or the driver hangs or was exchanged: then the
// error is a *meter.HangError or meter.ErrOtherVersion, and the process should end, to
// be started anew. What has been counted is on disk in either case.
func (a *Agent) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var others sync.WaitGroup
	if a.o.Connect != nil {
		others.Go(func() { a.write(ctx) })
	}
	if a.o.Socket != "" {
		others.Go(func() { a.listen(ctx) })
	}
	err := a.measure(ctx)
	stop()
	others.Wait()
	if a.o.Connect != nil {
		a.lastWrite()
	}
	return errors.Join(err, a.close(err))
}

// close lets go of everything. A driver that hangs is left alone.
func (a *Agent) close(why error) error {
	errs := []error{a.spool.Close()}
	if _, hangs := errors.AsType[*meter.HangError](why); !hangs {
		errs = append(errs, a.sampler.close())
	}
	return errors.Join(errs...)
}

func (a *Agent) measure(ctx context.Context) error {
	ticker := time.NewTicker(a.o.Interval)
	defer ticker.Stop()
	for {
		if err := a.Round(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return a.Round() // up to the last moment
		case <-ticker.C:
		}
	}
}

// Round looks once at everything and makes it durable. Its error is one that
// only another process can mend.
func (a *Agent) Round() error {
	begun := a.o.Clock.Boot()
	a.checkClock()
	if a.boot()-a.swept >= sweepEvery {
		a.sweep()
	}
	if a.gresChanged() {
		a.readSlots()
		if a.shared.changed > 0 {
			a.shareDevices()
		}
	}
	seen, err := a.sample()
	a.noteHealth(seen, err)
	if err != nil {
		return errors.Join(err, a.finishRound(a.boot(), nil))
	}
	now := a.boot()
	if seen != nil {
		now = seen.Boot.Milliseconds()
		a.update(devicesOf(seen))
	}
	if err := a.finishRound(now, seen); err != nil {
		return err
	}
	a.metrics.round(a.o.Clock.Boot()-begun, a.samples)
	return nil
}

// finishRound counts up to now with what was seen.
func (a *Agent) finishRound(now int64, seen *meter.Round) error {
	now = max(now, a.last)
	a.now = now
	records := a.records(now)
	holdings, told := a.holdings(records)
	looks := a.looks(seen, holdings, now)
	holdings = append(holdings, a.sightedHoldings(told)...)
	a.tally.Add(tally.Round{Now: now, Holdings: holdings, Looks: looks})
	a.resuming = false
	if len(a.unread) == 0 {
		a.tally.Forget()
	}
	a.last = now
	closed := a.tally.Closed()
	if err := a.save(closed); err != nil {
		a.saving.met(a.log, a.o.Clock.Now(), keptInMemory, err)
	} else {
		a.saving.over(a.log, a.o.Clock.Now(), "the spool can be written again")
		a.forgetCounted(records)
	}
	if err := a.mapping.write(a.devices, holdings); err != nil && a.told.first(err.Error()) {
		a.log.Warn("dcgm-exporter's mapping", "err", err)
	}
	a.metrics.counted(a.spool, holdings, a.devices, seen)
	a.publish(holdings)
	a.told.turn()
	return nil
}

// publish leaves what the writer is to tell.
func (a *Agent) publish(holdings []tally.Holding) {
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	a.shared.views = views(a.devices, holdings, a.last)
	gpus := 0
	for i := range a.devices {
		if a.devices[i].Parent == "" {
			gpus++
		}
	}
	state := StateOK
	if text := a.state.text(); text != "" {
		state = text
	}
	a.shared.report = Report{
		Cluster: a.o.Cluster, Node: a.o.Node, Buckets: a.tally.Buckets(),
		Agent: Sign{
			Incarnation: a.incarnation(), BootID: a.o.BootID, Started: a.started + a.offset, Version: a.o.Version,
			Sampled: a.samples, GPUs: gpus, State: state,
		},
	}
}

// farOff is how far the wall clock must have been set for times to be taken from
// it anew. Less is the grain of looking at two clocks.
const farOff = 100

// checkClock notices that the wall clock was set: then another incarnation goes
// on counting, so that no bucket holds times of both.
func (a *Agent) checkClock() {
	offset := a.wallOffset()
	if by := offset - a.offset; by > farOff || by < -farOff {
		a.log.Info("the clock was set", "by", time.Duration(by)*time.Millisecond)
		a.offset = offset
		a.epoch++
		a.tally.Rebase(a.incarnation(), offset)
	}
}

// update takes over what the driver shows. GPUs that are not shown any more are
// forgotten when others are.
func (a *Agent) update(devices []device) {
	if len(devices) == 0 && len(a.devices) > 0 {
		return // numbers still mean what they meant
	}
	before := len(a.devices)
	changed := len(devices) != before
	for i := range devices {
		changed = changed || devices[i].UUID != a.devices[i].UUID || devices[i].PCIBusID != a.devices[i].PCIBusID
	}
	if !changed && a.shared.changed > 0 {
		return
	}
	a.devices = devices
	a.readSlots()
	a.shareDevices()
	a.log.Info("GPUs", "devices", len(devices), "slots", strings.Join(a.slots.uuids, " "))
}

// shareDevices leaves the devices to the writer.
func (a *Agent) shareDevices() {
	gpus := make([]GPU, len(a.devices))
	for i := range a.devices {
		gpus[i] = a.devices[i].GPU
	}
	a.shared.mu.Lock()
	defer a.shared.mu.Unlock()
	a.shared.devices = gpus
	a.shared.changed++
}

// gresChanged tells whether gres.conf is not the one that was read.
func (a *Agent) gresChanged() bool {
	at := time.Time{}
	if info, err := os.Stat(a.o.GresConf); err == nil {
		at = info.ModTime()
	}
	changed := !at.Equal(a.gresAt)
	a.gresAt = at
	return changed
}

// readSlots finds out what slurmd's numbers mean.
func (a *Agent) readSlots() {
	g, err := slurmnode.ReadGres(a.o.GresConf, a.o.Node)
	places, err2 := slurmnode.MIGPlaces(a.o.MIGMinors)
	if err := errors.Join(err, err2); err != nil {
		a.gres.met(a.log, a.o.Clock.Now(), "which GPU a number of SLURM_JOB_GPUS means is guessed by PCI address", err)
	} else {
		a.gres.over(a.log, a.o.Clock.Now(), "gres.conf can be read again")
	}
	a.slots = newSlotMap(g, places, a.devices)
	a.slots.number(a.devices)
}
