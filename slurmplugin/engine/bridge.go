// SPDX-License-Identifier: GPL-2.0-or-later

package engine

import (
	"math"
	"time"
	"unsafe"

	"gpubudget/fairshare"
)

// The structs of this file are those of bridge.h, field for field and byte for
// byte: the library casts the shim's arrays to them, so that a pass over
// 100,000 jobs copies nothing. A test of the library compares every size and
// offset. They, and every CString in them, are the caller's memory and valid
// only during the call.

// ABI is GPUB_ABI of bridge.h.
const ABI = 10

// Result codes, enum gpub_rc of bridge.h.
const (
	OK          = 0
	Error       = -1
	Panicked    = -2
	ABIMismatch = -3
)

// CString is a NUL-terminated string in the caller's memory, or nil.
type CString struct{ p *byte }

// NewCString is s with a NUL behind it, for callers that are not C.
func NewCString(s string) CString {
	b := make([]byte, len(s)+1)
	copy(b, s)
	return CString{&b[0]}
}

// IsNil tells whether there is no string at all.
func (s CString) IsNil() bool { return s.p == nil }

// borrow is the string without copying it: it dies with the call.
func (s CString) borrow() string {
	if s.p == nil {
		return ""
	}
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(s.p), n)) != 0 {
		n++
	}
	return unsafe.String(s.p, n)
}

// String is a copy of the string, "" for nil.
func (s CString) String() string { return string([]byte(s.borrow())) }

// Cluster is struct gpub_cluster: what the cluster is now.
type Cluster struct {
	Nodes, CPUs    uint32
	GPUs           uint64 // on nodes that can be scheduled
	GPUsConfigured uint64
	QOSPriorityMax uint32
	GPUTypes       CString // how many of GPUs are of each type; nil if they have none
}

// holding is the GPUs that can be scheduled.
func (c *Cluster) holding() fairshare.Holding {
	return fairshare.Holding{Type: c.GPUTypes.String(), GPUs: int64(min(c.GPUs, mostGPUs))}
}

// JobState is enum gpub_job_state: Slurm's base state.
type JobState uint32

// The states of a job.
const (
	Pending JobState = iota
	Running
	Suspended
	Complete
	Cancelled
	Failed
	Timeout
	NodeFail
	Preempted
	BootFail
	Deadline
	OutOfMemory
)

// jobStateNames are Slurm's words for the states.
var jobStateNames = [...]string{
	"PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT",
	"NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
}

// String is Slurm's word for s.
func (s JobState) String() string {
	if int(s) < len(jobStateNames) {
		return jobStateNames[s]
	}
	return "UNKNOWN"
}

// JobFlags is enum gpub_job_flag.
type JobFlags uint32

// The flags of a job.
const (
	Held        JobFlags = 1 << iota // priority 0
	DirectPrio                       // an operator set the priority
	Completing                       // ended, its nodes are being cleaned up
	Configuring                      // allocated, its nodes are being made ready
	Requeued                         // this run ends, the job will pend again
	Demands                          // pending and nothing but resources holds it back
	Resizing
	Requeuable // may be requeued; not told of a job that pends
)

// NoTask is the ArrayTaskID of a job that is no task of an array.
const NoTask uint32 = math.MaxUint32

// Job is struct gpub_job. Times are Unix seconds, 0 where Slurm has none.
type Job struct {
	JobID       uint32
	ArrayJobID  uint32
	ArrayTaskID uint32
	ArrayTasks  uint32 // pending tasks this record stands for
	HetJobID    uint32
	Restart     uint32 // of this run
	UserID      uint32
	AssocID     uint32
	State       JobState
	Flags       JobFlags

	User, Account, Partition, QOS, Nodes, GPUType CString

	Submit, Begin int64
	Start         int64 // of the run; 0 while it pends and for a job that never ran
	End           int64 // expected while it runs; of the last run while it pends again
	Resize        int64
	Suspend       int64  // last suspend or resume
	Suspended     int64  // seconds so far, a suspension that lasts included
	GPUs          uint64 // of one task, whole ones
	GPUParts      uint64 // and parts of GPUs in millionths: shards, MPS
	DemandTasks   uint32 // of ArrayTasks, those the array's own limit lets run

	QOSPriority uint32
	Nice        int64
	MinRuntime  int64 // seconds it asks for; -1 if it says nothing
	TimeLimit   int64 // seconds; 0 if there is none
}

// Has tells whether all of the flags f are set.
func (j *Job) Has(f JobFlags) bool { return j.Flags&f == f }

// longest is more than any job runs, and keeps what is not believable from
// overflowing.
const longest = 100 * 365 * 24 * time.Hour

// asked is MinRuntime as the arithmetic has it.
func (j *Job) asked() time.Duration {
	if j.MinRuntime < 0 {
		return fairshare.NotAsked
	}
	return bounded(j.MinRuntime)
}

// limit is TimeLimit as the arithmetic has it, 0 if there is none.
func (j *Job) limit() time.Duration { return bounded(max(j.TimeLimit, 0)) }

func bounded(seconds int64) time.Duration {
	return time.Duration(min(seconds, int64(longest/time.Second))) * time.Second
}

// gpus and parts are GPUs and GPUParts as the arithmetic has them.
func (j *Job) gpus() int64  { return int64(min(j.GPUs, mostGPUs)) }
func (j *Job) parts() int64 { return int64(min(j.GPUParts, mostGPUs*fairshare.Millionths)) }

// hasGPUs tells whether it has or wants any part of a GPU.
func (j *Job) hasGPUs() bool { return j.GPUs != 0 || j.GPUParts != 0 }

// Extremes is struct gpub_extremes.
type Extremes struct {
	Any, TRESCount    uint32
	SiteLow, SiteHigh int64
	Assoc, Partition  float64
	TRES              *float64
}

// Rise is struct gpub_rise.
type Rise = fairshare.Rise

// Slot is struct gpub_slot.
type Slot struct {
	QOSUnit              int64
	NiceFirst, NiceCount uint32
	UnallocatedBase      int64
	Unallocated          uint32
}

// UnallocatedKinds is enum gpub_unallocated: which jobs are unallocated by the
// minimum runtime they ask for.
type UnallocatedKinds uint32

// The kinds of jobs.
const (
	UnallocatedZero   UnallocatedKinds = 1 << iota // those that ask for 0
	UnallocatedUnsaid                              // those that say nothing
	UnallocatedAsked                               // those that ask for some
)

// Include tells whether a job is of the kinds that asks for so many seconds; as
// in Job, -1 says nothing.
func (k UnallocatedKinds) Include(minRuntime int64) bool {
	switch {
	case minRuntime < 0:
		return k&UnallocatedUnsaid != 0
	case minRuntime == 0:
		return k&UnallocatedZero != 0
	}
	return k&UnallocatedAsked != 0
}

// unallocatedBy are the kinds by the cluster's terms.
func unallocatedBy(t fairshare.Terms) (k UnallocatedKinds) {
	for i, asked := range []time.Duration{0, fairshare.NotAsked, time.Second} {
		if t.Unallocated(asked) {
			k |= UnallocatedZero << i
		}
	}
	return k
}

// Place is struct gpub_place.
type Place struct {
	Fairshare float64
	Slot      uint32
}

// Weights is struct gpub_weights.
type Weights struct {
	Generation                                     uint64
	Age, Assoc, Fairshare, JobSize, Partition, QOS uint32
	MaxAge, Flags, FavorSmall, Damping, TRESCount  uint32
	TRES                                           *float64
}

// Table is struct gpub_table.
type Table struct {
	Weights                        Weights
	Nodes, CPUs                    uint32
	Packed                         uint32
	Unallocated                    UnallocatedKinds
	QOSCount, NiceCount, SlotCount uint32
	RestSteps                      int64
	RestScale                      float64
	SiteLow                        int64
	Band                           float64
	Unknown                        Place
	QOS, Nice                      *Rise
	Slots                          *Slot
}

// Assoc is struct gpub_assoc: one association's standing.
type Assoc struct {
	ID, UserID    uint32
	Account, User CString
	// out
	Place                                                Place
	Known                                                uint32
	LevelFS, Factor, SharesNorm, UsageNorm, UsageSeconds float64
}

// AssocFlags is enum gpub_slurm_assoc_flag.
type AssocFlags uint32

// The flags of an association of Slurm's.
const (
	AssocUser         AssocFlags = 1 << iota // a user's, not an account's own
	AssocParentShares                        // Fairshare=parent
)

// SlurmAssoc is struct gpub_slurm_assoc: one association with Slurm's shares.
type SlurmAssoc struct {
	ID, Parent, Shares uint32
	Flags              AssocFlags
	Usage, UsageRest   float64
	// out
	SharesNorm, UsageNorm, UsageEffective, LevelFS, Factor float64
}

// Request is struct gpub_request: a job that pends and is being placed.
type Request struct {
	Job             Job
	Nodes, MaxNodes uint32         // it needs at least, and can be spread over; 0: no limit
	PerNode         fairshare.Room // what it needs on each; no GPUs: only their sum counts
}

// Occupant is struct gpub_occupant: a job that runs where the request may.
type Occupant struct {
	JobID, HetJobID uint32
	Start           int64 // of the run
	Nice            int64
	GPUs            uint64
	QOSPriority     uint32
	// out
	Order uint32 // of eviction, from 1; 0: it keeps its GPUs
}

// Piece is struct gpub_piece: what an occupant holds of a node, both by index.
type Piece struct {
	Occupant, Node uint32
	Held           fairshare.Room
}

// Placing is struct gpub_placing: an attempt to place a request.
type Placing struct {
	Request                              *Request
	Free                                 *fairshare.Room
	Pieces                               *Piece
	Occupants                            *Occupant
	NodeCount, PieceCount, OccupantCount uint32
}

// Verdict is enum gpub_verdict.
type Verdict uint32

// The verdicts on a job that is submitted.
const (
	Accepted Verdict = iota
	Capped           // it asks for more than there is
	Refused          // its account has nothing left, and the policy says so
)

// messageRoom is GPUB_MESSAGE.
const messageRoom = 512

// Submission is struct gpub_submission.
type Submission struct {
	Account, User         CString
	UserID, GPUs          uint32
	MinRuntime, TimeLimit int64
	// out
	Verdict Verdict
	Granted int64
	Message [messageRoom]byte
}

// say sets the message, cut to the room that there is.
func (s *Submission) say(text string) {
	n := copy(s.Message[:messageRoom-1], text)
	s.Message[n] = 0
}

// array is the n elements at p; nil if there are none.
func array[T any](p *T, n uint32) []T {
	if p == nil {
		return nil
	}
	return unsafe.Slice(p, n)
}
