// SPDX-License-Identifier: GPL-2.0-or-later

package meter

import (
	"fmt"
	"time"
)

// Driver is what the meter asks of the GPU driver's library. Package
// usage/nvml answers from libnvidia-ml.so.1. The meter makes all calls from
// one goroutine at a time, but for Events.Wait and InCall.
//
// Calls that fail return an error that holds a DriverError. A Driver must never guess:
// what it can't tell is an error and becomes an unknown in the reading.
type Driver interface {
	// Open loads the library and connects to the driver.
	Open() error
	// Close disconnects, so that GPUs can be reset. All Devices, Activities
	// and Events are void then. Open may follow.
	Close() error
	// Version is the driver's version, such as "550.54.15".
	Version() (string, error)
	// Count is the number of GPUs.
	Count() (int, error)
	// Device is the GPU at a place from 0 to Count-1. Which GPU is at which
	// place may change from one Open to the next.
	Device(index int) (Device, error)
	// Watch begins to watch devices for Xid errors. It fails if none of them
	// can be watched; unwatched says of which others that is true, and why.
	Watch(devices []Device) (events Events, unwatched map[string]error, err error)
	// InCall names the call that is being made, that of Events.Wait if there is
	// no other, "" if there is none. It may be called at any time.
	InCall() string
}

// Identity is what does not change of a GPU, besides its UUID.
type Identity interface {
	// PCI is the bus address, in the kernel's form "0000:3b:00.0".
	PCI() (string, error)
	Name() (string, error)
	// Minor is N of the device file /dev/nvidiaN.
	Minor() (int, error)
	// Slices is the number of compute slices of the whole GPU.
	Slices() (int, error)
}

// Device is a GPU.
type Device interface {
	Partition
	Identity
	// MIG tells whether the GPU is in MIG mode now.
	MIG() (bool, error)
	// Places is how many MIG instances there can be at most.
	Places() (int, error)
	// Instance is the MIG instance at a place from 0 to Places-1. The error of
	// a place that is empty is ErrNotFound.
	Instance(place int) (Instance, error)
	// Samples appends to samples what the driver's ring of utilisation samples
	// holds.
	Samples(samples []Sample) ([]Sample, error)
	// Rate is the utilisation in percent over the last fraction of a second.
	Rate() (float64, error)
	// Activity measures how busy a MIG GPU instance is.
	Activity(gpuInstance int) (Activity, error)
	// Power is what the GPU draws now, in milliwatts.
	Power() (int64, error)
	ECC() (ECC, error)
}

// Partition is what a GPU and a MIG instance have in common.
type Partition interface {
	UUID() (string, error)
	// Memory is in bytes; used is what processes hold, without the driver's own
	// part where the driver tells the two apart.
	Memory() (total, used uint64, err error)
	// Processes appends to rows the processes that have a context.
	Processes(rows []ProcessRow) ([]ProcessRow, error)
}

// Instance is a MIG compute instance.
type Instance interface {
	Partition
	IDs() (gpuInstance, computeInstance int, err error)
	// Shape is its part of the GPU: compute slices, and memory in bytes.
	Shape() (slices int, memory uint64, err error)
}

// Activity is how busy a MIG GPU instance is, from one look to the next.
type Activity interface {
	// Mean is the utilisation in percent since the last call. The first call
	// only begins; its ok is false.
	Mean() (percent float64, ok bool, err error)
	Close() error
}

// Events are the Xid errors of GPUs.
type Events interface {
	// Wait waits for the next one, at most for timeout; the error is ErrTimeout if
	// there was none.
	Wait(timeout time.Duration) (Xid, error)
	Close() error
}

// Sample is one entry of the driver's ring: how busy a GPU was, in percent,
// since the entry before it.
type Sample struct {
	At      int64 // microseconds, by a clock of the driver's
	Percent float64
}

// ProcessRow is a row of one of the driver's process lists, as it came.
type ProcessRow struct {
	PID    uint32
	Memory uint64 // bytes; NoMemory if the driver does not know
	Kind   Kind
}

// NoMemory is the memory of a process where the driver does not know it.
const NoMemory = ^uint64(0)

// DriverError is an error of the driver's library, by NVML's number. It is an
// error: errors.Is(err, meter.ErrLost).
type DriverError int

// The codes that the meter tells apart.
const (
	ErrUninitialized   DriverError = 1
	ErrNotSupported    DriverError = 3  // by this GPU, or in its present mode
	ErrNoPermission    DriverError = 4  // for this user
	ErrNotFound        DriverError = 6  // no such thing, or no samples
	ErrDriverNotLoaded DriverError = 9  // the kernel module is not there
	ErrTimeout         DriverError = 10 // waited for nothing
	ErrNoLibrary       DriverError = 12 // libnvidia-ml.so.1 is not there
	ErrNoFunction      DriverError = 13 // this driver's library does not have the call
	ErrLost            DriverError = 15 // the GPU has fallen off the bus
	ErrResetRequired   DriverError = 16
	ErrOtherVersion    DriverError = 18 // library and kernel module are of different versions
	ErrUnknown         DriverError = 999
)

var codeTexts = map[DriverError]string{
	ErrUninitialized: "the library is not initialized", 2: "invalid argument", ErrNotSupported: "not supported",
	ErrNoPermission: "no permission", 5: "already initialized", ErrNotFound: "not found", 7: "buffer too small",
	8: "external power cables are not attached", ErrDriverNotLoaded: "the kernel driver is not loaded", ErrTimeout: "timeout",
	11: "interrupt trouble", ErrNoLibrary: "the driver's library is not there", ErrNoFunction: "the driver does not have this function",
	14: "the GPU's infoROM is corrupted", ErrLost: "the GPU is lost", ErrResetRequired: "the GPU must be reset",
	17: "blocked by the operating system", ErrOtherVersion: "the driver's library and kernel module are of different versions",
	19: "in use", 20: "out of memory", 21: "no data", 23: "out of resources", 25: "version of an argument not supported",
	27: "not ready", 28: "no GPUs", ErrUnknown: "unknown error of the driver",
}

func (c DriverError) Error() string {
	if text, ok := codeTexts[c]; ok {
		return text
	}
	return fmt.Sprintf("NVML error %d", int(c))
}

// CallError is a call of the library that failed.
type CallError struct {
	Call string // the function's name
	Code DriverError
}

func (e *CallError) Error() string { return e.Call + ": " + e.Code.Error() }

func (e *CallError) Unwrap() error { return e.Code }
