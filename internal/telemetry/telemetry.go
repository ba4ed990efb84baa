package telemetry

import (
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/shingle-store/shingle/internal/engine"
)

// Telemetry is a registry of metrics with those of one engine, of the Go runtime and of the
// process in it. It is safe for concurrent use.
type Telemetry struct {
	registry *prometheus.Registry
	engine   atomic.Pointer[engine.Engine]
}

// New returns a Telemetry whose engine is not open yet: until Attach a scrape gets all else.
// version and revision are what shingle_build_info says of the program.
func New(version, revision string) *Telemetry {
	t := &Telemetry{registry: prometheus.NewRegistry()}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "Always 1; the labels say which program this is.",
		ConstLabels: prometheus.Labels{"version": version, "revision": revision},
	})
	build.Set(1)
	t.Register(t, build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return t
}

// Register adds metrics of other parts of the program. A name that is taken is a fault of the
// program and panics.
func (t *Telemetry) Register(c ...prometheus.Collector) { t.registry.MustRegister(c...) }

// Attach gives it the engine. One that is closed may go on being scraped.
func (t *Telemetry) Attach(e *engine.Engine) { t.engine.Store(e) }

// Handler answers scrapes. What cannot be gathered is left out, and the rest is answered.
func (t *Telemetry) Handler() http.Handler {
	return promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}
