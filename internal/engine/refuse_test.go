package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/label"
)

// refused opens and expects a refusal with the words.
func (b *bench) refused(reason errdefs.Reason, words string) {
	b.t.Helper()
	e, err := Open(context.Background(), b.options())
	if err == nil {
		e.Close(context.Background())
		b.t.Fatalf("opened, where %q should refuse", words)
	}
	if errdefs.ReasonOf(err) != reason || !strings.Contains(err.Error(), words) {
		b.t.Fatalf("refused with %v (%s), want %q (%s)", err, errdefs.ReasonOf(err), words, reason)
	}
}

func newMem(t testing.TB, g zone.Geometry) *zone.Mem {
	t.Helper()
	m, err := zone.NewMem(g, zone.MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestWrongDevice gives the metadata devices that are not its own.
func TestWrongDevice(t *testing.T) {
	b, _, data := wpBench(t)
	b.closed()
	right := b.dev
	b.dev = newMem(t, wpZNS)
	b.refused(errdefs.ReasonDeviceMismatch, "no Shingle label")

	labelled := func(change func(*label.Label)) zone.Device {
		m := newMem(t, wpZNS)
		l, err := label.Read(right)
		if err != nil {
			t.Fatal(err)
		}
		change(&l)
		for _, before := range []uint64{1, 0} { // a copy has both of its labels
			w := l
			w.Generation -= before
			if err := label.Write(m, w); err != nil {
				t.Fatal(err)
			}
		}
		return m
	}
	for _, c := range []struct {
		words  string
		change func(*label.Label)
	}{
		{"belongs to store 09", func(l *label.Label) { l.Store = [16]byte{9} }},
		{"number 1 of its store", func(l *label.Label) { l.Device, l.Devices = 1, 2 }},
		{"another geometry", func(l *label.Label) { l.Zones++ }},
		{"another geometry", func(l *label.Label) { l.ZoneSize *= 2 }},
		{"another geometry", func(l *label.Label) { l.Dialect = zone.SMR }},
		{"the device is stale", func(l *label.Label) { l.Generation-- }},
		{"the metadata is stale", func(l *label.Label) { l.Generation += 2 }},
	} {
		b.dev = labelled(c.change)
		b.refused(errdefs.ReasonDeviceMismatch, c.words)
	}
	b.dev = right
	sameFile(t, b.open(), "dir/f", data)
}

// TestStaleMetadata puts an older copy of the metadata file back.
func TestStaleMetadata(t *testing.T) {
	b, _, data := wpBench(t)
	b.closed()
	old, err := os.ReadFile(b.meta)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		b.open()
		b.closed()
	}
	now, err := os.ReadFile(b.meta)
	if err != nil {
		t.Fatal(err)
	}
	restore := func(image []byte) {
		b.meta = filepath.Join(t.TempDir(), "meta.db")
		if err := os.WriteFile(b.meta, image, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	restore(old)
	b.refused(errdefs.ReasonDeviceMismatch, "the metadata is stale")
	restore(now)
	sameFile(t, b.open(), "dir/f", data)
	b.closed()
	// A crash between label and start counter leaves the label one ahead, however often.
	for range 3 {
		restore(now)
		e := b.open()
		sameFile(t, e, "dir/f", data)
		e.failWrites(fmt.Errorf("killed"))
		_ = e.Close(context.Background())
	}
}

func TestDamagedMetadata(t *testing.T) {
	b, _, data := wpBench(t)
	b.closed()
	good := b.meta
	b.meta = filepath.Join(t.TempDir(), "none.db")
	if _, err := Open(context.Background(), b.options()); err == nil {
		t.Fatal("opened without metadata")
	}
	b.meta = filepath.Join(t.TempDir(), "noise.db")
	if err := os.WriteFile(b.meta, noise(1, 100_000), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(context.Background(), b.options()); !errdefs.Is(err, errdefs.Corruption) {
		t.Fatalf("noise for metadata: %v", err)
	}
	b.meta = good
	sameFile(t, b.open(), "dir/f", data)
}

func format(dev zone.Device, dir string, force bool) error {
	return Format(FormatOptions{
		Devices: []Device{{Device: dev}}, MetadataPath: filepath.Join(dir, "meta.db"), UUID: [16]byte{7}, Now: time.Now, MetadataNoSync: true, Force: force,
	})
}

func TestFormatRefuses(t *testing.T) {
	smr := zone.Geometry{Dialect: zone.SMR, ZoneSize: 1 << 20, ZoneCapacity: 1 << 20, Zones: 10}
	for _, c := range []struct {
		name   string
		change func(*zone.Geometry)
		reason errdefs.Reason
		words  string
	}{
		{"two conventional zones", func(g *zone.Geometry) { g.Zones, g.Conventional = 2, 2 }, errdefs.ReasonDeviceTooSmall, "2 zones, all of them conventional; at least 3"},
		{"huge conventional zones", func(g *zone.Geometry) { g.ZoneSize, g.ZoneCapacity, g.Conventional = 16<<40, 16<<40, 10 }, "", "can be kept track of"},
		{"five sequential zones", func(g *zone.Geometry) { g.Conventional = 5 }, errdefs.ReasonDeviceTooSmall, "5 sequential zones; at least 6"},
		{"seven blocks", func(g *zone.Geometry) { g.ZoneSize, g.ZoneCapacity = 7<<12, 7<<12 }, errdefs.ReasonDeviceTooSmall, "28672 bytes; at least 32768"},
	} {
		g := smr
		c.change(&g)
		dir := t.TempDir()
		err := format(newMem(t, g), dir, false)
		if errdefs.ReasonOf(err) != c.reason || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: %v", c.name, err)
		}
		if _, err := os.Stat(filepath.Join(dir, "meta.db")); err == nil {
			t.Errorf("%s: metadata was made", c.name)
		}
	}
	m := newMem(t, smr)
	if err := format(m, t.TempDir(), false); err != nil {
		t.Fatal(err)
	}
	err := format(m, t.TempDir(), false)
	if errdefs.ReasonOf(err) != errdefs.ReasonInUse || !strings.Contains(err.Error(), "--force") {
		t.Errorf("a second format: %v", err)
	}
	if err := format(m, t.TempDir(), true); err != nil {
		t.Errorf("a second format by force: %v", err)
	}
}

// TestSmallestDevice stores what fits on the smallest device that format accepts.
func TestSmallestDevice(t *testing.T) {
	b := newFaultBench(t, zone.Geometry{Dialect: zone.ZNS, ZoneSize: 64 << 10, ZoneCapacity: 32 << 10, Zones: 6, MaxOpen: 1, MaxActive: 1}, Options{})
	e := b.open()
	total := e.Usage().Total
	if total != 2*7*extent.BlockSize {
		t.Fatalf("the total is %d", total)
	}
	data := noise(1, int(total))
	for range 3 {
		put(t, e, "f", data)
		sameFile(t, e, "f", data)
		if _, err := tryPut(e, "g", noise(2, 10_000)); !errdefs.Is(err, errdefs.NoSpace) {
			t.Fatalf("more than there is: %v", err)
		}
		if _, err := e.Delete(context.Background(), DeleteRequest{Name: "f"}); err != nil {
			t.Fatal(err)
		}
		e = b.reopen()
	}
	b.checkLimits()
}
