package telemetry

import (
	"context"
	"crypto/rand"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"

	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open makes a store on a memory device and opens it; spoil has the device before that.
func open(t *testing.T, spoil func(*zone.Mem)) *engine.Engine {
	t.Helper()
	g := zone.Geometry{Dialect: zone.ZNS, ZoneSize: 1 << 20, ZoneCapacity: 768 << 10, Zones: 40, MaxOpen: 4, MaxActive: 6}
	d, err := zone.NewMem(g, zone.MemOptions{})
	must(t, err)
	meta := filepath.Join(t.TempDir(), "meta")
	must(t, engine.Format(engine.FormatOptions{
		Devices: []engine.Device{{Device: d}}, MetadataPath: meta, UUID: [16]byte{0xab}, Compression: extent.CodecNone, Now: time.Now, MetadataNoSync: true,
	}))
	if spoil != nil {
		spoil(d)
	}
	e, err := engine.Open(t.Context(), engine.Options{
		Devices: []engine.Device{{Device: d}}, MetadataPath: meta, MetadataNoSync: true, DirtyLimit: 16 << 20, Now: time.Now, Random: rand.Reader,
	})
	must(t, err)
	t.Cleanup(func() { must(t, e.Close(context.Background())) })
	return e
}

// scrape returns the samples, by name and labels as they are written.
func scrape(t *testing.T, tel *Telemetry) map[string]float64 {
	t.Helper()
	w := httptest.NewRecorder()
	tel.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("a scrape answers %d: %s", w.Code, w.Body)
	}
	out := map[string]float64{}
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(strings.TrimSpace(line[at+1:]), 64)
		must(t, err)
		out[line[:at]] = v
	}
	return out
}

// Every counter of the engine is a metric, and there is no metric of a counter that is gone.
func TestEveryCounterIsAMetric(t *testing.T) {
	left := open(t, nil).Counters()
	names := map[string]bool{}
	for _, c := range counts {
		if _, ok := left[c.key]; !ok {
			t.Errorf("%s shows %s, which the engine does not count (or which is shown twice)", c.name, c.key)
		}
		delete(left, c.key)
		if names[c.name] {
			t.Errorf("%s is the name of two metrics", c.name)
		}
		names[c.name] = true
	}
	for key := range left {
		t.Errorf("no metric shows the counter %s: give it a row in counts, and in docs/operations.md", key)
	}
}

func TestScrape(t *testing.T) {
	e := open(t, nil)
	tel := New("v1", "r1")
	before := scrape(t, tel)
	if before[`shingle_build_info{revision="r1",version="v1"}`] != 1 || before["go_goroutines"] == 0 {
		t.Errorf("before the store is open: %v", before)
	}
	for name := range before {
		if strings.HasPrefix(name, "shingle_") && !strings.HasPrefix(name, "shingle_build_info") {
			t.Errorf("%s is told of a store that is not open", name)
		}
	}
	tel.Attach(e)
	w, err := e.OpenWriter(t.Context(), engine.WriterOptions{Name: "a"})
	must(t, err)
	must(t, w.Write(t.Context(), nil, [][]byte{make([]byte, 1<<20)}, nil))
	received := scrape(t, tel)
	if received["shingle_client_written_bytes_total"] != 1<<20 || received["shingle_syncs_total"] != 0 {
		t.Errorf("after a write: %v", received)
	}
	_, err = e.Sync(t.Context(), nil, nil)
	must(t, err)
	w.Close()
	synced, u := scrape(t, tel), e.Usage()
	for name, want := range map[string]float64{
		"shingle_syncs_total": 1, "shingle_client_written_bytes_total": 1 << 20, "shingle_dirty_bytes": 0, "shingle_read_only": 0,
		`shingle_space_bytes{state="used"}`: float64(u.Used), "shingle_space_total_bytes": float64(u.Total),
		"shingle_device_size_bytes": 40 << 20, "shingle_zones_active_max": 6,
		`shingle_store_info{boot_id="` + strconv.FormatUint(e.Info().BootID, 10) + `",store="ab000000-0000-0000-0000-000000000000"}`: 1,
	} {
		if got, ok := synced[name]; !ok || got != want {
			t.Errorf("%s is %v (there: %v), want %v", name, got, ok, want)
		}
	}
	sum := 0.0
	for _, s := range spaceStates {
		sum += synced[`shingle_space_bytes{state="`+s.state+`"}`]
	}
	if sum != synced["shingle_space_total_bytes"] {
		t.Errorf("the states of space add up to %v, the total is %v", sum, synced["shingle_space_total_bytes"])
	}
	for name := range synced {
		if strings.HasPrefix(name, "shingle_conditions") {
			t.Errorf("nothing is wrong, and there is %s", name)
		}
		if strings.HasSuffix(name, "_total") && synced[name] < received[name] {
			t.Errorf("%s fell from %v to %v", name, received[name], synced[name])
		}
	}
}

func TestConditionsAreCountedByReason(t *testing.T) {
	tel := New("", "")
	tel.Attach(open(t, func(d *zone.Mem) {
		must(t, d.SetCondition(20, zone.Offline))
		must(t, d.SetCondition(21, zone.ReadOnly))
	}))
	got := scrape(t, tel)
	maps.DeleteFunc(got, func(name string, _ float64) bool { return !strings.HasPrefix(name, "shingle_conditions") })
	if want := (map[string]float64{`shingle_conditions{reason="ZONE_FAILED",severity="error"}`: 2}); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// What the makers of Prometheus advise: names, units, help texts.
func TestNamesAreAsUsual(t *testing.T) {
	r := prometheus.NewRegistry()
	tel := New("", "")
	r.MustRegister(tel)
	tel.Attach(open(t, nil))
	families, err := r.Gather()
	must(t, err)
	if len(families) < len(counts) {
		t.Errorf("only %d families", len(families))
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	must(t, err)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestSeverities(t *testing.T) {
	for s, want := range map[engine.Severity]string{engine.Info: "info", engine.Warning: "warning", engine.Error: "error", 0: "error"} {
		if got := severityWord(s); got != want {
			t.Errorf("severity %d is called %s, want %s", s, got, want)
		}
	}
}

// Scrapes come at any time: while the engine works, while it closes, and after that.
func TestScrapesWhileItCloses(t *testing.T) {
	e := open(t, nil)
	tel := New("", "")
	tel.Attach(e)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					tel.Handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil))
				}
			}
		})
	}
	w, err := e.OpenWriter(t.Context(), engine.WriterOptions{Name: "a"})
	must(t, err)
	for range 8 {
		must(t, w.Write(t.Context(), nil, [][]byte{make([]byte, 256<<10)}, nil))
	}
	w.Close()
	must(t, e.Close(context.Background()))
	close(stop)
	wg.Wait()
	if got := scrape(t, tel); got["shingle_client_written_bytes_total"] != 2<<20 {
		t.Errorf("after the end: %v", got)
	}
}
