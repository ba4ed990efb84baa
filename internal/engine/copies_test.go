package engine

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

// mortal is a memory device that can die, and come back.
type mortal struct {
	*zone.Mem
	dead   atomic.Bool
	failed atomic.Int64 // 1 + a zone that is read-only
}

func (d *mortal) Report(first, n int) ([]zone.Zone, error) {
	zs, err := d.Mem.Report(first, n)
	for i := range zs {
		if int64(zs[i].Index)+1 == d.failed.Load() {
			zs[i].Condition = zone.ReadOnly
		}
	}
	return zs, err
}

var errDead = errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "mortal", "device", zone.ErrMedia)

func (d *mortal) alive() error {
	if d.dead.Load() {
		return errDead
	}
	return nil
}

func (d *mortal) ReadAt(z int, off int64, p []byte) error {
	return first(d.alive(), func() error { return d.Mem.ReadAt(z, off, p) })
}

func (d *mortal) Write(z int, off int64, bufs [][]byte) error {
	return first(d.alive(), func() error { return d.Mem.Write(z, off, bufs) })
}

func (d *mortal) Append(z int, bufs [][]byte) (off int64, err error) {
	if err := d.alive(); err != nil {
		return 0, err
	}
	return d.Mem.Append(z, bufs)
}

func (d *mortal) Flush() error { return first(d.alive(), d.Mem.Flush) }

func (d *mortal) Open(z int) error { return first(d.alive(), func() error { return d.Mem.Open(z) }) }

func (d *mortal) Finish(z int) error {
	return first(d.alive(), func() error { return d.Mem.Finish(z) })
}

func (d *mortal) CloseZone(z int) error {
	return first(d.alive(), func() error { return d.Mem.CloseZone(z) })
}

func (d *mortal) Reset(z int) error {
	if int64(z)+1 == d.failed.Load() {
		return errdefs.Wrap(errdefs.Device, errdefs.ReasonDeviceIO, "mortal", "zone", zone.ErrZoneReadOnly)
	}
	return first(d.alive(), func() error { return d.Mem.Reset(z) })
}

func (d *mortal) Release(z int) error {
	return first(d.alive(), func() error { return d.Mem.Release(z) })
}

func (d *mortal) Close() error { return nil }

func (d *mortal) Discard(z int, r []extent.Range) error {
	return first(d.alive(), func() error { return d.Mem.Discard(z, r) })
}

func first(err error, then func() error) error {
	if err != nil {
		return err
	}
	return then()
}

// copyBench is a store on several devices.
type copyBench struct {
	t       testing.TB
	devices []*mortal
	given   []int // the devices of the next open
	meta    string
	opts    Options
	e       *Engine
	added   map[string]*mortal // what OpenDevice finds
}

func newMortal(t testing.TB, g zone.Geometry) *mortal {
	t.Helper()
	mem, err := zone.NewMem(g, zone.MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &mortal{Mem: mem}
}

func newCopyBench(t testing.TB, copies int, o Options, gs ...zone.Geometry) *copyBench {
	t.Helper()
	b := &copyBench{t: t, meta: filepath.Join(t.TempDir(), "meta.db"), opts: o, added: map[string]*mortal{}}
	for i, g := range gs {
		b.devices = append(b.devices, newMortal(t, g))
		b.given = append(b.given, i)
	}
	err := Format(FormatOptions{
		Devices: b.list(), Copies: copies, MetadataPath: b.meta, UUID: [16]byte{1, 2, byte(copies)}, Compression: extent.CodecNone, Now: time.Now, MetadataNoSync: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *copyBench) list() (out []Device) {
	for _, i := range b.given {
		out = append(out, Device{Path: fmt.Sprintf("dev%d", i), Device: b.devices[i]})
	}
	return out
}

func (b *copyBench) tryOpen() (*Engine, error) {
	o := b.opts
	o.Devices, o.MetadataPath, o.MetadataNoSync = b.list(), b.meta, true
	o.Now, o.Random = time.Now, newSeeded(uint64(time.Now().UnixNano()))
	if o.DirtyLimit == 0 {
		o.DirtyLimit = 64 << 20
	}
	o.OpenDevice = func(path string) (zone.Device, error) {
		if d := b.added[path]; d != nil {
			return d, nil
		}
		return nil, errdefs.New(errdefs.NotFound, "", "open", path, "there is no "+path)
	}
	return Open(context.Background(), o)
}

func (b *copyBench) open() *Engine {
	b.t.Helper()
	e, err := b.tryOpen()
	if err != nil {
		b.t.Fatal(err)
	}
	b.e = e
	b.t.Cleanup(func() { e.Close(context.Background()) })
	return e
}

func (b *copyBench) close() {
	b.t.Helper()
	if err := b.e.Close(context.Background()); err != nil {
		b.t.Fatal(err)
	}
}

// check answers what is wrong with the closed store.
func (b *copyBench) check() (problems []string) {
	b.t.Helper()
	err := Check(context.Background(), CheckOptions{Devices: b.list(), MetadataPath: b.meta, ReadData: true}, func(p Problem) { problems = append(problems, p.String()) })
	if err != nil {
		b.t.Fatal(err)
	}
	return problems
}

func (b *copyBench) wantClean() {
	b.t.Helper()
	if p := b.check(); len(p) > 0 {
		b.t.Errorf("check: %d problems, the first: %s", len(p), strings.Join(p[:min(len(p), 3)], "; "))
	}
}

// whole waits until every block group has all its copies, and no device is leaving.
func (b *copyBench) whole() {
	b.t.Helper()
	eventually(b.t, "every block group has its copies", func() bool {
		infos, r, err := b.e.Devices()
		if err != nil {
			b.t.Fatal(err)
		}
		for _, d := range infos {
			if d.Incomplete > 0 || d.State != DeviceOnline {
				return false
			}
		}
		return !r.Running && r.BlockGroups == 0
	})
}

// spoil flips a bit of the i-th block of a file in one copy.
func (b *copyBench) spoil(name string, i int64, copy int) (device, z int, off int64) {
	b.t.Helper()
	for _, x := range pieces(b.t, b.e, name) {
		if i >= x.Blocks {
			i -= x.Blocks
			continue
		}
		slot, at := b.e.split(x.Addr + extent.Addr(i*extent.BlockSize))
		p := b.e.placeAt(slot, copy)
		if err := b.devices[p.Device].Corrupt(p.Zone, at+7, 1); err != nil {
			b.t.Fatal(err)
		}
		return p.Device, p.Zone, at
	}
	b.t.Fatalf("%s has no block %d", name, i)
	return 0, 0, 0
}

var copyZNS = zone.Geometry{Dialect: zone.ZNS, ZoneSize: 1 << 20, ZoneCapacity: 768 << 10, Zones: 24, MaxOpen: 4, MaxActive: 5}
