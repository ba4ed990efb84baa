package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"runtime/debug"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

func TestMain(m *testing.M) {
	// The walks open tens of thousands of engines, each of which lives for milliseconds: a quarter of
	// their time would go into collecting a heap of 20 MiB.
	debug.SetGCPercent(400)
	goleak.VerifyTestMain(m)
}

// seeded is a source of random bytes for boot ids.
type seeded struct{ r *rand.ChaCha8 }

func newSeeded(seed uint64) seeded {
	var k [32]byte
	for i := range 8 {
		k[i] = byte(seed >> (8 * i))
	}
	return seeded{rand.NewChaCha8(k)}
}

func (s seeded) Read(p []byte) (int, error) { return s.r.Read(p) }

// keep is a device that stays when an engine closes it, as a drive does.
type keep struct{ zone.Device }

func (keep) Close() error { return nil }

// keepDiscarder is keep for a device that can discard.
type keepDiscarder struct{ zone.Discarder }

func (keepDiscarder) Close() error { return nil }

// bench is a store under test: a device and a metadata file that outlive engines.
type bench struct {
	t    testing.TB
	dev  zone.Device
	meta string
	opts Options
	e    *Engine
}

var smallZNS = zone.Geometry{Dialect: zone.ZNS, ZoneSize: 1 << 20, ZoneCapacity: 768 << 10, Zones: 40, MaxOpen: 4, MaxActive: 5}

// newBench formats a store on a memory device.
func newBench(t testing.TB, g zone.Geometry, o Options) *bench {
	t.Helper()
	mem, err := zone.NewMem(g, zone.MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return newBenchOn(t, mem, o)
}

func newBenchOn(t testing.TB, dev zone.Device, o Options) *bench {
	t.Helper()
	b := &bench{t: t, dev: dev, meta: filepath.Join(t.TempDir(), "meta.db"), opts: o}
	codec := extent.CodecNone
	if o.Compression != nil {
		codec = *o.Compression
	}
	err := Format(FormatOptions{
		Devices: []Device{{Device: dev}}, MetadataPath: b.meta, UUID: [16]byte{1, 2, 3}, Compression: codec, Now: time.Now, MetadataNoSync: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// options returns the options of the next open.
func (b *bench) options() Options {
	o := b.opts
	o.MetadataPath, o.MetadataNoSync = b.meta, true
	o.Devices = []Device{{Device: keep{b.dev}}}
	if d, ok := b.dev.(zone.Discarder); ok {
		o.Devices[0].Device = keepDiscarder{d}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Random == nil {
		o.Random = newSeeded(uint64(time.Now().UnixNano()))
	}
	if o.DirtyLimit == 0 {
		o.DirtyLimit = 64 << 20
	}
	return o
}

func (b *bench) open() *Engine {
	b.t.Helper()
	e, err := Open(context.Background(), b.options())
	if err != nil {
		b.t.Fatal(err)
	}
	b.e = e
	b.t.Cleanup(func() { e.Close(context.Background()) })
	return e
}

func (b *bench) reopen() *Engine {
	b.t.Helper()
	if err := b.e.Close(context.Background()); err != nil {
		b.t.Fatal(err)
	}
	return b.open()
}

// put replaces a file.
func put(t testing.TB, e *Engine, name string, data []byte) File {
	t.Helper()
	f, err := tryPut(e, name, data)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func tryPut(e *Engine, name string, data []byte) (File, error) {
	ctx := context.Background()
	w, err := e.OpenWriter(ctx, WriterOptions{Name: name, Mode: Replace})
	if err != nil {
		return File{}, err
	}
	defer w.Close()
	for off := 0; off < len(data); off += 1 << 20 {
		if err := w.Write(ctx, nil, [][]byte{data[off:min(len(data), off+1<<20)]}, nil); err != nil {
			return File{}, err
		}
	}
	return w.Finish(ctx, nil)
}

// writeAt writes in place without a sync.
func writeAt(t testing.TB, e *Engine, name string, off int64, data []byte) {
	t.Helper()
	if err := tryWriteAt(e, name, off, data); err != nil {
		t.Fatal(err)
	}
}

func tryWriteAt(e *Engine, name string, off int64, data []byte) error {
	ctx := context.Background()
	w, err := e.OpenWriter(ctx, WriterOptions{Name: name})
	if err != nil {
		return err
	}
	defer w.Close()
	for len(data) > 0 {
		n := min(len(data), 1<<20)
		if err := w.Write(ctx, &off, [][]byte{data[:n]}, nil); err != nil {
			return err
		}
		off += int64(n)
		data = data[n:]
	}
	return nil
}

func syncAll(t testing.TB, e *Engine) {
	t.Helper()
	if _, err := e.Sync(context.Background(), nil, nil); err != nil {
		t.Fatal(err)
	}
}

// readAll reads a whole file.
func readAll(t testing.TB, e *Engine, name string) []byte {
	t.Helper()
	data, err := tryRead(e, name, 0, nil)
	if err != nil {
		t.Fatalf("read %s: %v", name, err)
	}
	return data
}

func tryRead(e *Engine, name string, off int64, length *int64) ([]byte, error) {
	ctx := context.Background()
	r, err := e.OpenReader(ctx, ReadRequest{Ref: Ref{Name: name}, Offset: off, Length: length})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	size := max(0, r.File().Size-off)
	if length != nil {
		size = min(size, max(0, *length))
	}
	data := make([]byte, 0, size)
	for {
		p, err := r.Next(ctx)
		if errors.Is(err, io.EOF) {
			return data, nil
		}
		if err != nil {
			return data, err
		}
		data = append(data, p.Data...)
		if int64(len(data)) > max(r.File().Size, 1<<30)+1<<26 {
			return data, fmt.Errorf("%d bytes read of a file of %d, and no end", len(data), r.File().Size)
		}
	}
}

// noise is incompressible, text compresses well; both are the same for the same seed.
func noise(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 2))
	p := make([]byte, 0, n+8)
	for len(p) < n {
		p = binary.LittleEndian.AppendUint64(p, r.Uint64())
	}
	return p[:n:n]
}

func text(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	words := []string{"zone ", "write ", "pointer ", "extent ", "block ", "group ", "scrub ", "trim ", "append ", "\n"}
	p := make([]byte, 0, n+16)
	for len(p) < n {
		p = append(p, words[r.IntN(len(words))]...)
	}
	return p[:n]
}

// checkIdentity holds the account of space against its identity.
func checkIdentity(t testing.TB, e *Engine) {
	t.Helper()
	u := e.Usage()
	if sum := u.Used + u.Free + u.Unusable + u.Reserved + u.Quarantined; sum != u.Total {
		t.Fatalf("total %d is not used %d + free %d + unusable %d + reserved %d + quarantined %d = %d",
			u.Total, u.Used, u.Free, u.Unusable, u.Reserved, u.Quarantined, sum)
	}
}

// alone leaves out, in a short run under the race detector, a long test in which one request follows
// the other: what goes on beside them is the same in the tests that have many.
func alone(t *testing.T) {
	if raceEnabled && testing.Short() {
		t.Skip("one client at a time: left to the runs without the race detector")
	}
}
