// SPDX-License-Identifier: GPL-2.0-or-later

package meter

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxPID is the greatest number that Linux gives a process.
const maxPID = 1 << 22

// processes reads who has a context on a GPU or an instance: nil if that is not
// known.
func (m *Meter) processes(uuid string, d Partition) []Process {
	var err error
	m.rows, err = d.Processes(m.rows[:0])
	if err == nil {
		err = m.garbage(m.rows)
	}
	if !m.note(uuid, "processes", err) {
		return nil
	}
	processes := make([]Process, 0, len(m.rows))
	for _, row := range m.rows {
		pid := int(row.PID)
		if !m.o.Alive(pid) {
			continue // it has ended since
		}
		i := slices.IndexFunc(processes, func(p Process) bool { return p.PID == pid })
		if i < 0 {
			processes = append(processes, Process{PID: pid})
			i = len(processes) - 1
		}
		p := &processes[i]
		p.Kind |= row.Kind
		// In several lists at once it is the same memory.
		if row.Memory != NoMemory && (p.Memory == nil || row.Memory > *p.Memory) {
			memory := row.Memory
			p.Memory = &memory
		}
	}
	slices.SortFunc(processes, func(a, b Process) int { return cmp.Compare(a.PID, b.PID) })
	return processes
}

// garbage says what is wrong with a list of processes as a whole: if one row is
// nonsense, so may be those that look right.
func (m *Meter) garbage(rows []ProcessRow) error {
	for _, row := range rows {
		if row.PID == 0 || row.PID > maxPID {
			return fmt.Errorf("the driver lists a process %d", row.PID)
		}
	}
	if len(rows) > 1 && m.badLists {
		return errBadLists
	}
	return nil
}

var errBadLists = errors.New("drivers 535.43 to 535.86 write wrong lists of several processes")

// hasBadLists tells whether a driver is one of those that wrote rows of 32 bytes
// where the caller's are 24: after the first row comes garbage.
func hasBadLists(version string) bool {
	rest, ok := strings.CutPrefix(version, "535.")
	if !ok {
		return false
	}
	rest, _, _ = strings.Cut(rest, ".")
	minor, err := strconv.Atoi(rest)
	return err == nil && minor >= 43 && minor <= 86
}

// alive tells whether a process exists. One that belongs to somebody else does.
func alive(pid int) bool {
	return !errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}
