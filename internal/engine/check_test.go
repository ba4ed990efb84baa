package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// check answers what Check finds in the store under test, which no engine may have open.
func (b *bench) check(readData bool) []string {
	b.t.Helper()
	var found []string
	o := CheckOptions{Devices: []Device{{Device: b.dev}}, MetadataPath: b.meta, ReadData: readData}
	if err := Check(context.Background(), o, func(p Problem) { found = append(found, p.String()) }); err != nil {
		b.t.Fatalf("check: %v (found %q)", err, found)
	}
	return found
}

func (b *bench) checkClean() {
	b.t.Helper()
	if found := b.check(true); len(found) != 0 {
		b.t.Fatalf("a sound store has problems:\n%s", strings.Join(found, "\n"))
	}
}

// shut closes the engine in order.
func (b *bench) shut() {
	b.t.Helper()
	if err := b.e.Close(context.Background()); err != nil {
		b.t.Fatal(err)
	}
}

// change edits the metadata behind the engine's back.
func (b *bench) change(fn func(*store.Tx) error) {
	b.t.Helper()
	st, err := store.Open(b.meta, store.Options{NoSync: true})
	if err != nil {
		b.t.Fatal(err)
	}
	if err := errors.Join(st.Update(fn), st.Close()); err != nil {
		b.t.Fatal(err)
	}
}

// workload leaves raw, compressed and inline files, holes, cuts, overwritten parts and dead zones.
func workload(t *testing.T, e *Engine, seed uint64) {
	t.Helper()
	ctx := context.Background()
	for i := range uint64(6) {
		put(t, e, fmt.Sprintf("noise/%d", i), noise(seed+i, 700_000+int(i)))
		put(t, e, fmt.Sprintf("text/%d", i), text(seed+i, 1_500_000+int(i)))
		put(t, e, fmt.Sprintf("tiny/%d", i), text(seed+i, 100))
	}
	writeAt(t, e, "noise/1", 300_000, text(seed, 123_456))
	writeAt(t, e, "text/1", 300_000, noise(seed, 123_456))
	writeAt(t, e, "sparse", 5<<20, noise(seed, 5000))
	syncAll(t, e)
	for i := range uint64(3) {
		if _, err := e.Delete(ctx, DeleteRequest{Name: fmt.Sprintf("noise/%d", i+3)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := e.Truncate(ctx, "text/2", 777_777, Preconditions{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.Deallocate(ctx, "text/3", 100_001, 400_000, Preconditions{}); err != nil {
		t.Fatal(err)
	}
	syncAll(t, e)
}

func TestCheckClean(t *testing.T) {
	alone(t)
	t.Parallel()
	modes(t, func(t *testing.T, o Options) {
		b := newBench(t, smallZNS, o)
		b.checkClean() // right after format
		for round := range uint64(2) {
			workload(t, b.open(), round*100)
			b.shut()
			b.checkClean()
		}
	})
}

// A check must leave everything as it is, also what Open would mend.
func TestCheckChangesNothing(t *testing.T) {
	b := newBench(t, smallZNS, Options{})
	workload(t, b.open(), 1)
	b.shut()
	mem := b.dev.(*zone.Mem)
	sum := func() [32]byte {
		data, err := os.ReadFile(b.meta)
		if err != nil {
			t.Fatal(err)
		}
		return sha256.Sum256(data)
	}
	mem.SetHook(func(op zone.Op) error {
		if op.Kind != zone.OpRead {
			t.Errorf("check called %v on zone %d", op.Kind, op.Zone)
		}
		return nil
	})
	before := sum()
	b.checkClean()
	if sum() != before {
		t.Error("check changed the metadata file")
	}
}

// After a cut at any moment what is there is legal, before the next open mends it and after.
func TestCheckAfterPowerCut(t *testing.T) {
	alone(t)
	t.Parallel()
	rounds := 24
	if testing.Short() {
		rounds = 6
	}
	for round := range rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(round), 7))
			o := Options{NoDelalloc: round%3 == 1}
			if round%2 == 1 {
				codec := extent.CodecZstd
				o.Compression = &codec
			}
			mem, err := zone.NewMem(smallZNS, zone.MemOptions{Garbage: true})
			if err != nil {
				t.Fatal(err)
			}
			b := newBenchOn(t, mem, o)
			e := b.open()
			var left atomic.Int64
			left.Store(int64(10 + rng.IntN(150)))
			mem.SetHook(func(op zone.Op) error {
				if !op.After && op.Kind != zone.OpRead {
					if left.Add(-1) == 0 {
						mem.CutPower()
						e.failWrites(errCut)
					}
				}
				return nil
			})
			for i := 0; i < 40 && tryWork(e, rng, i) == nil; i++ {
			}
			e.Close(context.Background())
			mem.SetHook(nil)
			mem.PowerOn(rng)
			b.checkClean()
			e = b.open()
			if _, err := tryPut(e, "after", noise(1, 300_000)); err != nil {
				t.Fatal(err)
			}
			b.shut()
			b.checkClean()
		})
	}
}

// tryWork does one thing to the store; it fails when the device does.
func tryWork(e *Engine, rng *rand.Rand, i int) error {
	ctx := context.Background()
	name := fmt.Sprintf("f%d", rng.IntN(5))
	var err error
	switch rng.IntN(5) {
	case 0:
		_, err = tryPut(e, name, noise(uint64(i), rng.IntN(900_000)))
	case 1:
		_, err = tryPut(e, name, text(uint64(i), rng.IntN(2_000_000)))
	case 2:
		err = tryWriteAt(e, name, rng.Int64N(500_000), noise(uint64(i), rng.IntN(300_000)))
	case 3:
		_, err = e.Delete(ctx, DeleteRequest{Name: name, AllowMissing: true})
	case 4:
		_, err = e.Sync(ctx, nil, nil)
	}
	return err
}

// victim finds a block group with a raw extent of file "raw": its zone, slot, the extent.
func (b *bench) victim() (z int, x store.Extent) {
	b.t.Helper()
	st, err := store.Open(b.meta, store.Options{NoSync: true})
	if err != nil {
		b.t.Fatal(err)
	}
	defer st.Close()
	err = st.View(func(tx *store.Tx) error {
		n, err := tx.Resolve("raw")
		if err != nil {
			return err
		}
		p, err := tx.Map(n.ID, 0, 4096)
		if err != nil {
			return err
		}
		bg, err := tx.BlockGroup(uint32(int64(p[0].Addr) / smallZNS.ZoneSize))
		if err != nil {
			return err
		}
		z = int(bg.Places[0].Zone)
		return tx.Extents(p[0].Addr, func(found store.Extent) bool {
			x = found
			return false
		})
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return z, x
}

func TestCheckFinds(t *testing.T) {
	group := func(slot uint32, edit func(*store.BlockGroup)) func(*store.Tx) error {
		return func(tx *store.Tx) error {
			g, err := tx.BlockGroup(slot)
			if err != nil {
				return err
			}
			g.Places = append([]store.Place(nil), g.Places...)
			edit(&g)
			return tx.PutBlockGroup(g)
		}
	}
	header := func(edit func(*label.Header)) func(*bench, int, store.Extent) {
		return func(b *bench, z int, x store.Extent) {
			old := make([]byte, extent.BlockSize)
			h := label.Header{Store: [16]byte{1, 2, 3}, Slot: uint32(z - 2), Generation: 1, Zone: z, Class: 1}
			if err := b.dev.ReadAt(z, 0, old); err != nil || !bytes.Equal(old, label.EncodeHeader(h)) {
				b.t.Fatalf("the header is not what this test thinks: %v", err)
			}
			edit(&h)
			rewrite(b, z, label.EncodeHeader(h))
		}
	}
	for _, c := range []struct {
		name   string
		damage func(b *bench, z int, x store.Extent)
		quiet  bool // not to be seen without reading the data
		want   string
	}{
		{"a rotten block", func(b *bench, z int, x store.Extent) {
			b.dev.(*zone.Mem).Corrupt(z, int64(x.Addr)%smallZNS.ZoneSize+2*4096+5, 1)
		}, true, `block does not match its checksum`},
		{"rotten blocks name the file", func(b *bench, z int, x store.Extent) {
			b.dev.(*zone.Mem).Corrupt(z, int64(x.Addr)%smallZNS.ZoneSize+4096, 8192)
		}, true, `2 blocks are bad; the first does not match`},
		{"the range in the file", func(b *bench, z int, x store.Extent) {
			b.dev.(*zone.Mem).Corrupt(z, int64(x.Addr)%smallZNS.ZoneSize+4096, 8192)
		}, true, `file "raw" bytes [4096, 12288)`},
		{"a block that cannot be read", func(b *bench, z int, x store.Extent) {
			at := int64(x.Addr)%smallZNS.ZoneSize + 4096
			b.dev.(*zone.Mem).SetHook(func(op zone.Op) error {
				if op.Kind == zone.OpRead && op.Zone == z && op.Off <= at && at < op.Off+op.Len {
					return zone.ErrMedia
				}
				return nil
			})
		}, true, `block cannot be read`},
		{"an emptied zone", func(b *bench, z int, x store.Extent) { b.dev.Reset(z) }, false, "its write pointer is at 0, but data lies up to"},
		{"a zone gone offline", func(b *bench, z int, x store.Extent) { b.dev.(*zone.Mem).SetCondition(z, zone.Offline) }, false, "it is offline"},
		{"a zone gone read-only", func(b *bench, z int, x store.Extent) { b.dev.(*zone.Mem).SetCondition(z, zone.ReadOnly) }, false, "it is read-only"},
		{"a rotten zone header", func(b *bench, z int, x store.Extent) { b.dev.(*zone.Mem).Corrupt(z, 100, 1) }, false, "its header is bad"},
		{"a foreign zone", header(func(h *label.Header) { h.Store[0]++ }), false, "its header is of store"},
		{"a misdirected zone", header(func(h *label.Header) { h.Zone++ }), false, "its header was written for zone"},
		{"swapped block groups", header(func(h *label.Header) { h.Slot++ }), false, "the metadata has block group"},
		{"a stale zone", header(func(h *label.Header) { h.Generation++ }), false, "its header is of generation 2, block group"},
		{"rotten labels", func(b *bench, z int, x store.Extent) {
			b.dev.(*zone.Mem).Corrupt(0, 100, 1)
			b.dev.(*zone.Mem).Corrupt(1, 100, 1)
		}, false, "label: it cannot be read"},
		{"no label", func(b *bench, z int, x store.Extent) { label.Erase(b.dev) }, false, "holds no Shingle label"},
		{"a foreign device", func(b *bench, z int, x store.Extent) { relabel(b, func(l *label.Label) { l.Store[5] = 9 }) }, false, "the device belongs to store"},
		{"an old copy of the metadata", func(b *bench, z int, x store.Extent) { relabel(b, func(l *label.Label) { l.Generation += 5 }) }, false, "the metadata looks like an old copy"},
		{"another number of devices", func(b *bench, z int, x store.Extent) { relabel(b, func(l *label.Label) { l.Devices = 2 }) }, false, "it is of device 0 of 2"},
		{"a label of another geometry", func(b *bench, z int, x store.Extent) { relabel(b, func(l *label.Label) { l.Zones-- }) }, false, "it was written for 39 zones"},
		{"an old copy of the device", func(b *bench, z int, x store.Extent) {
			b.change(func(tx *store.Tx) error {
				tx.SetSuperblock(func(s *store.Superblock) { s.StartCounter += 3 })
				d, err := tx.Device(0)
				if err != nil {
					return err
				}
				d.LabelGeneration += 3
				return tx.PutDevice(d)
			})
		}, false, "the device looks like an old copy"},
		{"a device record of another geometry", func(b *bench, z int, x store.Extent) {
			b.change(func(tx *store.Tx) error {
				d, err := tx.Device(0)
				d.Zones = 41
				return errors.Join(err, tx.PutDevice(d))
			})
		}, false, "device: it has 40 zones"},
		{"a device record of a later start", func(b *bench, z int, x store.Extent) {
			b.change(func(tx *store.Tx) error {
				d, err := tx.Device(0)
				d.LabelGeneration = 99
				return errors.Join(err, tx.PutDevice(d))
			})
		}, false, "device record: it is of start 99"},
		{"two block groups on one zone", func(b *bench, z int, x store.Extent) {
			b.change(group(20, func(g *store.BlockGroup) { g.Places[0].Zone = uint32(z) }))
		}, false, "and so does block group"},
		{"a block group on a label zone", func(b *bench, z int, x store.Extent) {
			b.change(group(20, func(g *store.BlockGroup) { g.Places[0].Zone = 1 }))
		}, false, "it lies on zone 1, which holds labels"},
		{"a block group past the device", func(b *bench, z int, x store.Extent) {
			b.change(group(20, func(g *store.BlockGroup) { g.Places[0].Zone = 40 }))
		}, false, "it lies on zone 40 of a device with 40 zones"},
		{"a block group on another device", func(b *bench, z int, x store.Extent) {
			b.change(group(20, func(g *store.BlockGroup) { g.Places[0].Device = 1 }))
		}, false, "it should have one place, on device 0"},
		{"a block group larger than its zone", func(b *bench, z int, x store.Extent) {
			b.change(group(20, func(g *store.BlockGroup) { g.Capacity += 4096 }))
		}, false, "its capacity is 790528, that of zone 22 is 786432"},
		{"missing records", func(b *bench, z int, x store.Extent) {
			b.change(group(20, func(g *store.BlockGroup) { g.Slot = 50 }))
		}, false, "block group 50: the records before it are missing, from block group 38 on"},
		{"an alloc_offset below the data", func(b *bench, z int, x store.Extent) {
			b.change(group(uint32(z-2), func(g *store.BlockGroup) { g.AllocOffset = 4096 }))
		}, false, "alloc_offset 4096 is below the end of its last extent"},
		{"live bytes that are not there", func(b *bench, z int, x store.Extent) {
			b.change(group(uint32(z-2), func(g *store.BlockGroup) { g.LiveBytes += 4096 }))
		}, false, "live bytes and has"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, smallZNS, Options{})
			put(t, b.open(), "raw", noise(3, 200_000))
			b.shut()
			b.checkClean()
			z, x := b.victim()
			c.damage(b, z, x)
			with, without := strings.Join(b.check(true), "\n"), strings.Join(b.check(false), "\n")
			if !strings.Contains(with, c.want) {
				t.Errorf("want %q, found:\n%s", c.want, with)
			}
			if strings.Contains(without, c.want) == c.quiet {
				t.Errorf("without reading the data: want %q %t, found:\n%s", c.want, !c.quiet, without)
			}
		})
	}
}

// rewrite replaces the first block of a zone and keeps the rest.
func rewrite(b *bench, z int, first []byte) {
	b.t.Helper()
	zs, err := b.dev.Report(z, 1)
	if err != nil {
		b.t.Fatal(err)
	}
	data := make([]byte, zs[0].WP)
	err = errors.Join(b.dev.ReadAt(z, 0, data), b.dev.Reset(z))
	copy(data, first)
	if err = errors.Join(err, b.dev.Write(z, 0, [][]byte{data})); err != nil {
		b.t.Fatal(err)
	}
}

// relabel writes an edited label in place of the latest one.
func relabel(b *bench, edit func(*label.Label)) {
	b.t.Helper()
	l, err := label.Read(b.dev)
	if err != nil {
		b.t.Fatal(err)
	}
	edit(&l)
	if err := errors.Join(label.Erase(b.dev), label.Write(b.dev, l)); err != nil {
		b.t.Fatal(err)
	}
}

// A block group on a zone of the other kind would have its data written over, or appended nowhere.
func TestCheckConventional(t *testing.T) {
	g := zone.Geometry{Dialect: zone.SMR, ZoneSize: 1 << 20, ZoneCapacity: 1 << 20, Zones: 20, Conventional: 4, MaxOpen: 4}
	b := newBench(t, g, Options{})
	put(t, b.open(), "f", noise(1, 500_000))
	b.shut()
	b.checkClean()
	b.change(func(tx *store.Tx) error {
		two, err := tx.BlockGroup(2)
		seven, err7 := tx.BlockGroup(7)
		two.Places, seven.Places = seven.Places, two.Places
		return errors.Join(err, err7, tx.PutBlockGroup(two), tx.PutBlockGroup(seven))
	})
	found := strings.Join(b.check(false), "\n")
	for _, want := range []string{"block group 2: it is of kind 2 and lies on zone 9", "block group 7: it is of kind 1 and lies on zone 2"} {
		if !strings.Contains(found, want) {
			t.Errorf("found %q, and not %q", found, want)
		}
	}
}

func TestCheckCannotStart(t *testing.T) {
	b := newBench(t, smallZNS, Options{})
	e := b.open()
	o := CheckOptions{Devices: []Device{{Device: b.dev}}, MetadataPath: b.meta}
	none := func(p Problem) { t.Errorf("reported %s", p) }
	if err := Check(context.Background(), o, none); errdefs.ReasonOf(err) != errdefs.ReasonInUse {
		t.Errorf("check of an open store: %v", err)
	}
	e.Close(context.Background())
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Check(ctx, o, none); !errors.Is(err, context.Canceled) {
		t.Errorf("check that was cancelled: %v", err)
	}
	o.MetadataPath += ".missing"
	if err := Check(context.Background(), o, none); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("check without metadata: %v", err)
	}
}

// A bad block of a compressed extent spoils its whole frame, in every file that shares it.
func TestCheckNamesFrames(t *testing.T) {
	codec := extent.CodecZstd
	b := newBench(t, smallZNS, Options{Compression: &codec})
	put(t, b.open(), "dir/raw", noise(1, 4096))
	_, err := b.e.Create(context.Background(), CreateRequest{Name: "raw"})
	if err != nil {
		t.Fatal(err)
	}
	writeAt(t, b.e, "raw", 1000, text(2, 400_000))
	b.shut()
	z, x := b.victim()
	second := int64(x.Addr)%smallZNS.ZoneSize + x.Frames[0].Blocks()*extent.BlockSize
	if err := b.dev.(*zone.Mem).Corrupt(z, second+10, 1); err != nil {
		t.Fatal(err)
	}
	found := b.check(true)
	if len(found) != 1 || !strings.HasSuffix(found[0], `: file "raw" bytes [131072, 262144)`) {
		t.Errorf("found %q", found)
	}
}
