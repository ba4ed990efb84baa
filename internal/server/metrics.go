package server

import (
	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
)

// callSeconds are the buckets of how long calls take: from one look-up to the wait of a write.
var callSeconds = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 120}

// Metrics counts calls: those of every service, by method and code, as go-grpc-middleware names
// them, and those under way, refused and ended by a panic. It is a prometheus.Collector, safe for
// concurrent use. The servers of one process may share it.
type Metrics struct {
	rpc             *grpcprom.ServerMetrics
	underWay        prometheus.Gauge
	refused, panics prometheus.Counter
}

// NewMetrics returns Metrics with nothing counted yet.
func NewMetrics() *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "shingle", Name: name, Help: help})
	}
	return &Metrics{
		rpc: grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram(grpcprom.WithHistogramBuckets(callSeconds))),
		underWay: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "shingle", Name: "calls_under_way", Help: "Calls of the API that are under way.",
		}),
		refused: counter("calls_refused_total", "Calls refused because as many as allowed were under way."),
		panics:  counter("panics_total", "Calls that ended in a panic, answered with INTERNAL: each is a bug."),
	}
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.rpc, m.underWay, m.refused, m.panics}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(to)
	}
}
