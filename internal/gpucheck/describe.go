// SPDX-License-Identifier: GPL-2.0-or-later

package gpucheck

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gpubudget/usage/meter"
)

// known is a text, or what stands for none.
func known(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// show is a value that may not be known.
func show[T any](v *T, format func(T) string) string {
	if v == nil {
		return "unknown"
	}
	return format(*v)
}

func gibibytes(v uint64) string { return fmt.Sprintf("%.2f GiB", float64(v)/(1<<30)) }

func describeMemory(v *uint64) string { return show(v, gibibytes) }

func describeBusy(b *meter.Busy) string {
	if b == nil {
		return "utilisation unknown"
	}
	if b.Known <= 0 {
		return "utilisation of no time"
	}
	return fmt.Sprintf("utilisation %.1f%% of %.2f s (%s)", 100*b.Busy.Seconds()/b.Known.Seconds(), b.Known.Seconds(), b.Source)
}

func describeProcesses(list []meter.Process) string {
	if list == nil {
		return "processes unknown"
	}
	texts := []string{}
	for _, p := range list {
		texts = append(texts, fmt.Sprintf("%d (%s)", p.PID, describeMemory(p.Memory)))
	}
	return "processes " + orNone(strings.Join(texts, ", "))
}

// describe prints what is known of a GPU.
func (c *check) describe(g meter.Reading) {
	number := strconv.Itoa
	c.printf("GPU %s, %s, at %s, /dev/nvidia%s, %s, MIG mode %s of %s slices", known(g.UUID), known(g.Name), known(g.PCI),
		show(g.Minor, number), describeMemory(g.Memory),
		show(g.MIG, func(on bool) string { return map[bool]string{true: "on", false: "off"}[on] }), show(g.Slices, number))
	if g.Err != nil {
		c.expectf(false, "GPU "+known(g.UUID), "%v", g.Err)
		return
	}
	c.printf("  power %s, memory used %s, %s", show(g.Power, func(mw int64) string { return fmt.Sprintf("%.1f W", float64(mw)/1000) }),
		describeMemory(g.MemoryUsed), describeProcesses(g.Processes))
	c.printf("  memory errors %s", show(g.ECC, func(e meter.ECC) string {
		return fmt.Sprintf("%d corrected, %d not, over its life %d and %d", e.Corrected, e.Uncorrected, e.LifetimeCorrected, e.LifetimeUncorrected)
	}))
	for _, i := range g.Instances {
		c.printf("  instance %s, ids %s.%s, %s slices, %s, used %s, %s", known(i.UUID), show(i.GPUInstance, number),
			show(i.ComputeInstance, number), show(i.Slices, number), describeMemory(i.Memory), describeMemory(i.MemoryUsed), describeProcesses(i.Processes))
	}
	c.compare(g)
}

// compare holds the identity against what the kernel module says of the GPU at
// that address, where it says anything.
func (c *check) compare(g meter.Reading) {
	path := filepath.Join("/proc/driver/nvidia/gpus", g.PCI, "information")
	text, err := os.ReadFile(path)
	if err != nil {
		c.printf("  not compared with the kernel: %v", err)
		return
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch key {
		case "GPU UUID":
			c.expectf(value == g.UUID, "UUID", "the kernel says %s", value)
		case "Device Minor":
			c.expectf(g.Minor != nil && value == strconv.Itoa(*g.Minor), "minor number", "the kernel says %s", value)
		}
	}
}

// deviceFiles are the GPUs' device files that this process has open.
func deviceFiles() []string {
	var open []string
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		panic("gpucheck: " + err.Error()) // the pattern is right
	}
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, "/dev/nvidia") {
			open = append(open, to)
		}
	}
	return open
}

// resident is the memory of this process, in MiB.
func resident() float64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, pages int
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		return 0
	}
	return float64(pages) * float64(os.Getpagesize()) / (1 << 20)
}
