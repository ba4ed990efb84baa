package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/extent"
)

// BenchmarkReclaim overwrites 64 KiB at random places of a store that is empty, half full, four fifths
// and nine tenths full, on the same device, for as long as it takes to write four times what the device holds;
// and reads 64 KiB at random meanwhile. It reports the throughput, the share of an empty store's, the write
// amplification, and how long a read takes in 99 of 100 cases with reclaim at work and, as "quiet-p99",
// without anybody writing.
func BenchmarkReclaim(b *testing.B) {
	g := zns(128, 1<<20)
	empty := 0.0
	for _, full := range []int64{0, 50, 80, 90} {
		b.Run(fmt.Sprintf("full=%d%%", full), func(b *testing.B) {
			var wrote overwritten
			var quiet []time.Duration
			for b.Loop() {
				b.StopTimer()
				bench := newBench(b, g, Options{DirtyLimit: 16 << 20, MaxWait: time.Minute})
				e := bench.open()
				live := max(16<<20, e.Usage().Total*full/100/(64<<10)*(64<<10))
				fillLive(b, e, live)
				quiet = append(quiet, readTimes(b, e, live, 300, nil)...)
				b.StartTimer()
				wrote.overwriteLive(b, e, live, 4*int64(g.Zones)*g.ZoneCapacity)
				b.StopTimer()
				if err := e.Close(context.Background()); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			mbps := float64(wrote.bytes) / 1e6 / wrote.took.Seconds()
			if full == 0 {
				empty = mbps
			}
			b.ReportMetric(mbps, "MB/s")
			b.ReportMetric(mbps/max(empty, 1e-9), "of-empty")
			b.ReportMetric(float64(wrote.device)/float64(wrote.bytes), "write-amplification")
			b.ReportMetric(float64(percentile(wrote.reads).Microseconds()), "read-p99-us")
			b.ReportMetric(float64(percentile(quiet).Microseconds()), "quiet-p99-us")
		})
	}
}

// percentile returns what 99 of 100 do not pass.
func percentile(took []time.Duration) time.Duration {
	slices.Sort(took)
	if len(took) == 0 {
		return 0
	}
	return took[len(took)*99/100]
}

// overwritten is what overwriting has come to.
type overwritten struct {
	bytes  int64
	device uint64 // bytes that it wrote to the device
	took   time.Duration
	reads  []time.Duration // of those who read meanwhile
}

// fillLive writes a file of the size.
func fillLive(b *testing.B, e *Engine, size int64) {
	b.Helper()
	data := noise(1, 1<<20)
	for off := int64(0); off < size; off += int64(len(data)) {
		writeAt(b, e, "f", off, data[:min(int64(len(data)), size-off)])
		if off%(8<<20) == 0 {
			syncAll(b, e)
		}
	}
	syncAll(b, e)
}

// overwriteLive overwrites so many bytes of the file at random while somebody reads.
func (o *overwritten) overwriteLive(b *testing.B, e *Engine, size, bytes int64) {
	b.Helper()
	ctx := context.Background()
	w, err := e.OpenWriter(ctx, WriterOptions{Name: "f"})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Close()
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() { o.reads = append(o.reads, readTimes(b, e, size, 1<<30, stop)...) })
	r := rand.New(rand.NewPCG(1, 1))
	data := noise(2, 1<<20)
	before, start := e.Counters(), time.Now()
	for done := int64(0); done < bytes; done += 64 << 10 {
		off := r.Int64N(size/(64<<10)) * (64 << 10)
		at := r.IntN(200) * extent.BlockSize
		if err := w.Write(ctx, &off, [][]byte{data[at : at+64<<10]}, nil); err != nil {
			b.Fatal(err)
		}
		if done%(2<<20) == 0 {
			syncAll(b, e)
		}
	}
	syncAll(b, e)
	o.took += time.Since(start)
	close(stop)
	reader.Wait()
	o.bytes += bytes
	o.device += e.Counters()["device_bytes_written"] - before["device_bytes_written"]
}

// readTimes reads 64 KiB at random, one after the other, and answers how long each took.
func readTimes(b *testing.B, e *Engine, size int64, most int, stop <-chan struct{}) (took []time.Duration) {
	r := rand.New(rand.NewPCG(5, 5))
	n := int64(64 << 10)
	for range most {
		select {
		case <-stop:
			most = 0
		default:
		}
		if most == 0 {
			break
		}
		start := time.Now()
		if _, err := tryRead(e, "f", r.Int64N(size/n)*n, &n); err != nil {
			b.Error(err)
			return nil
		}
		took = append(took, time.Since(start))
		time.Sleep(200 * time.Microsecond)
	}
	return took
}
