// SPDX-License-Identifier: GPL-2.0-or-later

package nvml

import (
	"errors"

	binding "github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpubudget/usage/meter"
)

// activity reads the GPM counters of a MIG GPU instance.
type activity struct {
	v           *device
	gpuInstance int
	sample      [2]binding.GpmSample // the last one and the one to be taken
	began       bool
	get         binding.GpmMetricsGetType // 19 KiB, so it is kept
}

// Activity implements meter.Device. Only Hopper and newer GPUs have the
// counters.
func (v *device) Activity(gpuInstance int) (meter.Activity, error) {
	if err := v.d.needs(fnGPMAlloc, fnGPMFree, fnGPMSample, fnGPMMetrics); err != nil {
		return nil, err
	}
	if err := v.d.begin(fnGPMSupport); err != nil {
		return nil, err
	}
	support, ret := v.handle.GpmQueryDeviceSupport()
	if err := v.d.end(fnGPMSupport, ret); err != nil {
		return nil, err
	}
	if support.IsSupportedDevice == 0 {
		return nil, &meter.CallError{Call: names[fnGPMSupport][0], Code: meter.ErrNotSupported}
	}
	a := &activity{v: v, gpuInstance: gpuInstance}
	for i := range a.sample {
		if err := v.d.begin(fnGPMAlloc); err != nil {
			return nil, errors.Join(err, a.Close())
		}
		sample, ret := v.d.lib.GpmSampleAlloc()
		if err := v.d.end(fnGPMAlloc, ret); err != nil {
			return nil, errors.Join(err, a.Close())
		}
		a.sample[i] = sample
	}
	return a, nil
}

// Mean implements meter.Activity.
func (a *activity) Mean() (float64, bool, error) {
	d := a.v.d
	if err := d.begin(fnGPMSample); err != nil {
		return 0, false, err
	}
	err := d.end(fnGPMSample, a.v.handle.GpmMigSampleGet(a.gpuInstance, a.sample[1]))
	if err != nil {
		a.began = false
		return 0, false, err
	}
	defer func() {
		a.sample[0], a.sample[1] = a.sample[1], a.sample[0]
		a.began = true
	}()
	if !a.began {
		return 0, false, nil
	}
	if err := d.begin(fnGPMMetrics); err != nil {
		return 0, false, err
	}
	a.get.NumMetrics, a.get.Sample1, a.get.Sample2 = 1, a.sample[0], a.sample[1]
	a.get.Metrics[0] = binding.GpmMetric{MetricId: uint32(binding.GPM_METRIC_GRAPHICS_UTIL)}
	if err := d.end(fnGPMMetrics, d.lib.GpmMetricsGet(&a.get)); err != nil {
		return 0, false, err
	}
	if code := meter.DriverError(a.get.Metrics[0].NvmlReturn); code != 0 {
		return 0, false, &meter.CallError{Call: names[fnGPMMetrics][0], Code: code}
	}
	return a.get.Metrics[0].Value, true, nil
}

// Close implements meter.Activity.
func (a *activity) Close() error {
	var errs error
	for i, sample := range a.sample {
		if sample == nil {
			continue
		}
		errs = errors.Join(errs, a.v.d.call(fnGPMFree, sample.Free))
		a.sample[i] = nil
	}
	return errs
}
