package telemetry

import (
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shingle-store/shingle/internal/engine"
)

const namespace = "shingle"

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
}

// gauge is a figure of engine.Usage as a metric.
type gauge struct {
	desc *prometheus.Desc
	of   func(engine.Usage) int64
}

// spaceStates add up to shingle_space_total_bytes.
var spaceStates = []struct {
	state string
	of    func(engine.Usage) int64
}{
	{"used", func(u engine.Usage) int64 { return u.Used }},
	{"free", func(u engine.Usage) int64 { return u.Free }},
	{"zone_unusable", func(u engine.Usage) int64 { return u.Unusable }},
	{"reserved", func(u engine.Usage) int64 { return u.Reserved }},
	{"quarantined", func(u engine.Usage) int64 { return u.Quarantined }},
}

var (
	spaceDesc     = describe("space_bytes", "The account of space, by state; the states add up to shingle_space_total_bytes.", "state")
	conditionDesc = describe("conditions", "How many things are wrong now, by reason and severity; absent while none is.", "reason", "severity")
	infoDesc      = describe("store_info", "Always 1; the labels name the store and this run of the engine.", "store", "boot_id")
	readOnlyDesc  = describe("read_only", "1 if the store takes no changes until the engine is started again.")
	startedDesc   = describe("start_time_seconds", "When the store was opened, in seconds since 1970.")
)

var gauges = []gauge{
	{describe("space_total_bytes", "What can be stored: usable capacity less the reserves."), func(u engine.Usage) int64 { return u.Total }},
	{describe("space_writable_bytes", "An estimate of what can still be written, reclaim included."), func(u engine.Usage) int64 { return u.Writable }},
	{describe("space_reclaimable_bytes", "Dead bytes of zones that only wait to be reset."), func(u engine.Usage) int64 { return u.Reclaimable }},
	{describe("space_relocatable_bytes", "Dead bytes that come back when the live ones beside them are moved."), func(u engine.Usage) int64 { return u.Relocatable }},
	{describe("device_size_bytes", "The size that the device says it has."), func(u engine.Usage) int64 { return u.Raw }},
	{describe("dirty_bytes", "Bytes received and not durable yet."), func(u engine.Usage) int64 { return u.Dirty }},
	{describe("metadata_bytes", "Bytes in use in the metadata file."), func(u engine.Usage) int64 { return u.Metadata }},
	{describe("metadata_max_bytes", "The bound of the metadata file."), func(u engine.Usage) int64 { return u.MetadataMax }},
	{describe("zones_active", "Zones that are open or closed now."), func(u engine.Usage) int64 { return int64(u.Active) }},
	{describe("zones_active_max", "How many may be active; 0: no limit."), func(u engine.Usage) int64 { return int64(u.MaxActive) }},
	{describe("reclaim_running", "1 while live data is moved or zones are reset."), func(u engine.Usage) int64 { return flag(u.Reclaiming) }},
}

func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// countDescs are the descriptions of counts, by index.
var countDescs = func() []*prometheus.Desc {
	out := make([]*prometheus.Desc, len(counts))
	for i, c := range counts {
		out[i] = describe(c.name, c.help)
	}
	return out
}()

// Describe implements prometheus.Collector.
func (t *Telemetry) Describe(to chan<- *prometheus.Desc) {
	for _, d := range countDescs {
		to <- d
	}
	for _, g := range gauges {
		to <- g.desc
	}
	for _, d := range []*prometheus.Desc{spaceDesc, conditionDesc, infoDesc, readOnlyDesc, startedDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector: it reads the engine, once for each scrape. Before Attach
// there is nothing to say.
func (t *Telemetry) Collect(to chan<- prometheus.Metric) {
	e := t.engine.Load()
	if e == nil {
		return
	}
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	values := e.Counters()
	for i, c := range counts {
		kind := prometheus.GaugeValue
		if strings.HasSuffix(c.name, "_total") {
			kind = prometheus.CounterValue
		}
		send(countDescs[i], kind, float64(values[c.key]))
	}
	u, info := e.Usage(), e.Info()
	for _, g := range gauges {
		send(g.desc, prometheus.GaugeValue, float64(g.of(u)))
	}
	for _, s := range spaceStates {
		send(spaceDesc, prometheus.GaugeValue, float64(s.of(u)), s.state)
	}
	send(infoDesc, prometheus.GaugeValue, 1, uuid.UUID(info.StoreUUID).String(), strconv.FormatUint(info.BootID, 10))
	send(readOnlyDesc, prometheus.GaugeValue, float64(flag(info.ReadOnly)))
	send(startedDesc, prometheus.GaugeValue, float64(info.StartTime.UnixNano())/1e9)
	type kindOf struct{ reason, severity string }
	wrong := map[kindOf]int{}
	for _, c := range e.Conditions() {
		wrong[kindOf{c.Reason, severityWord(c.Severity)}]++
	}
	for k, n := range wrong {
		send(conditionDesc, prometheus.GaugeValue, float64(n), k.reason, k.severity)
	}
}

func severityWord(s engine.Severity) string {
	switch s {
	case engine.Info:
		return "info"
	case engine.Warning:
		return "warning"
	}
	return "error"
}
