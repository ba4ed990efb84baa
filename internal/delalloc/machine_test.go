package delalloc

import (
	"bytes"
	"math/rand"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shingle-store/shingle/internal/csum"
	"github.com/shingle-store/shingle/internal/slab"
)

const modelBlocks = 40

// modelBlock is what a model knows of one block. The zero value is clean.
type modelBlock struct {
	dirty      bool
	seq, first uint64
	since      time.Time
	data       [block]byte
}

// flight is a range taken, with what it must show.
type flight struct {
	Range
	blocks []modelBlock
}

// machine runs an index and a mirror of its flights against arrays of blocks.
type machine struct {
	arena   *slab.Arena
	mode    *Mode
	index   *Index
	mirror  *Index
	model   [modelBlocks]modelBlock
	shadow  [modelBlocks]modelBlock // of the mirror
	flights []*flight
	seq     uint64
	rng     *rand.Rand
}

func span(t *rapid.T) (off, end int64) {
	off = rapid.Int64Range(0, modelBlocks-1).Draw(t, "off")
	return off, rapid.Int64Range(off+1, modelBlocks).Draw(t, "end")
}

func (m *machine) insert(t *rapid.T) {
	off, end := span(t)
	m.seq++
	since := second(rapid.IntRange(0, 30).Draw(t, "since"))
	s := segment(m.arena, off*block, end-off, 0, m.seq, since)
	m.rng.Read(s.Buf.Bytes())
	s.Sums = csum.Blocks(nil, s.Buf.Bytes())
	want := int64(0)
	for i := off; i < end; i++ {
		b := modelBlock{dirty: true, seq: m.seq, first: m.seq, since: since}
		copy(b.data[:], s.Buf.Bytes()[(i-off)*block:])
		if old := m.model[i]; old.dirty {
			want += block
			b.inherit(old)
		}
		m.model[i] = b
	}
	if got := m.index.Insert(s); got != want {
		t.Fatalf("overlaid %d, want %d", got, want)
	}
}

func (b *modelBlock) inherit(o modelBlock) {
	b.first = min(b.first, o.first)
	if o.since.Before(b.since) {
		b.since = o.since
	}
}

func (m *machine) take(t *rapid.T) {
	sel := Selection{
		From: rapid.Int64Range(0, modelBlocks*block).Draw(t, "from"),
		Max:  rapid.Int64Range(0, 12*block).Draw(t, "max"),
	}
	if rapid.Bool().Draw(t, "from the start") {
		sel.From = 0
	}
	switch rapid.IntRange(0, 4).Draw(t, "by") {
	case 0:
		sel.MaxSeq = rapid.Uint64Range(1, m.seq+1).Draw(t, "seq")
	case 1:
		sel.Before = second(rapid.IntRange(0, 31).Draw(t, "before"))
	case 2:
		sel.CompleteOnly = true
	}
	off, end, want := plainSelect(m.index, sel)
	r, ok := m.index.Take(sel)
	if ok != want || ok && (r.Off != off*block || r.End() != end*block) {
		t.Fatalf("took %v [%d, %d), want %v [%d, %d) of %+v", ok, r.Off/block, r.End()/block, want, off, end, sel)
	}
	if !ok {
		return
	}
	f := &flight{Range: r, blocks: slices.Clone(m.model[off:end])}
	for i := off; i < end; i++ {
		if !m.model[i].dirty {
			t.Fatalf("took block %d, which is clean", i)
		}
		m.shadow[i] = m.model[i]
		m.model[i] = modelBlock{}
	}
	for _, s := range r.Segments {
		s.Buf = s.Buf.Slice(0, s.Len())
		m.mirror.Insert(s)
	}
	m.flights = append(m.flights, f)
}

// plainSelect is Take's rule block by block, over what the index's segments say.
func plainSelect(x *Index, sel Selection) (off, end int64, ok bool) {
	var can [modelBlocks + 1]*Segment
	x.segments.Scan(func(_ int64, e *entry) bool {
		for i := e.Off / block; i < e.End()/block; i++ {
			can[i] = &e.Segment
		}
		return true
	})
	limit := x.mode.RangeSize() / block
	if n := sel.Max / block; n > 0 && n < limit && !sel.CompleteOnly {
		limit = n
	}
	for off = (sel.From + block - 1) / block; off < modelBlocks; off = max(end, off+1) {
		wanted := false
		for end = off; end < off+limit && can[end] != nil; end++ {
			wanted = wanted || (sel.MaxSeq == 0 || can[end].First <= sel.MaxSeq) &&
				(sel.Before.IsZero() || can[end].Since.Before(sel.Before))
		}
		if wanted && (!sel.CompleteOnly || end-off == limit) {
			return off, end, true
		}
	}
	return 0, 0, false
}

func (m *machine) land(t *rapid.T) {
	if len(m.flights) == 0 {
		t.Skip("nothing in flight")
	}
	i := rapid.IntRange(0, len(m.flights)-1).Draw(t, "flight")
	f := m.flights[i]
	m.checkFlight(t, f)
	m.flights = slices.Delete(m.flights, i, i+1)
	first, last := f.Off/block, f.End()/block
	m.mirror.Forget(f.Off, f.End(), f.MaxSeq)
	for j := first; j < last; j++ {
		if m.shadow[j].seq <= f.MaxSeq {
			m.shadow[j] = modelBlock{}
		}
	}
	f.Release()
}

func (m *machine) drop(t *rapid.T) {
	off := rapid.Int64Range(0, modelBlocks*block).Draw(t, "off")
	end := rapid.Int64Range(0, modelBlocks*block+5).Draw(t, "end")
	want := int64(0)
	for i := range m.model {
		if at := int64(i) * block; at >= off && at+block <= end {
			if m.model[i].dirty {
				want += block
			}
			m.model[i] = modelBlock{}
		}
	}
	if got := m.index.Drop(off, end); got != want {
		t.Fatalf("dropped %d, want %d", got, want)
	}
}

func (m *machine) zero(t *rapid.T) {
	off := rapid.Int64Range(0, modelBlocks*block).Draw(t, "off")
	end := off + rapid.Int64Range(-1, 3*block).Draw(t, "n")
	x, model := m.index, &m.model
	if rapid.Bool().Draw(t, "in the mirror") {
		x, model = m.mirror, &m.shadow
	}
	want := int64(0)
	for i := range model {
		at := int64(i) * block
		if start, stop := max(off, at), min(end, at+block); model[i].dirty && start < stop {
			clear(model[i].data[start-at : stop-at])
			want += stop - start
		}
	}
	if got := x.Zero(off, end); got != want {
		t.Fatalf("zeroed %d, want %d", got, want)
	}
}

func (m *machine) read(t *rapid.T) {
	off := rapid.Int64Range(0, modelBlocks*block).Draw(t, "off")
	p := bytes.Repeat([]byte{0xee}, rapid.IntRange(0, 5*block).Draw(t, "n"))
	want := bytes.Clone(p)
	touched := map[int64]bool{}
	for i := range want {
		at := off + int64(i)
		if j := at / block; j < modelBlocks && m.model[j].dirty {
			want[i] = m.model[j].data[at%block]
			touched[at] = true
		}
	}
	next := off
	m.index.Copy(off, p, func(start, end int64) {
		if start < next || start >= end {
			t.Fatalf("covered [%d, %d) after %d", start, end, next)
		}
		for next = start; next < end; next++ {
			if !touched[next] {
				t.Fatalf("byte %d is not dirty or came twice", next)
			}
			delete(touched, next)
		}
	})
	if !bytes.Equal(p, want) || len(touched) != 0 {
		t.Fatalf("Copy at %d of %d: wrong bytes, or %d not covered", off, len(p), len(touched))
	}
	at := off / block * block
	dst := bytes.Repeat([]byte{0xee}, block)
	if found := m.index.CopyBlock(at, dst); at < modelBlocks*block {
		if b := &m.model[at/block]; found != b.dirty || found && !bytes.Equal(dst, b.data[:]) {
			t.Fatalf("CopyBlock(%d) = %v", at, found)
		}
	}
}

func (m *machine) next(t *rapid.T) {
	off := rapid.Int64Range(0, modelBlocks*block).Draw(t, "off")
	start, end, ok := m.index.Next(off)
	first := off / block
	for first < modelBlocks && !m.model[first].dirty {
		first++
	}
	if !ok || first == modelBlocks {
		if ok || first != modelBlocks {
			t.Fatalf("Next(%d) = %v, first dirty block %d", off, ok, first)
		}
		return
	}
	last := first
	for last < modelBlocks && m.model[last].dirty {
		last++
	}
	if start != max(off, first*block) || end != last*block {
		t.Fatalf("Next(%d) = [%d, %d), want [%d, %d)", off, start, end, max(off, first*block), last*block)
	}
}

// checkFlight holds a range in flight against what was dirty when it was taken.
func (m *machine) checkFlight(t *rapid.T, f *flight) {
	var want []byte
	low, high := uint64(1<<62), uint64(0)
	for _, b := range f.blocks {
		want = append(want, b.data[:]...)
		low, high = min(low, b.first), max(high, b.seq)
	}
	if got := bytes.Join(f.Bufs(), nil); !bytes.Equal(got, want) {
		t.Fatal("the bytes of a range in flight are wrong")
	}
	if !slices.Equal(f.Sums(), csum.Blocks(nil, want)) {
		t.Fatal("the sums of a range in flight are wrong")
	}
	if f.MaxSeq != high || f.MinSeq > low {
		t.Fatalf("sequences %d to %d, want %d to %d", f.MinSeq, f.MaxSeq, low, high)
	}
	off := rapid.Int64Range(0, f.Len()).Draw(t, "part off")
	n := rapid.Int64Range(0, f.Len()-off).Draw(t, "part n")
	if !bytes.Equal(bytes.Join(f.Slice(f.Off+off, n), nil), want[off:off+n]) {
		t.Fatal("a part of a range is wrong")
	}
}

// check holds everything that can be asked against the model.
func (m *machine) check(t *rapid.T) {
	flying := int64(0)
	for _, f := range m.flights {
		flying += f.Len()
	}
	agree(t, m.index, &m.model)
	agree(t, m.mirror, &m.shadow)
	if got := m.mode.Dirty(); got != m.index.Bytes()+flying {
		t.Fatalf("the mode counts %d, the index holds %d and flights %d", got, m.index.Bytes(), flying)
	}
	off, end := span(t)
	want := int64(0)
	for i := off; i < end; i++ {
		if m.model[i].dirty {
			want += block
		}
	}
	if got := m.index.Dirty(off*block, end*block); got != want {
		t.Fatalf("Dirty = %d, want %d", got, want)
	}
}

// agree holds an index's segments, sums, runs and heaps against the model and each other.
func agree(t *rapid.T, x *Index, model *[modelBlocks]modelBlock) {
	var seen [modelBlocks]bool
	var low uint64
	var oldest time.Time
	any, last := false, int64(0)
	var dirty runs
	x.segments.Scan(func(off int64, e *entry) bool {
		if off != e.Off || e.gone || off < last || e.Len() != int64(len(e.Sums))*block {
			t.Fatalf("segment at %d is not sound", off)
		}
		last = e.End()
		dirty.add(e.Off, e.End())
		if !any || e.First < low {
			low = e.First
		}
		if !any || e.Since.Before(oldest) {
			oldest = e.Since
		}
		any = true
		for i := e.Off / block; i < e.End()/block; i++ {
			b, data := &model[i], e.Buf.Bytes()[i*block-e.Off:][:block]
			if !b.dirty || b.seq != e.Seq || e.First > b.first || e.Since.After(b.since) {
				t.Fatalf("block %d: %+v, want seq %d first %d", i, e.Segment, b.seq, b.first)
			}
			if !bytes.Equal(data, b.data[:]) {
				t.Fatalf("block %d: wrong bytes", i)
			}
			if e.Sums[i-e.Off/block] != csum.Sum(data) {
				t.Fatalf("block %d: wrong sum", i)
			}
			seen[i] = true
		}
		return true
	})
	for i := range model {
		if model[i].dirty != seen[i] {
			t.Fatalf("block %d: dirty %v, found %v", i, model[i].dirty, seen[i])
		}
	}
	if seq, ok := x.MinSeq(); ok != any || seq != low {
		t.Fatalf("MinSeq %d %v, want %d %v", seq, ok, low, any)
	}
	if since, ok := x.Oldest(); ok != any || !since.Equal(oldest) {
		t.Fatalf("Oldest %v %v, want %v %v", since, ok, oldest, any)
	}
	complete := false
	if x.dirty.size != dirty.size || !slices.Equal(x.dirty.ends.Keys(), dirty.ends.Keys()) ||
		!slices.Equal(x.dirty.ends.Values(), dirty.ends.Values()) {
		t.Fatalf("runs %v-%v, want %v-%v", x.dirty.ends.Keys(), x.dirty.ends.Values(), dirty.ends.Keys(), dirty.ends.Values())
	}
	dirty.ends.Scan(func(s, e int64) bool {
		complete = complete || e-s >= x.mode.rangeSize
		return true
	})
	if x.Complete() != complete || x.Bytes() != dirty.size {
		t.Fatalf("complete %v, bytes %d", x.Complete(), x.Bytes())
	}
}

func TestIndexAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{
			arena: slab.New(128 << 20), rng: rand.New(rand.NewSource(1)),
			mode: NewMode(rapid.Int64Range(1, 12).Draw(t, "range size") * block),
		}
		defer m.arena.Close()
		m.index, m.mirror = NewIndex(m.mode), NewIndex(NewMode(0))
		t.Repeat(map[string]func(*rapid.T){
			"insert": m.insert, "take": m.take, "land": m.land, "drop": m.drop,
			"zero": m.zero, "read": m.read, "next": m.next, "": m.check,
		})
		for _, f := range m.flights {
			m.checkFlight(t, f)
			f.Release()
		}
		m.mirror.Drop(0, 1<<60)
		if err := m.mode.Disable(); (err != nil) != (m.index.Bytes() > 0) {
			t.Fatalf("Disable with %d bytes: %v", m.index.Bytes(), err)
		}
		m.index.Drop(0, 1<<60)
		if err := m.mode.Disable(); err != nil {
			t.Fatal(err)
		}
		if n := m.arena.InUse(); n != 0 {
			t.Fatalf("%d bytes leaked", n)
		}
	})
}
