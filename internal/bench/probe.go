// SPDX-License-Identifier: GPL-2.0-or-later

package bench

import (
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// What of a lock a hold is of; Slurm's lock_level_t.
const (
	readLock  = 1
	writeLock = 2
)

// The structs of this file are those of probe.h.
const (
	probeHolds = 65536
	probeSets  = 524288

	probeSearches = 65536
)

// hold is one stretch in which the plugin held slurmctld's locks. Times are in
// nanoseconds.
type hold struct {
	job, node            uint32
	asked, got, released int64
	cpu                  int64
}

// search is one of the backfill scheduler for jobs that a request may evict.
type search struct {
	wall, cpu int64 // nanoseconds
	found     int64 // jobs; -1 if that isn't known
}

type probeFile struct {
	holds, sets, searches atomic.Uint64

	hold   [probeHolds]hold
	set    [probeSets]uint32
	search [probeSearches]search
}

// probe is what the auditor in slurmctld has seen so far.
type probe struct {
	memory []byte
	file   *probeFile
	from   uint64 // sets before this one don't count
}

// newProbe makes the file that the auditor writes into as some user.
func newProbe(path string, uid int) (*probe, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it is mapped, not written
	size := int(unsafe.Sizeof(probeFile{}))
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	if err := f.Chown(uid, uid); err != nil {
		return nil, err
	}
	memory, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return &probe{memory: memory, file: (*probeFile)(unsafe.Pointer(&memory[0]))}, nil
}

func (p *probe) close() error { return syscall.Munmap(p.memory) }

// count is how many holds there were.
func (p *probe) count() uint64 { return p.file.holds.Load() }

// between are the holds from one count to another.
func (p *probe) between(from, to uint64) []hold {
	var holds []hold
	for i := max(from, to-min(to, probeHolds)); i < to; i++ {
		holds = append(holds, p.file.hold[i%probeHolds])
	}
	return holds
}

// forgetSets begins to count calls of priority_p_set anew.
func (p *probe) forgetSets() { p.from = p.file.sets.Load() }

// sets are the nanoseconds of each call since.
func (p *probe) sets() []uint32 {
	to := p.file.sets.Load()
	var all []uint32
	for i := max(p.from, to-min(to, probeSets)); i < to; i++ {
		all = append(all, p.file.set[i%probeSets])
	}
	return all
}

// searched is how many searches there were.
func (p *probe) searched() uint64 { return p.file.searches.Load() }

// lastSearches are the last n, or as many as there were.
func (p *probe) lastSearches(n uint64) []search {
	to := p.searched()
	var all []search
	for i := to - min(to, n, probeSearches); i < to; i++ {
		all = append(all, p.file.search[i%probeSearches])
	}
	return all
}

// pass is one recalculation.
type pass struct {
	cpu   time.Duration // of the plugin's thread
	holds []hold
}

// gave tells that the pass gave priorities. These need the nodes as well: who
// only says that jobs have changed locks these alone.
func (p pass) gave() bool {
	return slices.ContainsFunc(p.holds, func(h hold) bool { return h.job == writeLock && h.node == readLock })
}

// held is for how long the pass held the job lock that way.
func (p pass) held(how uint32) (sum time.Duration) {
	for _, h := range p.holds {
		if h.job == how {
			sum += time.Duration(h.released - h.got)
		}
	}
	return sum
}

// heldCPU is how much CPU time of that it used.
func (p pass) heldCPU(how uint32) (sum time.Duration) {
	for _, h := range p.holds {
		if h.job == how {
			sum += time.Duration(h.cpu)
		}
	}
	return sum
}

// longest is the longest that the pass held the job lock at a stretch: for so
// long a submission had to wait.
func (p pass) longest() (longest time.Duration) {
	for _, h := range p.holds {
		if h.job != 0 {
			longest = max(longest, time.Duration(h.released-h.got))
		}
	}
	return longest
}
