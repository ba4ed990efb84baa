package array_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/array"
)

const blk = extent.BlockSize

// geometries have the least of what each dialect knows.
var geometries = map[string]zone.Geometry{
	"zns": {Dialect: zone.ZNS, ZoneSize: 16 * blk, ZoneCapacity: 12 * blk, Zones: 6},
	"smr": {Dialect: zone.SMR, ZoneSize: 16 * blk, ZoneCapacity: 16 * blk, Zones: 6},
}

// pattern returns n blocks that tell seeds apart.
func pattern(seed, n int) []byte {
	b := make([]byte, n*blk)
	for i := range b {
		b[i] = byte(seed + i/blk*7 + i%251)
	}
	return b
}

// blocks is the range of blocks [from, to).
func blocks(from, to int64) []extent.Range { return []extent.Range{{Off: from * blk, End: to * blk}} }

func vec(b []byte) [][]byte { return [][]byte{b} }

// When power goes from all members, every copy holds what was flushed and a prefix of what was
// written after that, to a length of its own. What New finds torn takes no writes, and is good after
// Finish.
func TestCopiesAfterCrashes(t *testing.T) {
	for name, g := range geometries {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			torn := 0
			for range 60 {
				torn += crashOnce(t, g, rng)
			}
			if torn == 0 {
				t.Error("no crash left copies that differ")
			}
		})
	}
}

// crashOnce answers how many sets were torn.
func crashOnce(t *testing.T, g zone.Geometry, rng *rand.Rand) (torn int) {
	t.Helper()
	var devs []*zone.Mem
	var members []array.Member
	for i := range 2 {
		d, err := zone.NewMem(g, zone.MemOptions{})
		if err != nil {
			t.Fatal(err)
		}
		devs, members = append(devs, d), append(members, array.Member{Number: i, Device: d})
	}
	a := newArray(t, members, mirrored(g.Zones))
	content := make([][]byte, g.Zones)
	flushed := make([]int, g.Zones)
	for range 40 {
		z := rng.IntN(g.Zones)
		if rng.IntN(8) == 0 {
			if err := a.Flush(); err != nil {
				t.Fatal(err)
			}
			for i := range content {
				flushed[i] = len(content[i])
			}
			continue
		}
		b := pattern(rng.IntN(256), 1+rng.IntN(3))
		if len(content[z])+len(b) > int(g.ZoneCapacity) {
			continue
		}
		if _, err := a.Append(z, vec(b)); err != nil {
			t.Fatal(err)
		}
		content[z] = append(content[z], b...)
	}
	for _, d := range devs {
		d.CutPower()
	}
	for _, d := range devs {
		d.PowerOn(rng)
	}
	a = newArray(t, members, mirrored(g.Zones))
	report, err := a.Report(0, -1)
	if err != nil {
		t.Fatal(err)
	}
	for z := range content {
		var wps [2]int64
		for i, d := range devs {
			r, err := d.Report(z, 1)
			if err != nil {
				t.Fatal(err)
			}
			wps[i] = r[0].WP
			if int(wps[i]) < flushed[z] || int(wps[i]) > len(content[z]) {
				t.Fatalf("copy %d of zone %d is %d long: %d were flushed and %d written", i, z, wps[i], flushed[z], len(content[z]))
			}
			if p := make([]byte, wps[i]); len(p) > 0 {
				if err := a.ReadCopy(z, i, 0, p); err != nil || !bytes.Equal(p, content[z][:len(p)]) {
					t.Fatalf("copy %d of zone %d is not what was written: %v", i, z, err)
				}
			}
		}
		differ := wps[0] != wps[1]
		if differ {
			torn++
		}
		if a.Torn(z) != differ || report[z].WP != max(wps[0], wps[1]) {
			t.Fatalf("zone %d with copies of %v: torn is %v, reported %+v", z, wps, a.Torn(z), report[z])
		}
		// The longest copy is read where the other has nothing.
		if p := make([]byte, report[z].WP); len(p) > 0 {
			if err := a.ReadAt(z, 0, p); err != nil || !bytes.Equal(p, content[z][:len(p)]) {
				t.Fatalf("zone %d: %v", z, err)
			}
		}
		finishTorn(t, a, z, differ)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	return torn
}

func finishTorn(t *testing.T, a *array.Array, z int, torn bool) {
	t.Helper()
	if !torn {
		return
	}
	if _, err := a.Append(z, vec(pattern(0, 1))); err == nil {
		t.Fatalf("torn zone %d took an append", z)
	}
	if err := a.Finish(z); err != nil || a.Torn(z) {
		t.Fatalf("zone %d after Finish (%v): torn is %v", z, err, a.Torn(z))
	}
	if r, err := a.Report(z, 1); err != nil || r[0].Condition != zone.Full {
		t.Fatalf("zone %d after Finish: %+v, %v", z, r, err)
	}
}
