package engine

import (
	"context"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/slab"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/filedev"
)

// scrubSize is how much BenchmarkS3GroupedScrub and BenchmarkReadsBesideScrub store, in MiB.
var scrubSize = flag.Int64("scrub.mib", 1024, "MiB that the scrub benchmarks store")

// scrubStore is a store on the disk, with its metadata synced, on an emulated device with direct I/O.
type scrubStore struct {
	e      *Engine
	path   string
	stored int64 // bytes live
}

// newScrubStore stores size bytes in extents of the length: 0 is as large as they get.
func newScrubStore(b *testing.B, size, length int64) *scrubStore {
	b.Helper()
	dir := b.TempDir()
	s := &scrubStore{path: filepath.Join(dir, "device")}
	g := zone.Geometry{Dialect: zone.ZNS, ZoneSize: 64 << 20, ZoneCapacity: 64 << 20, Zones: int(size>>26)*5/4 + 12, MaxOpen: 8, MaxActive: 8}
	if err := filedev.Create(s.path, g, filedev.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	open := func() *filedev.Device {
		d, err := filedev.Open(s.path)
		if err != nil {
			b.Fatal(err)
		}
		if !d.Direct() {
			b.Skip("the file system takes no direct I/O")
		}
		return d
	}
	d := open()
	meta := filepath.Join(dir, "meta")
	if err := Format(FormatOptions{Devices: []Device{{Device: d}}, MetadataPath: meta, UUID: [16]byte{1}, Now: time.Now}); err != nil {
		b.Fatal(err)
	}
	if err := d.Close(); err != nil {
		b.Fatal(err)
	}
	codec := extent.CodecNone
	var err error
	s.e, err = Open(b.Context(), quietReclaim(Options{
		Devices: []Device{{Device: open()}}, MetadataPath: meta, Compression: &codec, Now: time.Now, Random: newSeeded(1), WritebackAge: time.Hour,
	}))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.e.Close(context.Background()) })
	data, stride := noise(1, 1<<20), length*2
	if length == 0 {
		length, stride = 1<<20, 1<<20
	}
	w, err := s.e.OpenWriter(b.Context(), WriterOptions{Name: "f"})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	for i := range size / length { // with holes between them, pieces stay extents of their own
		off := i * stride
		at := i * length % (1 << 20)
		if err := w.Write(b.Context(), &off, [][]byte{data[at : at+length]}, nil); err != nil {
			b.Fatal(err)
		}
		if i*length%(128<<20) == 0 {
			syncAll(b, s.e)
		}
	}
	syncAll(b, s.e)
	s.stored = s.e.Usage().Used
	return s
}

// cost is what one way to read everything took.
type cost struct {
	wall, cpu        time.Duration
	extents, sums    uint64 // look-ups
	reads, bytesRead uint64
}

func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func measure(b *testing.B, f func(*cost)) (c cost) {
	b.Helper()
	wall, cpu := time.Now(), processorTime(b)
	f(&c)
	c.wall, c.cpu = time.Since(wall), processorTime(b)-cpu
	return c
}

func (c *cost) mbps(n int64) float64 { return float64(n) / 1e6 / c.wall.Seconds() }

// uncured scrubs as the published system did: stripes of 64 KiB, for each of them a search of the extents
// and one of the checksums of each extent in it, one read at a time, verified before the next.
func (s *scrubStore) uncured(b *testing.B, c *cost) {
	const stripe = 64 << 10
	p := slab.Aligned(stripe)
	e := s.e
	end := int64(e.AddressSpaceEnd())
	for at := int64(0); at < end; {
		var xs []store.Extent
		next := end
		err := e.st.View(func(tx *store.Tx) error {
			c.extents++
			return tx.ExtentsIn(extent.Addr(at), extent.Addr(end), func(x store.Extent) bool {
				if len(xs) == 0 && int64(x.Addr) > at {
					at = int64(x.Addr) // over what holds nothing
				}
				if int64(x.Addr) >= at+stripe {
					next = int64(x.Addr)
					return false
				}
				xs = append(xs, x)
				next = at + stripe
				return int64(x.End()) < at+stripe
			})
		})
		if err != nil {
			b.Fatal(err)
		}
		if len(xs) == 0 {
			return
		}
		from, to := at, min(at+stripe, int64(xs[len(xs)-1].End()))
		slot, off := e.split(extent.Addr(from))
		data := p[:to-from]
		if err := e.dev.ReadAt(int(slot), off, data); err != nil {
			b.Fatal(err)
		}
		c.reads, c.bytesRead = c.reads+1, c.bytesRead+uint64(len(data))
		for _, x := range xs {
			lo, hi := max(x.Addr, extent.Addr(from)), min(x.End(), extent.Addr(to))
			var sums []uint32
			c.sums++
			err := e.st.View(func(tx *store.Tx) (err error) {
				sums, err = tx.Checksums(lo, int64(hi-lo)/extent.BlockSize)
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
			for i, want := range sums {
				if csum.Sum(data[int64(lo)-from+int64(i)*extent.BlockSize:][:extent.BlockSize]) != want {
					b.Fatal("a block is bad")
				}
			}
		}
		at = max(next, to)
		if next < at {
			at = to
		}
	}
}

// cured scrubs.
func (s *scrubStore) cured(b *testing.B, c *cost) {
	startScrub(b, s.e, ScrubRequest{Scope: ScrubScope{Device: "0"}})
	var x Scrub
	err := s.e.WatchScrub(b.Context(), "", time.Second, func(now Scrub) error { x = now; return nil })
	k := x.Counters
	if err != nil || x.State != scrub.Finished || k.Errors() != 0 || int64(k.DataBytesScrubbed) != s.stored {
		b.Fatalf("%+v", x)
	}
	c.extents, c.sums, c.reads, c.bytesRead = k.ExtentLookups, k.CsumLookups, k.ReadOperations, k.BytesRead
}

// sequential reads as much of the device file from one end to the other, around the page cache.
func (s *scrubStore) sequential(b *testing.B, c *cost) {
	f, err := os.OpenFile(s.path, os.O_RDONLY|syscall.O_DIRECT, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		b.Fatal(err)
	}
	p := slab.Aligned(1 << 20)
	off := st.Size() - int64(s.e.Geometry().Zones)*s.e.geo.ZoneSize + int64(s.e.zoneOf(0))*s.e.geo.ZoneSize
	for n := int64(0); n < s.stored; n += int64(len(p)) {
		if _, err := io.ReadFull(io.NewSectionReader(f, off+n, int64(len(p))), p); err != nil {
			b.Fatal(err)
		}
		c.reads++
	}
}

// checksums sums as much from memory, on all processors.
func (s *scrubStore) checksums(*cost) {
	var wg sync.WaitGroup
	n := runtime.GOMAXPROCS(0)
	for range n {
		wg.Go(func() {
			p := noise(1, 8<<20)
			for done := int64(0); done < s.stored/int64(n); done += extent.BlockSize {
				csum.Sum(p[done%int64(len(p)):][:extent.BlockSize])
			}
		})
	}
	wg.Wait()
}

// BenchmarkS3GroupedScrub scrubs the same stored data in one run: uncured (a), as this engine does (b);
// beside plain sequential direct reading of the device file (c) and checksumming alone from memory (d).
// "b/a" is what the cure is worth, "b/min(c,d)" how near it comes to what the machine can do.
func BenchmarkS3GroupedScrub(b *testing.B) {
	for _, x := range []struct {
		name   string
		length int64
	}{{"large", 0}, {"64KiB", 64 << 10}, {"4KiB", 4 << 10}} {
		b.Run(x.name, func(b *testing.B) {
			s := newScrubStore(b, *scrubSize<<20, x.length)
			var as, bs, cs, ds []cost
			for b.Loop() {
				as = append(as, measure(b, func(c *cost) { s.uncured(b, c) }))
				bs = append(bs, measure(b, func(c *cost) { s.cured(b, c) }))
				cs = append(cs, measure(b, func(c *cost) { s.sequential(b, c) }))
				ds = append(ds, measure(b, s.checksums))
			}
			best := func(xs []cost) cost {
				return slices.MinFunc(xs, func(x, y cost) int { return int(x.wall - y.wall) })
			}
			a, u, c, d := best(as), best(bs), best(cs), best(ds)
			mib := float64(s.stored) / (1 << 20)
			b.ReportMetric(a.mbps(s.stored), "a-MB/s")
			b.ReportMetric(u.mbps(s.stored), "b-MB/s")
			b.ReportMetric(c.mbps(s.stored), "c-MB/s")
			b.ReportMetric(d.mbps(s.stored), "d-MB/s")
			b.ReportMetric(a.wall.Seconds()/u.wall.Seconds(), "b/a")
			b.ReportMetric(max(c.wall, d.wall).Seconds()/u.wall.Seconds(), "b/min(c,d)")
			b.ReportMetric(float64(a.extents+a.sums)/mib, "a-lookups/MiB")
			b.ReportMetric(float64(u.extents+u.sums)/mib, "b-lookups/MiB")
			b.ReportMetric(float64(a.reads)/mib, "a-reads/MiB")
			b.ReportMetric(float64(u.reads)/mib, "b-reads/MiB")
			b.ReportMetric(a.cpu.Seconds()/mib*1024, "a-cpu-s/GiB")
			b.ReportMetric(u.cpu.Seconds()/mib*1024, "b-cpu-s/GiB")
			b.ReportMetric(c.cpu.Seconds()/mib*1024, "c-cpu-s/GiB")
			b.ReportMetric(d.cpu.Seconds()/mib*1024, "d-cpu-s/GiB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkReadsBesideScrub reads 64 KiB at random, 500 times a second, without and with a scrub at work,
// and reports how long a read takes, and what the scrub gets done meanwhile.
func BenchmarkReadsBesideScrub(b *testing.B) {
	s := newScrubStore(b, *scrubSize<<20, 0)
	times := func() (p50, p99 time.Duration) {
		r := rand.New(rand.NewPCG(1, 2))
		var took []time.Duration
		n := int64(64 << 10)
		for range 2000 {
			began := time.Now()
			if _, err := tryRead(s.e, "f", r.Int64N(s.stored/n)*n, &n); err != nil {
				b.Fatal(err)
			}
			took = append(took, time.Since(began))
			time.Sleep(2*time.Millisecond - min(time.Since(began), 2*time.Millisecond))
		}
		slices.Sort(took)
		return took[len(took)/2], took[len(took)*99/100]
	}
	for b.Loop() {
		quiet50, quiet99 := times()
		stop, done := make(chan struct{}), make(chan int64)
		go func() {
			bytes := int64(0)
			for {
				select {
				case <-stop:
					done <- bytes
					return
				default:
				}
				if _, err := s.e.StartScrub(b.Context(), ScrubRequest{Scope: ScrubScope{Device: "0"}}); err != nil {
					b.Error(err)
				}
				_ = s.e.WatchScrub(b.Context(), "", 5*time.Millisecond, func(x Scrub) error {
					select {
					case <-stop:
						_, _ = s.e.CancelScrub(b.Context(), "")
					default:
					}
					if x.State != scrub.Running {
						bytes += int64(x.Counters.BytesRead)
					}
					return nil
				})
			}
		}()
		began := time.Now()
		busy50, busy99 := times()
		close(stop)
		scrubbed := <-done
		b.ReportMetric(float64(quiet50.Microseconds()), "quiet-p50-us")
		b.ReportMetric(float64(quiet99.Microseconds()), "quiet-p99-us")
		b.ReportMetric(float64(busy50.Microseconds()), "scrub-p50-us")
		b.ReportMetric(float64(busy99.Microseconds()), "scrub-p99-us")
		b.ReportMetric(float64(scrubbed)/1e6/time.Since(began).Seconds(), "scrub-MB/s")
	}
	b.ReportMetric(0, "ns/op")
}
