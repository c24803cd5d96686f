// SPDX-License-Identifier: GPL-2.0-or-later

package nvml

import (
	"errors"
	"math"
	"time"

	binding "github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpubudget/usage/meter"
)

// none is the id of no MIG instance.
const none = ^uint32(0)

// events is a set of GPUs that are watched for Xid errors. Wait is called beside
// everything else.
type events struct {
	d     *Driver
	set   binding.EventSet
	uuids map[binding.Device]string // a lost GPU does not tell its name any more
}

// Watch implements meter.Driver.
func (d *Driver) Watch(devices []meter.Device) (meter.Events, map[string]error, error) {
	if err := d.needs(fnEventFree, fnEventWait, fnEventTypes, fnRegister); err != nil {
		return nil, nil, err
	}
	if err := d.begin(fnEventSet); err != nil {
		return nil, nil, err
	}
	set, ret := d.lib.EventSetCreate()
	if err := d.end(fnEventSet, ret); err != nil {
		return nil, nil, err
	}
	e := &events{d: d, set: set, uuids: map[binding.Device]string{}}
	unwatched := map[string]error{}
	var last error
	for _, m := range devices {
		v := m.(*device)
		uuid, err := v.UUID()
		if err == nil {
			err = e.register(v.handle)
		}
		if err != nil {
			unwatched[uuid], last = err, err
			continue
		}
		e.uuids[v.handle] = uuid
	}
	if len(e.uuids) == 0 && last != nil {
		return nil, nil, errors.Join(last, e.Close())
	}
	return e, unwatched, nil
}

func (e *events) register(handle binding.Device) error {
	if err := e.d.begin(fnEventTypes); err != nil {
		return err
	}
	types, ret := handle.GetSupportedEventTypes()
	if err := e.d.end(fnEventTypes, ret); err != nil {
		return err
	}
	if types&binding.EventTypeXidCriticalError == 0 {
		return &meter.CallError{Call: names[fnEventTypes][0], Code: meter.ErrNotSupported}
	}
	if err := e.d.begin(fnRegister); err != nil {
		return err
	}
	return e.d.end(fnRegister, handle.RegisterEvents(binding.EventTypeXidCriticalError, e.set))
}

// Wait implements meter.Events.
func (e *events) Wait(timeout time.Duration) (meter.Xid, error) {
	e.d.waiting.Store(true)
	defer e.d.waiting.Store(false)
	data, ret := e.set.Wait(uint32(min(max(0, timeout.Milliseconds()), math.MaxInt32)))
	if ret != binding.SUCCESS {
		return meter.Xid{}, &meter.CallError{Call: names[fnEventWait][0], Code: meter.DriverError(ret)}
	}
	return meter.Xid{
		UUID: e.uuids[data.Device], GPUInstance: id(data.GpuInstanceId), ComputeInstance: id(data.ComputeInstanceId),
		Code: data.EventData,
	}, nil
}

func id(v uint32) *int {
	if v == none {
		return nil
	}
	n := int(v)
	return &n
}

// Close implements meter.Events.
func (e *events) Close() error { return e.d.call(fnEventFree, e.set.Free) }
