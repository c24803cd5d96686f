// SPDX-License-Identifier: GPL-2.0-or-later

package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/dl"

	"gpubudget/usage/meter"
)

// function is a call of the library that is made here.
type function int

const (
	fnInit function = iota
	fnShutdown
	fnVersion
	fnCount
	fnHandle
	fnUUID
	fnName
	fnMinor
	fnPCI
	fnMIGMode
	fnPlaces
	fnInstance
	fnGPUInstance
	fnComputeInstance
	fnAttributes
	fnProfile
	fnSamples
	fnRates
	fnMemory
	fnMemory2
	fnPower
	fnECC
	fnCompute
	fnGraphics
	fnMPS
	fnEventSet
	fnEventFree
	fnEventWait
	fnEventTypes
	fnRegister
	fnGPMSupport
	fnGPMAlloc
	fnGPMFree
	fnGPMSample
	fnGPMMetrics
	functions
)

// names are the functions' names in the library, newest version first. go-nvml
// takes the newest version there is, and falls back to the last one named here.
var names = [functions][]string{
	fnInit:            {"nvmlInit_v2", "nvmlInit"},
	fnShutdown:        {"nvmlShutdown"},
	fnVersion:         {"nvmlSystemGetDriverVersion"},
	fnCount:           {"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
	fnHandle:          {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
	fnUUID:            {"nvmlDeviceGetUUID"},
	fnName:            {"nvmlDeviceGetName"},
	fnMinor:           {"nvmlDeviceGetMinorNumber"},
	fnPCI:             {"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"},
	fnMIGMode:         {"nvmlDeviceGetMigMode"},
	fnPlaces:          {"nvmlDeviceGetMaxMigDeviceCount"},
	fnInstance:        {"nvmlDeviceGetMigDeviceHandleByIndex"},
	fnGPUInstance:     {"nvmlDeviceGetGpuInstanceId"},
	fnComputeInstance: {"nvmlDeviceGetComputeInstanceId"},
	fnAttributes:      {"nvmlDeviceGetAttributes_v2", "nvmlDeviceGetAttributes"},
	fnProfile:         {"nvmlDeviceGetGpuInstanceProfileInfo"},
	fnSamples:         {"nvmlDeviceGetSamples"},
	fnRates:           {"nvmlDeviceGetUtilizationRates"},
	fnMemory:          {"nvmlDeviceGetMemoryInfo"},
	fnMemory2:         {"nvmlDeviceGetMemoryInfo_v2"},
	fnPower:           {"nvmlDeviceGetPowerUsage"},
	fnECC:             {"nvmlDeviceGetTotalEccErrors"},
	fnCompute: {
		"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2",
		"nvmlDeviceGetComputeRunningProcesses",
	},
	fnGraphics: {
		"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2",
		"nvmlDeviceGetGraphicsRunningProcesses",
	},
	fnMPS: {
		"nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v2",
		"nvmlDeviceGetMPSComputeRunningProcesses",
	},
	fnEventSet:   {"nvmlEventSetCreate"},
	fnEventFree:  {"nvmlEventSetFree"},
	fnEventWait:  {"nvmlEventSetWait_v2", "nvmlEventSetWait"},
	fnEventTypes: {"nvmlDeviceGetSupportedEventTypes"},
	fnRegister:   {"nvmlDeviceRegisterEvents"},
	fnGPMSupport: {"nvmlGpmQueryDeviceSupport"},
	fnGPMAlloc:   {"nvmlGpmSampleAlloc"},
	fnGPMFree:    {"nvmlGpmSampleFree"},
	fnGPMSample:  {"nvmlGpmMigSampleGet"},
	fnGPMMetrics: {"nvmlGpmMetricsGet"},
}

// required are functions without which nothing can be read. All drivers since
// 2013 have them.
var required = [...]function{fnInit, fnShutdown, fnCount, fnHandle, fnUUID}

// find looks up the functions. It opens the library a second time for that,
// since go-nvml's own look-up works only after it has called nvmlInit.
func (d *Driver) find() error {
	lib := dl.New(d.path, dl.RTLD_LAZY|dl.RTLD_LOCAL)
	if err := lib.Open(); err != nil {
		return fmt.Errorf("%w (is the NVIDIA driver installed on this node?): %w", meter.ErrNoLibrary, err)
	}
	for f := range names {
		d.has[f] = false
		for _, name := range names[f] {
			if lib.Lookup(name) == nil {
				d.has[f] = true
				break
			}
		}
	}
	if err := lib.Close(); err != nil {
		return fmt.Errorf("close %s after looking into it: %w", d.path, err)
	}
	for _, f := range required {
		if !d.has[f] {
			return fmt.Errorf("%s is too old or no NVIDIA driver: %w", d.path, &meter.CallError{Call: names[f][0], Code: meter.ErrNoFunction})
		}
	}
	return nil
}
