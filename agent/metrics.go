// SPDX-License-Identifier: GPL-2.0-or-later

package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"gpubudget/agent/spool"
	"gpubudget/agent/tally"
	"gpubudget/usage/meter"
)

// metrics are what the agent tells Prometheus of itself and of the node's GPUs.
// None is of a single job: there would be too many.
type metrics struct {
	registry *prometheus.Registry

	up, sampled, roundSeconds, holdings       prometheus.Gauge
	spoolRows, spoolBytes, written, skewed    prometheus.Gauge
	writeFailures, rejected, xids             *prometheus.CounterVec
	gpuUp, held, eccCorrected, eccUncorrected *prometheus.GaugeVec
}

func newMetrics(version string) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "gpubudget", Subsystem: "agent", Name: name, Help: help})
		m.registry.MustRegister(g)
		return g
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "gpubudget", Subsystem: "agent", Name: name, Help: help}, labels)
		m.registry.MustRegister(g)
		return g
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "gpubudget", Subsystem: "agent", Name: name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	m.up = gauge("up", "1 if the GPUs were read in the last round, 0 if not.")
	m.sampled = gauge("sampled_timestamp_seconds", "When the GPUs were last read.")
	m.roundSeconds = gauge("round_seconds", "How long the last round took.")
	m.holdings = gauge("holdings", "GPUs that jobs hold, each counted once for each job.")
	m.spoolRows = gauge("spool_buckets", "Closed buckets that the database does not have yet.")
	m.spoolBytes = gauge("spool_bytes", "Size of the spool on disk.")
	m.written = gauge("written_timestamp_seconds", "When the database last took a report.")
	m.skewed = gauge("clock_refused", "1 if the database refuses reports since the clocks differ by more than 5 minutes.")
	m.writeFailures = counters("write_failures_total", "Reports that the database did not take.", "code")
	m.rejected = counters("buckets_rejected_total", "Buckets that the database refused for what is in them.", "code")
	m.gpuUp = gauges("gpu_up", "1 if the GPU can be read, 0 if not, as of one that is lost.", "uuid", "gpu")
	m.held = gauges("gpu_held", "Jobs that hold the GPU or the MIG instance.", "uuid", "gpu")
	m.eccCorrected = gauges("gpu_ecc_corrected", "Memory errors that were corrected since the driver was loaded.", "uuid", "gpu")
	m.eccUncorrected = gauges("gpu_ecc_uncorrected", "Memory errors that were not corrected since the driver was loaded.", "uuid", "gpu")
	m.xids = counters("gpu_xids_total", "Xid errors that the GPU reported.", "uuid", "xid")
	build := gauges("info", "The agent that runs.", "version")
	build.WithLabelValues(version).Set(1)
	return m
}

func (m *metrics) round(took time.Duration, sampled *int64) {
	m.roundSeconds.Set(took.Seconds())
	if sampled != nil {
		m.sampled.Set(float64(*sampled) / 1000)
	}
}

func (m *metrics) counted(s *spool.Spool, holdings []tally.Holding, devices []device, seen *meter.Round) {
	m.spoolRows.Set(float64(s.Waiting()))
	m.spoolBytes.Set(float64(s.Bytes()))
	held := map[string]int{}
	open := 0
	for i := range holdings {
		if holdings[i].Until == tally.Open {
			held[holdings[i].GPU]++
			open++
		}
	}
	m.holdings.Set(float64(open))
	m.held.Reset()
	for i := range devices {
		m.held.WithLabelValues(devices[i].UUID, strconv.Itoa(devices[i].Index)).Set(float64(held[devices[i].UUID]))
	}
	m.gpuUp.Reset()
	m.eccCorrected.Reset()
	m.eccUncorrected.Reset()
	if seen == nil {
		m.unread(devices)
		return
	}
	m.up.Set(1)
	m.health(seen)
}

// unread has no GPU up: none could be read.
func (m *metrics) unread(devices []device) {
	m.up.Set(0)
	for i := range devices {
		if d := &devices[i]; d.Parent == "" {
			m.gpuUp.WithLabelValues(d.UUID, strconv.Itoa(d.Index)).Set(0)
		}
	}
}

func (m *metrics) health(seen *meter.Round) {
	for i := range seen.GPUs {
		g := &seen.GPUs[i]
		labels := []string{g.UUID, strconv.Itoa(g.Index)}
		up := 1.0
		if g.Err != nil {
			up = 0
		}
		m.gpuUp.WithLabelValues(labels...).Set(up)
		if g.ECC != nil {
			m.eccCorrected.WithLabelValues(labels...).Set(float64(g.ECC.Corrected))
			m.eccUncorrected.WithLabelValues(labels...).Set(float64(g.ECC.Uncorrected))
		}
	}
	for _, x := range seen.Xids {
		m.xids.WithLabelValues(x.UUID, strconv.FormatUint(x.Code, 10)).Inc()
	}
}

// ServeMetrics serves them at an address until the context ends. An address that
// can't be had is told of, and costs nothing else.
func (a *Agent) ServeMetrics(ctx context.Context, address string) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		a.log.Error("metrics are not served", "err", err)
		return
	}
	a.serveMetrics(ctx, listener)
}

func (a *Agent) serveMetrics(ctx context.Context, listener net.Listener) {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelWarn)}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		a.log.Error("metrics are not served any more", "err", err)
	}
}
