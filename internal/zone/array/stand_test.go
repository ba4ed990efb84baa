package array_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/shingle-store/shingle/internal/zone"
	"github.com/shingle-store/shingle/internal/zone/array"
	"github.com/shingle-store/shingle/internal/zone/faultdev"
)

// stand is an array of memory devices with faults.
type stand struct {
	*testing.T
	*array.Array
	g    zone.Geometry
	mems []*zone.Mem
	devs []*faultdev.Device

	mu   sync.Mutex
	gone []int                 // members that OnFail told of
	told map[int][]array.Place // by zone, the places when OnStale told of it
}

// newStand makes an array of so many members of the geometry.
func newStand(t *testing.T, g zone.Geometry, members int, sets [][]array.Place) *stand {
	t.Helper()
	b := &stand{T: t, g: g}
	var ms []array.Member
	for i := range members {
		d, err := zone.NewMem(g, zone.MemOptions{})
		if err != nil {
			t.Fatal(err)
		}
		b.mems = append(b.mems, d)
		b.devs = append(b.devs, faultdev.New(d, uint64(i)))
		ms = append(ms, array.Member{Number: i, Device: b.devs[i]})
	}
	b.Array = newArray(t, ms, sets)
	b.told = map[int][]array.Place{}
	b.OnStale(func(z int) {
		places := b.Places(z) // no lock is held
		b.mu.Lock()
		defer b.mu.Unlock()
		b.told[z] = places
	})
	b.OnFail(func(n int, err error) {
		if err == nil {
			t.Errorf("device %d is taken out for no reason", n)
		}
		_ = b.Members() // no lock is held
		b.mu.Lock()
		defer b.mu.Unlock()
		b.gone = append(b.gone, n)
	})
	return b
}

func (b *stand) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("unexpected error: %v", err)
	}
}

// add appends blocks filled with the seed and checks where they land.
func (b *stand) add(z, at, blocks, seed int) {
	b.Helper()
	off, err := b.Append(z, vec(pattern(seed, blocks)))
	if err != nil || off != int64(at)*blk {
		b.Fatalf("append to zone %d landed at %d (%v), want block %d", z, off, err, at)
	}
}

// holds checks what is read of a zone from a block on, and that the copy wanted answers, any if -1.
func (b *stand) holds(z, at, blocks, seed, copy int) {
	b.Helper()
	p := make([]byte, blocks*blk)
	got, err := b.ReadFrom(z, int64(at)*blk, p)
	if err != nil || !slices.Equal(p, pattern(seed, blocks)) || copy >= 0 && got != copy {
		b.Fatalf("zone %d from block %d is not what was written, from copy %d, want %d: %v", z, at, got, copy, err)
	}
}

// stale checks which places of a zone are.
func (b *stand) stale(z int, want ...bool) {
	b.Helper()
	var got []bool
	for _, p := range b.Places(z) {
		got = append(got, p.Stale)
	}
	if !slices.Equal(got, want) {
		b.Fatalf("stale places of zone %d are %v, want %v", z, got, want)
	}
}

// heard checks that OnStale was called for these zones, with the places as they are, and no others.
func (b *stand) heard(zones ...int) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.told) != len(zones) {
		b.Fatalf("told of stale places in %v, want them in %v", b.told, zones)
	}
	for _, z := range zones {
		if !slices.Equal(b.told[z], b.Places(z)) {
			b.Fatalf("told of %v in zone %d, which has %v", b.told[z], z, b.Places(z))
		}
	}
}

// left checks which members were taken out, as OnFail and Members say it.
func (b *stand) left(want ...int) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	var failed []int
	for _, m := range b.Members() {
		if m.Failed != (m.Err != nil) || m.Failed == m.Present {
			b.Fatalf("member %+v", m)
		}
		if m.Failed {
			failed = append(failed, m.Number)
		}
		if (b.Member(m.Number) == nil) == m.Present {
			b.Fatalf("Member(%d) is %v", m.Number, b.Member(m.Number))
		}
	}
	if !slices.Equal(b.gone, want) || !slices.Equal(failed, want) {
		b.Fatalf("told of %v and say so of %v, want %v", b.gone, failed, want)
	}
}

// everywhere runs f on both dialects.
func everywhere(t *testing.T, f func(t *testing.T, g zone.Geometry)) {
	for name, g := range geometries {
		t.Run(name, func(t *testing.T) { f(t, g) })
	}
}
