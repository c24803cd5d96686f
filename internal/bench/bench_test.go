// SPDX-License-Identifier: GPL-2.0-or-later

package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestQuantilesAndMedians(t *testing.T) {
	hundred := make([]uint32, 100)
	for i := range hundred {
		hundred[i] = uint32(100 - i)
	}
	require.Equal(t, 50.0, quantile(hundred, 0.50))
	require.Equal(t, 99.0, quantile(hundred, 0.99))
	require.Equal(t, 7.0, quantile([]uint32{7}, 0.99))
	require.Equal(t, 7.0, quantile([]uint32{7, 8}, 0))
	require.Equal(t, 2.0, median([]float64{3, 1, 2}))
	require.Equal(t, 2.5, median([]float64{4, 1, 3, 2}))
}

func TestAPassIsWhatItHeld(t *testing.T) {
	p := pass{holds: []hold{
		{job: readLock, asked: 0, got: 5, released: 12, cpu: 6},
		{job: writeLock, asked: 12, got: 20, released: 23, cpu: 2},
		{job: writeLock, asked: 30, got: 30, released: 40, cpu: 9},
		{job: 0, asked: 50, got: 50, released: 99, cpu: 9},
	}}
	require.Equal(t, 13*time.Nanosecond, p.held(writeLock))
	require.Equal(t, 11*time.Nanosecond, p.heldCPU(writeLock))
	require.Equal(t, 7*time.Nanosecond, p.held(readLock))
	require.Equal(t, 10*time.Nanosecond, p.longest())
}

func TestAPassGivesPriorities(t *testing.T) {
	look, news := hold{job: readLock, node: readLock}, hold{job: writeLock}
	require.False(t, pass{}.gave())
	require.False(t, pass{holds: []hold{look, news}}.gave())
	require.True(t, pass{holds: []hold{look, news, {job: writeLock, node: readLock}}}.gave())
}

func TestWhatIsPrinted(t *testing.T) {
	var out strings.Builder
	p := &printer{out: &out}
	p.side("stock", "pass-cpu", 10, 2, "ms")
	p.side("stock", "pass-cpu", 100, 30.25, "ms")
	p.ratio("pass-cpu", 100, 0.5)
	p.growth([]int{10, 100})
	require.NoError(t, p.err)
	require.Equal(t, `bench: stock/pass-cpu/jobs=10 2 ms
bench: stock/pass-cpu/jobs=100 30.25 ms
bench: ratio/pass-cpu/jobs=100 0.5 x
bench: growth/stock/pass-cpu/jobs=10..100 15.12 x
`, out.String())
}

// Every user is in one account, every account below the root, and the children
// of none hold more than the whole.
func TestTree(t *testing.T) {
	for _, size := range []struct{ users, accounts int }{{5000, 500}, {500, 50}, {7, 7}, {1, 1}, {30, 26}} {
		accounts, users := tree(size.users, size.accounts)
		require.Len(t, users, size.users)
		seats, known, shares := map[string]int{}, map[string]bool{"": true}, map[string]float64{}
		for _, a := range accounts {
			require.True(t, known[a.Parent], "%s is below %s, which comes later", a.Name, a.Parent)
			known[a.Name] = true
			var share float64
			_, err := fmt.Sscanf(a.Share, "%f%%", &share)
			require.NoError(t, err)
			shares[a.Parent] += share
			for _, u := range a.Users {
				seats[u]++
			}
		}
		require.Len(t, seats, size.users)
		for u, n := range seats {
			require.Equal(t, 1, n, u)
		}
		for parent, sum := range shares {
			require.LessOrEqual(t, sum, 100.0, parent)
		}
		if size.accounts > 1 {
			require.Len(t, accounts, size.accounts)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	good := Options{Jobs: []int{10, 20}, Users: 2, Accounts: 2, Passes: 1, Clients: 1}
	require.NoError(t, good.check())
	submissions := good
	submissions.Passes = 0
	require.NoError(t, submissions.check())
	for name, change := range map[string]func(*Options){
		"no jobs":         func(o *Options) { o.Jobs = nil },
		"descending":      func(o *Options) { o.Jobs = []int{20, 10} },
		"too few":         func(o *Options) { o.Jobs = []int{1} },
		"empty accounts":  func(o *Options) { o.Users = 1 },
		"fewer than none": func(o *Options) { o.Passes = -1 },
		"no client":       func(o *Options) { o.Clients = 0 },
	} {
		bad := good
		change(&bad)
		require.Error(t, bad.check(), name)
	}
}

func TestPreemptOptionsAreChecked(t *testing.T) {
	good := PreemptOptions{Running: []int{1000, 16}, Searches: 1, Users: 2, Accounts: 2}
	require.NoError(t, good.check())
	for name, change := range map[string]func(*PreemptOptions){
		"no jobs":        func(o *PreemptOptions) { o.Running = nil },
		"one node":       func(o *PreemptOptions) { o.Running = []int{8} },
		"half a node":    func(o *PreemptOptions) { o.Running = []int{20} },
		"empty accounts": func(o *PreemptOptions) { o.Users = 1 },
		"fewer pending":  func(o *PreemptOptions) { o.Pending = -1 },
		"no search":      func(o *PreemptOptions) { o.Searches = 0 },
		"no such case":   func(o *PreemptOptions) { o.Cases = "suspended" },
	} {
		bad := good
		change(&bad)
		require.Error(t, bad.check(), name)
	}
}

// A case that finds candidates where there are to be none, or none where there are
// to be some, is not what it says.
func TestASearchFindsWhomTheCaseIsAbout(t *testing.T) {
	var out strings.Builder
	p := &printer{out: &out}
	found := []search{{wall: 2e6, cpu: 1e6, found: 7}, {wall: 3e6, cpu: 2e6, found: 7}}
	require.NoError(t, p.searches(&preemptCase{name: "all", yields: true}, 10, found))
	require.Equal(t, `bench: preempt/all/cpu-p50/running=10 1 ms
bench: preempt/all/cpu-mean/running=10 1.5 ms
bench: preempt/all/cpu-max/running=10 2 ms
bench: preempt/all/wall-p50/running=10 2 ms
bench: preempt/all/wall-max/running=10 3 ms
bench: preempt/all/candidates-p50/running=10 7 jobs
bench: preempt/all/candidates-max/running=10 7 jobs
bench: preempt/all/searches/running=10 2 searches
`, out.String())
	require.Error(t, p.searches(&preemptCase{name: "none"}, 10, found))
	require.Error(t, p.searches(&preemptCase{name: "all", yields: true}, 10, []search{{found: 0}}))
	require.Error(t, p.searches(&preemptCase{name: "none"}, 10, []search{{found: -1}}), "it isn't known")
}

// The structs of probe.go lie as those of probe.h.
func TestProbeStructs(t *testing.T) {
	dir := t.TempDir()
	header, err := filepath.Abs("tools/probe.h")
	require.NoError(t, err)
	source, program := filepath.Join(dir, "sizes.c"), filepath.Join(dir, "sizes")
	require.NoError(t, os.WriteFile(source, []byte(`
#include <stddef.h>
#include <stdio.h>
#include "`+header+`"
int main(void)
{
	printf("%zu %zu %zu %zu %zu %zu %zu %zu\n", sizeof(struct probe_hold), offsetof(struct probe_hold, node), offsetof(struct probe_hold, cpu),
	       offsetof(struct probe, hold), offsetof(struct probe, set), offsetof(struct probe, search),
	       sizeof(struct probe_search), sizeof(struct probe));
	return 0;
}
`), 0o600))
	out, err := exec.CommandContext(t.Context(), "gcc", "-Wall", "-Werror", "-o", program, source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.CommandContext(t.Context(), program).Output()
	require.NoError(t, err)
	var h hold
	var s search
	var p probeFile
	require.Equal(t, fmt.Sprintln(unsafe.Sizeof(h), unsafe.Offsetof(h.node), unsafe.Offsetof(h.cpu), unsafe.Offsetof(p.hold), unsafe.Offsetof(p.set),
		unsafe.Offsetof(p.search), unsafe.Sizeof(s), unsafe.Sizeof(p)), string(out))
}
