// SPDX-License-Identifier: GPL-2.0-or-later

package bench

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// residentMemory is what of a process lies in memory, in bytes.
func residentMemory(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, fmt.Errorf("/proc/%d/statm: %q", pid, text)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/%d/statm: %w", pid, err)
	}
	return pages * int64(os.Getpagesize()), nil
}

// findThread is the folder below /proc of the thread of that name: the oldest,
// as threads that it has started have its name too.
func findThread(pid int, name string) (string, error) {
	comms, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
	if err != nil {
		return "", err
	}
	slices.SortFunc(comms, func(x, y string) int { return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)) })
	for _, comm := range comms {
		text, err := os.ReadFile(comm)
		if err == nil && strings.TrimSpace(string(text)) == name {
			return filepath.Dir(comm), nil
		}
	}
	return "", fmt.Errorf("slurmctld has no thread %q", name)
}

// cpuTime is how long a thread has run on a CPU.
func cpuTime(thread string) (time.Duration, error) {
	text, err := os.ReadFile(filepath.Join(thread, "schedstat"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), " ")
	ns, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s/schedstat: %w", thread, err)
	}
	return time.Duration(ns), nil
}
