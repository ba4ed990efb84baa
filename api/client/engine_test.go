package client_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/shingle-store/shingle/api/client"
	"github.com/shingle-store/shingle/internal/engine"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/server"
	"github.com/shingle-store/shingle/internal/zone"
)

// drive is a device that stays when an engine closes it.
type drive struct{ *zone.Mem }

func (drive) Close() error { return nil }

// rig is the real server on the real engine on a memory device whose power can be cut.
type rig struct {
	t    testing.TB
	dev  *zone.Mem
	meta string
	addr string
	rng  *mrand.Rand

	e *engine.Engine
	g *grpc.Server
}

func newRig(t testing.TB) *rig {
	t.Helper()
	mem, err := zone.NewMem(zone.Geometry{
		Dialect: zone.ZNS, ZoneSize: 16 << 20, ZoneCapacity: 12 << 20, Zones: 40, MaxOpen: 6, MaxActive: 8,
	}, zone.MemOptions{})
	must(t, err)
	r := &rig{t: t, dev: mem, meta: filepath.Join(t.TempDir(), "meta.db"), rng: mrand.New(mrand.NewPCG(1, 2))}
	must(t, engine.Format(engine.FormatOptions{
		Devices: []engine.Device{{Device: drive{mem}}}, MetadataPath: r.meta, UUID: [16]byte{1}, Compression: extent.CodecNone, Now: time.Now,
		MetadataNoSync: true,
	}))
	r.start("127.0.0.1:0")
	t.Cleanup(r.stop)
	return r
}

// start opens the store and serves it.
func (r *rig) start(addr string) {
	r.t.Helper()
	e, err := engine.Open(context.Background(), engine.Options{
		Devices: []engine.Device{{Device: drive{r.dev}}}, MetadataPath: r.meta, MetadataNoSync: true, Now: time.Now, Random: rand.Reader, DirtyLimit: 64 << 20,
	})
	must(r.t, err)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		must(r.t, e.Close(context.Background()))
		r.t.Skip("the port was taken by another process")
	}
	r.e, r.addr = e, l.Addr().String()
	o := server.Options{Now: time.Now}
	s := server.New(e, o)
	r.g = server.NewGRPC(o)
	s.Register(r.g)
	s.SetServing(true)
	g := r.g
	go func() { _ = g.Serve(l) }()
}

func (r *rig) stop() {
	r.g.Stop()
	_ = r.e.Close(context.Background())
}

// crash takes the power away under the running server and starts all again.
func (r *rig) crash() {
	r.t.Helper()
	r.dev.CutPower()
	r.stop()
	r.dev.PowerOn(r.rng)
	r.start(r.addr)
}

func (r *rig) dial(o ...client.Option) *client.Client {
	r.t.Helper()
	c, err := client.Dial(r.addr, o...)
	must(r.t, err)
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func noise(seed uint64, n int) []byte {
	p := make([]byte, n)
	_, _ = mrand.NewChaCha8([32]byte{byte(seed)}).Read(p)
	return p
}

func content(t testing.TB, c *client.Client, name string) []byte {
	t.Helper()
	r, err := c.Read(context.Background(), name, client.ReadOptions{})
	must(t, err)
	defer r.Close()
	var b bytes.Buffer
	_, err = r.WriteTo(&b)
	must(t, err)
	return b.Bytes()
}

func TestEngineVerbs(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c := newRig(t).dial()
	for _, mode := range []client.WriteMode{client.InPlace, client.Replace} {
		for _, size := range []int{0, 1, 2048, 4097, 1 << 20, 5<<20 + 3} {
			name := fmt.Sprintf("d/%d-%d", mode, size)
			data, want := noise(uint64(size), size), int64(size)
			w, err := c.Write(ctx, name, client.WriteOptions{Mode: mode, Sync: true, ExpectedSize: &want})
			must(t, err)
			_, err = w.ReadFrom(bytes.NewReader(data))
			must(t, err)
			must(t, w.Close())
			if f := w.File(); f.GetSize() != want || w.Durable() != want {
				t.Fatalf("%s: size %d, durable %d", name, f.GetSize(), w.Durable())
			}
			if !bytes.Equal(content(t, c, name), data) {
				t.Fatalf("%s: the bytes differ", name)
			}
		}
	}
	n := 0
	for f, err := range c.List(ctx, "d", client.ListOptions{PageSize: 5}) {
		must(t, err)
		n++
		if _, err := c.Delete(ctx, f.GetName(), client.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if n != 12 {
		t.Errorf("%d files listed", n)
	}
	_, err := c.Read(ctx, "d/0-1", client.ReadOptions{})
	if e := new(client.Error); !errors.As(err, &e) || !client.IsNotFound(err) {
		t.Errorf("deleted file: %v", err)
	}
	info, err := c.Info(ctx)
	must(t, err)
	if _, err := c.Sync(ctx, client.SyncOptions{BootID: info.GetBootId() + 1}); !client.IsRestarted(err) {
		t.Errorf("sync with another run: %v", err)
	}
	u, err := c.Usage(ctx)
	must(t, err)
	if u.GetTotalBytes() == 0 {
		t.Errorf("usage %v", u)
	}
	zones := 0
	for _, err := range c.Zones(ctx) {
		must(t, err)
		zones++
	}
	if zones != 40 {
		t.Errorf("%d zones", zones)
	}
}

// TestEngineCrashes: a stream that cannot be read again arrives whole although the power of
// the device is cut in the middle, again and again.
func TestEngineCrashes(t *testing.T) {
	for _, m := range []struct {
		name string
		mode client.WriteMode
	}{{"in place", client.InPlace}, {"replace", client.Replace}} {
		t.Run(m.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			r := newRig(t)
			c := r.dial(client.WithWindow(8 << 20))
			data := noise(9, 24<<20+4321)
			crashes := 3
			if testing.Short() {
				crashes = 1
			}
			src := bytes.NewReader(data)
			w, err := c.Write(ctx, "a", client.WriteOptions{Mode: m.mode, Sync: true})
			must(t, err)
			for i := range crashes {
				_, err := w.ReadFrom(io.LimitReader(src, int64(7<<20+i*1000)))
				must(t, err)
				if i%2 == 0 {
					must(t, w.Sync(ctx))
				}
				r.crash()
			}
			_, err = w.ReadFrom(src)
			must(t, err)
			must(t, w.Close())
			r.crash()
			if got := content(t, c, "a"); !bytes.Equal(got, data) {
				t.Fatalf("%d bytes of %d, or others", len(got), len(data))
			}
		})
	}
}

// TestEngineCrashesReread: the same for a source that can be read again, cut while it is read.
func TestEngineCrashesReread(t *testing.T) {
	for _, m := range []struct {
		name string
		mode client.WriteMode
	}{{"in place", client.InPlace}, {"replace", client.Replace}} {
		t.Run(m.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			r := newRig(t)
			c := r.dial()
			data := noise(8, 24<<20+4321)
			src := &cutting{Reader: bytes.NewReader(data), at: []int64{9 << 20, 17 << 20, 24 << 20}, cut: r.crash}
			if testing.Short() {
				src.at = src.at[1:2]
			}
			_, err := c.WriteFrom(ctx, "a", src, int64(len(data)), client.WriteOptions{Mode: m.mode, Sync: true})
			must(t, err)
			r.crash()
			if got := content(t, c, "a"); !bytes.Equal(got, data) {
				t.Fatalf("%d bytes of %d, or others", len(got), len(data))
			}
			if src.again == 0 {
				t.Error("nothing was read again")
			}
		})
	}
}

// cutting is a source that cuts the power when it is read at certain offsets.
type cutting struct {
	*bytes.Reader
	at    []int64
	cut   func()
	last  int64
	again int
}

func (c *cutting) ReadAt(p []byte, off int64) (int, error) {
	if off < c.last {
		c.again++
	}
	c.last = off
	if len(c.at) > 0 && off == c.at[0] {
		c.at = c.at[1:]
		c.cut()
	}
	return c.Reader.ReadAt(p, off)
}

// TestEngineReadGoesOn: a Read of durable content goes on after a crash in the middle.
func TestEngineReadGoesOn(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	r := newRig(t)
	c := r.dial()
	data := noise(3, 12<<20)
	w, err := c.Write(ctx, "a", client.WriteOptions{Mode: client.Replace})
	must(t, err)
	_, err = w.Write(data)
	must(t, err)
	must(t, w.Close())
	in, err := c.Read(ctx, "a", client.ReadOptions{})
	must(t, err)
	defer in.Close()
	got := make([]byte, 1<<20)
	_, err = io.ReadFull(in, got)
	must(t, err)
	r.crash()
	rest, err := io.ReadAll(in)
	must(t, err)
	if !bytes.Equal(append(got, rest...), data) {
		t.Fatal("the bytes differ")
	}
}

func BenchmarkEngineWrite(b *testing.B) {
	ctx := context.Background()
	c := newRig(b).dial()
	data := noise(1, 64<<20)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		w, err := c.Write(ctx, "a", client.WriteOptions{Mode: client.Replace})
		must(b, err)
		_, err = w.ReadFrom(bytes.NewReader(data))
		must(b, err)
		must(b, w.Close())
	}
}

func BenchmarkEngineRead(b *testing.B) {
	ctx := context.Background()
	c := newRig(b).dial()
	w, err := c.Write(ctx, "a", client.WriteOptions{Mode: client.Replace})
	must(b, err)
	_, err = w.Write(noise(1, 64<<20))
	must(b, err)
	must(b, w.Close())
	b.SetBytes(64 << 20)
	b.ReportAllocs()
	for b.Loop() {
		r, err := c.Read(ctx, "a", client.ReadOptions{})
		must(b, err)
		n, err := r.WriteTo(io.Discard)
		must(b, err)
		must(b, r.Close())
		if n != 64<<20 {
			b.Fatal(n)
		}
	}
}
