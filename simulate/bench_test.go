// SPDX-License-Identifier: GPL-2.0-or-later

package simulate_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"gpubudget/fairshare"
	"gpubudget/simulate"
	"gpubudget/simulate/trace"
)

// BenchmarkPhilly is 82,247 jobs on 400 GPUs, policy by policy, if the trace is
// there.
func BenchmarkPhilly(b *testing.B) {
	f, err := os.Open(filepath.Join("..", "..", "shared", "traces", "philly_2017.csv"))
	if err != nil {
		b.Skipf("without the trace: %v", err)
	}
	defer f.Close()
	t, err := trace.Read(f, trace.Philly, trace.Options{Seed: 1})
	require.NoError(b, err)
	for _, name := range simulate.PolicyNames() {
		b.Run(name, func(b *testing.B) { run(b, t.Workload, t.EqualBudget(), name, 50) })
	}
}

// BenchmarkJobs is 4,096 GPUs at 95% load with the contract, for as many days as
// the jobs take that make it: the time for each job must not grow with how many
// there are.
func BenchmarkJobs(b *testing.B) {
	for _, days := range []int{1, 10, 108} {
		g := simulate.DefaultGenerator()
		g.GPUs, g.Days, g.Jobs, g.Accounts, g.Load, g.Demand = 4096, days, 1_000_000*days/108, 30, 0.95, 0
		b.Run(strconv.Itoa(g.Jobs), func(b *testing.B) {
			w, budget, err := g.Generate()
			require.NoError(b, err)
			run(b, w, budget, "contract", 512)
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(w.Jobs)), "ns/job")
		})
	}
}

func run(b *testing.B, w *simulate.Workload, budget *fairshare.Budget, policy string, nodes int) {
	b.Helper()
	p, err := simulate.DefaultPolicy(policy)
	require.NoError(b, err)
	var m runtime.MemStats
	for b.Loop() {
		_, err := simulate.Run(simulate.Config{
			Workload: w, Budget: budget, Policy: p, Until: w.Span() + 1,
			Cluster: simulate.Cluster{Partitions: []simulate.Partition{{Nodes: nodes, GPUsPerNode: 8}}},
		})
		require.NoError(b, err)
	}
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.Sys)/(1<<20), "MiB")
}
