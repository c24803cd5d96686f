// SPDX-License-Identifier: GPL-2.0-or-later

// Package simnvml stands in for the NVIDIA driver where there are no GPUs: it
// builds our own libnvidia-ml.so.1 (lib/), which the meter loads as it loads
// the real one, and writes the file that this library answers from.
//
// # State file
//
// The environment variable SIMNVML_STATE names it. The library reads it at
// nvmlInit and again at each call for which it has changed; replace it by rename,
// as State.Write does. Lines are "key = value", "[section]", or begin with "#".
// Numbers are decimal.
//
//	driver = 550.54.15        version; this is the default
//	now = MICROSECONDS        a clock that stands still; without it, the machine's
//	fail = FUNCTION CODE      the function returns this error
//	hang = FUNCTION           the function does not return until this is gone
//
//	[gpu]                     in the order of NVML's indexes
//	uuid = GPU-...
//	pci = 0000:3b:00
//	name = NVIDIA A100-SXM4-80GB
//	minor = 0
//	memory, memory_used, memory_reserved = BYTES
//	power = MILLIWATTS
//	utilization = PERCENT     or steps, "MICROSECONDS:PERCENT ...", each until the next
//	ramp = yes                straight lines from step to step instead
//	working = FOLDER          the utilisation is 0 unless there is a file in it
//	sample_period = 166667    microseconds from one sample of the ring to the next
//	sample_count = 120        length of the ring; 0: no ring
//	sampled_until = MICROSECONDS  nothing newer is in it
//	sample_start = 0          the ring is given out from this place on
//	ecc = C U LC LU           corrected, uncorrected, and both over the lifetime
//	mig = 1                   MIG mode is on; 0: off
//	slices = 7
//	gpm = yes                 has GPM counters
//	no_events = yes           can't be watched for Xid errors
//	garbage_pids = yes        lists of processes as drivers 535.43 to 535.86 wrote them
//	lost = yes                has fallen off the bus
//	fail, hang                as above, for this GPU only
//
//	[instance]                a MIG compute instance of the GPU above
//	uuid = MIG-...
//	gi, ci = ID
//	slices, ci_slices = N     of the GPU instance, and of the compute instance if fewer
//	memory, memory_used = BYTES
//	utilization               as above
//
//	[process]                 of the GPU or instance above
//	pid = N
//	memory = BYTES
//	kind = c                  compute; g: graphics, m: client of MPS
//
//	[xid]                     an event
//	number = N                events are delivered once, in the order of their numbers
//	gpu = UUID
//	code = N
//	gi, ci = ID
//
// What is left out of a GPU is not supported by it. Power, memory and processes
// are what the file says; only utilisation has a course over time.
//
// While a process is connected, it holds a lock on SIMNVML_STATE.clients: see
// InUse.
package simnvml

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Variable is the environment variable that names the state file.
const Variable = "SIMNVML_STATE"

// State is what the state file says. Zero values are left out of it.
type State struct {
	Driver string
	Now    int64 // µs since 1970
	Faults []Fault
	GPUs   []GPU
	Xids   []Xid
}

// Fault makes a function fail or hang.
type Fault struct {
	Function string
	Code     int // 0: it hangs
}

// GPU is a GPU. Pointers are what it may not support.
type GPU struct {
	UUID, PCI, Name string
	Minor           *int
	Memory          uint64
	MemoryUsed      *uint64
	MemoryReserved  uint64
	Power           *int64
	Load            *Load
	Working         string // a folder: there is a load only while there is a file in it; "": always
	SamplePeriod    int64  // µs
	SampleCount     *int
	SampledUntil    int64 // µs since 1970; 0: until now
	SampleStart     int
	ECC             *[4]uint64
	MIG             *bool
	Slices          int
	GPM             bool
	NoEvents        bool
	GarbagePIDs     bool
	Lost            bool
	Faults          []Fault
	Instances       []Instance
	Processes       []Process
}

// Instance is a MIG compute instance.
type Instance struct {
	UUID          string
	GI, CI        int
	Slices        int // of its GPU instance
	ComputeSlices int // if fewer
	Memory        uint64
	MemoryUsed    *uint64
	Load          *Load
	Processes     []Process
}

// Process is a process on a GPU or an instance.
type Process struct {
	PID    int
	Memory *uint64
	Kind   string // compute if empty; "graphics", "mps"
}

// Xid is an event.
type Xid struct {
	Number uint64
	GPU    string
	Code   uint64
	GI, CI *int
}

// Load is a utilisation over time.
type Load struct {
	Steps []Step
	Ramp  bool
}

// Step is a utilisation from an instant on.
type Step struct {
	At      int64 // µs since 1970
	Percent float64
}

// Steady is a utilisation that has always been the same.
func Steady(percent float64) *Load { return &Load{Steps: []Step{{Percent: percent}}} }

// Write writes the state file, in one step: a reader sees the old or the new.
func (s State) Write(path string) error {
	temp := path + ".new"
	if err := os.WriteFile(temp, s.text(), 0o644); err != nil {
		return fmt.Errorf("write simulated GPUs: %w", err)
	}
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("write simulated GPUs: %w", err)
	}
	return nil
}

// file is a state file being written.
type file struct{ bytes.Buffer }

func (f *file) section(name string) { fmt.Fprintf(f, "\n[%s]\n", name) }

func (f *file) line(key string, value any) { fmt.Fprintf(f, "%s = %v\n", key, value) }

func (f *file) text(key, value string) {
	if value != "" {
		f.line(key, value)
	}
}

func (f *file) flag(key string, on bool) {
	if on {
		f.line(key, "yes")
	}
}

// number writes a number that is there unless it is the zero value.
func number[T int | int64 | uint64](f *file, key string, v T) {
	if v != 0 {
		f.line(key, v)
	}
}

// known writes a number that is there if the pointer is.
func known[T int | int64 | uint64](f *file, key string, v *T) {
	if v != nil {
		f.line(key, *v)
	}
}

func (f *file) faults(faults []Fault) {
	for _, fault := range faults {
		if fault.Code == 0 {
			f.line("hang", fault.Function)
		} else {
			f.line("fail", fmt.Sprintf("%s %d", fault.Function, fault.Code))
		}
	}
}

func (f *file) load(l *Load) {
	if l == nil {
		return
	}
	var steps []string
	for _, s := range l.Steps {
		steps = append(steps, fmt.Sprintf("%d:%g", s.At, s.Percent))
	}
	f.line("utilization", strings.Join(steps, " "))
	f.flag("ramp", l.Ramp)
}

func (f *file) processes(processes []Process) {
	for _, p := range processes {
		f.section("process")
		f.line("pid", p.PID)
		known(f, "memory", p.Memory)
		f.text("kind", p.Kind)
	}
}

func (s State) text() []byte {
	f := &file{}
	f.text("driver", s.Driver)
	number(f, "now", s.Now)
	f.faults(s.Faults)
	for _, g := range s.GPUs {
		g.write(f)
	}
	for _, x := range s.Xids {
		f.section("xid")
		f.line("number", x.Number)
		f.line("gpu", x.GPU)
		f.line("code", x.Code)
		known(f, "gi", x.GI)
		known(f, "ci", x.CI)
	}
	return f.Bytes()
}

func (g GPU) write(f *file) {
	f.section("gpu")
	f.text("uuid", g.UUID)
	f.text("pci", g.PCI)
	f.text("name", g.Name)
	known(f, "minor", g.Minor)
	number(f, "memory", g.Memory)
	known(f, "memory_used", g.MemoryUsed)
	number(f, "memory_reserved", g.MemoryReserved)
	known(f, "power", g.Power)
	f.load(g.Load)
	f.text("working", g.Working)
	number(f, "sample_period", g.SamplePeriod)
	known(f, "sample_count", g.SampleCount)
	number(f, "sampled_until", g.SampledUntil)
	number(f, "sample_start", g.SampleStart)
	if e := g.ECC; e != nil {
		f.line("ecc", fmt.Sprintf("%d %d %d %d", e[0], e[1], e[2], e[3]))
	}
	if g.MIG != nil {
		f.line("mig", map[bool]int{true: 1}[*g.MIG])
	}
	number(f, "slices", g.Slices)
	f.flag("gpm", g.GPM)
	f.flag("no_events", g.NoEvents)
	f.flag("garbage_pids", g.GarbagePIDs)
	f.flag("lost", g.Lost)
	f.faults(g.Faults)
	f.processes(g.Processes)
	for _, i := range g.Instances {
		f.section("instance")
		f.text("uuid", i.UUID)
		f.line("gi", i.GI)
		f.line("ci", i.CI)
		f.line("slices", i.Slices)
		number(f, "ci_slices", i.ComputeSlices)
		f.line("memory", i.Memory)
		known(f, "memory_used", i.MemoryUsed)
		f.load(i.Load)
		f.processes(i.Processes)
	}
}

// Build builds the library into a folder and returns its path. It must be called
// within the module, with a C compiler and make on PATH.
func Build(ctx context.Context, dir string) (string, error) {
	return build(ctx, dir, dir, nil)
}

// BuildWithout builds a library that lacks functions, as an older driver's does,
// into a folder below dir. It uses what Build has compiled there.
func BuildWithout(ctx context.Context, dir string, functions ...string) (string, error) {
	hash := sha256.Sum256([]byte(strings.Join(functions, " ")))
	return build(ctx, dir, filepath.Join(dir, fmt.Sprintf("without-%x", hash[:8])), functions)
}

func build(ctx context.Context, objects, out string, without []string) (string, error) {
	source, err := source()
	if err != nil {
		return "", fmt.Errorf("find the simulated driver's source: %w", withStderr(err))
	}
	for _, dir := range []*string{&objects, &out} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return "", fmt.Errorf("build the simulated driver: %w", err)
		}
	}
	build := exec.CommandContext(ctx, "make", "--no-print-directory", "--silent", "-C", filepath.Join(source, "lib"),
		"OBJ="+objects, "OUT="+out, "WITHOUT="+strings.Join(without, " "))
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the simulated driver: %w\n%s", err, said)
	}
	return filepath.Join(out, "libnvidia-ml.so.1"), nil
}

// source is this package's folder.
var source = sync.OnceValues(func() (string, error) {
	out, err := exec.CommandContext(context.Background(), "go", "list", "-f", "{{.Dir}}", "gpubudget/internal/simnvml").Output()
	return strings.TrimSpace(string(out)), err
})

func withStderr(err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	return err
}

// InUse tells whether a process is connected to the driver with this state
// file. While one is, a real GPU could not be reset.
func InUse(state string) (bool, error) {
	f, err := os.OpenFile(state+".clients", os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return false, fmt.Errorf("look for clients of the simulated driver: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}
