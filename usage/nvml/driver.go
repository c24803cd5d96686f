// SPDX-License-Identifier: GPL-2.0-or-later

// Package nvml reads NVIDIA GPUs for the meter, through go-nvml and the driver's
// libnvidia-ml.so.1, which it loads when it opens.
//
// A function that the library lacks ends the process at its first call: the
// dynamic linker resolves it then and gives up. So every call is looked up first
// (functions.go), and what is missing is reported as meter.ErrNoFunction. That
// needs lazy binding: don't link with -z now or -static.
//
// go-nvml keeps the library in global variables, and the linker keeps it mapped
// after Close: one library a process, and after a driver was exchanged another
// process.
package nvml

import (
	"fmt"
	"sync/atomic"

	binding "github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpubudget/usage/meter"
)

// Library is the name of the driver's library, found where the dynamic linker
// looks.
const Library = "libnvidia-ml.so.1"

// Driver is the NVIDIA driver. It implements meter.Driver.
type Driver struct {
	path    string
	lib     binding.Interface
	has     [functions]bool
	open    bool
	in      atomic.Pointer[string] // the function being called, nil if none
	waiting atomic.Bool            // beside it, for events
	devices map[binding.Device]*device
}

var _ meter.Driver = (*Driver)(nil)

// New is a driver that is not open yet. Path is its library, "" for Library.
func New(path string) *Driver {
	if path == "" {
		path = Library
	}
	return &Driver{path: path, lib: binding.New(binding.WithLibraryPath(path))}
}

// InCall implements meter.Driver.
func (d *Driver) InCall() string {
	if in := d.in.Load(); in != nil {
		return *in
	}
	if d.waiting.Load() {
		return names[fnEventWait][0]
	}
	return ""
}

// Open implements meter.Driver. Its errors say what to do about them.
func (d *Driver) Open() error {
	if d.open {
		return nil
	}
	if err := d.find(); err != nil {
		return err
	}
	err := d.call(fnInit, d.lib.Init)
	if err == nil {
		d.open, d.devices = true, map[binding.Device]*device{}
		return nil
	}
	return fmt.Errorf("open the NVIDIA driver (%s): %w", d.path, err)
}

// Close implements meter.Driver.
func (d *Driver) Close() error {
	if !d.open {
		return nil
	}
	if err := d.call(fnShutdown, d.lib.Shutdown); err != nil {
		return fmt.Errorf("close the NVIDIA driver: %w", err)
	}
	d.open, d.devices = false, nil
	return nil
}

// call makes a call of the library, if the library has it.
func (d *Driver) call(f function, do func() binding.Return) error {
	if err := d.begin(f); err != nil {
		return err
	}
	return d.end(f, do())
}

// begin must stand before every call of the binding, and end after it.
func (d *Driver) begin(f function) error {
	if err := d.needs(f); err != nil {
		return err
	}
	d.in.Store(&names[f][0])
	return nil
}

func (d *Driver) end(f function, ret binding.Return) error {
	d.in.Store(nil)
	if ret == binding.SUCCESS {
		return nil
	}
	return &meter.CallError{Call: names[f][0], Code: meter.DriverError(ret)}
}

// needs says which of the functions is missing, of those that only make sense
// together.
func (d *Driver) needs(functions ...function) error {
	for _, f := range functions {
		if !d.has[f] {
			return &meter.CallError{Call: names[f][0], Code: meter.ErrNoFunction}
		}
	}
	return nil
}

// Version implements meter.Driver.
func (d *Driver) Version() (string, error) {
	if err := d.begin(fnVersion); err != nil {
		return "", err
	}
	version, ret := d.lib.SystemGetDriverVersion()
	return version, d.end(fnVersion, ret)
}

// Count implements meter.Driver.
func (d *Driver) Count() (int, error) {
	if err := d.begin(fnCount); err != nil {
		return 0, err
	}
	n, ret := d.lib.DeviceGetCount()
	return n, d.end(fnCount, ret)
}

// Device implements meter.Driver.
func (d *Driver) Device(index int) (meter.Device, error) {
	if err := d.begin(fnHandle); err != nil {
		return nil, err
	}
	handle, ret := d.lib.DeviceGetHandleByIndex(index)
	if err := d.end(fnHandle, ret); err != nil {
		return nil, err
	}
	return d.device(handle), nil
}

// device is the Device of a handle. The library has one handle a device and
// gives it again each time.
func (d *Driver) device(handle binding.Device) *device {
	dev, ok := d.devices[handle]
	if !ok {
		dev = &device{d: d, handle: handle}
		d.devices[handle] = dev
	}
	return dev
}
