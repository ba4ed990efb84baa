package server

import (
	"crypto/rand"
	"io"
	"testing"
	"time"

	"github.com/shingle-store/shingle/api/client"
	"github.com/shingle-store/shingle/internal/slab"
)

// BenchmarkRead reads files from a whole service over loopback TCP, without compression, from an
// emulated device in a file: a large one by one reader, and small ones one after the other.
// cpu-s/GiB is user and system time of the server's process.
func BenchmarkRead(b *testing.B) {
	payload := slab.Aligned(1 << 20)
	if _, err := rand.Read(payload); err != nil {
		b.Fatal(err)
	}
	service := startChild(b, "service", b.TempDir())
	service.put(b, "large", payload, writeSize)
	service.put(b, "small", payload[:64<<10], 64<<10)
	b.Run("large", func(b *testing.B) {
		cpu, begin, turns := service.cpu(b), time.Now(), 0
		for b.Loop() {
			service.read(b, "large", writeSize)
			turns++
		}
		took := time.Since(begin).Seconds()
		gib := float64(turns) * writeSize / (1 << 30)
		b.ReportMetric(gib*(1<<30)/1e6/took, "MB/s")
		b.ReportMetric((service.cpu(b)-cpu)/gib, "cpu-s/GiB")
	})
	b.Run("small", func(b *testing.B) {
		for b.Loop() {
			service.read(b, "small", 64<<10)
		}
	})
}

func (c *child) put(b *testing.B, name string, payload []byte, size int) {
	b.Helper()
	w, err := c.c.Write(b.Context(), name, client.WriteOptions{Sync: true})
	if err != nil {
		b.Fatal(err)
	}
	for n := 0; n < size; n += len(payload) {
		if _, err := w.Write(payload); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
}

func (c *child) read(b *testing.B, name string, size int64) {
	b.Helper()
	r, err := c.c.Read(b.Context(), name, client.ReadOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	if n, err := r.WriteTo(io.Discard); err != nil || n != size {
		b.Fatalf("%d bytes read, %v", n, err)
	}
}
