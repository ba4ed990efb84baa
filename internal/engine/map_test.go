package engine

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/store"
	"github.com/shingle-store/shingle/internal/zone/array"
)

// mapAll maps a file, page entries a page, and holds the pages together.
func mapAll(t testing.TB, e *Engine, name string, page int) []MapExtent {
	t.Helper()
	var all []MapExtent
	for at := int64(0); at >= 0; {
		f, list, next, err := e.Map(context.Background(), Ref{Name: name}, at, page)
		if err != nil {
			t.Fatal(err)
		}
		if f.Name != name || len(list) > page || next >= 0 && len(list) == 0 {
			t.Fatalf("a page of %d extents of %q, next %d", len(list), f.Name, next)
		}
		for _, x := range list {
			if x.Offset != at || x.Length <= 0 {
				t.Fatalf("%+v comes at %d", x, at)
			}
			at += x.Length
		}
		if all = append(all, list...); next < 0 {
			if at != f.Size {
				t.Fatalf("the map ends at %d, the file at %d", at, f.Size)
			}
			break
		} else if next != at {
			t.Fatalf("the page ends at %d, the next begins at %d", at, next)
		}
	}
	return all
}

// shape is a map in words: kind, length, and what sharing there is.
func shape(list []MapExtent) string {
	var s []string
	for _, x := range list {
		w := fmt.Sprintf("%s %d", map[MapKind]string{MapData: "data", MapHole: "hole", MapInline: "inline", MapDirty: "dirty"}[x.Kind], x.Length)
		if x.Shared {
			w += " shared"
		}
		s = append(s, w)
	}
	return strings.Join(s, ", ")
}

func TestMap(t *testing.T) {
	ctx := context.Background()
	raw := extent.CodecNone
	for _, c := range []struct {
		name string
		do   func(t *testing.T, e *Engine)
		want string
	}{
		{"empty", func(t *testing.T, e *Engine) { put(t, e, "f", nil) }, ""},
		{"inline", func(t *testing.T, e *Engine) { put(t, e, "f", []byte("hello")) }, "inline 5"},
		{"inline, then a hole", func(t *testing.T, e *Engine) {
			put(t, e, "f", []byte("hello"))
			if _, _, err := e.Truncate(ctx, "f", 10_000, Preconditions{}); err != nil {
				t.Fatal(err)
			}
		}, "inline 5, hole 9995"},
		{"data", func(t *testing.T, e *Engine) { put(t, e, "f", noise(1, 50_000)) }, "data 50000"},
		{"only a hole", func(t *testing.T, e *Engine) {
			put(t, e, "f", nil)
			if _, _, err := e.Truncate(ctx, "f", 10_000, Preconditions{}); err != nil {
				t.Fatal(err)
			}
		}, "hole 10000"},
		{"a hole before, a cut inside a block", func(t *testing.T, e *Engine) {
			writeAt(t, e, "f", 8192, noise(1, 20_000))
			syncAll(t, e)
			if _, _, err := e.Deallocate(ctx, "f", 10_000, 100, Preconditions{}); err != nil {
				t.Fatal(err)
			}
		}, "hole 8192, data 1808, hole 100, data 18092"},
		{"dirty over all sorts", func(t *testing.T, e *Engine) {
			writeAt(t, e, "f", 8192, noise(1, 20_000))
			syncAll(t, e)
			writeAt(t, e, "f", 4096, noise(2, 8192))
			writeAt(t, e, "f", 40_960, noise(2, 10))
		}, "hole 4096, dirty 8192, data 15904, hole 12768, dirty 10"},
		{"dirty over inline data", func(t *testing.T, e *Engine) {
			put(t, e, "f", []byte("hello"))
			writeAt(t, e, "f", 1, []byte("u"))
		}, "dirty 5"},
		{"a clone", func(t *testing.T, e *Engine) {
			put(t, e, "src", noise(1, 100_000))
			cloneFile(t, e, "src", "f")
		}, "data 100000 shared"},
		{"a clone cut apart", func(t *testing.T, e *Engine) {
			put(t, e, "src", noise(1, 100_000))
			cloneFile(t, e, "src", "f")
			writeAt(t, e, "f", 4096, noise(2, 4096))
			if _, _, err := e.Deallocate(ctx, "src", 40_960, 8192, Preconditions{}); err != nil {
				t.Fatal(err)
			}
			syncAll(t, e)
		}, "data 4096 shared, data 4096, data 91808 shared"},
		{"a clone whose source is gone", func(t *testing.T, e *Engine) {
			put(t, e, "src", noise(1, 100_000))
			cloneFile(t, e, "src", "f")
			deleteFile(t, e, "src")
			eventually(t, "it is freed", func() bool { return e.orphans.Load() == 0 })
		}, "data 100000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, smallZNS, Options{Compression: &raw})
			e := b.open()
			c.do(t, e)
			for _, page := range []int{1, 2, 1000} {
				if got := shape(mapAll(t, e, "f", page)); got != c.want {
					t.Errorf("with pages of %d: %q, want %q", page, got, c.want)
				}
			}
		})
	}
}

// TestMapSaysWhere: the address, the zone and the bytes of each piece are those that a read goes
// to, compressed and not.
func TestMapSaysWhere(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		b := newBench(t, smallZNS, o)
		e := b.open()
		put(t, e, "f", text(1, 3_000_000))
		writeAt(t, e, "f", 1_000_000, noise(2, 5000))
		syncAll(t, e)
		list := mapAll(t, e, "f", 3)
		all := pieces(t, e, "f")
		if len(list) != len(all) {
			t.Fatalf("%d extents, a read finds %d", len(list), len(all))
		}
		for i, p := range all {
			x := list[i]
			z, off := e.at(p, 0)
			want := MapExtent{
				Offset: p.FileOff, Length: p.Len, Kind: MapData, Address: p.Addr, Places: []array.Place{{Zone: z}}, ZoneOff: off,
				Skip: p.Skip, Stored: p.Blocks * extent.BlockSize, Codec: p.Codec,
			}
			if !reflect.DeepEqual(x, want) {
				t.Errorf("%+v, want %+v", x, want)
			}
		}
		// From the middle of a piece on.
		mid := list[0].Offset + list[0].Length/2
		_, part, _, err := e.Map(context.Background(), Ref{Name: "f"}, mid, 1)
		if err != nil || part[0].Offset != mid || part[0].Length != list[0].Length-mid || part[0].Address < list[0].Address || part[0].Stored > list[0].Stored {
			t.Errorf("%+v %v", part, err)
		}
	})
}

func TestMapRefusals(t *testing.T) {
	b := newBench(t, smallZNS, Options{})
	e := b.open()
	ctx := context.Background()
	f := put(t, e, "dir/f", noise(1, 5000))
	for _, c := range []struct {
		ref  Ref
		off  int64
		kind errdefs.Kind
	}{
		{Ref{Name: "missing"}, 0, errdefs.NotFound},
		{Ref{ID: 999}, 0, errdefs.NotFound},
		{Ref{Name: "dir"}, 0, errdefs.Precondition},
		{Ref{Name: "dir/f"}, -1, errdefs.InvalidArgument},
	} {
		if _, _, _, err := e.Map(ctx, c.ref, c.off, 0); !errdefs.Is(err, c.kind) {
			t.Errorf("%+v at %d: %v", c.ref, c.off, err)
		}
	}
	for _, off := range []int64{5000, 1 << 50} {
		if _, list, next, err := e.Map(ctx, Ref{ID: f.ID}, off, 5000); err != nil || len(list) != 0 || next != -1 {
			t.Errorf("past the end: %v %d %v", list, next, err)
		}
	}
	r, err := e.OpenReader(ctx, ReadRequest{Ref: Ref{Name: "dir/f"}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	deleteFile(t, e, "dir/f")
	if _, _, _, err := e.Map(ctx, Ref{ID: f.ID}, 0, 0); !errdefs.Is(err, errdefs.NotFound) {
		t.Errorf("a deleted file that is open: %v", err)
	}
}

// TestMapCoversWhatIsUsed: over all files, the pieces of all maps are what is used, each address
// once, and shared is said exactly of what several maps have.
func TestMapCoversWhatIsUsed(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		b := newBench(t, smallZNS, o)
		e := b.open()
		workload(t, e, 1)
		for i := range 3 {
			cloneFile(t, e, fmt.Sprintf("text/%d", i), fmt.Sprintf("clones/%d", i))
			writeAt(t, e, fmt.Sprintf("clones/%d", i), int64(i)*100_000, noise(9, 77_777))
		}
		syncAll(t, e)
		eventually(t, "nothing is to be freed", func() bool { return e.orphans.Load() == 0 })
		users := map[extent.Addr]int{} // of each block
		var names []string
		if err := e.st.View(func(tx *store.Tx) error {
			_, err := tx.List("", "", true, 1000, func(path string, n store.Node) error {
				if n.Kind == store.File {
					names = append(names, path)
				}
				return nil
			})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		blocks := func(x MapExtent) (all []extent.Addr) {
			for a := x.Address; a < x.Address+extent.Addr(x.Stored); a += extent.BlockSize {
				all = append(all, a)
			}
			return all
		}
		for _, name := range names {
			mine := map[extent.Addr]bool{}
			for _, x := range mapAll(t, e, name, 100) {
				if x.Kind == MapData {
					for _, a := range blocks(x) {
						mine[a] = true
					}
				}
			}
			for a := range mine {
				users[a]++
			}
		}
		if used := int64(len(users)) * extent.BlockSize; used != e.Usage().Used {
			t.Errorf("the maps have %d bytes, %d are used", used, e.Usage().Used)
		}
		for _, name := range names {
			for _, x := range mapAll(t, e, name, 100) {
				shared := slices.ContainsFunc(blocks(x), func(a extent.Addr) bool { return users[a] > 1 })
				if x.Kind == MapData && x.Shared != shared {
					t.Errorf("%s: %+v, want shared %v", name, x, shared)
				}
			}
		}
	})
}
