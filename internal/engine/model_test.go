package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shingle-store/shingle/internal/errdefs"
	"github.com/shingle-store/shingle/internal/extent"
)

// modelFile is what a file may be: what is durable of it, and what was written since.
type modelFile struct {
	base []byte
	log  []modelWrite
	cur  []byte
}

type modelWrite struct {
	off  int64
	data []byte
}

func (m *modelFile) durable() { m.base, m.log = slices.Clone(m.cur), nil }

func (m *modelFile) write(off int64, data []byte) {
	m.log = append(m.log, modelWrite{off, data})
	m.cur = overwrite(m.cur, off, data)
}

func overwrite(p []byte, off int64, data []byte) []byte {
	if end := int(off) + len(data); len(data) > 0 && end > len(p) {
		p = append(p, make([]byte, end-len(p))...)
	}
	copy(p[min(int(off), len(p)):], data)
	return p
}

func zeroed(p []byte, off, end int64) []byte {
	p = slices.Clone(p)
	clear(p[min(off, int64(len(p))):min(end, int64(len(p)))])
	return p
}

func resized(p []byte, n int64) []byte {
	p = slices.Clone(p[:min(int64(len(p)), n)])
	return append(p, make([]byte, n-int64(len(p)))...)
}

// afterCrash says why got cannot be what a crash left of the file. Its size must be the size after
// some prefix of the writes, every block as new as that prefix at least, each block one of its
// versions whole. cut, unless empty, is a range that a truncate or punch was working on: there
// older versions, and versions with a part of the range zeroed, are legal too.
func (m *modelFile) afterCrash(got []byte, cut extent.Range) error {
	prefix, size := -1, len(m.base)
	for k := 0; ; k++ {
		if size == len(got) {
			prefix = k
			break
		}
		if k == len(m.log) {
			break
		}
		size = max(size, int(m.log[k].off)+len(m.log[k].data))
	}
	if prefix < 0 {
		history := ""
		for _, w := range m.log {
			history += fmt.Sprintf(" [%d, %d)", w.off, w.off+int64(len(w.data)))
		}
		return fmt.Errorf("size %d is of no prefix of %d writes%s after size %d; it differs from what was received at %d of %d",
			len(got), len(m.log), history, len(m.base), firstDifference(got, m.cur), len(m.cur))
	}
	for b := 0; b < len(got); b += extent.BlockSize {
		end := min(b+extent.BlockSize, len(got))
		if err := m.blockAfterCrash(got[b:end], int64(b), prefix, cut); err != nil {
			return err
		}
	}
	return nil
}

func (m *modelFile) blockAfterCrash(got []byte, off int64, prefix int, cut extent.Range) error {
	v := make([]byte, extent.BlockSize)
	copy(v, m.base[min(int(off), len(m.base)):])
	inCut := extent.Range{Off: off, End: off + extent.BlockSize}.Intersect(cut).Len() > 0
	legal := func(v []byte) bool {
		if bytes.Equal(v[:len(got)], got) {
			return true
		}
		return inCut && bytes.Equal(zeroed(v, max(0, cut.Off-off), max(0, cut.End-off))[:len(got)], got)
	}
	versions, ok := 1, legal(v)
	history := fmt.Sprintf("base of %d bytes: %t", len(m.base), ok)
	for k, w := range m.log {
		from, to := max(off, w.off), min(off+extent.BlockSize, w.off+int64(len(w.data)))
		if from >= to {
			continue
		}
		copy(v[from-off:to-off], w.data[from-w.off:to-w.off])
		if k < prefix && !inCut {
			ok = false // older ones are not legal any more
		}
		versions++
		ok = ok || legal(v)
		history += fmt.Sprintf(", write %d [%d, %d): %t, differs at %d", k, w.off, w.off+int64(len(w.data)), legal(v), firstDifference(v[:len(got)], got))
	}
	if !ok {
		return fmt.Errorf("block at %d is none of its %d versions (size prefix %d of %d writes; %s; it begins % x)", off, versions, prefix, len(m.log), history, got[:min(16, len(got))])
	}
	return nil
}

// world drives an engine with random operations and knows what must be true.
type world struct {
	t     testing.TB
	seed  uint64
	rng   *rand.Rand
	e     *Engine
	files map[string]*modelFile
	// crashed reports that the power is gone, so that an operation's answer means nothing.
	crashed func() bool
	doing   operation
	maxData int
	ops     int
	refused int
}

// operation is what was under way when the power went.
type operation struct {
	what, name, to string
	data           []byte
	off, end       int64
	existed        bool
}

func newWorld(t testing.TB, seed uint64) *world {
	return &world{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 7)), files: map[string]*modelFile{},
		crashed: func() bool { return false }, maxData: 200_000,
	}
}

func (w *world) fatalf(format string, a ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d, operation %d (%s %q %q [%d, %d)): %s", w.seed, w.ops, w.doing.what, w.doing.name, w.doing.to, w.doing.off, w.doing.end, fmt.Sprintf(format, a...))
}

func (w *world) name() string {
	return []string{"a", "b", "c", "d/e", "d/f", "d/g/h", "i"}[w.rng.IntN(7)]
}

func (w *world) offset(size int) int64 {
	switch w.rng.IntN(5) {
	case 0:
		return int64(size)
	case 1:
		return int64(w.rng.IntN(size+1)) / extent.BlockSize * extent.BlockSize
	case 2:
		return int64(size + w.rng.IntN(20_000))
	}
	return int64(w.rng.IntN(size + 1))
}

func (w *world) data() []byte {
	n := w.rng.IntN(3000)
	switch w.rng.IntN(8) {
	case 0:
		n = extent.BlockSize * (1 + w.rng.IntN(4))
	case 1, 2:
		n = w.rng.IntN(w.maxData)
	}
	if w.rng.IntN(2) == 0 {
		return text(w.rng.Uint64(), n)
	}
	return noise(w.rng.Uint64(), n)
}

// step does one random operation.
func (w *world) step() {
	w.ops++
	name := w.name()
	f := w.files[name]
	size := 0
	if f != nil {
		size = len(f.cur)
	}
	ctx := context.Background()
	switch k := w.rng.IntN(20); {
	case k < 7:
		w.doWrite(name, w.offset(size), w.data())
	case k < 10:
		w.doPut(name, w.data())
	case k < 11:
		w.doing = operation{what: "delete", name: name}
		_, err := w.e.Delete(ctx, DeleteRequest{Name: name})
		if w.answered(err, f == nil, errdefs.NotFound) {
			delete(w.files, name)
		}
	case k < 12:
		w.doRename(name, w.name())
	case k < 14:
		n := w.offset(size)
		w.doing = operation{what: "truncate", name: name, off: n, end: extent.MaxFileSize}
		_, _, err := w.e.Truncate(ctx, name, n, Preconditions{})
		if w.answered(err, f == nil, errdefs.NotFound) && f != nil {
			f.cur = resized(f.cur, n)
			f.durable()
		}
	case k < 16:
		off := w.offset(size)
		end := off + 1 + int64(w.rng.IntN(30_000))
		w.doing = operation{what: "punch", name: name, off: off, end: end}
		_, _, err := w.e.Deallocate(ctx, name, off, end-off, Preconditions{})
		if w.answered(err, f == nil, errdefs.NotFound) && f != nil {
			f.cur = zeroed(f.cur, off, end)
			f.durable()
		}
	case k < 18:
		w.doSync()
	default:
		w.doing = operation{what: "read", name: name}
		w.compare(name, f)
	}
	if !w.crashed() && w.rng.IntN(4) == 0 {
		checkIdentity(w.t, w.e)
	}
}

// answered reports whether the operation took place; wantErr says that it must be refused as kind.
func (w *world) answered(err error, wantErr bool, kind errdefs.Kind) bool {
	w.t.Helper()
	if w.crashed() {
		return false
	}
	switch {
	case err == nil && wantErr:
		w.fatalf("must be refused as %v", kind)
	case err != nil && !(wantErr && errdefs.Is(err, kind)):
		w.fatalf("%v", err)
	}
	return err == nil
}

func (w *world) doWrite(name string, off int64, data []byte) {
	f := w.files[name]
	w.doing = operation{what: "write", name: name, data: data, off: off, end: off + int64(len(data)), existed: f != nil}
	if f == nil {
		f = &modelFile{}
		w.files[name] = f
	}
	before := *f
	before.cur = slices.Clone(f.cur)
	if len(data) > 0 {
		f.write(off, data)
	}
	err := tryWriteAt(w.e, name, off, data)
	if w.crashed() {
		return
	}
	if errdefs.Is(err, errdefs.NoSpace) {
		w.checkRefusal(err, off, len(data))
		before.cur = slices.Clone(before.cur)
		*f = before
		w.makeRoom()
		return
	}
	if err != nil {
		w.fatalf("%v", err)
	}
}

// checkRefusal agrees with a refusal only if the space is really not there.
func (w *world) checkRefusal(err error, off int64, n int) {
	w.refused++
	u := w.e.Usage()
	// Inline data moves out with the first write: up to a frame more.
	need := extent.RoundUp(off+int64(n)) - extent.RoundDown(off) + extent.MaxFrameSize
	if u.Free >= need {
		w.fatalf("refused %d bytes with %d free: %v", n, u.Free, err)
	}
}

// makeRoom deletes half of the files, which must work on a full store.
func (w *world) makeRoom() {
	i := 0
	for _, name := range w.names() {
		if i++; i%2 == 0 {
			continue
		}
		w.doing = operation{what: "delete", name: name}
		_, err := w.e.Delete(context.Background(), DeleteRequest{Name: name})
		if w.crashed() {
			return
		}
		if err != nil {
			w.fatalf("on a full store: %v", err)
		}
		delete(w.files, name)
	}
}

func (w *world) names() []string {
	var names []string
	for name := range w.files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (w *world) doPut(name string, data []byte) {
	w.doing = operation{what: "put", name: name, data: data}
	_, err := tryPut(w.e, name, data)
	if w.crashed() {
		return
	}
	if errdefs.Is(err, errdefs.NoSpace) {
		w.checkRefusal(err, 0, len(data))
		w.makeRoom()
		return
	}
	if err != nil {
		w.fatalf("%v", err)
	}
	f := &modelFile{cur: slices.Clone(data)}
	f.durable()
	w.files[name] = f
}

func (w *world) doRename(name, to string) {
	w.doing = operation{what: "rename", name: name, to: to}
	f := w.files[name]
	_, _, err := w.e.Rename(context.Background(), RenameRequest{Name: name, NewName: to, Replace: true})
	if w.answered(err, f == nil, errdefs.NotFound) {
		f.durable()
		delete(w.files, name)
		w.files[to] = f
	}
}

func (w *world) doSync() {
	w.doing = operation{what: "sync"}
	var names []string
	if all := w.names(); len(all) > 0 && w.rng.IntN(2) == 0 {
		names = []string{all[w.rng.IntN(len(all))]}
	}
	_, err := w.e.Sync(context.Background(), names, nil)
	if w.crashed() {
		return
	}
	if err != nil {
		w.fatalf("%v", err)
	}
	for name, f := range w.files {
		if names == nil || name == names[0] {
			f.durable()
		}
	}
}

// compare reads a random range, or all, of a file and holds it against the model.
func (w *world) compare(name string, f *modelFile) {
	off, length := int64(0), (*int64)(nil)
	if f != nil && w.rng.IntN(2) == 0 {
		off = w.offset(len(f.cur))
		n := int64(w.rng.IntN(50_000))
		length = &n
	}
	got, err := tryRead(w.e, name, off, length)
	if !w.answered(err, f == nil, errdefs.NotFound) || f == nil {
		return
	}
	want := f.cur[min(off, int64(len(f.cur))):]
	if length != nil {
		want = want[:min(*length, int64(len(want)))]
	}
	if !bytes.Equal(got, want) {
		w.fatalf("read at %d: %d bytes differ at %d of %d", off, len(got), firstDifference(got, want), len(want))
	}
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// compareAll holds every file and the listing against the model.
func (w *world) compareAll() {
	w.doing = operation{what: "compare"}
	files, _, err := w.e.List(context.Background(), ListRequest{Recursive: true, Limit: 10_000})
	if err != nil {
		w.fatalf("%v", err)
	}
	var got []string
	for _, f := range files {
		if !f.Directory {
			got = append(got, f.Name)
		}
	}
	if want := w.names(); !slices.Equal(got, want) {
		w.fatalf("the store lists %q, the model has %q", got, want)
	}
	for name, f := range w.files {
		data, err := tryRead(w.e, name, 0, nil)
		if err != nil {
			w.fatalf("read %s: %v", name, err)
		}
		if !bytes.Equal(data, f.cur) {
			w.fatalf("%s: %d bytes differ from the model's %d at %d", name, len(data), len(f.cur), firstDifference(data, f.cur))
		}
	}
}

// adoptCrash holds what a crash left against what it may leave, and goes on from there.
func (w *world) adoptCrash() {
	d := w.doing
	found := map[string][]byte{}
	files, _, err := w.e.List(context.Background(), ListRequest{Recursive: true, Limit: 10_000})
	if err != nil {
		w.fatalf("after the crash: %v", err)
	}
	for _, f := range files {
		if f.Directory {
			continue
		}
		data, err := tryRead(w.e, f.Name, 0, nil)
		if err != nil && !errors.Is(err, io.EOF) {
			w.fatalf("after the crash: read %s: %v", f.Name, err)
		}
		found[f.Name] = data
	}
	if d.what == "rename" && d.name != d.to && w.files[d.name] != nil && found[d.name] == nil {
		if _, there := found[d.name]; !there { // it took place, with all the data
			w.files[d.to] = &modelFile{base: w.files[d.name].cur, cur: w.files[d.name].cur}
			delete(w.files, d.name)
		}
	}
	for name, f := range w.files {
		got, there := found[name]
		mine := name == d.name
		if !there {
			if mine && (d.what == "delete" || d.what == "write" && !d.existed) {
				continue
			}
			w.fatalf("after the crash: %s is gone", name)
		}
		if mine && d.what == "put" && bytes.Equal(got, d.data) {
			continue
		}
		if mine && d.what == "truncate" && bytes.Equal(got, resized(f.cur, d.off)) {
			continue
		}
		if mine && d.what == "punch" && bytes.Equal(got, zeroed(f.cur, d.off, d.end)) {
			continue
		}
		var cut extent.Range
		if mine && (d.what == "truncate" || d.what == "punch") {
			cut = extent.Range{Off: d.off, End: d.end}
		}
		if err := f.afterCrash(got, cut); err != nil {
			w.fatalf("after the crash: %s: %v", name, err)
		}
	}
	for name, got := range found {
		if w.files[name] == nil && !(name == d.name && d.what == "put" && bytes.Equal(got, d.data)) {
			w.fatalf("after the crash: %s has come from nowhere", name)
		}
	}
	w.files = map[string]*modelFile{}
	for name, got := range found {
		f := &modelFile{cur: got}
		f.durable()
		w.files[name] = f
	}
}
