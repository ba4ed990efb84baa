package engine

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/extent"
	"github.com/shingle-store/shingle/internal/zone"
)

// drawn is a test whose failures rapid hears of, to make them small.
type drawn struct {
	testing.TB
	rt *rapid.T
}

func (d drawn) Helper()                   { d.rt.Helper() }
func (d drawn) Fatal(a ...any)            { d.rt.Fatal(a...) }
func (d drawn) Fatalf(f string, a ...any) { d.rt.Fatalf(f, a...) }
func (d drawn) Error(a ...any)            { d.rt.Error(a...) }
func (d drawn) Errorf(f string, a ...any) { d.rt.Errorf(f, a...) }
func (d drawn) Logf(f string, a ...any)   { d.rt.Logf(f, a...) }

// cloneWorld is files under writes, cuts, clones, renames and deletes, and what they should hold:
// the bytes, and for each the stored block that it comes from, 0 for none. Raw, and never inline:
// everything is in blocks of the device, so what is used is known exactly.
type cloneWorld struct {
	t      testing.TB
	b      *bench
	e      *Engine
	files  map[string]*clonedFile
	writes uint32
}

type clonedFile struct {
	data []byte
	from []uint32
}

const (
	cloneMost  = 96 << 10
	cloneNames = 5
)

func (w *cloneWorld) draw(t *rapid.T, label string) (name string, f *clonedFile) {
	name = fmt.Sprintf("f%d", rapid.IntRange(0, cloneNames-1).Draw(t, label))
	return name, w.files[name]
}

func (w *cloneWorld) tb(t *rapid.T) testing.TB { return drawn{w.t, t} }

// offset draws a place in a file, near a border of blocks more often than not.
func (w *cloneWorld) offset(t *rapid.T, label string) int64 {
	at := rapid.Int64Range(0, cloneMost/4096).Draw(t, label) * 4096
	return max(0, at+rapid.SampledFrom([]int64{0, 0, 0, 1, -1, 1000, -700}).Draw(t, label+" beside"))
}

// write puts incompressible bytes into a file; those of a block that is written in part are stored
// anew with it.
func (w *cloneWorld) write(t *rapid.T) {
	name, f := w.draw(t, "file")
	off, n := w.offset(t, "offset"), rapid.IntRange(1, 40_000).Draw(t, "length")
	if f == nil {
		off, n = 0, n+8192 // never small enough to be kept in the record
		f = &clonedFile{}
		w.files[name] = f
	}
	w.writes++
	data := noise(uint64(w.writes), n)
	writeAt(w.tb(t), w.e, name, off, data)
	size := max(len(f.data), int(off)+n)
	f.data, f.from = overwrite(f.data, off, data), append(f.from, make([]uint32, size-len(f.from))...)
	for at := extent.RoundDown(off); at < min(extent.RoundUp(off+int64(n)), int64(size)); at++ {
		f.from[at] = w.writes<<12 | uint32(at/4096+1)
	}
	if rapid.Bool().Draw(t, "sync") {
		syncAll(w.tb(t), w.e)
	}
}

func (w *cloneWorld) clone(t *rapid.T) {
	name, f := w.draw(t, "file")
	to, old := w.draw(t, "clone")
	if f == nil || name == to {
		return
	}
	r := CloneRequest{Name: name, NewName: to, Replace: old != nil}
	if _, _, err := w.e.Clone(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	w.files[to] = &clonedFile{bytes.Clone(f.data), append([]uint32(nil), f.from...)}
}

func (w *cloneWorld) truncate(t *rapid.T) {
	name, f := w.draw(t, "file")
	if f == nil {
		return
	}
	size := max(8192, w.offset(t, "size"))
	if _, _, err := w.e.Truncate(context.Background(), name, size, Preconditions{}); err != nil {
		t.Fatal(err)
	}
	f.data = resized(f.data, size)
	if int(size) <= len(f.from) {
		f.from = f.from[:size:size]
	} else {
		f.from = append(f.from, make([]uint32, int(size)-len(f.from))...)
	}
}

func (w *cloneWorld) punch(t *rapid.T) {
	name, f := w.draw(t, "file")
	off, end := w.offset(t, "from"), w.offset(t, "to")
	if f == nil || off >= end {
		return
	}
	if _, _, err := w.e.Deallocate(context.Background(), name, off, end-off, Preconditions{}); err != nil {
		t.Fatal(err)
	}
	for at := off; at < min(end, int64(len(f.data))); at++ {
		f.data[at], f.from[at] = 0, 0
	}
}

func (w *cloneWorld) remove(t *rapid.T) {
	name, f := w.draw(t, "file")
	if f != nil {
		deleteFile(w.tb(t), w.e, name)
		delete(w.files, name)
	}
}

func (w *cloneWorld) rename(t *rapid.T) {
	name, f := w.draw(t, "file")
	to, _ := w.draw(t, "to")
	if f == nil || name == to {
		return
	}
	if _, _, err := w.e.Rename(context.Background(), RenameRequest{Name: name, NewName: to, Replace: true}); err != nil {
		t.Fatal(err)
	}
	delete(w.files, name)
	w.files[to] = f
}

// reopen closes the store in order, has it checked, and opens it again.
func (w *cloneWorld) reopen(t *rapid.T) {
	if err := w.e.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if found := w.b.check(true); len(found) > 0 {
		t.Fatalf("check finds %q", found)
	}
	w.e = w.b.open()
}

// check holds every byte against the model, and what is used against the blocks that some byte
// comes from, each once.
func (w *cloneWorld) check(t *rapid.T) {
	for name, f := range w.files {
		if got := readAll(w.tb(t), w.e, name); !bytes.Equal(got, f.data) {
			t.Fatalf("%s has %d bytes and differs at %d, want %d bytes", name, len(got), firstDifference(got, f.data), len(f.data))
		}
	}
	if !rapid.Bool().Draw(t, "count") {
		return
	}
	syncAll(w.tb(t), w.e)
	stored := map[uint32]bool{0: true}
	for _, f := range w.files {
		for _, id := range f.from {
			stored[id] = true
		}
	}
	want := int64(len(stored)-1) * 4096
	eventually(w.tb(t), fmt.Sprintf("%d bytes are used", want), func() bool { return w.e.orphans.Load() == 0 && w.e.Usage().Used == want })
	checkTotals(w.tb(t), w.e)
}

// TestClonesAgainstModel: contents and used bytes are exactly those of a model that knows of every
// byte which block it comes from.
func TestClonesAgainstModel(t *testing.T) {
	t.Parallel()
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		n := "25"
		if testing.Short() {
			n = "4"
		}
		if err := f.Value.Set(n); err != nil {
			t.Fatal(err)
		}
		defer f.Value.Set(f.DefValue)
	}
	g := zone.Geometry{Dialect: zone.ZNS, ZoneSize: 512 << 10, ZoneCapacity: 500 << 10, Zones: 24, MaxOpen: 3, MaxActive: 4}
	rapid.Check(t, func(rt *rapid.T) {
		o := Options{NoDelalloc: rapid.Bool().Draw(rt, "nodelalloc")}
		w := &cloneWorld{t: t, b: newBench(t, g, o), files: map[string]*clonedFile{}}
		w.e = w.b.open()
		defer func() { w.e.Close(context.Background()) }()
		rt.Repeat(map[string]func(*rapid.T){
			"write": w.write, "clone": w.clone, "clone more": w.clone, "truncate": w.truncate, "punch": w.punch,
			"delete": w.remove, "rename": w.rename, "reopen": w.reopen, "": w.check,
		})
	})
}
