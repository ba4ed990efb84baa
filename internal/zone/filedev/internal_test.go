package filedev

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

var small = zone.Geometry{
	Dialect: zone.ZNS, ZoneSize: 1024 * extent.BlockSize, ZoneCapacity: 1000 * extent.BlockSize, Zones: 4,
}

func newDevice(t *testing.T, open func(path string) (*Device, error)) *Device {
	t.Helper()
	path := filepath.Join(t.TempDir(), "device")
	if err := Create(path, small, CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d, err := open(path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// breakFile puts /dev/full, which takes no byte and no sync, behind the device's descriptor and
// returns what puts the file back.
func breakFile(t *testing.T, d *Device) (mend func()) {
	t.Helper()
	keep, err := unix.Dup(d.fd)
	if err != nil {
		t.Fatal(err)
	}
	full, err := unix.Open("/dev/full", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skip(err)
	}
	if err := errors.Join(unix.Dup3(full, d.fd, unix.O_CLOEXEC), unix.Close(full)); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(unix.Dup3(keep, d.fd, unix.O_CLOEXEC), unix.Close(keep)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFailingFile(t *testing.T) {
	d := newDevice(t, OpenBuffered)
	path := d.path
	block := bytes.Repeat([]byte{7}, extent.BlockSize)
	appendOne := func(z int) error { _, err := d.Append(z, [][]byte{block}); return err }
	if err := errors.Join(appendOne(0), d.Flush(), appendOne(0)); err != nil {
		t.Fatal(err)
	}
	mend := breakFile(t, d)
	for what, err := range map[string]error{"append": appendOne(0), "flush": d.Flush(), "first append": appendOne(1)} {
		if !errors.Is(err, zone.ErrMedia) || !errdefs.Is(err, errdefs.Device) {
			t.Errorf("%s: %v", what, err)
		}
	}
	r, _ := d.Report(0, 2)
	if r[0].WP != 3*extent.BlockSize {
		t.Errorf("a failed append must move the write pointer by what it reserved: %d", r[0].WP)
	}
	if r[1].WP != 0 || r[1].Condition != zone.Empty {
		t.Errorf("no file space for the zone must leave it alone: %+v", r[1])
	}
	mend()
	if n := d.Stats().Flushes; n != 1 {
		t.Errorf("a failed flush was counted: %d", n)
	}
	// Nothing is written in between: the flush must remember what the failed one owed.
	if err := errors.Join(d.Flush(), d.Close()); err != nil {
		t.Fatal(err)
	}
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if r, _ := d.Report(0, 1); r[0].WP != 3*extent.BlockSize {
		t.Errorf("the flush after a failed one lost the write pointer: %d", r[0].WP)
	}
}

// Every shape of buffers, direct and not: short writes at vector limits, bounced parts.
func TestVectors(t *testing.T) {
	for _, open := range []func(string) (*Device, error){Open, OpenBuffered} {
		d := newDevice(t, open)
		rng := rand.New(rand.NewPCG(1, 2))
		for _, c := range []struct{ blocks, piece int }{
			{1, 4096}, {3, 1}, {300, 4096}, {600, 700}, {600, 1 << 20}, {257, 1<<20 - 1}, {513, 12288},
		} {
			if err := d.Reset(0); err != nil {
				t.Fatal(err)
			}
			want := aligned(c.blocks * extent.BlockSize)
			for i := range want {
				want[i] = byte(rng.Uint32())
			}
			var bufs [][]byte
			for rest := want; len(rest) > 0; {
				n := min(c.piece, len(rest))
				bufs, rest = append(bufs, rest[:n]), rest[n:]
			}
			if _, err := d.Append(0, bufs); err != nil {
				t.Fatal(err)
			}
			for _, skew := range []int{0, 1} {
				p := aligned(len(want) + extent.BlockSize)[skew : skew+len(want)]
				if err := d.ReadAt(0, 0, p); err != nil || !bytes.Equal(p, want) {
					t.Errorf("%+v, buffered %v, skew %d: differs, %v", c, !d.direct, skew, err)
				}
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAligned(t *testing.T) {
	for _, n := range []int{0, extent.BlockSize, 3 * extent.BlockSize, bounceSize} {
		if b := aligned(n); len(b) != n || cap(b) != n || n > 0 && !isAligned(b) {
			t.Errorf("aligned(%d): %d bytes, aligned %v", n, len(b), isAligned(b))
		}
	}
	b := aligned(2 * extent.BlockSize)
	if isAligned(b[1:]) || isAligned(b[:100]) || isAligned(b[512:]) || !isAligned(b[extent.BlockSize:]) {
		t.Error("isAligned looks at begin and length")
	}
}

func TestLayout(t *testing.T) {
	for _, c := range []struct {
		zones, pages int
		data         int64
	}{
		{1, 1, 1 << 20}, {510, 1, 1 << 20}, {511, 2, 1 << 20}, {75_000, 148, 2 << 20},
	} {
		g := small
		g.Zones = c.zones
		l := layoutOf(g)
		if l.pages != c.pages || l.data != c.data {
			t.Errorf("%d zones: %d pages, data at %d", c.zones, l.pages, l.data)
		}
		if end := l.pageOffset(c.pages-1, 1) + pageSize; end > l.data {
			t.Errorf("%d zones: the table ends at %d, past the data", c.zones, end)
		}
		if l.zoneOffset(c.zones) != l.fileSize() {
			t.Errorf("%d zones: the file ends at %d", c.zones, l.fileSize())
		}
	}
}

func TestHeaderRoundTrip(t *testing.T) {
	for _, g := range []zone.Geometry{
		small,
		{Dialect: zone.ZNS, ZoneSize: 1 << 30, ZoneCapacity: 1 << 29, Zones: 9, MaxOpen: 3, MaxActive: 4, AppendLimit: 126976, LastZoneSize: 4096},
		{Dialect: zone.SMR, ZoneSize: 1 << 28, ZoneCapacity: 1 << 28, Zones: 75_000, Conventional: 700, MaxOpen: 128},
	} {
		b := make([]byte, headerSize)
		encodeHeader(layoutOf(g), b)
		l, err := decodeHeader(b)
		if err != nil || l != layoutOf(g) {
			t.Errorf("%+v became %+v, %v", g, l, err)
		}
		b[8] = 2
		le32(b[crcAt:], csum.Sum(b[:crcAt]))
		if _, err := decodeHeader(b); !errors.Is(err, errVersion) {
			t.Errorf("version 2: %v", err)
		}
	}
}

func le32(b []byte, v uint32) { b[0], b[1], b[2], b[3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24) }

func TestEntryRoundTrip(t *testing.T) {
	for _, e := range []entry{
		{}, {end: (1<<32 - 1) * extent.BlockSize, cond: zone.Closed, allocated: true},
		{end: 4096, cond: zone.Full, finished: true}, {cond: zone.Offline, finished: true, allocated: true},
	} {
		b := bytes.Repeat([]byte{0xff}, entrySize)
		putEntry(b, e)
		if got := getEntry(b); got != e {
			t.Errorf("%+v became %+v", e, got)
		}
	}
}

func FuzzDecodeHeader(f *testing.F) {
	b := make([]byte, headerSize)
	encodeHeader(layoutOf(small), b)
	f.Add(b, true)
	f.Add([]byte(magic), false)
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal && len(b) == headerSize {
			le32(b[crcAt:], csum.Sum(b[:crcAt]))
		}
		l, err := decodeHeader(b)
		if err != nil {
			return
		}
		again := make([]byte, headerSize)
		encodeHeader(l, again)
		if got, err := decodeHeader(again); err != nil || got != l {
			t.Errorf("%+v became %+v, %v", l, got, err)
		}
	})
}

// A page of any content is refused or restored to states that the zone rules know.
func FuzzTablePage(f *testing.F) {
	g := small
	g.MaxOpen, g.MaxActive = 1, 2
	page := make([]byte, pageSize)
	m, err := zone.NewMachine(g, nil)
	if err != nil {
		f.Fatal(err)
	}
	encodePage(page, layoutOf(g), m, nil, 0)
	f.Add(page)
	putEntry(page[pageHead:], entry{end: 8192, cond: zone.ImplicitOpen})
	f.Add(page)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < pageSize {
			return
		}
		sealPage(b, 0, 1)
		if seq, ok := openPage(b, 0); !ok || seq != 1 {
			t.Fatal("a sealed page does not open")
		}
		if _, ok := openPage(b, 1); ok {
			t.Fatal("a page opens under another number")
		}
		d := &Device{layout: layoutOf(g), zones: make([]zoneFile, g.Zones), table: make([]tablePage, 1)}
		d.m, _ = zone.NewMachine(g, d.changedLocked)
		if err := d.restorePage(b, 0); err != nil {
			if !errdefs.Is(err, errdefs.Corruption) {
				t.Fatalf("kind of %v", err)
			}
			return
		}
		if err := d.keepLimitLocked(); err != nil {
			t.Fatal(err)
		}
		active := 0
		for i := range g.Zones {
			z := d.m.Zone(i)
			if z.Condition.IsOpen() || z.WP < 0 || z.WP > z.Size {
				t.Fatalf("restored %+v", z)
			}
			if z.Condition.IsActive() {
				active++
			}
		}
		if active > g.MaxActive {
			t.Fatalf("%d zones active", active)
		}
	})
}
