package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// mortal is a memory device that can die, and come back.
type mortal struct {
	*zone.Mem
	dead atomic.Bool
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
func (d *mortal) Flush() error     { return first(d.alive(), d.Mem.Flush) }
func (d *mortal) Open(z int) error { return first(d.alive(), func() error { return d.Mem.Open(z) }) }
func (d *mortal) Finish(z int) error {
	return first(d.alive(), func() error { return d.Mem.Finish(z) })
}
func (d *mortal) CloseZone(z int) error {
	return first(d.alive(), func() error { return d.Mem.CloseZone(z) })
}
func (d *mortal) Reset(z int) error { return first(d.alive(), func() error { return d.Mem.Reset(z) }) }
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

// TestReadsRepair reads a file that is bad in one copy here and in the other there: all of it is right, and
// mended.
func TestReadsRepair(t *testing.T) {
	for _, codec := range []extent.Codec{extent.CodecNone, extent.CodecZstd} {
		t.Run(codec.String(), func(t *testing.T) {
			b := newCopyBench(t, 2, Options{Compression: &codec}, copyZNS, copyZNS)
			e := b.open()
			data := text(1, 2_000_000)
			put(t, e, "f", data)
			syncAll(t, e)
			b.spoil("f", 0, 0)
			b.spoil("f", 20, 1)
			b.spoil("f", 40, 0)
			sameFile(t, e, "f", data)
			eventually(t, "what was read is mended", func() bool {
				sameFile(t, e, "f", data)
				// Which copy is read is the array's choice.
				return e.Counters()["corruptions_repaired"] >= 1
			})
			s := scrubAll(t, e, ScrubRequest{})
			if s.Counters.UncorrectableErrors != 0 {
				t.Errorf("%+v", s.Counters)
			}
			if n := e.Counters()["corruptions_repaired"]; n != 3 {
				t.Errorf("%d copies were mended", n)
			}
			sameFile(t, e, "f", data)
			if s := scrubAll(t, e, ScrubRequest{}); s.Counters.Errors() != 0 {
				t.Errorf("again: %+v", s.Counters)
			}
			if c := e.Conditions(); len(c) != 0 {
				t.Errorf("%+v", c)
			}
			b.close()
			b.wantClean()
		})
	}
}

// spot is a block on a device.
type spot struct {
	device, zone int
	off          int64
}

// lastOfZone returns the number of the block of a file that lies last in a zone that is full.
func lastOfZone(t testing.TB, e *Engine, name string) int64 {
	n := int64(0)
	for _, x := range pieces(t, e, name) {
		slot, off := e.split(x.Addr)
		if bg, _ := e.al.BlockGroup(slot); off+x.Blocks*extent.BlockSize == bg.Capacity {
			return n + x.Blocks - 1
		}
		n += x.Blocks
	}
	t.Fatal("no zone ends with a block of " + name)
	return 0
}

// TestScrubRepairs has blocks spoilt of every kind that there is: two in one group, one on its border, one in a
// clone, one in a compressed frame, one in a label, one at the end of a zone, and one in both copies. All are
// counted once a copy and named, all but the last are mended, and a second scrub finds none of those.
func TestScrubRepairs(t *testing.T) {
	for name, gs := range map[string][]zone.Geometry{
		"two devices": {copyZNS, copyZNS},
		"one device":  {{Dialect: zone.ZNS, ZoneSize: 1 << 20, ZoneCapacity: 768 << 10, Zones: 48, MaxOpen: 8, MaxActive: 10}},
		"three":       {copyZNS, copyZNS, copyZNS},
	} {
		t.Run(name, func(t *testing.T) {
			zstd := extent.CodecZstd
			b := newCopyBench(t, 2, Options{ScrubGroup: scrub.MinGroup}, gs...)
			e := b.open()
			raw, cloned, packed := noise(1, 3<<20), noise(3, 200_000), text(2, 900_000)
			put(t, e, "raw", raw)
			put(t, e, "cloned", cloned)
			syncAll(t, e)
			b.close()
			b.opts.Compression = &zstd
			e = b.open()
			put(t, e, "packed", packed)
			if _, _, err := e.Clone(context.Background(), CloneRequest{Name: "cloned", NewName: "clone"}); err != nil {
				t.Fatal(err)
			}
			syncAll(t, e)
			spoilt := map[spot]string{}
			spoil := func(name string, i int64, copy int) {
				device, z, off := b.spoil(name, i, copy)
				spoilt[spot{device, z, off}] = name
			}
			spoil("raw", 3, 0)
			spoil("raw", 4, 0)
			spoil("raw", scrub.MinGroup/extent.BlockSize, 1)
			spoil("raw", lastOfZone(t, e, "raw"), 0)
			spoil("packed", 2, 1)
			spoil("cloned", 7, 1)
			spoil("raw", 300, 0)
			spoil("raw", 300, 1)
			a, _, err := label.Zones(b.devices[0].Geometry())
			if err != nil {
				t.Fatal(err)
			}
			if err := b.devices[0].Corrupt(a, 100, 1); err != nil {
				t.Fatal(err)
			}
			k := uint64(len(spoilt))
			if k != 8 {
				t.Fatalf("%d blocks are spoilt", k)
			}
			s := scrubAll(t, e, ScrubRequest{})
			if c := s.Counters; c.CsumErrors != k || c.SuperErrors != 1 || c.Errors() != k+1 || c.CorrectedErrors != k-2+1 || c.UncorrectableErrors != 2 {
				t.Errorf("%+v", c)
			}
			for _, f := range allFindings(t, e) {
				if f.Object != "" {
					if f.Object != "devices/0/label" || f.Outcome != scrub.Repaired || f.Zone != uint32(a) {
						t.Errorf("%+v", f)
					}
					continue
				}
				at := spot{int(f.Device), int(f.Zone), f.ZoneOffset}
				name, ok := spoilt[at]
				delete(spoilt, at)
				want, lost := scrub.Repaired, false
				if lost = name == "raw" && f.Offset == 300*extent.BlockSize; lost {
					want = scrub.Uncorrectable
				}
				if clone := name == "cloned" && f.File == "clone"; !ok || f.File != name && !clone || f.Expected == f.Actual || f.Length == 0 ||
					f.Outcome != want || (name == "cloned") != (f.OtherReferences == 1) {
					t.Errorf("%q: %+v", name, f)
				}
			}
			if len(spoilt) > 0 {
				t.Errorf("not found: %v", spoilt)
			}
			if c := scrubAll(t, e, ScrubRequest{}).Counters; c.Errors() != 2 || c.UncorrectableErrors != 2 {
				t.Errorf("again: %+v", c)
			}
			sameFile(t, e, "packed", packed)
			sameFile(t, e, "cloned", cloned)
			sameFile(t, e, "clone", cloned)
			got, err := tryRead(e, "raw", 0, nil)
			if !errdefs.Is(err, errdefs.Corruption) || string(got) != string(raw[:len(got)]) || len(got) < 299*extent.BlockSize {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			writeAt(t, e, "raw", 300*extent.BlockSize, raw[300*extent.BlockSize:301*extent.BlockSize])
			syncAll(t, e)
			sameFile(t, e, "raw", raw)
			if c := scrubAll(t, e, ScrubRequest{}).Counters; c.Errors() != 0 {
				t.Errorf("the third: %+v", c)
			}
			b.close()
			b.wantClean()
		})
	}
}

// TestLabelIsMendedWhereNoZoneIsFree: all the active zones that the device has are taken.
func TestLabelIsMendedWhereNoZoneIsFree(t *testing.T) {
	g := copyZNS
	g.MaxOpen, g.MaxActive = 1, 1
	b := newCopyBench(t, 1, Options{}, g)
	e := b.open()
	data := noise(1, 100_000)
	put(t, e, "f", data)
	syncAll(t, e)
	a, _, err := label.Zones(g)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.devices[0].Reset(a); err != nil {
		t.Fatal(err)
	}
	if c := scrubAll(t, e, ScrubRequest{}).Counters; c.SuperErrors != 1 || c.CorrectedErrors != 1 {
		t.Errorf("%+v", c)
	}
	if c := scrubAll(t, e, ScrubRequest{}).Counters; c.SuperErrors != 0 {
		t.Errorf("again: %+v", c)
	}
	put(t, e, "g", data)
	syncAll(t, e)
	checkQuiet(t, e)
	sameFile(t, e, "f", data)
}

// TestReadOnlyScrubMendsNothing also where there is a good copy.
func TestReadOnlyScrubMendsNothing(t *testing.T) {
	b := newCopyBench(t, 2, Options{}, copyZNS, copyZNS)
	e := b.open()
	data := noise(1, 1<<20)
	put(t, e, "f", data)
	syncAll(t, e)
	b.spoil("f", 9, 1)
	for range 2 {
		c := scrubAll(t, e, ScrubRequest{ReadOnly: true}).Counters
		if f := allFindings(t, e); c.CsumErrors != 1 || c.CorrectedErrors != 0 || len(f) != 1 || f[0].Outcome != scrub.NotRepairedReadOnly {
			t.Errorf("%+v: %+v", c, f)
		}
	}
	if c := e.Conditions(); len(c) != 0 { // no read fails
		t.Errorf("%+v", c)
	}
	if c := scrubAll(t, e, ScrubRequest{Scope: ScrubScope{Device: "0"}}).Counters; c.Errors() != 0 || c.DataBytesScrubbed != 1<<20 {
		t.Errorf("the other device: %+v", c)
	}
	if c := scrubAll(t, e, ScrubRequest{Scope: ScrubScope{Device: "1"}}).Counters; c.CorrectedErrors != 1 {
		t.Errorf("the device: %+v", c)
	}
}

// TestDeviceLostUnderLoad has a device die while clients write, sync and read: nobody's read fails, nobody's
// sync does, and a new device gets all of it again while they go on.
func TestDeviceLostUnderLoad(t *testing.T) {
	b := newCopyBench(t, 2, Options{}, copyZNS, copyZNS)
	e := b.open()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var rounds atomic.Int64
	last := make([][]byte, 6)
	for i := range last {
		wg.Go(func() {
			name := fmt.Sprintf("client%d", i)
			for n := uint64(0); ; n++ {
				data := noise(n*7+uint64(i), 50_000+int(n%13)*9_000)
				_, err := tryPut(e, name, data)
				if err == nil {
					_, err = e.Sync(context.Background(), nil, nil)
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				got, err := tryRead(e, name, 0, nil)
				if err != nil || string(got) != string(data) {
					t.Errorf("%s: %d bytes, %v", name, len(got), err)
					return
				}
				last[i] = data
				rounds.Add(1)
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	more := func(n int64) {
		t.Helper()
		until := rounds.Load() + n
		eventually(t, "the clients get on", func() bool { return rounds.Load() >= until || t.Failed() })
	}
	more(20)
	b.devices[1].dead.Store(true)
	more(60)
	b.devices = append(b.devices, newMortal(t, copyZNS))
	b.added["new"] = b.devices[2]
	if _, err := e.ReplaceDevice(context.Background(), 1, "new", false); err != nil {
		t.Error(err)
	}
	more(60)
	eventually(t, "the dead device has left", func() bool {
		infos, _, err := e.Devices()
		return err == nil && len(infos) == 2
	})
	close(stop)
	wg.Wait()
	b.whole()
	if c := scrubAll(t, e, ScrubRequest{}).Counters; c.Errors() != 0 {
		t.Errorf("%+v", c)
	}
	checkQuiet(t, e)
	b.close()
	b.given = []int{0, 2}
	b.wantClean()
	b.given = []int{2}
	e = b.open()
	for i, data := range last {
		sameFile(t, e, fmt.Sprintf("client%d", i), data)
	}
}

// TestDeviceLost has one of two devices die under load, stay away, and come back old.
func TestDeviceLost(t *testing.T) {
	b := newCopyBench(t, 2, Options{}, copyZNS, copyZNS)
	e := b.open()
	files := map[string][]byte{}
	store := func(n int, seed uint64) {
		for i := range n {
			name := fmt.Sprintf("f%d", (int(seed)*7+i)%9)
			files[name] = noise(seed+uint64(i), 300_000+i*1111)
			put(t, b.e, name, files[name])
			syncAll(t, b.e)
		}
	}
	read := func() {
		t.Helper()
		for name, data := range files {
			sameFile(t, b.e, name, data)
		}
	}
	store(9, 1)
	b.devices[1].dead.Store(true)
	store(9, 20)
	read()
	infos, _, err := e.Devices()
	if err != nil || infos[1].State != DeviceFailed || infos[0].State != DeviceOnline {
		t.Errorf("%+v, %v", infos, err)
	}
	named := map[string]bool{}
	for _, c := range e.Conditions() {
		named[c.Reason] = true
	}
	if !named["DEVICE_FAILED"] || !named["DEGRADED"] {
		t.Errorf("%+v", e.Conditions())
	}
	b.close()

	b.given = []int{0}
	b.open()
	read()
	store(7, 40)
	read()
	b.close()
	for _, p := range b.check() {
		if !strings.Contains(p, "copies of 2") && !strings.Contains(p, "was not given") {
			t.Errorf("degraded: %s", p)
		}
	}

	b.devices[1].dead.Store(false)
	b.given = []int{1, 0}
	b.open()
	read()
	b.whole()
	read()
	if s := scrubAll(t, b.e, ScrubRequest{}); s.Counters.Errors() != 0 {
		t.Errorf("%+v", s.Counters)
	}
	b.close()
	b.wantClean()

	// And with the other one alone all is there.
	b.given = []int{1}
	b.open()
	read()
}

// TestReplaceDevice puts a new device in the place of one that is dead, missing, or well.
func TestReplaceDevice(t *testing.T) {
	for name, c := range map[string]struct {
		copies int
		lose   func(*copyBench)
	}{
		"dead": {2, func(b *copyBench) {
			b.devices[0].dead.Store(true)
			put(b.t, b.e, "x", noise(9, 100_000))
			syncAll(b.t, b.e)
		}},
		"missing": {2, func(b *copyBench) { b.close(); b.given = []int{1}; b.open() }},
		"well":    {2, func(*copyBench) {}},
		"only":    {1, func(*copyBench) {}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newCopyBench(t, c.copies, Options{}, copyZNS, copyZNS)
			b.open()
			data := noise(3, 5<<20)
			put(t, b.e, "f", data)
			syncAll(t, b.e)
			c.lose(b)
			b.devices = append(b.devices, newMortal(t, copyZNS))
			b.added["new"] = b.devices[2]
			d, err := b.e.ReplaceDevice(context.Background(), 0, "new", false)
			if err != nil {
				t.Fatal(err)
			}
			if d.Number != 2 || d.State != DeviceOnline || d.Path != "new" {
				t.Errorf("%+v", d)
			}
			more := noise(4, 1<<20)
			put(t, b.e, "g", more)
			syncAll(t, b.e)
			eventually(t, "the old one has left", func() bool {
				infos, _, err := b.e.Devices()
				return err == nil && len(infos) == 2 && infos[0].Number == 1 && infos[1].Number == 2
			})
			b.whole()
			sameFile(t, b.e, "f", data)
			sameFile(t, b.e, "g", more)
			b.close()
			b.given = []int{1, 2}
			b.wantClean()
			b.open()
			sameFile(t, b.e, "f", data)
			b.close()
			if name == "missing" {
				b.given = []int{0, 1, 2}
				if _, err := b.tryOpen(); errdefs.ReasonOf(err) != errdefs.ReasonDeviceMismatch {
					t.Errorf("with the device that was replaced: %v", err)
				}
			}
		})
	}
}

// TestAddAndRemoveDevice makes a store larger and smaller while it is used.
func TestAddAndRemoveDevice(t *testing.T) {
	b := newCopyBench(t, 1, Options{}, copyZNS)
	e := b.open()
	ctx := context.Background()
	before := e.Usage().Total
	data := noise(5, int(before)/10*9)
	put(t, e, "f", data)
	syncAll(t, e)
	b.devices = append(b.devices, newMortal(t, copyZNS))
	b.added["second"] = b.devices[1]
	if _, err := e.AddDevice(ctx, "second", false); err != nil {
		t.Fatal(err)
	}
	if got := e.Usage().Total; got < 2*before {
		t.Errorf("%d bytes in all, %d before", got, before)
	}
	more := noise(6, int(before)/2)
	put(t, e, "g", more)
	syncAll(t, e)
	if err := e.RemoveDevice(ctx, 0); !errdefs.Is(err, errdefs.NoSpace) {
		t.Errorf("removing a device that is needed: %v", err)
	}
	if err := e.RemoveDevice(ctx, 7); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("removing a device that there is none: %v", err)
	}
	b.close()
	b.given = []int{0}
	if _, err := b.tryOpen(); errdefs.ReasonOf(err) != errdefs.ReasonDeviceMismatch || !strings.Contains(err.Error(), "only copy") {
		t.Errorf("without the second: %v", err)
	}
	b.given = []int{0, 1}
	b.wantClean()
	e = b.open()
	sameFile(t, e, "f", data)
	sameFile(t, e, "g", more)
	deleteFile(t, e, "f")
	syncAll(t, e)
	eventually(t, "there is room", func() bool { return e.Usage().Used < before*6/10 })
	if err := e.RemoveDevice(ctx, 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has left", func() bool {
		infos, _, err := e.Devices()
		return err == nil && len(infos) == 1 && infos[0].Number == 1
	})
	sameFile(t, e, "g", more)
	if got := e.Usage().Total; got > before*11/10 {
		t.Errorf("%d bytes in all, %d at first", got, before)
	}
	checkQuiet(t, e)
	b.close()
	b.given = []int{1}
	b.wantClean()
	sameFile(t, b.open(), "g", more)
}

// TestAddDeviceRefused names why a device cannot be part of the store.
func TestAddDeviceRefused(t *testing.T) {
	b := newCopyBench(t, 2, Options{}, copyZNS, copyZNS)
	e := b.open()
	other := func(edit func(*zone.Geometry)) *mortal {
		g := copyZNS
		edit(&g)
		return newMortal(t, g)
	}
	b.added["sizes"] = other(func(g *zone.Geometry) { g.ZoneSize *= 2 })
	b.added["dialect"] = other(func(g *zone.Geometry) { g.Dialect, g.ZoneCapacity, g.MaxActive = zone.SMR, g.ZoneSize, 0 })
	b.added["limits"] = other(func(g *zone.Geometry) { g.MaxActive, g.MaxOpen = 2, 2 })
	b.added["small"] = other(func(g *zone.Geometry) { g.Zones = 4 })
	b.added["own"] = b.devices[0]
	foreign := newCopyBench(t, 1, Options{}, copyZNS)
	b.added["foreign"] = foreign.devices[0]
	for path, words := range map[string]string{
		"sizes": "have the same", "dialect": "have the same", "limits": "lower limits", "small": "sequential zones", "own": "already",
		"foreign": "holds a part of store", "none": "there is no none",
	} {
		if _, err := e.AddDevice(context.Background(), path, false); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := e.RemoveDevice(context.Background(), 0); err == nil || !strings.Contains(err.Error(), "replace it instead") {
		t.Errorf("one of two, with two copies: %v", err)
	}
	if infos, _, _ := e.Devices(); len(infos) != 2 {
		t.Errorf("%+v", infos)
	}
}

// TestPairs says what is made of devices of unequal size.
func TestPairs(t *testing.T) {
	zones := func(n int) []int {
		out := make([]int, n)
		for i := range out {
			out[i] = i + 2
		}
		return out
	}
	for _, c := range []struct {
		devices []int
		copies  int
		want    int
	}{
		{[]int{10}, 1, 10}, {[]int{10, 5}, 1, 15}, {[]int{10}, 2, 5}, {[]int{11}, 2, 5}, {[]int{10, 10}, 2, 10}, {[]int{10, 4}, 2, 4},
		{[]int{10, 10, 10}, 2, 15}, {[]int{9, 4, 3}, 2, 7}, {[]int{20, 4, 3}, 2, 7}, {[]int{5, 5, 5}, 2, 7}, {[]int{1, 1, 1, 1}, 2, 2},
	} {
		in := map[uint32][]int{}
		for d, n := range c.devices {
			in[uint32(d)] = zones(n)
		}
		sets := pairZones(in, c.copies)
		seen := map[store.Place]bool{}
		for _, s := range sets {
			if len(s) != c.copies || c.copies == 2 && len(c.devices) > 1 && s[0].Device == s[1].Device {
				t.Errorf("%v: %v", c, s)
			}
			for _, p := range s {
				if seen[p] {
					t.Errorf("%v: %v twice", c, p)
				}
				seen[p] = true
			}
		}
		if len(sets) != c.want {
			t.Errorf("%v: %d block groups", c, len(sets))
		}
	}
}

// TestStaleDevice opens a store with an old state of a device whose label is not older than its record.
func TestDeviceOfOldStateIsNotRead(t *testing.T) {
	b := newCopyBench(t, 2, Options{}, copyZNS, copyZNS)
	b.open()
	old := noise(1, 4<<20)
	put(t, b.e, "f", old)
	b.close()
	b.given = []int{0}
	b.open()
	data := noise(2, 4<<20)
	for range 4 { // the zones that the missing one has are used for something else on the other
		put(t, b.e, "f", data)
		syncAll(t, b.e)
	}
	b.close()
	// The records forget that the places are stale.
	st, err := store.Open(b.meta, store.Options{MaxBytes: 64 << 20, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	forgotten := 0
	err = st.Update(func(tx *store.Tx) error {
		var groups []store.BlockGroup
		if err := tx.BlockGroups(func(g store.BlockGroup) error { groups = append(groups, g); return nil }); err != nil {
			return err
		}
		for _, g := range groups {
			places := append([]store.Place(nil), g.Places...)
			for i := range places {
				if places[i].Stale {
					places[i].Stale = false
					forgotten++
				}
			}
			g.Places = places
			if err := tx.PutBlockGroup(g); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, st.Close()); err != nil || forgotten == 0 {
		t.Fatal(forgotten, err)
	}
	b.given = []int{0, 1}
	b.open()
	found := false
	for _, c := range b.e.Conditions() {
		found = found || c.Reason == "DEVICE_STALE"
	}
	if !found {
		t.Errorf("%+v", b.e.Conditions())
	}
	sameFile(t, b.e, "f", data)
	b.whole()
	sameFile(t, b.e, "f", data)
	b.close()
	b.wantClean()
}

// TestAddedDeviceSurvivesACrash: what was added is there after a crash that follows, and so is what a
// crash in the middle left spare.
func TestAddedDeviceSurvivesACrash(t *testing.T) {
	b := newCopyBench(t, 1, Options{}, copyZNS)
	e := b.open()
	before := e.Usage().Total
	b.devices = append(b.devices, newMortal(t, copyZNS))
	b.added["second"] = b.devices[1]
	if _, err := e.AddDevice(context.Background(), "second", false); err != nil {
		t.Fatal(err)
	}
	total := e.Usage().Total
	e.failWrites(errors.New("killed"))
	_ = e.Close(context.Background())
	b.given = []int{0, 1}
	if got := b.open().Usage().Total; got != total || got < 2*before {
		t.Errorf("%d bytes in all, %d before the crash, %d at first", got, total, before)
	}
	b.close()
	b.wantClean()
}

// TestBlankDevice: a device that holds no label is left out while all others are there, and refused
// when one is missing, whose place it may be meant to take.
func TestBlankDevice(t *testing.T) {
	b := newCopyBench(t, 2, Options{}, copyZNS, copyZNS)
	b.devices = append(b.devices, newMortal(t, copyZNS))
	b.given = []int{0, 1, 2}
	if infos, _, err := b.open().Devices(); err != nil || len(infos) != 2 {
		t.Errorf("%+v, %v", infos, err)
	}
	b.close()
	b.given = []int{0, 2}
	if _, err := b.tryOpen(); errdefs.ReasonOf(err) != errdefs.ReasonDeviceMismatch || !strings.Contains(err.Error(), "no Shingle label") {
		t.Errorf("%v", err)
	}
}

// TestThirdDevice: one more device under two copies makes room for half of what it holds, also in a store that
// was full, as that becomes empty.
func TestThirdDevice(t *testing.T) {
	b := newCopyBench(t, 2, Options{}, copyZNS, copyZNS)
	e := b.open()
	before := e.Usage().Total
	data := noise(5, int(before)/10*9)
	put(t, e, "f", data)
	syncAll(t, e)
	b.devices = append(b.devices, newMortal(t, copyZNS))
	b.added["third"] = b.devices[2]
	if _, err := e.AddDevice(context.Background(), "third", false); err != nil {
		t.Fatal(err)
	}
	for i := range 3 { // what is overwritten makes the rest of the room
		data = noise(uint64(10+i), len(data))
		writeAt(t, e, "f", 0, data)
		syncAll(t, e)
	}
	want := before + 10*(copyZNS.ZoneCapacity-4096)
	eventually(t, "half as much again can be stored", func() bool { return e.Usage().Total >= want })
	more := noise(6, int(want-before)*8/10)
	put(t, e, "g", more)
	syncAll(t, e)
	checkQuiet(t, e)
	for _, g := range e.BlockGroups(0, -1) {
		if len(g.Places) != 2 || g.Places[0].Device == g.Places[1].Device {
			t.Errorf("block group %d lies on %v", g.Slot, g.Places)
		}
	}
	b.close()
	b.given = []int{0, 1, 2}
	b.wantClean()
	for _, lost := range []int{0, 1, 2} {
		b.given = nil
		for i := range 3 {
			if i != lost {
				b.given = append(b.given, i)
			}
		}
		e := b.open()
		sameFile(t, e, "f", data)
		sameFile(t, e, "g", more)
		b.close()
		b.given = []int{0, 1, 2}
		b.open()
		b.whole()
		b.close()
		b.wantClean()
	}
}

// TestMendTakesFindingsInAnyOrder has two bad blocks mended that were found the later one first, as reads
// that end out of order find them.
func TestMendTakesFindingsInAnyOrder(t *testing.T) {
	b := newCopyBench(t, 2, Options{}, copyZNS, copyZNS)
	e := b.open()
	data := noise(1, 300_000)
	put(t, e, "f", data)
	syncAll(t, e)
	var found []scrub.Finding
	for _, i := range []int64{20, 3} {
		b.spoil("f", i, 0)
		x := pieces(t, e, "f")[0]
		at := x.Addr + extent.Addr(i*extent.BlockSize)
		found = append(found, scrub.Finding{Address: uint64(at), Expected: csum.Sum(data[i*extent.BlockSize:][:extent.BlockSize]), Mend: true, Outcome: scrub.Uncorrectable})
	}
	if err := (&scrubSpace{e: e}).Mend(context.Background(), found); err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Outcome != scrub.Repaired {
			t.Errorf("%+v", f)
		}
	}
	if s := scrubAll(t, e, ScrubRequest{}); s.Counters.Errors() != 0 {
		t.Errorf("said to be mended, and bad: %+v", s.Counters)
	}
}
