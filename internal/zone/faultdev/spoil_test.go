package faultdev_test

import (
	"bytes"
	"testing"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
)

// A spoiled write is reported as good and moves the write pointer; only its content is wrong, in
// the places that Spoiled names and nowhere else.
func TestSpoiledAppends(t *testing.T) {
	place := func(z int, off, n int64) faultdev.Place {
		return faultdev.Place{Zone: z, Range: extent.Range{Off: off * blk, End: (off + n) * blk}}
	}
	for _, c := range []struct {
		name string
		how  faultdev.Spoil
		bad  func(z, block int) bool // of two appends of 4 blocks, to zone 0 and then zone 1
	}{
		{"lost", faultdev.Lost, func(z, b int) bool { return z == 1 }},
		{"misdirected", faultdev.Misdirected, func(z, b int) bool { return z == 1 || b >= 1 && b < 3 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, _ := newDevice(t)
			d.SpoilAppend(1, 1, c.how, place(0, 1, 2))
			for z := range 2 {
				if err := appendBlocks(d, z, 4); err != nil {
					t.Fatal(err)
				}
				if wp(t, d, z) != 4 {
					t.Fatalf("write pointer of zone %d at %d", z, wp(t, d, z))
				}
			}
			marked := map[faultdev.Place]bool{}
			for _, p := range d.Spoiled() {
				for off := p.Off; off < p.End; off += blk {
					marked[place(p.Zone, off/blk, 1)] = true
				}
			}
			for z := range 2 {
				for b := range 4 {
					got := make([]byte, blk)
					if err := d.ReadAt(z, int64(b)*blk, got); err != nil {
						t.Fatal(err)
					}
					want := bytes.Repeat([]byte{byte(min(b+1, 2))}, blk)
					if bad := !bytes.Equal(got, want); bad != c.bad(z, b) || bad != marked[place(z, int64(b), 1)] {
						t.Errorf("zone %d block %d: bad %t, named %t", z, b, bad, marked[place(z, int64(b), 1)])
					}
				}
			}
			if err := appendBlocks(d, 1, 4); err != nil || len(d.Spoiled()) > 2 {
				t.Fatalf("the fault is met twice: %v, %v", err, d.Spoiled())
			}
		})
	}
}

func TestTornAppendKeepsItsBeginning(t *testing.T) {
	torn := map[int64]bool{}
	for seed := range uint64(40) {
		m, err := zone.NewMem(geo, zone.MemOptions{})
		if err != nil {
			t.Fatal(err)
		}
		d := faultdev.New(m, seed)
		d.SpoilAppend(faultdev.AnyZone, 1, faultdev.Torn, faultdev.Place{})
		if err := appendBlocks(d, 3, 4); err != nil {
			t.Fatal(err)
		}
		p := d.Spoiled()
		if len(p) != 1 || p[0].Zone != 3 || p[0].End != 4*blk {
			t.Fatalf("spoiled: %v", p)
		}
		torn[p[0].Off/blk] = true
	}
	if len(torn) < 4 {
		t.Fatalf("40 seeds tear at %v only", torn)
	}
}
