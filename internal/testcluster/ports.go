// SPDX-License-Identifier: GPL-2.0-or-later

package testcluster

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

const (
	// Below the range the kernel hands out for outgoing connections, so that
	// none of those can take a port between our look at it and a daemon's.
	firstPort  = 20000
	lastPort   = 32000
	blockPorts = 400
)

// ports is a block of TCP ports that no other cluster uses while lock is open.
type ports struct {
	first int
	lock  *os.File
}

// The places of the block.
func (p ports) slurmctld() int   { return p.first }
func (p ports) slurmdbd() int    { return p.first + 1 }
func (p ports) mariadb() int     { return p.first + 2 }
func (p ports) slurmd(n int) int { return p.first + 3 + n } // n from 1
func (p ports) srun() (int, int) { return p.first + 200, p.first + blockPorts - 1 }
func (p ports) needed(n int) []int { // by n nodes; srun looks for free ones itself
	var all []int
	for port := p.first; port <= p.slurmd(n); port++ {
		all = append(all, port)
	}
	return all
}

const maxNodes = 190 // of a cluster: what a block has room for

// reservePorts takes the first block that no other cluster holds and whose
// ports for a cluster of that many nodes are free.
func reservePorts(nodes int) (ports, error) {
	dir := filepath.Join(os.TempDir(), "gpubudget-ports")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return ports{}, fmt.Errorf("reserve ports: %w", err)
	}
	for first := firstPort; first+blockPorts <= lastPort; first += blockPorts {
		p := ports{first: first}
		lock, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(first)), os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return ports{}, fmt.Errorf("reserve ports: %w", err)
		}
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil && allFree(p.needed(nodes)) {
			p.lock = lock
			return p, nil
		}
		_ = lock.Close()
		if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) {
			return ports{}, fmt.Errorf("reserve ports: %w", err)
		}
	}
	return ports{}, fmt.Errorf("reserve ports: no block of %d free TCP ports between %d and %d", blockPorts, firstPort, lastPort)
}

func allFree(candidates []int) bool {
	for _, port := range candidates {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port)) //nolint:noctx // it does not wait
		if err != nil {
			return false
		}
		_ = l.Close()
	}
	return true
}
