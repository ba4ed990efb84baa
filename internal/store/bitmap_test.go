package store

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// newConventionalStore makes a store of two conventional block groups of the zone size and one
// sequential one, and collects what its commits free.
func newConventionalStore(t fataler, path string, zoneSize, capacity int64) (*Store, *[]Run) {
	t.Helper()
	in := testInit()
	in.Superblock.ZoneSize, in.Superblock.Incompatible = zoneSize, FeatureConventional
	in.Devices[0].ZoneSize = zoneSize
	in.BlockGroups = in.BlockGroups[:3]
	for i := range in.BlockGroups {
		g := &in.BlockGroups[i]
		g.Capacity = capacity
		if i < 2 {
			g.Kind = KindConventional
		}
	}
	if err := Create(path, in, testOptions); err != nil {
		t.Fatalf("create: %v", err)
	}
	freed := &[]Run{}
	o := testOptions
	o.Freed = func(r []Run) { *freed = append(*freed, r...) }
	s, err := Open(path, o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s, freed
}

func runsText(runs []Run) string {
	sort.Slice(runs, func(i, j int) bool {
		return runs[i].Slot < runs[j].Slot || runs[i].Slot == runs[j].Slot && runs[i].Off < runs[j].Off
	})
	var b strings.Builder
	for _, r := range runs {
		fmt.Fprintf(&b, "%d:%d+%d ", r.Slot, r.Off/extent.BlockSize, r.Len/extent.BlockSize)
	}
	return strings.TrimSpace(b.String())
}

// bitmapText shows the set blocks of a group as ranges.
func bitmapText(t *testing.T, s *Store, slot uint32) string {
	t.Helper()
	var out []string
	view(t, s, func(tx *Tx) error {
		g, err := tx.BlockGroup(slot)
		if err != nil {
			return err
		}
		words, err := tx.Bitmap(g)
		if err != nil {
			return err
		}
		derived, err := tx.DeriveBitmap(g)
		if err != nil {
			return err
		}
		if !slices.Equal(words, derived) {
			t.Fatalf("the bitmap of %d is not what its extents say", slot)
		}
		for i := range len(words)*64 + 1 {
			on := i < len(words)*64 && words[i/64]>>(i%64)&1 != 0
			was := i > 0 && words[(i-1)/64]>>((i-1)%64)&1 != 0
			if on && !was {
				out = append(out, fmt.Sprint(i, "-"))
			} else if was && !on {
				out[len(out)-1] += fmt.Sprint(i)
			}
		}
		return nil
	})
	return strings.Join(out, " ")
}

// The bits follow the extents through every kind of change, over the borders of chunks, and each
// commit says what it freed: blocks that came and went in one transaction too, blocks that an extent
// was split around not, and nothing of sequential block groups.
func TestBitmapFollowsExtents(t *testing.T) {
	const zoneSize = 3 * chunkSpan
	s, freed := newConventionalStore(t, filepath.Join(t.TempDir(), "meta"), zoneSize, zoneSize-5*extent.BlockSize)
	defer s.Close()
	at := func(slot, block int64) extent.Addr { return extent.Addr(slot*zoneSize + block*extent.BlockSize) }
	const bs = extent.BlockSize
	for _, c := range []struct {
		name        string
		do          func(tx *Tx) error
		freed       string
		first, next string // bitmaps of groups 0 and 1
	}{
		{"files", func(tx *Tx) error {
			return errors.Join(addFile(tx, 10, "a"), addFile(tx, 11, "b"), addFile(tx, 12, "c"))
		}, "", "", ""},
		{"an extent over a border of chunks", func(tx *Tx) error {
			_, _, err := write(tx, 10, 0, rawExtent(at(0, chunkBlocks-3), 8*bs))
			return err
		}, "", "8189-8197", ""},
		{"the first block, and the last of the group", func(tx *Tx) error {
			_, _, err := write(tx, 11, 0, rawExtent(at(0, 0), bs), rawExtent(at(0, 3*chunkBlocks-6), bs))
			return err
		}, "", "0-1 8189-8197 24570-24571", ""},
		{"a hole in the middle", func(tx *Tx) error {
			_, err := drop(tx, 10, 2*bs, 5*bs)
			return err
		}, "0:8191+3", "0-1 8189-8191 8194-8197 24570-24571", ""},
		{"an overwrite elsewhere", func(tx *Tx) error {
			_, _, err := write(tx, 10, 5*bs, rawExtent(at(1, 7), 2*bs))
			return err
		}, "0:8194+2", "0-1 8189-8191 8196-8197 24570-24571", "7-9"},
		{"what comes and goes in one transaction", func(tx *Tx) error {
			if _, _, err := write(tx, 12, 0, rawExtent(at(1, 100), 3*bs)); err != nil {
				return err
			}
			_, _, err := write(tx, 12, 0, rawExtent(at(1, 200), 3*bs))
			return err
		}, "1:100+3", "0-1 8189-8191 8196-8197 24570-24571", "7-9 200-203"},
		{"a block written anew where one was freed", func(tx *Tx) error {
			_, _, err := write(tx, 12, 0, rawExtent(at(0, 8192), bs))
			return err
		}, "1:200+1", "0-1 8189-8191 8192-8193 8196-8197 24570-24571", "7-9 201-203"},
		{"a clone", func(tx *Tx) error { return clone(tx, 10, 12, 0, 2*bs, 8*bs) },
			"", "0-1 8189-8191 8192-8193 8196-8197 24570-24571", "7-9 201-203"},
		{"of a shared extent one side goes", func(tx *Tx) error {
			_, err := drop(tx, 10, 0, 2*bs)
			return err
		}, "", "0-1 8189-8191 8192-8193 8196-8197 24570-24571", "7-9 201-203"},
		{"and then the other", func(tx *Tx) error {
			_, err := drop(tx, 12, 0, 20*bs)
			return err
		}, "0:8189+2 0:8192+1 1:201+2", "0-1 8196-8197 24570-24571", "7-9"},
		{"a sequential group has none", func(tx *Tx) error {
			if _, _, err := write(tx, 12, 0, rawExtent(at(2, 1), 4*bs)); err != nil {
				return err
			}
			_, err := drop(tx, 12, 0, 2*bs)
			return err
		}, "", "0-1 8196-8197 24570-24571", "7-9"},
		{"all that is left", func(tx *Tx) error {
			_, err := drop(tx, 10, 0, 1<<20)
			_, err2 := drop(tx, 11, 0, 1<<20)
			return errors.Join(err, err2)
		}, "0:0+1 0:8196+1 0:24570+1 1:7+2", "", ""},
	} {
		*freed = nil
		update(t, s, c.do)
		wantSound(t, s)
		if got := runsText(*freed); got != c.freed {
			t.Fatalf("%s: freed %q, want %q", c.name, got, c.freed)
		}
		if got := [2]string{bitmapText(t, s, 0), bitmapText(t, s, 1)}; got != [2]string{c.first, c.next} {
			t.Fatalf("%s: bitmaps %q, want %q and %q", c.name, got, c.first, c.next)
		}
	}
	view(t, s, func(tx *Tx) error {
		if k, _, err := tx.cursor(bBitmaps).seek(nil); k != nil || err != nil {
			t.Errorf("a record is left: %x, %v", k, err)
		}
		for slot := range uint32(3) {
			if g, err := tx.BlockGroup(slot); err != nil || g.AllocOffset > 0 != (slot == 2) {
				t.Errorf("block group %d: %+v, %v", slot, g, err)
			}
		}
		return nil
	})
}

// What did not become durable frees nothing.
func TestNothingIsFreedWithoutACommit(t *testing.T) {
	s, freed := newConventionalStore(t, filepath.Join(t.TempDir(), "meta"), testZone, testZone)
	defer s.Close()
	update(t, s, func(tx *Tx) error {
		if err := addFile(tx, 10, "a"); err != nil {
			return err
		}
		_, _, err := write(tx, 10, 0, rawExtent(0, 3*extent.BlockSize))
		return err
	})
	failed := errors.New("failed")
	err := s.Update(func(tx *Tx) error {
		if _, err := drop(tx, 10, 0, extent.MaxFileSize); err != nil {
			return err
		}
		return failed
	})
	if !errors.Is(err, failed) || len(*freed) != 0 {
		t.Errorf("%v, freed %v", err, *freed)
	}
	if got := bitmapText(t, s, 0); got != "0-3" {
		t.Errorf("bitmap %q", got)
	}
}

// Damage: Bitmap says so, the extents give the truth, PutBitmap restores it, and a delete goes on in
// the meantime.
func TestDamagedBitmap(t *testing.T) {
	const zoneSize = 2 * chunkSpan
	for _, c := range []struct {
		name   string
		damage func(tx *Tx) error
	}{
		{"a rotten record", func(tx *Tx) error {
			v := slices.Clone(tx.bucket(bBitmaps).Get(chunkKey(0, 1)))
			v[3] ^= 4
			return tx.bucket(bBitmaps).Put(chunkKey(0, 1), v)
		}},
		{"a record of another wire type", func(tx *Tx) error { return tx.put(bBitmaps, chunkKey(0, 1), putUint(nil, 1, 5)) }},
		{"a missing record", func(tx *Tx) error { return tx.del(bBitmaps, chunkKey(0, 1)) }},
		{"a block too many", func(tx *Tx) error {
			return tx.put(bBitmaps, chunkKey(0, 0), putBytes(nil, 1, []byte{0xff, 0xff, 0xff}))
		}},
		{"a block past the end", func(tx *Tx) error {
			b := make([]byte, chunkBytes)
			b[chunkBytes-1] = 0x80
			return tx.put(bBitmaps, chunkKey(0, 1), putBytes(nil, 1, b))
		}},
		{"a chunk past the end", func(tx *Tx) error { return tx.put(bBitmaps, chunkKey(0, 9), putBytes(nil, 1, []byte{1})) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, freed := newConventionalStore(t, filepath.Join(t.TempDir(), "meta"), zoneSize, zoneSize-extent.BlockSize)
			defer s.Close()
			update(t, s, func(tx *Tx) error {
				if err := addFile(tx, 10, "a"); err != nil {
					return err
				}
				_, _, err := write(tx, 10, 0, rawExtent(extent.Addr(chunkSpan-8*extent.BlockSize), 20*extent.BlockSize))
				return err
			})
			update(t, s, c.damage)
			if len(problems(t, s)) == 0 {
				t.Error("check finds nothing")
			}
			var g BlockGroup
			var derived []uint64
			view(t, s, func(tx *Tx) (err error) {
				if g, err = tx.BlockGroup(0); err != nil {
					return err
				}
				if _, err := tx.Bitmap(g); !errdefs.Is(err, errdefs.Corruption) {
					t.Errorf("Bitmap: %v", err)
				}
				derived, err = tx.DeriveBitmap(g)
				return err
			})
			update(t, s, func(tx *Tx) error { return tx.PutBitmap(0, derived) })
			wantSound(t, s)
			if got := bitmapText(t, s, 0); got != "8184-8204" {
				t.Errorf("mended: %q", got)
			}
			update(t, s, c.damage)
			update(t, s, func(tx *Tx) error { _, err := drop(tx, 10, 0, extent.MaxFileSize); return err })
			if got := runsText(*freed); got != "0:8184+20" {
				t.Errorf("freed %q", got)
			}
		})
	}
}

// Live bytes that neither the bitmap nor the extents add up to are beyond mending.
func TestDeriveBitmapRefusesWhatDoesNotAddUp(t *testing.T) {
	s, _ := newConventionalStore(t, filepath.Join(t.TempDir(), "meta"), testZone, testZone)
	defer s.Close()
	view(t, s, func(tx *Tx) error {
		g, err := tx.BlockGroup(1)
		g.LiveBytes = extent.BlockSize
		if _, err := tx.DeriveBitmap(g); !errdefs.Is(err, errdefs.Corruption) {
			t.Errorf("%v", err)
		}
		return err
	})
}

// TestCheckFindsBitmaps: every way a bitmap can differ is found.
func TestCheckFindsBitmaps(t *testing.T) {
	const zoneSize = 2 * chunkSpan
	bit := func(bits ...int) []byte {
		b := make([]byte, chunkBytes)
		for _, i := range bits {
			b[i/8] |= 1 << (i % 8)
		}
		return putBytes(nil, 1, b)
	}
	for _, c := range []struct {
		name  string
		spoil func(tx *Tx) error
		want  string
	}{
		{"free though held", func(tx *Tx) error { return tx.put(bBitmaps, chunkKey(0, 1), bit(2)) },
			"bitmaps 0000000000000001: 1 blocks that extents hold are marked free, 0 that none holds as in use; the first is block 3 of the chunk"},
		{"in use though free", func(tx *Tx) error { return tx.put(bBitmaps, chunkKey(0, 1), bit(2, 3, 4, 9)) },
			"bitmaps 0000000000000001: 0 blocks that extents hold are marked free, 2 that none holds as in use; the first is block 4 of the chunk"},
		{"both", func(tx *Tx) error { return tx.put(bBitmaps, chunkKey(0, 1), bit(1)) },
			"bitmaps 0000000000000001: 2 blocks that extents hold are marked free, 1 that none holds as in use; the first is block 1 of the chunk"},
		{"missing", func(tx *Tx) error { return tx.del(bBitmaps, chunkKey(0, 1)) },
			"bitmaps 0000000000000001: 2 blocks that extents hold are marked free, 0 that none holds as in use; the first is block 2 of the chunk"},
		{"a chunk before, without extents", func(tx *Tx) error { return tx.put(bBitmaps, chunkKey(0, 0), bit(0)) },
			"bitmaps 0000000000000000: 0 blocks that extents hold are marked free, 1 that none holds as in use; the first is block 0 of the chunk"},
		{"a chunk after", func(tx *Tx) error { return tx.put(bBitmaps, chunkKey(1, 1), bit(7)) },
			"bitmaps 0000000100000001: 0 blocks that extents hold are marked free, 1 that none holds as in use; the first is block 7 of the chunk"},
		{"of a sequential group", func(tx *Tx) error { return tx.put(bBitmaps, chunkKey(2, 0), bit(7)) },
			"bitmaps 0000000200000000: block group 2 is not there or not conventional"},
		{"of no group", func(tx *Tx) error { return tx.put(bBitmaps, chunkKey(77, 0), bit(7)) },
			"bitmaps 0000004d00000000: block group 77 is not there or not conventional"},
		{"a key that is none", func(tx *Tx) error { return tx.put(bBitmaps, []byte("abc"), bit(7)) },
			"bitmaps 616263: malformed record"},
		{"a bitmap too long", func(tx *Tx) error {
			return tx.put(bBitmaps, chunkKey(1, 0), putBytes(nil, 1, make([]byte, chunkBytes+1)))
		}, "bitmaps 0000000100000000: malformed record"},
		{"alloc_offset", func(tx *Tx) error {
			g, err := tx.BlockGroup(1)
			g.AllocOffset = 4096
			return errors.Join(err, tx.PutBlockGroup(g))
		}, "block_groups 00000001: a conventional block group has the alloc_offset 4096"},
		{"an unknown kind", func(tx *Tx) error {
			g, err := tx.BlockGroup(1)
			g.Kind = 3
			return errors.Join(err, tx.PutBlockGroup(g))
		}, "block_groups 00000001: kind 3 is not known, or not one that the store's features allow"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _ := newConventionalStore(t, filepath.Join(t.TempDir(), "meta"), zoneSize, zoneSize)
			defer s.Close()
			update(t, s, func(tx *Tx) error {
				if err := addFile(tx, 10, "a"); err != nil {
					return err
				}
				_, _, err := write(tx, 10, 0, rawExtent(extent.Addr(chunkSpan+2*extent.BlockSize), 2*extent.BlockSize))
				return err
			})
			wantSound(t, s)
			update(t, s, c.spoil)
			if ps := problems(t, s); len(ps) != 1 || ps[0] != c.want {
				t.Errorf("check says %q, want %q", ps, c.want)
			}
		})
	}
}

func TestChunkCodec(t *testing.T) {
	var b chunkBits
	if p := b.encode(); len(p) != 0 {
		t.Errorf("an empty chunk takes %d bytes", len(p))
	}
	b.mark(0, 1, true)
	b.mark(9, 12, true)
	if got := hex.EncodeToString(b.encode()); got != "0a02010e" {
		t.Errorf("%s", got) // field 1, 2 bytes: bit 0, bits 9 to 11
	}
	rng := rand.New(rand.NewSource(1))
	for range 50 {
		for i := range b {
			b[i] = rng.Uint64() & rng.Uint64()
			if i > rng.Intn(chunkWords) {
				b[i] = 0
			}
		}
		var got chunkBits
		if err := got.decode(append(b.encode(), 0xC5, 0x3E, 1, 2, 3, 4)); err != nil || got != b { // a newer field
			t.Fatalf("%v: %s", err, cmp.Diff(b, got))
		}
	}
	for _, p := range [][]byte{putUint(nil, 1, 3), putBytes(nil, 1, make([]byte, chunkBytes+1)), {0x0a, 5, 1}} {
		if err := b.decode(p); err == nil {
			t.Errorf("%x is decoded", p)
		}
	}
}

func FuzzBitmap(f *testing.F) {
	f.Add([]byte("\x0a\x02\x01\x0e"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, p []byte) {
		var b, again chunkBits
		if b.decode(p) != nil {
			return
		}
		if err := again.decode(b.encode()); err != nil || again != b {
			t.Errorf("%x does not survive: %v", p, err)
		}
	})
}

// TestConventionalAgainstByteModel runs the byte model of the extents over conventional block
// groups: Check holds the bitmaps against the extents after each step, and what the commits freed,
// taken from what was ever placed, is what is in use.
func TestConventionalAgainstByteModel(t *testing.T) {
	dir := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		path := filepath.Join(dir, fmt.Sprint("meta", run))
		in := testInit()
		in.Superblock.Incompatible = FeatureConventional
		for i := range in.BlockGroups {
			in.BlockGroups[i].Kind = KindConventional
		}
		if err := Create(path, in, testOptions); err != nil {
			t.Fatalf("create: %v", err)
		}
		free := map[extent.Addr]bool{}
		o := testOptions
		o.Freed = func(runs []Run) {
			for _, r := range runs {
				for off := r.Off; off < r.Off+r.Len; off += extent.BlockSize {
					a := extent.Addr(int64(r.Slot)*testZone + off)
					if free[a] {
						t.Fatalf("block %#x is freed twice", uint64(a))
					}
					free[a] = true
				}
			}
		}
		s, err := Open(path, o)
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		m := &extentModel{s: s, units: map[extent.Addr]extent.Frame{}, next: extent.BlockSize}
		defer m.s.Close()
		m.addFiles(t)
		t.Repeat(map[string]func(*rapid.T){"insert": m.insert, "cut": m.cut, "clone": m.clone, "cloneRange": m.cloneRange, "": func(t *rapid.T) {
			m.check(t)
			used := map[extent.Addr]bool{}
			for i := range m.files {
				for _, c := range m.files[i] {
					for b := range m.units[c.unit].Blocks() {
						used[c.unit+extent.Addr(b*extent.BlockSize)] = true
					}
				}
			}
			for a, f := range m.units {
				for b := range f.Blocks() {
					if at := a + extent.Addr(b*extent.BlockSize); used[at] == free[at] {
						t.Fatalf("block %#x: in use %v, reported as freed %v", uint64(at), used[at], free[at])
					}
				}
			}
		}})
	})
}

// An engine that does not know the flag must refuse the store.
func TestConventionalIsIncompatible(t *testing.T) {
	s := Superblock{FormatVersion: FormatVersion, Incompatible: FeatureConventional}
	if ro, err := s.features(); ro || err != nil {
		t.Errorf("%v %v", ro, err)
	}
	s.Incompatible |= 1 << 1
	if _, err := s.features(); errdefs.ReasonOf(err) != errdefs.ReasonUnknownFeature {
		t.Errorf("%v", err)
	}
}
