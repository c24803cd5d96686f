// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"gpubudget/agent/tally"
	"gpubudget/usage/meter"
)

// metered are the values of all metrics, by name and labels.
func (n *node) metered() map[string]float64 {
	n.t.Helper()
	families, err := n.metrics.registry.Gather()
	require.NoError(n.t, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			slices.Sort(labels)
			name := strings.TrimPrefix(f.GetName(), "gpubudget_agent_")
			values[strings.Join(append([]string{name}, labels...), " ")] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return values
}

// Whoever watches the metrics is told of each trouble, and of its end.
func TestMetricsTellOfTrouble(t *testing.T) {
	n := newNode(t).withDatabase()
	n.driver.gpus[0].ECC = &meter.ECC{Corrected: 3, Uncorrected: 2}
	n.start().prolog(7, "0").rounds(2)
	is := func(metric string, want float64) {
		t.Helper()
		values := n.metered()
		require.Contains(t, values, metric)
		require.InDelta(t, want, values[metric], 0.001, metric)
	}
	is("up", 1)
	is("sampled_timestamp_seconds", float64(n.Now().UnixMilli())/1000)
	is("gpu_up gpu=0 uuid=GPU-0", 1)
	is("gpu_held gpu=0 uuid=GPU-0", 1)
	is("gpu_ecc_corrected gpu=0 uuid=GPU-0", 3)
	is("gpu_ecc_uncorrected gpu=0 uuid=GPU-0", 2)
	is("round_seconds", 0) // by the clock of the test, which stands still
	require.Positive(t, n.metered()["spool_bytes"])

	n.driver.xids = []meter.Xid{{UUID: "GPU-1", Code: 79}, {UUID: "GPU-1", Code: 79}}
	n.driver.gpus[1].Err = errors.New("the GPU is lost")
	n.rounds(1)
	is("gpu_xids_total uuid=GPU-1 xid=79", 2)
	is("gpu_up gpu=1 uuid=GPU-1", 0)
	is("gpu_up gpu=0 uuid=GPU-0", 1)
	sampled := n.metered()["sampled_timestamp_seconds"]
	n.driver.xids, n.driver.err = nil, errors.New("the driver is confused")
	n.rounds(1)
	is("up", 0)
	is("gpu_up gpu=0 uuid=GPU-0", 0)
	is("sampled_timestamp_seconds", sampled)
	is("gpu_held gpu=0 uuid=GPU-0", 1)
	require.NotContains(t, n.metered(), "gpu_ecc_uncorrected gpu=0 uuid=GPU-0", "nobody knows")
	n.driver.err, n.driver.gpus[1].Err = nil, nil
	n.rounds(1)
	is("up", 1)
	is("gpu_up gpu=1 uuid=GPU-1", 1)
	is("gpu_xids_total uuid=GPU-1 xid=79", 2)

	// The database.
	var w written
	n.connect = errAway
	n.epilog(7).rounds(1)
	n.sendTo(&w)
	is("write_failures_total code=connection", 1)
	is("spool_buckets", 1)
	n.connect = nil
	n.mu.Lock()
	n.wall = time.Now().Add(-10 * time.Minute)
	n.mu.Unlock()
	n.writeOnce(t.Context(), &w)
	is("write_failures_total code="+codeClock, 1)
	is("clock_refused", 1)
	require.NoError(t, n.save([]*tally.Bucket{aBucket(thisHour()+10*3600_000, 1000)}))
	n.sendTo(&w)
	is("clock_refused", 0)
	is("buckets_rejected_total code=GB021", 1)
	require.InDelta(t, float64(time.Now().Unix()), n.metered()["written_timestamp_seconds"], 60)
	n.rounds(1)
	is("spool_buckets", 0)
	is("holdings", 0)
}

// docs/agent.md lists each of them.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/agent.md")
	require.NoError(t, err)
	_, after, found := strings.Cut(string(text), "## Metrics")
	require.True(t, found)
	page, _, _ := strings.Cut(after, "\n## ")
	n := newNode(t).start()
	for _, c := range []string{"a"} {
		n.metrics.writeFailures.WithLabelValues(c)
		n.metrics.rejected.WithLabelValues(c)
		n.metrics.xids.WithLabelValues(c, c)
		n.metrics.eccCorrected.WithLabelValues(c, c)
		n.metrics.eccUncorrected.WithLabelValues(c, c)
		n.metrics.gpuUp.WithLabelValues(c, c)
		n.metrics.held.WithLabelValues(c, c)
	}
	for metric := range n.metered() {
		name, _, _ := strings.Cut(metric, " ")
		require.Regexp(t, fmt.Sprintf("`%s[{`]", name), page)
	}
}
