// SPDX-License-Identifier: GPL-2.0-or-later

package nvml

import (
	"encoding/binary"
	"fmt"
	"math"

	binding "github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpubudget/usage/meter"
)

// device is a GPU or a MIG instance: NVML has one kind of handle for both.
type device struct {
	d      *Driver
	handle binding.Device
}

var (
	_ meter.Device   = (*device)(nil)
	_ meter.Instance = (*device)(nil)
)

// UUID implements meter.Partition.
func (v *device) UUID() (string, error) {
	if err := v.d.begin(fnUUID); err != nil {
		return "", err
	}
	uuid, ret := v.handle.GetUUID()
	return uuid, v.d.end(fnUUID, ret)
}

// Name implements meter.Device.
func (v *device) Name() (string, error) {
	if err := v.d.begin(fnName); err != nil {
		return "", err
	}
	name, ret := v.handle.GetName()
	return name, v.d.end(fnName, ret)
}

// Minor implements meter.Device.
func (v *device) Minor() (int, error) {
	if err := v.d.begin(fnMinor); err != nil {
		return 0, err
	}
	minor, ret := v.handle.GetMinorNumber()
	return minor, v.d.end(fnMinor, ret)
}

// PCI implements meter.Device.
func (v *device) PCI() (string, error) {
	if err := v.d.begin(fnPCI); err != nil {
		return "", err
	}
	pci, ret := v.handle.GetPciInfo()
	// NVML has no function number; that of a GPU is 0.
	return fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device), v.d.end(fnPCI, ret)
}

// MIG implements meter.Device.
func (v *device) MIG() (bool, error) {
	if err := v.d.begin(fnMIGMode); err != nil {
		return false, err
	}
	current, _, ret := v.handle.GetMigMode()
	return current == binding.DEVICE_MIG_ENABLE, v.d.end(fnMIGMode, ret)
}

// Slices implements meter.Device: those of the greatest instance there can be.
func (v *device) Slices() (int, error) {
	profiles := [...]int{
		binding.GPU_INSTANCE_PROFILE_8_SLICE, binding.GPU_INSTANCE_PROFILE_7_SLICE, binding.GPU_INSTANCE_PROFILE_6_SLICE,
		binding.GPU_INSTANCE_PROFILE_4_SLICE, binding.GPU_INSTANCE_PROFILE_3_SLICE, binding.GPU_INSTANCE_PROFILE_2_SLICE,
		binding.GPU_INSTANCE_PROFILE_1_SLICE,
	}
	var err error
	for _, profile := range profiles {
		if err = v.d.begin(fnProfile); err != nil {
			return 0, err
		}
		info, ret := v.handle.GetGpuInstanceProfileInfo(profile)
		if err = v.d.end(fnProfile, ret); err == nil {
			return int(info.SliceCount), nil
		}
	}
	return 0, err
}

// Places implements meter.Device.
func (v *device) Places() (int, error) {
	if err := v.d.begin(fnPlaces); err != nil {
		return 0, err
	}
	n, ret := v.handle.GetMaxMigDeviceCount()
	return n, v.d.end(fnPlaces, ret)
}

// Instance implements meter.Device.
func (v *device) Instance(place int) (meter.Instance, error) {
	if err := v.d.begin(fnInstance); err != nil {
		return nil, err
	}
	handle, ret := v.handle.GetMigDeviceHandleByIndex(place)
	if err := v.d.end(fnInstance, ret); err != nil {
		return nil, err
	}
	return v.d.device(handle), nil
}

// IDs implements meter.Instance.
func (v *device) IDs() (gpuInstance, computeInstance int, err error) {
	if err := v.d.begin(fnGPUInstance); err != nil {
		return 0, 0, err
	}
	gpuInstance, ret := v.handle.GetGpuInstanceId()
	if err := v.d.end(fnGPUInstance, ret); err != nil {
		return 0, 0, err
	}
	if err := v.d.begin(fnComputeInstance); err != nil {
		return 0, 0, err
	}
	computeInstance, ret = v.handle.GetComputeInstanceId()
	return gpuInstance, computeInstance, v.d.end(fnComputeInstance, ret)
}

// Shape implements meter.Instance. Of a GPU instance that is divided into
// several compute instances, memory is what they share.
func (v *device) Shape() (slices int, memory uint64, err error) {
	if err := v.d.begin(fnAttributes); err != nil {
		return 0, 0, err
	}
	a, ret := v.handle.GetAttributes()
	return int(a.ComputeInstanceSliceCount), a.MemorySizeMB << 20, v.d.end(fnAttributes, ret)
}

// Memory implements meter.Partition. The first version of the call counts what
// the driver keeps for itself as used.
func (v *device) Memory() (total, used uint64, err error) {
	if v.d.has[fnMemory2] {
		if err := v.d.begin(fnMemory2); err != nil {
			return 0, 0, err
		}
		m, ret := v.handle.GetMemoryInfo_v2()
		if err := v.d.end(fnMemory2, ret); err == nil {
			return m.Total, m.Used, nil
		}
	}
	if err := v.d.begin(fnMemory); err != nil {
		return 0, 0, err
	}
	m, ret := v.handle.GetMemoryInfo()
	return m.Total, m.Used, v.d.end(fnMemory, ret)
}

// Rate implements meter.Device.
func (v *device) Rate() (float64, error) {
	if err := v.d.begin(fnRates); err != nil {
		return 0, err
	}
	u, ret := v.handle.GetUtilizationRates()
	return float64(u.Gpu), v.d.end(fnRates, ret)
}

// Samples implements meter.Device. The library could leave out what is older
// than a time; but if the clock is set back, that would be everything.
func (v *device) Samples(samples []meter.Sample) ([]meter.Sample, error) {
	if err := v.d.begin(fnSamples); err != nil {
		return samples, err
	}
	kind, ring, ret := v.handle.GetSamples(binding.GPU_UTILIZATION_SAMPLES, 0)
	if err := v.d.end(fnSamples, ret); err != nil {
		return samples, err
	}
	for _, s := range ring {
		samples = append(samples, meter.Sample{At: int64(min(s.TimeStamp, math.MaxInt64)), Percent: value(kind, s.SampleValue)})
	}
	return samples, nil
}

// value is the number in NVML's union; NaN if its type is not known. A negative
// one becomes a great one: neither is a percentage.
func value(kind binding.ValueType, v [8]byte) float64 {
	switch kind {
	case binding.VALUE_TYPE_DOUBLE:
		return math.Float64frombits(binary.NativeEndian.Uint64(v[:]))
	case binding.VALUE_TYPE_UNSIGNED_INT, binding.VALUE_TYPE_SIGNED_INT:
		return float64(binary.NativeEndian.Uint32(v[:]))
	case binding.VALUE_TYPE_UNSIGNED_LONG, binding.VALUE_TYPE_UNSIGNED_LONG_LONG, binding.VALUE_TYPE_SIGNED_LONG_LONG:
		return float64(binary.NativeEndian.Uint64(v[:]))
	case binding.VALUE_TYPE_UNSIGNED_SHORT:
		return float64(binary.NativeEndian.Uint16(v[:]))
	default:
		return math.NaN()
	}
}

// Power implements meter.Device.
func (v *device) Power() (int64, error) {
	if err := v.d.begin(fnPower); err != nil {
		return 0, err
	}
	milliwatts, ret := v.handle.GetPowerUsage()
	return int64(milliwatts), v.d.end(fnPower, ret)
}

// ECC implements meter.Device.
func (v *device) ECC() (meter.ECC, error) {
	var ecc meter.ECC
	counters := [...]struct {
		to      *uint64
		kind    binding.MemoryErrorType
		counter binding.EccCounterType
	}{
		{&ecc.Corrected, binding.MEMORY_ERROR_TYPE_CORRECTED, binding.VOLATILE_ECC},
		{&ecc.Uncorrected, binding.MEMORY_ERROR_TYPE_UNCORRECTED, binding.VOLATILE_ECC},
		{&ecc.LifetimeCorrected, binding.MEMORY_ERROR_TYPE_CORRECTED, binding.AGGREGATE_ECC},
		{&ecc.LifetimeUncorrected, binding.MEMORY_ERROR_TYPE_UNCORRECTED, binding.AGGREGATE_ECC},
	}
	for _, c := range counters {
		if err := v.d.begin(fnECC); err != nil {
			return meter.ECC{}, err
		}
		n, ret := v.handle.GetTotalEccErrors(c.kind, c.counter)
		if err := v.d.end(fnECC, ret); err != nil {
			return meter.ECC{}, err
		}
		*c.to = n
	}
	return ecc, nil
}

// Processes implements meter.Partition. Without the list of compute processes
// nothing is known; the other two lists are missing on many GPUs and drivers.
func (v *device) Processes(rows []meter.ProcessRow) ([]meter.ProcessRow, error) {
	lists := [...]struct {
		f    function
		kind meter.Kind
		get  func() ([]binding.ProcessInfo, binding.Return)
	}{
		{fnCompute, meter.Compute, v.handle.GetComputeRunningProcesses},
		{fnGraphics, meter.Graphics, v.handle.GetGraphicsRunningProcesses},
		{fnMPS, meter.MPS, v.handle.GetMPSComputeRunningProcesses},
	}
	for _, list := range lists {
		if list.f != fnCompute && !v.d.has[list.f] {
			continue
		}
		if err := v.d.begin(list.f); err != nil {
			return rows, err
		}
		processes, ret := list.get()
		err := v.d.end(list.f, ret)
		if list.f != fnCompute && ret == binding.ERROR_NOT_SUPPORTED {
			continue
		}
		if err != nil {
			return rows, err
		}
		for _, p := range processes {
			rows = append(rows, meter.ProcessRow{PID: p.Pid, Memory: p.UsedGpuMemory, Kind: list.kind})
		}
	}
	return rows, nil
}
