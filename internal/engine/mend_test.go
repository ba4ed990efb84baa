package engine

import (
	"context"
	"testing"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/scrub"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/label"
)

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
