// SPDX-License-Identifier: GPL-2.0-or-later

// Package engine is the plugin without Slurm and without C. It is shown every
// job of the cluster, pass after pass, answers with priorities, and keeps the
// record of what ran.
//
// Its parts, each in a file of its own:
//
//	tracker      derives runs, demand and capacity from what passes show
//	standing     ranks accounts and users, and makes priorities
//	slurmshares  has them go by slurmdbd's shares in place of the ledger's
//	recorder     writes what the tracker derived to the spool, a file
//	refresher    writes the spool to Postgres, and reads the snapshot from there
//	snapshot     all that is known from Postgres; saved to a file
//
// Slurm's threads meet the first two only, under a lock that is never held
// across I/O. The recorder and the refresher are goroutines of their own.
package engine

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gpubudget/conf"
	"gpubudget/fairshare"
	"gpubudget/usage"
)

// Host is the process the engine lives in.
type Host struct {
	Cluster      string // ClusterName
	SlurmVersion string
	ConfPath     string // gpubudget.conf
	StateDir     string // StateSaveLocation
	Version      string // of gpubudget
	// Log writes a line into the host's log, from any goroutine.
	Log func(Level, string)
	// Clock is what time it is; time.Now if nil. Passes bring their own time.
	Clock func() time.Time
	// Passed is how much time has passed since whenever, by a clock that nobody
	// sets; the machine's own if nil.
	Passed func() time.Duration
}

// stopTimeout bounds how long Stop waits for goroutines, and then for the disk.
const (
	stopTimeout  = 1500 * time.Millisecond
	closeTimeout = 500 * time.Millisecond
)

// Engine is a running engine. Its methods are safe for concurrent use, and but
// for Start and Stop none does I/O.
type Engine struct {
	host        Host
	cluster     string // by which the database knows it
	incarnation string // of this engine
	began       fairshare.Instant
	conf        atomic.Pointer[conf.Conf]
	wanted      atomic.Bool
	gate        atomic.Pointer[gate] // nil as long as nobody is judged by budgets

	recorder  *recorder
	refresher *refresher
	services  *services

	mu         sync.Mutex // guards all below; never held across I/O
	owners     *owners
	tracker    *tracker
	demand     *demand
	snapshot   *Snapshot // nil before the first
	window     *window   // of the snapshot
	weights    fairshare.Weights
	generation uint64 // of weights
	size       Cluster
	watching   bool               // this pass is tracked, for there is a database to tell
	pass       uint64             // counts passes, tracked or not
	seen       fairshare.Seen     // what the jobs of this pass have that pend
	ranking    *fairshare.Ranking // how everybody stood in the last pass that gave priorities; nil before it
	rankedBy   *Snapshot          // in that pass; nil if there was none
	scorer     scorer             // of that pass
	seats      seats              // of associations in ranking
	table      *fairshare.Table   // the scorer as numbers
	slurm      slurmShares
	contract   contract
	left       []*spoolPreemption // runs that left drained nodes; not taken yet
	spooled    fairshare.Instant  // when demand went to the spool
}

// Start starts an engine. It reads its configuration and what an earlier engine
// left in files, but does not wait for Postgres.
func Start(h Host) (*Engine, error) {
	c, err := h.loadConf()
	if err != nil {
		return nil, err
	}
	if h.Clock == nil {
		h.Clock = time.Now
	}
	e := newEngine(h, c)
	if c.UsesDatabase() {
		e.loadFiles()
	} else {
		e.logf(LogInfo, "shares are those of Slurm's associations; there is no DSN in %s, so nothing is recorded", c.Path)
	}
	e.services = startServices(e.panicked, service{"recorder", e.recorder.run}, service{"refresher", e.refresher.run})
	e.logf(LogInfo, "version %s, cluster %s, Slurm %s", h.Version, e.cluster, h.SlurmVersion)
	return e, nil
}

// loadConf reads the configuration file. The one in the default place need not
// exist.
func (h Host) loadConf() (conf.Conf, error) {
	if h.ConfPath == conf.DefaultPath {
		return conf.Load("")
	}
	return conf.Load(h.ConfPath)
}

func newEngine(h Host, c conf.Conf) *Engine {
	e := &Engine{host: h, cluster: h.Cluster, incarnation: newIncarnation(h.Clock()), began: fairshare.At(h.Clock())}
	e.conf.Store(&c)
	e.contract.asks, e.contract.tries, e.contract.evictions = make(map[uint32]*ask), make(map[uint32]*tries), make(evictions)
	e.slurm.inForce = c.Shares == conf.SharesSlurm
	e.watching = c.UsesDatabase()
	if c.Cluster != "" {
		e.cluster = c.Cluster
	}
	e.demand = newDemand(usage.DefaultBucket)
	e.owners = newOwners(e.demand)
	e.tracker = newTracker(e.cluster, e.owners, e.demand)
	e.tracker.clock = newSteadyClock(h)
	e.recorder = newRecorder(e, spoolDir(h, c))
	e.refresher = newRefresher(e)
	return e
}

// panicked logs what a goroutine died of.
func (e *Engine) panicked(name string, value any, stack []byte) {
	e.logf(LogError, "%s: panic: %v\n%s", name, value, stack)
}

// newIncarnation names one engine of one process among all there ever were.
func newIncarnation(now time.Time) string {
	var random [4]byte
	rand.Read(random[:]) // never fails
	return now.UTC().Format("20060102T150405Z-") + hex.EncodeToString(random[:])
}

func spoolDir(h Host, c conf.Conf) string {
	if c.SpoolDir != "" {
		return c.SpoolDir
	}
	return h.StateDir
}

// loadFiles goes on with what an earlier engine has left: the snapshot and the
// spool. Neither is needed to start.
func (e *Engine) loadFiles() {
	now := fairshare.At(e.host.Clock())
	until := "no account is funded and jobs are ordered by QOS, nice, age and size"
	if e.slurm.inForce {
		until = "no run is judged"
	}
	s, err := loadSnapshot(e.host.StateDir, e.cluster)
	switch {
	case err == nil:
		e.logf(LogInfo, "starting with the snapshot of %s, which is %s old", showTime(s.ReadAt), age(s.ReadAt, now))
		e.install(s, false)
		e.remember(s.Evictions)
		e.refresher.saved = s
	case errors.Is(err, errNoSnapshot):
		e.logf(LogInfo, "no snapshot yet: until Postgres is read, %s", until)
	default:
		e.logf(LogError, "%v: until Postgres is read, %s", err, until)
	}
	e.recorder.saving.Lock()
	defer e.recorder.saving.Unlock()
	e.recorder.report(e.recorder.open())
}

func showTime(i fairshare.Instant) string { return i.Time().Format(time.RFC3339) }

func age(then, now fairshare.Instant) time.Duration {
	return (time.Duration(now-then) * time.Millisecond).Round(time.Second)
}

// Stop writes the spool and ends the engine's goroutines. It is back within two
// seconds; the error says what could not be done by then.
func (e *Engine) Stop() error {
	done := make(chan error, 1)
	go func() {
		ended := e.services == nil || e.services.stop(stopTimeout)
		err := e.recorder.close()
		if !ended {
			err = errors.Join(err, errors.New("a goroutine did not end in time"))
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(stopTimeout + closeTimeout):
		return errors.New("the spool could not be closed in time")
	}
}

// Configure takes slurm.conf's priority settings and has the configuration file
// read again. The next table will say that it is of this generation of them.
func (e *Engine) Configure(w fairshare.Weights, generation uint64) {
	e.mu.Lock()
	e.weights, e.generation = w, generation
	e.mu.Unlock()
	e.wanted.Store(true)
	e.refresher.reconfigure()
}

// CalcInterval is the time between two passes, 0 to use PriorityCalcPeriod.
func (e *Engine) CalcInterval() time.Duration { return e.conf.Load().CalcInterval }

// Wanted tells whether something has changed since the last pass that gives
// priorities began, and should not wait for the next.
func (e *Engine) Wanted() bool { return e.wanted.Load() }

// BeginPass begins a pass at nowMS, in Unix milliseconds.
func (e *Engine) BeginPass(nowMS int64, c Cluster) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pass++
	e.size, e.seen = c, fairshare.Seen{}
	if e.watching = e.conf.Load().UsesDatabase(); !e.watching {
		e.tracker.now, e.tracker.broken = fairshare.Instant(nowMS), false
		return
	}
	e.tracker.begin(fairshare.Instant(nowMS), c.holding())
}

// Observe shows jobs to the pass: in the course of it, all there are.
func (e *Engine) Observe(jobs []Job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	whole := false
	defer func() { e.tracker.broken = e.tracker.broken || !whole }()
	for i := range jobs {
		e.observe(&jobs[i])
	}
	whole = true
}

func (e *Engine) observe(j *Job) {
	var o *owner
	if e.watching {
		o = e.tracker.observe(j)
	}
	if j.State != Pending || e.slurm.inForce {
		e.slurm.note(j)
		return
	}
	if o == nil {
		o = e.owners.of(j)
	}
	o.note(&e.seen, e.pass, j, e.owners.unallocated.Include(j.MinRuntime))
}

// EndPass ends the pass: jobs it has not shown are gone.
func (e *Engine) EndPass() error {
	defer e.recorder.notify()
	defer e.tellJump()
	defer e.tellUnassociated()
	defer e.tellCapped()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watching {
		e.tracker.end()
	}
	if e.tracker.broken {
		return errors.New("the pass did not see all jobs")
	}
	return nil
}

// Rank ranks everybody as of the pass that has ended, which has seen jobs with
// these extremes, and says into t all but the arrays.
func (e *Engine) Rank(x *Extremes, t *Table) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pass == 0 || e.watching && e.tracker.passing {
		return errors.New("no pass has ended")
	}
	e.seen.Widen(fairshare.Extremes{
		Any: x.Any != 0, SiteLow: x.SiteLow, SiteHigh: x.SiteHigh, Assoc: x.Assoc, Partition: x.Partition,
		TRES: array(x.TRES, x.TRESCount),
	})
	e.prepare(e.tracker.now)
	describe(e.table, e.generation, t)
	if !e.slurm.inForce {
		t.Unallocated = e.owners.unallocated
	}
	return nil
}

// errRoom: the caller's arrays are not those that Rank asked for.
var errRoom = errors.New("there is another table by now")

// FillTable fills the arrays of the table that Rank has said the rest of.
func (e *Engine) FillTable(t *Table) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.table == nil || int(t.QOSCount) != len(e.table.QOS) || int(t.NiceCount) != len(e.table.Nice) || int(t.SlotCount) != len(e.table.Slots) {
		return errRoom
	}
	copy(array(t.QOS, t.QOSCount), e.table.QOS)
	copy(array(t.Nice, t.NiceCount), e.table.Nice)
	slots := array(t.Slots, t.SlotCount)
	for i, s := range e.table.Slots[:len(slots)] {
		slots[i] = Slot{
			QOSUnit: s.QOSUnit, NiceFirst: s.NiceFirst, NiceCount: s.NiceCount,
			UnallocatedBase: s.UnallocatedBase, Unallocated: s.Unallocated,
		}
	}
	return nil
}

// Sight shows one job between passes, as it ends or changes size.
func (e *Engine) Sight(j *Job, nowMS int64) {
	defer e.recorder.notify()
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watching {
		e.tracker.hint(j, fairshare.Instant(nowMS))
	}
}

// Standings fills in how associations stand, as of the last pass that gave
// priorities.
func (e *Engine) Standings(assocs []Assoc) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range assocs {
		e.standing(&assocs[i])
	}
	if e.slurm.inForce && e.shadowed() {
		e.slurm.showed(assocs)
	}
}

// news is what the spool has to hear. Demand is told of once in a refresh
// interval, or if asked for, but not in the midst of a pass. With cut the
// tracker marks what a snapshot will cover.
func (e *Engine) news(demand, cut bool) []spoolRecord {
	gave := e.gaveWay()
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.tracker
	recs := append(t.take(), gave...)
	since := t.now - e.spooled
	due := since < 0 || since >= fairshare.Instant(e.conf.Load().RefreshInterval.Milliseconds())
	if !t.passing && (demand || due) {
		recs = append(recs, e.demand.take(e.incarnation)...)
		e.spooled = t.now
	}
	if cut {
		t.cut()
	}
	return recs
}

// restore goes on with what an earlier engine left in the spool.
func (e *Engine) restore(recs []spoolRecord) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var covered uint64
	if e.snapshot != nil {
		covered = e.snapshot.Spooled
	}
	e.tracker.restore(recs, covered)
	e.rememberSpooled(recs)
	e.settle()
}

// install makes s the snapshot in force. With covers it holds what the tracker
// marked at the last cut.
func (e *Engine) install(s *Snapshot, covers bool) {
	e.put(s, func(t *tracker) {
		if covers {
			t.covers()
		}
	})
}

// installOf makes s the snapshot in force, which holds these ended runs.
func (e *Engine) installOf(s *Snapshot, ended map[runKey]bool) {
	e.put(s, func(t *tracker) { t.hold(ended) })
}

// put makes s the snapshot in force, and has the tracker know what it holds.
func (e *Engine) put(s *Snapshot, know func(*tracker)) {
	// The work is done before the lock is taken.
	w, roles := newWindow(s, e.windowInForce())

	e.mu.Lock()
	defer e.mu.Unlock()
	w.number()
	standing := e.standingWith(s, w, roles)
	if e.snapshot == nil || e.snapshot.Ledger != s.Ledger || e.snapshot.Policy != s.Policy {
		e.wanted.Store(true)
		e.tracker.weigh(s.Weights)
	}
	e.snapshot, e.window, e.owners.judge = s, w, newJudge(standing, termsOf(s))
	e.demand.resize(s.Policy.Bucket)
	e.openGate()
	e.settle()
	know(e.tracker)
}

// lately is an instant that lies before the end of any run that the tracker has
// noted as ended, or that Slurm may still show.
func (e *Engine) lately() fairshare.Instant {
	const shown = 24 * time.Hour // MinJobAge is minutes
	e.mu.Lock()
	defer e.mu.Unlock()
	at := e.began - fairshare.Instant(shown.Milliseconds())
	for i := range e.tracker.tail {
		at = min(at, e.tracker.tail[i].From)
	}
	return at
}

// standingWith is how everybody stands with a new snapshot: as in the last pass,
// which knows of all that runs, unless the ledger has changed. The caller holds
// Engine.mu.
func (e *Engine) standingWith(s *Snapshot, w *window, roles *fairshare.Ranking) *fairshare.Ranking {
	switch {
	case e.rankedBy != nil && e.rankedBy.Ledger == s.Ledger && !e.slurm.inForce:
		return e.ranking
	case roles != nil:
		return roles
	}
	return w.roles()
}

func (e *Engine) windowInForce() *window {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.window
}

// current is the snapshot in force, nil before the first.
func (e *Engine) current() *Snapshot {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.snapshot
}

// queue is the queue as the last pass saw it, and what jobs in it ask for; ok is
// false in the midst of one and before the first.
func (e *Engine) queue() (queue []usage.Queue, asking []usage.Asked, at fairshare.Instant, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tracker.passing || e.tracker.broken || e.tracker.pass == 0 {
		return nil, nil, 0, false
	}
	return e.owners.queue(), slices.Clone(e.tracker.asking), e.tracker.now, true
}

// listed are the ended runs of jobs that Slurm still shows.
func (e *Engine) listed() map[runKey]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.tracker.listed()
}

// adopt goes on with runs that the database has as open.
func (e *Engine) adopt(runs []usage.Run, lastSeen fairshare.Instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tracker.adopt(runs, lastSeen)
}

// termsOf are the terms that a snapshot's policy sets.
func termsOf(s *Snapshot) fairshare.Terms {
	return fairshare.Terms{Default: s.Policy.MinRuntime, Cap: s.Policy.MinRuntimeCap, Accounts: s.MinRuntimes}
}

// judge is how runs that start now are judged.
func (e *Engine) judge() judge {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.owners.judge
}

// judgeBy lets runs be judged before there is a snapshot.
func (e *Engine) judgeBy(j judge) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.owners.judge = j
	e.settle()
}

// settle decides the runs that nobody could judge so far.
func (e *Engine) settle() {
	if e.owners.knows() {
		e.tracker.settle(e.owners.judge)
	}
}
