package engine

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

var reclaimFull = flag.Bool("reclaim.full", false, "the tests of reclaim on devices of 256 MiB, for as long as it takes")

// TestOverwriteForEver overwrites one object of a quarter of the device, in order and at random,
// compressed and not, until many times the raw capacity is written: it is never refused.
func TestOverwriteForEver(t *testing.T) {
	alone(t)
	t.Parallel()
	g, times := zns(64, 256<<10), int64(10)
	switch {
	case *reclaimFull:
		g, times = zns(64, 4<<20), 40
	case testing.Short():
		times = 3
	}
	for _, random := range []bool{false, true} {
		t.Run(fmt.Sprintf("random=%t", random), func(t *testing.T) {
			modes(t, func(t *testing.T, o Options) { overwriteForEver(t, g, o, random, times) })
		})
	}
}

func overwriteForEver(t *testing.T, g zone.Geometry, o Options, random bool, times int64) {
	o.DirtyLimit, o.MaxWait = minDirtyLimit, 10*time.Second
	b := newFaultBench(t, g, o)
	e := b.open()
	raw := int64(g.Zones) * g.ZoneCapacity
	size := extent.RoundDown(raw / 4)
	ctx := context.Background()
	w, err := e.OpenWriter(ctx, WriterOptions{Name: "object"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	want := make([]byte, size)
	r := rand.New(rand.NewPCG(3, 4))
	source := text(1, 3<<20)
	if o.Compression == nil || *o.Compression == extent.CodecNone {
		source = noise(1, 3<<20)
	}
	next := int64(0)
	for written := int64(0); written < times*raw; {
		for round := int64(0); round < size; {
			n := int64(min(256<<10, size/8))
			off := next
			if random {
				n = 1 + r.Int64N(n)
				off = r.Int64N(size)
			}
			n = min(n, size-off)
			p := source[r.IntN(len(source)-int(n)):][:n]
			if err := w.Write(ctx, &off, [][]byte{p}, nil); err != nil {
				t.Fatalf("after %d bytes: %v", written, err)
			}
			copy(want[off:], p)
			if next = off + n; next >= size {
				next = 0
			}
			round += n
			written += n
		}
		syncAll(t, e)
		checkIdentity(t, e)
	}
	eventually(t, "nothing is being moved", func() bool { return !e.Reclaiming() })
	checkQuiet(t, e)
	sameFile(t, e, "object", want[:fileSize(t, e, "object")])
	c := e.Counters()
	t.Logf("%d zones reset, %d block groups emptied, %d bytes moved, write amplification %.2f",
		c["zones_reset"], c["reclaim_emptied"], c["reclaim_bytes_moved"], float64(c["device_bytes_written"])/float64(c["client_bytes_written"]))
	if c["allocator_mismatches"] != 0 {
		t.Errorf("the books were contradicted %d times", c["allocator_mismatches"])
	}
	b.checkLimits()
	e = b.reopen()
	sameFile(t, e, "object", want[:fileSize(t, e, "object")])
}

func fileSize(t testing.TB, e *Engine, name string) int64 {
	t.Helper()
	f, err := e.Get(context.Background(), Ref{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return f.Size
}

// reclaimGeometries are small and tight: every kind of limit, capacity below size, a short last zone,
// zones beside those that are used.
var reclaimGeometries = map[string]zone.Geometry{
	"zns":        {Dialect: zone.ZNS, ZoneSize: 512 << 10, ZoneCapacity: 384 << 10, Zones: 24, MaxOpen: 3, MaxActive: 4},
	"smr":        {Dialect: zone.SMR, ZoneSize: 256 << 10, ZoneCapacity: 256 << 10, Zones: 40, MaxOpen: 4, Conventional: 3},
	"no limits":  {Dialect: zone.ZNS, ZoneSize: 1 << 20, ZoneCapacity: 1<<20 - 4096*3, Zones: 14, AppendLimit: 124 << 10, LastZoneSize: 300 << 10},
	"one active": {Dialect: zone.ZNS, ZoneSize: 128 << 10, ZoneCapacity: 100 << 10, Zones: 80, MaxOpen: 1, MaxActive: 1, AppendLimit: 20 << 10},
	"two active": {Dialect: zone.ZNS, ZoneSize: 256 << 10, ZoneCapacity: 256 << 10, Zones: 30, MaxOpen: 2, MaxActive: 2},
}

// TestDeleteAndRefillEverywhere fills a store to refusal, with one file and with many, deletes what was
// written with nothing free, and fills it again at least nearly as far: with no restart and no call by
// hand. With -reclaim.full the devices are 64 times as large, and more than 100,000 files fit.
func TestDeleteAndRefillEverywhere(t *testing.T) {
	alone(t)
	t.Parallel()
	for name, g := range reclaimGeometries {
		small, large := 6000, 64<<20
		if *reclaimFull {
			g.ZoneSize, g.ZoneCapacity, g.LastZoneSize = 64*g.ZoneSize, 64*g.ZoneCapacity, 64*g.LastZoneSize
			small, large = 3000, 1<<30
		}
		for _, each := range []int{small, large} {
			t.Run(fmt.Sprintf("%s, files of %d", name, each), func(t *testing.T) {
				t.Parallel()
				codec := extent.CodecNone
				b := newFaultBench(t, g, Options{Compression: &codec, DirtyLimit: minDirtyLimit, MaxWait: 10 * time.Second, MetadataLimit: 1 << 30})
				e := b.open()
				first, most := int64(0), 0
				for round := range 3 {
					files, used := fillWith(t, e, each)
					if round == 0 {
						first = used
					} else if used < first*95/100 {
						t.Fatalf("round %d: %d bytes fit, %d the first time: %+v %v", round, used, first, e.Usage(), e.Counters())
					}
					most = max(most, files)
					for i := range files {
						deleteFile(t, e, fmt.Sprintf("d/%d", i))
						checkIdentity(t, e)
					}
				}
				eventually(t, "everything is free", func() bool { u := e.Usage(); return u.Used == 0 })
				t.Logf("%d files, %d bytes the first time", most, first)
				if n := e.Counters()["allocator_mismatches"]; n != 0 {
					t.Errorf("the books were contradicted %d times", n)
				}
				b.checkLimits()
			})
		}
	}
}

// fillWith writes files of so many bytes until it is refused, and answers how many there are, the last
// one cut short, and what is used then.
func fillWith(t testing.TB, e *Engine, each int) (files int, used int64) {
	t.Helper()
	ctx := context.Background()
	data := noise(9, 1<<20)
	for {
		w, err := e.OpenWriter(ctx, WriterOptions{Name: fmt.Sprintf("d/%d", files)})
		if err != nil {
			t.Fatal(err)
		}
		files++
		for left := each; left > 0; {
			n := min(left, 60_000)
			if err = w.Write(ctx, nil, [][]byte{data[left%1000:][:n]}, nil); err != nil {
				break
			}
			left -= n
		}
		w.Close()
		if err != nil {
			if !errdefs.Is(err, errdefs.NoSpace) || errdefs.ReasonOf(err) == errdefs.ReasonMetadataSpace {
				t.Fatalf("file %d: %v", files, err)
			}
			syncAll(t, e)
			return files, e.Usage().Used
		}
		if files%50 == 0 {
			syncAll(t, e)
		}
	}
}

// halfGarbage writes two files in turns, 32 KiB of each, until nine tenths of the store are full, and
// deletes one of them: half of every zone is garbage then. It answers the other one's content.
func halfGarbage(t testing.TB, e *Engine) []byte {
	t.Helper()
	total := e.Usage().Total
	data := noise(5, int(total*45/100/(32<<10))*(32<<10))
	for off := 0; off < len(data); off += 32 << 10 {
		for _, name := range []string{"kept", "garbage"} {
			writeAt(t, e, name, int64(off), data[off:off+32<<10])
			syncAll(t, e)
		}
	}
	deleteFile(t, e, "garbage")
	eventually(t, "the garbage is dead", func() bool { return e.orphans.Load() == 0 })
	return data
}

// TestBurstIntoGarbage writes what reclaim can give back in one burst into a store that is full of
// garbage, and first asks for it without patience.
func TestBurstIntoGarbage(t *testing.T) {
	for name, g := range reclaimGeometries {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			codec := extent.CodecNone
			b := newFaultBench(t, g, Options{Compression: &codec, DirtyLimit: minDirtyLimit, MaxWait: 20 * time.Second})
			// Nothing in the background, so that what is asked of the burst is the same every time.
			b.opts.Reclaim.Threshold, b.opts.Reclaim.Low = 100, 1
			e := b.open()
			kept := halfGarbage(t, e)
			ctx := context.Background()
			u := e.Usage()

			w, err := e.OpenWriter(ctx, WriterOptions{Name: "hasty", MaxWait: time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			n := u.Free + 1<<20
			for ; err == nil && n > 0; n -= 128 << 10 {
				err = w.Write(ctx, nil, [][]byte{noise(1, 128<<10)}, nil)
			}
			if err != nil { // it may be given back within the millisecond
				wantError(t, err, errdefs.NoSpace, errdefs.ReasonReclaimPending)
				var full *errdefs.Error
				if !errors.As(err, &full) || full.Meta["zone_unusable"] == "" || full.Meta["free"] == "" {
					t.Errorf("the refusal has no figures: %v", err)
				}
			}
			w.Close()
			deleteFile(t, e, "hasty")
			eventually(t, "nothing is left of the hasty one", func() bool { return e.orphans.Load() == 0 && e.rc.working.Load() == 0 })
			syncAll(t, e)
			checkQuiet(t, e)

			u = e.Usage()
			burst := noise(2, int(u.Free+u.Unusable))
			writeAt(t, e, "burst", 0, burst)
			syncAll(t, e)
			checkQuiet(t, e)
			sameFile(t, e, "burst", burst)
			sameFile(t, e, "kept", kept)
			t.Logf("%d bytes were free and %d dead; %v", u.Free, u.Unusable, e.Counters()["reclaim_bytes_moved"])
			// Not a block is left now, and that is said at once.
			start := time.Now()
			err = tryWriteAt(e, "more", 0, noise(3, 8192))
			wantError(t, err, errdefs.NoSpace, errdefs.ReasonNoSpace)
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("to be told that there is no space took %v", took)
			}
			if n := e.Counters()["allocator_mismatches"]; n != 0 {
				t.Errorf("the books were contradicted %d times", n)
			}
			b.checkLimits()
			e = b.reopen()
			sameFile(t, e, "burst", burst)
			sameFile(t, e, "kept", kept)
		})
	}
}

// TestDeletedIsReusableSoon says how long a deleted file's space takes to come back on an idle store.
func TestDeletedIsReusableSoon(t *testing.T) {
	b := newBench(t, zns(64, 256<<10), Options{})
	e := b.open()
	data := noise(1, 4<<20)
	small := noise(2, 20<<10)
	for i := range 8 { // a little of another file in each zone, so that nothing comes back by itself
		writeAt(t, e, "f", int64(i)*512<<10, data[i*512<<10:][:512<<10])
		writeAt(t, e, "small", int64(i)*20<<10, small)
		syncAll(t, e)
	}
	before := e.Usage()
	deleteFile(t, e, "f")
	start := time.Now()
	eventually(t, "the space is free", func() bool { return e.Usage().Free >= before.Free+7*512<<10 })
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
	sameFile(t, e, "small", bytes.Repeat(small, 8))
}

// TestCompressedNearFull overwrites parts of compressed files at random on a store of which 85 % are live:
// frames of every length are moved whole, and it is never refused. The zones hold a few frames at least:
// of one that holds a frame and a half, half is lost whatever is done.
func TestCompressedNearFull(t *testing.T) {
	for name, g := range reclaimGeometries {
		g.Zones = 14
		g.ZoneSize, g.ZoneCapacity = 1<<20, g.ZoneCapacity*(1<<20)/g.ZoneSize/extent.BlockSize*extent.BlockSize
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			codec := extent.CodecZstd
			b := newFaultBench(t, g, Options{Compression: &codec, DirtyLimit: minDirtyLimit, MaxWait: 20 * time.Second})
			e := b.open()
			r := rand.New(rand.NewPCG(1, 1))
			total := e.Usage().Total
			var files [][]byte
			source := text(7, 4<<20)
			random := noise(8, 4<<20)
			data := func(n int) []byte { // compresses to anything between a tenth and all
				p := bytes.Clone(source[r.IntN(len(source)-n):][:n])
				k := r.IntN(n)
				copy(p[:k], random[r.IntN(len(random)-k):])
				return p
			}
			for e.Usage().Used < total*85/100-300_000 {
				p := data(300_000)
				writeAt(t, e, fmt.Sprintf("f%d", len(files)), 0, p)
				files = append(files, p)
				syncAll(t, e)
			}
			steps := 400
			if testing.Short() {
				steps = 120
			}
			for i := range steps {
				f := r.IntN(len(files))
				n := 1 + r.IntN(100_000)
				off := r.IntN(len(files[f]) - n)
				p := data(n)
				if e.Usage().Used > total*85/100 { // a part of a frame pins all of it, so it gets fuller
					off, p = 0, source[:len(files[f])]
				}
				if err := tryWriteAt(e, fmt.Sprintf("f%d", f), int64(off), p); err != nil {
					t.Fatalf("write %d: %v; %+v %v", i, err, e.Usage(), e.Counters())
				}
				copy(files[f][off:], p)
				syncAll(t, e)
			}
			for f, want := range files {
				sameFile(t, e, fmt.Sprintf("f%d", f), want)
			}
			eventually(t, "nothing is being moved", func() bool { return !e.Reclaiming() })
			checkQuiet(t, e)
			c, u := e.Counters(), e.Usage()
			t.Logf("%d of %d used; %d bytes moved, %d copied for nothing or padding, write amplification %.2f", u.Used, u.Total,
				c["reclaim_bytes_moved"], c["reclaim_bytes_discarded"], float64(c["device_bytes_written"])/float64(c["client_bytes_written"]))
			b.checkLimits()
		})
	}
}
