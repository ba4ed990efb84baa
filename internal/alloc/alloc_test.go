package alloc

import (
	"errors"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
)

const blk = 4096

// uniform returns n empty block groups of the given capacity in blocks.
func uniform(n int, blocks int64) []BlockGroup {
	out := make([]BlockGroup, n)
	for i := range out {
		out[i] = BlockGroup{Slot: uint32(i), Zone: i + 2, Capacity: blocks * blk}
	}
	return out
}

func mustNew(t testing.TB, o Options) *Allocator {
	t.Helper()
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// grant allocates n blocks for data, opening what is needed.
func grant(t testing.TB, a *Allocator, c Class, blocks int64) Grant {
	t.Helper()
	for range 3 {
		g, out := a.Allocate(c, blocks*blk)
		switch out {
		case Granted:
			return g
		case NeedsOpen:
			b, ok := a.BeginOpen(c)
			if !ok {
				t.Fatal("NeedsOpen, but BeginOpen refuses")
			}
			a.FinishOpen(b.Slot, true)
		default:
			t.Fatalf("allocate: %v", out)
		}
	}
	t.Fatal("no grant after opening")
	return Grant{}
}

func TestNewRefuses(t *testing.T) {
	ok := func() Options { return Options{BlockGroups: uniform(6, 8), Reserve: 14 * blk} }
	for _, c := range []struct {
		name string
		edit func(*Options)
		kind errdefs.Kind
	}{
		{"negative limit", func(o *Options) { o.MaxActive = -1 }, errdefs.InvalidArgument},
		{"negative reserve", func(o *Options) { o.Reserve = -blk }, errdefs.InvalidArgument},
		{"reserve not in blocks", func(o *Options) { o.Reserve = 5 }, errdefs.InvalidArgument},
		{"nothing beside the reserve", func(o *Options) { o.Reserve = 42 * blk }, errdefs.Precondition},
		{"no block groups", func(o *Options) { o.BlockGroups, o.Reserve = nil, 0 }, errdefs.Precondition},
		{"gap in slots", func(o *Options) { o.BlockGroups[3].Slot = 4 }, errdefs.Corruption},
		{"only a header", func(o *Options) { o.BlockGroups[3].Capacity = blk }, errdefs.Corruption},
		{"capacity not in blocks", func(o *Options) { o.BlockGroups[3].Capacity++ }, errdefs.Corruption},
		{"offset not in blocks", func(o *Options) { o.BlockGroups[3].AllocOffset = 1 }, errdefs.Corruption},
		{"live not in blocks", func(o *Options) {
			o.BlockGroups[3] = BlockGroup{Slot: 3, Capacity: 8 * blk, State: Full, Live: 1}
		}, errdefs.Corruption},
		{"live past the capacity", func(o *Options) {
			o.BlockGroups[3] = BlockGroup{Slot: 3, Capacity: 8 * blk, State: Full, Live: 8 * blk}
		}, errdefs.Corruption},
		{"negative live", func(o *Options) { o.BlockGroups[3].Live = -blk }, errdefs.Corruption},
		{"offset past the capacity", func(o *Options) { o.BlockGroups[3].AllocOffset = 9 * blk }, errdefs.Corruption},
		{"negative offset", func(o *Options) { o.BlockGroups[3].AllocOffset = -blk }, errdefs.Corruption},
		{"empty but live", func(o *Options) { o.BlockGroups[3].Live = blk }, errdefs.Corruption},
		{"unknown class", func(o *Options) { o.BlockGroups[3].Class = 4 }, errdefs.Corruption},
		{"unknown state", func(o *Options) { o.BlockGroups[3].State = 7 }, errdefs.Corruption},
		{"resetting", func(o *Options) { o.BlockGroups[3].State = Resetting }, errdefs.Corruption},
		{"active without a class", func(o *Options) {
			o.BlockGroups[3].State, o.BlockGroups[3].AllocOffset = Active, blk
		}, errdefs.Corruption},
		{"active without a header", func(o *Options) {
			o.BlockGroups[3].State, o.BlockGroups[3].Class = Active, ClassData
		}, errdefs.Corruption},
		{"live past the offset", func(o *Options) {
			o.BlockGroups[3] = BlockGroup{Slot: 3, Capacity: 8 * blk, State: Active, Class: ClassData, AllocOffset: 2 * blk, Live: 2 * blk}
		}, errdefs.Corruption},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := ok()
			if _, err := New(o); err != nil {
				t.Fatal(err)
			}
			c.edit(&o)
			_, err := New(o)
			if !errdefs.Is(err, c.kind) {
				t.Fatalf("got %v, want kind %v", err, c.kind)
			}
			var e *errdefs.Error
			if !errors.As(err, &e) || e.Op != "alloc.New" {
				t.Fatalf("no op in %#v", err)
			}
		})
	}
}

func TestReserveErrors(t *testing.T) {
	a := mustNew(t, Options{BlockGroups: uniform(6, 8), Reserve: 14 * blk, MaxActive: 3})
	for _, n := range []int64{-blk, 1, blk + 1} {
		if err := a.Reserve(n); !errdefs.Is(err, errdefs.InvalidArgument) {
			t.Errorf("Reserve(%d) = %v", n, err)
		}
	}
	if err := a.Reserve(0); err != nil {
		t.Error(err)
	}
	err := a.Reserve(29 * blk)
	if !errdefs.Is(err, errdefs.NoSpace) || errdefs.ReasonOf(err) != errdefs.ReasonNoSpace {
		t.Fatalf("got %v", err)
	}
	var e *errdefs.Error
	errors.As(err, &e)
	want := map[string]string{"free": "114688", "reserved": "0", "zone_unusable": "0", "reclaimable": "0", "active": "0", "max_active": "3"}
	for k, v := range want {
		if e.Meta[k] != v {
			t.Errorf("meta %s = %q, want %q", k, e.Meta[k], v)
		}
	}
	if err := a.Reserve(28 * blk); err != nil {
		t.Fatal(err)
	}
	a.Unreserve(28 * blk)
	if u := a.Usage(); u.Free != u.Total || u.Reserved != 0 {
		t.Errorf("%+v", u)
	}
}
