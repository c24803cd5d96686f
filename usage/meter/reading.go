// SPDX-License-Identifier: GPL-2.0-or-later

package meter

import "time"

// Round is what was read of all GPUs of a node at one time.
type Round struct {
	At   time.Time     // by the wall clock, at its beginning
	Boot time.Duration // by the clock since the boot, which nobody sets
	// Elapsed is the time since the round before, by the clock since the boot.
	// It is 0 in the first round after Open or Reopen, and nothing that is
	// measured over time is known then.
	Elapsed time.Duration
	GPUs    []Reading // by PCI address
	Xids    []Xid     // since the round before, oldest first
	// XidsDropped is how many more there were than are kept between rounds.
	XidsDropped int
}

// Reading is what was read of a GPU. What is nil is not known.
type Reading struct {
	GPU
	Usage
	// Err is why nothing but the identity could be read, as of a GPU that is
	// lost (errors.Is(err, ErrLost)).
	Err error
	// Power is in milliwatts, at the time of the round.
	Power *int64
	ECC   *ECC
	// Instances are a GPU's MIG instances, by their ids. Usage of a GPU in MIG
	// mode is known of its instances only, apart from its memory.
	Instances []InstanceReading
}

// InstanceReading is what was read of a MIG instance. What is nil is not known.
type InstanceReading struct {
	MIG
	Usage
}

// GPU is the identity of a GPU. It is known by its UUID; Index is only good
// for what people type in the same minute.
type GPU struct {
	UUID   string // "" of a GPU that was lost already when the meter opened
	PCI    string // in the kernel's form "0000:3b:00.0"; "" if not known
	Name   string // of the model; "" if not known
	Index  int    // the driver's number
	Minor  *int   // N of /dev/nvidiaN
	MIG    *bool  // whether it is in MIG mode now
	Slices *int   // compute slices of the whole; only of a GPU that has a MIG mode
	Memory *uint64
}

// MIG is the identity of a MIG compute instance and its part of the GPU.
type MIG struct {
	UUID            string
	GPUInstance     *int
	ComputeInstance *int
	Slices          *int    // compute slices, of the GPU's Slices
	Memory          *uint64 // bytes, of the GPU's Memory
}

// Usage is what uses a GPU or an instance of it. What is nil is not known.
type Usage struct {
	Busy       *Busy
	MemoryUsed *uint64 // bytes held by processes
	// Processes are those with a context on the GPU, by PID: empty if there are
	// none, nil if that is not known.
	Processes []Process
}

// Busy is how long a GPU was at work since the round before. Utilisation is
// Busy divided by Known; the rest of the round is not known.
type Busy struct {
	Busy   time.Duration // part of Known in which a kernel was running
	Known  time.Duration
	Source Source
}

// Source is where a utilisation comes from.
type Source string

// The sources, the best first.
const (
	FromSamples  Source = "samples"  // the driver's ring: all of the time
	FromActivity Source = "activity" // GPM counters, of MIG instances: all of the time
	FromRate     Source = "rate"     // one look at the last second
)

// Process is a process that has a context on a GPU. It was alive when it was
// read.
type Process struct {
	PID    int
	Memory *uint64 // bytes
	Kind   Kind
}

// Kind is in which of the driver's lists a process is: a set.
type Kind uint8

// The driver's lists of processes.
const (
	Compute  Kind = 1 << iota
	Graphics      // OpenGL, Vulkan
	MPS           // a client of the MPS server
)

// ECC are memory errors, counted by the GPU. Reading them takes the driver long,
// so they are read now and then and shown until they are read again.
type ECC struct {
	ReadAt              time.Duration // by the clock since the boot
	Corrected           uint64        // since the driver was loaded
	Uncorrected         uint64
	LifetimeCorrected   uint64
	LifetimeUncorrected uint64
}

// Xid is an error that a GPU reported, by NVIDIA's numbers: 79 is a GPU that
// fell off the bus, 48 an uncorrectable memory error, 13 and 31 are mostly
// faults of a program.
type Xid struct {
	At              time.Time
	UUID            string // of the GPU
	GPUInstance     *int   // nil: of the whole GPU
	ComputeInstance *int
	Code            uint64
}
